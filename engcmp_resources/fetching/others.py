"""Git repositories at a commit, and wheels of the package index: each fetched by its own client, checked here."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engcmp_resources.disk import keep_whole, make_folder
from engcmp_resources.engines._launcher_source import fetch_launcher
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Digest, Planned, Say, Wanted, digest_of, hashed, require_same
from engcmp_resources.package_index import WheelPin, fetch_wheel, platform_of

REPOSITORY_TAR = "repository.tar"


@dataclass(frozen=True)
class Git:
    """A repository at a commit, as a tar that is the same bytes wherever it is made. Needs git; nothing of it is run."""

    def plan(self, wanted: Wanted) -> Sequence[Planned]:
        """The tar: its size is not known before. A file `repository.tar` of the source pins its SHA-256; the commit pins its content."""
        pinned = next((one for one in wanted.files or () if one.path == REPOSITORY_TAR), None)
        return [Planned(REPOSITORY_TAR, digest_of(pinned) if pinned else None, pinned.bytes if pinned else None)]

    def bring(self, wanted: Wanted, planned: Planned, target: Path, say: Say) -> None:
        """Fetch the commit and make the tar. Git checks what it fetches by the commit's own hash."""
        make_folder(target.parent)
        say(f"{wanted.source}: asking {wanted.where.rsplit('@', 1)[-1]}")
        with tempfile.TemporaryDirectory(prefix=".git-", dir=target.parent) as name:
            tar = fetch_launcher(wanted.where, wanted.revision, Path(name))
            if planned.digest is not None:
                require_same(f"{wanted.source}: {planned.path}", planned.digest, hashed(tar, None))
            keep_whole(tar, target)


@dataclass(frozen=True)
class PackageIndex:
    """Wheels of a release, fetched by pip's own client and never installed."""

    def plan(self, wanted: Wanted) -> Sequence[Planned]:
        """The wheels, each of which must be pinned."""
        found = []
        for one in wanted.files or ():
            if not one.path.endswith(".whl") or one.sha256 is None:
                raise EngcmpError(
                    f"source {wanted.source}: {one.path} is no wheel with a sha256",
                    where=wanted.where,
                    remedy="pin wheels",
                )
            found.append(Planned(one.path, Digest("sha256", one.sha256), one.bytes))
        if not found:
            raise EngcmpError(
                f"source {wanted.source} pins no wheel", where=wanted.where, remedy="list its files with their sha256"
            )
        return found

    def bring(self, wanted: Wanted, planned: Planned, target: Path, say: Say) -> None:
        """Fetch one wheel."""
        digest, platform = planned.digest, platform_of(planned.path)
        if digest is None or platform is None:
            raise EngcmpError(
                f"source {wanted.source}: {planned.path} runs on no platform of ours", remedy="pin another wheel"
            )
        make_folder(target.parent)
        pin = WheelPin(wanted.where, wanted.revision, {platform: (planned.path, digest.value)})
        with tempfile.TemporaryDirectory(prefix=".pip-", dir=target.parent) as name:
            keep_whole(fetch_wheel(pin, to=Path(name), progress=say, platform=platform), target)
