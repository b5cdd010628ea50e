"""Bootstrap statistics for many replicates at once: how often each cluster is drawn, then ratios of weighted sums.

A replicate's statistic needs no order of its draws, only how often it holds each cluster. These counts serve every measure of a panel.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.splitmix import cluster_draws

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

_TURN = 1 << 11  # replicates at once: a temporary is 16 KiB and stays in the cache


@functools.lru_cache(maxsize=8)
def drawn_counts(clusters: int, replicates: int, seed: int) -> Int32:
    """How often each replicate holds each cluster, int32 [clusters, replicates], read-only: the draws of splitmix.cluster_draws, counted.

    Raises EngcmpError as cluster_draws does.
    """
    draws = cluster_draws(clusters, replicates, seed)
    counts = np.empty((clusters, replicates), dtype=np.int32)
    for start in range(0, replicates, _TURN):
        part = draws[start : start + _TURN]
        places = part + clusters * np.arange(len(part))[:, None]
        counts[:, start : start + _TURN] = np.bincount(places.ravel(), minlength=part.size).reshape(part.shape).T
    counts.setflags(write=False)  # shared by every measure of a panel
    return counts


def replicate_ratios(sums: Float64, counts: Float64, drawn: Int32) -> Float64:
    """The ratio of summed `sums` to summed `counts` [clusters] in each replicate of `drawn`, float64 [replicates].

    Clusters are added in their order, so the ratios are the same bits on every machine.
    """
    ratios = np.empty(drawn.shape[1], dtype=np.float64)
    for start in range(0, len(ratios), _TURN):
        part = drawn[:, start : start + _TURN]
        total, size, product = (np.zeros(part.shape[1]) for _ in range(3))
        for weight, own_sum, own_count in zip(part, sums, counts, strict=True):
            total += np.multiply(weight, own_sum, out=product)
            size += np.multiply(weight, own_count, out=product)
        np.divide(total, size, out=ratios[start : start + _TURN])
    return ratios
