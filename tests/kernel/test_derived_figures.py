"""Ratios and shares of several means: values by hand, intervals by draws that are counted one by one, and reasons for none."""

from __future__ import annotations

import numpy as np
import pytest

from engcmp_assets.kernel.derived_figures import DerivedFigure, gap_closed, ratio_of_means, relative_difference
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_assets.kernel.uncertainty import Preset, population_mean
from engcmp_resources.errors import EngcmpError

PRESET = Preset(400, 11)
CLUSTERS = [f"c{number:02d}" for number in range(10) for _ in range(number % 3 + 1)]


def values(seed: int, mean: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, len(CLUSTERS)) * mean


def ends(found: DerivedFigure) -> list[float]:
    assert isinstance(found.interval, Interval)
    return [found.interval.low, found.interval.high]


def by_hand(statistic, *columns):
    """Every replicate as a list of rows, the statistic of their plain means, and type-7 quantiles of these."""
    names = sorted(set(CLUSTERS))
    rows = {name: [row for row, own in enumerate(CLUSTERS) if own == name] for name in names}
    found = []
    for draw in cluster_draws(len(names), PRESET.replicates, PRESET.seed):
        chosen = [row for number in draw for row in rows[names[number]]]
        found.append(statistic(*(np.mean(column[chosen]) for column in columns)))
    return np.quantile(found, [0.025, 0.975]).tolist()


def test_each_figure_resamples_its_means_together() -> None:
    b, c, s = values(1), values(2, 2.0), values(3, 1.25)
    cases = [
        (ratio_of_means(c, b, CLUSTERS, preset=PRESET), lambda c, b: c / b, (c, b)),
        (relative_difference(c, b, CLUSTERS, preset=PRESET), lambda c, b: (c - b) / b, (c, b)),
        (
            gap_closed(b, c, s, CLUSTERS, gap_verdict="resolved", preset=PRESET),
            lambda b, c, s: 1 - (s - b) / (c - b),
            (b, c, s),
        ),
    ]
    for found, statistic, columns in cases:
        assert found.value == pytest.approx(statistic(*(np.mean(one) for one in columns)), rel=1e-12)
        assert ends(found) == pytest.approx(by_hand(statistic, *columns), rel=1e-12)
        assert ends(found)[0] < found.value < ends(found)[1]


def test_an_arm_that_is_always_twice_as_far_has_no_spread() -> None:
    b = values(1)
    assert ends(ratio_of_means(2 * b, b, CLUSTERS, preset=PRESET)) == [2.0, 2.0]
    assert ends(relative_difference(2 * b, b, CLUSTERS, preset=PRESET)) == [1.0, 1.0]


def test_a_setting_closes_the_gap_from_nothing_to_all_of_it() -> None:
    b, c = values(1), values(2, 3.0)
    for setting, share in ((c, 0.0), (b, 1.0), (b + 0.25 * (c - b), 0.75), (c + (c - b), -1.0)):
        found = gap_closed(b, c, setting, CLUSTERS, gap_verdict="resolved", preset=PRESET)
        assert found.value == pytest.approx(share, abs=1e-12)
        assert ends(found) == pytest.approx([share, share], abs=1e-12)


@pytest.mark.parametrize("word", ["not resolved", "baseline-dependent"])
def test_of_a_gap_that_may_be_none_no_share_is_given(word: str) -> None:
    found = gap_closed(values(1), values(2, 3.0), values(3), CLUSTERS, gap_verdict=word, preset=PRESET)
    assert isinstance(found.value, Missing) and word in found.value.reason
    assert isinstance(found.interval, Missing)


def test_what_has_no_value_or_no_interval_has_a_reason() -> None:
    b, zero = values(1), np.zeros(len(CLUSTERS))
    none = ratio_of_means(b, zero, CLUSTERS, preset=PRESET)
    assert isinstance(none.value, Missing) and "is 0" in none.value.reason
    rarely = zero.copy()
    rarely[0] = 1.0  # a resample without the first cluster has a mean of 0
    found = ratio_of_means(b, rarely, CLUSTERS, preset=PRESET)
    assert (
        isinstance(found.value, float) and isinstance(found.interval, Missing) and "resamples" in found.interval.reason
    )
    few = ratio_of_means(b[:6], b[:6], CLUSTERS[:6], preset=PRESET)
    assert few.value == 1.0 and isinstance(few.interval, Missing) and "needs at least 8" in few.interval.reason
    short = ratio_of_means(b, b, CLUSTERS, preset=Preset(20, 1))
    assert isinstance(short.interval, Missing) and "20 replicates" in short.interval.reason
    empty = relative_difference([], [], [], preset=PRESET)
    assert isinstance(empty.value, Missing) and "no row" in empty.value.reason


def test_the_draws_are_those_of_every_other_interval() -> None:
    b = values(1)
    mean = population_mean(b, CLUSTERS, preset=PRESET)
    assert isinstance(mean.interval, Interval)
    assert ends(ratio_of_means(b, np.ones(len(b)), CLUSTERS, preset=PRESET)) == pytest.approx(
        [mean.interval.low, mean.interval.high], rel=1e-13
    )


def test_values_that_do_not_pair_up_or_are_no_numbers_are_refused() -> None:
    with pytest.raises(EngcmpError):
        ratio_of_means([1.0, 2.0], [1.0], ["a"], preset=PRESET)
    with pytest.raises(EngcmpError):
        ratio_of_means([np.nan], [1.0], ["a"], preset=PRESET)
