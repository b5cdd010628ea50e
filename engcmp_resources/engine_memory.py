"""The memory that an engine's processes hold: those that carry a launch's labels, and those of its container. It needs /proc."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_KB = re.compile(r"^(Pss|VmRSS|RssFile|RssShmem):\s+(\d+) kB", re.MULTILINE)
_KIBI = 1024
_SESSION = 3


def engine_memory(labels: Mapping[str, str], *, container: str | None = None) -> dict[str, Any]:
    """`{"resident_bytes", "file_bytes", "processes", "how"}` of the processes that carry all `labels` in their environment, with all that
    these have started, or run in the container of that id; `{"missing": reason}` where none is found.

    Where the system lets this user read it for all of them, a page that several share counts once (proportional set size); else the sum
    of resident sizes, as `how` says. `file_bytes` of it are pages of mapped files, which the system can take back.
    """
    sizes = [size for pid in _processes(labels, container) if (size := _size(pid)) is not None]
    if not sizes:
        return {"missing": "no process of the engine is found on this machine"}
    proportional = all(size["Pss"] is not None for size in sizes)
    return {
        "resident_bytes": sum(size["Pss" if proportional else "VmRSS"] or 0 for size in sizes),
        "file_bytes": sum(size["RssFile"] or 0 for size in sizes),
        "processes": len(sizes),
        "how": "proportional set size" if proportional else "sum of resident sizes: shared pages count several times",
    }


def _processes(labels: Mapping[str, str], container: str | None) -> Iterator[Path]:
    wanted = {f"{name}={value}".encode() for name, value in labels.items()}
    places: dict[int, tuple[int, int]] = {}
    own: set[int] = set()
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or (place := _place(entry)) is None:
            continue
        places[int(entry.name)] = place
        if container is not None and container in _text(entry / "cgroup"):
            own.add(int(entry.name))
        elif wanted:
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # another user's, or one that has ended
                continue
            if wanted <= set(variables):
                own.add(int(entry.name))
    # A process that gives itself a title writes it over its variables, as vLLM's engine core and workers do: who was started by a
    # labelled one, or is in the session that it leads, is the engine's too.
    labelled = set(own)
    own |= {pid for pid, (_, session) in places.items() if session in labelled}
    while more := {pid for pid, (parent, _) in places.items() if parent in own} - own:
        own |= more
    yield from (_PROC / str(pid) for pid in sorted(own))


def _place(process: Path) -> tuple[int, int] | None:
    """Parent and session of a process; None where it has ended."""
    # The command name in parentheses may hold anything: fields are counted from the last one.
    fields = _text(process / "stat").rpartition(")")[2].split()
    return (int(fields[1]), int(fields[3])) if len(fields) > _SESSION else None


def _size(process: Path) -> dict[str, int | None] | None:
    found = {name: int(value) * _KIBI for name, value in _KB.findall(_text(process / "status"))}
    if "VmRSS" not in found:  # it has ended
        return None
    found |= {name: int(value) * _KIBI for name, value in _KB.findall(_text(process / "smaps_rollup"))}
    return {name: found.get(name) for name in ("Pss", "VmRSS", "RssFile")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
