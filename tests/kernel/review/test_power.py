"""Power: what a panel excludes and resolves, against tables and a simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.power import panel_power
from engcmp_assets.kernel.uncertainty import Preset, population_mean
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=400, seed=5)


def test_the_excluded_effects_are_the_interval_s_ends():
    # Cluster means 1, 2, 6: 3 +- 4.302652729911275 * sqrt(7/3).
    result = panel_power([1.0, 2.0, 6.0], list("abc"), preset=QUICK)
    half = 4.302652729911275 * math.sqrt(7 / 3)
    assert result.half_width == pytest.approx(half)
    assert (result.excluded_below, result.excluded_above) == pytest.approx((3 - half, 3 + half))
    assert result.standard_error == pytest.approx(math.sqrt(7 / 3)) and not result.resolved


def test_with_many_clusters_the_smallest_effect_is_two_and_eight_tenths_standard_errors():
    # z(0.975) + z(0.8) = 1.959964 + 0.841621.
    chance = np.random.default_rng(1)
    values = chance.normal(0, 1, 3000)
    result = panel_power(values, [f"d{number:04}" for number in range(3000)], preset=Preset(50, 5))
    assert result.smallest_effect / result.standard_error == pytest.approx(2.801585, rel=1e-3)


def test_with_few_clusters_it_is_more_and_agrees_with_a_simulation():
    result = panel_power([-1.0, 1.0, 0.5, -0.5, 0.25, -0.25], list("abcdef"), preset=QUICK)
    # 400,000 samples of six normal values, sd 1, mean at the claimed effect of that sd: 80 % of t-intervals exclude 0.
    shift = result.smallest_effect / (result.standard_error * math.sqrt(6))
    sample = np.random.default_rng(2).normal(shift, 1, (400_000, 6))
    t = sample.mean(axis=1) / sample.std(axis=1, ddof=1) * math.sqrt(6)
    assert (np.abs(t) > special.stdtrit(5, 0.975)).mean() == pytest.approx(0.8, abs=0.004)
    assert result.smallest_effect > 2.9 * result.standard_error


def test_the_power_at_the_smallest_effect_is_the_power_asked_for():
    values = [-1.0, 1.0, 0.5, -0.5, 0.25, -0.25]
    smallest = panel_power(values, list("abcdef"), preset=QUICK).smallest_effect
    assert panel_power(values, list("abcdef"), preset=QUICK, effect=-smallest).power_at == pytest.approx(0.8)
    weak = panel_power(values, list("abcdef"), preset=QUICK, effect=smallest / 100)
    assert weak.power_at == pytest.approx(0.05, abs=0.01)
    assert f"would be resolved with {100 * weak.power_at:.3g} %" in weak.sentence


def test_an_effect_that_nobody_asked_about_has_no_power():
    assert isinstance(panel_power([1.0, 2.0, 6.0], list("abc"), preset=QUICK).power_at, Missing)


@pytest.mark.parametrize(
    ("values", "said"), [([1.0, 2.0], "2 clusters"), ([0.0] * 9, "no spread"), ([0.1] * 9, "no spread")]
)
def test_no_spread_and_too_few_clusters_exclude_nothing(values, said):
    result = panel_power(values, [str(place) for place in range(len(values))], preset=QUICK)
    fields = (result.excluded_above, result.excluded_below, result.half_width, result.smallest_effect, result.power_at)
    assert all(isinstance(one, Missing) and said in one.reason for one in fields)


@pytest.mark.parametrize(("power", "effect"), [(0.5, None), (1.0, None), (0.8, 0.0)])
def test_a_question_without_an_answer_is_refused(power, effect):
    with pytest.raises(EngcmpError, match="power"):
        panel_power([1.0, 2.0, 6.0], list("abc"), preset=QUICK, power=power, effect=effect)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 11)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_rows_does_not_matter_and_power_grows_with_the_effect(rows, chance):
    def read(own, **more):
        return panel_power([value for value, _ in own], [f"d{number}" for _, number in own], preset=QUICK, **more)

    result = read(rows)
    assert read(chance.sample(rows, len(rows))) == result
    assert result.difference == population_mean(
        [value for value, _ in rows], [f"d{number}" for _, number in rows], preset=QUICK, kind="difference"
    )
    if not isinstance(result.smallest_effect, Missing):
        assert read(rows, power=0.9).smallest_effect > result.smallest_effect > 0
