"""Uncertainty of a mean over rows that come in clusters (MEASURES section 4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from engcmp_assets.kernel.exact_sums import exact_sums, numbered
from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]
Names = Sequence[str] | npt.NDArray[Any]
Kind = Literal["mean", "proportion", "difference"]

BOOTSTRAP_CLUSTERS = 8  # from here on the percentile bootstrap; below it, the t-interval on cluster means
INTERVAL_CLUSTERS = 3  # below it no interval at all
_SPREAD_CLUSTERS = 2  # a spread needs two
_TIE = 1e-12  # relative: two orders of adding the same cluster means must count as equal


@dataclass(frozen=True, slots=True)
class Preset:
    """How often a cluster bootstrap resamples, and from which seed. It belongs to the protocol."""

    replicates: int
    seed: int


PANEL = Preset(replicates=20_000, seed=20260929)


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """Values summed by cluster: `ids` sorted, `sums` and `counts` float64 [clusters]; only clusters with a row."""

    ids: tuple[str, ...]
    sums: Float64
    counts: Float64

    @property
    def means(self) -> Float64:
        return self.sums / self.counts

    @property
    def mean(self) -> float:
        """The position-weighted mean: the ratio of summed values to summed counts."""
        return math.fsum(self.sums) / float(self.counts.sum())


@dataclass(frozen=True, slots=True)
class Estimate:
    """A position-weighted mean with what is known of its uncertainty, in the unit of the values.

    `cluster_mean` is the unweighted mean of the cluster means, on which the t-interval of few clusters stands.
    """

    value: float | Missing
    interval: Interval | Missing
    rows: int
    clusters: int
    cluster_mean: float | Missing
    distinct_resamples: int | Missing
    standard_error: float | Missing
    sign_flip_p: float | Missing
    method: str


def population_mean(
    values: npt.ArrayLike,
    clusters: Names,
    *,
    preset: Preset,
    level: float = 0.95,
    kind: Kind = "mean",
) -> Estimate:
    """Mean of `values` [rows] with a two-sided interval at `level`; `clusters` [rows] names each row's cluster.

    8 clusters or more: cluster bootstrap of the ratio of sums. 3 to 7: t-interval around the mean of cluster means,
    and for a `difference` the exact sign-flip p. Fewer: no interval. A `proportion` whose rows are all 0 or all 1 gets
    a Wilson interval with the clusters as its trials, because resampling would show no spread. No row: all is Missing.
    Raises EngcmpError for values that are not finite or do not pair up with `clusters`, and for a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise EngcmpError(f"level {level} is not between 0 and 1", remedy="give 0.95 for a 95 % interval")
    groups = by_cluster(values, clusters)
    size = len(groups.ids)
    if size == 0:
        none = Missing("no row is in the population")
        return Estimate(none, none, 0, 0, none, none, none, none, "none")
    interval = _interval(groups, preset, level, kind)
    return Estimate(
        value=groups.mean,
        interval=interval,
        rows=int(groups.counts.sum()),
        clusters=size,
        cluster_mean=math.fsum(groups.means) / size,
        distinct_resamples=distinct_resamples(size),
        standard_error=clustered_standard_error(groups.sums, groups.counts),
        sign_flip_p=_sign_flip(groups, kind),
        method="none" if isinstance(interval, Missing) else interval.method,
    )


