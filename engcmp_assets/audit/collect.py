"""What a store holds that nothing needs: files that no head, no interrupted commit and no unfinished capture reaches."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_assets.audit.private_texts import unreached_texts
from engcmp_assets.audit.reached import Reached, follow, link_problems, reached_from_heads
from engcmp_resources.disk import sync_folder
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import read_journal
from engcmp_resources.private_store import private_path
from engcmp_resources.store import SHA256, Blob, Store

TOMBSTONE_SCHEMA = "engcmp.tombstone/1"


@dataclass(frozen=True, slots=True)
class Unreached:
    """Files, receipts and private texts (by hash) that no root reaches."""

    files: tuple[Blob, ...]
    receipts: tuple[str, ...]
    private: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(blob.bytes for blob in self.files)


def unreached(store: Store, dead: Collection[str] = ()) -> Unreached:
    """Everything that no head of any study, no interrupted commit and no unfinished capture reaches; those named in `dead` count for none.

    What another process has stored and not recorded yet is among it: remove nothing unless the store is held alone.
    Raises EngcmpError where a head or receipt is damaged, or a file that one names is gone: then nothing can be called unneeded.
    """
    files: set[tuple[str, str]] = {*_unfinished(store, dead), *_parts(store)}
    receipts: set[str] = set()
    kept: list[Mapping[str, Any]] = []
    interrupted = store.unfinished_commits()
    studies = {folder.name for folder in (store.home / "heads").iterdir()} | set(interrupted.values())
    for study in sorted(studies):
        reached = reached_from_heads(store, study)
        _refuse_damage(store, reached, study)
        for sha256, of_study in interrupted.items():
            if of_study == study and store.receipt_path(sha256).exists():
                follow(store, reached, sha256, needed_by="an interrupted commit")
        receipts |= set(reached.receipts)
        kept += reached.receipts.values()
        for receipt in reached.receipts.values():
            files |= {(output["sha256"], output["suffix"]) for output in receipt["outputs"]}
    names = sorted(path.stem for path in (store.home / "receipts").glob("*.json"))
    return Unreached(
        files=tuple(blob for blob in _stored(store) if (blob.sha256, blob.suffix) not in files),
        receipts=tuple(name for name in names if name not in receipts and name not in interrupted),
        private=unreached_texts(store, kept, dead),
    )


def remove(store: Store, found: Unreached, *, removed_at: str) -> str:
    """Remove what was found, after writing a tombstone that says what there was; returns the tombstone's hash.

    The index forgets a receipt before it goes, and a receipt goes before its files: a kill in between leaves nothing that
    could answer with what is gone, and starting again removes the rest.
    """
    tombstone = {
        "schema": TOMBSTONE_SCHEMA,
        "removed_at": removed_at,
        "files": [{"sha256": blob.sha256, "bytes": blob.bytes, "suffix": blob.suffix} for blob in found.files],
        "receipts": list(found.receipts),
        **({"private": list(found.private)} if found.private else {}),
    }
    sha256 = store.bury(tombstone)
    for paths in (
        store.tasks_of(set(found.receipts)),
        [store.receipt_path(name) for name in found.receipts],
        [store.here(blob) for blob in found.files],
        [private_path(store.home, sha256) for sha256 in found.private],
    ):
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)
    return sha256


def _refuse_damage(store: Store, reached: Reached, study: str) -> None:
    """Heads, receipts and links must be sound, and the files be there; hashing them is for `verify`."""
    problems = [*reached.problems, *link_problems(store, reached)]
    what, where = (problems[0].what, problems[0].file) if problems else ("", "")
    for receipt in () if problems else reached.receipts.values():
        for output in receipt["outputs"]:
            path = store.here(Blob(output["sha256"], output["bytes"], output["suffix"]))
            if store.shared is not None and not path.exists():
                continue  # it is in the object store, or `verify` misses it
            if not path.is_file() or path.stat().st_size != output["bytes"]:
                what, where = "file is missing or has another size", str(path.relative_to(store.home))
    if what:
        raise EngcmpError(
            f"nothing is collected from a damaged store: {what}",
            where=where, remedy=f"`engcmp verify {study}` names all problems",
        )  # fmt: skip


def _stored(store: Store) -> Iterator[Blob]:
    """The files that are named as the store names them; what else lies there is not ours to remove."""
    for path in sorted((store.home / "store").glob("*/*")):
        sha256, _, suffix = path.name.partition(".")
        if SHA256.fullmatch(sha256) and path.parent.name == sha256[:2] and path.is_file() and not path.is_symlink():
            yield Blob(sha256, path.stat().st_size, suffix)


def _unfinished(store: Store, dead: Collection[str]) -> Iterator[tuple[str, str]]:
    """The row files of captures that a later run will continue."""
    for journal in sorted((store.home / "scratch").glob("capture-*/journal.jsonl")):
        for entry in read_journal(journal) if journal.parent.name not in dead else ():
            for taken in entry.get("repeats", []):
                for file in taken["files"].values():
                    yield file["sha256"], "safetensors"


def _parts(store: Store) -> Iterator[tuple[str, str]]:
    """The parts of larger results that the index remembers; an entry that is not sound counts for nothing there too."""
    for path in (store.home / "tasks").glob("part-*.json"):
        try:
            for suffix in ("json", "safetensors"):  # whichever it has
                yield str(_object(path)["sha256"]), suffix
        except (KeyError, TypeError, ValueError, OSError):
            continue


def _object(path: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads(path.read_bytes())
    return document
