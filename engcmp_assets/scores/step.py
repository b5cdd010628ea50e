"""scores: every captured row against the reference's, one line a row and run, one table a panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.measures import (
    LIGHT_ROW_MEASURES,
    LIGHT_TOPK_ROW_MEASURES,
    ROW_MEASURES,
    TOPK_ROW_MEASURES,
    WITHOUT_REFERENCE,
)
from engcmp_assets.kernel.names import captured_rows, scored_rows
from engcmp_assets.kernel.plots import survival
from engcmp_assets.kernel.protocol import PanelPlan
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel, Window
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import measure_column, parquet_bytes, read_parquet
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.scores.alignment import LEAST_ROWS, Alignment, check_alignment
from engcmp_assets.scores.windows import Scores, window_scores
from engcmp_resources.errors import EngcmpError

_BEFORE = (
    Column("run", "str", "1", "The pass over the panel, as launch.repeat"),
    Column("window_id", "str", "1", "Name of the window"),
    Column("cluster", "str", "1", "Document of the window: the unit that is resampled"),
    Column("block", "str", "1", "Content kind of the text"),
    Column("bucket", "str", "1", "Context bucket of the window"),
    Column("role", "str", "1", "Role of the row: generated, context or trailing"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column("next_token", "int", "token id", "The token that the row predicts"),
    Column("score_path", "str", "1", "How the row was computed: prefill or decode"),
)
_ENGINE_TOP = Column("engine_top_id", "int", "token id", "The engine's most probable token; ties go to the lower id")
_RAW = Column("raw_row_sha256", "str", "1", "SHA-256 of the engine's raw row, taken at capture")
_LIGHT_RAW = Column(
    "raw_row_sha256", "str", "1", "SHA-256 of what the engine's API returned of the row; the raw row is not known"
)
_EITHER_RAW = Column(
    "raw_row_sha256",
    "str",
    "1",
    "SHA-256 of the engine's raw row, taken at capture; on a light panel, of what the engine's API returned of it",
)
COLUMNS = (
    *_BEFORE,
    *(measure_column(name) for name in ROW_MEASURES),
    Column("reference_nll", "float", "nats", "-log p(next token) under the reference"),
    Column("reference_entropy", "float", "nats", "Entropy of the reference's row"),
    Column("reference_top_probability", "float", "1", "Probability of the reference's most probable token"),
    _ENGINE_TOP,
    Column("reference_top_id", "int", "token id", "The reference's most probable token; ties go to the lower id"),
    _RAW,
)
TOPK_COLUMNS = (
    *_BEFORE,
    *(measure_column(name) for name in TOPK_ROW_MEASURES),
    _ENGINE_TOP,
    _RAW,
)
ALONE_COLUMNS = (*_BEFORE, *(measure_column(name) for name in WITHOUT_REFERENCE), _ENGINE_TOP, _RAW)
LIGHT_COLUMNS = (*_BEFORE, *(measure_column(name) for name in LIGHT_ROW_MEASURES), _ENGINE_TOP, _LIGHT_RAW)
LIGHT_TOPK_COLUMNS = (*_BEFORE, *(measure_column(name) for name in LIGHT_TOPK_ROW_MEASURES), _ENGINE_TOP, _LIGHT_RAW)
Table = dict[str, list[Any]]
Tops = tuple[Window, npt.NDArray[np.int64]]


def columns_of(panel: Panel | PanelPlan) -> tuple[Column, ...]:
    """The columns of a panel's scored rows."""
    if panel.keep == "light":
        return LIGHT_COLUMNS if panel.reference == "full" else LIGHT_TOPK_COLUMNS
    return {"full": COLUMNS, "topk": TOPK_COLUMNS, "none": ALONE_COLUMNS}[panel.reference]


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """Which panels there are; their rows, roles and score paths come with the inputs."""
    return {"panels": {name: plan.reference for name, plan in study.protocol.panels.items()}}


def make(work: Work) -> Made:
    """Score each distinct row file once, and lay the rows out run by run, panel by panel."""
    products, alignments, counts = [], {}, {}
    expected = 0
    plotted: dict[str, list[float]] = {}
    for name in work.study.protocol.panels:
        panel = work.study.panel(name)
        table, tops = scored_table(work, panel)
        alignments[name] = _aligned(work, name, tops)
        data = parquet_bytes(columns_of(panel), table)
        counts[name] = len(table["run"])
        products.append(Product(scored_rows(name), "parquet", data, rows=counts[name], columns=columns_of(panel)))
        expected += len(set(table["run"])) * panel.rows
        kl = work.study.protocol.panels[name].kl
        plotted[f"{name} ({kl})"] = table[kl]
    rows = sum(counts.values())
    plot = survival("KL from the reference: share of rows above x", plotted, unit="nats")
    undetermined = [name for name, found in alignments.items() if found.verdict == "undetermined"]
    return Made(
        products=[*products, Product("plot.png", "png", plot, role="view")],
        checks=[
            Check("row_counts", rows == expected, f"{rows} scored rows, {expected} captured", counts),
            Check("no_bad_values", True, "Every row of both sides is finite where it must be", {"rows": rows}),
            _alignment_check(alignments),
        ],
        flags=[f"alignment undetermined on {name}" for name in undetermined],
        details={"rows": counts},
    )


