"""comparisons: every declared pair, candidate minus baseline, with the run-to-run floor beside the difference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.comparisons.pairs import figure_record, not_comparable, pair_document, primary_figure
from engcmp_assets.kernel.looks import declared_looks
from engcmp_assets.kernel.names import PANEL, SCORED_ROWS
from engcmp_assets.kernel.plots import DotRow, dots_with_intervals
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes, read_parquet
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.canonical import canonical_bytes, sha256_of

COLUMNS = (
    Column("figure_id", "str", "1", "Id of the figure: what `engcmp trace` takes"),
    Column("pair_id", "str", "1", "The declared pair"),
    Column("measure", "str", "1", "Measure id; its definition is on the summary page"),
    Column("population", "str", "1", "all, or block:NAME"),
    Column(
        "value",
        "float",
        "as the measure",
        "Candidate minus baseline; empty where missing, with its reason in comparisons.json",
    ),
    Column("low", "float", "as the measure", "Lower end of the interval"),
    Column("high", "float", "as the measure", "Upper end of the interval"),
    Column("verdict", "str", "1", "Verdict word of the closed list"),
    Column("unit", "str", "1", "Unit of the measure"),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The declared pairs and how they are judged."""
    protocol = study.protocol
    return {
        "pairs": [plan.model_dump() for plan in protocol.comparisons],
        "statistics": protocol.statistics.model_dump(),
        "roles": protocol.panels[PANEL].roles,
    }


def make(work: Work) -> Made:
    """Pair by pair; a pair whose two arms and rules are unchanged is answered from the store."""
    pairs = [_pair(work, plan) for plan in work.study.protocol.comparisons]
    figures = [figure | {"pair_id": pair["pair_id"]} for pair in pairs for figure in pair["figures"]]
    compared = [pair for pair in pairs if pair["state"] == "compared"]
    why = {pair["pair_id"]: pair["reason"] for pair in pairs if pair["reason"]}
    return Made(
        products=[
            Product("comparisons.json", "json", canonical_bytes({"pairs": pairs})),
            Product(
                "differences.parquet",
                "parquet",
                parquet_bytes(COLUMNS, _table(figures)),
                rows=len(figures),
                columns=COLUMNS,
            ),
            Product("plot.png", "png", _plot(pairs), role="view"),
        ],
        figures=[figure_record(figure) for figure in figures],
        checks=[
            Check(
                "every_pair_compared",
                len(compared) == len(pairs),
                f"{len(compared)} of {len(pairs)} declared pairs were compared",
                why,
            ),
            Check(
                "identical_inputs",
                True,
                "Both arms of each pair hold the same windows, rows and next tokens",
                {"pairs": len(compared)},
            ),
        ],
        details={
            "verdicts": {
                pair["pair_id"]: (primary_figure(pair) or {}).get("sentence", pair["reason"]) for pair in pairs
            }
        },
    )


def _pair(work: Work, plan: ComparisonPlan) -> dict[str, Any]:
    arms = [ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline)]
    for arm in arms:
        if ("scores", str(arm)) not in work.inputs:
            return not_comparable(
                plan, f"{arm} was not measured yet: engcmp run {work.study.protocol.study} --arm {arm}"
            )
    rules = [plan.model_dump(), parameters(work.study, None)["statistics"], work.study.protocol.panels[PANEL].roles]
    content = [work.receipt("scores", arm)["content_id"] for arm in arms]
    key = sha256_of(["pair", rules, content, work.step.versions()])
    kept = work.store.part(key)
    if kept is not None:
        pair: dict[str, Any] = json.loads(kept)
        return pair
    tables = [_scored_rows(work, arm) for arm in arms]
    looks = declared_looks(work.study.protocol.statistics, tables[0].populations())
    pair = pair_document(work.study.protocol, plan, tables[0], tables[1], looks)
    work.store.keep_part(key, canonical_bytes(pair))
    return pair


def _scored_rows(work: Work, arm: ArmKey) -> RowTable:
    protocol = work.study.protocol
    columns = read_parquet(work.file("scores", SCORED_ROWS, arm))
    return row_table(
        columns, protocol.statistics.measures, roles=protocol.panels[PANEL].roles, where=f"scores of {arm}"
    )


def _table(figures: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    def number(value: Any) -> float | None:
        return None if isinstance(value, dict) else float(value)

    return {
        "value": [number(figure["value"]) for figure in figures],
        "low": [figure["interval"].get("low") for figure in figures],
        "high": [figure["interval"].get("high") for figure in figures],
        **{
            name: [figure[name] for figure in figures]
            for name in ("figure_id", "pair_id", "measure", "population", "verdict", "unit")
        },
    }


def _plot(pairs: Sequence[Mapping[str, Any]]) -> bytes:
    rows = []
    for pair in pairs:
        primary = primary_figure(pair)
        if primary is None:
            rows.append(DotRow(pair["pair_id"], None, None, None, "pair", pair["reason"] or "no primary look"))
            continue
        for figure in pair["figures"]:
            if figure["measure"] == primary["measure"]:
                ends = figure["interval"]
                label = f"{pair['pair_id']}, {figure['population']}"
                rows.append(DotRow(label, figure["value"], ends.get("low"), ends.get("high"), figure["population"], ""))
    return dots_with_intervals(
        "Candidate minus baseline: distance from the reference", rows, unit="nats (kl_full)", zero_line=True
    )


STEP = Step(
    artifact="comparisons",
    title="Comparisons",
    description=(
        "Every declared pair of arms on the same rows: the difference with its interval, the run-to-run floor on the same documents beside "
        "it, how it changes against each single run of the baseline and without each document, and a verdict from a closed list of words."
    ),
    group="results",
    kinds=("numpy", "json"),
    version="1",
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("scores", "every arm", (SCORED_ROWS,)),
        Use("summaries", "every arm", ()),
    ),
    per_arm=False,
    parameters=parameters,
    make=make,
    measures=("kl_full", "nll", "top1", "entropy", "excess_entropy", "nll_minus_reference"),
    columns=COLUMNS,
    checks={
        "every_pair_compared": "Both arms of every declared pair were measured",
        "identical_inputs": "The arms of each pair were measured on the same windows, rows and next tokens",
    },
)
