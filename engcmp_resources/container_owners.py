"""Which process a container belongs to, in a label that tells later whether that process still lives."""

from __future__ import annotations

import os
from pathlib import Path


def owner() -> str:
    """Who owns a container, in a form that another process can judge later: the boot, the pid namespace, the pid and its start time."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getpid()} {_start_time(os.getpid())}"
    except OSError:  # no /proc: nobody judges it, the lock decides
        return ""


def is_dead(label: str, *, running: bool) -> bool:
    """Whether the owner of a container is surely dead; one in another pid namespace cannot be seen from here.

    Of another boot is every container that outlived a restart of this machine: it does not run, for none of ours is ever restarted.
    """
    theirs, ours = label.split(), owner().split()
    if len(theirs) != len(ours) or len(ours) != 4:  # noqa: PLR2004 - boot, namespace, pid, start
        return False
    if theirs[0] != ours[0]:
        return not running
    return theirs[1] == ours[1] and theirs[2].isdigit() and _start_time(int(theirs[2])) != theirs[3]


def _start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "ended"
