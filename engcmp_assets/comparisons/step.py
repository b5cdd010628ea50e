"""comparisons: every declared pair, candidate minus baseline, with the run-to-run floor beside the difference."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from engcmp_assets.captured_rows.refusals import refusals_of
from engcmp_assets.comparisons.asked import asked_of_arms, compared_blocks, is_measured, lacking_blocks
from engcmp_assets.comparisons.before_freeze import demoted
from engcmp_assets.comparisons.distances import IDENTICAL, Captured, distances, run_floors
from engcmp_assets.comparisons.gaps import PanelGap, gap_document, no_gap
from engcmp_assets.comparisons.pairs import PanelPair, figure_record, not_comparable, pair_document, primary_figure
from engcmp_assets.comparisons.reply_sides import USES as REPLY_USES
from engcmp_assets.comparisons.reply_sides import replies_of, rules_of
from engcmp_assets.comparisons.speed import runs_of, speed_document, startup_pair
from engcmp_assets.comparisons.steps_read import steps_document
from engcmp_assets.engine_launch.sides import side_of
from engcmp_assets.kernel.blocks import blocks_of_arm
from engcmp_assets.kernel.declared_words import words_of_pair, words_of_pairs
from engcmp_assets.kernel.early_measurements import EARLY, early_blocks
from engcmp_assets.kernel.launch_diff import LaunchDifference, launch_differences
from engcmp_assets.kernel.looks import declared_parts
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import ALL, CELLS, EVENTS, LAUNCH, SERVING, captured_rows, scored_rows
from engcmp_assets.kernel.plots import DotRow, dots_with_intervals
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import measure_column, parquet_bytes
from engcmp_assets.kernel.throughput.ratios import COMPARED, SCHEDULED
from engcmp_assets.kernel.throughput_tables import Band
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.kernel.work import SEEN, Made, Product, Session, Source, Step, Use, Work
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
    Column("population", "str", "1", "all, block:NAME, bucket:NAME, or block:NAME,bucket:NAME"),
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
SPEED_VERSION = "3"  # no verdict where the client was the limit
OPEN_LOOP_VERSION = "4"  # the same with cells in an open loop: their latency from the schedule is compared too
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
        **rules_of(study),
        **({"declared": dict(words)} if (words := words_of_pairs(protocol)) else {}),
        **({"bands": bands} if (bands := _own_bands(protocol)) else {}),
        **({"by": by} if (by := declared_parts(protocol)) else {}),
        **({"closes": closes} if (closes := _closes(protocol)) else {}),
        **({"asked": asked} if (asked := asked_of_arms(protocol)) else {}),
    } | (
        {
            "speed": OPEN_LOOP_VERSION if _is_open(study) else SPEED_VERSION,
            "band": band.model_dump() if (band := _band(study)) else None,
        }
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
        for figure in (
            *pair["figures"],
            *(one for name in ("speed", "replies", "gap") for one in pair.get(name, {}).get("figures", ())),
        )
    ]
    compared = [pair for pair in pairs if pair["state"] == "compared"]
    why = {pair["pair_id"]: pair["reason"] for pair in pairs if pair["reason"]}
    words = f"{len(compared)} of {len(pairs)} declared pairs were compared"
    table = parquet_bytes(COLUMNS, _table(figures))
    return Made(
        products=[
            Product("comparisons.json", "json", canonical_bytes({"pairs": pairs} | work.parameters.get(SEEN, {}))),
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
    protocol, lacking = work.study.protocol, lacking_blocks(work.study.protocol, plan)
    arms = (ArmKey.parse(plan.candidate), ArmKey.parse(plan.baseline))
    blocks = compared_blocks(protocol, plan)
    if not blocks:
        return not_comparable(plan, f"the arms share no block: {'; '.join(lacking.values())}"), None
    for arm in arms:
        if not is_measured(protocol, arm, blocks, work.inputs):
            why = _refused(work).get(str(arm))
            said = f"refused: {why}" if why else f"not measured yet: engcmp run {protocol.study} --arm {arm}"
            return not_comparable(plan, f"{arm} was {said}"), None
    panels = [_panel_pair(work, plan, name, arms) for name in protocol.panels_of(plan)] if "q" in blocks else []
    document = pair_document(protocol, plan, panels, _launches(work, plan, arms))
    document["confounds"] += words_of_pair(protocol, plan)
    if steps := _steps_read(panels, arms):
        document["steps_read"] = steps
    if "q" in blocks and (gap := protocol.gap_of(plan)) is not None:
        document["gap"] = _gap(work, plan, gap, panels)
    if lacking and not plan.compares_paths:
        document |= {"not_compared": lacking, "reason": lacking.get("q")}
    # An arm may have its rows and not its speed yet: its blocks are measured apart.
    if "t" in blocks and all((CELLS, str(arm)) in work.inputs for arm in arms):
        document["speed"] = _speed(work, plan, arms)
    if "l" in blocks:
        early = any(str(arm) in _early(work).get(EARLY["l"], {}) for arm in arms)
        document["replies"] = replies_of(work, plan, arms, declared=() if early else plan.reply_tests)
    return demoted(document, _early(work)), _pair_rows(work, plan, panels)


def _gap(work: Work, plan: ComparisonPlan, gap: ComparisonPlan, panels: Sequence[PanelPair]) -> dict[str, Any]:
    """How much of another pair's gap the setting closes, on each panel that has a distance from a reference."""
    protocol, arm = work.study.protocol, ArmKey.parse(gap.baseline)
    if ("scores", str(arm)) not in work.inputs:
        return no_gap(gap, _refused(work).get(str(arm)) or f"not measured yet: engcmp run {protocol.study} --arm {arm}")
    found = []
    for own in panels:
        declared = protocol.panels[own.panel]
        if declared.kl in declared.measures and declared.reference != "none":
            baseline, _ = panel_rows(work, arm, own.panel, path=gap.baseline_path)
            found.append(PanelGap(own.panel, declared.kl, baseline, own.baseline, own.candidate, own.looks))
    return gap_document(protocol.study, plan, gap, found)


