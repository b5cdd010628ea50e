"""Candidate minus baseline on the same rows: intervals, sensitivities, floors, verdict (MEASURES sections 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.floors import Floor, RunValues, floor
from engcmp_assets.kernel.measures import measure as measure_called
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.uncertainty import (
    BOOTSTRAP_CLUSTERS,
    ClusterSums,
    Estimate,
    Preset,
    by_cluster,
    excludes_zero,
    population_mean,
)
from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]
Word = Literal["resolved", "baseline-dependent", "not resolved"]

EQUAL_ROWS = ("bit-identical", "Every row of both is equal bit for bit, so every measure is equal too.")
"""Word and sentence where two arms have the same rows: nothing is left to test."""
EQUAL_KEPT = (
    "descriptive",
    "Nothing is left to test: of every row both keep the same 20 most probable tokens and the same token that follows, with the same "
    "log-probabilities, so every measure of these is equal too. Whether the rows are equal bit for bit, rows of an API cannot tell.",
)
"""The same where only what an API returned of each row is known to be equal."""
_SIGN_FLIP_P = 0.05
_TWO = 2  # clusters that leaving one out needs
# What two ways of computing one value in float64 may differ by: as measured, at most 1.3e-14 at 3 nats.
_ROUNDING_ABSOLUTE, _ROUNDING_RELATIVE = 1e-14, 1e-13
_NO_WIDTH = 1e-12  # relative: an interval narrower than this is rounding


@dataclass(frozen=True, slots=True)
class AgainstRun:
    """The candidate against one single run of the baseline; `stands` by the same test as the headline."""

    run: str
    difference: Estimate
    interval_bonferroni: Interval | Missing
    stands: bool


@dataclass(frozen=True, slots=True)
class Range:
    """Lowest and highest value."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MovingCluster:
    """The cluster that moves the difference most: its value without that cluster, and the difference minus that."""

    cluster: str
    without: float
    moves_by: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A word of the closed list, whether it stands without a floor, and one sentence that says it in plain English."""

    word: Word
    no_floor: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate minus baseline in the measure's unit, with everything that MEASURES section 4 wants beside it.

    `difference` carries the interval at the protocol's level, repeated as `interval95`. `bound` is the largest absolute
    effect that the declared interval does not exclude: Missing where the difference is resolved.
    """

    difference: Estimate
    interval95: Interval | Missing
    interval_bonferroni: Interval | Missing
    primary: bool
    family: int
    candidate_mean: float
    baseline_mean: float
    against_each_run: tuple[AgainstRun, ...]
    leave_one_cluster_out: Range | Missing
    clusters_with_the_sign: int
    most_moving_cluster: MovingCluster | Missing
    sign_flip_p: float | Missing
    bound: float | Missing
    candidate_floor: Floor
    baseline_floor: Floor
    verdict: Verdict


def compare(
    candidate: RunValues,
    baseline: RunValues,
    clusters: Sequence[str],
    *,
    preset: Preset,
    primary: bool,
    family: int,
    level: float = 0.95,
    measure: str | None = None,
    floors: tuple[Floor, Floor] | None = None,
) -> Comparison:
    """Compare two arms on the same rows; `clusters` [rows] names each row's cluster, `measure` only names the unit.

    `floors` of candidate and baseline are given where they were measured on other runs than those compared; else they follow from these.

    The headline is against the per-row mean over the baseline's runs. `family` is the number of looks that share one
    error rate: unless the look is `primary`, the interval at 1 - (1 - level) / family decides. Raises EngcmpError where
    rows do not pair up, for no row, and for a family below 1.
    """
    _check(candidate, baseline, clusters, family)
    corrected = 1 - (1 - level) / family
    names = np.asarray(clusters, dtype=np.str_)  # once: each figure looks at all rows' clusters

    def judged(values: Float64) -> tuple[Estimate, Interval | Missing, bool]:
        estimate = population_mean(values, names, preset=preset, level=level, kind="difference")
        wide = population_mean(values, names, preset=preset, level=corrected, kind="difference").interval
        return estimate, wide, _stands(estimate, estimate.interval if primary else wide)

    differences = _apart(candidate.per_row, baseline.per_row)
    groups = by_cluster(differences, names)
    estimate, wide, stands = judged(differences)
    against = tuple(AgainstRun(run, *judged(_apart(candidate.per_row, baseline.of(run)))) for run in baseline.runs)
    word = _word(groups.mean, stands, against)
    declared = estimate.interval if primary else wide
    bound = Missing("the difference is resolved") if word == "resolved" else _bound(declared)
    own = floors or tuple(floor(side, clusters, preset=preset, level=level) for side in (candidate, baseline))
    named = dict(zip(("candidate", "baseline"), own, strict=True))
    return Comparison(
        difference=estimate,
        interval95=estimate.interval,
        interval_bonferroni=wide,
        primary=primary,
        family=family,
        candidate_mean=by_cluster(candidate.per_row, names).mean,
        baseline_mean=by_cluster(baseline.per_row, names).mean,
        against_each_run=against,
        leave_one_cluster_out=_leave_one_out(groups),
        clusters_with_the_sign=int((np.sign(groups.sums) == np.sign(groups.mean)).sum()),
        most_moving_cluster=_most_moving(groups),
        sign_flip_p=estimate.sign_flip_p,
        bound=bound,
        candidate_floor=named["candidate"],
        baseline_floor=named["baseline"],
        verdict=_verdict(
            word, estimate, declared=declared, against=against, bound=bound, floors=named, measure=measure
        ),
    )


