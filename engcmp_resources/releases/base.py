"""A listing of releases: what each place gives, and how it fails."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from engcmp_resources.errors import EngcmpError

Kind = Literal["package_index", "git", "registry", "folder"]


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """A file of a release with the SHA-256 that the place states for it (None where it states none)."""

    name: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Release:
    """One tag as a place shows it.

    `digest` is what the tag stands for: `git:<40 hex>` (the commit, also of an annotated tag; 64 hex where the repository is
    one of SHA-256), `sha256:<64 hex>` (the image's manifest), or `files:<64 hex>` (hash over the sorted names and hashes of a
    release's wheels). It is None where the place was not asked for it yet, and where a wheel has no hash. `withdrawn` is the
    reason that the place gives for not using it (a yanked release), else None.
    """

    tag: str
    digest: str | None
    files: tuple[ReleaseFile, ...] = ()
    withdrawn: str | None = None
    prerelease: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """All releases that a place shows, the oldest version first where it can be told, and the place in words without credentials."""

    place: str
    releases: tuple[Release, ...]


class UnreachableError(EngcmpError):
    """The place did not answer: no network, a timeout, a server's fault. It is asked again at the next look."""


class RateLimitedError(UnreachableError):
    """The place asks to be left alone for `retry_after_s` seconds."""

    def __init__(self, what: str, *, where: str | None, retry_after_s: float) -> None:
        super().__init__(what, where=where, remedy=f"wait {retry_after_s:.0f} s; the sensor does so by itself")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ReleasePlace:
    """What is asked: the kind of place, and its address there.

    `name` is the package of a package index, the URL of a git repository, an image's name (`HOST/NAME`), or a folder's path.
    `package` is the package whose wheels a folder is searched for.
    """

    kind: Kind
    name: str
    package: str | None = None


class Lister(Protocol):
    """Lists what a place shows. `wanted` tells of which tags the digest is needed, where each costs a request."""

    def __call__(self, place: ReleasePlace, *, wanted: Callable[[str], bool], timeout_s: float) -> Listing:
        """Raises UnreachableError or RateLimitedError for what passes, EngcmpError for what does not (no such package, login)."""


_LISTERS: dict[str, Lister] = {}


def register_lister(kind: Kind) -> Callable[[Lister], Lister]:
    """Make a function the lister of a kind of place; adding a kind is adding a file that calls this."""

    def register(lister: Lister) -> Lister:
        _LISTERS[kind] = lister
        return lister

    return register


def list_releases(
    place: ReleasePlace, *, wanted: Callable[[str], bool] = lambda _tag: True, timeout_s: float = 20.0
) -> Listing:
    """What `place` shows now. Nothing is downloaded but the listing; see Lister for errors."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    return _LISTERS[place.kind](place, wanted=wanted, timeout_s=timeout_s)
