"""Control groups for one run of a sandbox: total memory, processes and processors, which per-process limits cannot give.

As root a group is made in the file system of cgroup v1 or v2; else systemd's manager of this user makes one (`systemd-run --user`).
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engcmp_resources.sandbox.records import BrokenSandboxError, Limits, NoSandboxError

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "engcmp-sandbox-"
_PERIOD_US = 100_000
_END_S = 20.0
_V1 = ("memory", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Group:
    """How a command gets into its control group: by writing its pid into `join`, or by `prefix` before it."""

    kind: str
    join: tuple[Path, ...] = ()
    prefix: tuple[str, ...] = ()


def kind() -> str:
    """`v1`, `v2` or `systemd`: how groups are made here. Raises NoSandboxError where they cannot be."""
    if os.geteuid() == 0:
        if all((_ROOT / name / "cgroup.procs").exists() for name in _V1):
            return "v1"
        with suppress(OSError):
            if {"memory", "pids", "cpu"} <= set((_ROOT / "cgroup.subtree_control").read_text().split()):
                return "v2"
    elif shutil.which("systemd-run") and Path(f"/run/user/{os.geteuid()}/systemd/private").exists():
        return "systemd"
    raise NoSandboxError(
        "no control group can be made for total memory and processes",
        where=str(_ROOT),
        remedy="use Docker, or log in to a session of systemd with cgroup v2",
    )


@contextmanager
def group(made_by: str, limits: Limits) -> Iterator[Group]:
    """A control group with the limits; on leaving, its processes are killed and it is removed. `made_by` is of `kind`."""
    if made_by == "systemd":
        yield Group("systemd", prefix=_systemd(limits))
        return
    _sweep(made_by)
    name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    folders = [base / name for base in _bases(made_by)]
    try:
        try:
            for folder in folders:
                folder.mkdir()
            for path, value in _settings(made_by, folders, limits):
                path.write_text(value)
        except OSError as error:
            raise BrokenSandboxError(
                f"no control group: {error}", where=str(_ROOT), remedy="look at what the system refuses"
            ) from error
        yield Group(made_by, join=tuple(folder / "cgroup.procs" for folder in folders))
    finally:
        for folder in folders:
            _remove(folder)


def _bases(made_by: str) -> list[Path]:
    return [_ROOT / name for name in _V1] if made_by == "v1" else [_ROOT]


def _settings(made_by: str, folders: list[Path], limits: Limits) -> list[tuple[Path, str]]:
    memory, processes, quota = str(limits.memory_bytes), str(limits.processes), limits.cpus * _PERIOD_US
    if made_by == "v1":
        in_memory, in_pids, in_cpu = folders
        swap = in_memory / "memory.memsw.limit_in_bytes"  # there only where the kernel counts swap
        return [
            (in_memory / "memory.limit_in_bytes", memory),
            *([(swap, memory)] if swap.exists() else [(in_memory / "memory.swappiness", "0")]),
            (in_pids / "pids.max", processes),
            (in_cpu / "cpu.cfs_period_us", str(_PERIOD_US)),
            (in_cpu / "cpu.cfs_quota_us", str(quota)),
        ]
    (folder,) = folders
    swap = folder / "memory.swap.max"
    return [
        (folder / "memory.max", memory),
        *([(swap, "0")] if swap.exists() else []),
        (folder / "pids.max", processes),
        (folder / "cpu.max", f"{quota} {_PERIOD_US}"),
    ]


def _systemd(limits: Limits) -> tuple[str, ...]:
    wanted = {
        "MemoryMax": limits.memory_bytes,
        "MemorySwapMax": 0,
        "TasksMax": limits.processes,
        "CPUQuota": f"{limits.cpus * 100}%",
        "RuntimeMaxSec": f"{limits.total_s + _END_S:g}",
    }
    settings = [word for name, value in wanted.items() for word in ("-p", f"{name}={value}")]
    return ("systemd-run", "--user", "--scope", "--quiet", "--collect", *settings, "--")


def _remove(folder: Path) -> None:
    """Kill what is in a group until nothing is, then remove it."""
    until = time.monotonic() + _END_S
    while folder.exists():
        with suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > until:
                raise BrokenSandboxError(
                    f"a control group cannot be removed: {error}", where=str(folder), remedy="kill what is left in it"
                ) from error
            time.sleep(0.02)


def _sweep(made_by: str) -> None:
    """Remove the groups of callers that were killed; a group that still holds a process stays."""
    for base in _bases(made_by):
        for folder in base.glob(f"{_PREFIX}*"):
            if not _lives(folder.name.removeprefix(_PREFIX).partition("-")[0]):
                with suppress(OSError):
                    folder.rmdir()


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        return True
    return True
