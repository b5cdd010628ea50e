"""What several machines share: the files, receipts, heads and index of their stores, in an object store, under the names they have below
ENGCMP_HOME.

What is committed is put there: files first, then their receipt, then the head, as on a disk. What a machine lacks is fetched when it is
read, and kept only where its bytes have the hash of its name. Of two heads of one place the later measurement stands; both receipts stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import sha256_bytes, sha256_file
from engcmp_resources.disk import disk_errors, keep_whole, locked, make_folder
from engcmp_resources.errors import EngcmpError
from engcmp_resources.object_store import ObjectStore, configured

_MARKS = "shared"


class SharedFiles:
    """The object store beside the home of one store."""

    def __init__(self, home: Path, objects: ObjectStore) -> None:
        self._home = home
        self.objects = objects

    def fetch(self, target: Path, sha256: str) -> bool:
        """Make the file `target` from its object, unless it is here; False where there is no object.

        Raises EngcmpError for bytes of another hash, which are not kept. A fetch that was cut off goes on where it was.
        """
        if target.exists() or target.is_symlink():
            return True
        partial = self._home / "scratch" / "fetched" / sha256
        name = self._name(target)
        with disk_errors(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
        with locked(partial.with_suffix(".lock")):
            for resumed in (partial.exists(), False):
                if target.exists():
                    return True
                with disk_errors(partial):
                    if partial.exists():  # a kill came just before it had its name
                        partial.chmod(0o644)
                    if not self.objects.download(name, partial):
                        return False
                    if sha256_file(partial) == sha256:
                        make_folder(target.parent)
                        partial.chmod(0o444)
                        keep_whole(partial, target)
                        return True
                    partial.unlink()
                if not resumed:  # what a killed machine left of it may be at fault: then the object is fetched whole
                    break
        raise self._corrupt(name)

    def receipt(self, sha256: str) -> bytes | None:
        """A receipt's bytes, which have its hash; None where there is none. Raises EngcmpError for other bytes."""
        name = f"receipts/{sha256}.json"
        data = self.objects.read(name)
        if data is not None and sha256_bytes(data) != sha256:
            raise self._corrupt(name)
        return data

    def share_receipt(
        self,
        sha256: str,
        read: Callable[[str], Mapping[str, Any]],
        files: Callable[[Mapping[str, Any]], Iterator[Path]],
    ) -> None:
        """Put a receipt there with its files, after all that it rests on. What is known to be there costs nothing."""
        mark = self._home / _MARKS / "receipts" / sha256
        if mark.exists():
            return
        receipt = read(sha256)
        for one in [*(item["receipt_sha256"] for item in receipt["inputs"]), receipt["answered_by"]]:
            if one:
                self.share_receipt(one, read, files)
        for path in files(receipt):
            if path.is_file():
                self.objects.upload(path, self._name(path))
        self.objects.upload(self._home / "receipts" / f"{sha256}.json", f"receipts/{sha256}.json")
        self._mark(mark, b"")

    def share_once(self, name: str, data: bytes) -> None:
        """Put a small object there, unless these bytes are known to be there."""
        mark = self._home / _MARKS / name
        if not (mark.is_file() and mark.read_bytes() == data):
            self.objects.write(name, data)
            self._mark(mark, data)

    def share_file(self, path: Path) -> None:
        """Put a file there in the place of what is there."""
        self.objects.write(self._name(path), path.read_bytes())

    def share_head(self, head: Path, stands: Callable[[bytes], bool]) -> None:
        """Put a head there, unless `stands` says of the bytes there that they are of a later measurement."""
        mark, data = self._home / _MARKS / self._name(head), head.read_bytes()
        if mark.is_file() and mark.read_bytes() == data:
            return
        there = self.objects.read(self._name(head))
        if there is None or (there != data and not stands(there)):
            self.objects.write(self._name(head), data)
        self._mark(mark, data)

    def forget(self) -> None:
        """Take nothing as known to be there: the object store may have lost what it had."""
        for mark in [*(self._home / _MARKS).rglob("*")]:
            if mark.is_file():
                mark.unlink()

    def _mark(self, mark: Path, data: bytes) -> None:
        with disk_errors(mark):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.write_bytes(data)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._home).as_posix()

    def _corrupt(self, name: str) -> EngcmpError:
        return EngcmpError(
            "the object's bytes do not have the hash of its name: refused", where=self.objects.where(name),
            remedy="delete the object, and `engcmp push` on a machine that has the file",
        )  # fmt: skip


def shared_files(home: Path) -> SharedFiles | None:
    """The object store that the environment names, beside this home; None where it names none."""
    objects = configured()
    return None if objects is None else SharedFiles(home, objects)
