"""Cluster bootstrap, t-interval, sign-flip, clustered standard error and Wilson against answers worked out by hand."""

import itertools
import math
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.uncertainty import (
    PANEL,
    Preset,
    by_cluster,
    clustered_standard_error,
    distinct_resamples,
    excludes_zero,
    population_mean,
    sign_flip_p,
    wilson,
)
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=400, seed=5)
MASK = (1 << 64) - 1


def plain_draws(clusters, replicates, seed):
    state, drawn = seed, []
    while len(drawn) < clusters * replicates:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        if z >= ((1 << 64) - clusters) % clusters:
            drawn.append(z % clusters)
    return [drawn[start : start + clusters] for start in range(0, len(drawn), clusters)]


def plain_type7(values, share):
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2)
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])


def ragged(clusters, seed=0):
    """Clusters of 1 to 5 rows with names whose order is not their order of appearance."""
    chance = random.Random(seed)
    names = [f"w{number}" for number in range(clusters)]
    chance.shuffle(names)
    ids = [name for name in names for _ in range(chance.randint(1, 5))]
    return [chance.uniform(-1, 3) for _ in ids], ids


def test_the_panel_preset_is_the_one_of_the_law():
    assert (PANEL.replicates, PANEL.seed) == (20_000, 20260929)


def test_the_bootstrap_interval_equals_a_plain_loop_over_sorted_clusters():
    values, ids = ragged(9)
    names = sorted(set(ids))
    rows = {name: [v for v, own in zip(values, ids, strict=True) if own == name] for name in names}
    replicates = []
    for draw in plain_draws(9, 400, 5):
        chosen = [rows[names[index]] for index in draw]
        replicates.append(sum(map(sum, chosen)) / sum(map(len, chosen)))
    estimate = population_mean(values, ids, preset=QUICK)
    assert estimate.interval.low == pytest.approx(plain_type7(replicates, 0.025), abs=1e-12)
    assert estimate.interval.high == pytest.approx(plain_type7(replicates, 0.975), abs=1e-12)
    wider = population_mean(values, ids, preset=QUICK, level=0.98)
    assert wider.interval.high == pytest.approx(plain_type7(replicates, 0.99), abs=1e-12)
    assert wider.interval.level == 0.98


def test_the_value_is_position_weighted_and_the_cluster_mean_stands_apart():
    estimate = population_mean([1.0, 2.0, 3.0, 10.0], ["a", "a", "a", "b"], preset=QUICK)
    assert estimate.value == 4.0
    assert estimate.cluster_mean == 6.0
    assert (estimate.rows, estimate.clusters) == (4, 2)


def test_few_clusters_get_the_t_interval_around_the_mean_of_cluster_means():
    # Cluster means 1, 2, 6: mean 3, sd sqrt(7); t(0.975, 2) = 4.302652729911275 (tables).
    estimate = population_mean([1.0, 2.0, 6.0, 6.0], ["a", "b", "c", "c"], preset=QUICK, kind="difference")
    half = 4.302652729911275 * math.sqrt(7) / math.sqrt(3)
    assert estimate.value == 3.75
    assert estimate.interval.low == pytest.approx(3 - half, abs=1e-9)
    assert estimate.interval.high == pytest.approx(3 + half, abs=1e-9)
    assert estimate.method == "t-interval on 3 cluster means"
    assert estimate.sign_flip_p == 0.25


def test_the_method_changes_from_seven_to_eight_clusters():
    seven = population_mean(range(7), [str(i) for i in range(7)], preset=QUICK, kind="difference")
    eight = population_mean(range(8), [str(i) for i in range(8)], preset=QUICK, kind="difference")
    assert seven.method.startswith("t-interval") and isinstance(seven.sign_flip_p, float)
    assert eight.method.startswith("cluster bootstrap") and isinstance(eight.sign_flip_p, Missing)


@pytest.mark.parametrize(("clusters", "named"), [(1, "1 cluster:"), (2, "2 clusters:")])
def test_under_three_clusters_there_is_a_value_but_no_interval_and_the_reason_names_the_count(clusters, named):
    ids = [str(i) for i in range(clusters)]
    estimate = population_mean([2.0] * clusters, ids, preset=QUICK, kind="difference")
    assert estimate.value == 2.0
    assert isinstance(estimate.interval, Missing) and estimate.interval.reason.startswith(named)
    assert isinstance(estimate.sign_flip_p, Missing)
    assert estimate.method == "none"


def test_one_cluster_has_no_standard_error_and_two_have_one():
    assert isinstance(population_mean([1.0, 2.0], ["a", "a"], preset=QUICK).standard_error, Missing)
    assert population_mean([1.0, 2.0], ["a", "b"], preset=QUICK).standard_error == pytest.approx(0.5)


def test_no_row_is_missing_everywhere_and_never_zero():
    estimate = population_mean([], [], preset=QUICK)
    assert isinstance(estimate.value, Missing) and isinstance(estimate.interval, Missing)
    assert (estimate.rows, estimate.clusters) == (0, 0)


def test_a_plain_mean_has_no_sign_flip_p():
    assert isinstance(population_mean([1.0, 2.0, 3.0], ["a", "b", "c"], preset=QUICK).sign_flip_p, Missing)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("clusters", [3, 12])
def test_a_proportion_where_every_row_agrees_never_gets_a_zero_width_interval(value, clusters):
    ids = [str(i) for i in range(clusters)] * 4
    interval = population_mean([value] * len(ids), ids, preset=QUICK, kind="proportion").interval
    assert interval.high - interval.low > 0.1
    assert interval == Interval(
        *((0.0, wilson(0, clusters).high) if value == 0 else (wilson(clusters, clusters).low, 1.0)),
        0.95,
        f"Wilson on {clusters} clusters: every row reads the same",
    )


