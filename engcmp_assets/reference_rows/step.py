"""reference_rows: the teacher's rows of every panel, from one pass over each window, made once for all arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.names import PROMPTS, WEIGHTS
from engcmp_assets.kernel.panels import Pass, passes, window_of
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.topk_measures import topk_of
from engcmp_assets.kernel.window_files import write_full, write_reference
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.host import usable_cores

CAPTURE_VERSION = "1"
COLUMNS = (
    Column("window_id", "str", "1", "Name of the window"),
    Column("block", "str", "1", "Content kind of the text"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column("next_token", "int", "token id", "The token that the row predicts"),
    Column("reference_nll", "float", "nats", "-log p(next token) under the reference"),
    Column("reference_entropy", "float", "nats", "Entropy of the reference's row"),
    Column("reference_top_id", "int", "token id", "Most probable token of the reference; ties go to the lower id"),
    Column("reference_top_probability", "float", "1", "Probability of that token"),
)
Table = dict[str, list[Any]]
Logits = npt.NDArray[np.float32]


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The engine, its capture version and precision, and what is kept of a row."""
    reference = study.protocol.reference
    return {
        "engine": reference.engine,
        "precision": reference.precision,
        "capture_version": CAPTURE_VERSION,
        "panels": {name: [plan.reference, plan.top_k] for name, plan in study.protocol.panels.items()},
    }


def make(work: Work) -> Made:
    """One forward pass over all windows; what each panel keeps of a window becomes a file of its own."""
    panels = [work.study.panel(name) for name in work.study.protocol.panels]
    runs = {one.window_id: one for one in passes(panels)}
    products: list[Product] = []
    table: Table = {column.name: [] for column in COLUMNS}
    progress = work.progress("steps", 1)

    def keep(window_id: str, logits: Logits) -> None:
        products.extend(_kept(work, panels, runs[window_id], logits))
        _describe(panels, runs[window_id], logits, table)

    def tell(note: str, done: int, total: int) -> None:
        progress.total = total
        progress.update(done, note)

    requests = [RowRequest(one.window_id, one.tokens, one.positions) for one in runs.values()]
    reference_rows(work.file("sources", WEIGHTS), requests, on_rows=keep, progress=tell)
    rows, expected = len(table["position"]), sum(len(one.positions) for one in runs.values())
    return Made(
        products=[
            *products,
            Product("reference.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=rows, columns=COLUMNS),
            Product("plot.png", "png", _plot(table, list(runs)), role="view"),
        ],
        checks=[
            Check("row_counts", rows == expected, f"{rows} rows, the panels keep {expected}", {"rows": rows}),
            Check(
                "self_distance",
                True,
                "Each row's KL to itself is exactly 0 and no value is NaN or infinite",
                {"rows": rows},
            ),
        ],
        details={"label": work.study.protocol.reference.label, "rows": {panel.panel: panel.rows for panel in panels}},
    )


def output_name(panel: str, window_id: str) -> str:
    """Name of the output that holds a panel's reference rows of a window."""
    return f"rows/{panel}/{window_id}"


def _kept(work: Work, panels: Sequence[Panel], one: Pass, logits: Logits) -> list[Product]:
    """The files of a window: full rows, or the top K ids with log-probabilities and the rest."""
    products = []
    for panel in panels:
        window = window_of(panel, one.window_id)
        if window is None:
            continue
        rows, path = logits[one.indices(window)], work.store.temporary()
        if panel.reference == "full":
            write_full(path, window, rows)
        else:
            where = f"reference rows of window {window.window_id}"
            write_reference(path, window, topk_of(rows, window.next_tokens, panel.top_k or 0, where=where))
        blob = work.store.put_file(path, "safetensors")
        products.append(
            Product(output_name(panel.panel, window.window_id), "safetensors", blob, rows=len(window.positions))
        )
    return products


def _describe(panels: Sequence[Panel], one: Pass, logits: Logits, table: Table) -> None:
    """Score the rows against themselves: the reference's own figures, and the proof that no row is damaged."""
    next_tokens = [one.tokens[position + 1] for position in one.positions]
    scores = score_rows(
        logits, logits, next_tokens, where=f"reference rows of window {one.window_id}", jobs=usable_cores()
    )
    block = next(window.block for panel in panels if (window := window_of(panel, one.window_id)))
    count = len(one.positions)
    table["window_id"] += [one.window_id] * count
    table["block"] += [block] * count
    table["position"] += list(one.positions)
    table["next_token"] += next_tokens
    table["reference_nll"] += scores.reference_nll.tolist()
    table["reference_entropy"] += scores.reference_entropy.tolist()
    table["reference_top_id"] += scores.reference_top_id.tolist()
    table["reference_top_probability"] += scores.reference_top_probability.tolist()


def _plot(table: Table, windows: list[str]) -> bytes:
    values: dict[str, list[float]] = {name: [] for name in windows}
    blocks: dict[str, str] = {}
    for name, block, nll in zip(table["window_id"], table["block"], table["reference_nll"], strict=True):
        values[name].append(nll)
        blocks[name] = block
    means = [float(np.mean(values[name])) for name in windows]
    title = "Reference: NLL of the next token, mean of each window"
    return bars(title, windows, means, unit="nats per token", groups=[blocks[name] for name in windows])


STEP = Step(
    artifact="reference_rows",
    title="Reference rows",
    description=(
        "What the reference predicts at the rows that the panels keep: probabilities over the whole vocabulary, or of its most probable "
        "tokens and of all others together. Every arm is measured against these rows; they are computed once, without any engine, and "
        "every further arm is answered from the store."
    ),
    group="inputs",
    kinds=("numpy", "safetensors"),
    version="1",
    uses=(Use("frozen_protocol", "study", ()), Use("sources", "arm", (WEIGHTS,)), Use("prompt_set", "arm", (PROMPTS,))),
    per_arm=True,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={
        "row_counts": "The file of each window holds the rows that the panel keeps",
        "self_distance": "Every row is finite where it must be, and its KL to itself is exactly 0",
    },
)
