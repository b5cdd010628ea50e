"""`python -m tests.simulator`: print the address as a JSON line, then the lines that the engine's log would have."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
from http.server import ThreadingHTTPServer

from .dialect_cuteafd import CuteAfd
from .dialect_llama_server import LlamaServer
from .dialect_sglang import SgLang
from .dialect_vllm import Vllm
from .engine import Engine
from .options import DIALECTS, Options, parse
from .server import Dialect, make_server

SPOKEN: dict[str, type[Dialect]] = {"vllm": Vllm, "cuteafd": CuteAfd, "llama-server": LlamaServer, "sglang": SgLang}
assert tuple(SPOKEN) == DIALECTS
_TOO_LITTLE_MEMORY = (
    "ValueError: Free memory on device cuda:0 (1.2/139.8 GiB) on startup is less than desired GPU memory utilization"
)
_MEMORY_CHANGED = (
    "AssertionError: Error in memory profiling. Initial free memory 90.1 GiB, current free memory 95.6 GiB. "
    "This happens when other processes sharing the same container release GPU memory while vLLM is profiling"
)


def main(options: Options) -> int:
    """Serve until the process ends; 1 where the start fails."""
    script = json.loads(options.script.read_text(encoding="utf-8")) if options.script else None
    engine = Engine(options, script)
    _on_terminate(engine)
    if options.until_stdin_closes:
        _end_with_stdin()
    dialect = SPOKEN[options.dialect](engine)
    if memory := engine.at_start("no_free_memory"):
        engine.say(_MEMORY_CHANGED if memory["changed"] else _TOO_LITTLE_MEMORY)
        return 1
    server = _bound(engine, dialect)
    if server is None:
        engine.say(f"OSError: [Errno {errno.EADDRINUSE}] address already in use: {options.host}:{options.port}")
        return 1
    address = f"http://{options.host}:{server.server_port}"
    print(json.dumps({"address": address, "dialect": options.dialect, "pid": os.getpid()}), flush=True)
    dialect.say_started(address)
    if slow := engine.at_start("slow_start"):
        time.sleep(slow["ms"] / 1e3)
    server.server_activate()
    engine.listening_ns = time.monotonic_ns()
    if engine.is_loading():
        _when_loaded(engine, dialect, address)
    else:
        dialect.say_ready(address)
    server.serve_forever(poll_interval=0.1)
    return 0


def _bound(engine: Engine, dialect: Dialect) -> ThreadingHTTPServer | None:
    """The server on its port; None where that is taken."""
    if engine.at_start("port_taken"):
        return None
    try:
        return make_server(engine, dialect)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None


def _when_loaded(engine: Engine, dialect: Dialect, address: str) -> None:
    """Say that it is ready once /health does."""

    def wait() -> None:
        while engine.is_loading():
            time.sleep(0.01)
        dialect.say_ready(address)

    threading.Thread(target=wait, daemon=True).start()


def _on_terminate(engine: Engine) -> None:
    """End on SIGTERM, also as the first process of a container, which has no default for it."""

    def end(*_: object) -> None:
        if not engine.at_start("ignores_stop"):
            os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def _end_with_stdin() -> None:
    """End when standard input does."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(parse()))
