"""How much of the gap between two arms a setting closes: declared with the pair of the arm with the setting and the arm without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.comparisons.pairs import DESCRIPTIVE
from engcmp_assets.kernel.derived_figures import DerivedFigure, gap_closed
from engcmp_assets.kernel.differences import Comparison, compare
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.looks import Looks
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import figure_id
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.row_table import RowTable
from engcmp_resources.errors import EngcmpError

MEASURE = "gap_closed"
_SAME = ("window_id", "position", "next_token")


@dataclass(frozen=True, slots=True)
class PanelGap:
    """The three arms on one panel, and the distance from the reference that it has."""

    panel: str
    distance: str
    baseline: RowTable
    candidate: RowTable
    setting: RowTable
    looks: Looks


def gap_document(study: str, plan: ComparisonPlan, gap: ComparisonPlan, panels: Sequence[PanelGap]) -> dict[str, Any]:
    """The part `gap` of a pair: which gap it is of, and the share closed on each panel, in each population.

    `plan` is the pair of the setting, `gap` that of the arm without it and the baseline. Raises EngcmpError where the arms were not
    measured on the same rows.
    """
    return _head(gap) | {"figures": [figure for own in panels for figure in _figures(study, plan, gap, own)]}


def no_gap(gap: ComparisonPlan, why: str) -> dict[str, Any]:
    """The same where the gap itself was not measured."""
    return _head(gap) | {"missing": why, "figures": []}


def _head(gap: ComparisonPlan) -> dict[str, Any]:
    return {"pair_id": gap.pair_id, "label": gap.label, "candidate": gap.candidate, "baseline": gap.baseline}


def _figures(study: str, plan: ComparisonPlan, gap: ComparisonPlan, own: PanelGap) -> Iterator[dict[str, Any]]:
    for side in (own.candidate, own.setting):
        if any(side.keys[name].tolist() != own.baseline.keys[name].tolist() for name in _SAME):
            raise EngcmpError(
                f"pair {plan.pair_id}: the arms differ in their rows on panel {own.panel}",
                where=f"{plan.candidate}, {gap.candidate} and {gap.baseline}", remedy="capture all on the same prompt set",
            )  # fmt: skip
    for population in own.looks.populations:
        yield _figure(study, plan, gap, own, population)


def _figure(study: str, plan: ComparisonPlan, gap: ComparisonPlan, own: PanelGap, population: str) -> dict[str, Any]:
    chosen, looks, name = own.baseline.rows_of(population), own.looks, own.distance
    clusters = own.baseline.clusters_of(chosen)
    sides = [RunValues(one.runs, one.values[name][:, chosen]) for one in (own.baseline, own.candidate, own.setting)]
    between = compare(
        sides[1], sides[0], clusters, preset=looks.preset, primary=looks.is_primary(name, population), family=looks.family,
        level=looks.level, measure=name,
    )  # fmt: skip
    # Shares in several populations are several looks at one gap.
    family = looks.different
    levels = (looks.level, 1 - (1 - looks.level) / family)
    b, c, with_setting = (one.per_row for one in sides)
    narrow, wide = (
        gap_closed(b, c, with_setting, clusters, gap_verdict=between.verdict.word, preset=looks.preset, level=level)
        for level in levels
    )
    definition = MEASURES[MEASURE]
    means = [float(one.per_row.mean()) for one in sides] if len(clusters) else [None] * len(sides)
    return {
        "figure_id": figure_id(f"{study}/pair/{plan.pair_id}", own.panel, population, MEASURE),
        "label": f"{plan.label}, panel {own.panel}: {definition.title} of {gap.pair_id}, {population}",
        "measure": MEASURE, "measure_version": definition.version, "unit": definition.unit, "panel": own.panel,
        "population": population, "arms": f"{plan.candidate} between {gap.candidate} and {gap.baseline}",
        "distance": name, "value": plain(narrow.value), "interval": plain(narrow.interval),
        "interval_bonferroni": plain(wide.interval), "family": family, "primary": False, "verdict": DESCRIPTIVE,
        "sentence": _sentence(narrow, between, name), "floor": None,
        "means": dict(zip(("baseline", "candidate", "setting"), means, strict=True)),
        "gap": {
            "difference": plain(between.difference.value), "interval": plain(between.interval95),
            "verdict": between.verdict.word,
        },
        "rows": len(clusters), "clusters": len(set(clusters)),
    }  # fmt: skip


def _sentence(found: DerivedFigure, between: Comparison, name: str) -> str:
    if isinstance(found.value, Missing):
        return found.value.reason
    unit = MEASURES[name].unit
    return f"{found.value:.3g} of a gap of {format_number(plain(between.difference.value))} {unit} ({name})"
