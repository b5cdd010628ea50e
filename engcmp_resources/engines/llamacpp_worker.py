"""The child process that holds llama.cpp: loads the shared object with ctypes and answers JSON lines.

It runs by path in an isolated interpreter with the standard library only, so that it starts in milliseconds and a crash
of the library takes nothing else down. A request is one JSON object a line on standard input; an answer is
`{"ok": ...}` or `{"error": {"what", "remedy"}}` on a private copy of standard output. All that is printed goes to
standard error, the log.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol

_PR_SET_PDEATHSIG = 1
_LOG_DEBUG = 1
_LOG_CONTINUED = 5
_TEXT_BYTES = 512
# Limits of a plausible default: a struct whose leading fields moved reads as 0, a pointer half or a seed, not as these.
_LARGEST_DEFAULT_CONTEXT = 1 << 20
_LARGEST_DEFAULT_BATCH = 1 << 16
_SMALLEST_DEFAULT_BATCH = 32


class Refused(Exception):
    """What the parent is told in place of an answer."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(what)


class Served(Protocol):
    """What `serve` needs of an engine that has started."""

    def facts(self) -> dict[str, Any]: ...

    def answer(self, request: dict[str, Any]) -> dict[str, Any]: ...


class _ModelParams(ctypes.Structure):
    # Larger than the struct of any version, for it goes by value: the callee reads its own size from the front.
    _fields_ = (("devices", ctypes.c_void_p), ("rest", ctypes.c_uint8 * 1016))


class _ContextParams(ctypes.Structure):
    _fields_ = (
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("rest", ctypes.c_uint8 * 1012),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
        ("rest", ctypes.c_uint8 * 256),
    )


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_PTR, _I32, _BOOL, _STR = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_batch_init": (_Batch, [_I32, _I32, _I32]),
    "llama_context_default_params": (_ContextParams, []),
    "llama_decode": (_I32, [_PTR, _Batch]),
    "llama_get_logits_ith": (_PTR, [_PTR, _I32]),
    "llama_init_from_model": (_PTR, [_PTR, _ContextParams]),
    "llama_log_set": (None, [_LogCallback, _PTR]),
    "llama_model_default_params": (_ModelParams, []),
    "llama_model_desc": (_I32, [_PTR, _STR, ctypes.c_size_t]),
    "llama_model_get_vocab": (_PTR, [_PTR]),
    "llama_model_load_from_file": (_PTR, [_STR, _ModelParams]),
    "llama_n_batch": (ctypes.c_uint32, [_PTR]),
    "llama_n_ctx": (ctypes.c_uint32, [_PTR]),
    "llama_n_threads": (_I32, [_PTR]),
    "llama_n_threads_batch": (_I32, [_PTR]),
    "llama_n_ubatch": (ctypes.c_uint32, [_PTR]),
    "llama_print_system_info": (_STR, []),
    "llama_set_n_threads": (None, [_PTR, _I32, _I32]),
    "llama_tokenize": (_I32, [_PTR, _STR, _I32, ctypes.POINTER(_I32), _I32, _BOOL, _BOOL]),
    "llama_vocab_n_tokens": (_I32, [_PTR]),
}
# Clearing the memory between windows was renamed twice: the newest pair first, then the older single functions.
_CLEARING: tuple[dict[str, tuple[Any, list[Any]]], ...] = (
    {"llama_get_memory": (_PTR, [_PTR]), "llama_memory_clear": (None, [_PTR, _BOOL])},
    {"llama_kv_self_clear": (None, [_PTR])},
    {"llama_kv_cache_clear": (None, [_PTR])},
)
_VERSIONS = ("llama_version", "ggml_version")


def _bind(library: ctypes.CDLL, functions: dict[str, tuple[Any, list[Any]]]) -> list[str]:
    """Declare the functions; the names that the library does not export."""
    missing = []
    for name, (result, arguments) in functions.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            missing.append(name)
            continue
        function.restype, function.argtypes = result, arguments
    return missing


