"""Clearing what a start of an engine could find in memory from the last one: the pages of its files that the system has kept."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_LEFT = 0.05  # of a file's pages that may stay, held by another process that has it open


class _NotToldError(Exception):
    """Which pages are in memory cannot be known."""


def drop_page_cache(files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Ask the system to forget the pages of `files` (folders: all files in them), by what each is, for example `the model file`.

    For each `{"cache", "cleared", "resident_before", "resident_after"}`: the shares of its pages that were in memory, which say whether it
    was done: a file in a memory-backed file system, or one that another process maps, stays. Where the system does not tell, or refuses,
    the shares are `{"missing": reason}` and `cleared` is false.
    """
    return [_dropped(f"page cache of {what}", path) for what, path in files.items()]


def _dropped(cache: str, path: Path) -> dict[str, Any]:
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    try:
        before = _share(_pages(files))
        _forget(files)
        pages = _pages(files)
        if stayed := [file for file, (_, held) in pages.items() if held]:
            # What is not yet on the disk cannot be forgotten. Asked of these alone: of every file of a large folder it takes long.
            for file in stayed:
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            _forget(stayed)
            pages |= _pages(stayed)
        after = _share(pages)
    except OSError as error:
        refused = {"missing": f"the system does not let it be cleared: {error.strerror}"}
        return {"cache": cache, "cleared": False, "resident_before": refused, "resident_after": refused}
    except _NotToldError as why:
        untold = {"missing": str(why)}
        return {"cache": cache, "cleared": False, "resident_before": untold, "resident_after": untold}
    cleared = isinstance(after, float) and after <= _LEFT
    return {"cache": cache, "cleared": cleared, "resident_before": before, "resident_after": after}


def _forget(files: Iterable[Path]) -> None:
    if not hasattr(os, "posix_fadvise"):
        return
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _share(pages: Mapping[Path, tuple[int, int]]) -> float | dict[str, str]:
    """The share of the files' pages that is in memory."""
    count = sum(of_file for of_file, _ in pages.values())
    return sum(held for _, held in pages.values()) / count if count else {"missing": "the files are empty"}


def _pages(files: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Of each file that is not empty, how many pages it has and how many of them are in memory."""
    name = ctypes.util.find_library("c")
    if name is None or not hasattr(ctypes.CDLL(name), "mincore"):
        raise _NotToldError("this system does not tell which pages are in memory")
    libc, found = ctypes.CDLL(name, use_errno=True), {}
    for file in files:
        if not file.stat().st_size:
            continue
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            count = -(-len(mapped) // mmap.PAGESIZE)
            states = (ctypes.c_ubyte * count)()
            start = (ctypes.c_char * len(mapped)).from_buffer(mapped)
            refused = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), states)
            del start  # else the map cannot be closed
            if refused:
                raise _NotToldError(f"mincore: {os.strerror(ctypes.get_errno())}")
            found[file] = count, sum(state & 1 for state in states)
    return found
