"""SplitMix64 and exact index draws (MEASURES section 4): every implementation of it draws the same clusters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError

_WORDS = 1 << 64
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_CHUNK = 1 << 18  # outputs made at once: 2 MiB of uint64, so that memory does not grow with the number of draws


def outputs(seed: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Outputs `first` to `first + count - 1` (from 0) of SplitMix64 seeded with `seed` itself, as uint64 [count].

    The state only ever grows by a constant, so output i needs no earlier output: it mixes seed + (i + 1) * gamma.
    Raises EngcmpError for a seed that is not an unsigned 64-bit integer.
    """
    if not 0 <= seed < _WORDS:
        raise EngcmpError(f"seed {seed} is not an unsigned 64-bit integer", remedy="give a seed from 0 to 2^64 - 1")
    z = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    z *= _GAMMA
    z += np.uint64(seed)
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    z ^= z >> np.uint64(31)
    return z


def indices(below: int, count: int, seed: int) -> npt.NDArray[np.uint64]:
    """The first `count` indices from 0 to `below - 1` of the stream of `seed`, as uint64 [count].

    Each is drawn by rejection: draw until x >= (2^64 - below) mod below, then x mod below, so every index is exactly
    equally likely. Raises EngcmpError for `below` outside 1 .. 2^64 - 1 or a negative count.
    """
    if not 1 <= below < _WORDS or count < 0:
        raise EngcmpError(f"cannot draw {count} indices below {below}", remedy="draw at least 0, below 1 to 2^64 - 1")
    threshold = np.uint64((_WORDS - below) % below)
    drawn = np.empty(count, dtype=np.uint64)
    filled, used = 0, 0
    while filled < count:
        size = min(_CHUNK, count - filled)
        x = outputs(seed, used, size)
        used += size
        kept = x[x >= threshold]
        drawn[filled : filled + kept.size] = kept % np.uint64(below)
        filled += kept.size
    return drawn


def cluster_draws(clusters: int, replicates: int, seed: int) -> npt.NDArray[np.int32]:
    """Bootstrap draws, int32 [replicates, clusters]: each row holds `clusters` cluster indices, with replacement.

    All come from one continuous stream, replicate by replicate. Raises EngcmpError for fewer than one cluster or
    replicate.
    """
    if clusters < 1 or replicates < 1:
        raise EngcmpError(
            f"cannot draw {replicates} replicates of {clusters} clusters", remedy="give at least one of each"
        )
    return indices(clusters, clusters * replicates, seed).astype(np.int32).reshape(replicates, clusters)