def scored_table(work: Work, panel: Panel) -> tuple[Table, list[Tops]]:
    """All rows of all runs on a panel, scored, and the engine's first choices of one run for the alignment test."""
    artifact = captured_rows(panel.panel)
    capture = read_parquet(work.file(artifact, "capture.parquet"))
    keys = zip(capture["run"], capture["window_id"], capture["position"], strict=True)
    hashes = dict(zip(keys, capture["raw_row_sha256"], strict=True))
    paths = dict(zip(capture["run"].tolist(), capture["score_path"].tolist(), strict=True))
    outputs = {output["name"]: output["sha256"] for output in work.receipt(artifact)["outputs"]}
    table: Table = {column.name: [] for column in columns_of(panel)}
    scored: dict[str, Scores] = {}
    tops: list[Tops] = []
    progress = work.progress("windows", len(paths) * len(panel.windows))
    for index, (run, window) in enumerate((run, window) for run in sorted(paths) for window in panel.windows):
        digest = outputs[f"rows/{run}/{window.window_id}"]
        if digest not in scored:
            scored[digest] = window_scores(work, panel, window, run)
        _add_rows(table, window, scored[digest], hashes, run=run, score_path=paths[run])
        if run == min(paths):
            tops.append((window, scored[digest]["engine_top_id"].astype(np.int64)))
        progress.update(index + 1, f"panel {panel.panel}, run {run}, window {window.window_id}")
    return table, tops


def _add_rows(
    table: Table, window: Window, scores: Scores, hashes: Mapping[Any, str], *, run: str, score_path: str
) -> None:
    count = len(window.positions)
    constants = {
        "run": run, "window_id": window.window_id, "cluster": window.cluster, "block": window.block,
        "bucket": window.bucket, "score_path": score_path,
    }  # fmt: skip
    for name, value in constants.items():
        table[name] += [value] * count
    table["role"] += list(window.roles)
    table["position"] += list(window.positions)
    table["next_token"] += list(window.next_tokens)
    table["raw_row_sha256"] += [hashes[(run, window.window_id, position)] for position in window.positions]
    for name, values in scores.items():
        table[name] += values.tolist()


def _aligned(work: Work, panel: str, tops: list[Tops]) -> Alignment:
    alignment = check_alignment(tops)
    if alignment.verdict == "misaligned":
        raise EngcmpError(
            f"panel {panel}: rows are shifted: {alignment.explanation}", where=str(work.arm),
            remedy="mend the engine's adapter: row r must be the distribution after tokens 0..r",
        )  # fmt: skip
    return alignment


def _alignment_check(alignments: Mapping[str, Alignment]) -> Check:
    """A panel with fewer rows than the test needs is undetermined by its size: that is no failure."""
    passed = all(found.verdict == "aligned" or found.rows < LEAST_ROWS for found in alignments.values())
    words = "; ".join(f"{name}: {found.explanation}" for name, found in alignments.items())
    evidence = {
        name: {"verdict": found.verdict, "matches": found.counts, "p_values": found.p_values, "rows": found.rows}
        for name, found in alignments.items()
    }
    return Check("alignment", passed, words, evidence)


def uses(study: Study) -> tuple[Use, ...]:
    """The reference's and the engine's rows of every panel."""
    panels = study.protocol.panels
    return (
        Use("frozen_protocol", "study", ()),
        Use("prompt_set", "arm", tuple(f"{name}.json" for name in panels)),
        Use("reference_rows", "arm"),
        *(Use(captured_rows(name), "arm") for name in panels),
    )


def _columns_of_all(plans: Sequence[PanelPlan]) -> tuple[Column, ...]:
    """The columns of all panels' tables, each name once: of full and light panels together, the hash is of either."""
    columns = dict.fromkeys(column for plan in plans for column in columns_of(plan))
    if _RAW in columns and _LIGHT_RAW in columns:
        return tuple(_EITHER_RAW if column == _RAW else column for column in columns if column != _LIGHT_RAW)
    return tuple(columns)


def step(study: Study) -> Step:
    """The step of a study: it depends on the rows of every panel that the protocol has."""
    plans = list(study.protocol.panels.values())
    return Step(
        artifact="scores",
        title="Scores",
        description=(
            "One line for each captured row: how far the engine's prediction of the next token is from the reference's, and what both "
            "say of the token that follows in the text. Every figure of the study is an average over these lines; each panel is a table "
            "of its own, with the columns that it has."
        ),
        group="analysis",
        kinds=("numpy", "parquet"),
        version="1",
        uses=uses(study),
        per_arm=True,
        parameters=parameters,
        make=make,
        measures=tuple(dict.fromkeys(name for plan in plans for name in plan.possible)),
        columns=_columns_of_all(plans),
        checks={
            "row_counts": "Every run has one scored line for each row that the panel keeps",
            "no_bad_values": "No row was NaN, infinite, or impossible under one side and possible under the other",
            "alignment": "The engine's first choices match the text at the row's own next token, not one token earlier or later",
        },
    )
