"""A recording of NVML: what a real driver returned, call by call, and the same answers played back.

`python tests/gpu/recording.py OUT.json` on a host with an NVIDIA GPU makes a new one: the GPU idle, with a program that computes, under
load, with a program that draws, and idle again. Identities, process ids, program names and folders are replaced before anything is written.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engcmp_resources.gpus import DriverNvml, NvmlLike, NvmlRefusal, read_snapshot

FILE = Path(__file__).with_name("recorded_h200.json")
HOLDER, DRAWER = (Path(__file__).with_name(name) for name in ("holder.py", "drawer.py"))
HELD_BYTES = 2 * 2**30
# Beside what a snapshot asks for: the forms that older drivers answer, and what says how the GPU is set up.
ALSO = (
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetFanSpeed",
)  # fmt: skip
Frame = dict[str, dict[str, Any]]


def key_of(function: str, *arguments: int) -> str:
    return f"{function}({', '.join(map(str, arguments))})"


class PlayedNvml:
    """Answers as a frame of a recording says; what is not in it is not supported."""

    def __init__(self, frame: Mapping[str, Mapping[str, Any]]) -> None:
        self.frame: Frame = deepcopy({name: dict(answer) for name, answer in frame.items()})

    def read(self, function: str, *arguments: int) -> Any:
        answer = self.frame.get(key_of(function, *arguments), {"error": 3})
        if "error" in answer:
            raise NvmlRefusal(function, answer["error"])
        return answer["value"]


class _RecordingNvml:
    """Asks a driver and keeps what it answered."""

    def __init__(self, nvml: NvmlLike) -> None:
        self._nvml = nvml
        self.frame: Frame = {}

    def read(self, function: str, *arguments: int) -> Any:
        try:
            value = self._nvml.read(function, *arguments)
        except NvmlRefusal as refusal:
            self.frame[key_of(function, *arguments)] = {"error": refusal.code}
            raise
        self.frame[key_of(function, *arguments)] = {"value": value}
        return value


@contextmanager
def _running(program: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(program), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(30)


def holding(held_bytes: int = HELD_BYTES, *options: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A program that holds memory of GPU 0, and computes with the option --load, until the block ends."""
    return _running(HOLDER, str(held_bytes), *options)


def drawing() -> AbstractContextManager[subprocess.Popen[str]]:
    """A program that holds a graphics context of a GPU until the block ends."""
    return _running(DRAWER)


def take_frame(nvml: NvmlLike) -> Frame:
    recording = _RecordingNvml(nvml)
    read_snapshot(recording)
    for index in range(nvml.read("nvmlDeviceGetCount")):
        for function in ALSO:
            with suppress(NvmlRefusal):
                recording.read(function, index)
    return recording.frame


def scrubbed(frames: Mapping[str, Frame]) -> dict[str, Frame]:
    """The frames without what tells one host from another."""
    pids: dict[int, int] = {}
    return {
        label: dict(_scrubbed(name, answer, pids) for name, answer in frame.items()) for label, frame in frames.items()
    }


def _scrubbed(name: str, answer: Mapping[str, Any], pids: dict[int, int]) -> tuple[str, dict[str, Any]]:
    """One answer; `pids` grows with the lists of processes, which are asked for before the names."""
    if name.startswith("nvmlSystemGetProcessName"):
        pid = int(name.partition("(")[2].rstrip(")"))
        return key_of("nvmlSystemGetProcessName", pids[pid]), {"value": "/somewhere/program --of=somebody"}
    if "value" in answer and name.startswith("nvmlDeviceGetUUID"):
        return name, {"value": f"GPU-00000000-0000-0000-0000-00000000000{name[-2]}"}
    if "value" in answer and "RunningProcesses" in name:
        return name, {
            "value": [{**one, "pid": pids.setdefault(one["pid"], 1001 + len(pids))} for one in answer["value"]]
        }
    return name, dict(answer)


def record(out: Path) -> None:
    nvml = DriverNvml()
    frames = {"idle": take_frame(nvml)}
    with holding():
        frames["held"] = take_frame(nvml)
    with holding(HELD_BYTES, "--load"):
        time.sleep(5)
        frames["load"] = take_frame(nvml)
    with drawing():
        frames["drawn"] = take_frame(nvml)
    time.sleep(2)
    frames["after"] = take_frame(nvml)
    header = {
        "what": "answers of NVML on a real GPU, recorded by tests/gpu/recording.py; identities, process ids and names are replaced",
        "gpu": nvml.read("nvmlDeviceGetName", 0),
        "driver": nvml.read("nvmlSystemGetDriverVersion"),
        "system": platform.system(),
        "date": datetime.now(UTC).date().isoformat(),
        "held_bytes": HELD_BYTES,
    }
    nvml.close()
    clean = scrubbed(frames)
    out.write_text(json.dumps({"header": header, "frames": clean}, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
