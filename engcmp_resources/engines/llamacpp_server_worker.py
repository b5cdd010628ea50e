"""The child process that holds llama.cpp's own HTTP server: the extension module of the wheel, without its Python files.

It answers JSON lines as `llamacpp_worker` does: the first request starts the server, whose own threads then answer HTTP
on 127.0.0.1; later ones ask for the memory used. `llamacpp_server_cli` starts the same server from a command line.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.machinery
import importlib.util
import socket
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

# The interpreter is isolated: nothing of ours is on its path. Last, so that nothing here hides the standard library.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from engcmp_resources.engines.llamacpp_worker import Refused, peak_rss_bytes, remedy_for_loader, serve

_HOST = "127.0.0.1"
_MODULE = "xllamacpp"  # decides the name of the function that the loader looks for, PyInit_xllamacpp
# At 4 all versions log the sizes and threads that they resolved; some also log each answer whole, 5 MB a row.
_VERBOSITY_OF_START, _VERBOSITY = 4, 3
_FIXED: dict[str, Any] = {
    "n_threads_http": 2,
    "n_gpu_layers": 0,
    "no_kv_offload": True,
    "no_op_offload": True,
    "fit_params": False,  # would change the context to fit free memory
    "warmup": False,
    "cache_ram_mib": 0,  # would bring back the cache of an earlier window, and take up to 8 GiB
}


def _renamed(host: str) -> tuple[dict[str, Any], ...]:
    """What was renamed between versions: the newest name first."""
    return (
        {"hostnames": [host], "hostname": host},
        {"cache_idle_slots": False, "clear_idle": False},
        {"ui": False, "webui": False},
    )


def _load(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_MODULE, path)
    spec = importlib.util.spec_from_file_location(_MODULE, path, loader=loader)
    if spec is None:
        raise Refused("the library is no extension module", "use the shared object of an xllamacpp wheel")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        text = str(error)
        if f"PyInit_{_MODULE}" in text:
            raise Refused(
                f"the library holds no llama.cpp server: {text}", "use the shared object of an xllamacpp wheel"
            ) from error
        raise Refused(f"the library does not load: {text}", remedy_for_loader(text)) from error
    missing = [name for name in ("CommonParams", "Server") if not hasattr(module, name)]
    if missing:
        raise Refused(
            f"the library holds no llama.cpp server: no {', '.join(missing)}", "use a version that has a server"
        )
    return module


def _set(holder: Any, name: str, value: Any) -> None:
    """Set a parameter and read it back: a version that lacks it or keeps another value is not used with its default."""
    try:
        setattr(holder, name, value)
        found = getattr(holder, name)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise _unknown_parameter(f"{name}: {error}") from error
    if found != value:
        raise _unknown_parameter(f"{name} was set to {value!r} and reads as {found!r}")


def _unknown_parameter(text: str) -> Refused:
    return Refused(
        f"the server does not take a parameter: {text}",
        "use a version with the known parameters, or teach llamacpp_server_worker.py the new ones",
    )


def _verbosity_of(path: str) -> ctypes.c_int | None:
    """The threshold of the server's log, which can be changed while it runs; None where the library does not export it."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(path), "common_log_verbosity_thold")
    except ValueError:
        return None


def _parameters(module: ModuleType, request: dict[str, Any], verbosity: int) -> Any:
    params = module.CommonParams()
    for name in ("n_ctx", "n_batch", "n_ubatch", "port"):
        _set(params, name, request[name])
    _set(params, "verbosity", verbosity)
    _set(params, "n_parallel", request.get("n_parallel", 1))
    _set(params, "endpoint_metrics", request.get("endpoint_metrics", False))
    for name, value in _FIXED.items():
        _set(params, name, value)
    for names in _renamed(request.get("host", _HOST)):
        present = [name for name in names if hasattr(params, name)]
        if not present:
            raise _unknown_parameter(f"no {' or '.join(names)}")
        _set(params, present[0], names[present[0]])
    _set(params, "api_keys", [request["key"]])
    _set(params, "model_alias", {request["alias"]})
    _set(params.model, "path", request["model"])
    _set(params.cpuparams, "n_threads", request["n_threads"])
    _set(params.cpuparams_batch, "n_threads", request["n_threads_batch"])
    return params


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port in TIME_WAIT is free
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


class Server:
    """A server that listens, with its model loaded; raises Refused for whatever cannot be served as requested.

    `request` holds `library` and `model` (paths), `key`, `alias`, `port` (0 for a free one), `n_ctx`, `n_batch`, `n_ubatch`, `n_threads`,
    `n_threads_batch`; and where they are not 127.0.0.1, 1 and false, `host`, `n_parallel` (requests at a time, which share `n_ctx`) and
    `endpoint_metrics`. All else is the same for whoever starts it, so that the rows are too.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        started = time.perf_counter()
        self._module = _load(request["library"])
        threshold = _verbosity_of(request["library"])
        params = _parameters(self._module, request, _VERBOSITY if threshold is None else _VERBOSITY_OF_START)
        try:
            # This keeps the interpreter's lock until the model is loaded: a closed standard input is seen only then.
            self._server = self._module.Server(params)
        except RuntimeError as error:
            raise self._not_started(request, error) from error
        if threshold is not None:
            threshold.value = _VERBOSITY
        self._load_ms = round((time.perf_counter() - started) * 1000)

    def _not_started(self, request: dict[str, Any], error: RuntimeError) -> Refused:
        # The library says only that it failed; the port is looked at afterwards, so that there is no gap to race in.
        port = request["port"]
        if port and _is_taken(port):
            return Refused(f"port {port} of {_HOST} is taken", "free it, name another, or name none for a free one")
        return Refused(
            f"the server does not start with the model file {Path(request['model']).name}: {error}",
            "read the log; check that the file is whole and that this version knows its architecture",
        )

    def facts(self) -> dict[str, Any]:
        """Where the server listens, and what the library says of itself."""
        return {
            "address": self._server.listening_address,
            "system_info": self._module.get_system_info().strip(" |"),
            "devices": "cpu only",
            "load_ms": self._load_ms,
        }

    def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """The most memory used so far: all that is asked beside HTTP."""
        return {"peak_rss_bytes": peak_rss_bytes()}


if __name__ == "__main__":
    serve(Server)
