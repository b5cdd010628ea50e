"""Few clusters: a percentile interval over ten resamples is the planted mistake."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.few_clusters import few_clusters, sign_test_p
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=2_000, seed=5)


def test_three_documents_of_one_sign_fool_a_percentile_bootstrap_and_not_the_t_interval():
    result = few_clusters([0.0007, 0.0018, 0.0032], list("abc"), preset=QUICK)
    assert result.found
    assert result.percentile.low > 0 and result.estimate.interval.low < 0
    assert result.estimate.distinct_resamples == 10
    assert result.sign_test_p == result.estimate.sign_flip_p == 0.25
    assert "10 distinct resamples" in result.sentence and "so few clusters do not" in result.sentence


def test_the_interval_that_is_not_to_be_printed_is_the_percentile_bootstrap():
    values = [0.0007, 0.0018, 0.0032, -0.001, 0.004]
    means = [np.mean([values[place] for place in draw]) for draw in cluster_draws(5, 2_000, 5)]
    result = few_clusters(values, list("abcde"), preset=QUICK, level=0.9)
    assert (result.percentile.low, result.percentile.high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))


def test_seven_documents_far_from_zero_support_their_interval():
    result = few_clusters([1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.02], list("abcdefg"), preset=QUICK)
    assert not result.found and result.estimate.interval.low > 0
    assert result.sign_test_p == 2 / 128


def test_from_eight_clusters_on_the_bootstrap_is_the_method_and_no_mistake():
    result = few_clusters([1.0] * 4 + [2.0] * 4, list("abcdefgh"), preset=QUICK)
    assert not result.found and result.estimate.method.startswith("cluster bootstrap")


def test_one_cluster_resamples_to_itself_only():
    result = few_clusters([1.0, 2.0], ["a", "a"], preset=QUICK)
    assert isinstance(result.percentile, Missing) and isinstance(result.estimate.interval, Missing)
    assert "1 distinct resample" in result.sentence and not result.found


def test_two_clusters_of_one_sign_fool_a_percentile_bootstrap_too():
    result = few_clusters([1.0, 2.0], list("ab"), preset=QUICK)
    assert result.found and result.percentile.low == 1.0 and isinstance(result.estimate.interval, Missing)


def test_identical_arms_give_zero_and_no_finding():
    result = few_clusters([0.0] * 5, list("abcde"), preset=QUICK)
    assert (result.estimate.value, result.positive, result.negative, result.sign_test_p) == (0.0, 0, 0, 1.0)
    assert not result.found


@pytest.mark.parametrize(
    ("positive", "negative", "p"),
    [(14, 4, 2 * (1 + 18 + 153 + 816 + 3060) / 2**18), (3, 0, 0.25), (5, 5, 1.0), (0, 0, 1.0), (12, 0, 2 / 4096)],
)
def test_the_sign_test_by_hand(positive, negative, p):
    assert sign_test_p(positive, negative) == sign_test_p(negative, positive) == p


@given(st.integers(0, 9), st.integers(0, 9))
def test_the_sign_test_counts_sign_patterns(positive, negative):
    trials, gap = positive + negative, abs(positive - negative)
    patterns = itertools.product((1, -1), repeat=min(trials, 10))
    if trials <= 10:
        assert sign_test_p(positive, negative) == sum(abs(sum(own)) >= gap for own in patterns) / 2**trials


@given(st.integers(1, 6))
def test_the_count_of_resamples_is_that_of_multisets(clusters):
    result = few_clusters([1.0] * clusters, [str(i) for i in range(clusters)], preset=QUICK)
    counted = len(list(itertools.combinations_with_replacement(range(clusters), clusters)))
    assert result.estimate.distinct_resamples == counted == math.comb(2 * clusters - 1, clusters)


ROWS = st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 9)), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(rows, chance):
    def read(own):
        return few_clusters([value for value, _ in own], [f"d{number}" for _, number in own], preset=QUICK)

    assert read(rows) == read(chance.sample(rows, len(rows)))


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 9))
def test_merging_clusters_never_gives_more_distinct_resamples(rows, parts):
    values = [value for value, _ in rows]
    whole = few_clusters(values, [f"d{number}" for _, number in rows], preset=QUICK)
    merged = few_clusters(values, [f"d{number % parts}" for _, number in rows], preset=QUICK)
    assert merged.estimate.distinct_resamples <= whole.estimate.distinct_resamples


def test_no_row_is_refused():
    with pytest.raises(EngcmpError, match="no row"):
        few_clusters([], [], preset=QUICK)
