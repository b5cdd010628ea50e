"""`engcmp fetch`: bring what a study lists in SOURCES.json, or say what that would be. It needs no Dagster instance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from engcmp_assets.commands.paths import PathArgument
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.study_sources import SOURCES_FILE, StudySource, parse_sources
from engcmp_assets.sources.published import wanted_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.fetch import fetch_source, fetcher_of, outlook
from engcmp_resources.fetching.http import Http
from engcmp_resources.fetching.mirror import mirror_folder
from engcmp_resources.places import home_folder

_ONCE = Http(attempts=1, timeout_s=15.0)  # a look must not wait for a place that does not answer


@click.command(epilog="Example: engcmp fetch glm53-flash --dry-run")
@click.argument("study")
@click.option(
    "--source",
    "sources",
    multiple=True,
    help="Only this one (may be given more than once). Default: all that runs need.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be fetched and how big it is, and fetch nothing.")
@click.option(
    "--mirror",
    type=PathArgument(),
    help="Take everything from this folder and ask no network. Default: ENGCMP_MIRROR, where it is set.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one JSON object on standard output.")
def fetch(study: str, sources: Sequence[str], dry_run: bool, mirror: Path | None, as_json: bool) -> int:
    """Fetch the sources of STUDY into ENGCMP_HOME/fetched/STUDY, each file checked; what was cut is continued.

    A folder that this command filled is a mirror for another machine. Exit 0 if everything is here, else 1.
    """
    chosen = _chosen(load_study(study), sources)
    folder = mirror_folder(mirror)
    root = home_folder() / "fetched" / study
    found = [_looked_at(one, root, folder) if dry_run else _fetched(one, root, folder) for one in chosen]
    total = {"study": study, "folder": str(root), "sources": found}
    if as_json:
        click.echo(json.dumps(total, indent=1))
    else:
        click.echo("\n".join(_lines(found, dry_run=dry_run)))
        click.echo(f"{'Into' if dry_run else 'In'} {root}")
    return int(any(one["failed"] for one in found) and not dry_run)


def _chosen(study: Study, names: Sequence[str]) -> list[StudySource]:
    data = study.files.get(SOURCES_FILE)
    if data is None:
        raise EngcmpError(
            f"study {study.folder.name} has no {SOURCES_FILE}", where=str(study.folder),
            remedy=f"what its protocol pins is fetched by `engcmp run {study.folder.name}`",
        )  # fmt: skip
    listed = parse_sources(data, where=str(study.folder / SOURCES_FILE))
    return [listed.source(name) for name in names] or [one for one in listed.sources if one.fetch]


def _looked_at(source: StudySource, root: Path, mirror: Path | None) -> dict[str, Any]:
    found = _about(source)
    try:
        wanted = wanted_of(source)
    except EngcmpError as error:
        return found | {"failed": str(error), "pinned": False}
    try:
        seen = outlook(wanted, root, fetcher_of(wanted, mirror, _ONCE))
    except EngcmpError as error:
        return found | {"failed": str(error)}
    files = [{"path": one.path, "bytes": one.bytes, "here": one not in seen.missing} for one in seen.planned]
    return found | {"files": files, "missing_bytes": seen.bytes, "unknown_sizes": seen.unknown}


def _fetched(source: StudySource, root: Path, mirror: Path | None) -> dict[str, Any]:
    found = _about(source)
    try:
        wanted = wanted_of(source)
    except EngcmpError as error:
        stderr_line(f"{source.id}: {error}")
        return found | {"failed": str(error), "pinned": False}
    try:
        files = fetch_source(wanted, root, fetcher_of(wanted, mirror, Http()), stderr_line)
    except EngcmpError as error:
        stderr_line(f"{source.id}: {error}")
        return found | {"failed": str(error)}
    return found | {
        "files": [{name: one[name] for name in ("path", "sha256", "bytes")} | {"here": True} for one in files]
    }


def _about(source: StudySource) -> dict[str, Any]:
    size = source.bytes if isinstance(source.bytes, int) else source.about_bytes
    return {
        "id": source.id, "kind": source.kind, "where": source.where, "revision": source.revision, "licence": source.licence,
        "stated_bytes": size, "files": [], "missing_bytes": 0, "unknown_sizes": 0, "failed": None, "pinned": True,
    }  # fmt: skip


def _lines(found: Sequence[dict[str, Any]], *, dry_run: bool) -> list[str]:
    lines = []
    for one in found:
        lines.append(f"{one['id']}  ({one['kind']}, {one['where']} @ {one['revision']}; licence: {one['licence']})")
        if one["failed"]:
            stated = f"; its size is stated as {_size(one['stated_bytes'])}" if one["stated_bytes"] is not None else ""
            lines.append(f"  not {'known' if dry_run else 'fetched'}: {one['failed']}{stated}")
        lines += [
            f"  {'here   ' if file['here'] else 'missing'} {_size(file['bytes']):>12}  {file['path']}"
            for file in one["files"]
        ]
    missing = sum(one["missing_bytes"] for one in found)
    unknown = sum(one["unknown_sizes"] for one in found)
    failed = [one for one in found if one["failed"]]
    if dry_run:
        more = f", and {unknown} files whose size is known only then" if unknown else ""
        of = f", of the {len(found) - len(failed)} of {len(found)} sources that could be asked" if failed else ""
        lines.append(f"would be fetched: {_size(missing)}{more}{of}")
    for what, some in (
        ("whose pin is not stated", [one["id"] for one in failed if not one["pinned"]]),
        ("that could not be asked" if dry_run else "that failed", [one["id"] for one in failed if one["pinned"]]),
    ):
        if some:
            lines.append(f"{len(some)} of {len(found)} sources {what}: {', '.join(some)}")
    return lines


def _size(size: int | None) -> str:
    if size is None:
        return "size unknown"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"
