"""comparisons: every declared pair, candidate minus baseline, with the run-to-run floor beside the difference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engcmp_assets.comparisons.distances import Captured, distances, run_floors
from engcmp_assets.comparisons.pairs import PanelPair, figure_record, not_comparable, pair_document, primary_figure
from engcmp_assets.comparisons.speed import runs_of, speed_document
from engcmp_assets.engine_launch.sides import side_of
from engcmp_assets.kernel.launch_diff import LaunchDifference, launch_differences
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL, CELLS, EVENTS, LAUNCH, captured_rows, scored_rows
from engcmp_assets.kernel.plots import DotRow, dots_with_intervals
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import measure_column, parquet_bytes
from engcmp_assets.kernel.throughput.ratios import COMPARED
from engcmp_assets.kernel.throughput_tables import Band
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.summaries.step import panel_rows
from engcmp_assets.throughput_cells.step import CELLS_FILE
from engcmp_assets.throughput_events.step import EVENTS_FILE, REQUESTS_FILE
from engcmp_resources.canonical import canonical_bytes, sha256_of
from engcmp_resources.store import Blob

COLUMNS = (
    Column("figure_id", "str", "1", "Id of the figure: what `engcmp trace` takes"),
    Column("pair_id", "str", "1", "The declared pair"),
    Column("panel", "str", "1", "The panel"),
    Column("measure", "str", "1", "Measure id; its definition is on the summary page"),
    Column("population", "str", "1", "all, or block:NAME"),
    Column(
        "value",
        "float",
        "as the measure",
        "The difference or distance; empty where missing, with its reason in comparisons.json",
    ),
    Column("low", "float", "as the measure", "Lower end of the interval"),
    Column("high", "float", "as the measure", "Upper end of the interval"),
    Column("verdict", "str", "1", "Verdict word of the closed list"),
    Column("unit", "str", "1", "Unit of the measure"),
)
SPEED_VERSION = "1"
_SPEED_USES = (Use(EVENTS, "every arm", (EVENTS_FILE, REQUESTS_FILE)), Use(CELLS, "every arm", (CELLS_FILE,)))
_PAIR_KLS = ("kl_pair_full", "kl_pair_coarse", "kl_pair20")


def row_columns(protocol: Protocol) -> tuple[Column, ...]:
    """The columns of a pair's rows: the distance is each panel's own pair measure."""
    used = {plan.possible_of_pairs[0] for plan in protocol.panels.values()}
    names = [name for name in _PAIR_KLS if name in used]
    definitions = "; ".join(f"{name}: {MEASURES[name].definition}" for name in names)
    which = "the two" if len(names) == 2 else "them"  # noqa: PLR2004 - as a person would say it
    return (
        Column("panel", "str", "1", "The panel"),
        Column("window_id", "str", "1", "Name of the window"),
        Column("position", "int", "row", "Row index r"),
        Column(
            "kl_pair", "float", MEASURES["kl_pair_full"].unit,
            f"{definitions} a is the candidate and b the baseline, the first run of each; the panel says which of {which} it is.",
        ),
        measure_column("rows_bit_identical"),
    )  # fmt: skip


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The declared pairs and how they are judged."""
    protocol = study.protocol
    return {
        "study": protocol.study,  # figures carry its name: another study's pairs must not stand for these
        "pairs": [plan.model_dump() for plan in protocol.comparisons],
        "statistics": protocol.statistics.model_dump(),
        "panels": {name: plan.model_dump(exclude={"label"}) for name, plan in protocol.panels.items()},
    } | (
        {"speed": SPEED_VERSION, "band": band.model_dump() if (band := _band(study)) else None}
        if protocol.throughput
        else {}
    )


