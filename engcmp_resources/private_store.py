"""Reply texts, kept apart from everything that is shown: `private/ab/<sha256>.json.gz` under ENGCMP_HOME.

A file's name is the SHA-256 of its uncompressed bytes, which are canonical JSON. Receipts, tables and logs hold that hash and no text.
Only the owner may read the folder (0700) and its files (0600). What is exported or published has none of it.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from engcmp_resources.canonical import canonical_bytes, parse_canonical, sha256_bytes
from engcmp_resources.disk import disk_errors, make_folder, write_whole
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import SHA256

FOLDER = "private"
SUFFIX = ".json.gz"
NOT_HERE = "private texts are not here"
State = Literal["sound", "absent", "changed"]
_LEVEL = 6


def private_path(home: Path, sha256: str) -> Path:
    """Where the text of that hash lies. Raises EngcmpError for what is no SHA-256."""
    if SHA256.fullmatch(sha256) is None:
        raise EngcmpError(f"{sha256[:20]!r} names no private text", remedy="give the 64 digits of its SHA-256")
    return home / FOLDER / sha256[:2] / f"{sha256}{SUFFIX}"


def write(home: Path, document: Mapping[str, Any]) -> str:
    """Keep a reply's text; its hash. The same text again writes nothing. Raises EngcmpError where the disk refuses."""
    data = canonical_bytes(dict(document))
    sha256 = sha256_bytes(data)
    path = private_path(home, sha256)
    if verify(home, sha256) != "sound":
        _make_closed(path.parent)
        temporary = path.with_name(f".{sha256}.{os.getpid()}.partial")
        write_whole(path, gzip.compress(data, _LEVEL, mtime=0), temporary=temporary, mode=0o600)
    return sha256


def read(home: Path, sha256: str) -> dict[str, Any]:
    """The document of that hash. Raises EngcmpError where it is not here, or its bytes do not have that hash."""
    path = private_path(home, sha256)
    try:
        data = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise EngcmpError(
            NOT_HERE, where=str(path), remedy="work in the home that measured them: they are never exported"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise EngcmpError("a private text cannot be read", where=str(path), remedy=_AGAIN) from error
    if sha256_bytes(data) != sha256:
        raise EngcmpError("a private text was changed after it was written", where=str(path), remedy=_AGAIN)
    return parse_canonical(data, what="private text", where=str(path), remedy=_AGAIN)


def verify(home: Path, sha256: str) -> State:
    """Whether the text of that hash is here with its bytes unchanged."""
    try:
        read(home, sha256)
    except EngcmpError as error:
        return "absent" if error.what == NOT_HERE else "changed"
    return "sound"


def stored(home: Path) -> Iterator[tuple[str, Path]]:
    """Each text that is kept: its hash and file. What else lies there is not ours."""
    for path in sorted((home / FOLDER).glob(f"*/*{SUFFIX}")):
        sha256 = path.name.removesuffix(SUFFIX)
        if SHA256.fullmatch(sha256) and path.parent.name == sha256[:2] and path.is_file() and not path.is_symlink():
            yield sha256, path


def _make_closed(folder: Path) -> None:
    """The folder, which only its owner may enter, and the one above it likewise."""
    with disk_errors(folder):
        make_folder(folder)
        for one in (folder.parent, folder):
            if one.stat().st_mode & 0o077:
                one.chmod(0o700)


_AGAIN = "restore it from a copy, or measure the replies again"
