"""What a store holds that nothing needs: files that no head, no published figure and no unfinished capture reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.audit.reached import reached_from_heads
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob, Store

TOMBSTONE_SCHEMA = "engcmp.tombstone/1"


@dataclass(frozen=True, slots=True)
class Unreached:
    """Files and receipts that no root reaches."""

    files: tuple[Blob, ...]
    receipts: tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(blob.bytes for blob in self.files)


def unreached(store: Store) -> Unreached:
    """Everything that no head of any study and no unfinished capture reaches.

    Raises EngcmpError where a head or receipt is damaged: then nothing can be called unneeded.
    """
    kept_files: set[tuple[str, str]] = set(_unfinished(store))
    kept_receipts: set[str] = set()
    for folder in sorted((store.home / "heads").iterdir()):
        reached = reached_from_heads(store, folder.name)
        if reached.problems:
            problem = reached.problems[0]
            raise EngcmpError(
                f"nothing is collected from a damaged store: {problem.what}", where=problem.file,
                remedy=f"`engcmp verify {folder.name}` names all problems",
            )  # fmt: skip
        kept_receipts |= set(reached.receipts)
        for receipt in reached.receipts.values():
            kept_files |= {(output["sha256"], output["suffix"]) for output in receipt["outputs"]}
    kept_files |= set(_parts(store))
    files = [blob for blob in _stored(store) if (blob.sha256, blob.suffix) not in kept_files]
    receipts = [
        path.stem for path in sorted((store.home / "receipts").glob("*.json")) if path.stem not in kept_receipts
    ]
    return Unreached(tuple(files), tuple(receipts))


def remove(store: Store, found: Unreached, *, removed_at: str) -> str:
    """Remove what was found, after writing a tombstone that says what there was; returns the tombstone's hash."""
    tombstone = {
        "schema": TOMBSTONE_SCHEMA,
        "removed_at": removed_at,
        "files": [{"sha256": blob.sha256, "bytes": blob.bytes, "suffix": blob.suffix} for blob in found.files],
        "receipts": list(found.receipts),
    }
    sha256 = store.bury(tombstone)
    for blob in found.files:
        store.path(blob).unlink(missing_ok=True)
    for name in found.receipts:
        store.receipt_path(name).unlink(missing_ok=True)
    return sha256


def _stored(store: Store) -> Iterator[Blob]:
    for path in sorted((store.home / "store").glob("*/*")):
        sha256, _, suffix = path.name.partition(".")
        yield Blob(sha256, path.stat().st_size, suffix)


def _unfinished(store: Store) -> Iterator[tuple[str, str]]:
    """The row files of captures that a later run will continue."""
    for journal in sorted((store.home / "scratch").glob("capture-*/journal.jsonl")):
        for entry in _lines(journal):
            for taken in entry.get("repeats", []):
                for file in taken["files"].values():
                    yield file["sha256"], "safetensors"


def _parts(store: Store) -> Iterator[tuple[str, str]]:
    for path in (store.home / "tasks").glob("part-*.json"):
        for entry in _lines(path):
            yield entry["sha256"], "json"


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last line that a kill cut short is not one."""
    data = path.read_bytes()
    try:
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    except ValueError as error:
        raise EngcmpError(
            "not readable, so nothing is collected", where=str(path), remedy="remove this file"
        ) from error