def _pair_rows(work: Work, plan: ComparisonPlan, panels: Sequence[PanelPair]) -> Product | None:
    """The table of a pair's rows; None where it has none."""
    if not panels:
        return None
    own_columns = row_columns(work.study.protocol)
    rows: dict[str, list[Any]] = {column.name: [] for column in own_columns}
    for own in panels:
        kl, *identical = own.distances.values()
        rows["panel"] += [own.panel] * own.candidate.rows
        rows["window_id"] += own.candidate.keys["window_id"].tolist()
        rows["position"] += own.candidate.keys["position"].tolist()
        rows["kl_pair"] += kl.tolist()
        rows["rows_bit_identical"] += identical[0].tolist() if identical else [None] * own.candidate.rows
    return _rows_product(work, plan, parquet_bytes(own_columns, rows), len(rows["position"]))


def seen(session: Session, inputs: Collection[Source]) -> dict[str, Any]:
    """Why the last run of each arm without results was refused, and why what others gave is no primary result; {} where none is so."""
    protocol = session.study.protocol
    measured = {arm for arm in protocol.arm_keys if is_measured(protocol, arm, blocks_of_arm(protocol, arm), inputs)}
    lacking = [arm for arm in protocol.arm_keys if arm not in measured]
    told = {"refused": refusals_of(session, lacking)} | {name: {} for name in EARLY.values()}
    for arm in protocol.arm_keys:
        for block, why in early_blocks(session, arm).items() if arm in measured else ():
            told[EARLY[block]][str(arm)] = why
    return {name: of_arms for name, of_arms in told.items() if of_arms}


def _refused(work: Work) -> dict[str, str]:
    found: dict[str, str] = work.parameters.get(SEEN, {}).get("refused", {})
    return found


def _early(work: Work) -> dict[str, dict[str, str]]:
    return {name: own for name, own in work.parameters.get(SEEN, {}).items() if name in EARLY.values()}


def _speed(work: Work, plan: ComparisonPlan, arms: tuple[ArmKey, ArmKey]) -> dict[str, Any]:
    """The pair's speeds: every cell that either arm has."""
    protocol = work.study.protocol
    sides, startups = [], []
    for arm in arms:
        document = json.loads(work.file(CELLS, CELLS_FILE, arm).read_bytes())
        startups += [document["startup"]] if "startup" in document else []
        tables = (pl.read_parquet(work.file(EVENTS, name, arm)) for name in (EVENTS_FILE, REQUESTS_FILE))
        sides.append(runs_of(str(arm), document, *tables))
    judged = protocol.statistics
    preset = Preset(judged.replicates, judged.seed)
    found = speed_document(
        protocol.study, plan, (sides[0], sides[1]), band=protocol.band_of(plan), preset=preset, level=judged.level
    )
    return found | ({"startup": startup_pair(*startups)} if startups else {})


def _own_bands(protocol: Protocol) -> dict[str, Any]:
    """The noise bands that pairs have for themselves, by the pair."""
    return {plan.pair_id: plan.band.model_dump() for plan in protocol.comparisons if plan.band is not None}


def _closes(protocol: Protocol) -> dict[str, str]:
    """Which pair's gap each pair of a setting is to close, where that is declared."""
    return {plan.pair_id: plan.closes for plan in protocol.comparisons if plan.closes is not None}


def _band(study: Study) -> Band | None:
    return study.protocol.throughput.band if study.protocol.throughput else None


