"""An arm's figures: each declared measure on each population, with its interval, its Bonferroni interval and its floor."""

from __future__ import annotations

from engcmp_assets.kernel.floors import RunValues, floor, floor_document
from engcmp_assets.kernel.looks import Looks
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import figure_id
from engcmp_assets.kernel.records import ArmKey, Figure, plain
from engcmp_assets.kernel.row_table import RowTable
from engcmp_assets.kernel.uncertainty import Kind, population_mean


def arm_figures(study: str, arm: ArmKey, panel: str, table: RowTable, looks: Looks) -> list[Figure]:
    """Every declared look at one arm on a panel, measure by measure. The value of a row is the mean over the arm's runs."""
    return [
        _figure(f"{study}/{arm}", arm, table, looks, panel=panel, measure=measure, population=population)
        for measure in looks.measures
        for population in looks.populations
    ]


def _figure(
    owner: str, arm: ArmKey, table: RowTable, looks: Looks, *, panel: str, measure: str, population: str
) -> Figure:
    definition = MEASURES[measure]
    chosen = table.rows_of(population)
    clusters = table.clusters_of(chosen)
    runs = RunValues(table.runs, table.values[measure][:, chosen])
    kind: Kind = "proportion" if definition.unit == "share of rows" else "mean"
    estimate = population_mean(runs.per_row, clusters, preset=looks.preset, level=looks.level, kind=kind)
    corrected = 1 - (1 - looks.level) / looks.family
    wide = population_mean(runs.per_row, clusters, preset=looks.preset, level=corrected, kind=kind)
    return Figure(
        figure_id=figure_id(owner, panel, population, measure),
        label=f"{arm}, panel {panel}: {definition.title}, {population}",
        measure=measure,
        measure_version=definition.version,
        unit=definition.unit,
        panel=panel,
        population=population,
        value=estimate.value,
        interval=estimate.interval,
        rows=estimate.rows,
        clusters=estimate.clusters,
        details={
            "arm": str(arm),
            "runs": list(table.runs),
            "primary": looks.is_primary(measure, population),
            "family": looks.family,
            "interval_bonferroni": plain(wide.interval),
            "floor": floor_document(floor(runs, clusters, preset=looks.preset, level=looks.level)),
            "cluster_mean": plain(estimate.cluster_mean),
            "standard_error": plain(estimate.standard_error),
            "distinct_resamples": plain(estimate.distinct_resamples),
        },
    )
