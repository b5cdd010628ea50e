"""Measuring a plan cell by cell: each finished cell is on disk before the next one starts, so that an end of any kind keeps it."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.throughput.cell_documents import cell_document
from engcmp_assets.kernel.throughput.event_tables import (
    events_bytes,
    events_of,
    requests_bytes,
)
from engcmp_assets.kernel.throughput.plans import (
    Plan,
    PlanCell,
    PlanRequest,
    Wishes,
    cell_warm_up,
    request_body,
    short_request,
)
from engcmp_assets.kernel.throughput.recounts import RECOUNTED, Recount, recounted
from engcmp_assets.kernel.throughput.requests import request_records
from engcmp_assets.kernel.throughput.stream_arrays import request_columns
from engcmp_assets.kernel.throughput.stream_events import reply_texts
from engcmp_assets.throughput_events.cell_folders import (
    EARLIER,
    alone,
    assembled,
    keep,
    opened,
    part_of,
    prepared,
    set_aside,
)
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.calibration import Calibration, calibrate
from engcmp_resources.load.control import Control, EngineState, difference, granted
from engcmp_resources.load.driving import Driven, Pace, Wire, drive
from engcmp_resources.load.recounting import Recounter, recounter
from engcmp_resources.load.streams import Address, Deadlines, Exchange
from engcmp_resources.secrecy import hidden_secret

_IDLE_WAIT_S = 5.0
_PATIENT = Deadlines()
_CALIBRATIONS, _CALM_S = 10, 2.0  # of which one must be passed in a study, and the pause after one that was not
_REHEARSED = 2000  # token events: the memory that they take is asked for before something is timed


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
    tokenizer: Callable[[str], Sequence[int]] | None = None  # the checkpoint's own, where the server's cannot be asked


@dataclass(frozen=True, slots=True)
class _Session:
    """What holds for all cells that one call measures."""

    plan: Plan
    target: Target
    control: Control
    wishes: Mapping[str, Wishes]
    number: int
    calibration: Calibration | None
    recounter: Recounter | str
    say: Say


def measure_plan(
    plan: Plan,
    target: Target,
    out: Path,
    *,
    calibrated: bool,
    say: Say,
    again: Collection[str] = (),
    again_failed: bool = False,
) -> dict[str, Any]:
    """Measure the cells that `out` lacks and write events.parquet, requests.parquet and cells.json of all; gives the last as JSON.

    The cells `again`, and with `again_failed` those in which a request failed, are measured again; what was measured stays in
    OUT/earlier. Raises EngcmpError where `out` holds another plan's or server's cells or another process writes there, and where the
    server does not answer, refuses plain requests or is not idle.
    """
    with alone(out):
        run = opened(plan, target.named or str(target.address), out)
        for name in set_aside(plan, out, again, failed=again_failed):
            say(f"cell {name} is measured again; what was measured before is kept in {out / EARLIER}")
        missing = [(number, cell) for number, cell in enumerate(plan.cells) if not part_of(out, number).is_dir()]
        if missing:
            _measure(plan, target, out, run, missing, calibrated=calibrated, say=say)
        return assembled(plan, out, run)


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
    counts = recounter(control, plan.model, target.tokenizer)
    session = _Session(plan, target, control, wishes, len(run["sessions"]), calibration, counts, say)
    found = {"missing": "it was left out"} if calibration is None else calibration.as_json()
    run["sessions"].append(
        {"began_utc": datetime.now(UTC).isoformat(timespec="seconds"), "calibration": found} | told | dict(target.note)
    )
    replace_visible(out / "run.json", canonical_bytes(run))
    _rehearse(plan, target)
    last = None
    with _nothing_old_collected():
        for number, cell in missing:
            prepared(out)
            before = cell_warm_up(cell, target.warm_up, last=last)
            warm = None if before is None else _warmed(session, cell, before, out)
            last = cell.concurrency
            target.unchanged()
            kept = _measured(session, cell, f"cell {number + 1} of {len(plan.cells)}", warm, out)
            target.unchanged()
            keep(out, number, *kept)


@contextlib.contextmanager
def _nothing_old_collected() -> Iterator[None]:
    """The collection before each cell looks only at what came since: among all that libraries have loaded it takes 10 ms and more."""
    gc.collect()
    own = not gc.get_freeze_count()  # else this process keeps them out already, and goes on so
    if own:
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()


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


def _warmed(session: _Session, cell: PlanCell, requests: tuple[PlanRequest, ...], folder: Path) -> dict[str, Any]:
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
    # What stated nothing before has nothing to be set against.
    after = before if before.why is not None else session.control.settled(_IDLE_WAIT_S)
    records, counted = [], list[Recount]()
    for request, exchange in zip(cell.requests, driven.exchanges, strict=True):
        exchange.detail = _without_key(exchange.detail, session.target.key)
        one = request_records(session.plan, cell, request, exchange)
        one.row["detail"] = _without_key(one.row["detail"], session.target.key)
        if isinstance(session.recounter, Recounter) and one.row["status"] == "ok" and len(counted) < RECOUNTED:
            counts = [session.recounter.count(text) for text in reply_texts(exchange.content())]
            counted.append(Recount(one.row["request_id"], one.row["n_tokens"], counts))
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
    by = session.recounter.by if isinstance(session.recounter, Recounter) else Missing(session.recounter)
    document["recounted"] = recounted(counted, by)
    document |= {"flags": flags, "loop": loop, "repeat": cell.repeat, "session": session.number, "warmup": warm}
    return events_bytes(events), requests_bytes(rows), canonical_bytes(plain(document))


def _rehearse(plan: Plan, target: Target) -> None:
    """Use once what is used within and between cells: libraries load parts of themselves at their first use.

    Nothing is sent. The stream is long enough, and read often enough, that it has every figure.
    """
    drive(target.address, [], Pace(1), deadlines=target.deadlines)
    cell = plan.cells[0]
    chunk = b'data: {"choices":[{"delta":{"content":"a"},"token_ids":[1]}]}\n\n'
    body = bytearray(chunk * _REHEARSED + b"data: [DONE]\n\n")
    heard = Exchange(
        cell.requests[0].request_id, 1, t0_ns=1, done_at_ns=2 + _REHEARSED, http_status=200, end="complete", body=body
    )
    for number in range(1, _REHEARSED):
        heard.read_ends.append(number * len(chunk))
        heard.read_stamps.append(1 + number)
    heard.read_ends.append(len(body))
    heard.read_stamps.append(1 + _REHEARSED)
    one = request_records(plan, cell, cell.requests[0], heard)
    events, columns = events_of([one]), request_columns([one.row])
    document = cell_document(events, columns, {"cell_id": cell.cell_id, "concurrency": cell.concurrency})
    canonical_bytes(plain(document))
    events_bytes(events)
    requests_bytes([one.row])


def _engine(before: EngineState, after: EngineState) -> dict[str, Any]:
    why = before.why or after.why
    if why is not None:
        return {"missing": why}
    return difference(before, after) | {"before": dict(before.values), "after": dict(after.values)}


def _without_key(text: str, key: str | None) -> str:
    return text.replace(key, hidden_secret(key)) if key else text
