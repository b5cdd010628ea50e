"""What a measure reads between runs of one arm, where nothing differs (MEASURES section 4, "Floor")."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.uncertainty import Estimate, Preset, by_cluster, population_mean
from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]

_RUN = re.compile(r"[1-9][0-9]*\.[1-9][0-9]*")
_TWO = 2  # repeats, launches or clusters that a difference between them needs


@dataclass(frozen=True, slots=True)
class RunValues:
    """One arm's values of one measure: float64 [runs, rows]. A run is `launch.repeat`, for example `2.1`.

    Raises EngcmpError for names that are not runs or occur twice, for another shape, and for values not finite.
    """

    runs: tuple[str, ...]
    values: Float64

    def __post_init__(self) -> None:
        wrong = [run for run in self.runs if _RUN.fullmatch(run) is None]
        if wrong or len(set(self.runs)) != len(self.runs) or not self.runs:
            raise EngcmpError(f"runs {list(self.runs)}", remedy="name each run once, as launch.repeat, for example 1.2")
        if self.values.ndim != _TWO or len(self.values) != len(self.runs):
            raise EngcmpError(
                f"values {list(self.values.shape)} for runs {list(self.runs)}", remedy="give values [runs, rows]"
            )
        if not np.isfinite(self.values).all():
            run, row = np.argwhere(~np.isfinite(self.values))[0].tolist()
            raise EngcmpError(
                f"row {row} of run {self.runs[run]} is {self.values[run, row]}", remedy="leave bad rows out first"
            )

    @property
    def per_row(self) -> Float64:
        """The arm's value of each row, [rows]: the mean over its runs, and exactly the value where all runs agree."""
        means: Float64 = self.values[0].copy()
        # Only rows whose runs disagree are summed: the sum of equal values is rounded before it is divided, so need not give them back.
        for row in np.flatnonzero((self.values != self.values[0]).any(axis=0)):
            means[row] = math.fsum(self.values[:, row]) / len(self.runs)
        return means

    def of(self, run: str) -> Float64:
        """The values of one single run, [rows]."""
        values: Float64 = self.values[self.runs.index(run)]
        return values


@dataclass(frozen=True, slots=True)
class NullDifference:
    """One run minus another of the same arm: what the measure reads where nothing differs.

    `cluster_sd` and the lowest and highest cluster mean are the per-cluster spread; `rows_that_differ` is the share of
    rows whose value is not the same in both runs (for `top1`: the rows on which the repeats disagree).
    """

    run: str
    minus: str
    difference: Estimate
    cluster_sd: float | Missing
    cluster_low: float
    cluster_high: float
    rows_that_differ: float


@dataclass(frozen=True, slots=True)
class Floor:
    """What the measure reads between runs of one arm, on the rows and clusters of the comparison it stands beside."""

    within_launch: tuple[NullDifference, ...] | Missing
    across_launches: tuple[NullDifference, ...] | Missing

    @property
    def measured(self) -> bool:
        return not (isinstance(self.within_launch, Missing) and isinstance(self.across_launches, Missing))


def floor(run_values: RunValues, clusters: Sequence[str], *, preset: Preset, level: float = 0.95) -> Floor:
    """The floor of one arm. Within a launch: each later repeat minus the launch's first. Across launches: each later
    launch minus the first one, in the lowest repeat number that both have, so that one run is set against one run and a
    warm repeat never against a cold one. Missing with its reason where no such pair was captured, or no row is given.
    """
    if run_values.values.shape[1] == 0 and not clusters:
        return Floor(Missing("no row is in the population"), Missing("no row is in the population"))
    launches: dict[int, dict[int, str]] = {}
    for run in run_values.runs:
        launch, repeat = (int(part) for part in run.split("."))
        launches.setdefault(launch, {})[repeat] = run

    def null(run: str, minus: str) -> NullDifference:
        return _null(run_values, run, minus, clusters=clusters, preset=preset, level=level)

    within: list[NullDifference] = []
    across: list[NullDifference] = []
    ordered = [launches[launch] for launch in sorted(launches)]
    for repeats in ordered:
        first, *later = sorted(repeats)
        within += [null(repeats[one], repeats[first]) for one in later]
    for repeats in ordered[1:]:
        shared = sorted(set(repeats) & set(ordered[0]))
        if shared:
            across.append(null(repeats[shared[0]], ordered[0][shared[0]]))
    one_launch = "one launch was captured" if len(ordered) < _TWO else "no repeat number occurs in two launches"
    return Floor(
        within_launch=tuple(within) or Missing("no launch has a second repeat"),
        across_launches=tuple(across) or Missing(one_launch),
    )


def _null(
    run_values: RunValues, run: str, minus: str, *, clusters: Sequence[str], preset: Preset, level: float
) -> NullDifference:
    differences = run_values.of(run) - run_values.of(minus)
    means = by_cluster(differences, clusters).means
    spread: float | Missing = (
        float(means.std(ddof=1)) if len(means) >= _TWO else Missing("1 cluster: a spread needs at least 2")
    )
    return NullDifference(
        run=run,
        minus=minus,
        difference=population_mean(differences, clusters, preset=preset, level=level, kind="difference"),
        cluster_sd=spread,
        cluster_low=float(means.min()),
        cluster_high=float(means.max()),
        rows_that_differ=float((differences != 0).mean()),
    )


def floor_document(own: Floor) -> dict[str, Any]:
    """A floor for pages and receipts: of each kind the null difference furthest from zero, and all of them."""
    return {
        "within_launch": _widest(own.within_launch),
        "across_launches": _widest(own.across_launches),
    }


def _widest(differences: tuple[NullDifference, ...] | Missing) -> Mapping[str, Any]:
    if isinstance(differences, Missing):
        return differences.as_json()

    def size(null: NullDifference) -> float:
        return -1.0 if isinstance(null.difference.value, Missing) else abs(null.difference.value)

    widest = max(differences, key=size)
    return {
        "value": plain(widest.difference.value),
        "interval": plain(widest.difference.interval),
        "run": widest.run,
        "minus": widest.minus,
        "cluster_sd": plain(widest.cluster_sd),
        "rows_that_differ": widest.rows_that_differ,
        "pairs": len(differences),
    }
