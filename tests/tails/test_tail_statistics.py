"""Tails against planted values: quantiles, shares, the worst rows, and what is refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import plain
from engcmp_assets.tails.tail_statistics import TailRows, WorstRow, tail_statistics
from engcmp_resources.errors import EngcmpError

SHA = "0" * 64


def row(number, window="w", block="prose", bucket="0-2k"):
    return window, number, 1000 + number, block, bucket


def tails(values, rows=None):
    rows = [row(number) for number in range(len(values))] if rows is None else rows
    columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.array([])] * 5
    return tail_statistics(values, TailRows(*columns), row_file_sha256=SHA)


def test_the_numbers_zero_to_a_thousand_give_quantiles_that_can_be_read_off():
    found = tails(np.random.default_rng(0).permutation(1001) / 1000).overall
    assert found.rows == 1001
    assert found.mean_nats == pytest.approx(0.5, abs=1e-15)
    assert found.median_nats == pytest.approx(0.5, abs=1e-15)
    assert found.p90_nats == pytest.approx(0.9, abs=1e-15)
    assert found.p95_nats == pytest.approx(0.95, abs=1e-15)
    assert found.p99_nats == pytest.approx(0.99, abs=1e-15)
    assert found.p99_9_nats == pytest.approx(0.999, abs=1e-15)
    assert found.max_nats == 1.0
    assert found.share_above_0_1_nats == pytest.approx(900 / 1001, abs=1e-15)


def test_quantiles_interpolate_between_rows_as_type_7_does():
    # Two rows 0 and 1: the quantile of type 7 is the share itself.
    found = tails([0.0, 1.0]).overall
    assert (found.median_nats, found.p90_nats, found.p99_9_nats) == (0.5, pytest.approx(0.9), pytest.approx(0.999))


def test_a_share_counts_rows_strictly_above_its_limit():
    found = tails([0.1, 0.5, 1.0, 2.0, 2.5]).overall
    assert found.share_above_0_1_nats == 0.8
    assert found.share_above_0_5_nats == 0.6
    assert found.share_above_1_nats == 0.4
    assert found.share_above_2_nats == 0.2


@pytest.mark.parametrize(("rows", "worst"), [(1, 1), (99, 1), (100, 1), (101, 2), (200, 2), (201, 3)])
def test_the_worst_one_percent_is_rounded_up_and_is_at_least_one_row(rows, worst):
    found = tails([float(number) for number in range(rows)]).overall
    assert found.worst_1_percent_rows == worst
    assert found.worst_1_percent_mean_nats == pytest.approx(rows - 1 - (worst - 1) / 2)


def test_the_ten_worst_rows_are_named_with_ties_by_window_then_row():
    rows = [row(3, "b"), row(1, "b"), row(2, "a")] + [row(number, "z") for number in range(9)]
    found = tails([1.0, 1.0, 1.0] + [0.1 * number for number in range(9)], rows).overall
    assert found.worst_rows[:3] == (
        WorstRow("a", 2, 1002, 1.0),
        WorstRow("b", 1, 1001, 1.0),
        WorstRow("b", 3, 1003, 1.0),
    )
    assert len(found.worst_rows) == 10
    assert found.worst_rows[3].kl_nats == pytest.approx(0.8)


def test_blocks_and_buckets_have_their_own_tails():
    rows = [row(0, block="code", bucket="long"), row(1, block="prose", bucket="long"), row(2, block="code")]
    found = tails([1.0, 2.0, 4.0], rows)
    assert list(found.by_block) == ["code", "prose"]
    assert found.by_block["code"].mean_nats == 2.5
    assert found.by_block["prose"].max_nats == 2.0
    assert found.by_bucket["long"].rows == 2
    assert found.by_bucket["0-2k"].worst_rows == (WorstRow("w", 2, 1002, 4.0),)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 1.5, 3.0]), min_size=1, max_size=30), st.randoms())
def test_the_order_of_the_rows_changes_nothing(values, chance):
    pairs = [(value, row(number)) for number, value in enumerate(values)]
    mixed = list(pairs)
    chance.shuffle(mixed)
    assert tails(*zip(*mixed, strict=True)) == tails(*zip(*pairs, strict=True))


def test_the_tails_are_plain_json_and_name_their_row_file():
    found = json.loads(json.dumps(plain(tails([0.5, 0.25]))))
    assert found["row_file_sha256"] == SHA
    assert found["overall"]["worst_rows"][0] == {
        "window": "w",
        "position": 0,
        "next_token": 1000,
        "kl_nats": 0.5,
    }


def test_no_row_is_an_error_and_not_a_zero():
    with pytest.raises(EngcmpError, match="no row"):
        tails([])


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e-12])
def test_a_value_that_no_divergence_can_have_is_refused_and_located(value):
    with pytest.raises(EngcmpError, match="window w, row 1"):
        tails([0.0, value])


def test_values_without_their_rows_are_refused():
    with pytest.raises(EngcmpError, match="2 rows"):
        tails([0.0], [row(0), row(1)])
