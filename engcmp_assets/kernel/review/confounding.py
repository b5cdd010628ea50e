"""A bucket that is really a block: a trend over context lengths that may be one over kinds of content instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.review.shared import Bools, Float64, Names, between, check_rows, many, numbers, said, strings
from engcmp_assets.kernel.uncertainty import (
    BOOTSTRAP_CLUSTERS,
    INTERVAL_CLUSTERS,
    ClusterSums,
    Estimate,
    Preset,
    by_cluster,
    population_mean,
)
from engcmp_resources.errors import EngcmpError

SHARE = 0.8  # of a bucket's rows from one block: from here on the bucket's figure is that block's


@dataclass(frozen=True, slots=True)
class DifferenceOfDifferences:
    """The difference on the rows inside, minus the difference on those outside (position-weighted means), in the measure's unit."""

    value: float
    interval: Interval | Missing
    clusters_inside: int
    clusters_outside: int


@dataclass(frozen=True, slots=True)
class BlockTrend:
    """One block in every bucket in which it has rows, and the confounded bucket against its others."""

    block: str
    by_bucket: tuple[tuple[str, Estimate], ...]
    difference_of_differences: DifferenceOfDifferences


@dataclass(frozen=True, slots=True)
class ConfoundedBucket:
    """A bucket whose figure cannot be told from that of a block: `share` of its `rows` are of `block`.

    `pooled` is what must not be read as an effect of the bucket; `within_blocks` is what stands instead, of each block that has rows both
    in the bucket and outside it.
    """

    bucket: str
    block: str
    share: float
    rows: int
    block_only_here: bool
    pooled: Estimate
    within_blocks: tuple[BlockTrend, ...] | Missing
    sentence: str


def confounded_buckets(
    differences: npt.ArrayLike,
    clusters: Names,
    *,
    blocks: Names,
    buckets: Names,
    preset: Preset,
    level: float = 0.95,
    share: float = SHARE,
) -> tuple[ConfoundedBucket, ...]:
    """Every bucket of which one block has at least `share` of the rows, while it has less of the rows outside; columns are [rows].

    A block that dominates everywhere is no confound: buckets then have like contents. Empty where nothing is found. Raises EngcmpError
    for columns that do not pair up, values not finite, and a share outside (0.5, 1].
    """
    values, column = numbers(differences), strings(clusters)
    block_of, bucket_of = strings(blocks), strings(buckets)
    check_rows(differences=values, clusters=column, blocks=block_of, buckets=bucket_of)
    if not 0.5 < share <= 1:  # noqa: PLR2004 - more than a half
        raise EngcmpError(f"a share of {share}", remedy="give more than a half, at most 1")
    found = []
    for bucket in np.unique(bucket_of).tolist():
        inside = bucket_of == bucket
        names, counts = np.unique(block_of[inside], return_counts=True)
        block, count = str(names[counts.argmax()]), int(counts.max())  # of equals the first name
        outside = ~inside
        own = block_of == block
        if not outside.any() or count < share * inside.sum() or own[outside].mean() >= share:
            continue
        trends = tuple(
            _trend(
                values,
                column,
                block_of == name,
                bucket_of=bucket_of,
                bucket=bucket,
                preset=preset,
                level=level,
                name=name,
            )
            for name in np.intersect1d(names, block_of[outside]).tolist()
        )
        pooled = population_mean(values[inside], column[inside], preset=preset, level=level, kind="difference")
        within = trends or Missing(f"no block has rows both in {bucket} and outside it: the two cannot be told apart")
        only = not own[outside].any()
        part = count / int(inside.sum())
        text = _sentence(bucket, block, part, pooled, within, only=only)
        found.append(ConfoundedBucket(bucket, block, part, int(inside.sum()), only, pooled, within, text))
    return tuple(found)


