"""The store: content-addressed files, receipts, heads, the index of completed tasks, and readable views.

Everything is written as a temporary file, fsync, rename, fsync of the folder; a receipt after its files, a head last: what has no
receipt does not exist. `verify` hashes; everyday reading trusts size, mtime, ctime and inode as recorded at writing. With an object
store (shared_files.py) a commit also puts all of that there, and what is not here is fetched from there when it is read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import canonical_bytes, parse_canonical, sha256_bytes, sha256_file
from engcmp_resources.disk import (
    InUse,
    Temporaries,
    disk_errors,
    file_status,
    keep_whole,
    locked,
    make_folder,
    ordinary_bytes,
    read_ordinary,
    require_space,
    same_bytes,
    write_whole,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.shared_files import shared_files

__all__ = ["STUDY_WIDE", "Blob", "Place", "Store", "disk_errors", "read_head", "require_space"]

STUDY_WIDE = "_study"
SHA256 = re.compile(r"[0-9a-f]{64}")
_HEAD_SCHEMA = "engcmp.head/1"
_FOLDERS = ("store", "receipts", "heads", "tasks", "views", "scratch")
_AGAIN = "restore it from a copy, or run the study again"
_read = partial(read_ordinary, remedy=_AGAIN)


@dataclass(frozen=True, slots=True)
class Blob:
    """A file in the store: its SHA-256, its size in bytes and its suffix without the dot."""

    sha256: str
    bytes: int
    suffix: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where an artifact's head lies. `arm_folder` is STUDY_WIDE for what belongs to no arm."""

    study: str
    arm_folder: str
    artifact: str


