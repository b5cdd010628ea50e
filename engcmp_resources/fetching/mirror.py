"""A folder of this machine in place of the network: what an earlier fetch left, or what somebody copied there.

A source lies in the folder of its id, with the paths that it has at its own place. Beside hashed pins it needs nothing; where the pins
do not say all, `fetched.json` of that folder does, which every fetch writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.disk import disk_errors, keep_whole, make_folder, replace_visible, require_space
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import (
    Digest,
    Hashing,
    Planned,
    Say,
    Wanted,
    digest_of,
    place_within,
    require_digest,
    require_same,
)

FETCHED = "fetched.json"
STAND_IN = "STAND-IN"
"""A file beside a source's files that says what they stand in for: it travels with them."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Mirror:
    """A folder that holds sources by their ids."""

    root: Path

    def plan(self, wanted: Wanted) -> Sequence[Planned]:
        """The pinned files, else those that the folder's own list has for this revision."""
        listed = {one["path"]: one for one in self._listed(wanted)}
        if wanted.files is None or wanted.kind == "registry":
            if not listed:
                raise EngcmpError(
                    f"source {wanted.source} pins no files and the mirror has no list of them", where=str(self._folder(wanted)),
                    remedy=f"put the {FETCHED} of a fetch there, or the files' sha256 into SOURCES.json",
                )  # fmt: skip
            return [
                Planned(path, Digest("sha256", str(one["sha256"])), int(one["bytes"])) for path, one in listed.items()
            ]
        found = []
        for one in wanted.files:
            stated = listed.get(one.path)
            digest = digest_of(one) or (Digest("sha256", str(stated["sha256"])) if stated else None)
            found.append(Planned(one.path, digest, one.bytes))
        return found

    def bring(self, wanted: Wanted, planned: Planned, target: Path, say: Say) -> None:
        """Copy one file, checked. Raises EngcmpError for one that is missing, a link, or another than pinned."""
        what = f"{wanted.source}: {planned.path}"
        source = place_within(self._folder(wanted), planned.path, what)
        if not source.is_file():
            raise EngcmpError(
                f"{what} is not in the mirror", where=str(source), remedy="put it there, or fetch without a mirror"
            )
        digest = require_digest(wanted, planned)
        size = source.stat().st_size
        with disk_errors(target):
            make_folder(target.parent)
        self._carry_stand_in(wanted, target, planned)
        require_space(target.parent, size, what)
        part = target.with_name(f".{target.name}.{digest.value[:16]}.partial")
        found = Hashing(size)
        say(f"{what}: from the mirror")
        try:
            with disk_errors(target), _opened(source) as file, part.open("wb") as copy:
                while block := file.read(_BLOCK_BYTES):
                    copy.write(block)
                    found.update(block)
            require_same(what, digest, found)
            keep_whole(part, target)
        finally:
            part.unlink(missing_ok=True)

    def _carry_stand_in(self, wanted: Wanted, target: Path, planned: Planned) -> None:
        told = place_within(self._folder(wanted), STAND_IN, f"source {wanted.source}")
        if told.is_file():
            root = target.parents[planned.path.count("/")]
            replace_visible(root / STAND_IN, told.read_bytes())

    def _folder(self, wanted: Wanted) -> Path:
        """The folder of a source: where a fetch puts it, or that of its id; one whose place is a mirror names its folder itself."""
        names = [wanted.where] if wanted.kind == "mirror" else [wanted.folder, wanted.source]
        folders = [place_within(self.root, name, f"source {wanted.source}") for name in names]
        return next((one for one in folders if one.is_dir()), folders[-1])

    def _listed(self, wanted: Wanted) -> list[dict[str, Any]]:
        path = self._folder(wanted) / FETCHED
        document = read_fetched(path)
        if document is None:
            return []
        if (document["kind"], document["revision"]) != (wanted.kind, wanted.revision):
            raise EngcmpError(
                f"source {wanted.source}: the mirror has revision {document['revision']}, {wanted.revision} is wanted", where=str(path),
                remedy="put that revision there",
            )  # fmt: skip
        if document.get("partial"):
            raise EngcmpError(
                f"source {wanted.source}: the mirror's copy was cut short", where=str(path),
                remedy="let `engcmp fetch` end there first: it goes on where it was cut",
            )  # fmt: skip
        files: list[dict[str, Any]] = document["files"]
        return files


def mirror_folder(named: Path | None) -> Path | None:
    """The mirror that is named, else that of ENGCMP_MIRROR, else none. Raises EngcmpError where there is no such folder."""
    told = named or (Path(name) if (name := os.environ.get("ENGCMP_MIRROR")) else None)
    if told is not None and not told.is_dir():
        raise EngcmpError("there is no such mirror", where=str(told), remedy="correct --mirror or ENGCMP_MIRROR")
    return told


def read_fetched(path: Path) -> dict[str, Any] | None:
    """The list that a fetch left, or None where there is none that can be read."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    keys = {"schema", "source", "kind", "where", "revision", "files"}
    whole = isinstance(document, dict) and keys <= set(document) and isinstance(document["files"], list)
    if not whole or not all(
        isinstance(one, dict) and {"path", "sha256", "bytes"} <= set(one) for one in document["files"]
    ):
        return None
    found: dict[str, Any] = document
    return found


def _opened(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