def test_a_proportion_short_of_the_edge_is_resampled():
    ids = [str(i) for i in range(12)]
    interval = population_mean([0.0] + [1.0] * 11, ids, preset=QUICK, kind="proportion").interval
    assert interval.method.startswith("cluster bootstrap")


def test_a_bootstrap_of_differing_clusters_has_a_width_because_it_draws_with_replacement():
    values, ids = ragged(12)
    interval = population_mean(values, ids, preset=QUICK).interval
    assert interval.high - interval.low > 0.1


def test_a_level_beyond_what_the_replicates_can_show_is_missing():
    values, ids = ragged(12)
    assert isinstance(population_mean(values, ids, preset=QUICK, level=1 - 0.05 / 100).interval, Missing)


def test_the_clustered_standard_error_gives_the_check_value_of_the_law():
    assert clustered_standard_error([1, 2, 6], [1, 1, 2]) == pytest.approx(0.602728, abs=5e-7)


def test_wilson_gives_the_values_worked_out_by_hand():
    # 8 of 10, z = 1.959964: centre (0.8 + 3.841459 / 20) / 1.3841459, half-width as in Wilson (1927).
    interval = wilson(8, 10)
    assert interval.low == pytest.approx(0.4901625, abs=1e-6)
    assert interval.high == pytest.approx(0.9433178, abs=1e-6)
    # 0 of n: high = z^2 / (n + z^2).
    assert wilson(0, 10).low == 0.0
    assert wilson(0, 10).high == pytest.approx(3.8414588 / 13.8414588, abs=1e-6)


@given(st.integers(1, 10**6))
def test_wilson_has_a_width_at_both_ends_for_any_number_of_trials(trials):
    none, every = wilson(0, trials), wilson(trials, trials)
    assert none.low == 0.0 < none.high
    assert every.low < 1.0 == every.high


def test_wilson_of_no_trial_is_missing_and_impossible_counts_are_refused():
    assert isinstance(wilson(0, 0), Missing)
    with pytest.raises(EngcmpError):
        wilson(3, 2)


@pytest.mark.parametrize(("clusters", "count"), [(1, 1), (2, 3), (3, 10), (4, 35), (12, 1352078)])
def test_the_number_of_distinct_resamples_is_the_number_of_multisets(clusters, count):
    assert distinct_resamples(clusters) == count
    if clusters < 5:
        assert len(list(itertools.combinations_with_replacement(range(clusters), clusters))) == count


def test_sign_flip_p_is_exact():
    # |sum| of (1, 2, 3, 4, 5, 6): only all plus and all minus reach 21.
    assert sign_flip_p([1, 2, 3, 4, 5, 6]) == 2 / 64
    # (-1, 2, 3): patterns with |sum| >= 4 are +-(1,2,3) = 6 and +-(-1,2,3) = 4, so 4 of 8.
    assert sign_flip_p([-1, 2, 3]) == 4 / 8
    assert sign_flip_p([0.0, 0.0, 0.0]) == 1.0


def test_sign_flip_counts_patterns_that_tie_up_to_rounding():
    # 0.1 + 0.2 - 0.3 is not 0 in floating point, so the mean of the four is a hair above that of the pattern with the
    # first three flipped. In truth they tie, and every pattern is as far from 0 as the observed one.
    assert sign_flip_p([0.1, 0.2, -0.3, 0.01]) == 1.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.sampled_from("abcdefghij")), min_size=1, max_size=40), st.randoms())
def test_the_order_of_the_rows_changes_nothing(rows, chance):
    shuffled = list(rows)
    chance.shuffle(shuffled)
    both = [
        population_mean([v for v, _ in order], [c for _, c in order], preset=QUICK, kind="difference")
        for order in (rows, shuffled)
    ]
    assert both[0] == both[1]
    exact = sum(Fraction(value) for value, _ in rows) / len(rows)
    assert both[0].value == pytest.approx(float(exact), rel=1e-12, abs=1e-9)


def test_cluster_sums_hold_only_clusters_with_a_row_in_the_order_of_their_ids():
    groups = by_cluster([1.0, 2.0, 4.0], ["w2", "w10", "w2"])
    assert groups.ids == ("w10", "w2")
    assert groups.sums.tolist() == [2.0, 5.0]
    assert groups.counts.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused_and_located(value):
    with pytest.raises(EngcmpError, match="row 1 of cluster b"):
        population_mean([1.0, value], ["a", "b"], preset=QUICK)


def test_values_without_their_cluster_ids_and_impossible_levels_are_refused():
    with pytest.raises(EngcmpError, match="cluster id"):
        population_mean([1.0, 2.0], ["a"], preset=QUICK)
    with pytest.raises(EngcmpError, match="level"):
        population_mean([1.0], ["a"], preset=QUICK, level=95)


def test_an_interval_that_touches_zero_does_not_exclude_it():
    assert not excludes_zero(Interval(0.0, 1.0, 0.95, "m"))
    assert not excludes_zero(Interval(-1.0, 0.0, 0.95, "m"))
    assert excludes_zero(Interval(1e-9, 1.0, 0.95, "m"))
    assert excludes_zero(Interval(-1.0, -1e-9, 0.95, "m"))
    assert not excludes_zero(Missing("none"))


def test_the_same_draws_serve_every_measure_of_a_panel_and_quickly():
    values, ids = ragged(12)
    first = population_mean(values, ids, preset=PANEL).interval
    begun = time.process_time()
    for scale in range(2, 10):
        scaled = population_mean([scale * value for value in values], ids, preset=PANEL).interval
        assert scaled.low == pytest.approx(scale * first.low, rel=1e-9)
    assert time.process_time() - begun < 5
