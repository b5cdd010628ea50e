"""A journal of unfinished work: one JSON line for each completed piece, on disk before the next piece begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.store import disk_errors


class Journal:
    """Append-only lines in one file. A line that a kill cut short is dropped when the journal is opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        data = path.read_bytes() if path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) != len(data):
            os.truncate(path, len(whole))
        self.entries = [json.loads(line) for line in whole.splitlines()]

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add an entry; it is on disk when this returns."""
        with disk_errors(self.path), self.path.open("ab") as file:
            file.write(canonical_bytes(entry))
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(dict(entry))
