"""Counted draws are the draws of the law, and the ratios made of them are those of a plain loop."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel import fast_resample
from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_resources.errors import EngcmpError

MASK = (1 << 64) - 1


def plain_draws(clusters, replicates, seed):
    """MEASURES section 4, word for word."""
    state, drawn = seed, []
    while len(drawn) < clusters * replicates:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        if z >= ((1 << 64) - clusters) % clusters:
            drawn.append(z % clusters)
    return [drawn[start : start + clusters] for start in range(0, len(drawn), clusters)]


@pytest.mark.parametrize(("clusters", "replicates"), [(1, 3), (8, 50), (25, 40), (64, 20)])
def test_the_counts_are_those_of_a_plain_loop_over_the_generator(clusters, replicates):
    counts = drawn_counts(clusters, replicates, 20260929)
    assert counts.shape == (clusters, replicates)
    for replicate, draw in enumerate(plain_draws(clusters, replicates, 20260929)):
        assert counts[:, replicate].tolist() == [draw.count(cluster) for cluster in range(clusters)]


def test_borders_between_turns_lose_no_replicate(monkeypatch):
    sums, sizes = np.random.default_rng(1).uniform(1, 5, (2, 9))
    whole = drawn_counts(9, 100, 7)
    ratios = replicate_ratios(sums, sizes, whole)
    monkeypatch.setattr(fast_resample, "_TURN", 7)
    assert np.array_equal(drawn_counts.__wrapped__(9, 100, 7), whole)
    assert np.array_equal(replicate_ratios(sums, sizes, whole), ratios)


def test_the_ratios_are_exact_to_a_part_in_a_million_millions():
    chance = np.random.default_rng(2)
    sums, counts = chance.gamma(0.5, 1, 25), chance.integers(1, 90, 25).astype(np.float64)
    found = replicate_ratios(sums, counts, drawn_counts(25, 60, 5))
    for replicate, draw in enumerate(plain_draws(25, 60, 5)):
        exact = sum(Fraction(sums[one]) for one in draw) / sum(Fraction(counts[one]) for one in draw)
        assert found[replicate] == pytest.approx(float(exact), rel=1e-13)


def test_at_the_size_of_a_panel_they_equal_the_gathered_sums():
    chance = np.random.default_rng(3)
    sums, counts = chance.gamma(0.5, 1, 64), chance.integers(1, 90, 64).astype(np.float64)
    draws = cluster_draws(64, 20_000, 20260929)
    found = replicate_ratios(sums, counts, drawn_counts(64, 20_000, 20260929))
    assert found == pytest.approx(sums[draws].sum(axis=1) / counts[draws].sum(axis=1), rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, MASK))
def test_every_replicate_holds_as_many_clusters_as_there_are(clusters, replicates, seed):
    counts = drawn_counts(clusters, replicates, seed)
    assert (counts >= 0).all()
    assert counts.sum(axis=0).tolist() == [clusters] * replicates


def test_equal_clusters_give_their_own_ratio_in_every_replicate():
    assert replicate_ratios(np.full(8, 3.0), np.full(8, 4.0), drawn_counts(8, 500, 1)).tolist() == [0.75] * 500


def test_the_shared_counts_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        drawn_counts(8, 10, 1)[0, 0] = 5


@pytest.mark.parametrize(("clusters", "replicates"), [(0, 5), (5, 0)])
def test_impossible_draws_are_refused(clusters, replicates):
    with pytest.raises(EngcmpError, match="cannot draw"):
        drawn_counts(clusters, replicates, 1)
