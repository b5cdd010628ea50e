"""Cells for the tests of throughput: made by hand or at random, and every figure of them recomputed slowly, with exact fractions."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import polars as pl
from hypothesis import strategies as st

MS = 1_000_000
KINDS = ("role", "reasoning", "answer", "tool_call", "empty", "usage", "finish", "comment")


@dataclass(frozen=True)
class Stream:
    """One request: when it was sent, and its events (t_ns, kind, tokens) in order."""

    name: str
    t0: int
    events: tuple[tuple[int, str, int], ...]
    batch: int | None = None
    repeat: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> list[tuple[int, str, int]]:
        return [event for event in self.events if event[2] > 0]


def tables(streams: Sequence[Stream]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """events.parquet and requests.parquet of the streams."""
    events = [(one.name, *event) for one in streams for event in one.events]
    rows = [_row(one) for one in streams]
    schema = {"request_id": pl.String, "t_ns": pl.Int64, "kind": pl.String, "tokens": pl.Int32}
    return pl.DataFrame(events, schema=schema, orient="row"), pl.DataFrame(rows, schema=_SCHEMA)


_SCHEMA = {
    "request_id": pl.String, "cell_id": pl.String, "t0_ns": pl.Int64, "scheduled_at_ns": pl.Int64, "ttft_ns": pl.Int64,
    "ttfa_ns": pl.Int64, "last_at_ns": pl.Int64, "done_at_ns": pl.Int64, "n_tokens": pl.Int64, "n_first_tokens": pl.Int64,
    "usage_completion_tokens": pl.Int64, "usage_prompt_tokens": pl.Int64, "cached_tokens": pl.Int64, "finish_reason": pl.String,
    "status": pl.String, "cause": pl.String, "flags": pl.List(pl.String), "repeat": pl.Int64, "batch": pl.Int64,
    "characters": pl.Int64, "counted_by": pl.String, "max_tokens": pl.Int64, "expected_prompt_tokens": pl.Int64,
}  # fmt: skip


def _row(one: Stream) -> dict[str, Any]:
    tokens, end = one.tokens, one.events[-1][0] if one.events else one.t0
    answers = [t for t, kind, _ in tokens if kind == "answer"]
    n = sum(count for _, _, count in tokens)
    row = {
        "request_id": one.name, "cell_id": "c", "t0_ns": one.t0, "scheduled_at_ns": None, "done_at_ns": end,
        "ttft_ns": tokens[0][0] - one.t0 if tokens else None, "ttfa_ns": answers[0] - one.t0 if answers else None,
        "last_at_ns": tokens[-1][0] if tokens else None, "n_tokens": n, "n_first_tokens": tokens[0][2] if tokens else None,
        "usage_completion_tokens": n, "usage_prompt_tokens": 100, "cached_tokens": None, "finish_reason": "length",
        "status": "ok", "cause": None, "flags": [], "repeat": one.repeat, "batch": one.batch, "characters": 4 * n,
        "counted_by": "ids", "max_tokens": None, "expected_prompt_tokens": None,
    }  # fmt: skip
    return row | one.extra


def even(name: str, t0: int, first: int, gap: int, counts: Sequence[int], **more: Any) -> Stream:
    """A stream whose token events come at t0 + first and every `gap` after it, all of them answer text (times in ms)."""
    start = t0 * MS
    at = [start + (first + number * gap) * MS for number in range(len(counts))]
    events = (
        (start, "role", 0),
        *((t, "answer", count) for t, count in zip(at, counts, strict=True)),
        (at[-1], "done", 0),
    )
    return Stream(name, start, events, **more)


@st.composite
def cells(draw: st.DrawFn, least: int = 1) -> list[Stream]:
    """One to six streams of a cell in up to three batches, with all kinds of events, several tokens an event, equal stamps."""
    streams = []
    origin = draw(st.integers(0, 10**12))
    for number in range(draw(st.integers(least, 6))):
        batch = draw(st.integers(0, 2))
        t = t0 = origin + batch * draw(st.sampled_from([0, 10**6, 10**9])) + draw(st.integers(0, 10**5))
        events = []
        for _ in range(draw(st.integers(0, 12))):
            t += draw(st.sampled_from([0, 1, 7, 1000, 10**5, 10**7]))
            kind = draw(st.sampled_from(KINDS))
            carries = kind in ("reasoning", "answer", "tool_call")
            events.append((t, kind, draw(st.integers(0, 5)) if carries else 0))
        t += draw(st.integers(0, 10**6))
        events += [(t, draw(st.sampled_from(["reasoning", "answer"])), draw(st.integers(1, 5))), (t, "done", 0)]
        streams.append(Stream(f"r{number}", t0, tuple(events), batch=batch))
    return streams


def shifted(streams: Sequence[Stream], by: int) -> list[Stream]:
    """The same streams on a clock that reads `by` ns more."""
    return [
        replace(one, t0=one.t0 + by, events=tuple((t + by, kind, count) for t, kind, count in one.events))
        for one in streams
    ]


def plain_figures(streams: Sequence[Stream], concurrency: int = 4) -> dict[str, Fraction | None]:
    """Every figure that the streams alone give, by the law's words and nothing else: exact fractions, None where there is none."""
    every = [_plain_stream(one, streams) for one in streams]
    found: dict[str, Fraction | None] = {}
    for name, key in (("ttft", "ttft"), ("ttfa", "ttfa")):
        values = [one[key] for one in every if one[key] is not None]
        for word, share in (("median", Fraction(1, 2)), ("p90", Fraction(9, 10)), ("max", Fraction(1))):
            found[f"{name}_{word}_ms"] = quantile(values, share)
    half = Fraction(1, 2)
    found["e2e_median_ms"] = quantile([one["e2e"] for one in every], half)
    for name in ("decode", "decode_first1"):
        moving = [one for one in every if one[name] is not None]
        found[f"{name}_tok_s"] = quantile([one[name] for one in moving], half)
        clean = [one[name] for one in moving if one["overlap"] < Fraction(5, 100)]
        found[f"clean_{name}_tok_s"] = quantile(clean, half)
    found["overlap_share"] = quantile([one["overlap"] for one in every if one["overlap"] is not None], half)
    found["prefill_tok_s"] = None
    n = sum(one["n"] for one in every)
    found["chars_per_token"] = Fraction(4)
    found["reasoning_share"] = Fraction(
        sum(c for one in streams for _, kind, c in one.tokens if kind == "reasoning"), n
    )
    left = sum(any(kind in ("answer", "tool_call") for _, kind, _ in one.tokens) for one in streams)
    found["left_reasoning_share"] = Fraction(left, len(streams))
    found["tokens_per_update"] = Fraction(n, sum(len(one.tokens) for one in streams))
    return found | _plain_cell(streams, n) | {"update_gap_median_ms": _plain_gap(streams)}


