"""The folder of a measured plan: finished cells, each whole or not there, earlier ones of the same, and the three files of all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.throughput.event_tables import EVENTS_SCHEMA, REQUESTS_SCHEMA, joined_bytes
from engcmp_assets.kernel.throughput.plans import Plan, listing
from engcmp_resources.canonical import canonical_bytes, parse_json, sha256_bytes
from engcmp_resources.disk import (
    disk_errors,
    make_folder,
    replace_all_visible,
    replace_visible,
    sync_folder,
    write_synced,
)
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.throughput/1"
PLAN_FILE = "plan-digests.json"
"""What a folder says of its plan: the digest of each prompt, never the prompt."""
EARLIER = "earlier"
_NAMES = ("events.parquet", "requests.parquet", "cell.json")
_DIGESTS = "SHA256.json"  # of the three, so that a cell that was changed or cut is not joined to the others


@contextlib.contextmanager
def alone(out: Path) -> Iterator[None]:
    """Hold the folder; the kernel frees it however the process ends."""
    with disk_errors(out):
        make_folder(out)
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngcmpError(
                "another process measures into this folder",
                where=str(out),
                remedy="wait for it (of a study: the other engcmp run), or name another folder",
            ) from error
        yield
    finally:
        os.close(descriptor)


def opened(plan: Plan, server: str, out: Path) -> dict[str, Any]:
    """What is known of the runs that wrote there before; the plan's digests are put there by the first.

    Raises EngcmpError for a folder of another plan or server, and for one with other things in it.
    """
    path = out / "run.json"
    ours = {"schema": SCHEMA, "plan_sha256": plan.sha256, "server": server}
    if not path.exists():
        strange = [one.name for one in out.iterdir() if not one.name.startswith(".") and one.name != PLAN_FILE]
        if strange:
            raise EngcmpError(
                f"the folder holds {sorted(strange)[0]}, not cells of a plan",
                where=str(out),
                remedy="name a new or empty one",
            )
        # Digests alone: a prompt may be somebody's text, and results are shown to others.
        digests = {
            "plan_sha256": plan.sha256,
            "model": plan.model,
            "sampling": plan.sampling,
            "requests": listing(plan),
        }
        replace_visible(out / PLAN_FILE, canonical_bytes(digests))
        return ours | {"sessions": []}
    run = parse_json(path.read_bytes(), what="the record of earlier runs", where=str(path), remedy="name a new folder")
    for name, what in (("schema", "a format"), ("plan_sha256", "a plan"), ("server", "a server")):
        if run.get(name) != ours[name]:
            raise EngcmpError(
                f"the cells there are of {what} that is another: {run.get(name)}, not {ours[name]}", where=str(out),
                remedy="name a new or empty folder",
            )  # fmt: skip
    found: dict[str, Any] = run
    return found


def set_aside(plan: Plan, out: Path, again: Collection[str], *, failed: bool) -> list[str]:
    """Move the finished cells `again`, and with `failed` all in which a request failed, to OUT/earlier, and give their names.

    They stay there as evidence. Raises EngcmpError for a cell that the plan does not have.
    """
    unknown = sorted(set(again) - {cell.cell_id for cell in plan.cells})
    if unknown:
        names = ", ".join(cell.cell_id for cell in plan.cells)
        raise EngcmpError(f"the plan has no cell {unknown[0]!r}", where=str(out), remedy=f"its cells are {names}")
    moved = []
    for number, cell in enumerate(plan.cells):
        part = part_of(out, number)
        if not part.is_dir() or not (cell.cell_id in again or (failed and not _is_complete(part))):
            continue
        place = out / EARLIER / f"{part.name}-{len(_earlier(out, number)) + 1}"
        with disk_errors(place):
            make_folder(place.parent)
            part.rename(place)
            sync_folder(place.parent)
        moved.append(cell.cell_id)
    return moved


def _is_complete(part: Path) -> bool:
    refuse_changed(part)
    return bool(json.loads((part / "cell.json").read_bytes())["complete"])


def _earlier(out: Path, number: int) -> list[str]:
    """The earlier measurements of a cell that were set aside, in order."""
    found = [one.name for one in (out / EARLIER).glob(f"{part_of(out, number).name}-*")]
    return sorted(found, key=lambda name: int(name.rpartition("-")[2]))


def prepared(out: Path) -> None:
    """The folder of the finished cells is there, and what it holds is on disk: before the next cell is timed."""
    with disk_errors(out):
        make_folder(out / "parts")
        sync_folder(out / "parts")


def part_of(out: Path, number: int) -> Path:
    """Where a finished cell is kept."""
    return out / "parts" / f"{number:04d}"


def keep(out: Path, number: int, *contents: bytes) -> None:
    """Put a finished cell in its place, whole or not at all, whatever ends the process or the machine.

    All of it, the names within it too, is on disk before it gets its name, so what has the name is whole. A kill takes nothing of it
    from then on. The name itself is on disk with `prepared`, before the next cell, or with `assembled`, before cells.json appears: a
    machine that loses its power before that loses this cell, which is then measured again.
    """
    target = part_of(out, number)
    partial = target.with_name(f".{target.name}.partial")
    with disk_errors(target):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        digests = canonical_bytes({name: sha256_bytes(content) for name, content in zip(_NAMES, contents, strict=True)})
        try:
            files = zip((*_NAMES, _DIGESTS), (*contents, digests), strict=True)
            write_synced({partial / name: one for name, one in files}, [partial])
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # what a full disk has cut short


def refuse_changed(part: Path) -> None:
    """Raises EngcmpError where a finished cell is not as it was written."""
    remedy = f"remove the folder {part.name}, and start again: only this cell is measured again"
    try:
        digests = parse_json((part / _DIGESTS).read_bytes(), what=_DIGESTS, where=str(part), remedy=remedy)
        changed = [name for name in _NAMES if sha256_bytes((part / name).read_bytes()) != digests[name]]
    except (OSError, KeyError, TypeError) as error:
        raise EngcmpError(f"a finished cell is damaged: {error}", where=str(part), remedy=remedy) from error
    if changed:
        raise EngcmpError(
            f"a finished cell was changed after it was written: {', '.join(changed)}", where=str(part), remedy=remedy
        )


def assembled(plan: Plan, out: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The three files of all cells, made from the parts. The tables of one cell are the part's own files under a second name."""
    parts = [part_of(out, number) for number in range(len(plan.cells))]
    for part in parts:
        refuse_changed(part)
    files: dict[Path, bytes | Path] = {}
    for name, schema in (("events.parquet", EVENTS_SCHEMA), ("requests.parquet", REQUESTS_SCHEMA)):
        own = [part / name for part in parts]
        files[out / name] = own[0] if len(own) == 1 else joined_bytes(schema, own)
    where = "the cell's document"
    cells = [
        parse_json(
            (part / "cell.json").read_bytes(), what=where, where=str(part), remedy="remove the folder of this cell"
        )
        for part in parts
    ]
    for number, cell in enumerate(cells):
        if earlier := _earlier(out, number):
            cell["earlier"] = earlier
    document = run | {"model": plan.model, "sampling": plan.sampling, "cells": cells}
    # The last tells that all are there: no part of it can then go, nor a table be cut short.
    replace_all_visible(files | {out / "cells.json": canonical_bytes(document)}, [out / "parts"])
    return document