class Store:
    """The files under ENGCMP_HOME. Opening one makes the folders and removes temporary files of processes that are gone.

    Opened `read_only`, it writes nothing at all, also where it could, and refuses what would write.
    """

    def __init__(self, home: Path, *, read_only: bool = False) -> None:
        self.home = home
        self.read_only = read_only
        self._files, self._receipts = os.fspath(home / "store"), os.fspath(home / "receipts")
        self._temporaries = Temporaries(home / "scratch")
        # Files whose bytes were hashed for this process, with their status before that: unchanged, they need no second pass.
        self.hashed, self._untouched = dict[str, list[int]](), dict[Path, list[int]]()
        self.shared = None if read_only else shared_files(home)
        if not read_only:
            with disk_errors(home):
                for name in _FOLDERS:
                    (home / name).mkdir(parents=True, exist_ok=True)
                # Whoever collects files waits for nobody: what a writer has stored and not recorded yet looks like nobody's.
                self._in_use = InUse(home / "scratch" / "in-use.lock")
                self._temporaries.remove_dead()

    # ------------------------------------------------------------------ files

    def here(self, blob: Blob) -> Path:
        """Where the file lies, or would."""
        return Path(self.place(blob))

    def place(self, blob: Blob) -> str:
        """The same as text: a store of very many files is looked at for less than a Path of each would cost."""
        return f"{self._files}/{blob.sha256[:2]}/{blob.sha256}.{blob.suffix}"

    def path(self, blob: Blob) -> Path:
        """Where the file lies; with an object store it is fetched first where it is not here."""
        if self.shared is not None:
            self.shared.fetch(self.here(blob), blob.sha256)
        return self.here(blob)

    def put_bytes(self, data: bytes, suffix: str) -> Blob:
        """Store `data`. Putting the same bytes again writes nothing."""
        blob = Blob(sha256_bytes(data), len(data), suffix)
        if not self._is_here(blob):
            self._write(self.here(blob), data)
        return blob

    def put_file(self, source: Path, suffix: str) -> Blob:
        """Move the file `source` into the store (it must lie on the same file system, as scratch does)."""
        self._require_writable()
        blob = Blob(sha256_file(source), source.stat().st_size, suffix)
        target = self.here(blob)
        if self._is_here(blob):
            source.unlink()
            return blob
        with disk_errors(target):
            make_folder(target.parent)
            source.chmod(0o444)
        keep_whole(source, target)
        return blob

    def find(self, sha256: str, suffix: str) -> Blob | None:
        """The stored file with this hash, its bytes hashed; None where there is none or it was changed."""
        try:
            size = self.here(Blob(sha256, 0, suffix)).lstat().st_size
        except OSError:
            return None
        blob = Blob(sha256, size, suffix)
        return blob if self._is_here(blob) else None

    def holds(self, blob: Blob, recorded: Any = None) -> bool:
        """Whether the store has exactly these bytes: by the status `recorded` at writing, else by their hash.

        A copied home has other times and inodes: then the bytes decide, once in a process. A file that is written or replaced
        while it is hashed is not held; a hard link that another process makes or removes meanwhile changes only the ctime.
        """
        if self.shared is not None:
            self.path(blob)
        return self._is_here(blob, recorded)

    def lies_here(self, blob: Blob) -> bool:
        """Whether there is anything under the file's name; with an object store it is fetched first where it is not here."""
        return os.path.lexists(self.place(blob) if self.shared is None else self.path(blob))

    def _is_here(self, blob: Blob, recorded: Any = None) -> bool:
        path = self.place(blob)
        try:
            status = file_status(path)
            if status is None or status[0] != blob.bytes:
                return False
            if status not in (recorded, self.hashed.get(path)):
                if sha256_file(Path(path)) != blob.sha256 or not same_bytes(status, file_status(path)):
                    return False
                self.hashed[path] = status
        except OSError:
            return False
        return True

    # ------------------------------------------------------------------ receipts and heads

    def receipt_path(self, sha256: str) -> Path:
        return Path(self.receipt_name(sha256))

    def receipt_name(self, sha256: str) -> str:
        """Its path, as text."""
        return f"{self._receipts}/{sha256}.json"

    def read_receipt(self, sha256: str) -> dict[str, Any]:
        """The receipt of that name. Raises EngcmpError where it is missing or its bytes do not have that hash."""
        name = self.receipt_name(sha256)
        data = ordinary_bytes(name) if SHA256.fullmatch(sha256) else None
        if data is None:  # missing, or something is wrong with it
            path = Path(name)
            if self.shared is not None and SHA256.fullmatch(sha256) and not path.exists():
                fetched = self.shared.receipt(sha256)
                if fetched is not None:
                    self._write(path, fetched)
            if SHA256.fullmatch(sha256) is None or not path.is_file():
                raise EngcmpError(f"receipt {sha256[:12]} is missing", where=name, remedy=_AGAIN)
            data = _read(path, "receipt")
        if sha256_bytes(data) != sha256:
            raise EngcmpError("receipt was changed after it was written", where=name, remedy=_AGAIN)
        return parse_canonical(data, what="receipt", where=name, remedy=_AGAIN)

    def head_path(self, place: Place) -> Path:
        return self.home / "heads" / place.study / place.arm_folder / f"{place.artifact}.json"

    def head(self, study: str, arm_folder: str | None, artifact: str) -> str | None:
        """Hash of the artifact's current receipt, or None. Raises EngcmpError where the head's bytes were changed."""
        place = Place(study, arm_folder or STUDY_WIDE, artifact)
        path = self.head_path(place)
        return read_head(path, place) if path.exists() or path.is_symlink() else None

    def commit(self, place: Place, receipt: Mapping[str, Any], *, completes: Sequence[Blob] | None) -> str:
        """Make `receipt` the current one of `place`; its hash. With `completes`, its task counts as done with these files.

        A kill between receipt and head would leave a receipt that nothing points to; the intent lets `settle` go on from there.
        """
        data = canonical_bytes(receipt)
        sha256 = sha256_bytes(data)
        with self._one_writer():
            intent = asdict(place) | {"receipt_sha256": sha256, "completes": completes is not None}
            self._write(self._intent_path(place), canonical_bytes(intent), mode=0o644)
            self._write(self.receipt_path(sha256), data)
            self._set_head(place, sha256)
            if completes is not None:
                self._set_task(receipt["task_key"], sha256, completes)
            self._intent_path(place).unlink()
        self.share(place)
        return sha256

    def share(self, place: Place) -> None:
        """Put the current receipt of `place`, its files and all that it rests on in the object store, where there is one.

        What is known to be there costs nothing. Raises EngcmpError where it does not answer: what is here stays, and goes there later.
        """
        sha256 = self.head(place.study, place.arm_folder, place.artifact)
        if self.shared is None or sha256 is None:
            return
        self.shared.share_receipt(sha256, self.read_receipt, lambda receipt: map(self.here, _blobs_of(receipt)))
        receipt = self.read_receipt(sha256)
        entry = f"{receipt['task_key']}.json"
        if (self.home / "tasks" / entry).is_file() and self._index_entry(entry).get("receipt_sha256") == sha256:
            # Times and inodes are of this machine alone; elsewhere the bytes decide.
            self.shared.share_once(f"tasks/{entry}", canonical_bytes({"receipt_sha256": sha256, "files": {}}))

        def stands(there: bytes) -> bool:
            other = self.read_receipt(
                head_of(there, place, where=self.shared.objects.where("heads") if self.shared else "")
            )
            return bool(other["finished_at"] > receipt["finished_at"])

        self.shared.share_head(self.head_path(place), stands)

    def take_head(self, place: Place, receipt_sha256: str) -> None:
        """Make a receipt that another machine has committed the current one of `place`."""
        with self._one_writer():
            self._set_head(place, receipt_sha256)

    def settle(self, place: Place) -> None:
        """Finish the `commit` of a process that was killed within it: the head and the task follow their receipt."""
        path = self._intent_path(place)
        if not path.is_file():
            return
        with self._one_writer():
            try:
                intent = parse_canonical(_read(path, "intent"), what="intent", where=str(path), remedy=_AGAIN)
                receipt = self.read_receipt(str(intent["receipt_sha256"]))
                self._set_head(place, intent["receipt_sha256"])
                if intent["completes"]:
                    self._set_task(receipt["task_key"], intent["receipt_sha256"], _blobs_of(receipt))
            except (KeyError, TypeError, EngcmpError):
                pass  # the kill came before the receipt: the work is done again
            path.unlink(missing_ok=True)

    # ------------------------------------------------------------------ the index of what was done

    def completed_task(self, task_key: str) -> str | None:
        """The receipt that completed `task_key`, if its files still are as recorded; else None (then the work is done again)."""
        self._fetch_entry(f"{task_key}.json")
        try:
            entry = self._index_entry(f"{task_key}.json")
            sha256 = str(entry["receipt_sha256"])
            receipt = self.read_receipt(sha256)
            if receipt["task_key"] != task_key:
                return None
            blobs = _blobs_of(receipt)
            recorded = [entry["files"].get(_name(blob)) for blob in blobs]
        except (KeyError, TypeError, AttributeError, EngcmpError):
            return None  # the index is only a shortcut: without a sound entry the task counts as not done
        if not all(self.holds(blob, status) for blob, status in zip(blobs, recorded, strict=True)):
            return None
        if recorded != [file_status(self.here(blob)) for blob in blobs] and not self.read_only:
            self._set_task(task_key, sha256, blobs)  # a copied home: hashed now, trusted from now on
        return sha256

    def recorded_status(self, task_key: str, blob: Blob) -> Any:
        """The status of a file as recorded when its task was completed; None where the index does not know."""
        try:
            return self._index_entry(f"{task_key}.json")["files"].get(_name(blob))
        except (KeyError, TypeError, AttributeError, EngcmpError):
            return None  # as above: then the bytes are hashed

    def is_untouched(self, task_key: str, blob: Blob) -> bool:
        """Whether the index knows the file with the status that it has now; the index is asked once in a process."""
        path = self.path(blob)
        with suppress(OSError):
            status = file_status(path)
            if status is not None and self._untouched.get(path) != status == self.recorded_status(task_key, blob):
                self._untouched[path] = status
            return status is not None and self._untouched.get(path) == status
        return False

    def alone(self) -> AbstractContextManager[None]:
        """Hold the store with no other process writing in it. Raises EngcmpError where one does."""
        self._require_writable()
        return self._in_use.alone()

    def unfinished_commits(self) -> dict[str, str]:
        """The receipts that a killed `commit` has written, or was about to write, without their heads: receipt hash to study."""
        found: dict[str, str] = {}
        for path in sorted((self.home / "scratch" / "intents").glob("*.json")):
            try:
                intent = parse_canonical(_read(path, "intent"), what="intent", where=str(path), remedy=_AGAIN)
                found[str(intent["receipt_sha256"])] = str(intent["study"])
            except (KeyError, EngcmpError):
                continue  # as in `settle`: the work is done again
        return found

    def tasks_of(self, receipts: Collection[str]) -> list[Path]:
        """The entries of the index that name one of these receipts."""
        found = []
        for path in sorted((self.home / "tasks").glob("*.json")):
            try:
                if self._index_entry(path.name)["receipt_sha256"] in receipts:
                    found.append(path)
            except (KeyError, TypeError, EngcmpError):
                continue  # a part, or an entry that nothing believes
        return found

    def bury(self, tombstone: Mapping[str, Any]) -> str:
        """Keep a record of what is about to be removed; returns its hash."""
        self._require_writable()
        data = canonical_bytes(tombstone)
        sha256 = sha256_bytes(data)
        self._write(self.home / "tombstones" / f"{sha256}.json", data)
        return sha256

    def keep_part(self, key: str, data: bytes, suffix: str = "json") -> None:
        """Remember a part of a larger result under the hash of all that it depends on."""
        blob = self.put_bytes(data, suffix)
        entry = {"key": key, "sha256": blob.sha256, "bytes": blob.bytes}
        path = self.home / "tasks" / f"part-{key}.json"
        self._write(path, canonical_bytes(entry), mode=0o644)
        if self.shared is not None:
            self.shared.share_file(self.here(blob))
            self.shared.share_file(path)

    def part(self, key: str, suffix: str = "json") -> bytes | None:
        """A part that was kept under `key`, its bytes hashed anew; None where there is none or it was changed."""
        self._fetch_entry(f"part-{key}.json")
        try:
            entry = self._index_entry(f"part-{key}.json")
            if entry["key"] != key or SHA256.fullmatch(entry["sha256"]) is None:
                return None
            data = self.path(Blob(entry["sha256"], entry["bytes"], suffix)).read_bytes()
        except (OSError, KeyError, TypeError, EngcmpError):
            return None  # as with tasks: without a sound entry the part is made again
        return data if sha256_bytes(data) == entry["sha256"] else None

    # ------------------------------------------------------------------ scratch and views

    def scratch(self, name: str) -> Path:
        """A folder for unfinished work, kept until `drop_scratch`, so that a killed run can be continued."""
        self._require_writable()
        folder = self.home / "scratch" / name
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def drop_scratch(self, name: str) -> None:
        self._require_writable()
        shutil.rmtree(self.home / "scratch" / name, ignore_errors=True)

    def temporary(self) -> Path:
        """A name for a temporary file on the store's file system; it goes when this process is gone."""
        self._require_writable()
        return self._temporaries.name()

    def view_path(self, place: Place, output_name: str, suffix: str) -> Path:
        """The readable name of an output."""
        name = output_name if output_name.endswith(f".{suffix}") else f"{output_name}.{suffix}"
        return self.home / "views" / place.study / place.arm_folder / place.artifact / name

    def view(self, link: Path, blob: Blob) -> None:
        """Point the readable name `link` at a stored file, by a relative link."""
        target = os.path.relpath(self.here(blob), link.parent)
        if link.is_symlink() and str(link.readlink()) == target:
            return
        temporary = self.temporary()
        with disk_errors(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            temporary.symlink_to(target)
            temporary.replace(link)

    # ------------------------------------------------------------------ inside

    def _intent_path(self, place: Place) -> Path:
        name = f"{place.study}~{place.arm_folder}~{place.artifact.replace('/', '~')}.json"
        return self.home / "scratch" / "intents" / name

    def _one_writer(self) -> AbstractContextManager[None]:
        self._require_writable()
        return locked(self.home / "scratch" / "commit.lock")

    def _set_head(self, place: Place, receipt_sha256: str) -> None:
        self._write(self.head_path(place), head_bytes(place, receipt_sha256), mode=0o644)

    def _set_task(self, task_key: str, receipt_sha256: str, blobs: Sequence[Blob]) -> None:
        entry = {"receipt_sha256": receipt_sha256, "files": {_name(b): file_status(self.here(b)) for b in blobs}}
        self._write(self.home / "tasks" / f"{task_key}.json", canonical_bytes(entry), mode=0o644)

    def _fetch_entry(self, name: str) -> None:
        """An entry of the index that another machine has made, where this one has none."""
        path = self.home / "tasks" / name
        if self.shared is not None and not path.exists():
            data = self.shared.objects.read(f"tasks/{name}")
            if data is not None:
                self._write(path, data, mode=0o644)

    def _index_entry(self, name: str) -> dict[str, Any]:
        path = self.home / "tasks" / name
        return parse_canonical(_read(path, "index entry"), what="index entry", where=str(path), remedy=_AGAIN)

    def _write(self, target: Path, data: bytes, mode: int = 0o444) -> None:
        write_whole(target, data, temporary=self.temporary(), mode=mode)

    def _require_writable(self) -> None:
        if self.read_only:
            raise EngcmpError("the store was opened for reading", where=str(self.home), remedy="report this fault")


def head_bytes(place: Place, receipt_sha256: str) -> bytes:
    """A head file, to the byte."""
    return canonical_bytes({"schema": _HEAD_SCHEMA, **asdict(place), "receipt_sha256": receipt_sha256})


def read_head(path: Path, place: Place) -> str:
    """The receipt hash in a head file. Raises EngcmpError unless it is an ordinary file of exactly the bytes for that place."""
    return head_of(_read(path, "head"), place, where=str(path))


def head_of(data: bytes, place: Place, *, where: str) -> str:
    """The receipt hash in a head's bytes. Raises EngcmpError unless they are exactly those for that place."""
    head = parse_canonical(data, what="head", where=where, remedy=_AGAIN)
    sha256 = str(head.get("receipt_sha256"))
    if SHA256.fullmatch(sha256) is None or data != head_bytes(place, sha256):
        raise EngcmpError("head was changed after it was written", where=where, remedy=_AGAIN)
    return sha256


def _blobs_of(receipt: Mapping[str, Any]) -> list[Blob]:
    return [Blob(output["sha256"], output["bytes"], output["suffix"]) for output in receipt["outputs"]]


def _name(blob: Blob) -> str:
    return f"{blob.sha256}.{blob.suffix}"
