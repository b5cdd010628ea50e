"""A bucket that is one block: the effect of content must not be printed as one of context length."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.confounding import confounded_buckets, difference_of_differences
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=400, seed=5)


def panel(cells, *, rows=4, seed=1):
    """Rows of `cells` {(block, bucket): (windows, effect)}: value, cluster, block, bucket. Noise is between windows."""
    chance, table = random.Random(seed), []
    for (block, bucket), (windows, effect) in cells.items():
        for number in range(windows):
            noise = chance.gauss(0, 0.001)
            table += [(effect + noise, f"{block}{bucket}{number}", block, bucket)] * rows
    return table


def read(table, **settings_):
    values, clusters, blocks, buckets = zip(*table, strict=True)
    return confounded_buckets(values, clusters, blocks=blocks, buckets=buckets, preset=QUICK, **settings_)


CONTENT = {("A", "0-2K"): (10, 0.0), ("A", "8-16K"): (2, 0.0), ("B", "8-16K"): (12, 0.5), ("C", "0-2K"): (6, 0.0)}


def test_content_that_looks_like_context_is_found_and_the_within_block_trend_is_flat():
    (found,) = read(panel(CONTENT))
    assert (found.bucket, found.block, found.block_only_here) == ("8-16K", "B", True)
    assert found.share == pytest.approx(12 / 14) and found.rows == 56
    assert found.pooled.value == pytest.approx(0.5 * 12 / 14, abs=0.001)
    (trend,) = found.within_blocks
    assert trend.block == "A" and [(name, own.clusters) for name, own in trend.by_bucket] == [
        ("0-2K", 10),
        ("8-16K", 2),
    ]
    assert trend.difference_of_differences.value == pytest.approx(0.0, abs=0.002)
    assert (trend.difference_of_differences.clusters_inside, trend.difference_of_differences.clusters_outside) == (
        2,
        10,
    )
    assert isinstance(trend.difference_of_differences.interval, Missing)
    assert found.sentence.startswith("85.7 % of the rows of bucket 8-16K are of block B")
    assert "not an effect of the bucket" in found.sentence and "which has rows nowhere else" in found.sentence


def test_a_real_trend_within_the_block_is_kept_by_the_difference_of_differences():
    cells = CONTENT | {("A", "8-16K"): (3, 0.2)}
    (found,) = read(panel(cells), share=0.75)
    effect = found.within_blocks[0].difference_of_differences
    assert effect.value == pytest.approx(0.2, abs=0.002)
    assert effect.interval.low > 0.19 and effect.interval.method.startswith("Welch")


def test_buckets_of_like_contents_are_no_finding():
    cells = {(block, bucket): (5, 0.1) for block in "ABC" for bucket in ("0-2K", "8-16K")}
    assert read(panel(cells)) == ()


def test_a_block_that_dominates_every_bucket_is_no_confound():
    cells = {("A", "0-2K"): (9, 0.1), ("B", "0-2K"): (1, 0.1), ("A", "8-16K"): (9, 0.1), ("B", "8-16K"): (1, 0.1)}
    assert read(panel(cells)) == ()
    assert read(panel({("A", "0-2K"): (3, 0.1), ("A", "8-16K"): (3, 0.1)})) == ()


def test_one_bucket_has_nothing_to_be_confounded_with():
    assert read(panel({("A", "0-2K"): (3, 0.1)})) == ()


def test_blocks_that_never_leave_their_bucket_cannot_be_told_apart_from_it():
    found = read(panel({("A", "0-2K"): (3, 0.0), ("B", "8-16K"): (3, 0.5)}))
    assert [one.bucket for one in found] == ["0-2K", "8-16K"]
    assert all(isinstance(one.within_blocks, Missing) and "cannot be told apart" in one.sentence for one in found)


def test_the_share_is_a_parameter_and_its_edge_counts():
    cells = {("A", "0-2K"): (9, 0.0), ("A", "8-16K"): (1, 0.0), ("B", "8-16K"): (3, 0.5)}
    assert [one.bucket for one in read(panel(cells), share=0.75)] == ["0-2K", "8-16K"]
    assert [one.bucket for one in read(panel(cells), share=0.76)] == ["0-2K"]


def test_a_block_that_has_the_same_share_outside_is_no_confound_at_the_edge():
    cells = {("A", "x"): (3, 0.1), ("A", "y"): (3, 0.1), ("B", "y"): (1, 0.1)}
    assert read(panel(cells), share=0.75) == ()
    assert [one.bucket for one in read(panel(cells), share=0.76)] == ["x"]


@pytest.mark.parametrize("share", [0.5, 1.01])
def test_a_share_that_means_nothing_is_refused(share):
    with pytest.raises(EngcmpError, match="share"):
        read(panel(CONTENT), share=share)


def test_identical_arms_give_zero_everywhere():
    table = [(0.0, *rest) for _, *rest in panel(CONTENT)]
    (found,) = read(table)
    assert found.pooled.value == 0.0
    assert found.within_blocks[0].difference_of_differences.value == 0.0


def test_welch_on_few_clusters_by_hand():
    # Sides 1, 2, 3 and 10, 20, 30: variances of the means 1/3 and 100/3; df = (101/3)^2 / ((1/9 + 10000/9) / 2).
    effect = difference_of_differences(
        [10, 20, 30, 1, 2, 3], list("abcdef"), inside=np.array([True] * 3 + [False] * 3), preset=QUICK
    )
    assert effect.value == 18.0
    freedom = (101 / 3) ** 2 / ((1 / 9 + 10_000 / 9) / 2)
    assert freedom == pytest.approx(2.03999600)
    half = (effect.interval.high - effect.interval.low) / 2
    # t(0.975) lies between those of 2 and 3 degrees of freedom, 4.302653 and 3.182446 (tables), close to the former.
    assert 4.20 < half / math.sqrt(101 / 3) < 4.302653
    assert (effect.interval.high + effect.interval.low) / 2 == pytest.approx(18.0)


def test_documents_in_both_buckets_are_paired_with_themselves():
    # Each document rises by 1, 2 or 6 from outside to inside: mean 3, sd sqrt(7), t(0.975, 2) = 4.302652729911275.
    values, clusters = [101, 202, 306, 100, 200, 300], list("abcabc")
    effect = difference_of_differences(values, clusters, inside=np.array([True] * 3 + [False] * 3), preset=QUICK)
    assert effect.value == pytest.approx(3.0)
    assert effect.interval.high - 3.0 == pytest.approx(4.302652729911275 * math.sqrt(7 / 3))


def test_only_documents_on_both_sides_are_paired():
    # As above, with a fourth document inside only: it counts in the value, and not in the interval.
    values, clusters = [101, 202, 306, 900, 100, 200, 300], list("abcdabc")
    effect = difference_of_differences(values, clusters, inside=np.arange(7) < 4, preset=QUICK)
    assert effect.value == pytest.approx((101 + 202 + 306 + 900) / 4 - 200)
    assert (effect.interval.high + effect.interval.low) / 2 == pytest.approx(3.0)


def test_many_clusters_are_resampled_jointly():
    chance = np.random.default_rng(3)
    values, inside = chance.normal(size=20), np.array([True] * 9 + [False] * 11)
    ids = [f"d{number:02}" for number in range(20)]
    effect = difference_of_differences(values, ids, inside=inside, preset=QUICK)
    replicates = []
    for draw in cluster_draws(20, 400, 5):
        own, side = values[draw], inside[draw]
        if side.any() and not side.all():
            replicates.append(own[side].mean() - own[~side].mean())
    low, high = np.quantile(replicates, [0.025, 0.975])
    assert effect.interval.low == pytest.approx(low, abs=1e-12)
    assert effect.interval.high == pytest.approx(high, abs=1e-12)


def test_the_method_changes_from_seven_to_eight_clusters_on_a_side():
    values, ids = np.arange(16.0) ** 2, [f"d{number:02}" for number in range(16)]
    eight = difference_of_differences(values, ids, inside=np.arange(16) < 8, preset=QUICK)
    assert eight.interval.method.startswith("joint cluster bootstrap")
    seven = difference_of_differences(values, ids, inside=np.arange(16) < 7, preset=QUICK)
    assert seven.interval.method.startswith("Welch")


@pytest.mark.parametrize("inside", [[True, True], [False, False]])
def test_an_empty_side_is_refused(inside):
    with pytest.raises(EngcmpError, match="one side"):
        difference_of_differences([1, 2], ["a", "b"], inside=np.array(inside), preset=QUICK)


def test_two_clusters_on_a_side_have_a_value_and_no_interval():
    effect = difference_of_differences([1, 2, 3], list("abc"), inside=np.array([True, True, False]), preset=QUICK)
    assert effect.value == -1.5 and isinstance(effect.interval, Missing)


def test_sides_without_any_spread_have_no_interval():
    effect = difference_of_differences([1] * 3 + [2] * 3, list("abcdef"), inside=np.arange(6) < 3, preset=QUICK)
    assert effect.value == -1.0 and "no spread" in effect.interval.reason


ROWS = st.tuples(
    st.floats(-1, 1), st.sampled_from([f"w{i}" for i in range(12)]), st.sampled_from("AB"), st.sampled_from("xy")
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(table, chance):
    assert read(table) == read(chance.sample(table, len(table)))
