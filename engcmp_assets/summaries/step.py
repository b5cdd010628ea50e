"""summaries: the figures of one arm."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engcmp_assets.kernel.blocks import WORDS, blocks_of_arm, not_asked
from engcmp_assets.kernel.early_measurements import early_blocks, words_of_early
from engcmp_assets.kernel.fields import ScorePath
from engcmp_assets.kernel.looks import Looks, declared_looks, declared_parts
from engcmp_assets.kernel.names import ALL, CELLS, REPLY_CHECKS, scored_rows
from engcmp_assets.kernel.plots import DotRow, dots_with_intervals
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Figure, Interval, Missing, plain
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.source_outputs import checkpoint_output
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes, read_parquet
from engcmp_assets.kernel.work import SEEN, Made, Product, Session, Source, Step, Use, Work, output_blob
from engcmp_assets.long_output_checks.step import CHECKS_FILE
from engcmp_assets.sources.published import file_sources, sizes_of
from engcmp_assets.summaries.figures import arm_figures
from engcmp_assets.summaries.replies import reply_groups
from engcmp_assets.summaries.speed import speed_cells
from engcmp_assets.throughput_cells.documents import arm_speeds
from engcmp_assets.throughput_cells.step import CELLS_FILE, startup_of
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

COLUMNS = (
    Column("figure_id", "str", "1", "Id of the figure: what `engcmp trace` takes"),
    Column("panel", "str", "1", "The panel"),
    Column("measure", "str", "1", "Measure id; its definition is on the summary page"),
    Column("population", "str", "1", "all, block:NAME, bucket:NAME, or block:NAME,bucket:NAME"),
    Column(
        "value",
        "float",
        "as the measure",
        "Mean over the rows, each row counted once; empty where missing, with its reason in summary.json",
    ),
    Column("low", "float", "as the measure", "Lower end of the interval"),
    Column("high", "float", "as the measure", "Upper end of the interval"),
    Column("rows", "int", "row", "Rows of the population"),
    Column("clusters", "int", "cluster", "Documents of the population"),
    Column("unit", "str", "1", "Unit of the measure"),
)


def parameters(study: Study, arm: ArmKey | None) -> Mapping[str, Any]:
    """How figures are judged, and the looks that each panel declares.

    Study and arm are part of it: figures carry their names, and two arms whose rows are bit-identical must not share them.
    """
    panels = {name: [plan.roles, plan.measures, plan.primary] for name, plan in study.protocol.panels.items()}
    return {
        "statistics": study.protocol.statistics.model_dump(),
        "panels": panels,
        "study": study.protocol.study,
        "arm": str(arm),
        **({"by": by} if (by := declared_parts(study.protocol)) else {}),
    } | ({"not_asked": lacking} if arm is not None and (lacking := not_asked(study.protocol, arm)) else {})


def seen(session: Session, inputs: Collection[Source]) -> dict[str, Any]:
    """Why what was measured of the arm is no primary result, by block; {} where all of it may be one."""
    arm = next((name for artifact, name in inputs if artifact == "sources" and name is not None), None)
    early = early_blocks(session, ArmKey.parse(arm)) if arm else {}
    return {"before_freeze": early} if early else {}


def panel_rows(work: Work, arm: ArmKey, panel: str, *, path: ScorePath | None = None) -> tuple[RowTable, Looks]:
    """An arm's scored rows on a panel and score path (by default its main one), and the looks that the protocol declares at them."""
    protocol, plan = work.study.protocol, work.study.protocol.panels[panel]
    path = path or protocol.capture.main_path(panel)
    columns = read_parquet(work.file("scores", scored_rows(panel), arm))
    where = f"scores of {arm}, panel {panel}"
    table = row_table(columns, plan.measures, roles=plan.roles, path=path, where=where)
    return table, declared_looks(protocol.statistics, plan, table)


def figures_of(work: Work, arm: ArmKey) -> list[Figure]:
    """Every declared look at the arm, panel by panel; none of an arm of which the protocol asks for no rows."""
    figures: list[Figure] = []
    if "q" not in blocks_of_arm(work.study.protocol, arm):
        return figures
    for panel in work.study.protocol.panels:
        table, looks = panel_rows(work, arm, panel)
        figures += arm_figures(work.study.protocol.study, arm, panel, table, looks)
    return [_demoted(figure, _early(work, "q")) for figure in figures]


