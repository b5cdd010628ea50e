"""What the tests of the load client share: a plan of a few requests, and one cell driven against a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engcmp_assets.kernel.throughput.plans import Plan, Wishes, request_body
from engcmp_assets.kernel.throughput.requests import RequestRecords, request_records
from engcmp_assets.kernel.throughput.stream_events import KINDS
from engcmp_resources.load.driving import Driven, Pace, Wire, drive
from engcmp_resources.load.streams import Address, Deadlines

MODEL = "sim/model"
QUICK = Deadlines(connect_s=5, first_byte_s=10, between_s=10, whole_s=30)


def plan_of(
    requests: int = 1, *, tokens: int = 12, sampling: dict[str, Any] | None = None, cell: dict[str, Any] | None = None,
    request: dict[str, Any] | None = None,
) -> Plan:  # fmt: skip
    """A plan of one cell. Each prompt is its own; what is given in `cell` and `request` is added to each."""
    asked = [
        {"request_id": f"r{number}", "max_tokens": tokens, "seed": number}
        | (
            {"messages": [{"role": "user", "content": f"Hello {number}."}]}
            if not set(request or {}) & {"prompt", "token_ids"}
            else {}
        )
        | (request or {})
        for number in range(requests)
    ]
    cells = [{"cell_id": "c", "kind": "code", "concurrency": 1, "requests": asked} | (cell or {})]
    return Plan.model_validate({"model": MODEL, "sampling": sampling or {}, "cells": cells})


def driven(
    url: str,
    plan: Plan,
    *,
    deadlines: Deadlines = QUICK,
    retries_429: int = 0,
    wishes: Wishes | None = None,
    key: str | None = None,
) -> tuple[Driven, list[RequestRecords]]:
    """The plan's first cell driven against a server, and the records of its requests."""
    cell, address = plan.cells[0], Address.parse(url)
    wires = [
        Wire(one.request_id, address.content(one.path, request_body(plan, one, wishes or Wishes()), key))
        for one in cell.requests
    ]
    pace = Pace(cell.concurrency, cell.rate_per_s, cell.arrival, cell.arrival_seed)
    done = drive(address, wires, pace, deadlines=deadlines, retries_429=retries_429)
    pairs = zip(cell.requests, done.exchanges, strict=True)
    return done, [request_records(plan, cell, one, exchange) for one, exchange in pairs]


def kinds(records: RequestRecords) -> list[str]:
    """The kinds of a request's events, by name."""

    return [KINDS[number] for number in records.kinds]


def only(records: Sequence[RequestRecords]) -> RequestRecords:
    (one,) = records
    return one