def make(work: Work) -> Made:
    """Pair by pair; a pair whose two arms and rules are unchanged is answered from the store."""
    rules, contents = parameters(work.study, None), _contents(work)
    parts = [_part(work, plan, rules, contents) for plan in work.study.protocol.comparisons]
    pairs = [pair for pair, _ in parts]
    figures = [
        figure | {"pair_id": pair["pair_id"]}
        for pair in pairs
        for figure in (*pair["figures"], *pair.get("speed", {}).get("figures", ()))
    ]
    compared = [pair for pair in pairs if pair["state"] == "compared"]
    why = {pair["pair_id"]: pair["reason"] for pair in pairs if pair["reason"]}
    words = f"{len(compared)} of {len(pairs)} declared pairs were compared"
    table = parquet_bytes(COLUMNS, _table(figures))
    return Made(
        products=[
            Product("comparisons.json", "json", canonical_bytes({"pairs": pairs})),
            Product("differences.parquet", "parquet", table, rows=len(figures), columns=COLUMNS),
            *(rows for _, rows in parts if rows is not None),
            Product("plot.png", "png", _plot(pairs), role="view"),
        ],
        figures=[figure_record(figure) for figure in figures],
        checks=[
            Check("every_pair_compared", len(compared) == len(pairs), words, {"compared": len(compared)} | why),
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


def compare_pair(work: Work, plan: ComparisonPlan) -> tuple[dict[str, Any], Product | None]:
    """One pair from its row files: the document that is published, and the table of its rows, if it can be compared."""
    arms = (ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline))
    for arm in arms:
        if ("scores", str(arm)) not in work.inputs:
            name = work.study.protocol.study
            return not_comparable(plan, f"{arm} was not measured yet: engcmp run {name} --arm {arm}"), None
    panels = [_panel_pair(work, plan, name, arms) for name in work.study.protocol.panels_of(plan)]
    own_columns = row_columns(work.study.protocol)
    rows: dict[str, list[Any]] = {column.name: [] for column in own_columns}
    for own in panels:
        kl, *identical = own.distances.values()
        rows["panel"] += [own.panel] * own.candidate.rows
        rows["window_id"] += own.candidate.keys["window_id"].tolist()
        rows["position"] += own.candidate.keys["position"].tolist()
        rows["kl_pair"] += kl.tolist()
        rows["rows_bit_identical"] += identical[0].tolist() if identical else [None] * own.candidate.rows
    table = parquet_bytes(own_columns, rows)
    document = pair_document(work.study.protocol, plan, panels, _launches(work, plan, arms))
    if work.study.protocol.throughput and not plan.compares_paths:
        document["speed"] = _speed(work, plan, arms)
    return document, _rows_product(work, plan, table, len(rows["position"]))


def _speed(work: Work, plan: ComparisonPlan, arms: tuple[ArmKey, ArmKey]) -> dict[str, Any]:
    """The pair's speeds: every cell that either arm has."""
    protocol = work.study.protocol
    sides = []
    for arm in arms:
        document = json.loads(work.file(CELLS, CELLS_FILE, arm).read_bytes())
        tables = (pl.read_parquet(work.file(EVENTS, name, arm)) for name in (EVENTS_FILE, REQUESTS_FILE))
        sides.append(runs_of(str(arm), document, *tables))
    judged = protocol.statistics
    preset = Preset(judged.replicates, judged.seed)
    return speed_document(
        protocol.study, plan, (sides[0], sides[1]), band=_band(work.study), preset=preset, level=judged.level
    )


def _band(study: Study) -> Band | None:
    return study.protocol.throughput.band if study.protocol.throughput else None


def _launches(work: Work, plan: ComparisonPlan, arms: tuple[ArmKey, ArmKey]) -> list[LaunchDifference]:
    """How the arms' launches differ, baseline first."""
    candidate, baseline = (
        side_of(work.store, work.inputs[(LAUNCH, str(arm))].receipt, path=path)
        for arm, path in zip(arms, (plan.candidate_path, plan.baseline_path), strict=True)
    )
    return launch_differences(baseline, candidate)


def _panel_pair(work: Work, plan: ComparisonPlan, name: str, arms: tuple[ArmKey, ArmKey]) -> PanelPair:
    panel = work.study.panel(name)
    candidate, looks = panel_rows(work, arms[0], name, path=plan.candidate_path)
    baseline, _ = panel_rows(work, arms[1], name, path=plan.baseline_path)
    captures = (Captured(work, arms[0], panel, plan.candidate_path), Captured(work, arms[1], panel, plan.baseline_path))
    between = distances(captures[0], captures[0].runs[0], captures[1], captures[1].runs[0])
    return PanelPair(name, candidate, baseline, looks, between, run_floors(captures))


def _contents(work: Work) -> dict[str, list[list[str]]]:
    """The content ids of each arm's inputs, by artifact: what a pair was made of."""
    found: dict[str, list[list[str]]] = {}
    for (artifact, arm), done in work.inputs.items():
        found.setdefault(arm or "", []).append([artifact, done.receipt["content_id"]])
    return found


def _part(
    work: Work, plan: ComparisonPlan, rules: Mapping[str, Any], contents: Mapping[str, list[list[str]]]
) -> tuple[dict[str, Any], Product | None]:
    """A pair from the store, if its arms' content and the rules are those it was made of; else made and kept.

    A kept pair is its document and the name of its rows' file: the rows themselves are not read again.
    """
    inputs = [contents.get(arm, []) for arm in (plan.candidate, plan.baseline)]
    key = sha256_of(
        [
            "pair/5",
            rules["study"],
            plan.model_dump(),
            rules["statistics"],
            rules["panels"],
            *([rules["speed"], rules["band"]] if "speed" in rules else ()),
            inputs,
            work.step.versions(),
        ]
    )
    kept = _kept(work, plan, key)
    if kept is not None:
        return kept
    work.say(f"pair {plan.pair_id}")
    pair, product = compare_pair(work, plan)
    if not work.store.read_only:  # an auditor makes every pair again and keeps none
        _keep(work, key, pair, product)
    return pair, product


def _kept(work: Work, plan: ComparisonPlan, key: str) -> tuple[dict[str, Any], Product | None] | None:
    kept = work.store.part(key)
    if kept is None:
        return None
    part: dict[str, Any] = json.loads(kept)
    if part["rows"] is None:
        return part["pair"], None
    rows = Blob(part["rows"]["sha256"], part["rows"]["bytes"], "parquet")
    return (part["pair"], _rows_product(work, plan, rows, part["rows"]["rows"])) if work.store.holds(rows) else None


def _keep(work: Work, key: str, pair: Mapping[str, Any], product: Product | None) -> None:
    """The rows at once too, so that a run that is killed at a later pair has this one whole."""
    rows = None
    if product is not None and isinstance(product.content, bytes):
        stored = work.store.put_bytes(product.content, product.suffix)
        rows = {"sha256": stored.sha256, "bytes": stored.bytes, "rows": product.rows}
    work.store.keep_part(key, canonical_bytes({"pair": pair, "rows": rows}))


def _rows_product(work: Work, plan: ComparisonPlan, content: bytes | Blob, rows: int) -> Product:
    return Product(
        f"rows/{plan.pair_id}.parquet", "parquet", content, rows=rows, columns=row_columns(work.study.protocol)
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
            for name in ("figure_id", "pair_id", "panel", "measure", "population", "verdict", "unit")
        },
    }