def _plain_gap(streams: Sequence[Stream]) -> Fraction | None:
    gaps = [
        Fraction(later[0] - earlier[0], MS)
        for one in streams
        if len(one.tokens) >= 8
        for earlier, later in itertools.pairwise(one.tokens)
    ]
    return statistics.median(gaps) if gaps else None


def _plain_stream(one: Stream, streams: Sequence[Stream]) -> dict[str, Any]:
    first, last = one.tokens[0][0], one.tokens[-1][0]
    n, n_first = sum(count for _, _, count in one.tokens), one.tokens[0][2]
    answers = [t for t, kind, _ in one.tokens if kind == "answer"]
    window = last - first
    return {
        "n": n,
        "ttft": Fraction(first - one.t0, MS),
        "ttfa": Fraction(answers[0] - one.t0, MS) if answers else None,
        "e2e": Fraction(last - one.t0, MS),
        "decode": Fraction((n - n_first) * 10**9, window) if window else None,
        "decode_first1": Fraction((n - 1) * 10**9, window) if window else None,
        "overlap": Fraction(_covered(one, streams), window) if window else None,
    }


def _covered(one: Stream, streams: Sequence[Stream]) -> int:
    """The ns of the decode window of `one` in which another stream had been sent and had no token: each piece between two stamps."""
    first, last = one.tokens[0][0], one.tokens[-1][0]
    spans = [(other.t0, other.tokens[0][0]) for other in streams if other is not one]
    stamps = sorted({first, last, *(t for span in spans for t in span if first < t < last)})
    return sum(
        end - start
        for start, end in itertools.pairwise(stamps)
        if any(since <= start and end <= until for since, until in spans)
    )


def _plain_cell(streams: Sequence[Stream], n: int) -> dict[str, Fraction | None]:
    start = min(one.t0 for one in streams)
    end = max(one.tokens[-1][0] for one in streams)
    batches = [
        [one for one in streams if one.batch == batch] for batch in sorted(Counter(one.batch for one in streams))
    ]
    prefill = wall = steady = span = 0
    for batch in batches:
        sent, all_first = min(one.t0 for one in batch), max(one.tokens[0][0] for one in batch)
        prefill += all_first - sent
        wall += max(one.tokens[-1][0] for one in batch) - sent
        first_end = min(one.tokens[-1][0] for one in batch)
        if first_end > all_first:
            span += first_end - all_first
            steady += sum(count for one in batch for t, _, count in one.tokens if all_first < t <= first_end)
    return {
        "aggregate_tok_s": Fraction(n * 10**9, end - start) if end > start else None,
        "prefill_share": Fraction(prefill, wall) if wall else None,
        "aggregate_steady_tok_s": Fraction(steady * 10**9, span) if span else None,
    }


def quantile(values: Sequence[Fraction], share: Fraction) -> Fraction | None:
    """Type 7: between the two values that the place lies between, by linear interpolation."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
