"""Reads a bundle's files: hashed before they are parsed, and JSON held to its one canonical form."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from .faults import Fault

MANIFEST = "BUNDLE.json"
SIGNATURE = "SIGNATURE.json"
SCHEMA = "engcmp.bundle/1"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+~-]*(/[A-Za-z0-9_][A-Za-z0-9._@+~-]*)*")
_HASH = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"schema", "study", "frozen_sha256", "head_sha256", "files", "by_hash", "tables"}


def sha256(data: bytes) -> str:
    """SHA-256 as lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII, shortest floats, one final newline."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def parse(data: bytes, file: str) -> Any:
    """The value of canonical JSON. Raises Fault for anything else, a key that stands twice included: the bytes must be its only form."""
    try:
        value = json.loads(data.decode("ascii"))
        same = canonical(value) == data
    except (ValueError, RecursionError) as error:
        raise Fault(file, f"is not JSON: {error}") from error
    if not same:
        raise Fault(file, "is not canonical JSON: the bytes were changed, or written by something else")
    return value


class Bundle:
    """The folder of a bundle: its manifest, and its files by their path below the folder, each hashed when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        data = self._ordinary(MANIFEST)
        self.sha256 = sha256(data)
        manifest = parse(data, MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA or set(manifest) != _FIELDS:
            raise Fault(MANIFEST, f"is not a manifest of {SCHEMA}")
        self.manifest: dict[str, Any] = manifest
        self.files = self._listed()

    def _listed(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for entry in self.manifest["files"]:
            name = str(entry.get("path"))
            if _NAME.fullmatch(name) is None or name in found or name in (MANIFEST, SIGNATURE):
                raise Fault(MANIFEST, f"names {name!r}, which is no path of a bundle or stands twice")
            if _HASH.fullmatch(str(entry.get("sha256"))) is None or not isinstance(entry.get("bytes"), int):
                raise Fault(MANIFEST, f"has no hash and size of {name}")
            found[name] = entry
        return found

    def _ordinary(self, name: str) -> bytes:
        """The bytes of an ordinary file within the folder: no link on the way, so that nothing outside can be read or hang."""
        path = self.folder
        for part in name.split("/"):
            path = path / part
            try:
                mode = os.lstat(path).st_mode
            except OSError as error:
                raise Fault(name, "is missing") from error
            if stat.S_ISLNK(mode):
                raise Fault(name, "is a link, or lies behind one")
        if not stat.S_ISREG(mode):
            raise Fault(name, "is not an ordinary file")
        try:
            return path.read_bytes()
        except OSError as error:
            raise Fault(name, f"cannot be read: {error.strerror}") from error

    def read(self, name: str) -> bytes:
        """The bytes of a file of the manifest, which have its size and hash. Raises Fault for any other."""
        entry = self.files.get(name)
        if entry is None:
            raise Fault(name, "is needed and not in the manifest")
        data = self._ordinary(name)
        if len(data) != entry["bytes"] or sha256(data) != entry["sha256"]:
            raise Fault(name, "bytes do not have the hash that the manifest states")
        return data

    def original_sha256(self, name: str) -> str:
        """The hash that the file had before placeholders were put in; its own where there are none."""
        entry = self.files[name]
        return str(entry.get("original_sha256", entry["sha256"]))

    def signature(self) -> bytes | None:
        """The bytes of the signature, or None for an unsigned bundle."""
        return self._ordinary(SIGNATURE) if os.path.lexists(self.folder / SIGNATURE) else None

    def too_many(self) -> Iterator[str]:
        """Paths in the folder that the manifest does not name: files, links, folders of none of its files."""
        named = {*self.files, MANIFEST, SIGNATURE}
        folders = {parent.as_posix() for name in named for parent in PurePosixPath(name).parents}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if name not in named and (path.is_symlink() or not path.is_dir() or name not in folders):
                yield name
