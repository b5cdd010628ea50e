"""What other clients stated of an exchange is what our reader, events and definitions give of it, on the stamps that they took.

`recorded/` was written by tests/benchmarks/record_peers.py, which says how. aiperf counts nanoseconds. guidellm reads a float of seconds
since 1970: two stamps of 0.24 us. It ends a request once its connection is free again, which is after `[DONE]`.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engcmp_assets.kernel.throughput.event_tables import events_bytes, events_of, requests_bytes
from engcmp_assets.kernel.throughput.peer_metrics import peer_metrics
from engcmp_assets.kernel.throughput.plans import parse_plan
from engcmp_assets.kernel.throughput.requests import request_records
from engcmp_resources.load.streams import Exchange

RECORDED = Path(__file__).parent / "recorded"
TOKENS = 24
NS_EACH_MS = 1e6


def recorded(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, *requests = (json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines())
    return head, requests


def heard(one: Mapping[str, Any]) -> Exchange:
    """The exchange as our client would have it, had it read each event when the other client did."""
    found = Exchange(
        one["request_id"], one["t0_ns"], t0_ns=one["t0_ns"], done_at_ns=one["end_ns"], http_status=200, end="complete"
    )
    found.content_type = "text/event-stream"
    for t_ns, text in one["events"]:
        found.body += f"{text}\n\n".encode()
        found.read_ends.append(len(found.body))
        found.read_stamps.append(t_ns)
    return found


def ours(requests: Sequence[Mapping[str, Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """events.parquet and requests.parquet of the exchange, read back from their bytes."""
    asked = [
        {
            "request_id": one["request_id"],
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": TOKENS,
            "seed": 1,
        }
        for one in requests
    ]
    text = json.dumps(
        {"model": "null", "cells": [{"cell_id": "c", "kind": "code", "concurrency": 2, "requests": asked}]}
    )
    plan = parse_plan(text.encode(), where="plan")
    (cell,) = plan.cells
    records = [
        request_records(plan, cell, request, heard(one)) for request, one in zip(cell.requests, requests, strict=True)
    ]
    files = events_bytes(events_of(records)), requests_bytes([one.row for one in records])
    return pl.read_parquet(io.BytesIO(files[0])), pl.read_parquet(io.BytesIO(files[1]))


def stated(requests: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    values = [one["stated"][name] for one in requests]
    return [each for one in values for each in one] if isinstance(values[0], list) else values


@pytest.mark.parametrize(("name", "within_ms"), [("aiperf", 1e-6), ("guidellm", 5e-4)])
def test_each_figure_that_a_client_stated_follows_from_its_stamps_by_our_definitions(
    name: str, within_ms: float
) -> None:
    head, requests = recorded(name)
    found = peer_metrics(*ours(requests))[head["client"]]
    assert set(found) == set(requests[0]["stated"]) and len(requests) == 6
    for metric, own in found.items():
        theirs = stated(requests, metric)
        unit = 1e3 if own["unit"] == "s" else 1.0
        gap = [one["end_ns"] - one["events"][-1][0] for one in requests]
        late = statistics.fmean(gap) / NS_EACH_MS if metric == "request_latency" and name == "guidellm" else 0.0
        assert own["n"] == len(theirs), metric
        assert unit * own["mean"] + late == pytest.approx(unit * statistics.fmean(theirs), rel=0, abs=within_ms), metric
        if not late:
            assert unit * own["median"] == pytest.approx(unit * statistics.median(theirs), rel=0, abs=within_ms), metric


def test_what_vllm_s_own_code_gives_of_that_exchange_our_definitions_give_too() -> None:
    head, _ = recorded("vllm")
    _, requests = recorded(head["exchange_of"])
    found = peer_metrics(*ours(requests))[head["client"]]
    assert set(found) == set(head["stated"])
    for metric, values in head["stated"].items():
        for statistic, value in values.items():
            assert found[metric][statistic] == pytest.approx(value, rel=0, abs=1e-6), (metric, statistic)


def test_guidellm_s_requests_end_when_its_connection_is_free_again() -> None:
    _, requests = recorded("guidellm")
    gaps_ms = [(one["end_ns"] - one["events"][-1][0]) / NS_EACH_MS for one in requests]
    assert all(one["events"][-1][1] == "data: [DONE]" for one in requests)
    assert min(gaps_ms) > 0 and statistics.median(gaps_ms) < 20, gaps_ms


@pytest.mark.parametrize("name", ["aiperf", "guidellm"])
def test_the_recorded_exchange_holds_what_definitions_differ_in(name: str) -> None:
    """Else a wrong definition would agree too."""
    _, requests = recorded(name)
    events, rows = ours(requests)
    assert {"role", "reasoning", "answer", "empty", "finish", "usage", "done"} <= set(events["kind"])
    assert set(rows["n_tokens"]) == {TOKENS} and set(rows["status"]) == {"ok"}
    assert events["tokens"].max() == 3
    metrics = peer_metrics(events, rows)
    first = [
        found["mean"]
        for peer in metrics.values()
        for metric, found in peer.items()
        if metric in ("ttft", "time_to_first_token")
    ]
    assert max(first) - min(first) > 30, "the role event is no token to two of three"


def test_nothing_of_the_machine_that_recorded_is_kept() -> None:
    for path in RECORDED.iterdir():
        head, *requests = (json.loads(line) for line in path.read_text().splitlines())
        assert set(head) <= {"client", "exchange_of", "stated"}
        assert all(set(one) == {"request_id", "t0_ns", "end_ns", "events", "stated"} for one in requests)
        assert all(one["t0_ns"] < 10**11 for one in requests), "no time of day"
