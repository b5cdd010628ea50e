"""The floor on the same clusters: six documents over a floor from two is the planted mistake."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared_floor import floor_on_same_clusters
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=400, seed=5)


def test_a_distance_of_six_documents_over_a_floor_from_two_is_found_and_the_right_ratio_stands_beside_it():
    # Documents a and b: distance 0.2 over a floor of 0.1, so 2 times. With c to f the distance is 0.3: 3 times.
    distances = [0.2, 0.2, 0.35, 0.35, 0.35, 0.35]
    floors = [0.1, 0.1, np.nan, np.nan, np.nan, np.nan]
    known = [True, True, False, False, False, False]
    result = floor_on_same_clusters(distances, floors, list("abcdef"), repeated=known, preset=QUICK)
    assert result.found
    assert result.ratio == pytest.approx(2.0) and result.mixed_ratio == pytest.approx(3.0)
    assert result.clusters_without_repeat == ("c", "d", "e", "f")
    assert result.floor.clusters == result.distance.clusters == 2
    assert "2.00 times" in result.sentence and "would read 3.00" in result.sentence


def test_a_repeat_of_every_row_is_no_finding_and_both_ratios_agree():
    values = np.arange(1.0, 11.0)
    result = floor_on_same_clusters(
        2 * values, values, [f"d{i}" for i in range(10)], repeated=[True] * 10, preset=QUICK
    )
    assert not result.found and result.ratio == result.mixed_ratio == 2.0
    assert (result.ratio_interval.low, result.ratio_interval.high) == pytest.approx((2.0, 2.0))


def test_the_interval_of_the_ratio_is_the_joint_bootstrap_of_both_sums():
    chance = np.random.default_rng(4)
    top, bottom = chance.uniform(1, 2, 9), chance.uniform(0.5, 1, 9)
    result = floor_on_same_clusters(top, bottom, [f"d{i}" for i in range(9)], repeated=[True] * 9, preset=QUICK)
    replicates = [top[draw].sum() / bottom[draw].sum() for draw in cluster_draws(9, 400, 5)]
    low, high = np.quantile(replicates, [0.025, 0.975])
    assert result.ratio_interval.low == pytest.approx(low, abs=1e-12)
    assert result.ratio_interval.high == pytest.approx(high, abs=1e-12)


def test_a_ratio_has_an_interval_from_eight_clusters_on():
    values = np.arange(1.0, 9.0)
    ids = [f"d{i}" for i in range(8)]
    assert floor_on_same_clusters(values**2, values, ids, repeated=[True] * 8, preset=QUICK).ratio_interval.low > 0
    seven = floor_on_same_clusters(values[:7], values[:7], ids[:7], repeated=[True] * 7, preset=QUICK)
    assert "7 clusters" in seven.ratio_interval.reason
    values[3] = 0.0
    none = floor_on_same_clusters(values + 1, values, ids, repeated=[True] * 8, preset=QUICK)
    assert none.ratio > 1 and isinstance(none.ratio_interval, Missing)


def test_no_repeat_is_missing_and_never_a_floor_of_zero():
    result = floor_on_same_clusters([0.1, 0.2], [0, 0], ["a", "b"], repeated=[False, False], preset=QUICK)
    assert isinstance(result.ratio, Missing) and isinstance(result.floor.value, Missing)
    assert not result.found and "no repeat was captured" in result.sentence


def test_equal_repeats_are_a_floor_of_zero_and_have_no_ratio():
    result = floor_on_same_clusters([0.1, 0.2], [0, 0], ["a", "b"], repeated=[True, True], preset=QUICK)
    assert result.floor.value == 0.0
    assert isinstance(result.ratio, Missing) and "floor is 0" in result.sentence


def test_a_floor_that_is_read_must_be_finite():
    with pytest.raises(EngcmpError, match="nan"):
        floor_on_same_clusters([0.1, 0.2], [np.nan, 0.1], ["a", "b"], repeated=[True, True], preset=QUICK)


def test_columns_that_do_not_pair_up_are_named():
    with pytest.raises(EngcmpError, match="repeated 1"):
        floor_on_same_clusters([0.1, 0.2], [0.1, 0.1], ["a", "b"], repeated=[True], preset=QUICK)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from("abcdefghij"), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_rows_does_not_matter(rows, chance):
    def read(own):
        distances, floors, clusters, known = zip(*own, strict=True)
        return floor_on_same_clusters(distances, floors, clusters, repeated=known, preset=QUICK)

    assert read(rows) == read(chance.sample(rows, len(rows)))
