"""scores: every captured row against the reference's, one line a row and run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.measures import ROW_MEASURES
from engcmp_assets.kernel.names import PANEL, ROWS, SCORED_ROWS
from engcmp_assets.kernel.plots import survival
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel, Window
from engcmp_assets.kernel.row_measures import RowScores, score_rows
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import measure_column, parquet_bytes, read_parquet
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.scores.alignment import Alignment, check_alignment
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import RowFile, read_rows

_OTHER = ("reference_nll", "reference_entropy", "reference_top_probability", "engine_top_id", "reference_top_id")
COLUMNS = (
    Column("run", "str", "1", "The pass over the panel, as launch.repeat"),
    Column("window_id", "str", "1", "Name of the window"),
    Column("cluster", "str", "1", "Document of the window: the unit that is resampled"),
    Column("block", "str", "1", "Content kind of the text"),
    Column("bucket", "str", "1", "Context bucket of the window"),
    Column("role", "str", "1", "Role of the row: generated, context or trailing"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column("next_token", "int", "token id", "The token that the row predicts"),
    Column("score_path", "str", "1", "How the row was computed"),
    *(measure_column(name) for name in ROW_MEASURES),
    Column("reference_nll", "float", "nats", "-log p(next token) under the reference"),
    Column("reference_entropy", "float", "nats", "Entropy of the reference's row"),
    Column("reference_top_probability", "float", "1", "Probability of the reference's most probable token"),
    Column("engine_top_id", "int", "token id", "The engine's most probable token; ties go to the lower id"),
    Column("reference_top_id", "int", "token id", "The reference's most probable token; ties go to the lower id"),
    Column("raw_row_sha256", "str", "1", "SHA-256 of the engine's raw row, taken at capture"),
)
Table = dict[str, list[Any]]
Tops = tuple[Window, npt.NDArray[np.int64]]


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The roles of the panel's rows lie in the prompt set; nothing else of the protocol changes a row's score."""
    return {"score_path": study.protocol.panels[PANEL].score_path}


def make(work: Work) -> Made:
    """Score each distinct row file once, and lay the rows out run by run."""
    panel = work.study.panel(PANEL)
    table, tops = scored_table(work, panel)
    alignment = check_alignment(tops)
    if alignment.verdict == "misaligned":
        raise EngcmpError(
            f"rows are shifted: {alignment.explanation}", where=str(work.arm),
            remedy="mend the engine's adapter: row r must be the distribution after tokens 0..r",
        )  # fmt: skip
    rows = len(table["run"])
    runs = sorted(set(table["run"]))
    kl = {run: [v for r, v in zip(table["run"], table["kl_full"], strict=True) if r == run] for run in runs}
    return Made(
        products=[
            Product(SCORED_ROWS, "parquet", parquet_bytes(COLUMNS, table), rows=rows, columns=COLUMNS),
            Product(
                "plot.png",
                "png",
                survival("KL from the reference: share of rows above x", kl, unit="nats"),
                role="view",
            ),
        ],
        checks=[
            Check(
                "row_counts", rows == len(runs) * panel.rows, f"{rows} scored rows in {len(runs)} runs", {"rows": rows}
            ),
            Check("no_bad_values", True, "Every row of both sides is finite where it must be", {"rows": rows}),
            _alignment_check(alignment),
        ],
        flags=["alignment undetermined"] if alignment.verdict == "undetermined" else [],
        details={"runs": runs, "rows": panel.rows},
    )


def scored_table(work: Work, panel: Panel) -> tuple[Table, list[Tops]]:
    """All rows of all runs, scored, and the engine's first choices of one run for the alignment test."""
    capture = read_parquet(work.file(ROWS, "capture.parquet"))
    hashes = dict(
        zip(
            zip(capture["run"], capture["window_id"], capture["position"], strict=True),
            capture["raw_row_sha256"],
            strict=True,
        )
    )
    runs = sorted(set(capture["run"].tolist()))
    table: Table = {column.name: [] for column in COLUMNS}
    scored: dict[str, RowScores] = {}
    tops: list[Tops] = []
    progress = work.progress("windows", len(runs) * len(panel.windows))
    for index, (run, window) in enumerate((run, window) for run in runs for window in panel.windows):
        output = next(o for o in work.receipt(ROWS)["outputs"] if o["name"] == f"rows/{run}/{window.window_id}")
        if output["sha256"] not in scored:
            scored[output["sha256"]] = _score_window(work, panel, window, run)
        scores = scored[output["sha256"]]
        _add_rows(table, window, scores, hashes, run=run, score_path=work.study.protocol.panels[PANEL].score_path)
        if run == runs[0]:
            tops.append((window, scores.engine_top_id))
        progress.update(index + 1, f"run {run}, window {window.window_id}")
    return table, tops


def _score_window(work: Work, panel: Panel, window: Window, run: str) -> RowScores:
    def rows_in(path: Path) -> RowFile:
        return read_rows(
            path,
            window_id=window.window_id,
            tokens_sha256=window.tokens_sha256,
            positions=window.positions,
            vocab=panel.vocab,
        )

    reference = rows_in(work.file("reference_rows", f"rows/{window.window_id}"))
    engine = rows_in(work.file(ROWS, f"rows/{run}/{window.window_id}"))
    where = f"{work.arm}, run {run}, window {window.window_id}"
    return score_rows(reference.logits, engine.logits, window.next_tokens, where=where)


def _add_rows(
    table: Table, window: Window, scores: RowScores, hashes: Mapping[Any, str], *, run: str, score_path: str
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
    for name in (*ROW_MEASURES, *_OTHER):
        values = np.asarray(getattr(scores, name))
        table[name] += values.tolist()


def _alignment_check(alignment: Alignment) -> Check:
    evidence = {
        "shift": alignment.shift,
        "matches": alignment.counts,
        "p_values": alignment.p_values,
        "rows": alignment.rows,
    }
    return Check("alignment", alignment.verdict == "aligned", alignment.explanation, evidence)


STEP = Step(
    artifact="scores",
    title="Scores",
    description=(
        "One line for each captured row: how far the engine's distribution of the next token is from the reference's, and what both say "
        "of the token that follows. Every figure of the study is an average over these lines."
    ),
    group="analysis",
    kinds=("numpy", "parquet"),
    version="1",
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("prompt_set", "arm", (f"{PANEL}.json",)),
        Use("reference_rows", "arm"),
        Use(ROWS, "arm"),
    ),
    per_arm=True,
    parameters=parameters,
    make=make,
    measures=ROW_MEASURES,
    columns=COLUMNS,
    checks={
        "row_counts": "Every run has one scored line for each row that the panel keeps",
        "no_bad_values": "No row was NaN, infinite, or impossible under one side and possible under the other",
        "alignment": "The engine's first choices match the text at the row's own next token, not one token earlier or later",
    },
)