def _plot(pairs: Sequence[Mapping[str, Any]]) -> bytes:
    """Each pair's first look over all rows: on panel pa the difference of the distance from the reference."""
    rows = []
    for pair in pairs:
        figure = primary_figure(pair)
        if figure is None or isinstance(figure["value"], dict):
            rows.append(DotRow(pair["pair_id"], None, None, None, pair["kind"], pair["reason"] or "no value"))
            continue
        ends = figure["interval"]
        rows.append(DotRow(pair["pair_id"], figure["value"], ends.get("low"), ends.get("high"), pair["kind"], ""))
    if not rows:
        rows.append(DotRow("no pair", None, None, None, "arms", "the study declares no pair"))
    title = f"Candidate minus baseline: distance from the reference, {ALL} rows"
    return dots_with_intervals(title, rows, unit="nats (kl_full)", zero_line=True)


def step(study: Study) -> Step:
    """The step of a study: it reads the captured and scored rows of every arm and panel."""
    panels = study.protocol.panels
    measures = {name for plan in panels.values() for name in (*plan.measures, *plan.pair_measures)}
    return Step(
        artifact="comparisons",
        title="Comparisons",
        description=(
            "Every pair that the protocol declares, candidate minus baseline on the same rows: the difference with its interval, how far "
            "apart the rows themselves are, the floor beside both, how the difference changes against each single run of the baseline "
            "and without each document, and a verdict from a closed list of words."
        ),
        group="results",
        kinds=("numpy", "json"),
        version="5",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use(LAUNCH, "every arm", ("spec.json", "starts.json")),
            *(Use(captured_rows(name), "every arm") for name in panels),
            Use("scores", "every arm", tuple(scored_rows(name) for name in panels)),
            Use("summaries", "every arm", ()),
            *(_SPEED_USES if study.protocol.throughput else ()),
        ),
        per_arm=False,
        parameters=parameters,
        make=make,
        measures=tuple(sorted({*measures, *(COMPARED if study.protocol.throughput else ())})),
        columns=COLUMNS,
        checks={
            "every_pair_compared": "Both arms of every declared pair were measured",
            "identical_inputs": "The arms of each pair were measured on the same windows, rows and next tokens",
        },
    )