def by_cluster(values: npt.ArrayLike, clusters: Names) -> ClusterSums:
    """Sum `values` [rows] by `clusters` [rows], clusters in the order of their ids; rows may come in any order.

    Raises EngcmpError where lengths differ or a value is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (len(clusters),):
        raise EngcmpError(
            f"{list(array.shape)} values for {len(clusters)} cluster ids", remedy="give one cluster id a row"
        )
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array))[0])
        raise EngcmpError(f"row {row} of cluster {clusters[row]} is {array[row]}", remedy="leave bad rows out first")
    ids, places = numbered(clusters)
    # Each sum rounds once, so the order of the rows cannot change a figure.
    sums = exact_sums(array, places, len(ids))
    return ClusterSums(ids, sums, np.bincount(places, minlength=len(ids)).astype(np.float64))


def clustered_standard_error(sums: npt.ArrayLike, counts: npt.ArrayLike) -> float | Missing:
    """sqrt(G/(G-1) * sum_g (T_g - n_g * m)^2) / N of cluster sums T and counts n [G], m = the ratio of sums."""
    totals, sizes = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    size = len(totals)
    if size < _SPREAD_CLUSTERS:
        return Missing(f"{_named(size)}: a standard error needs at least {_SPREAD_CLUSTERS}")
    mean = math.fsum(totals) / float(sizes.sum())
    squares = math.fsum((totals - sizes * mean) ** 2)
    return math.sqrt(size / (size - 1) * squares) / float(sizes.sum())


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval | Missing:
    """Wilson's interval of a proportion of independent trials; it has a width at 0 and 100 % too.

    Raises EngcmpError for a count outside 0 .. trials.
    """
    if not 0 <= successes <= trials:
        raise EngcmpError(f"{successes} successes of {trials} trials", remedy="count successes among the trials")
    if trials == 0:
        return Missing("no trial: a proportion has no value")
    z = float(scipy.special.ndtri(0.5 + level / 2))
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2) / (1 + z * z / trials)
    # At the ends the formula gives 0 or 1 up to rounding; say it exactly.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(low, high, level, f"Wilson, {trials} trials")


def distinct_resamples(clusters: int) -> int:
    """How many different resamples of `clusters` clusters there are: C(2G - 1, G)."""
    return math.comb(2 * clusters - 1, clusters)


def sign_flip_p(cluster_means: npt.ArrayLike) -> float:
    """Exact two-sided sign-flip p of the mean of `cluster_means` [G].

    It is the share of the 2^G sign patterns whose mean is at least as far from 0 as the observed one.
    """
    means = [float(one) for one in np.asarray(cluster_means, dtype=np.float64)]
    observed = abs(math.fsum(means)) - _TIE * math.fsum(abs(one) for one in means)
    patterns = itertools.product((1.0, -1.0), repeat=len(means))
    as_far = sum(
        abs(math.fsum(sign * one for sign, one in zip(signs, means, strict=True))) >= observed for signs in patterns
    )
    return float(as_far / 2 ** len(means))


def _interval(groups: ClusterSums, preset: Preset, level: float, kind: Kind) -> Interval | Missing:
    size = len(groups.ids)
    if size < INTERVAL_CLUSTERS:
        return Missing(f"{_named(size)}: an interval needs at least {INTERVAL_CLUSTERS}")
    if kind == "proportion" and (not groups.sums.any() or bool((groups.sums == groups.counts).all())):
        # Rows of one cluster are not independent trials, so the clusters are counted: too wide rather than too narrow.
        edge = wilson(size if groups.sums.any() else 0, size, level=level)
        if isinstance(edge, Interval):
            return Interval(edge.low, edge.high, level, f"Wilson on {size} clusters: every row reads the same")
    if size >= BOOTSTRAP_CLUSTERS:
        return _bootstrap_interval(groups, preset, level)
    half = float(scipy.special.stdtrit(size - 1, 0.5 + level / 2)) * float(groups.means.std(ddof=1)) / math.sqrt(size)
    centre = math.fsum(groups.means) / size
    return Interval(centre - half, centre + half, level, f"t-interval on {size} cluster means")


def _bootstrap_interval(groups: ClusterSums, preset: Preset, level: float) -> Interval | Missing:
    tail = (1 - level) / 2
    if preset.replicates * tail < 1:
        return Missing(f"{preset.replicates:,} replicates leave less than one beyond a level of {level:g}")
    size = len(groups.ids)
    statistics = replicate_ratios(groups.sums, groups.counts, drawn_counts(size, preset.replicates, preset.seed))
    low, high = np.quantile(statistics, [tail, 1 - tail], method="linear").tolist()
    method = f"cluster bootstrap, {preset.replicates:,} replicates, seed {preset.seed}"
    return Interval(low, high, level, method)


def _sign_flip(groups: ClusterSums, kind: Kind) -> float | Missing:
    size = len(groups.ids)
    if kind != "difference":
        return Missing("a sign-flip test is of a difference")
    if size >= BOOTSTRAP_CLUSTERS:
        return Missing(f"{_named(size)}: the bootstrap interval decides from {BOOTSTRAP_CLUSTERS} on")
    if size < INTERVAL_CLUSTERS:
        return Missing(f"{_named(size)}: a test needs at least {INTERVAL_CLUSTERS}")
    return sign_flip_p(groups.means)


def _named(clusters: int) -> str:
    return f"{clusters} cluster" if clusters == 1 else f"{clusters} clusters"


def excludes_zero(interval: Interval | Missing) -> bool:
    """Whether `interval` lies wholly on one side of zero; a Missing one excludes nothing."""
    return isinstance(interval, Interval) and (interval.low > 0 or interval.high < 0)
