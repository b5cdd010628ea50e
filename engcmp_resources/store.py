"""The store: content-addressed files, receipts, heads, the index of completed tasks, and readable views.

Everything is written as a temporary file, fsync, rename, fsync of the folder; a receipt after its files, a head last: what has no
receipt does not exist. `verify` hashes; everyday reading trusts size, mtime, ctime and inode as recorded at writing.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import canonical_bytes, sha256_bytes, sha256_file
from engcmp_resources.errors import EngcmpError

STUDY_WIDE = "_study"
_HEAD_SCHEMA = "engcmp.head/1"
_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Blob:
    """A file in the store: its SHA-256, its size in bytes and its suffix without the dot."""

    sha256: str
    bytes: int
    suffix: str


class Store:
    """The files under ENGCMP_HOME. Making one creates the folders and removes temporary files of processes that are gone."""

    def __init__(self, home: Path) -> None:
        self.home = home
        with disk_errors(home):
            for name in ("store", "receipts", "heads", "tasks", "views", "scratch"):
                (home / name).mkdir(parents=True, exist_ok=True)
        self._remove_dead_temporaries()

    # ------------------------------------------------------------------ files

    def path(self, blob: Blob) -> Path:
        return self.home / "store" / blob.sha256[:2] / f"{blob.sha256}.{blob.suffix}"

    def put_bytes(self, data: bytes, suffix: str) -> Blob:
        """Store `data`. Putting the same bytes again writes nothing."""
        blob = Blob(sha256_bytes(data), len(data), suffix)
        if not self._present(blob):
            self._write(self.path(blob), data)
        return blob

    def put_file(self, source: Path, suffix: str) -> Blob:
        """Move the file `source` into the store (it must lie on the same file system, as scratch does)."""
        blob = Blob(sha256_file(source), source.stat().st_size, suffix)
        target = self.path(blob)
        if self._present(blob):
            source.unlink()
            return blob
        with disk_errors(target):
            target.parent.mkdir(exist_ok=True)
            with source.open("rb") as file:
                os.fsync(file.fileno())
            source.chmod(0o444)
            source.replace(target)
            _sync_folder(target.parent)
        return blob

    def find(self, sha256: str, suffix: str) -> Blob | None:
        """The stored file with this hash, its bytes hashed anew; None where there is none or it was changed."""
        path = self.home / "store" / sha256[:2] / f"{sha256}.{suffix}"
        if not path.is_file() or sha256_file(path) != sha256:
            return None
        return Blob(sha256, path.stat().st_size, suffix)

    # ------------------------------------------------------------------ receipts, heads, tasks

    def write_receipt(self, receipt: Mapping[str, Any]) -> str:
        """Store a receipt under the hash of its bytes and return that hash."""
        data = canonical_bytes(receipt)
        sha256 = sha256_bytes(data)
        self._write(self.receipt_path(sha256), data)
        return sha256

    def receipt_path(self, sha256: str) -> Path:
        return self.home / "receipts" / f"{sha256}.json"

    def read_receipt(self, sha256: str) -> dict[str, Any]:
        """The receipt of that name. Raises EngcmpError where it is missing or its bytes do not have that hash."""
        path = self.receipt_path(sha256)
        if not path.is_file():
            raise EngcmpError(
                f"receipt {sha256[:12]} is missing", where=str(path), remedy="restore it or run the study again"
            )
        data = path.read_bytes()
        if sha256_bytes(data) != sha256:
            raise EngcmpError(
                "receipt was changed after it was written", where=str(path), remedy="restore it from a copy"
            )
        receipt: dict[str, Any] = json.loads(data)
        return receipt

    def head_path(self, study: str, arm_folder: str | None, artifact: str) -> Path:
        return self.home / "heads" / study / (arm_folder or STUDY_WIDE) / f"{artifact}.json"

    def set_head(self, study: str, arm_folder: str | None, artifact: str, receipt_sha256: str) -> None:
        """Make `receipt_sha256` the current receipt of the artifact, atomically."""
        head = {
            "schema": _HEAD_SCHEMA,
            "study": study,
            "arm_folder": arm_folder or STUDY_WIDE,
            "artifact": artifact,
            "receipt_sha256": receipt_sha256,
        }
        self._write(self.head_path(study, arm_folder, artifact), canonical_bytes(head), mode=0o644)

    def head(self, study: str, arm_folder: str | None, artifact: str) -> str | None:
        """Hash of the artifact's current receipt, or None. Raises EngcmpError where the head's bytes were changed."""
        path = self.head_path(study, arm_folder, artifact)
        return read_head(path, study, arm_folder, artifact) if path.is_file() else None

    def set_task(self, task_key: str, receipt_sha256: str, blobs: list[Blob]) -> None:
        """Remember that `task_key` was completed by that receipt, with the file status of what it wrote."""
        status = {f"{blob.sha256}.{blob.suffix}": _status(self.path(blob)) for blob in blobs}
        self._write(
            self._task_path(task_key), canonical_bytes({"receipt_sha256": receipt_sha256, "files": status}), mode=0o644
        )

    def completed_task(self, task_key: str) -> str | None:
        """The receipt that completed `task_key`, if its files still are as recorded; else None (then the work is done again)."""
        path = self._task_path(task_key)
        try:
            entry = json.loads(path.read_bytes())
            receipt = self.read_receipt(entry["receipt_sha256"])
        except (OSError, ValueError, KeyError, EngcmpError):
            return None  # the index is only a shortcut: without a sound entry the task counts as not done
        if receipt.get("task_key") != task_key:
            return None
        for output in receipt["outputs"]:
            blob = Blob(output["sha256"], output["bytes"], output["suffix"])
            recorded = entry["files"].get(f"{blob.sha256}.{blob.suffix}")
            if not self._unchanged(blob, recorded):
                return None
        return str(entry["receipt_sha256"])

    def keep_part(self, key: str, data: bytes) -> None:
        """Remember a part of a larger result under the hash of all that it depends on."""
        blob = self.put_bytes(data, "json")
        self._write(self._part_path(key), canonical_bytes({"sha256": blob.sha256, "bytes": blob.bytes}), mode=0o644)

    def part(self, key: str) -> bytes | None:
        """A part that was kept under `key`, its bytes hashed anew; None where there is none or it was changed."""
        try:
            entry = json.loads(self._part_path(key).read_bytes())
            data = self.path(Blob(entry["sha256"], entry["bytes"], "json")).read_bytes()
        except (OSError, ValueError, KeyError):
            return None  # as with tasks: without a sound entry the part is made again
        return data if sha256_bytes(data) == entry["sha256"] else None

    # ------------------------------------------------------------------ scratch and views

    def scratch(self, name: str) -> Path:
        """A folder for unfinished work, kept until `drop_scratch`, so that a killed run can be continued."""
        folder = self.home / "scratch" / name
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def drop_scratch(self, name: str) -> None:
        shutil.rmtree(self.home / "scratch" / name, ignore_errors=True)

    def temporary(self) -> Path:
        """A name for a temporary file on the store's file system; it goes when this process is gone."""
        return self.home / "scratch" / f"tmp-{os.getpid()}-{next(_counter)}"

    def view(self, name: str, blob: Blob) -> Path:
        """Point the readable name `views/<name>` at a stored file, by a relative link."""
        link = self.home / "views" / name
        with disk_errors(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            temporary = link.with_name(f".{link.name}.{os.getpid()}")
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(self.path(blob), link.parent))
            temporary.replace(link)
        return link

    # ------------------------------------------------------------------ inside

    def _task_path(self, task_key: str) -> Path:
        return self.home / "tasks" / f"{task_key}.json"

    def _part_path(self, key: str) -> Path:
        return self.home / "tasks" / f"part-{key}.json"

    def _write(self, target: Path, data: bytes, mode: int = 0o444) -> None:
        temporary = self.temporary()
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.chmod(mode)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
            _sync_folder(target.parent)

    def _present(self, blob: Blob) -> bool:
        path = self.path(blob)
        return path.is_file() and path.stat().st_size == blob.bytes and sha256_file(path) == blob.sha256

    def _unchanged(self, blob: Blob, recorded: list[int] | None) -> bool:
        path = self.path(blob)
        if not path.is_file():
            return False
        # A copied home has other times and inodes: then the bytes decide.
        return _status(path) == recorded or self._present(blob)

    def _remove_dead_temporaries(self) -> None:
        for path in (self.home / "scratch").glob("tmp-*"):
            pid = path.name.split("-")[1]
            if not pid.isdigit() or not _alive(int(pid)):
                with suppress(OSError):  # another process may be cleaning up too
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_head(path: Path, study: str, arm_folder: str | None, artifact: str) -> str:
    """The receipt hash in a head file. Raises EngcmpError unless the bytes are exactly what `set_head` writes for that place."""
    data = path.read_bytes()
    try:
        sha256 = str(json.loads(data)["receipt_sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise EngcmpError("head is damaged", where=str(path), remedy="restore it or run the study again") from error
    expected = {
        "schema": _HEAD_SCHEMA,
        "study": study,
        "arm_folder": arm_folder or STUDY_WIDE,
        "artifact": artifact,
        "receipt_sha256": sha256,
    }
    if data != canonical_bytes(expected):
        raise EngcmpError("head was changed after it was written", where=str(path), remedy="restore it from a copy")
    return sha256


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk, a quota or a read-only store into an EngcmpError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EngcmpError(
                "the disk is full",
                where=str(where),
                remedy="free space and start again: what is complete is kept and nothing half written remains",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES):
            raise EngcmpError(
                "cannot write there", where=str(where), remedy="make the folder writable or set ENGCMP_HOME"
            ) from error
        raise


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse early where `folder`'s file system has less than `needed_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise EngcmpError(
            f"{what} needs {needed_bytes / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB free",
            where=str(folder),
            remedy="free space, or set ENGCMP_HOME to a folder on a larger disk",
        )


def _status(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
