"""What is fetched and how it is told apart from anything else: wanted sources, planned files, digests, safe paths, secrets."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from engcmp_resources.errors import EngcmpError

Say = Callable[[str], None]
_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Digest:
    """What a file's bytes must have: their SHA-256, or the id that git gives them (SHA-1 of a header with their size, and them)."""

    algorithm: Literal["sha256", "git"]
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value}"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file that a source states: its path there, and its SHA-256 and size where they are known."""

    path: str
    sha256: str | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A source to fetch. `files` None: all that `include` (fnmatch patterns, none: all) takes of what the place lists.

    `place`: where it lies below the folder of all that is fetched; None: in a folder of the source's name.
    """

    source: str
    kind: str
    where: str
    revision: str
    files: tuple[Pinned, ...] | None = None
    include: tuple[str, ...] = ()
    repo_type: str | None = None
    place: str | None = None

    @property
    def folder(self) -> str:
        """Where it lies, with /."""
        return self.place or self.source

    @property
    def asked(self) -> dict[str, Any]:
        """What is asked of the place, as plain JSON: a fetch of something else is not this one."""
        pins = None if self.files is None else [[one.path, one.sha256, one.bytes] for one in self.files]
        return {"include": list(self.include), "files": pins}


@dataclass(frozen=True, slots=True)
class Planned:
    """A file that will be fetched: where it lies below the source's folder, what it must be, and its address where it has one.

    `bytes` None: its size is not known before. `digest` None: what makes it checks it (git by the commit).
    """

    path: str
    digest: Digest | None
    bytes: int | None
    url: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


class Fetcher(Protocol):
    """A kind of place."""

    def plan(self, wanted: Wanted) -> Sequence[Planned]:
        """The files of a source, in the order in which they are fetched. May ask the place. Raises EngcmpError."""

    def bring(self, wanted: Wanted, planned: Planned, target: Path, say: Say) -> None:
        """Make `target` the planned file, checked. What was fetched before an interruption is used. Raises EngcmpError."""


class Hashing:
    """Both digests of a stream of bytes of a known size; without the size git's id is not known."""

    def __init__(self, size: int | None) -> None:
        self._sha256 = hashlib.sha256()
        self._git = None if size is None else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        self.bytes = 0

    def update(self, data: bytes) -> None:
        self.bytes += len(data)
        self._sha256.update(data)
        if self._git is not None:
            self._git.update(data)

    def digest(self, algorithm: str) -> Digest | None:
        """The digest so far, None for git's where no size was given."""
        if algorithm == "sha256":
            return Digest("sha256", self._sha256.hexdigest())
        return None if self._git is None else Digest("git", self._git.hexdigest())


def hashed(path: Path, size: int | None) -> Hashing:
    """The digests of a file's bytes; `size` is that of the whole file where this is its beginning."""
    found = Hashing(size)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found


def digest_of(pinned: Pinned) -> Digest | None:
    """The pin's digest. Raises EngcmpError for one that is none."""
    if pinned.sha256 is None:
        return None
    if _SHA256.fullmatch(pinned.sha256) is None:
        raise EngcmpError(f"{pinned.path}: {pinned.sha256!r} is no SHA-256", remedy="correct the pin")
    return Digest("sha256", pinned.sha256)


def git_digest(value: str) -> Digest | None:
    """The id that git gives a file's bytes, or None for what is none."""
    return Digest("git", value) if _SHA1.fullmatch(value) else None


def require_digest(wanted: Wanted, planned: Planned) -> Digest:
    """What the file must have. Raises EngcmpError where nobody says: what cannot be checked is not fetched."""
    if planned.digest is None:
        raise EngcmpError(
            f"source {wanted.source}: no digest of {planned.path} is known, neither pinned nor stated by the place",
            where=wanted.where, remedy="write its sha256 in SOURCES.json",
        )  # fmt: skip
    return planned.digest


def require_same(what: str, expected: Digest, found: Hashing) -> None:
    """Raise EngcmpError where the bytes are not those that are expected."""
    got = found.digest(expected.algorithm)
    if got != expected:
        raise EngcmpError(
            f"{what}: wrong {expected.algorithm}: expected {expected.value}, got {got.value if got else 'none'}",
            remedy="another file than the one pinned was served and is not kept: check the place and the pin",
        )


def require_safe_path(path: str, what: str) -> str:
    """`path` where it lies within a folder whatever it is joined to. Raises EngcmpError for any other path."""
    parts = path.split("/")
    bad = not path or any(part in ("", ".", "..") or part.startswith("\0") for part in parts)
    if bad or any(sign in path for sign in "\\\0:") or path.startswith("/"):
        raise EngcmpError(
            f"{what}: {path!r} is no path within a folder", remedy="do not use this source: its names lead out"
        )
    return path


def place_within(root: Path, path: str, what: str) -> Path:
    """Where a file lies below `root`. Raises EngcmpError for a path that leads out, itself or by a link on the way."""
    target = root / require_safe_path(path, what)
    for folder in (target, *target.parents):
        if folder == root:
            break
        if folder.is_symlink():
            raise EngcmpError(f"{what}: {path} is or lies below a link", where=str(folder), remedy="remove the link")
    return target


def secret(variable: str, file_variable: str) -> str | None:
    """A secret from the environment, else from the file that another variable names; None where neither is set.

    Raises EngcmpError for a file that others may read, and for a value that no header may hold. The value is in no message.
    """
    value = os.environ.get(variable)
    if not value and (name := os.environ.get(file_variable)):
        value = _secret_file(Path(name), file_variable)
    value = (value or "").strip()
    if value and re.fullmatch(r"[\x21-\x7e]+", value) is None:
        raise EngcmpError(f"{variable} is not one word of printable ASCII", remedy="set it to the token alone")
    return value or None


def _secret_file(path: Path, variable: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise EngcmpError(
            f"{variable}: the file cannot be read: {error.strerror}", where=str(path), remedy="correct it"
        ) from None
    with os.fdopen(descriptor, "r", encoding="utf-8", errors="replace") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (os.getuid(), 0):
            raise EngcmpError(
                f"{variable}: others may read the file", where=str(path), remedy=f"chmod 600 {path.name}, as its owner"
            )
        return file.read(1 << 16)
