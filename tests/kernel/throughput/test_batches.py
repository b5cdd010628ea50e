"""The interval of a cell's ratio resamples batches, on both arms together, with the draws of the law."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speed_cells import Stream, even, quantile, tables

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.throughput.batches import batch_spans, ratio_interval
from engcmp_assets.kernel.throughput.request_values import QUANTILES
from engcmp_assets.kernel.throughput.streams import stream_table
from engcmp_assets.kernel.uncertainty import Preset

PRESET = Preset(replicates=120, seed=20260929)


def arm(seed: int, batches: int, width: int = 2) -> list[Stream]:
    """Batches one after the other, of `width` streams with random times."""
    chance, found, at = random.Random(seed), [], 0
    for batch in range(batches):
        for place in range(width):
            first, gap = chance.randint(20, 90), chance.randint(3, 30)
            counts = [chance.randint(1, 3) for _ in range(chance.randint(8, 12))]
            found.append(even(f"{batch}-{place}", at, first, gap, counts, batch=batch))
        at += 700
    return found


def splitmix(seed: int) -> Iterator[int]:
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        z = seed
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


def draws(size: int) -> Iterator[list[int]]:
    stream = splitmix(PRESET.seed)
    for _ in range(PRESET.replicates):
        row: list[int] = []
        while len(row) < size:
            x = next(stream)
            if x >= (2**64 - size) % size:
                row.append(x % size)
        yield row


def aggregate(streams: list[Stream]) -> Callable[[list[int]], Fraction]:
    """Tokens over slots of the batches that are drawn: a slot ends where the next batch begins."""
    numbers = sorted({one.batch for one in streams})
    starts = [min(one.t0 for one in streams if one.batch == number) for number in numbers]
    ends = [*starts[1:], max(one.tokens[-1][0] for one in streams)]
    tokens = [sum(c for one in streams if one.batch == number for _, _, c in one.tokens) for number in numbers]

    def of(row: list[int]) -> Fraction:
        return Fraction(10**9 * sum(tokens[one] for one in row), sum(ends[one] - starts[one] for one in row))

    return of


def median_ttft(streams: list[Stream]) -> Callable[[list[int]], Fraction]:
    def of(row: list[int]) -> Fraction:
        times = [Fraction(s.tokens[0][0] - s.t0, 10**6) for batch in row for s in streams if s.batch == batch]
        found = quantile(times, Fraction(1, 2))
        assert found is not None
        return found

    return of


def streams(made: list[Stream]) -> pl.DataFrame:
    return stream_table(*tables(made))


@pytest.mark.parametrize(("measure", "of"), [("aggregate_tok_s", aggregate), ("ttft_median_ms", median_ttft)])
def test_the_interval_is_the_one_that_a_plain_bootstrap_gives(
    measure: str, of: Callable[[list[Stream]], Callable[[list[int]], Fraction]]
) -> None:
    candidate, baseline = arm(1, 9), arm(2, 9)
    upper, lower = of(candidate), of(baseline)
    ratios = [upper(row) / lower(row) for row in draws(9)]
    found = ratio_interval(streams(candidate), streams(baseline), measure, preset=PRESET)
    assert isinstance(found, Interval)
    assert "9 batches" in found.method and "seed 20260929" in found.method
    expected = [quantile(ratios, share) for share in (Fraction(1, 40), Fraction(39, 40))]
    assert all(
        math.isclose(a, float(b or 0), rel_tol=1e-12) for a, b in zip((found.low, found.high), expected, strict=True)
    )


def test_under_eight_batches_there_is_none_and_the_reason_counts_them() -> None:
    found = ratio_interval(streams(arm(1, 7)), streams(arm(2, 7)), "aggregate_tok_s", preset=PRESET)
    assert found == Missing("7 batches have a value on both arms: an interval needs at least 8")
    # Requests are no batches: 16 of them in one batch are one observation.
    one = ratio_interval(streams(arm(1, 1, 16)), streams(arm(2, 1, 16)), "decode_tok_s", preset=PRESET)
    assert one == Missing("1 batch has a value on both arms: an interval needs at least 8")


def test_a_batch_that_one_arm_lacks_is_no_batch_of_the_pair() -> None:
    found = ratio_interval(streams(arm(1, 9)), streams(arm(2, 12)), "decode_tok_s", preset=PRESET)
    assert isinstance(found, Interval) and "9 batches" in found.method


def test_an_arm_against_itself_reads_exactly_one() -> None:
    same = streams(arm(3, 10))
    for measure in ("aggregate_tok_s", "ttft_p90_ms", "decode_first1_tok_s"):
        found = ratio_interval(same, same, measure, preset=PRESET)
        assert isinstance(found, Interval) and (found.low, found.high) == (1, 1)


def test_a_maximum_and_a_share_are_not_resampled() -> None:
    same = streams(arm(3, 10))
    assert isinstance(ratio_interval(same, same, "ttft_max_ms", preset=PRESET), Missing)
    assert isinstance(ratio_interval(same, same, "chars_per_token", preset=PRESET), Missing)


def test_batches_that_all_decode_at_once_give_an_interval_of_the_steady_rate() -> None:
    candidate, baseline = streams(arm(4, 12)), streams(arm(5, 12))
    steady = [int((batch_spans(side.filter("ok"))["steady_ns"] > 0).sum()) for side in (candidate, baseline)]
    assert min(steady) >= 8
    found = ratio_interval(candidate, baseline, "aggregate_steady_tok_s", preset=PRESET)
    assert isinstance(found, Interval) and found.low < found.high


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(sorted(name for name, (_, share) in QUANTILES.items() if share < 1)))
def test_the_order_of_requests_does_not_change_an_interval(seed: int, measure: str) -> None:
    made, chance = arm(seed, 8), random.Random(seed)
    mixed = [*made]
    chance.shuffle(mixed)
    other = streams(arm(seed + 1, 8))
    assert ratio_interval(streams(mixed), other, measure, preset=PRESET) == ratio_interval(
        streams(made), other, measure, preset=PRESET
    )


def test_slots_of_a_run_add_up_to_its_wall_time_also_where_batches_overlap() -> None:
    made = [*arm(6, 3), replace(even("x", 900, 10, 900, [1, 1, 1]), batch=1)]
    spans = batch_spans(streams(made).filter("ok"))
    start, end = min(one.t0 for one in made), max(one.tokens[-1][0] for one in made)
    assert spans["slot_ns"].sum() == end - start
    beyond = spans.filter(pl.col("batch") == 1)
    assert beyond["wall_ns"][0] > beyond["slot_ns"][0]
