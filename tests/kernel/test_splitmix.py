"""SplitMix64 draws equal a plain loop of the published definition, rejection included."""

import numpy as np
import pytest

from engcmp_assets.kernel import splitmix
from engcmp_assets.kernel.splitmix import cluster_draws, indices, outputs
from engcmp_resources.errors import EngcmpError

MASK = (1 << 64) - 1


def plain_outputs(seed):
    """MEASURES section 4, word for word."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def plain_indices(below, count, seed):
    """Indices by rejection, and how many outputs were rejected."""
    stream, drawn, rejected = plain_outputs(seed), [], 0
    while len(drawn) < count:
        x = next(stream)
        if x >= ((1 << 64) - below) % below:
            drawn.append(x % below)
        else:
            rejected += 1
    return drawn, rejected


def test_the_published_outputs_of_seed_1234567_are_reproduced():
    # The test vector that goes with the public reference implementation (Vigna, splitmix64.c).
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert outputs(1234567, 0, 5).tolist() == published


@pytest.mark.parametrize("seed", [0, 1, 20260929, MASK])
def test_vectorised_outputs_equal_the_plain_loop_from_any_place_in_the_stream(seed):
    stream = plain_outputs(seed)
    expected = [next(stream) for _ in range(50)]
    assert outputs(seed, 0, 50).tolist() == expected
    assert outputs(seed, 17, 5).tolist() == expected[17:22]


def test_cluster_draws_equal_the_plain_loop_replicate_by_replicate():
    expected, _ = plain_indices(12, 12 * 40, 20260929)
    draws = cluster_draws(12, 40, 20260929)
    assert draws.shape == (40, 12)
    assert draws.ravel().tolist() == expected


def test_draws_equal_the_plain_loop_where_half_of_the_outputs_are_rejected():
    below = (1 << 63) + 1
    expected, rejected = plain_indices(below, 200, 7)
    assert rejected > 50
    assert indices(below, 200, 7).tolist() == expected


def test_rejection_across_chunk_borders_loses_no_output(monkeypatch):
    monkeypatch.setattr(splitmix, "_CHUNK", 16)
    below = (1 << 63) + 1
    assert indices(below, 100, 3).tolist() == plain_indices(below, 100, 3)[0]


def test_draws_are_with_replacement_and_use_every_cluster():
    draws = cluster_draws(5, 200, 1)
    assert set(draws.ravel().tolist()) == {0, 1, 2, 3, 4}
    assert any(len(set(row)) < 5 for row in draws.tolist())


def test_one_cluster_always_draws_itself():
    assert not np.any(cluster_draws(1, 10, 99))


@pytest.mark.parametrize(("clusters", "replicates", "seed"), [(0, 5, 1), (5, 0, 1), (5, 5, -1), (5, 5, 1 << 64)])
def test_impossible_draws_are_refused(clusters, replicates, seed):
    with pytest.raises(EngcmpError):
        cluster_draws(clusters, replicates, seed)
