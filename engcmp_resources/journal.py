"""A journal of unfinished work: one JSON line for each completed piece, on disk before the next piece begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import canonical_bytes, parse_canonical, sha256_of
from engcmp_resources.disk import disk_errors
from engcmp_resources.errors import EngcmpError


class Journal:
    """Append-only lines in one file, each with its own hash.

    When the journal is opened again it ends before the first line that is not whole, whether a kill cut it short or the disk
    damaged it: what stood there is done again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            data = path.read_bytes() if path.is_file() else b""
            self.entries, sound = _sound_entries(data, str(path))
            if sound != len(data):
                os.truncate(path, sound)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; it is on disk when this returns."""
        line = canonical_bytes({"entry": dict(entry), "sha256": sha256_of(entry)})
        size = self.path.stat().st_size if self.path.is_file() else 0
        with disk_errors(self.path):
            try:
                with self.path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                if self.path.is_file():
                    os.truncate(self.path, size)  # half a line would take the lines after it along
                raise
        self.entries.append(dict(entry))


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The whole entries of a journal that another process may be writing; nothing is changed."""
    return _sound_entries(path.read_bytes(), str(path))[0]


def _sound_entries(data: bytes, where: str) -> tuple[list[dict[str, Any]], int]:
    """The entries before the first line that is not whole, and how many bytes they take."""
    entries: list[dict[str, Any]] = []
    sound = 0
    for line in data.splitlines(keepends=True):
        entry = _entry(line, where)
        if entry is None:
            break
        entries.append(entry)
        sound += len(line)
    return entries, sound


def _entry(line: bytes, where: str) -> dict[str, Any] | None:
    """The entry of a line, or None for a line that is not whole."""
    try:
        record = parse_canonical(line, what="journal line", where=where, remedy="none is needed")
        entry = record["entry"]
        return entry if isinstance(entry, dict) and record["sha256"] == sha256_of(entry) else None
    except (KeyError, EngcmpError):
        return None
