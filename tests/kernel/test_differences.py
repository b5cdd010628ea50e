"""Candidate minus baseline: planted differences, baselines that disagree, floors, sensitivities and verdict words."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.differences import Range, RunValues, compare, floor
from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.uncertainty import PANEL, Preset
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=2000, seed=11)


def arm(**runs):
    """An arm from rows by run: `r1_2` is run 1.2."""
    names = tuple(name[1:].replace("_", ".") for name in runs)
    return RunValues(names, np.array(list(runs.values()), dtype=np.float64))


def ids(clusters, rows_each=2):
    return [f"c{number:02d}" for number in range(clusters) for _ in range(rows_each)]


def compared(candidate, baseline, clusters, **changes):
    given = {"preset": QUICK, "primary": True, "family": 1} | changes
    return compare(candidate, baseline, clusters, **given)


def noise(rows, seed, scale=0.01):
    return np.random.default_rng(seed).normal(0, scale, rows)


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e6, 1e6), st.integers(1, 9))
def test_identical_runs_give_exactly_their_value(value, runs):
    own = RunValues(tuple(f"1.{number}" for number in range(1, runs + 1)), np.full((runs, 1), value))
    assert own.per_row.tolist() == [value]


def test_the_value_of_an_arm_is_the_mean_over_its_runs_in_any_order():
    assert arm(r1_1=[1.0, 4.0], r1_2=[2.0, 4.0], r2_1=[6.0, 4.0]).per_row.tolist() == [3.0, 4.0]
    values = [[0.1], [0.2], [0.3]]
    forward = RunValues(("1.1", "1.2", "1.3"), np.array(values)).per_row
    assert forward.tolist() == RunValues(("1.1", "1.2", "1.3"), np.array(values[::-1])).per_row.tolist()


def test_the_headline_is_candidate_minus_the_mean_of_all_baseline_runs_weighted_by_rows():
    found = compared(
        arm(r1_1=[5.0, 5.0, 5.0, 9.0]),
        arm(r1_1=[1.0] * 4, r1_2=[3.0] * 4),
        ["a", "a", "a", "b"],
    )
    assert found.difference.value == 4.0
    assert (found.candidate_mean, found.baseline_mean) == (6.0, 2.0)
    assert [one.difference.value for one in found.against_each_run] == [5.0, 3.0]


def test_a_planted_difference_is_resolved_with_its_sign_and_no_bound():
    clusters = ids(12)
    base = noise(24, 1)
    found = compared(arm(r1_1=base + 0.5 + noise(24, 2)), arm(r1_1=base, r1_2=base + noise(24, 3)), clusters)
    assert found.verdict.word == "resolved"
    assert found.interval95.low > 0.4
    assert found.clusters_with_the_sign == 12
    assert isinstance(found.bound, Missing)
    assert isinstance(found.sign_flip_p, Missing)


def test_noise_alone_is_not_resolved_and_its_bound_is_the_far_end_of_the_interval():
    clusters = ids(12)
    found = compared(arm(r1_1=noise(24, 4)), arm(r1_1=noise(24, 5)), clusters)
    assert found.verdict.word == "not resolved"
    assert found.bound == max(abs(found.interval95.low), abs(found.interval95.high))
    assert f"an effect above {found.bound:.4g}" in found.verdict.sentence


def test_a_difference_against_some_baseline_runs_only_is_baseline_dependent():
    clusters = ids(12)
    base = noise(24, 6)
    # Against run 1.1 the clusters read +0.01 and -0.01 in turn, against run 2.1 about -1.
    waver = np.repeat([0.01, -0.01] * 6, 2)
    found = compared(arm(r1_1=base + waver), arm(r1_1=base, r2_1=base + 1.0), clusters)
    assert [one.stands for one in found.against_each_run] == [False, True]
    assert found.verdict.word == "baseline-dependent"
    assert "1 of 2 baseline runs" in found.verdict.sentence
    assert not isinstance(found.bound, Missing)


def test_baseline_runs_on_either_side_of_the_candidate_are_never_resolved():
    clusters = ids(12)
    found = compared(arm(r1_1=noise(24, 8)), arm(r1_1=noise(24, 9) - 5.0, r2_1=noise(24, 10) + 1.0), clusters)
    assert [one.stands for one in found.against_each_run] == [True, True]
    assert found.interval95.low > 0
    assert found.verdict.word == "baseline-dependent"


def test_a_look_that_is_not_primary_is_judged_at_its_bonferroni_level():
    # Cluster differences -1 and +1 mixed so that 95 % excludes zero and 99.5 % does not.
    clusters = ids(12, 1)
    values = np.array([1.0] * 10 + [-1.0] * 2)
    primary = compared(arm(r1_1=values), arm(r1_1=values * 0), clusters, family=50)
    secondary = compared(arm(r1_1=values), arm(r1_1=values * 0), clusters, family=50, primary=False)
    assert primary.interval95.low > 0 > primary.interval_bonferroni.low
    assert primary.interval_bonferroni.level == pytest.approx(1 - 0.05 / 50)
    assert (primary.verdict.word, secondary.verdict.word) == ("resolved", "not resolved")
    assert secondary.bound == max(abs(secondary.interval_bonferroni.low), abs(secondary.interval_bonferroni.high))
    assert secondary.against_each_run[0].stands is False


@pytest.mark.parametrize(("clusters", "word", "p"), [(5, "not resolved", 2 / 32), (6, "resolved", 2 / 64)])
def test_under_eight_clusters_the_exact_sign_flip_decides_too(clusters, word, p):
    # The t-interval excludes zero either way; with 5 clusters the smallest two-sided sign-flip p is 1/16.
    values = 1.0 + 0.01 * np.arange(clusters)
    found = compared(arm(r1_1=values), arm(r1_1=values * 0), ids(clusters, 1))
    assert found.interval95.low > 0
    assert found.sign_flip_p == p
    assert found.verdict.word == word


def test_two_clusters_have_values_but_no_interval_and_are_not_resolved():
    found = compared(arm(r1_1=[1.0, 2.0]), arm(r1_1=[0.0, 0.0]), ["a", "b"])
    assert found.difference.value == 1.5
    assert isinstance(found.interval95, Missing) and isinstance(found.bound, Missing)
    assert found.verdict.word == "not resolved"
    assert "no interval: 2 clusters" in found.verdict.sentence
    assert found.leave_one_cluster_out == Range(1.0, 2.0)


def test_one_cluster_has_no_leave_one_out():
    found = compared(arm(r1_1=[1.0, 2.0]), arm(r1_1=[0.0, 0.0]), ["a", "a"])
    assert isinstance(found.leave_one_cluster_out, Missing)
    assert isinstance(found.most_moving_cluster, Missing)


def test_leave_one_out_names_the_cluster_that_moves_the_difference_most():
    # Rows a 1, 1; b 4; c 9: mean 3.75. Without a 6.5, without b 11/3, without c 2.
    found = compared(arm(r1_1=[1.0, 1.0, 4.0, 9.0]), arm(r1_1=[0.0] * 4), ["a", "a", "b", "c"])
    assert found.leave_one_cluster_out == Range(2.0, 6.5)
    moving = found.most_moving_cluster
    assert (moving.cluster, moving.without, moving.moves_by) == ("a", 6.5, -2.75)
    # Mean 3; without a 5, without c 1: both move it by 2, and the lower id is named.
    tied = compared(arm(r1_1=[1.0, 1.0, 1.0, 9.0]), arm(r1_1=[0.0] * 4), ["a", "a", "b", "c"]).most_moving_cluster
    assert (tied.cluster, tied.moves_by) == ("a", -2.0)


def test_clusters_with_the_sign_of_the_mean_are_counted():
    found = compared(arm(r1_1=[-1.0, -1.0, 0.5, 0.0]), arm(r1_1=[0.0] * 4), ["a", "b", "c", "d"])
    assert found.clusters_with_the_sign == 2


def test_identical_arms_are_not_resolved_and_claim_no_bound_without_spread():
    values = noise(24, 12)
    found = compared(arm(r1_1=values, r1_2=values), arm(r1_1=values, r1_2=values), ids(12))
    assert found.difference.value == 0.0
    assert (found.interval95.low, found.interval95.high) == (0.0, 0.0)
    assert found.verdict.word == "not resolved"
    assert isinstance(found.bound, Missing) and "no spread" in found.bound.reason


def test_identical_repeats_have_a_floor_of_exactly_zero():
    values = noise(24, 13)
    found = floor(arm(r1_1=values, r1_2=values, r2_1=values), ids(12), preset=QUICK)
    for null in (*found.within_launch, *found.across_launches):
        assert (null.difference.value, null.cluster_sd, null.cluster_low, null.cluster_high) == (0, 0, 0, 0)
        assert null.rows_that_differ == 0.0


def test_the_floor_within_a_launch_is_repeat_two_minus_repeat_one_and_across_is_launch_two_minus_one():
    found = floor(
        arm(r1_1=[0.0, 0.0], r1_2=[1.0, 3.0], r2_1=[10.0, 10.0], r2_2=[10.0, 14.0]),
        ["a", "b"],
        preset=QUICK,
    )
    assert [(one.run, one.minus, one.difference.value) for one in found.within_launch] == [
        ("1.2", "1.1", 2.0),
        ("2.2", "2.1", 2.0),
    ]
    assert [(one.run, one.minus, one.difference.value) for one in found.across_launches] == [("2.1", "1.1", 10.0)]
    first = found.within_launch[0]
    assert (first.cluster_low, first.cluster_high) == (1.0, 3.0)
    assert first.cluster_sd == pytest.approx(math.sqrt(2))
    assert found.within_launch[1].rows_that_differ == 0.5


def test_repeats_that_cancel_out_have_a_floor_although_their_mean_does_not_shift():
    # Two rows flip against each other: the mean of top1 is unchanged, yet half of the rows disagree.
    found = floor(arm(r1_1=[1.0, 0.0, 1.0, 0.0], r1_2=[0.0, 1.0, 1.0, 0.0]), ["a", "b", "c", "d"], preset=QUICK)
    (null,) = found.within_launch
    assert null.difference.value == 0.0
    assert null.rows_that_differ == 0.5
    assert null.difference.interval.high > 0


def test_launches_are_ordered_as_numbers_and_set_against_each_other_in_the_same_repeat():
    found = floor(arm(r10_2=[7.0], r2_1=[1.0], r2_2=[3.0]), ["a"], preset=QUICK)
    assert [(one.run, one.minus, one.difference.value) for one in found.across_launches] == [("10.2", "2.2", 4.0)]
    unpaired = floor(arm(r1_1=[1.0], r2_2=[3.0]), ["a"], preset=QUICK)
    assert isinstance(unpaired.across_launches, Missing)
    assert "no repeat number" in unpaired.across_launches.reason


def test_one_run_has_no_floor_with_reasons():
    found = floor(arm(r1_1=[1.0]), ["a"], preset=QUICK)
    assert not found.measured
    assert found.within_launch == Missing("no launch has a second repeat")
    assert found.across_launches == Missing("one launch was captured")


def test_an_empty_population_has_no_floor():
    found = floor(arm(r1_1=[], r1_2=[]), [], preset=QUICK)
    assert not found.measured
    assert found.within_launch == Missing("no row is in the population")


def test_a_comparison_without_a_floor_says_so_for_the_arm_that_lacks_it():
    clusters = ids(12)
    single, twice = arm(r1_1=noise(24, 14)), arm(r1_1=noise(24, 15), r1_2=noise(24, 16))
    half = compared(single, twice, clusters).verdict
    assert half.no_floor and "no repeat of the candidate was captured" in half.sentence
    none = compared(single, single, clusters).verdict
    assert none.no_floor and "candidate or the baseline" in none.sentence
    both = compared(twice, twice, clusters).verdict
    assert not both.no_floor and "no floor" not in both.sentence


def test_the_sentence_names_the_measure_and_its_unit():
    found = compared(arm(r1_1=[1.5, 1.5]), arm(r1_1=[1.0, 1.0]), ["a", "b"], measure="kl_full")
    assert found.verdict.sentence.startswith("KL divergence from the reference: candidate minus baseline is +0.5 nats")
    with pytest.raises(EngcmpError, match="no measure"):
        compared(arm(r1_1=[1.5]), arm(r1_1=[1.0]), ["a"], measure="typo")


def test_swapping_the_arms_mirrors_the_result():
    clusters = ids(12)
    one, other = arm(r1_1=noise(24, 17)), arm(r1_1=noise(24, 18))
    there, back = compared(one, other, clusters), compared(other, one, clusters)
    assert back.difference.value == -there.difference.value
    assert back.interval95.low == pytest.approx(-there.interval95.high, abs=1e-15)
    assert there.verdict.word == back.verdict.word == "not resolved"
    assert back.bound == pytest.approx(there.bound, abs=1e-15)


def test_a_comparison_is_plain_json():
    found = compared(arm(r1_1=noise(24, 19)), arm(r1_1=noise(24, 20)), ids(12), preset=PANEL)
    assert json.loads(json.dumps(plain(found), allow_nan=False))["verdict"]["word"] == "not resolved"


@pytest.mark.parametrize(
    ("runs", "values"),
    [
        ((), np.zeros((0, 2))),
        (("1",), np.zeros((1, 2))),
        (("1.0",), np.zeros((1, 2))),
        (("1.1", "1.1"), np.zeros((2, 2))),
        (("1.1", "1.2"), np.zeros((1, 2))),
        (("1.1",), np.zeros(2)),
        (("1.1",), np.array([[0.0, math.nan]])),
    ],
)
def test_runs_that_are_not_runs_and_values_that_are_not_values_are_refused(runs, values):
    with pytest.raises(EngcmpError):
        RunValues(runs, values)


def test_arms_on_different_rows_no_row_and_an_empty_family_are_refused():
    with pytest.raises(EngcmpError, match="same rows"):
        compared(arm(r1_1=[1.0]), arm(r1_1=[1.0, 2.0]), ["a"])
    with pytest.raises(EngcmpError, match="at least one"):
        compared(arm(r1_1=[]), arm(r1_1=[]), [])
    with pytest.raises(EngcmpError, match="family"):
        compared(arm(r1_1=[1.0]), arm(r1_1=[1.0]), ["a"], family=0)


def test_what_computing_in_float64_leaves_is_no_difference():
    values = np.linspace(0.01, 9.0, 40)
    same = arm(r1_1=values, r1_2=values)
    noisy = arm(r1_1=values * (1 + 3e-15), r1_2=values * (1 + 3e-15))
    found = compared(noisy, same, ids(20))
    assert found.difference.value == 0.0 and found.verdict.word == "not resolved"
    larger = arm(r1_1=values + 1e-9, r1_2=values + 1e-9)
    assert compared(larger, same, ids(20)).verdict.word == "resolved"
