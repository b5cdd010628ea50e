"""The noise band of a speed ratio: declared before the run, checked against the drift repeats (MEASURES section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from engcmp_assets.kernel.records import Missing
from engcmp_resources.errors import EngcmpError

_S_PER_H = 3600.0


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over the plan on one arm: `cells` by cell id as cell_figures gives them, `streams` (the cells' stream tables) where an
    interval is wanted, and `started_at_s`, seconds of one wall clock, where it is known.
    """

    label: str
    cells: Mapping[str, Mapping[str, Any]]
    streams: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    started_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class ArmRuns:
    """An arm's measured run and its drift repeats, which may hold only some of the cells."""

    arm: str
    main: Run
    repeats: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredBand:
    """The band that was declared before the run: `share` 0.08 for ±8 %, and how many hours must lie between repeats."""

    share: float
    least_hours: float

    def __post_init__(self) -> None:
        if not self.share > 0 or not self.least_hours >= 0:
            raise EngcmpError(
                f"a noise band of {self.share} with {self.least_hours} hours between repeats",
                remedy="give a share above 0, for example 0.08, and hours of 0 or more",
            )


@dataclass(frozen=True, slots=True)
class DriftRatio:
    """A repeat of one cell on one arm, as a ratio to that arm's first run: what the measure reads where nothing differs."""

    arm: str
    cell_id: str
    repeat: str
    ratio: float


@dataclass(frozen=True, slots=True)
class NoiseBand:
    """The band in use: a ratio from 1 / (1 + share) to 1 + share is level, so that swapping the arms changes no verdict.

    `widest_drift` is the furthest that a repeat lies from 1, as such a share; `labels` say what a reader must know of the band.
    """

    share: float
    declared: float
    widest_drift: float
    labels: tuple[str, ...]

    @property
    def low(self) -> float:
        return 1 / (1 + self.share)

    @property
    def high(self) -> float:
        return 1 + self.share


@dataclass(frozen=True, slots=True)
class NoBand:
    """Why there is no band, and the word that stands in place of a verdict: `descriptive` or `no floor`."""

    verdict: str
    reason: str


def figure_value(run: Run, cell_id: str, measure_id: str) -> float | Missing:
    """One figure of one cell, to be compared. Missing for a cell that the run lacks, one that is not complete, one in which the client
    was the limit, and a figure that is missing.
    """
    cell = run.cells.get(cell_id)
    if cell is None:
        return Missing(f"{run.label} has no cell {cell_id}")
    if not cell["complete"]:
        causes = sorted({str(one["cause"]) for one in cell["failures"]})
        why = (
            f": {len(cell['failures'])} of {cell['requests']} requests failed ({'; '.join(causes)})"
            if causes
            else ": it has no request"
        )
        return Missing(f"{run.label} is incomplete{why}")
    if (cell.get("client") or {}).get("limit"):
        return Missing(f"{run.label}: the client was the limit, the times are not the server's alone")
    found = cell["figures"].get(measure_id, {"missing": "it was not computed"})
    if "missing" in found:
        return Missing(f"{run.label}: {found['missing']}")
    return float(found["value"])


def ratio_of(upper: float | Missing, lower: float | Missing) -> float | Missing:
    """The ratio of two figures; the first reason where one is missing, and Missing where the lower is not above 0."""
    for one in (upper, lower):
        if isinstance(one, Missing):
            return one
    if isinstance(upper, Missing) or isinstance(lower, Missing) or not lower > 0:
        return Missing("the baseline reads 0: a ratio has no value")
    return upper / lower


def drift_ratios(runs: ArmRuns, measure_id: str) -> tuple[DriftRatio, ...]:
    """Every repeat of every cell of an arm as a ratio to its first run, where both are complete and have the figure."""
    found = []
    for repeat in runs.repeats:
        for cell_id in repeat.cells:
            ratio = ratio_of(figure_value(repeat, cell_id, measure_id), figure_value(runs.main, cell_id, measure_id))
            if not isinstance(ratio, Missing) and ratio > 0:
                found.append(DriftRatio(runs.arm, cell_id, repeat.label, ratio))
    return tuple(found)


def pair_drift(sides: tuple[ArmRuns, ArmRuns], measure_id: str) -> tuple[DriftRatio, ...]:
    """The ratio candidate / baseline of every repeat of every cell, as a ratio to that of the first runs.

    Two arms that drift apart leave each its own band by less than their ratio leaves it.
    """
    found = []
    candidate, baseline = sides
    for upper, lower in zip(candidate.repeats, baseline.repeats, strict=False):
        for cell_id in upper.cells:
            first, again = (
                ratio_of(figure_value(one, cell_id, measure_id), figure_value(other, cell_id, measure_id))
                for one, other in ((candidate.main, baseline.main), (upper, lower))
            )
            ratio = ratio_of(again, first)
            if not isinstance(ratio, Missing) and ratio > 0:
                found.append(DriftRatio(f"{candidate.arm} / {baseline.arm}", cell_id, upper.label, ratio))
    return tuple(found)


def noise_band(
    declared: DeclaredBand | None,
    sides: tuple[ArmRuns, ArmRuns],
    drift: tuple[DriftRatio, ...],
    of_pair: tuple[DriftRatio, ...] = (),
) -> NoiseBand | NoBand:
    """The band of one measure from the declared one, the `drift` ratios of both arms and those of their ratio; the widest is used.

    So a cell is called faster only where the ratio of each repeat lies on the same side of 1. There is no band where none was declared,
    and none where not both arms were repeated: an unchecked band is no band.
    """
    if declared is None:
        return NoBand("descriptive", "no noise band was declared")
    lacking = [side for side in sides if side.arm not in {one.arm for one in drift}]
    if lacking:
        words = " or of ".join(side.arm for side in lacking)
        words += " that can be compared" if any(side.repeats for side in lacking) else ""
        return NoBand("no floor", f"the declared band was not checked: no drift repeat of {words}")
    widest = max(max(one.ratio, 1 / one.ratio) for one in (*drift, *of_pair)) - 1
    labels = [label for side in sides if (label := _session(side, declared)) is not None]
    if widest > declared.share:
        labels.append(
            f"the repeats leave the declared band of ±{declared.share:.1%}: ±{widest:.1%}, the widest of them, is used"
        )
    return NoiseBand(max(widest, declared.share), declared.share, widest, tuple(labels))


def _session(side: ArmRuns, declared: DeclaredBand) -> str | None:
    """What a reader must know where an arm's repeats do not lie far enough apart to show a drift."""
    asked = f"the protocol asks for {declared.least_hours:g} h"
    times = [one.started_at_s for one in (side.main, *side.repeats)]
    if None in times:
        return f"band from one session: when {side.arm} was repeated is not known, and {asked}"
    first, *later = (float(one) / _S_PER_H for one in times if one is not None)
    apart = max(abs(one - first) for one in later)
    if apart < declared.least_hours:
        return f"band from one session: the repeats of {side.arm} lie {apart:.2g} h apart, and {asked}"
    return None