class Engine:
    """A loaded model with a context; raises Refused for whatever cannot be served as requested."""

    def __init__(self, request: dict[str, Any]) -> None:
        started = time.perf_counter()
        self._load_library(request["library"])
        self._check_defaults()
        self._load_model(request["model"])
        self._make_context(request)
        self._make_batch(request["n_batch"])
        self._load_ms = round((time.perf_counter() - started) * 1000)

    def _load_library(self, path: str) -> None:
        try:
            self._lib = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            raise Refused(f"the library does not load: {error}", remedy_for_loader(str(error))) from error
        missing = _bind(self._lib, _FUNCTIONS)
        for functions in _CLEARING:
            if not _bind(self._lib, functions):
                self._clearing = next(reversed(functions))
                break
        else:
            missing += ["llama_memory_clear with llama_get_memory (or llama_kv_self_clear, llama_kv_cache_clear)"]
        if missing:
            raise Refused(
                f"the library exports no {', '.join(missing)}",
                "use a version of the engine that exports llama.cpp's C API",
            )
        self._log = _LogCallback(_log_writer())  # kept: the library calls it as long as the process lives
        self._lib.llama_log_set(self._log, None)
        self._lib.llama_backend_init()

    def _check_defaults(self) -> None:
        model, context = self._lib.llama_model_default_params(), self._lib.llama_context_default_params()
        plausible = (
            model.devices is None
            and context.n_ctx <= _LARGEST_DEFAULT_CONTEXT
            and _SMALLEST_DEFAULT_BATCH <= context.n_ubatch <= context.n_batch <= _LARGEST_DEFAULT_BATCH
        )
        if not plausible:
            raise Refused(
                f"the default parameters read as devices={model.devices}, n_ctx={context.n_ctx}, "
                f"n_batch={context.n_batch}, n_ubatch={context.n_ubatch}: the struct layout is another",
                "use a version with the known layout, or teach llamacpp_worker.py the new one",
            )

    def _load_model(self, path: str) -> None:
        params = self._lib.llama_model_default_params()
        # An empty device list keeps every layer on the CPU; the default would offload to Metal where the build has it.
        self._no_devices = (ctypes.c_void_p * 1)(None)
        params.devices = ctypes.cast(self._no_devices, ctypes.c_void_p)
        self._model = self._lib.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise Refused(
                f"the model file {Path(path).name} does not load",
                "check that the file is whole (its sha256) and that this version knows its architecture",
            )
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self._width = int(self._lib.llama_vocab_n_tokens(self._vocab))

    def _make_context(self, request: dict[str, Any]) -> None:
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = request["n_ctx"], request["n_batch"], request["n_ubatch"]
        self._context = self._lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise Refused(
                f"no context of {request['n_ctx']} tokens could be made", "free memory or ask for a smaller context"
            )
        self._lib.llama_set_n_threads(self._context, request["n_threads"], request["n_threads_batch"])

    def _make_batch(self, capacity: int) -> None:
        self._batch = self._lib.llama_batch_init(capacity, 0, 1)
        self._capacity = capacity
        parts = (self._batch.token, self._batch.pos, self._batch.n_seq_id, self._batch.seq_id, self._batch.logits)
        if self._batch.embd is not None or not all(map(bool, parts)):
            raise Refused(
                "llama_batch_init returned a batch of another layout",
                "use a version with the known layout, or teach llamacpp_worker.py the new one",
            )

    def facts(self) -> dict[str, Any]:
        """What the library reports, after everything was set."""
        description = ctypes.create_string_buffer(_TEXT_BYTES)
        self._lib.llama_model_desc(self._model, description, _TEXT_BYTES)
        sizes = ("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch")
        return {
            **{name: int(getattr(self._lib, f"llama_{name}")(self._context)) for name in sizes},
            "n_vocab": self._width,
            "model_description": description.value.decode(errors="replace"),
            "system_info": self._lib.llama_print_system_info().decode(errors="replace").strip(" |"),
            "devices": "cpu only",
            "memory_cleared_by": self._clearing,
            **{name: self._version(name) for name in _VERSIONS},
            "load_ms": self._load_ms,
        }

    def _version(self, name: str) -> str | dict[str, str]:
        if _bind(self._lib, {name: (_STR, [])}):
            return {"missing": f"the library exports no {name}"}
        return str(getattr(self._lib, name)().decode(errors="replace"))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What is asked after the start: rows or token ids."""
        return self.prefill(request) if request["do"] == "prefill" else self.tokenize(request)

    def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """Token ids of request["text"]; special markers are parsed, nothing is added at either end."""
        text = request["text"].encode()
        capacity = len(text) + 8  # a token is at least one byte; the library may count a few more on the way
        ids = (ctypes.c_int32 * capacity)()
        count = self._lib.llama_tokenize(self._vocab, text, len(text), ids, capacity, False, True)
        if count < 0:
            raise Refused(f"text of {len(text)} bytes: tokenizing failed with code {count}", "check the text")
        return {"tokens": list(ids[:count])}

    def prefill(self, request: dict[str, Any]) -> dict[str, Any]:
        """Decode a window as one batch, all logits on, and write the asked rows as raw float32."""
        tokens, out = request["tokens"], Path(request["out"])
        if len(tokens) > self._capacity:
            raise Refused(f"{len(tokens)} tokens in a batch of {self._capacity}", "ask for a larger batch")
        self._clear()
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, index
            batch.n_seq_id[index], batch.seq_id[index][0], batch.logits[index] = 1, 0, 1
        started = time.perf_counter()
        code = self._lib.llama_decode(self._context, batch)
        seconds = time.perf_counter() - started
        if code != 0:
            raise Refused(f"llama_decode returned {code}", "read the log of the engine")
        try:
            self._write_rows(request["positions"], out)
        except OSError as error:
            raise Refused(f"rows could not be written to {out}: {error.strerror}", "free disk space") from error
        return {"rows": len(request["positions"]), "seconds": seconds, "peak_rss_bytes": peak_rss_bytes()}

    def _clear(self) -> None:
        clear = getattr(self._lib, self._clearing)
        if self._clearing == "llama_memory_clear":
            clear(self._lib.llama_get_memory(self._context), True)
        else:
            clear(self._context)

    def _write_rows(self, positions: list[int], out: Path) -> None:
        # No fsync: this is scratch that the parent reads at once; the store makes the final file durable.
        partial = out.with_name(f"{out.name}.partial")
        try:
            with partial.open("wb") as file:
                for position in positions:
                    address = self._lib.llama_get_logits_ith(self._context, position)
                    if not address:
                        raise Refused(f"no logits for row {position}", "read the log of the engine")
                    file.write((ctypes.c_float * self._width).from_address(address))
            partial.replace(out)
        finally:
            partial.unlink(missing_ok=True)


def remedy_for_loader(text: str) -> str:
    """What helps against this message of the dynamic loader."""
    for library, package in (("libgomp", "libgomp1"), ("libstdc++", "libstdc++6")):
        if text.startswith(library):
            return f"install the Debian package {package}"
    return "use the wheel for this platform, and install the shared libraries that it names"


def _log_writer() -> Any:
    """The callback for the library's log: everything but debug messages goes to standard error."""
    level_now = 0

    def write(level: int, text: bytes, _: object) -> None:
        nonlocal level_now
        level_now = level_now if level == _LOG_CONTINUED else level
        if level_now != _LOG_DEBUG:
            os.write(2, text)

    return write


def peak_rss_bytes() -> int:
    """The most memory that this program has had resident."""
    # On Linux getrusage starts at the size that the parent had at the fork; VmHWM is of this program alone.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _die_with(parent: int) -> None:
    """End this process when its parent ends: at once on Linux; elsewhere the reader of requests notices."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def _read_requests(source: BinaryIO, requests: queue.SimpleQueue[dict[str, Any]]) -> NoReturn:
    for line in source:
        requests.put(json.loads(line))
    # End of file: the parent is done or dead. A thread of its own sees that in the middle of a decode too, and nothing
    # here needs an orderly end.
    os._exit(0)


def serve(start: Callable[[dict[str, Any]], Served]) -> NoReturn:
    """Serve requests until standard input ends; the first one starts the engine and is answered with its facts."""
    _die_with(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file of an engine is as large as its model
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    engine: Served | None = None
    while True:
        request = requests.get()
        try:
            if engine is None:
                engine = start(request)
                answer: dict[str, Any] = {"ok": engine.facts()}
            else:
                answer = {"ok": engine.answer(request)}
        except Refused as refusal:
            answer = {"error": {"what": refusal.what, "remedy": refusal.remedy}}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve(Engine)
