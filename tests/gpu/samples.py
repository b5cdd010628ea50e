"""Snapshots and telemetry samples as JSON, made from the recorded answers of a real GPU; tests change what they are about."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engcmp_resources.gpus import read_snapshot

try:
    from recording import FILE, Frame, PlayedNvml
except ModuleNotFoundError:  # a test of another folder is run alone
    from gpu.recording import FILE, Frame, PlayedNvml

RECORDED: dict[str, Any] = json.loads(Path(FILE).read_bytes())
HOST = {"cpu_percent": 12.5, "load_1m": 0.5, "memory_available_bytes": 10**9, "cpu_mhz": {"missing": "not told"}}


def played(label: str, **changes: dict[str, Any]) -> PlayedNvml:
    """The recorded frame `label`; `changes` are answers by the name of the function, for the GPU 0."""
    nvml = PlayedNvml(RECORDED["frames"][label])
    for function, answer in changes.items():
        matching = [name for name in nvml.frame if name.startswith(f"{function}(")]
        assert matching, function
        for name in matching:
            nvml.frame[name] = answer
    return nvml


def with_second_gpu(frame: Frame) -> PlayedNvml:
    """A frame in which the GPU 1 is like the GPU 0."""
    nvml = PlayedNvml(frame)
    for name, answer in frame.items():
        if name.startswith("nvmlDevice") and "(0" in name:
            nvml.frame[name.replace("(0", "(1", 1)] = dict(answer)
    nvml.frame["nvmlDeviceGetCount()"] = {"value": 2}
    return nvml


def snapshot_of(label: str, *, ours: Sequence[int] = ()) -> dict[str, Any]:
    """The recorded frame as a snapshot; the processes of `ours` are the engine's."""
    return read_snapshot(played(label), lambda pid: pid in ours).as_json()


def gpu_of(label: str, *, ours: Sequence[int] = (), **facts: Any) -> dict[str, Any]:
    """GPU 0 of a recorded frame, with `facts` in place of what it had."""
    return {**snapshot_of(label, ours=ours)["gpus"][0], **facts}


def process(pid: int, *, used_bytes: Any = 10**9, ours: bool = False, name: str = "program") -> dict[str, Any]:
    return {"pid": pid, "name": name, "used_bytes": used_bytes, "ours": ours}


def sample(number: int, *gpus: dict[str, Any], phase: str = "capturing") -> dict[str, Any]:
    at = f"2026-11-29T12:00:{number % 60:02}.000+00:00"
    return {"at": at, "t_ns": number * 10**9, "phase": phase, "host": HOST, "gpus": list(gpus)}


def capture(count: int, gpu: Callable[[int], Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """`count` samples of a capture; `gpu` gives the GPUs of each, by its number."""
    return [sample(number, *gpu(number)) for number in range(count)]
