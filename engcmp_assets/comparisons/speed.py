"""A declared pair of arms as speeds: candidate / baseline of each figure in each cell, and what the noise band makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import SPEED, figure_id
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.throughput.bands import ArmRuns, DeclaredBand, NoBand, Run
from engcmp_assets.kernel.throughput.explanation import scheduling_explanation
from engcmp_assets.kernel.throughput.ratios import CellRatio, MeasureRatios, compare_arms
from engcmp_assets.kernel.throughput.startup import kv_pools, ready_times
from engcmp_assets.kernel.throughput.startup_documents import starts_of
from engcmp_assets.kernel.throughput.streams import stream_table
from engcmp_assets.kernel.throughput_tables import Band
from engcmp_assets.kernel.uncertainty import Preset

_WORDS = {
    "faster": "faster than the baseline",
    "slower": "slower than the baseline",
    "level": "level with the baseline: inside the noise band",
}


def runs_of(arm: str, document: Mapping[str, Any], events: pl.DataFrame, requests: pl.DataFrame) -> ArmRuns:
    """An arm's measured run with the streams of its cells, and its drift repeats, from its cells.json and its events."""
    first = requests.filter(pl.col("repeat") == document["repeat"])
    streams = {}
    for cell in document["cells"]:
        own = first.filter(pl.col("cell_id") == cell["cell_id"])
        streams[cell["cell_id"]] = stream_table(
            events.join(own.select("request_id"), on="request_id", how="semi", maintain_order="left"), own
        )
    return ArmRuns(arm, _run(arm, document, streams), tuple(_run(arm, one, {}) for one in document["repeats"]))


def _run(arm: str, document: Mapping[str, Any], streams: Mapping[str, pl.DataFrame]) -> Run:
    cells = {cell["cell_id"]: cell for cell in document["cells"]}
    return Run(f"{arm}, repeat {document['repeat']}", cells, streams, document["started_at_s"])


def speed_document(
    study: str, plan: ComparisonPlan, sides: tuple[ArmRuns, ArmRuns], *, band: Band | None, preset: Preset, level: float
) -> dict[str, Any]:
    """The speeds of a pair as SUMMARY.json holds them; `sides` is (candidate, baseline).

    `measures` one entry for each compared figure with its counts in words, `figures` one for each of these in each cell,
    `explanation` how much of a difference is the order of prefill and decode.
    """
    declared = DeclaredBand(band.share, band.least_hours) if band else None
    found = compare_arms(*sides, declared=declared, preset=preset, level=level)
    return {
        "measures": [_of_measure(one) for one in found],
        "figures": [_figure(study, plan, of, cell, sides) for of in found for cell in of.cells],
        "explanation": scheduling_explanation(sides[0].main, sides[1].main),
    }


def startup_pair(candidate: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """The start-ups of a pair: ready times of each state, and KV pools, each with its ratio candidate / baseline."""
    return {
        "ready": ready_times(starts_of(candidate), starts_of(baseline)),
        "kv_pool": kv_pools(candidate["kv_pool"], baseline["kv_pool"]),
    }


def _of_measure(found: MeasureRatios) -> dict[str, Any]:
    band = {"missing": found.band.reason} if isinstance(found.band, NoBand) else plain(found.band)
    return {
        "measure": found.measure, "better": found.better, "sentence": found.sentence, "counts": dict(found.counts),
        "band": band, "labels": list(found.labels),
    }  # fmt: skip


def _figure(
    study: str, plan: ComparisonPlan, of: MeasureRatios, cell: CellRatio, sides: tuple[ArmRuns, ArmRuns]
) -> dict[str, Any]:
    definition = MEASURES[cell.measure]
    own = [found for side in sides if (found := side.main.cells.get(cell.cell_id))]
    return {
        "figure_id": figure_id(f"{study}/pair/{plan.pair_id}", SPEED, cell.cell_id, cell.measure),
        "label": f"{plan.label}, {cell.cell_id}: {definition.title}, candidate / baseline",
        "measure": cell.measure,
        "measure_version": definition.version,
        "unit": "ratio",
        "panel": SPEED,
        "population": cell.cell_id,
        "arms": f"{plan.candidate} / {plan.baseline}",
        "value": plain(cell.ratio),
        "interval": plain(cell.interval),
        "candidate_value": plain(cell.candidate),
        "baseline_value": plain(cell.baseline),
        "value_unit": definition.unit,
        "verdict": cell.verdict,
        "sentence": _sentence(cell),
        "primary": False,
        "floor": {
            "drift": [plain(one) for one in cell.drift],
            "of_repeats": [plain(one) for one in cell.of_repeats],
            "words_of_repeats": list(cell.words_of_repeats),
            "band": {"missing": of.band.reason} if isinstance(of.band, NoBand) else [of.band.low, of.band.high],
        },
        "labels": list(cell.labels),
        "rows": sum(found["requests"] for found in own),
        "clusters": min((found["batches"] for found in own), default=0),
    }


def _sentence(cell: CellRatio) -> str:
    if isinstance(cell.ratio, Missing):
        return cell.ratio.reason
    words = f"{cell.ratio:.3g} times the baseline" + (f", {_WORDS[cell.verdict]}" if cell.verdict in _WORDS else "")
    told = [
        f"repeat {number} reads {again:.3g}" + ("" if word == cell.verdict else f" ({word}): it does not agree")
        for number, (again, word) in enumerate(zip(cell.of_repeats, cell.words_of_repeats, strict=True), 2)
        if not isinstance(again, Missing)
    ]
    return "; ".join((words, *told))
