"""Overlap of decode with other streams' prefill, and how much of a difference in aggregate is prefill."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speed_cells import Stream, cells, even, tables

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.throughput.batches import batch_spans
from engcmp_assets.kernel.throughput.scheduling import (
    BINS,
    AggregateParts,
    aggregate_parts,
    decode_by_overlap,
    overlap_shares,
)
from engcmp_assets.kernel.throughput.streams import stream_table

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda one: (one[0], sum(one))), max_size=8)
WINDOWS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30)).map(lambda one: (one[0], sum(one))), min_size=1, max_size=8
)


@settings(max_examples=300, deadline=None)
@given(SPANS, WINDOWS)
def test_a_share_is_the_instants_of_the_window_that_some_span_covers(
    spans: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    first, last = (np.array([window[side] for window in windows], dtype=np.int64) for side in (0, 1))
    found = overlap_shares(start, end, first, last)
    for share, (since, until) in zip(found, windows, strict=True):
        inside = sum(any(a <= instant < b for a, b in spans) for instant in range(since, until))
        assert share == float(Fraction(inside, until - since))


def spans(streams: list[Stream]) -> pl.DataFrame:
    return batch_spans(stream_table(*tables(streams)).filter("ok"))


def parts(candidate: list[Stream], baseline: list[Stream]) -> AggregateParts:
    found = aggregate_parts(spans(candidate), spans(baseline))
    assert isinstance(found, AggregateParts)
    return found


def test_a_difference_of_first_tokens_alone_is_all_prefill() -> None:
    found = parts([even("a", 0, 100, 10, [1] * 11)], [even("a", 0, 200, 10, [1] * 11)])
    assert found.prefill_part == 1
    assert found.rest_ms == 0 and found.total_ms == pytest.approx(-100 / 11 * 1000)
    assert found.ratio == 1.5 and found.ratio_of_rest == 1


def test_a_difference_of_decode_alone_is_none_of_it_prefill() -> None:
    found = parts([even("a", 0, 100, 10, [1] * 11)], [even("a", 0, 100, 20, [1] * 11)])
    assert found.prefill_part == 0 and found.ratio_of_rest == 2
    assert found.ratio == 1.5


def test_parts_that_pull_apart_are_shown_as_such() -> None:
    found = parts([even("a", 0, 100, 20, [1] * 11)], [even("a", 0, 250, 10, [1] * 11)])
    assert isinstance(found.prefill_part, float) and found.prefill_part > 1
    assert found.ratio > 1 and isinstance(found.ratio_of_rest, float) and found.ratio_of_rest < 1


@settings(max_examples=60, deadline=None)
@given(cells(), cells())
def test_the_two_parts_add_up_and_give_the_ratio_of_the_aggregates(one: list[Stream], other: list[Stream]) -> None:
    sides = [spans(one), spans(other)]
    if not all(side["slot_ns"].sum() for side in sides):
        return
    found = parts(one, other)
    assert math.isclose(found.total_ms, found.prefill_ms + found.rest_ms, rel_tol=1e-9, abs_tol=1e-6)
    rates = [side["n"].sum() / side["slot_ns"].sum() for side in sides]
    assert math.isclose(found.ratio, rates[0] / rates[1], rel_tol=1e-12)


def test_a_cell_without_requests_and_two_equal_ones_have_no_part() -> None:
    same = [even("a", 0, 100, 10, [1] * 11)]
    assert parts(same, same).prefill_part == Missing("the two aggregates are the same")
    assert isinstance(aggregate_parts(spans([]), spans(same)), Missing)
    assert parts([even("a", 0, 100, 10, [1])], same).ratio_of_rest == Missing("no time follows the last first token")


def test_decode_against_overlap_puts_each_stream_in_one_bin() -> None:
    table = pl.DataFrame(
        {"overlap": [0.0, 0.049, 0.05, 0.5, 0.999, 1.0, None], "decode": [10.0, 30.0, 9.0, 8.0, 4.0, 2.0, None]}
    )
    found = decode_by_overlap(table)
    assert [(one.low, one.high) for one in found] == list(itertools.pairwise(BINS))
    assert [one.streams for one in found] == [2, 1, 0, 1, 2]
    assert [one.decode_tok_s for one in found] == [20.0, 9.0, Missing("no stream lies in it"), 8.0, 3.0]


def test_two_engines_that_differ_only_in_order_decode_alike_where_nothing_lies_beside() -> None:
    """One starts each prompt at once, between the others' decode; the other reads all prompts first."""
    mixed = [even("a", 0, 100, 20, [1] * 20), even("b", 0, 400, 10, [1] * 20)]
    ordered = [even("a", 0, 200, 10, [1] * 20), even("b", 0, 200, 10, [1] * 20)]
    clean = [decode_by_overlap(stream_table(*tables(side)))[0].decode_tok_s for side in (mixed, ordered)]
    assert clean == [100.0, 100.0]
    median = [float(stream_table(*tables(side))["decode"].median() or 0) for side in (mixed, ordered)]
    assert median == [75.0, 100.0]
