"""How an engine orders prefill and decode, and how much of a difference in speed that is (MEASURES section 6)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing

if TYPE_CHECKING:
    import polars as pl

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

CLEAN_BELOW = 0.05  # a stream's decode is clean where under this share of it overlaps other streams' prefill
BINS = (0.0, CLEAN_BELOW, 0.25, 0.5, 0.75, 1.0)


def overlap_shares(prefill_from: Int64, prefill_to: Int64, first: Int64, last: Int64) -> Float64:
    """The share of each decode window [first, last] that lies in the union of the prefill spans, float64 [windows], 0 to 1.

    `prefill_from` and `prefill_to` [streams] and the windows [windows] are readings of one clock in ns; a window must be longer than 0.
    """
    order = np.argsort(prefill_from, kind="stable")
    start, end = prefill_from[order].astype(np.int64), np.maximum.accumulate(prefill_to[order].astype(np.int64))
    # A span adds what reaches beyond all spans before it, so that spans that overlap count once.
    before = np.concatenate([start[:1], end[:-1]])
    start = np.maximum(start, before)
    lengths = np.maximum(end - start, 0)
    total = np.concatenate([[0], np.cumsum(lengths)])

    def covered_until(t: Int64) -> Int64:
        number = np.searchsorted(start, t, side="right")
        within = np.where(number > 0, np.clip(t - start[number - 1], 0, lengths[number - 1]), 0)
        covered: Int64 = total[np.maximum(number - 1, 0)] + within
        return covered

    if not len(start):
        return np.zeros(len(first))
    shares: Float64 = (covered_until(last) - covered_until(first)) / (last - first)
    return shares


@dataclass(frozen=True, slots=True)
class OverlapBin:
    """Streams whose overlap with other streams' prefill is from `low` up to `high` (the last bin holds 1), and their median decode."""

    low: float
    high: float
    streams: int
    decode_tok_s: float | Missing


def decode_by_overlap(streams: pl.DataFrame, decode: str = "decode") -> tuple[OverlapBin, ...]:
    """Decode rate against overlap of a stream table: the median rate of each bin of BINS. `decode` may be `decode_first1`."""
    known = streams.select("overlap", decode).drop_nulls()
    overlap, rate = known["overlap"].to_numpy(), known[decode].to_numpy()
    found = []
    for low, high in itertools.pairwise(BINS):
        rates = rate[(overlap >= low) & ((overlap <= high) if high == 1 else (overlap < high))]
        median = float(np.median(rates)) if len(rates) else Missing("no stream lies in it")
        found.append(OverlapBin(low, high, len(rates), median))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class AggregateParts:
    """Why two arms' aggregate rates differ in a cell: time per 1,000 tokens, before the last first token and after it.

    `prefill_ms` and `rest_ms` are candidate - baseline and add up to `total_ms`. `prefill_part` is prefill_ms / total_ms: near 1 the
    difference is one of prefill; below 0 or above 1 the two parts pull in opposite directions. `ratio` is candidate / baseline of the
    aggregate rate, and `ratio_of_rest` the same of the time after the last first token alone.
    """

    total_ms: float
    prefill_ms: float
    rest_ms: float
    prefill_part: float | Missing
    ratio: float
    ratio_of_rest: float | Missing


def aggregate_parts(candidate: pl.DataFrame, baseline: pl.DataFrame) -> AggregateParts | Missing:
    """The parts of a difference in aggregate from both arms' batch spans (`n`, `slot_ns`, `prefill_ns`) of one cell.

    Streams that already decode before the last first token are in the first part: with one stream it is prefill and nothing else.
    """
    if not all(side[name].sum() for side in (candidate, baseline) for name in ("n", "slot_ns")):
        return Missing("an arm has no completed request in the cell, or its tokens came in no time")
    (n, whole, prefill), (other_n, other_whole, other_prefill) = (
        tuple(int(side[name].sum()) for name in ("n", "slot_ns", "prefill_ns")) for side in (candidate, baseline)
    )
    # In whole numbers over one denominator, so that the parts add up exactly.
    both = n * other_n * 1000  # ns a token are 1e-3 ms a thousand
    total = whole * other_n - other_whole * n
    first = prefill * other_n - other_prefill * n
    rest, other_rest = whole - prefill, other_whole - other_prefill
    return AggregateParts(
        total_ms=total / both,
        prefill_ms=first / both,
        rest_ms=(total - first) / both,
        prefill_part=first / total if total else Missing("the two aggregates are the same"),
        ratio=other_whole * n / (whole * other_n),
        ratio_of_rest=other_rest * n / (rest * other_n)
        if rest > 0
        else Missing("no time follows the last first token"),
    )
