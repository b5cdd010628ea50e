"""The median under a cap: capped replies are longer than any finished one, and the interval is exact."""

import numpy as np
import pytest
from scipy import stats

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.reply_lengths.medians import capped_median
from engcmp_assets.kernel.reply_lengths.records import ReplyLength


def lengths(*tokens: int, capped: int = 0, cap: int = 1000) -> list[ReplyLength]:
    found = [ReplyLength(f"p{number}", one, "finished") for number, one in enumerate(tokens)]
    return found + [ReplyLength(f"c{number}", cap, "capped") for number in range(capped)]


def test_a_capped_reply_counts_as_longer_than_any_finished_one() -> None:
    assert capped_median(lengths(10, 30, 20)).value == 20
    assert capped_median(lengths(10, 30, 20, capped=1)).value == 25
    assert capped_median(lengths(10, 30, 20, capped=2)).value == 30
    found = capped_median(lengths(10, 30, 20, capped=3))
    assert isinstance(found.value, Missing) and "at least 1,000 tokens" in found.value.reason
    assert (found.replies, found.capped) == (6, 3)


def test_looped_failed_and_empty_replies_are_left_out_and_counted() -> None:
    other = [ReplyLength("a", 1000, "looped"), ReplyLength("b", 0, "empty"), ReplyLength("c", 5, "error")]
    found = capped_median([*lengths(10, 20, 30), *other])
    assert (found.value, found.replies, dict(found.left_out)) == (20, 3, {"looped": 1, "empty": 1, "error": 1})
    assert isinstance(capped_median(other).value, Missing)


@pytest.mark.parametrize("size", [6, 9, 20, 51])
def test_the_interval_lies_between_the_order_statistics_of_the_binomial_law(size: int) -> None:
    found = capped_median(lengths(*range(1, size + 1))).interval
    assert isinstance(found, Interval)
    lower = int(found.low)
    assert found.high == size + 1 - lower
    assert stats.binom.cdf(lower - 1, size, 0.5) <= 0.025 < stats.binom.cdf(lower, size, 0.5)


def test_the_interval_covers_the_true_median_at_least_as_often_as_it_says() -> None:
    chance = np.random.default_rng(5)
    drawn = np.exp(chance.normal(5, 0.8, size=(600, 15))).astype(int) + 1
    covered = 0
    for row in drawn:
        found = capped_median(lengths(*row.tolist(), cap=10**6)).interval
        assert isinstance(found, Interval)
        covered += found.low <= np.exp(5) + 0.5 <= found.high
    assert covered / len(drawn) > 0.94


def test_an_end_beyond_the_cap_and_too_few_replies_are_reasons() -> None:
    beyond, few = capped_median(lengths(*range(1, 9), capped=4)), capped_median(lengths(1, 2, 3, 4, 5))
    assert beyond.value == 6.5
    assert isinstance(beyond.interval, Missing) and "bounded below: from 3 tokens" in beyond.interval.reason
    assert isinstance(few.interval, Missing) and "too few" in few.interval.reason