def _early(work: Work, block: str) -> str | None:
    found: str | None = work.parameters.get(SEEN, {}).get("before_freeze", {}).get(block)
    return found


def _demoted(figure: Figure, early: str | None) -> Figure:
    """A figure that rests on a measurement from before the freeze says so, and is never primary."""
    if early is None:
        return figure
    return replace(figure, details={**figure.details, "primary": False, "before_freeze": words_of_early(early)})


def make(work: Work) -> Made:
    """Figures of every declared look, as JSON and as a table."""
    arm = work.arm
    if arm is None:
        raise EngcmpError("a summary belongs to an arm", remedy="choose a partition")
    figures = figures_of(work, arm)
    complete = [figure for figure in figures if not isinstance(figure.value, Missing)]
    primary = {name: plan.primary for name, plan in work.study.protocol.panels.items()}
    shown = [figure for figure in figures if figure.measure in primary[figure.panel]]
    words = f"{len(complete)} of {len(figures)} declared looks have a value"
    table = parquet_bytes(COLUMNS, _table(figures))
    return Made(
        products=[
            Product("summary.json", "json", canonical_bytes(arm_document(work, arm, figures))),
            Product("figures.parquet", "parquet", table, rows=len(figures), columns=COLUMNS),
            Product("plot.png", "png", _plot(arm, shown), role="view"),
        ],
        figures=figures,
        checks=[Check("every_look_has_a_value", len(complete) == len(figures), words, {"looks": len(figures)})],
        flags=[
            f"{WORDS[block]}: {words_of_early(why)}"
            for block, why in work.parameters.get(SEEN, {}).get("before_freeze", {}).items()
        ],
        details={"panels": {name: work.study.panel(name).rows for name in work.study.protocol.panels}},
    )


def arm_document(work: Work, arm: ArmKey, figures: Sequence[Figure]) -> dict[str, Any]:
    """An arm as SUMMARY.json holds it; rows and windows are those of the first panel, which the headline is of."""
    protocol, blocks = work.study.protocol, blocks_of_arm(work.study.protocol, arm)
    lacking, early = not_asked(protocol, arm), work.parameters.get(SEEN, {}).get("before_freeze", {})
    return {
        "arm": str(arm), "checkpoint": arm.checkpoint, "engine": arm.engine, "version": arm.version, "state": "measured",
        "reason": None, **(_rows(work) if "q" in blocks else {}),
        "file_bytes": _file_bytes(work, arm),
        "figures": plain(list(figures)),
        **(_speed(work, arm) if "t" in blocks else {}),
        **({"replies": _replies(work, arm)} if "l" in blocks else {}),
        **({"not_asked": {WORDS[block]: {"missing": why} for block, why in lacking.items()}} if lacking else {}),
        **({"before_freeze": {WORDS[block]: words_of_early(why) for block, why in early.items()}} if early else {}),
    }  # fmt: skip


def _file_bytes(work: Work, arm: ArmKey) -> int:
    """The size of what the arm serves: of a file, or of all files of a published checkpoint."""
    name = checkpoint_output(work.study.protocol, arm)
    if name in file_sources(work.study, arm):
        return sizes_of(work.store, work.receipt("sources"), name)
    return output_blob(work.receipt("sources"), name).bytes


def _rows(work: Work) -> dict[str, Any]:
    """How the rows of the first panel were taken."""
    protocol = work.study.protocol
    panel = work.study.panel(next(iter(protocol.panels)))
    path = protocol.capture.main_path(panel.panel)
    plan = protocol.capture.plan_of(path)
    launches, repeats = (plan.launches, plan.repeats) if plan else (0, 0)
    return {
        "runs": launches * repeats, "launches": launches, "repeats": repeats, "rows": panel.rows,
        "windows": len(panel.windows), "score_path": path,
    }  # fmt: skip


