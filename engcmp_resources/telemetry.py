"""Telemetry of a capture: each second what NVML and the system say, in a journal that a kill cannot take along.

A sample is one line of JSON: `{"at", "t_ns", "phase", "host": {...}, "gpus": [...] or {"missing": reason}}`, or in place of the last two
`{"failed": reason}`; `gpus` is `GpuSnapshot.as_json()["gpus"]`. A value that is not told is `{"missing": reason}`.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engcmp_resources.disk import disk_errors
from engcmp_resources.gpus import DriverNvml, GpuSnapshot, IsOurs, NoValue, NvmlLike, open_nvml, read_snapshot

_END_WAIT_S = 5.0
_FREQUENCY_CORES = 8  # reading every core of a large host would cost more than the figure is worth
_PROC = Path("/proc")
_FREQUENCIES = Path("/sys/devices/system/cpu")
OpenNvml = Callable[[], NvmlLike | NoValue]


class Sampler:
    """The running sampler. Set `phase` (`starting`, `capturing`, `stopping`) as the capture goes on; `problems` says what failed."""

    def __init__(self, journal: Path, ours: IsOurs, open_driver: OpenNvml, period_s: float) -> None:
        self.phase = "starting"
        self.problems: list[str] = []
        self._ours, self._open, self._period_s = ours, open_driver, period_s
        self._end = threading.Event()
        self._host = _Host()
        self._is_cut = False
        with disk_errors(journal):
            # One write for each line, at the end of the file: a kill can cut off the last line and nothing else.
            self._descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _end_cut_line(journal, self._descriptor)
        self._thread = threading.Thread(target=self._run, name="engcmp-telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the sample that is being taken. A driver that does not answer any more is not waited for."""
        self._end.set()
        self._thread.join(_END_WAIT_S)
        if self._thread.is_alive():
            self.problems.append(f"the driver did not answer the last sample within {_END_WAIT_S:g} s")

    def _run(self) -> None:
        nvml = self._opened()
        began, tick = time.monotonic(), 0
        while True:
            self._take(nvml)
            # The next due moment that is still to come: a sample that took long never makes the next ones follow at once.
            tick = max(tick + 1, int((time.monotonic() - began) / self._period_s) + 1)
            if self._end.wait(max(0.0, began + tick * self._period_s - time.monotonic())):
                break
        if isinstance(nvml, DriverNvml):
            nvml.close()
        os.close(self._descriptor)

    def _opened(self) -> NvmlLike | NoValue:
        try:
            return self._open()
        except Exception as error:  # noqa: BLE001 - whatever fails here must not end the capture
            self.problems.append(f"NVML could not be opened: {error}")
            return NoValue(f"NVML could not be opened: {error}")

    def _take(self, nvml: NvmlLike | NoValue) -> None:
        sample: dict[str, Any] = {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "t_ns": time.monotonic_ns(),
            "phase": self.phase,
        }
        try:
            try:
                sample |= {"host": self._host.read(), "gpus": _gpus_now(nvml, self._ours)}
            except Exception as error:  # noqa: BLE001 - a sample that fails is a recorded reason
                sample["failed"] = f"{type(error).__name__}: {error}"
            sample["phase"] = self.phase  # as it is now: an engine that was stopped meanwhile has not left its GPU
            self._write(json.dumps(sample, separators=(",", ":")).encode() + b"\n")
        except Exception as error:  # noqa: BLE001 - a full disk must not end the capture
            self.problems.append(f"a sample was not written: {error}")

    def _write(self, line: bytes) -> None:
        data = b"\n" + line if self._is_cut else line
        written = os.write(self._descriptor, data)
        self._is_cut = written != len(data)
        if self._is_cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def sampling(
    journal: Path, *, ours: IsOurs = lambda _pid: False, open_driver: OpenNvml = open_nvml, period_s: float = 1.0
) -> Iterator[Sampler]:
    """Take a sample every `period_s` seconds into `journal`, which is continued if it exists, until the block ends.

    `ours` tells which processes are the engine's (`gpus.Owned`, which may grow meanwhile). Nothing that fails within reaches
    the block. Raises EngcmpError where the journal cannot be made.
    """
    sampler = Sampler(journal, ours, open_driver, period_s)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def read_samples(journal: Path) -> list[dict[str, Any]]:
    """The samples of a journal, in order, without lines that a kill cut short."""
    samples = []
    for line in journal.read_bytes().splitlines():
        try:
            sample = json.loads(line)
        except ValueError:
            continue
        if isinstance(sample, dict):
            samples.append(sample)
    return samples


def _end_cut_line(journal: Path, descriptor: int) -> None:
    """What is appended must not go on in a line that a kill cut short."""
    with journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read() != b"\n":
                os.write(descriptor, b"\n")


def _gpus_now(nvml: NvmlLike | NoValue, ours: IsOurs) -> Any:
    if isinstance(nvml, NoValue):
        return nvml.as_json()
    shot: GpuSnapshot = read_snapshot(nvml, ours)
    return shot.as_json()["gpus"]


class _Host:
    """The system's figures; the CPU's share is of the time since the last reading."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = _cpu_ticks()

    def read(self) -> dict[str, Any]:
        return {
            "cpu_percent": self._cpu_percent(),
            "load_1m": os.getloadavg()[0],
            "memory_available_bytes": _memory_available(),
            "cpu_mhz": _cpu_mhz(),
        }

    def _cpu_percent(self) -> float | Mapping[str, str]:
        before, now = self._before, _cpu_ticks()
        self._before = now
        if now is None:
            return NoValue("this system has no /proc/stat").as_json()
        if before is None or now[1] <= before[1]:
            return NoValue("no time has passed since the last sample").as_json()
        return round(100 * (now[0] - before[0]) / (now[1] - before[1]), 2)


def _cpu_ticks() -> tuple[int, int] | None:
    """Ticks in which the cores were busy, and all of them, since the start of the system."""
    try:
        with (_PROC / "stat").open(encoding="ascii") as file:
            # user nice system idle iowait irq softirq steal; guest time is within user and nice
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _memory_available() -> int | Mapping[str, str]:
    try:
        with (_PROC / "meminfo").open(encoding="ascii") as file:
            kibibytes = next(line.split()[1] for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return NoValue("this system does not tell the memory available").as_json()
    return int(kibibytes) * 1024


def _cpu_mhz() -> float | Mapping[str, str]:
    """The mean frequency of some cores, evenly chosen."""
    cores = os.cpu_count() or 1
    chosen = range(0, cores, max(1, cores // _FREQUENCY_CORES))
    found = []
    for core in chosen:
        try:
            found.append(int((_FREQUENCIES / f"cpu{core}/cpufreq/scaling_cur_freq").read_bytes()) / 1000)
        except (OSError, ValueError):
            continue
    return round(sum(found) / len(found), 1) if found else NoValue("this system does not tell its frequency").as_json()