def _check(candidate: RunValues, baseline: RunValues, clusters: Sequence[str], family: int) -> None:
    counts = (candidate.values.shape[1], baseline.values.shape[1], len(clusters))
    if len(set(counts)) != 1 or counts[0] == 0:
        raise EngcmpError(
            f"candidate has {counts[0]} rows, baseline {counts[1]}, cluster ids {counts[2]}",
            remedy="compare two arms on the same rows, at least one",
        )
    if family < 1:
        raise EngcmpError(f"a family of {family} looks", remedy="count the looks that share one error rate, at least 1")


def _stands(estimate: Estimate, declared: Interval | Missing) -> bool:
    if not excludes_zero(declared):
        return False
    if estimate.clusters >= BOOTSTRAP_CLUSTERS:
        return True
    return not isinstance(estimate.sign_flip_p, Missing) and estimate.sign_flip_p < _SIGN_FLIP_P


def _apart(first: Float64, second: Float64) -> Float64:
    """First minus second, [rows]; 0 where they differ by no more than what computing them in float64 may leave."""
    found: Float64 = first - second
    rounding = _ROUNDING_ABSOLUTE + _ROUNDING_RELATIVE * np.maximum(np.abs(first), np.abs(second))
    return np.where(np.abs(found) <= rounding, 0.0, found)


def _word(mean: float, stands: bool, against: tuple[AgainstRun, ...]) -> Word:
    # Two baseline runs on either side of the candidate both exclude zero; that is no result, so the side must agree.
    same_side = [
        one.stands and not isinstance(one.difference.value, Missing) and one.difference.value * mean > 0
        for one in against
    ]
    if stands and all(same_side):
        return "resolved"
    return "baseline-dependent" if any(one.stands for one in against) else "not resolved"


def _bound(declared: Interval | Missing) -> float | Missing:
    if isinstance(declared, Missing):
        return declared
    if math.isclose(declared.low, declared.high, rel_tol=_NO_WIDTH):
        return Missing(f"every cluster reads {declared.low:.4g}: with no spread to resample, no effect can be excluded")
    return max(abs(declared.low), abs(declared.high))


def _without_each(groups: ClusterSums) -> Float64:
    without: Float64 = (math.fsum(groups.sums) - groups.sums) / (groups.counts.sum() - groups.counts)
    return without


def _leave_one_out(groups: ClusterSums) -> Range | Missing:
    if len(groups.ids) < _TWO:
        return Missing("1 cluster: nothing is left without it")
    without = _without_each(groups)
    return Range(float(without.min()), float(without.max()))


def _most_moving(groups: ClusterSums) -> MovingCluster | Missing:
    if len(groups.ids) < _TWO:
        return Missing("1 cluster: nothing is left without it")
    moves = groups.mean - _without_each(groups)
    index = int(np.abs(moves).argmax())
    return MovingCluster(groups.ids[index], groups.mean - float(moves[index]), float(moves[index]))


def _verdict(
    word: Word,
    estimate: Estimate,
    *,
    declared: Interval | Missing,
    against: tuple[AgainstRun, ...],
    bound: float | Missing,
    floors: dict[str, Floor],
    measure: str | None,
) -> Verdict:
    unit = "" if measure is None else f" {measure_called(measure).unit}"
    name = "The measure" if measure is None else measure_called(measure).title
    if isinstance(declared, Missing):
        interval = f"no interval: {declared.reason}"
    else:
        interval = f"{100 * declared.level:.4g} % interval {declared.low:+.4g} to {declared.high:+.4g}"
    standing = sum(one.stands for one in against)
    if word == "resolved":
        tail = "zero is excluded, and against each baseline run too"
    elif word == "baseline-dependent":
        tail = f"zero is excluded against {standing} of {len(against)} baseline runs, or not on one side of all of them"
    elif isinstance(bound, Missing) and isinstance(declared, Missing):
        tail = "not resolved, the values are all that can be given"
    elif isinstance(bound, Missing):
        tail = f"not resolved, and without a bound: {bound.reason}"
    else:
        tail = f"not resolved; an effect above {bound:.4g}{unit} in either direction is excluded"
    lacking = [arm for arm, own in floors.items() if not own.measured]
    floor_text = f"; no floor: no repeat of the {' or the '.join(lacking)} was captured" if lacking else ""
    sentence = f"{name}: candidate minus baseline is {estimate.value:+.4g}{unit} ({interval}); {tail}{floor_text}."
    return Verdict(word, bool(lacking), sentence)
