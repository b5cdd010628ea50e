"""Measuring a plan cell by cell: each finished cell is on disk before the next one starts, so that an end of any kind keeps it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.throughput.cell_documents import cell_document
from engcmp_assets.kernel.throughput.event_tables import (
    EVENTS_SCHEMA,
    REQUESTS_SCHEMA,
    events_bytes,
    events_of,
    joined_bytes,
    requests_table,
    table_bytes,
)
from engcmp_assets.kernel.throughput.plans import (
    Plan,
    PlanCell,
    PlanRequest,
    Wishes,
    plan_bytes,
    request_body,
    short_request,
    warm_up_requests,
)
from engcmp_assets.kernel.throughput.requests import request_records
from engcmp_assets.kernel.throughput.stream_arrays import request_columns
from engcmp_resources.canonical import canonical_bytes, parse_json, sha256_bytes
from engcmp_resources.disk import disk_errors, make_folder, replace_visible, sync_folder
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.calibration import Calibration, calibrate
from engcmp_resources.load.control import Control, EngineState, difference, granted
from engcmp_resources.load.driving import Driven, Pace, Wire, drive
from engcmp_resources.load.streams import Address, Deadlines, Exchange

SCHEMA = "engcmp.throughput/1"
_IDLE_WAIT_S = 5.0
_PATIENT = Deadlines()
_CALIBRATIONS, _CALM_S = 10, 2.0  # of which one must be passed in a study, and the pause after one that was not
_HIDDEN_KEY = "(the key)"
_NAMES = ("events.parquet", "requests.parquet", "cell.json")
_DIGESTS = "SHA256.json"  # of the three, so that a cell that was changed or cut is not joined to the others


def _nothing() -> None:
    """What there is to look at in a server that somebody else started."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure, and how patiently. `key` is sent as a bearer token and written nowhere.

    A study gives more: `named` is what the record of runs calls a server whose address changes from start to start, `note` goes into that
    record with each call, `unchanged` raises where the engine is not the one that was started (the cell is then not kept), and `strict`
    refuses to measure with a client that does not keep up.
    """

    address: Address
    key: str | None = None
    deadlines: Deadlines = _PATIENT
    retries_429: int = 3
    warm_up: int = 1  # requests of each stream before a new width, untimed, where the plan has none of its own
    named: str | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    unchanged: Callable[[], None] = _nothing
    strict: bool = False


@dataclass(frozen=True, slots=True)
class _Session:
    """What holds for all cells that one call measures."""

    plan: Plan
    target: Target
    control: Control
    wishes: Mapping[str, Wishes]
    number: int
    calibration: Calibration | None
    say: Say


def measure_plan(plan: Plan, target: Target, out: Path, *, calibrated: bool, say: Say) -> dict[str, Any]:
    """Measure the cells that `out` lacks and write events.parquet, requests.parquet and cells.json of all; gives the last as JSON.

    Raises EngcmpError where `out` holds another plan's or server's cells or another process writes there, and where the server does not
    answer, refuses plain requests or is not idle.
    """
    with _alone(out):
        run = _opened(plan, target, out)
        missing = [(number, cell) for number, cell in enumerate(plan.cells) if not _part(out, number).is_dir()]
        if missing:
            _measure(plan, target, out, run, missing, calibrated=calibrated, say=say)
        return _assembled(plan, out, run)


def _measure(
    plan: Plan,
    target: Target,
    out: Path,
    run: dict[str, Any],
    missing: list[tuple[int, PlanCell]],
    *,
    calibrated: bool,
    say: Say,
) -> None:
    control = Control(
        target.address, target.key, patience_s=min(target.deadlines.first_byte_s, target.deadlines.whole_s)
    )
    say("asking the server what it takes, with one short request")
    wishes, told = _wishes(plan, target, control, missing)
    state = control.settled(_IDLE_WAIT_S)
    if state.busy:
        raise EngcmpError(
            f"the engine is not idle: {state.busy} requests run or wait", where=str(target.address),
            remedy="let nothing else use the server while it is measured",
        )  # fmt: skip
    width = max(cell.concurrency for _, cell in missing)
    calibration = _kept_up(width, target, say) if target.strict else calibrate(width) if calibrated else None
    if calibration is not None and not calibration.passed:
        say(f"calibration: this client may be the limit: {'; '.join(calibration.reasons)}")
    session = _Session(plan, target, control, wishes, len(run["sessions"]), calibration, say)
    found = {"missing": "it was left out"} if calibration is None else calibration.as_json()
    run["sessions"].append(
        {"began_utc": datetime.now(UTC).isoformat(timespec="seconds"), "calibration": found} | told | dict(target.note)
    )
    replace_visible(out / "run.json", canonical_bytes(run))
    _rehearse(plan)
    last = None
    for number, cell in missing:
        warm = _warmed(session, cell, out) if cell.warmup is not None or cell.concurrency != last else None
        last = cell.concurrency
        target.unchanged()
        kept = _measured(session, cell, f"cell {number + 1} of {len(plan.cells)}", warm, out)
        target.unchanged()
        _keep(out, number, *kept)


def _kept_up(width: int, target: Target, say: Say) -> Calibration:
    """A calibration that was passed, of a few. Raises EngcmpError where none was: what is measured would be this client."""
    for _ in range(_CALIBRATIONS):
        if (calibration := calibrate(width)).passed:
            return calibration
        say(f"calibration: {'; '.join(calibration.reasons)}")
        time.sleep(_CALM_S)
    raise EngcmpError(
        f"this machine is too busy to time {width} streams: {'; '.join(calibration.reasons)}", where=str(target.address),
        remedy="let nothing else run meanwhile, and start again: finished cells are kept",
    )  # fmt: skip


def _wishes(
    plan: Plan, target: Target, control: Control, missing: list[tuple[int, PlanCell]]
) -> tuple[dict[str, Wishes], dict[str, Any]]:
    """What the server takes beside the request itself, for each path that the plan uses."""
    shortest = max(1, int(plan.sampling.get("min_tokens") or 1))
    wishes, told = {}, {}
    for path in sorted({one.path for _, cell in missing for one in (*cell.requests, *(cell.warmup or ()))}):
        probe = short_request(path, 0, shortest)

        def ask(wanted: Mapping[str, bool], probe: PlanRequest = probe, path: str = path) -> str | None:
            said = control.refusal(path, request_body(plan, probe, Wishes(**wanted)))
            return None if said is None else _without_key(said, target.key)

        taken, refused = granted(ask)
        wishes[path], told[path] = Wishes(**taken), {"asked_for": taken, "refused": refused}
    return wishes, {"streams": told}


def _driven(session: _Session, cell: PlanCell, requests: tuple[PlanRequest, ...], label: str, folder: Path) -> Driven:
    target = session.target
    wires = [
        Wire(
            one.request_id,
            target.address.content(one.path, request_body(session.plan, one, session.wishes[one.path]), target.key),
        )
        for one in requests
    ]
    progress = Progress(session.say, f"{label} {cell.cell_id}", "requests", len(wires), time.monotonic_ns)
    pace = Pace(cell.concurrency, cell.rate_per_s, cell.arrival, cell.arrival_seed)
    return drive(
        target.address,
        wires,
        pace,
        deadlines=target.deadlines,
        retries_429=target.retries_429,
        on_done=progress.update,
        folder=folder,
    )


def _warmed(session: _Session, cell: PlanCell, folder: Path) -> dict[str, Any]:
    requests = warm_up_requests(cell, session.target.warm_up * min(cell.concurrency, len(cell.requests)))
    if not requests:
        return {"requests": 0}
    driven = _driven(session, cell.model_copy(update={"rate_per_s": None}), requests, "warm-up of", folder)
    whole = sum(one.end == "complete" and one.http_status == 200 for one in driven.exchanges)  # noqa: PLR2004 - HTTP's OK
    return {"requests": len(requests), "whole": whole, "wall_s": driven.client["wall_s"]}


def _measured(
    session: _Session, cell: PlanCell, label: str, warm: dict[str, Any] | None, folder: Path
) -> tuple[bytes, bytes, bytes]:
    """A cell's two tables and its document, as bytes."""
    before = session.control.settled(_IDLE_WAIT_S)
    driven = _driven(session, cell, cell.requests, label, folder)
    after = session.control.settled(_IDLE_WAIT_S)
    records = []
    for request, exchange in zip(cell.requests, driven.exchanges, strict=True):
        exchange.detail = _without_key(exchange.detail, session.target.key)
        one = request_records(session.plan, cell, request, exchange)
        one.row["detail"] = _without_key(one.row["detail"], session.target.key)
        exchange.body = bytearray()  # what was parsed is not needed again
        records.append(one)
    rows, events = [one.row for one in records], events_of(records)
    records.clear()  # their arrays are in `events` now
    engine = _engine(before, after)
    known = {
        "cell_id": cell.cell_id,
        "kind": cell.kind,
        "concurrency": cell.concurrency,
        "client": driven.client,
        "engine": engine,
    }
    loop = "closed" if cell.rate_per_s is None else "open"
    document = cell_document(events, request_columns(rows), known | {"loop": loop})
    flags = list(document["flags"])
    if before.busy:
        flags.append(f"the engine was not idle before: {before.busy} requests")
    if session.calibration is not None and not session.calibration.passed:
        flags.append("the calibration of the client failed")
    document |= {"flags": flags, "loop": loop, "repeat": cell.repeat, "session": session.number, "warmup": warm}
    return events_bytes(events), table_bytes(requests_table(rows)), canonical_bytes(plain(document))


