"""A declared pair as figures: every look at candidate minus baseline, how far apart their rows are, floors, verdicts, confounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.differences import EQUAL_KEPT, EQUAL_ROWS, Comparison, compare
from engcmp_assets.kernel.floors import Floor, RunValues, floor_document
from engcmp_assets.kernel.launch_diff import LaunchDifference, launch_confound, undeclared_names
from engcmp_assets.kernel.looks import Looks
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import LIGHT_HASH, figure_id
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol
from engcmp_assets.kernel.records import ArmKey, Figure, Interval, Missing, plain
from engcmp_assets.kernel.row_table import RowTable
from engcmp_assets.kernel.uncertainty import Kind, population_mean
from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]
_NOT_A_DIFFERENCE = {"missing": "a distance between two captures is not a difference of means"}
_FLOOR_WORDS = {"within_launch": "within a launch", "across_launches": "across launches"}
BIT_IDENTICAL, DESCRIPTIVE = "bit-identical", "descriptive"


@dataclass(frozen=True, slots=True)
class PanelPair:
    """Both arms on one panel. `distances` are per-row values of the panel's pair measures, [rows], in the tables' order.

    `floors` are the same measures between runs of one arm, by kind (`within_launch`, `across_launches`), each the run pair
    that is furthest apart, or the reason why there is none. `notes` are what each arm's engine noted of its captures.
    """

    panel: str
    candidate: RowTable
    baseline: RowTable
    looks: Looks
    distances: Mapping[str, Float64]
    floors: Mapping[str, Mapping[str, Float64] | Missing]
    notes: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = ((), ())

    @property
    def identical(self) -> npt.NDArray[np.bool_]:
        """Which rows are equal bit for bit in the first runs of both arms."""
        return self._same & ~self._of_an_api

    @property
    def kept_equal(self) -> npt.NDArray[np.bool_]:
        """Of which rows the API of both arms has returned the same, which is all that is known of them."""
        return self._same & self._of_an_api

    @property
    def _same(self) -> npt.NDArray[np.bool_]:
        first, second = (side.keys["raw_row_sha256"] for side in (self.candidate, self.baseline))
        return np.asarray(first == second, dtype=bool)

    @property
    def _of_an_api(self) -> npt.NDArray[np.bool_]:
        return np.asarray(
            [str(one).startswith(LIGHT_HASH) for one in self.candidate.keys["raw_row_sha256"]], dtype=bool
        )


def pair_document(
    protocol: Protocol, plan: ComparisonPlan, panels: Sequence[PanelPair], launches: Sequence[LaunchDifference]
) -> dict[str, Any]:
    """The comparison of two arms on the same rows, as SUMMARY.json holds it; `launches` is how their launches differ.

    Raises EngcmpError where the two arms were not measured on the same rows.
    """
    figures: list[dict[str, Any]] = []
    for own in panels:
        _refuse_other_rows(plan, own)
        for measure in own.looks.measures:
            figures += [_difference(protocol.study, plan, own, measure, name) for name in own.looks.populations]
        for measure in own.distances:
            figures += [_distance(protocol.study, plan, own, measure, name) for name in own.looks.populations]
    command = f"engcmp launch diff {protocol.study}/{plan.baseline} {protocol.study}/{plan.candidate}"
    found = (
        [*launch_confound(launches, command=command), *confounds(plan)] if not plan.compares_paths else confounds(plan)
    )
    undeclared = [] if plan.compares_paths else undeclared_names(launches)
    return _pair(plan, "compared", None, figures, found, undeclared=undeclared)


def not_comparable(plan: ComparisonPlan, reason: str) -> dict[str, Any]:
    """A declared pair that cannot be compared, with its reason."""
    return _pair(plan, "not comparable", reason, [], [])


def confounds(plan: ComparisonPlan) -> list[str]:
    """What differs between the arms beside what the pair is about; a reader must hold it against the difference."""
    candidate, baseline = ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline)
    parts = ("checkpoint", "engine", "version", "setting")
    changed = [part for part in parts if getattr(candidate, part) != getattr(baseline, part)]
    if plan.compares_paths:
        changed.append("score path")
    found = []
    if len(changed) > 1:
        found.append(f"The arms differ in {' and '.join(changed)}: the difference cannot be given to one of them.")
    if candidate.checkpoint != baseline.checkpoint:
        found.append("The checkpoints differ in file size, which stands beside each arm.")
    if plan.compares_paths:
        found.append(
            "The decode path keeps log-probabilities as the server's JSON prints them, the prefill path raw logits: so no row of "
            "the two can be equal bit for bit, and what printing rounds off is part of the distance."
        )
    return found


def figure_record(figure: Mapping[str, Any]) -> Figure:
    """A figure of a pair as a record, for the receipt: what `engcmp trace` and the asset's page show of it."""
    value, ends = figure["value"], figure["interval"]
    kept = ("verdict", "sentence", "primary", "floor")
    names = ("figure_id", "label", "measure", "measure_version", "unit", "panel", "population", "rows", "clusters")
    return Figure(
        **{name: figure[name] for name in names},
        value=Missing(value["missing"]) if isinstance(value, dict) else value,
        interval=Missing(ends["missing"]) if "missing" in ends else Interval(**ends),
        details={"arm": figure["arms"]} | {name: figure[name] for name in kept},
    )