def _speed(work: Work, arm: ArmKey) -> dict[str, Any]:
    study, document = work.study.protocol.study, json.loads(work.file(CELLS, CELLS_FILE, arm).read_bytes())
    early = _early(work, "t")
    speeds = [_demoted(figure, early) for figure in arm_speeds(study, arm, document)]
    found: dict[str, Any] = {"speed": speed_cells(document, speeds)}
    if early:  # stands where each cell's flags do, so that tables say it
        found["speed"] = [cell | {"labels": [*cell["labels"], words_of_early(early)]} for cell in found["speed"]]
    if "startup" in document:
        started = [_demoted(figure, early) for figure in startup_of(study, arm, document)]
        found["startup"] = document["startup"] | {"figures": plain(started)}
    return found


def _replies(work: Work, arm: ArmKey) -> dict[str, Any]:
    found = reply_groups(json.loads(work.file(REPLY_CHECKS, CHECKS_FILE, arm).read_bytes()))
    early = _early(work, "l")
    if early:
        words = words_of_early(early)
        for group in found["groups"]:
            for figure in group["figures"]:
                figure["details"] = figure["details"] | {"primary": False, "before_freeze": words}
    return found


def _table(figures: Sequence[Figure]) -> dict[str, list[Any]]:
    def number(value: float | Missing) -> float | None:
        return None if isinstance(value, Missing) else value

    def end(interval: Interval | Missing, side: str) -> float | None:
        return None if isinstance(interval, Missing) else float(getattr(interval, side))

    return {
        "figure_id": [figure.figure_id for figure in figures],
        "panel": [figure.panel for figure in figures],
        "measure": [figure.measure for figure in figures],
        "population": [figure.population for figure in figures],
        "value": [number(figure.value) for figure in figures],
        "low": [end(figure.interval, "low") for figure in figures],
        "high": [end(figure.interval, "high") for figure in figures],
        "rows": [figure.rows for figure in figures],
        "clusters": [figure.clusters for figure in figures],
        "unit": [figure.unit for figure in figures],
    }


def _plot(arm: ArmKey, figures: Sequence[Figure]) -> bytes:
    rows = [dot_row(figure.population, figure, "all" if figure.population == ALL else "block") for figure in figures]
    if not rows:
        rows = [DotRow("no rows", None, None, None, "all", "the protocol asks for no rows of this arm")]
    measures = " and ".join(dict.fromkeys(figure.measure for figure in figures)) or "of no measure"
    return dots_with_intervals(f"{arm}: distance from the reference", rows, unit=f"nats ({measures})", zero_line=True)


def dot_row(label: str, figure: Figure, group: str) -> DotRow:
    """A figure as a line of a dot plot; a missing value keeps its reason."""
    value, interval = figure.value, figure.interval
    low, high = (None, None) if isinstance(interval, Missing) else (interval.low, interval.high)
    if isinstance(value, Missing):
        return DotRow(label, None, None, None, group, value.reason)
    return DotRow(label, value, low, high, group, "")


def step(study: Study) -> Step:
    """The step of a study: it reads the scored rows of every panel."""
    return Step(
        artifact="summaries",
        title="Summaries",
        description=(
            "The published figures of one arm: every measure that the protocol declares, over all rows and by kind of content, each with "
            "its interval, a wider interval that allows for how many figures are looked at, and its floor."
        ),
        group="results",
        kinds=("numpy", "json"),
        version="3",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("sources", "arm", lambda study, arm: (checkpoint_output(study.protocol, arm),)),
            Use("scores", "arm", tuple(scored_rows(name) for name in study.protocol.panels)),
            Use("tails", "arm", ()),
            *([Use(CELLS, "arm", (CELLS_FILE,))] if study.protocol.throughput else []),
            *([Use(REPLY_CHECKS, "arm", (CHECKS_FILE,))] if study.protocol.long_replies else []),
        ),
        per_arm=True,
        parameters=parameters,
        make=make,
        seen=seen,
        measures=tuple(sorted({name for plan in study.protocol.panels.values() for name in plan.measures})),
        columns=COLUMNS,
        checks={"every_look_has_a_value": "Each measure that the protocol declares has a value on each population"},
    )
