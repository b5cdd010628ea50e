"""Wheels as releases: grouped by version, in the order of versions."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from engcmp_resources.canonical import sha256_bytes, sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import Release, ReleaseFile, UnreachableError

NO_REASON = "yanked, no reason is given"


@dataclass(frozen=True, slots=True)
class FoundWheel:
    """A wheel at a place: file name, sha256 if the place states it, and why it is yanked if it is."""

    name: str
    sha256: str | None
    yanked: str | None = None


def package_name(name: str) -> str:
    """The normal form (PEP 503) of a package's name. Raises EngcmpError for what is no such name."""
    if re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name) is None:
        raise EngcmpError("not the name of a package", remedy="letters, digits, `-`, `_` and `.`: correct the name")
    return str(canonicalize_name(name))


def version_in(file_name: str, package: str) -> Version | None:
    """The version of a wheel of `package` (a normal name); None for any other file."""
    if re.fullmatch(r"[A-Za-z0-9._+!-]+\.whl", file_name) is None:
        return None
    try:
        name, version, _, _ = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return None
    return version if name == package else None


def sha256_or_none(text: str | None) -> str | None:
    """A SHA-256 in lower case; None for anything that is none."""
    return text.lower() if text is not None and re.fullmatch(r"[0-9A-Fa-f]{64}", text) else None


def releases_of(package: str, wheels: Iterable[FoundWheel]) -> tuple[Release, ...]:
    """The releases that the wheels of `package` (a normal name) make up, oldest version first; other files are left out.

    Of two wheels of one name the first with a sha256 counts. A release all of whose wheels are yanked is withdrawn.
    """
    chosen: dict[Version, dict[str, FoundWheel]] = {}
    for wheel in wheels:
        version = version_in(wheel.name, package)
        if version is not None:
            named = chosen.setdefault(version, {})
            if wheel.name not in named or named[wheel.name].sha256 is None:
                named[wheel.name] = wheel
    return tuple(_release(version, list(chosen[version].values())) for version in sorted(chosen))


def _release(version: Version, wheels: list[FoundWheel]) -> Release:
    files = tuple(sorted((ReleaseFile(wheel.name, wheel.sha256) for wheel in wheels), key=lambda file: file.name))
    reasons = [wheel.yanked for wheel in wheels if wheel.yanked is not None]
    return Release(
        tag=str(version),
        digest=files_digest(files),
        files=files,
        withdrawn="; ".join(sorted(set(reasons))) if len(reasons) == len(wheels) else None,
        prerelease=version.is_prerelease,
    )


def files_digest(files: Iterable[ReleaseFile]) -> str | None:
    """`files:` and the SHA-256 over the sorted lines `name sha256`, each ended by a newline; None where a hash is missing."""
    lines = []
    for file in files:
        if file.sha256 is None:
            return None
        lines.append(f"{file.name} {file.sha256}\n")
    return f"files:{sha256_bytes(''.join(sorted(lines)).encode())}"


def wheels_in(folder: Path, package: str) -> list[FoundWheel]:
    """The wheels of `package` (a normal name) directly in `folder`, their sha256 computed.

    Raises UnreachableError for a wheel that is not whole, as one that is being copied there is not; EngcmpError where
    the folder or a file cannot be read.
    """
    found = []
    try:
        for path in sorted(folder.iterdir()):
            if version_in(path.name, package) is None or not path.is_file():
                continue
            if not zipfile.is_zipfile(path):
                raise UnreachableError(
                    f"{path.name} is not a whole wheel",
                    where=str(folder),
                    remedy="wait until it is copied, or remove it; the folder is looked at again",
                )
            found.append(FoundWheel(path.name, sha256_file(path)))
    except OSError as error:
        raise EngcmpError(
            f"the folder of wheels cannot be read: {error.strerror}",
            where=str(error.filename or folder),
            remedy="make it readable, or name another folder",
        ) from error
    return found
