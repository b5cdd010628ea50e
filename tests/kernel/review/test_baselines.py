"""Baseline choice: planted runs that flip the verdict, and ones that do not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.differences import compare
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.baselines import RunResult, baseline_choice
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

RESULTS = st.builds(lambda value, stands: (value, stands), st.floats(-1, 1), st.booleans())


def test_a_result_that_stands_against_one_run_only_is_found_with_its_range():
    runs = [RunResult("1.1", 0.5, stands=True), RunResult("1.2", -0.25, stands=False)]
    found = baseline_choice(RunResult("mean", 0.125, stands=False), runs)
    assert (found.low, found.lowest_run, found.high, found.highest_run) == (-0.25, "1.2", 0.5, "1.1")
    assert (found.swing, found.swing_share) == (0.75, 6.0)
    assert found.found and found.standing == ("1.1",)
    assert "against 1.1 the verdict is another one" in found.sentence


def test_runs_on_opposite_sides_flip_it_though_both_stand():
    runs = [RunResult("1.1", 0.5, stands=True), RunResult("1.2", -0.5, stands=True)]
    found = baseline_choice(RunResult("mean", 0.1, stands=True), runs)
    assert found.found and "against 1.2 the verdict" in found.sentence


def test_runs_that_agree_are_no_finding():
    runs = [RunResult("1.1", 0.5, stands=True), RunResult("1.2", 0.4, stands=True)]
    found = baseline_choice(RunResult("mean", 0.45, stands=True), runs)
    assert not found.found and "every run gives the same verdict" in found.sentence


def test_one_run_leaves_nothing_to_choose_from_and_is_not_a_swing_of_zero():
    found = baseline_choice(RunResult("mean", 0.5, stands=True), [RunResult("1.1", 0.5, stands=True)])
    assert isinstance(found.swing, Missing) and isinstance(found.swing_share, Missing)


def test_a_difference_of_zero_has_a_swing_but_no_share():
    runs = [RunResult("1.1", 0.5, stands=False), RunResult("1.2", -0.5, stands=False)]
    found = baseline_choice(RunResult("mean", 0.0, stands=False), runs)
    assert found.swing == 1.0 and isinstance(found.swing_share, Missing)


@pytest.mark.parametrize("names", [[], ["1.1", "1.1"]])
def test_no_run_and_a_run_given_twice_are_refused(names):
    with pytest.raises(EngcmpError, match="baseline runs"):
        baseline_choice(RunResult("mean", 0.0, stands=False), [RunResult(name, 0.0, stands=False) for name in names])


@given(st.lists(RESULTS, min_size=2, max_size=5), RESULTS, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_does_not_matter(drawn, headline, chance):
    runs = [RunResult(f"1.{place}", value, stands=stands) for place, (value, stands) in enumerate(drawn, 1)]
    shuffled = chance.sample(runs, len(runs))
    one, two = (baseline_choice(RunResult("mean", headline[0], stands=headline[1]), own) for own in (runs, shuffled))
    assert (one.low, one.high, one.swing, one.found, set(one.standing)) == (
        two.low, two.high, two.swing, two.found, set(two.standing)
    )  # fmt: skip


def test_it_takes_what_a_comparison_holds_and_agrees_with_its_word():
    clusters = [f"d{number}" for number in range(10)]
    noise = np.linspace(-0.01, 0.01, 10)
    candidate = RunValues(("1.1",), np.full((1, 10), 0.5))
    baseline = RunValues(("1.1", "1.2"), np.stack([0.5 + noise, 0.4 + noise]))
    result = compare(candidate, baseline, clusters, preset=Preset(400, 5), primary=True, family=1)
    headline = RunResult("mean", result.difference.value, stands=True)
    runs = [RunResult(one.run, one.difference.value, stands=one.stands) for one in result.against_each_run]
    found = baseline_choice(headline, runs)
    assert result.verdict.word == "baseline-dependent" and found.found
    assert found.standing == ("1.2",)