def _rehearse(plan: Plan) -> None:
    """Use once what is used between cells, on a stream of two tokens: libraries load parts of themselves at their first use."""
    cell = plan.cells[0]
    chunk = b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[1]}]}\n\n'
    body = bytearray(chunk + chunk + b"data: [DONE]\n\n")
    heard = Exchange(cell.requests[0].request_id, 1, t0_ns=1, done_at_ns=3, http_status=200, end="complete", body=body)
    heard.read_ends.extend((len(chunk), len(body)))
    heard.read_stamps.extend((2, 3))
    one = request_records(plan, cell, cell.requests[0], heard)
    events = events_of([one])
    cell_document(events, request_columns([one.row]), {"cell_id": cell.cell_id, "concurrency": cell.concurrency})
    events_bytes(events)


def _engine(before: EngineState, after: EngineState) -> dict[str, Any]:
    why = before.why or after.why
    if why is not None:
        return {"missing": why}
    return difference(before, after) | {"before": dict(before.values), "after": dict(after.values)}


def _without_key(text: str, key: str | None) -> str:
    return text.replace(key, _HIDDEN_KEY) if key else text


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the folder; the kernel frees it however the process ends."""
    with disk_errors(out):
        make_folder(out)
        descriptor = os.open(out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EngcmpError(
                "another process measures into this folder", where=str(out), remedy="wait for it, or name another"
            ) from error
        yield
    finally:
        os.close(descriptor)


def _opened(plan: Plan, target: Target, out: Path) -> dict[str, Any]:
    """What is known of the runs that wrote there before; the plan is put there by the first."""
    path = out / "run.json"
    ours = {"schema": SCHEMA, "plan_sha256": plan.sha256, "server": target.named or str(target.address)}
    if not path.exists():
        strange = [one.name for one in out.iterdir() if not one.name.startswith(".") and one.name != "plan.json"]
        if strange:
            raise EngcmpError(
                f"the folder holds {sorted(strange)[0]}, not cells of a plan",
                where=str(out),
                remedy="name a new or empty one",
            )
        replace_visible(out / "plan.json", plan_bytes(plan))
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


def _part(out: Path, number: int) -> Path:
    return out / "parts" / f"{number:04d}"


def _keep(out: Path, number: int, *contents: bytes) -> None:
    """Put a finished cell in its place, whole or not at all."""
    target = _part(out, number)
    partial = target.with_name(f".{target.name}.partial")
    with disk_errors(target):
        make_folder(target.parent)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        digests = canonical_bytes({name: sha256_bytes(content) for name, content in zip(_NAMES, contents, strict=True)})
        for name, content in zip((*_NAMES, _DIGESTS), (*contents, digests), strict=True):
            with (partial / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(partial)
        partial.rename(target)
        sync_folder(target.parent)


def _refuse_changed(part: Path) -> None:
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


def _assembled(plan: Plan, out: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The three files of all cells, made from the parts."""
    parts = [_part(out, number) for number in range(len(plan.cells))]
    for part in parts:
        _refuse_changed(part)
    for name, schema in (("events.parquet", EVENTS_SCHEMA), ("requests.parquet", REQUESTS_SCHEMA)):
        files = [part / name for part in parts]
        replace_visible(out / name, files[0].read_bytes() if len(files) == 1 else joined_bytes(schema, files))
    where = "the cell's document"
    cells = [
        parse_json(
            (part / "cell.json").read_bytes(), what=where, where=str(part), remedy="remove the folder of this cell"
        )
        for part in parts
    ]
    document = run | {"model": plan.model, "sampling": plan.sampling, "cells": cells}
    replace_visible(out / "cells.json", canonical_bytes(document))
    return document
