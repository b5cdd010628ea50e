"""An interval from a handful of clusters: what a percentile bootstrap would claim, and what the clusters support."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.review.shared import Names, between, check_rows, many, numbers, stands, strings
from engcmp_assets.kernel.uncertainty import (
    BOOTSTRAP_CLUSTERS,
    Estimate,
    Preset,
    by_cluster,
    excludes_zero,
    population_mean,
)

_SPREAD_CLUSTERS = 2  # one cluster resamples to itself only


@dataclass(frozen=True, slots=True)
class FewClusters:
    """A paired difference on few clusters. `estimate` carries the t-interval (3 to 7 clusters), the exact sign-flip p and C(2G-1, G).

    `percentile` is the bootstrap interval that is not to be printed under 8 clusters: it is here to show what it would have claimed.
    `found`: it excludes zero under 8 clusters while the t-interval with the exact test does not.
    """

    estimate: Estimate
    percentile: Interval | Missing
    positive: int
    negative: int
    sign_test_p: float
    found: bool
    sentence: str


def few_clusters(differences: npt.ArrayLike, clusters: Names, *, preset: Preset, level: float = 0.95) -> FewClusters:
    """Check whether the number of clusters carries an interval; `differences` and `clusters` are [rows].

    Raises EngcmpError for columns that do not pair up, no row, and values that are not finite.
    """
    values, names = numbers(differences), strings(clusters)
    check_rows(differences=values, clusters=names)
    groups = by_cluster(values, names)
    size = len(groups.ids)
    estimate = population_mean(values, names, preset=preset, level=level, kind="difference")
    percentile: Interval | Missing = Missing("1 cluster: every resample is that cluster")
    if size >= _SPREAD_CLUSTERS:
        drawn = replicate_ratios(groups.sums, groups.counts, drawn_counts(size, preset.replicates, preset.seed))
        low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], method="linear").tolist()
        percentile = Interval(
            low, high, level, f"percentile bootstrap over {estimate.distinct_resamples} distinct resamples"
        )
    found = size < BOOTSTRAP_CLUSTERS and excludes_zero(percentile) and not stands(estimate)
    positive, negative = int((groups.sums > 0).sum()), int((groups.sums < 0).sum())
    sign_p = sign_test_p(positive, negative)
    text = (
        f"{many(size, 'cluster')} ({positive} above zero, {negative} below; sign test p = {sign_p:.3g}) have "
        f"{many(math.comb(2 * size - 1, size), 'distinct resample')}"
    )
    if found:
        text += (
            f"; a percentile bootstrap over them would exclude zero, {between(percentile)}, but so few clusters do not: "
            f"{_instead(estimate)}"
        )
    return FewClusters(estimate, percentile, positive, negative, sign_p, found, f"{text}.")


def sign_test_p(positive: int, negative: int) -> float:
    """Exact two-sided sign test: how likely a split at least as uneven is by chance. Zeros are left out; 1 where none is left."""
    trials, fewer = positive + negative, min(positive, negative)
    as_uneven = 2 * sum(math.comb(trials, k) for k in range(fewer + 1))
    return min(1.0, float(as_uneven / 2**trials))


def _instead(estimate: Estimate) -> str:
    p = estimate.sign_flip_p
    exact = "" if isinstance(p, Missing) else f", exact sign-flip p = {p:.3g}"
    return f"the t-interval is {between(estimate.interval)}{exact}"
