"""Sharpness and displacement: a flattened arm has its NLL gap in the one, a displaced arm in the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.sharpness import entropy_of_arm, split_nll_gap
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=400, seed=5)
CLUSTERS = [f"d{number:02}" for number in range(12) for _ in range(50)]


def rows(logits, next_tokens, reference):
    """NLL, entropy and KL from the reference of rows of logits [rows, V]."""
    q, p = log_softmax(logits, axis=1), log_softmax(reference, axis=1)
    nll = -q[np.arange(len(q)), next_tokens]
    return nll, -(np.exp(q) * q).sum(axis=1), np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0)


def split(candidate, baseline, clusters=CLUSTERS):
    return split_nll_gap(
        candidate[0], baseline[0], candidate_entropy=candidate[1], baseline_entropy=baseline[1],
        candidate_kl=candidate[2], baseline_kl=baseline[2], clusters=clusters, preset=QUICK,
    )  # fmt: skip


def drawn(reference, chance):
    """Next tokens drawn from the reference itself."""
    shares = np.exp(log_softmax(reference, axis=1)).cumsum(axis=1)
    return np.minimum((chance.random((len(reference), 1)) > shares).sum(axis=1), reference.shape[1] - 1)


def test_a_flattened_arm_on_a_greedy_text_is_found_and_its_nll_gap_exceeds_its_kl_gap():
    chance = np.random.default_rng(1)
    reference = chance.normal(0, 3, (600, 30))
    greedy = reference.argmax(axis=1)
    result = split(rows(reference / 1.2, greedy, reference), rows(reference, greedy, reference))
    assert result.found and "mostly flatter" in result.sentence
    assert result.sharpness.value > 0 and result.sharpness_share > 0.5
    assert result.gap.value > 3 * result.kl_gap.value > 0
    sharper = split(rows(reference, greedy, reference), rows(reference / 1.2, greedy, reference))
    assert sharper.found and "mostly sharper" in sharper.sentence


def test_an_arm_that_puts_its_mass_elsewhere_is_displaced_and_no_finding():
    chance = np.random.default_rng(2)
    reference = chance.normal(0, 3, (600, 30))
    # The same values, two tokens swapped in each row: the entropy is the same to rounding.
    moved = reference.copy()
    moved[:, [0, 1]] = reference[:, [1, 0]]
    tokens = drawn(reference, chance)
    result = split(rows(moved, tokens, reference), rows(reference, tokens, reference))
    assert not result.found
    assert result.sharpness.value == pytest.approx(0, abs=1e-12)
    assert result.displacement.value == pytest.approx(result.gap.value, abs=1e-12)


def test_on_a_text_drawn_from_the_reference_the_nll_gap_is_the_kl_gap():
    chance = np.random.default_rng(3)
    reference = chance.normal(0, 2, (600, 30))
    tokens = drawn(reference, chance)
    result = split(
        rows(reference + chance.normal(0, 1.5, (600, 30)), tokens, reference), rows(reference, tokens, reference)
    )
    assert result.kl_gap.interval.low > 0.1
    assert result.beyond_kl.interval.low < 0 < result.beyond_kl.interval.high


def test_identical_arms_give_zero_and_no_finding():
    chance = np.random.default_rng(4)
    own = rows(chance.normal(size=(600, 9)), np.zeros(600, dtype=int), chance.normal(size=(600, 9)))
    result = split(own, own)
    assert (result.gap.value, result.sharpness.value, result.displacement.value, result.kl_gap.value) == (0, 0, 0, 0)
    assert not result.found and isinstance(result.sharpness_share, Missing)


@pytest.mark.parametrize(("sharpness", "found"), [(0.5, True), (0.4375, False), (-0.5, False)])
def test_sharpness_must_be_half_of_the_gap_and_have_its_sign(sharpness, found):
    zeros, ids = np.zeros(10), [f"d{place}" for place in range(10)]
    result = split_nll_gap(
        zeros + 1, zeros, candidate_entropy=zeros + sharpness, baseline_entropy=zeros, clusters=ids, preset=QUICK
    )
    assert result.found is found and result.sharpness_share == sharpness


def test_a_gap_that_is_not_told_from_zero_is_no_finding():
    gaps = np.array([1.0, -1.0] * 5)
    ids = [f"d{place}" for place in range(10)]
    assert not split_nll_gap(
        gaps, 0 * gaps, candidate_entropy=gaps, baseline_entropy=0 * gaps, clusters=ids, preset=QUICK
    ).found


def test_the_split_by_hand():
    result = split_nll_gap(
        [2.0, 4.0],
        [1.0, 1.0],
        candidate_entropy=[1.5, 2.5],
        baseline_entropy=[1.0, 1.0],
        clusters=["a", "b"],
        preset=QUICK,
    )
    assert (result.gap.value, result.sharpness.value, result.displacement.value) == (2.0, 1.0, 1.0)
    assert result.sharpness_share == 0.5
    assert isinstance(result.kl_gap, Missing) and isinstance(result.beyond_kl, Missing)


VALUES = st.lists(st.tuples(*[st.floats(0, 20)] * 6, st.sampled_from("abcdefghij")), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_both_splits_are_exact_and_the_order_of_the_rows_does_not_matter(table, chance):
    def read(own):
        columns = np.array([row[:6] for row in own]).T
        return split(columns[:3], columns[3:], [row[6] for row in own])

    result = read(table)
    assert result.sharpness.value + result.displacement.value == pytest.approx(result.gap.value, abs=1e-12)
    assert result.kl_gap.value + result.beyond_kl.value == pytest.approx(result.gap.value, abs=1e-12)
    assert read(chance.sample(table, len(table))) == result


def test_the_kl_of_one_arm_alone_gives_no_kl_gap():
    one = split_nll_gap(
        [2.0], [1.0], candidate_entropy=[1.0], baseline_entropy=[1.0], candidate_kl=[0.5], clusters=["a"], preset=QUICK
    )
    assert isinstance(one.kl_gap, Missing) and one.gap.value == 1.0


def test_excess_entropy_and_its_share_of_the_reference_by_hand():
    # Reference 1 and 3 nats, the arm 0.2 and 0.6 above: 0.4 of a mean of 2, so 20 %.
    result = entropy_of_arm([1.2, 3.6], ["a", "b"], reference_entropy=[1.0, 3.0], preset=QUICK)
    assert result.entropy.value == 2.4
    assert result.excess.value == pytest.approx(0.4) and result.excess_share == pytest.approx(0.2)
    assert "20 %" in result.sentence.replace("+", "") and isinstance(result.excess_share_interval, Missing)


def test_the_share_of_many_clusters_has_a_joint_interval_and_a_bound_is_labelled():
    reference = np.linspace(1, 2, 10)
    ids = [f"d{number}" for number in range(10)]
    result = entropy_of_arm(1.17 * reference, ids, reference_entropy=reference, bound=True, preset=QUICK)
    assert result.excess_share == pytest.approx(0.17)
    assert (result.excess_share_interval.low, result.excess_share_interval.high) == pytest.approx((0.17, 0.17))
    assert "upper bound" in result.sentence


def test_without_a_reference_there_is_an_entropy_and_no_excess():
    result = entropy_of_arm([1.0, 2.0], ["a", "b"], preset=QUICK)
    assert result.entropy.value == 1.5
    assert isinstance(result.excess, Missing) and isinstance(result.excess_share, Missing)


def test_a_reference_that_is_certain_everywhere_has_no_share():
    result = entropy_of_arm([0.5], ["a"], reference_entropy=[0.0], preset=QUICK)
    assert result.excess.value == 0.5 and isinstance(result.excess_share, Missing)


def test_columns_that_do_not_pair_up_are_named():
    with pytest.raises(EngcmpError, match="reference_entropy 1"):
        entropy_of_arm([1.0, 2.0], ["a", "b"], reference_entropy=[1.0], preset=QUICK)