def difference_of_differences(
    differences: npt.ArrayLike, clusters: Names, *, inside: Bools, preset: Preset, level: float = 0.95
) -> DifferenceOfDifferences:
    """Mean of `differences` [rows] on the rows `inside` minus the mean on the others, with an interval at `level`.

    8 clusters or more on both sides: joint cluster bootstrap of both ratios (resamples that lack a side are left out). Fewer: where
    clusters have rows on both sides, a t-interval on those clusters' own differences; else Welch's interval on the cluster means. Under
    3 clusters (on a side, or on both) there is none. Raises EngcmpError for columns that do not pair up and for an empty side.
    """
    values, column, mask = numbers(differences), strings(clusters), np.asarray(inside, dtype=np.bool_)
    check_rows(differences=values, clusters=column, inside=mask)
    if mask.all() or not mask.any():
        raise EngcmpError("all rows are on one side", remedy="give rows inside and outside")
    inner, outer = (by_cluster(values[side], column[side]) for side in (mask, ~mask))
    interval: Interval | Missing
    if min(len(inner.ids), len(outer.ids)) >= BOOTSTRAP_CLUSTERS:
        interval = _joint_bootstrap(inner, outer, preset, level)
    elif set(inner.ids) & set(outer.ids):
        interval = _paired(inner, outer, preset, level)
    else:
        interval = _welch(inner.means, outer.means, level)
    return DifferenceOfDifferences(inner.mean - outer.mean, interval, len(inner.ids), len(outer.ids))


def _trend(
    values: Float64, clusters: npt.NDArray[np.str_], own: Bools, *,
    bucket_of: npt.NDArray[np.str_], bucket: str, preset: Preset, level: float, name: str,
) -> BlockTrend:  # fmt: skip
    by_bucket = []
    for one in np.unique(bucket_of[own]).tolist():
        rows = own & (bucket_of == one)
        estimate = population_mean(values[rows], clusters[rows], preset=preset, level=level, kind="difference")
        by_bucket.append((one, estimate))
    effect = difference_of_differences(
        values[own], clusters[own], inside=bucket_of[own] == bucket, preset=preset, level=level
    )
    return BlockTrend(name, tuple(by_bucket), effect)


def _joint_bootstrap(inner: ClusterSums, outer: ClusterSums, preset: Preset, level: float) -> Interval:
    ids = sorted(set(inner.ids) | set(outer.ids))
    drawn = drawn_counts(len(ids), preset.replicates, preset.seed)
    with np.errstate(invalid="ignore"):
        sides = [
            replicate_ratios(_spread(ids, side.ids, side.sums), _spread(ids, side.ids, side.counts), drawn)
            for side in (inner, outer)
        ]
    statistics = sides[0] - sides[1]
    tail = (1 - level) / 2
    low, high = np.quantile(statistics[np.isfinite(statistics)], [tail, 1 - tail], method="linear").tolist()
    return Interval(low, high, level, f"joint cluster bootstrap, {preset.replicates:,} replicates, seed {preset.seed}")


def _spread(ids: Sequence[str], own: Sequence[str], values: Float64) -> Float64:
    """`values` of the clusters `own`, at their places among `ids`; 0 elsewhere."""
    known = dict(zip(own, values.tolist(), strict=True))
    return np.array([known.get(name, 0.0) for name in ids], dtype=np.float64)


def _paired(inner: ClusterSums, outer: ClusterSums, preset: Preset, level: float) -> Interval | Missing:
    inside, outside = (dict(zip(side.ids, side.means.tolist(), strict=True)) for side in (inner, outer))
    both = sorted(set(inside) & set(outside))
    return population_mean(
        [inside[one] - outside[one] for one in both], both, preset=preset, level=level, kind="difference"
    ).interval


def _welch(first: Float64, second: Float64, level: float) -> Interval | Missing:
    fewest = min(len(first), len(second))
    if fewest < INTERVAL_CLUSTERS:
        return Missing(f"{many(fewest, 'cluster')} on one side: an interval needs at least {INTERVAL_CLUSTERS} on each")
    parts = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    centre, squared = float(first.mean() - second.mean()), sum(parts)
    if squared == 0:
        return Missing("the clusters of each side are all equal: with no spread there is no interval")
    freedom = squared**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    half = float(scipy.special.stdtrit(freedom, 0.5 + level / 2)) * squared**0.5
    return Interval(
        centre - half, centre + half, level, f"Welch's t-interval on {len(first)} and {len(second)} cluster means"
    )


def _sentence(
    bucket: str, block: str, part: float, pooled: Estimate, within: tuple[BlockTrend, ...] | Missing, *, only: bool
) -> str:
    where = ", which has rows nowhere else" if only else ""
    text = (
        f"{100 * part:.3g} % of the rows of bucket {bucket} are of block {block}{where}: "
        f"its difference {said(pooled.value)} is not an effect of the bucket"
    )
    if isinstance(within, Missing):
        return f"{text}; {within.reason}."
    effects = [(one.block, one.difference_of_differences) for one in within]
    trends = "; ".join(
        f"within block {name} the bucket adds {said(own.value)} {between(own.interval)}" for name, own in effects
    )
    return f"{text}; {trends}."
