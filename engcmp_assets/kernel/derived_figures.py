"""Figures that are made of several means over the same rows, each resampled jointly (MEASURES section 2, "Derived figures").

Every replicate draws clusters once, and all means of the figure are of that draw. The draws are those of every other interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, Preset, by_cluster

Float64 = npt.NDArray[np.float64]
_Statistic = Callable[..., Float64]


@dataclass(frozen=True, slots=True)
class DerivedFigure:
    """A value without a unit and its two-sided interval, or why there is none."""

    value: float | Missing
    interval: Interval | Missing


def ratio_of_means(
    numerators: npt.ArrayLike, denominators: npt.ArrayLike, clusters: Sequence[str], *, preset: Preset, level: float = 0.95
) -> DerivedFigure:  # fmt: skip
    """The mean of `numerators` [rows] divided by that of `denominators` [rows], `clusters` [rows] naming each row's cluster.

    Of two arms' distances it is `distance_ratio`; of an engine's and a reference's entropies the measure entropy_ratio. Missing where
    the denominators' mean is 0; no interval under 8 clusters, or where a resample has that mean at 0. Raises EngcmpError for values
    that are not finite or do not pair up.
    """
    return _jointly(np.divide, [numerators, denominators], clusters, preset, level)


def relative_difference(
    candidate: npt.ArrayLike, baseline: npt.ArrayLike, clusters: Sequence[str], *, preset: Preset, level: float = 0.95
) -> DerivedFigure:
    """Candidate minus baseline as a share of the baseline's own mean distance; arrays and reasons as for ratio_of_means."""
    return _jointly(lambda c, b: (c - b) / b, [candidate, baseline], clusters, preset, level)


def gap_closed(
    baseline: npt.ArrayLike, candidate: npt.ArrayLike, setting: npt.ArrayLike, clusters: Sequence[str], *, gap_verdict: str,
    preset: Preset, level: float = 0.95,
) -> DerivedFigure:  # fmt: skip
    """1 - (s - b) / (c - b), of baseline b, candidate c and the candidate with a setting s: 1 where s is as close as the baseline, 0 where
    the setting changes nothing. Arrays and reasons as for ratio_of_means.

    Missing unless `gap_verdict`, the word of the comparison of candidate and baseline, is `resolved`: no share can be taken of a gap
    that may be none.
    """
    if gap_verdict != "resolved":
        none = Missing(f"the gap between baseline and candidate is {gap_verdict}: no share of it can be closed")
        return DerivedFigure(none, none)
    return _jointly(lambda b, c, s: 1.0 - (s - b) / (c - b), [baseline, candidate, setting], clusters, preset, level)


def _jointly(
    statistic: _Statistic, columns: Sequence[npt.ArrayLike], clusters: Sequence[str], preset: Preset, level: float
) -> DerivedFigure:
    groups = [by_cluster(values, clusters) for values in columns]
    size = len(groups[0].ids)
    if size == 0:
        none = Missing("no row is in the population")
        return DerivedFigure(none, none)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(*(np.array([group.mean]) for group in groups))[0])
    if not np.isfinite(value):
        none = Missing("what it would be divided by is 0")
        return DerivedFigure(none, none)
    if size < BOOTSTRAP_CLUSTERS:
        few = f"{size} cluster{'s' * (size > 1)}: the interval of a derived figure needs at least {BOOTSTRAP_CLUSTERS}"
        return DerivedFigure(value, Missing(few))
    tail = (1 - level) / 2
    if preset.replicates * tail < 1:
        return DerivedFigure(
            value, Missing(f"{preset.replicates:,} replicates leave less than one beyond a level of {level:g}")
        )
    drawn = drawn_counts(size, preset.replicates, preset.seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = statistic(*(replicate_ratios(group.sums, group.counts, drawn) for group in groups))
    lost = int((~np.isfinite(found)).sum())
    if lost:
        return DerivedFigure(value, Missing(f"in {lost:,} of {preset.replicates:,} resamples it would be divided by 0"))
    low, high = np.quantile(found, [tail, 1 - tail], method="linear").tolist()
    method = f"joint cluster bootstrap, {preset.replicates:,} replicates, seed {preset.seed}"
    return DerivedFigure(value, Interval(low, high, level, method))