def _is_open(study: Study) -> bool:
    return bool(study.protocol.throughput and study.protocol.throughput.open_loop)


def _launches(work: Work, plan: ComparisonPlan, arms: tuple[ArmKey, ArmKey]) -> list[LaunchDifference]:
    """How the arms' launches differ, baseline first: those that took the rows, or of arms that share no rows those that served."""
    mode = LAUNCH if all((LAUNCH, str(arm)) in work.inputs for arm in arms) else SERVING
    candidate, baseline = (
        side_of(work.store, work.inputs[(mode, str(arm))].receipt, path=None if mode == SERVING else path)
        for arm, path in zip(arms, (plan.candidate_path, plan.baseline_path), strict=True)
    )
    return launch_differences(baseline, candidate)


def _panel_pair(work: Work, plan: ComparisonPlan, name: str, arms: tuple[ArmKey, ArmKey]) -> PanelPair:
    panel = work.study.panel(name)
    candidate, looks = panel_rows(work, arms[0], name, path=plan.candidate_path)
    baseline, _ = panel_rows(work, arms[1], name, path=plan.baseline_path)
    captures = (Captured(work, arms[0], panel, plan.candidate_path), Captured(work, arms[1], panel, plan.baseline_path))
    between = distances(captures[0], captures[0].runs[0], captures[1], captures[1].runs[0])
    notes = (captures[0].notes, captures[1].notes)
    return PanelPair(name, candidate, baseline, looks, between, run_floors(captures), notes)


def _steps_read(panels: Sequence[PanelPair], arms: tuple[ArmKey, ArmKey]) -> dict[str, Any] | None:
    """How the rows came about, on the first panel that keeps whole rows: one capture of a window serves all panels."""
    own = next((one for one in panels if IDENTICAL in one.distances), None)
    if own is None:
        return None
    keys = (own.candidate.keys["window_id"].tolist(), own.candidate.keys["position"].tolist())
    sides = [(str(arm), notes) for arm, notes in zip(arms, own.notes, strict=True)]
    return steps_document(sides, keys, own.identical, [own.candidate.runs[0], own.baseline.runs[0]])


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
    arms = (plan.candidate, plan.baseline)
    gap = work.study.protocol.gap_of(plan)
    inputs = [contents.get(arm, []) for arm in (*arms, *((gap.baseline,) if gap else ()))]
    early = _early(work)
    told: dict[str, Any] = {
        arm: why for arm, why in (_refused(work) | early.get(EARLY["q"], {})).items() if arm in arms
    }
    for block in ("t", "l"):
        own = {arm: why for arm, why in early.get(EARLY[block], {}).items() if arm in arms}
        told |= {EARLY[block]: own} if own else {}
    key = sha256_of(
        [
            "pair/7",
            rules["study"],
            plan.model_dump(),
            rules["statistics"],
            rules["panels"],
            *([rules["speed"], rules["band"]] if "speed" in rules else ()),
            *([rules["replies"]] if "replies" in rules else ()),
            *(one for name in ("declared", "bands") if (one := rules.get(name, {}).get(plan.pair_id))),
            inputs,
            *([told] if told else ()),
            *([gap.model_dump()] if gap else ()),
            *([lacking] if (lacking := lacking_blocks(work.study.protocol, plan)) else ()),
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


def _reply_measures(study: Study) -> frozenset[str]:
    return REPLY_IDS if study.protocol.long_replies else frozenset()


def step(study: Study) -> Step:
    """The step of a study: it reads the captured and scored rows of every arm and panel."""
    panels = study.protocol.panels
    measures = {name for plan in panels.values() for name in (*plan.measures, *plan.pair_measures)}
    speeds = (*COMPARED, *(SCHEDULED if _is_open(study) else ())) if study.protocol.throughput else ()
    closing = ("gap_closed",) if _closes(study.protocol) else ()
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
        version="9",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use(LAUNCH, "every arm", ("spec.json", "starts.json")),
            *([Use(SERVING, "every arm", ("spec.json", "starts.json"))] if asked_of_arms(study.protocol) else ()),
            *(Use(captured_rows(name), "every arm") for name in panels),
            Use("scores", "every arm", tuple(scored_rows(name) for name in panels)),
            Use("summaries", "every arm", ()),
            *(_SPEED_USES if study.protocol.throughput else ()),
            *(REPLY_USES if study.protocol.long_replies else ()),
        ),
        per_arm=False,
        parameters=parameters,
        make=make,
        seen=seen,
        measures=tuple(sorted({*measures, *speeds, *closing, *_reply_measures(study)})),
        columns=COLUMNS,
        checks={
            "every_pair_compared": "Both arms of every declared pair were measured",
            "identical_inputs": "The arms of each pair were measured on the same windows, rows and next tokens",
        },
    )