def primary_figure(pair: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The figure that speaks for a compared pair: its first primary one, else its first one, else None."""
    figures = pair["figures"]
    return next((figure for figure in figures if figure["primary"]), figures[0] if figures else None)


def _refuse_other_rows(plan: ComparisonPlan, own: PanelPair) -> None:
    for name in ("window_id", "position", "next_token"):
        if own.candidate.keys[name].tolist() != own.baseline.keys[name].tolist():
            raise EngcmpError(
                f"pair {plan.pair_id}: the arms differ in {name} on panel {own.panel}",
                where=f"{plan.candidate} and {plan.baseline}", remedy="capture both arms on the same prompt set",
            )  # fmt: skip


def _pair(
    plan: ComparisonPlan,
    state: str,
    reason: str | None,
    figures: list[dict[str, Any]],
    found: list[str],
    *,
    undeclared: Sequence[str] = (),
) -> dict[str, Any]:
    kind = "score path" if plan.compares_paths else "arms"
    return {
        "pair_id": plan.pair_id, "kind": kind, "candidate": plan.candidate, "baseline": plan.baseline,
        "candidate_path": plan.candidate_path, "baseline_path": plan.baseline_path, "label": plan.label,
        "state": state, "reason": reason, "figures": figures, "confounds": found,
        "undeclared": list(undeclared),
    }  # fmt: skip


def _head(study: str, plan: ComparisonPlan, own: PanelPair, measure: str, population: str) -> dict[str, Any]:
    definition = MEASURES[measure]
    return {
        "figure_id": figure_id(f"{study}/pair/{plan.pair_id}", own.panel, population, measure),
        "label": f"{plan.label}, panel {own.panel}: {definition.title}, {population}",
        "measure": measure,
        "measure_version": definition.version,
        "unit": definition.unit,
        "panel": own.panel,
        "population": population,
        "arms": _named(plan),
    }


def _named(plan: ComparisonPlan) -> str:
    if plan.compares_paths:
        return f"{plan.candidate} {plan.candidate_path} minus {plan.baseline_path}"
    return f"{plan.candidate} minus {plan.baseline}"


def _difference(study: str, plan: ComparisonPlan, own: PanelPair, measure: str, population: str) -> dict[str, Any]:
    chosen = own.candidate.rows_of(population)
    result = compare(
        RunValues(own.candidate.runs, own.candidate.values[measure][:, chosen]),
        RunValues(own.baseline.runs, own.baseline.values[measure][:, chosen]),
        own.candidate.clusters_of(chosen),
        preset=own.looks.preset,
        primary=own.looks.is_primary(measure, population),
        family=own.looks.family,
        level=own.looks.level,
        measure=measure,
    )
    figure = _head(study, plan, own, measure, population) | _numbers(result)
    if own.identical[chosen].all():
        figure |= dict(zip(("verdict", "sentence"), EQUAL_ROWS, strict=True))
    elif own.kept_equal[chosen].all() and result.difference.value == 0:
        figure |= dict(zip(("verdict", "sentence"), EQUAL_KEPT, strict=True)) | {"bound": 0.0}
    return figure


def _distance(study: str, plan: ComparisonPlan, own: PanelPair, measure: str, population: str) -> dict[str, Any]:
    """A pair measure: its mean over the rows with an interval, beside what it reads between runs of one arm."""
    chosen = own.candidate.rows_of(population)
    clusters = own.candidate.clusters_of(chosen)
    kind: Kind = "proportion" if MEASURES[measure].unit == "share of rows" else "mean"

    def estimate(values: Float64, level: float) -> Any:
        return population_mean(values[chosen], clusters, preset=own.looks.preset, level=level, kind=kind)

    found = estimate(own.distances[measure], own.looks.level)
    wide = estimate(own.distances[measure], 1 - (1 - own.looks.level) / own.looks.family)
    floors: dict[str, Any] = {}
    for name, values in own.floors.items():
        if isinstance(values, Missing):
            floors[name] = values.as_json()
        else:
            between = estimate(values[measure], own.looks.level)
            floors[name] = {"value": plain(between.value), "interval": plain(between.interval)}
    same = bool(own.identical[chosen].all())
    return _head(study, plan, own, measure, population) | {
        "value": plain(found.value),
        "interval": plain(found.interval),
        "interval_bonferroni": plain(wide.interval),
        "primary": False,
        "family": own.looks.family,
        "floor": floors,
        "verdict": BIT_IDENTICAL if same else DESCRIPTIVE,
        "sentence": _distance_sentence(measure, found.value, floors, same=same),
        "bound": _NOT_A_DIFFERENCE,
        "leave_one_out": _NOT_A_DIFFERENCE,
        "sign_clusters": _NOT_A_DIFFERENCE,
        "largest_cluster": _NOT_A_DIFFERENCE,
        "rows": found.rows,
        "clusters": found.clusters,
    }


def _distance_sentence(measure: str, value: Any, floors: Mapping[str, Any], *, same: bool) -> str:
    if same:
        return "Every row of both is equal bit for bit."
    definition = MEASURES[measure]
    words = [
        f"{format_number(entry['value'])} {_FLOOR_WORDS[name]}" for name, entry in floors.items() if "value" in entry
    ]
    beside = f"; between runs of one arm it reads {', '.join(words)}" if words else "; no floor was measured"
    number = value.reason if isinstance(value, Missing) else f"{format_number(value)} {definition.unit}"
    return f"{definition.title}: {number}{beside}."


def _numbers(result: Comparison) -> dict[str, Any]:
    estimate = result.difference
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
        "largest_cluster": plain(result.most_moving_cluster),
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
        "distinct_resamples": plain(estimate.distinct_resamples),
    }


def _wider(first: Floor, second: Floor) -> Floor:
    """The floor beside a difference: of each kind, the null differences of both arms; Missing where an arm lacks it."""

    def joined(kind: str) -> Any:
        values = [getattr(floor, kind) for floor in (first, second)]
        missing = [value for value in values if isinstance(value, Missing)]
        return missing[0] if missing else (*values[0], *values[1])

    return Floor(within_launch=joined("within_launch"), across_launches=joined("across_launches"))
