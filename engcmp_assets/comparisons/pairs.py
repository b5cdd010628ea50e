"""A declared pair as figures: every look at candidate minus baseline, the floor beside it, its verdict, and its confounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.comparisons.differences import Comparison, compare
from engcmp_assets.kernel.floors import Floor, RunValues, floor_document
from engcmp_assets.kernel.looks import Looks
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import figure_id
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol
from engcmp_assets.kernel.records import ArmKey, Figure, Interval, Missing, plain
from engcmp_assets.kernel.row_table import RowTable
from engcmp_resources.errors import EngcmpError


def pair_document(
    protocol: Protocol, plan: ComparisonPlan, candidate: RowTable, baseline: RowTable, looks: Looks
) -> dict[str, Any]:
    """The comparison of two arms on the same rows, as SUMMARY.json holds it.

    Raises EngcmpError where the two arms were not measured on the same rows.
    """
    for name in ("window_id", "position", "next_token"):
        if candidate.keys[name].tolist() != baseline.keys[name].tolist():
            raise EngcmpError(
                f"pair {plan.pair_id}: the arms differ in {name}", where=f"{plan.candidate} and {plan.baseline}",
                remedy="capture both arms on the same prompt set",
            )  # fmt: skip
    figures = [
        _figure(plan, candidate, baseline, looks, study=protocol.study, measure=measure, population=population)
        for measure in looks.measures
        for population in looks.populations
    ]
    return _pair(plan, "compared", None, figures, confounds(protocol, plan))


def not_comparable(plan: ComparisonPlan, reason: str) -> dict[str, Any]:
    """A declared pair that cannot be compared, with its reason."""
    return _pair(plan, "not comparable", reason, [], [])


def confounds(protocol: Protocol, plan: ComparisonPlan) -> list[str]:
    """What differs between the arms beside what the pair is about; a reader must hold it against the difference."""
    candidate, baseline = ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline)
    parts = ("checkpoint", "engine", "version", "setting")
    changed = [part for part in parts if getattr(candidate, part) != getattr(baseline, part)]
    found = []
    if len(changed) > 1:
        found.append(f"The arms differ in {' and '.join(changed)}: the difference cannot be given to one of them.")
    if candidate.checkpoint != baseline.checkpoint:
        found.append("The checkpoints differ in file size, which stands beside each arm.")
    return found


def _pair(
    plan: ComparisonPlan, state: str, reason: str | None, figures: list[dict[str, Any]], found: list[str]
) -> dict[str, Any]:
    return {
        "pair_id": plan.pair_id, "candidate": plan.candidate, "baseline": plan.baseline, "label": plan.label,
        "state": state, "reason": reason, "figures": figures, "confounds": found,
    }  # fmt: skip


def _figure(
    plan: ComparisonPlan,
    candidate: RowTable,
    baseline: RowTable,
    looks: Looks,
    *,
    study: str,
    measure: str,
    population: str,
) -> dict[str, Any]:
    chosen = candidate.rows_of(population)
    result = compare(
        RunValues(candidate.runs, candidate.values[measure][:, chosen]),
        RunValues(baseline.runs, baseline.values[measure][:, chosen]),
        candidate.clusters_of(chosen),
        preset=looks.preset,
        primary=looks.is_primary(measure, population),
        family=looks.family,
        level=looks.level,
        measure=measure,
    )
    definition = MEASURES[measure]
    return {
        "figure_id": figure_id(study, f"pair/{plan.pair_id}", population, measure),
        "label": f"{plan.label}: {definition.title}, {population}",
        "measure": measure,
        "measure_version": definition.version,
        "unit": definition.unit,
        "population": population,
        "arms": f"{plan.candidate} minus {plan.baseline}",
    } | _numbers(result)


def _numbers(result: Comparison) -> dict[str, Any]:
    estimate = result.difference
    moving = result.most_moving_cluster
    leave_one = result.leave_one_cluster_out
    word = result.verdict.word + (", no floor" if result.verdict.no_floor else "")
    return {
        "value": plain(estimate.value),
        "interval": plain(result.interval95),
        "interval_bonferroni": plain(result.interval_bonferroni),
        "primary": result.primary,
        "family": result.family,
        "candidate_mean": result.candidate_mean,
        "baseline_mean": result.baseline_mean,
        "floor": floor_document(_wider(result.candidate_floor, result.baseline_floor)),
        "candidate_floor": floor_document(result.candidate_floor),
        "baseline_floor": floor_document(result.baseline_floor),
        "verdict": word,
        "sentence": result.verdict.sentence,
        "bound": plain(result.bound),
        "leave_one_out": plain(leave_one) if isinstance(leave_one, Missing) else [leave_one.low, leave_one.high],
        "sign_clusters": result.clusters_with_the_sign,
        "largest_cluster": plain(moving),
        "against_each_run": [
            {
                "run": one.run,
                "value": plain(one.difference.value),
                "interval": plain(one.difference.interval),
                "stands": one.stands,
            }
            for one in result.against_each_run
        ],
        "sign_flip_p": plain(result.sign_flip_p),
        "rows": estimate.rows,
        "clusters": estimate.clusters,
    }


def _wider(first: Floor, second: Floor) -> Floor:
    """The floor beside a difference: of each kind, the null differences of both arms together; Missing if an arm lacks it."""

    def joined(kind: str) -> Any:
        values = [getattr(floor, kind) for floor in (first, second)]
        missing = [value for value in values if isinstance(value, Missing)]
        return missing[0] if missing else (*values[0], *values[1])

    return Floor(within_launch=joined("within_launch"), across_launches=joined("across_launches"))


def figure_record(figure: Mapping[str, Any]) -> Figure:
    """A figure of a pair as a record, for the receipt: what `engcmp trace` and the asset's page show of it."""
    value, ends = figure["value"], figure["interval"]
    kept = ("verdict", "sentence", "primary", "floor")
    return Figure(
        figure_id=figure["figure_id"],
        label=figure["label"],
        measure=figure["measure"],
        measure_version=figure["measure_version"],
        unit=figure["unit"],
        population=figure["population"],
        value=Missing(value["missing"]) if isinstance(value, dict) else value,
        interval=Missing(ends["missing"]) if "missing" in ends else Interval(**ends),
        rows=figure["rows"],
        clusters=figure["clusters"],
        details={"arm": figure["arms"]} | {name: figure[name] for name in kept},
    )


def primary_figure(pair: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first primary figure of a compared pair, or None."""
    return next((figure for figure in pair["figures"] if figure["primary"]), None)
