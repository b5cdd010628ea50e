"""llama.cpp's own HTTP server from a command line with llama-server's options, for where only the wheel's library is at hand.

It is a program of the standard library alone, run by path inside a container: `python -I -S llamacpp_server_cli.py --library FILE -m FILE
-c N ...`. The server is the one of `llamacpp_server_worker`, with the same parameters, so that its rows are the same bits. It ends by a
signal.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

# The interpreter is isolated: nothing of ours is on its path. Last, so that nothing here hides the standard library.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from engcmp_resources.engines.llamacpp_server_worker import Server
from engcmp_resources.engines.llamacpp_worker import Refused

_ENDED_BY_SIGNAL = 0
_REFUSED = 1


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The request of `llamacpp_server_worker.Server` from a command line; ends the process with exit code 2 for one that is wrong."""
    options = argparse.ArgumentParser(prog="llamacpp_server_cli", allow_abbrev=False)
    options.add_argument("--library", required=True, help="the shared object of an xllamacpp wheel")
    options.add_argument("-m", "--model", required=True)
    options.add_argument("-a", "--alias", required=True)
    options.add_argument("-c", "--ctx-size", type=int, required=True, help="of all requests at a time together")
    options.add_argument("-b", "--batch-size", type=int, required=True)
    options.add_argument("-ub", "--ubatch-size", type=int, required=True)
    options.add_argument("-t", "--threads", type=int, required=True)
    options.add_argument("-tb", "--threads-batch", type=int, help="as --threads where it is left out")
    options.add_argument("-np", "--parallel", type=int, default=1, help="requests at a time, which share --ctx-size")
    options.add_argument("--metrics", action="store_true", help="answer at /metrics")
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--api-key-file", type=Path, required=True)
    given = options.parse_args(arguments)
    try:
        key = given.api_key_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        options.error(f"--api-key-file: {error}")
    if not key:
        options.error("--api-key-file: the file is empty")
    if given.parallel < 1:
        options.error("--parallel: give 1 or more")
    return {
        "library": given.library,
        "model": given.model,
        "alias": given.alias,
        "n_ctx": given.ctx_size,
        "n_batch": given.batch_size,
        "n_ubatch": given.ubatch_size,
        "n_threads": given.threads,
        "n_threads_batch": given.threads if given.threads_batch is None else given.threads_batch,
        "n_parallel": given.parallel,
        "endpoint_metrics": given.metrics,
        "host": given.host,
        "port": given.port,
        "key": key,
    }


def main() -> NoReturn:
    """Serve until SIGTERM or SIGINT. A server that cannot be started as asked ends with exit code 1 and says why."""
    # As the first process of a container it gets no signal for which it has not set a handler.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(_ENDED_BY_SIGNAL))
    try:
        server = Server(parsed(sys.argv[1:]))
    except Refused as refusal:
        print(f"error: {refusal.what}; {refusal.remedy}", file=sys.stderr, flush=True)
        sys.exit(_REFUSED)
    print(f"server is listening on {server.facts()['address']}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
