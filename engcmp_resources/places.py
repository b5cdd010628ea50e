"""Where things are: the checkout, the studies' folder, ENGCMP_HOME; and the bytes of a study's folder."""

from __future__ import annotations

import os
from pathlib import Path

from engcmp_resources.errors import EngcmpError

CHECKOUT = Path(__file__).resolve().parent.parent
FROZEN_FILE = "FROZEN.json"
ITERATIONS = "iterations"
# What a study's folder may hold beside its frozen files: iterations have hashes of their own.
_NOT_FROZEN = (FROZEN_FILE, ITERATIONS)


def home_folder() -> Path:
    """ENGCMP_HOME, by default `.engcmp` in the checkout: everything that a run writes is under it."""
    return Path(os.environ.get("ENGCMP_HOME") or CHECKOUT / ".engcmp").absolute()


def named_folder(name: str) -> Path:
    """A folder as a protocol names it: relative to the checkout, or absolute."""
    return CHECKOUT / name


def protocol_root() -> Path:
    """The folder of studies: ENGCMP_PROTOCOL, by default `protocol` in the checkout."""
    return Path(os.environ.get("ENGCMP_PROTOCOL") or CHECKOUT / "protocol").absolute()


def study_names() -> tuple[str, ...]:
    """The studies that exist, sorted: folders with a protocol.toml."""
    root = protocol_root()
    if not root.is_dir():
        raise EngcmpError(
            f"no folder {root}", remedy="run in a checkout, or set ENGCMP_PROTOCOL to a folder of studies"
        )
    return tuple(sorted(folder.name for folder in root.iterdir() if (folder / "protocol.toml").is_file()))


def study_folder(study: str) -> Path:
    """The folder of `study`. Raises EngcmpError that lists the studies there are."""
    names, root = study_names(), protocol_root()
    if study not in names:
        raise EngcmpError(
            f"no study {study!r}", where=str(root), remedy=f"the studies are {', '.join(names) or 'none'}"
        )
    return root / study


def study_files(folder: Path) -> dict[str, bytes]:
    """The frozen files of a study's folder: path relative to it (with /) to raw bytes. Symbolic links are refused."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in _NOT_FROZEN or any(part.startswith(".") for part in name.split("/")):
            continue
        if path.is_symlink():
            raise EngcmpError(
                f"protocol file {name} is a symbolic link", where=str(folder), remedy="put the file itself there"
            )
        if path.is_file():
            files[name] = read_bytes(path)
    return files


def iteration_files(folder: Path) -> dict[str, bytes]:
    """The iterations of a study's folder and their freezes: file name to raw bytes."""
    root = folder / ITERATIONS
    paths = sorted(root.iterdir()) if root.is_dir() else []
    return {path.name: read_bytes(path) for path in paths if path.suffix in (".toml", ".json") and path.is_file()}


def read_bytes(path: Path) -> bytes:
    """The bytes of a protocol file. Raises EngcmpError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngcmpError(
            f"protocol file cannot be read: {error.strerror}", where=str(path), remedy="make it readable"
        ) from error
