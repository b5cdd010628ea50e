"""Bringing whole sources here: what is there already, what is missing and how big it is, and then the missing files one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import disk_errors, file_status, locked, make_folder, replace_visible, require_space
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Digest, Fetcher, Planned, Say, Wanted, hashed, place_within
from engcmp_resources.fetching.http import Http
from engcmp_resources.fetching.hugging_face import HuggingFace
from engcmp_resources.fetching.mirror import FETCHED, Mirror, read_fetched
from engcmp_resources.fetching.others import Git, PackageIndex
from engcmp_resources.fetching.registry import Registry

SCHEMA = "engcmp.fetched/1"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Outlook:
    """The files of a source, and those of them that are not here yet."""

    planned: tuple[Planned, ...]
    missing: tuple[Planned, ...]

    @property
    def bytes(self) -> int:
        """Bytes that are still to be fetched, as far as their sizes are known."""
        return sum(one.bytes or 0 for one in self.missing)

    @property
    def unknown(self) -> int:
        """Missing files whose size is not known before they are fetched."""
        return sum(1 for one in self.missing if one.bytes is None)


def fetchers(http: Http) -> dict[str, Fetcher]:
    """The kinds of places, by their name in SOURCES.json. One of kind `mirror` is in no network."""
    return {"hf": HuggingFace(http), "registry": Registry(http), "git": Git(), "package_index": PackageIndex()}


def fetcher_of(wanted: Wanted, mirror: Path | None, http: Http) -> Fetcher:
    """How a source is fetched: from the mirror alone where there is one. Raises EngcmpError for a kind that needs one and has none."""
    if mirror is not None:
        return Mirror(mirror)
    if wanted.kind == "mirror":
        raise EngcmpError(
            f"source {wanted.source} is only to be had from a mirror", where=wanted.where,
            remedy="name the folder with --mirror or ENGCMP_MIRROR",
        )  # fmt: skip
    return fetchers(http)[wanted.kind]


def outlook(wanted: Wanted, root: Path, fetcher: Fetcher) -> Outlook:
    """What a source is and what of it is missing below `root`. Nothing is written. Raises EngcmpError where that cannot be told."""
    planned = tuple(fetcher.plan(wanted))
    folder = place_within(root, wanted.folder, f"source {wanted.source}")
    known = _records(wanted, folder)
    missing = [one for one in planned if not _is_here(wanted, folder, one, known.get(one.path))]
    return Outlook(planned, tuple(missing))


def fetch_source(wanted: Wanted, root: Path, fetcher: Fetcher, say: Say) -> list[dict[str, Any]]:
    """Make all files of a source lie below `root` in its folder, each checked, and list them in its `fetched.json`; that list.

    Files that are there are not fetched again, and a source that is whole is not asked for. Raises EngcmpError for the first file that
    cannot be had; what was fetched before stays, and another call goes on from there.
    """
    folder = place_within(root, wanted.folder, f"source {wanted.source}")
    with disk_errors(folder):
        make_folder(folder)
    with locked(folder / _LOCK):
        if (whole := _whole(wanted, folder)) is not None:
            return whole
        found = outlook(wanted, root, fetcher)
        known = _records(wanted, folder)
        require_space(folder, found.bytes, f"source {wanted.source}")
        records: dict[str, dict[str, Any]] = {}
        for one in found.planned:
            target = place_within(folder, one.path, f"source {wanted.source}")
            if one in found.missing:
                with disk_errors(target):
                    make_folder(target.parent)
                fetcher.bring(wanted, one, target, say)
            records[one.path] = _record(target, one, known.get(one.path))
            more = [record for path, record in known.items() if path not in records]
            _write(wanted, folder, [*records.values(), *more], partial=True)
        _write(wanted, folder, list(records.values()))
        return list(records.values())


def whole_source(wanted: Wanted, root: Path) -> list[dict[str, Any]] | None:
    """The list of a source that an earlier fetch brought whole, each file as it was then; None where anything lacks or has changed.

    A file whose times or inode are other than they were is hashed; no place is asked.
    """
    folder = place_within(root, wanted.folder, f"source {wanted.source}")
    if not folder.is_dir():
        return None
    with locked(folder / _LOCK):
        return _whole(wanted, folder)


def _whole(wanted: Wanted, folder: Path) -> list[dict[str, Any]] | None:
    document = read_fetched(folder / FETCHED)
    known = _records(wanted, folder)
    if document is None or not known or document.get("partial") or document.get("asked") != wanted.asked:
        return None
    found: list[dict[str, Any]] = []
    for path, record in known.items():
        file = place_within(folder, path, f"source {wanted.source}")
        one = Planned(path, Digest("sha256", str(record["sha256"])), int(record["bytes"]))
        if not _is_here(wanted, folder, one, record):
            return None
        found.append(record | {"status": file_status(file)})
    if found != list(known.values()):  # the same bytes at other times, say of a copy: they need not be hashed again
        _write(wanted, folder, found)
    return found


def _is_here(wanted: Wanted, folder: Path, one: Planned, record: Mapping[str, Any] | None) -> bool:
    """Whether the file is as planned: as its record says and untouched since, else by its bytes."""
    path = place_within(folder, one.path, f"source {wanted.source}")
    if not path.is_file() or (one.bytes is not None and path.stat().st_size != one.bytes):
        return False
    if record is not None and record.get("status") == file_status(path):
        return one.digest is None or str(one.digest) in record.get("digests", ())
    if one.digest is None:
        return False  # only its record says that it is of this commit
    return hashed(path, path.stat().st_size).digest(one.digest.algorithm) == one.digest


def _record(target: Path, one: Planned, known: Mapping[str, Any] | None) -> dict[str, Any]:
    status = file_status(target)
    if known is not None and known.get("status") == status:
        return dict(known)
    size = target.stat().st_size
    found = hashed(target, size)
    sha256 = found.digest("sha256")
    digests = [str(digest) for digest in (sha256, found.digest("git")) if digest is not None]
    return {
        "path": one.path, "sha256": sha256.value if sha256 else "", "bytes": size, "digests": digests, "status": status,
    }  # fmt: skip


def _records(wanted: Wanted, folder: Path) -> dict[str, dict[str, Any]]:
    """The records of an earlier fetch of this very source."""
    document = read_fetched(folder / FETCHED)
    same = document is not None and all(
        document[name] == value
        for name, value in (("where", wanted.where), ("revision", wanted.revision), ("kind", wanted.kind))
    )
    return {one["path"]: one for one in document["files"]} if document is not None and same else {}


def _write(wanted: Wanted, folder: Path, records: Sequence[Mapping[str, Any]], *, partial: bool = False) -> None:
    document = {
        "schema": SCHEMA, "source": wanted.source, "kind": wanted.kind, "where": wanted.where, "revision": wanted.revision,
        "asked": wanted.asked, "files": sorted((dict(one) for one in records), key=lambda one: str(one["path"])),
    } | ({"partial": True} if partial else {})  # fmt: skip
    replace_visible(folder / FETCHED, canonical_bytes(document))
