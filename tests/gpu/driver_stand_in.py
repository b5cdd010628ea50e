"""Stands in for the module `pynvml`, in processes of a test: a GPU 0 as it was recorded, which lists all engines under its lock.

A copy named `pynvml.py` in a folder of PYTHONPATH is taken in place of the real one. ENGCMP_GPU_LOCK_DIR says whose engines are on the
GPU; like a driver, it tells every process the same, whoever started an engine. No tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

NVML_ERROR_NOT_SUPPORTED = 3
nvmlMemory_v2 = "_v2"
_HELD_BYTES = 10**9


class NVMLError(Exception):
    """A call that is not answered."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


@cache
def _frame() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(Path(os.environ["ENGCMP_RECORDED_GPU"]).read_bytes())["frames"][
        "idle"
    ]
    return found


def engines_on_the_gpu() -> dict[int, str]:
    """The living processes that carry the label of its lock, with the arms that they are of."""
    lock, found = Path(os.environ["ENGCMP_GPU_LOCK_DIR"]) / "gpu-0.lock", {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # another user's, or it has just ended
            continue
        if f"ENGCMP_LOCK={lock}".encode() in variables:
            (arm,) = (one.partition(b"=")[2].decode() for one in variables if one.startswith(b"ENGCMP_ARM="))
            found[int(folder.name)] = arm
    return found


def nvmlInit() -> None:
    """There is nothing to open."""


def nvmlShutdown() -> None:
    """There is nothing to close."""


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetComputeRunningProcesses(_handle: int) -> list[dict[str, int]]:
    return [{"pid": pid, "usedGpuMemory": _HELD_BYTES} for pid in engines_on_the_gpu()]


def nvmlSystemGetProcessName(_pid: int) -> str:
    return "engine"


def __getattr__(name: str) -> Callable[..., Any]:
    if not name.startswith("nvml"):
        raise AttributeError(name)

    def answer(*arguments: Any) -> Any:
        version = nvmlMemory_v2 if nvmlMemory_v2 in arguments else ""
        given = ", ".join(str(one) for one in arguments if one != nvmlMemory_v2)
        told = _frame().get(f"{name}{version}({given})", {"error": NVML_ERROR_NOT_SUPPORTED})
        if "error" in told:
            raise NVMLError(told["error"])
        return told["value"]

    return answer
