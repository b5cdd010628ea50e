"""reference_rows: the teacher's rows of every panel window, made once for all arms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.names import PANEL, WEIGHTS
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.row_files import RowFile, write_rows

CAPTURE_VERSION = "1"
COLUMNS = (
    Column("window_id", "str", "1", "Name of the window"),
    Column("block", "str", "1", "Content kind of the text"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column("next_token", "int", "token id", "The token that the row predicts"),
    Column("reference_nll", "float", "nat", "-log p(next token) under the reference"),
    Column("reference_entropy", "float", "nat", "Entropy of the reference's row"),
    Column("reference_top_id", "int", "token id", "Most probable token of the reference; ties go to the lower id"),
    Column("reference_top_probability", "float", "1", "Probability of that token"),
)
Table = dict[str, list[Any]]


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The engine, its capture version and its precision."""
    reference = study.protocol.reference
    return {"engine": reference.engine, "precision": reference.precision, "capture_version": CAPTURE_VERSION}


def make(work: Work) -> Made:
    """One forward pass over all windows; each window's rows become a file of their own."""
    panel = work.study.panel(PANEL)
    windows = {window.window_id: window for window in panel.windows}
    requests = [RowRequest(window.window_id, window.tokens, window.positions) for window in panel.windows]
    products: list[Product] = []
    table: Table = {column.name: [] for column in COLUMNS}
    progress = work.progress("steps", 1)

    def keep(window_id: str, logits: npt.NDArray[np.float32]) -> None:
        window = windows[window_id]
        path = work.store.temporary()
        positions = np.asarray(window.positions, dtype=np.int32)
        write_rows(path, RowFile(window_id, window.tokens_sha256, positions, logits))
        blob = work.store.put_file(path, "safetensors")
        products.append(Product(f"rows/{window_id}", "safetensors", blob, rows=len(positions)))
        _describe(panel, window_id, logits, table)

    def tell(note: str, done: int, total: int) -> None:
        progress.total = total
        progress.update(done, note)

    reference_rows(work.file("sources", WEIGHTS), requests, on_rows=keep, progress=tell)
    rows = len(table["position"])
    means = [_mean(table, window) for window in windows]
    blocks = [window.block for window in panel.windows]
    plot = bars(
        "Reference: NLL of the next token, mean of each window",
        list(windows),
        means,
        unit="nats per token",
        groups=blocks,
    )
    return Made(
        products=[
            *products,
            Product("reference.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=rows, columns=COLUMNS),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check("row_counts", rows == panel.rows, f"{rows} rows, the panel has {panel.rows}", {"rows": rows}),
            Check(
                "self_distance",
                True,
                "Each row's KL to itself is exactly 0 and no value is NaN or infinite",
                {"rows": rows},
            ),
        ],
        details={"label": work.study.protocol.reference.label},
    )


def _describe(panel: Panel, window_id: str, logits: npt.NDArray[np.float32], table: Table) -> None:
    """Score the rows against themselves: the reference's own figures, and the proof that no row is damaged."""
    window = next(entry for entry in panel.windows if entry.window_id == window_id)
    scores = score_rows(logits, logits, window.next_tokens, where=f"reference rows of window {window_id}")
    count = len(window.positions)
    table["window_id"] += [window_id] * count
    table["block"] += [window.block] * count
    table["position"] += list(window.positions)
    table["next_token"] += list(window.next_tokens)
    table["reference_nll"] += scores.reference_nll.tolist()
    table["reference_entropy"] += scores.reference_entropy.tolist()
    table["reference_top_id"] += scores.reference_top_id.tolist()
    table["reference_top_probability"] += scores.reference_top_probability.tolist()


def _mean(table: Table, window_id: str) -> float:
    pairs = zip(table["window_id"], table["reference_nll"], strict=True)
    return float(np.mean([value for name, value in pairs if name == window_id]))


STEP = Step(
    artifact="reference_rows",
    title="Reference rows",
    description=(
        "The teacher: a float32 pass over the dequantized weights, full vocabulary, at the rows that the panel keeps. Every arm is "
        "measured against these rows; they are computed once and every other arm is answered from the store."
    ),
    group="inputs",
    kinds=("numpy", "safetensors"),
    version="1",
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("sources", "arm", (WEIGHTS,)),
        Use("prompt_set", "arm", (f"{PANEL}.json",)),
    ),
    per_arm=True,
    parameters=parameters,
    make=make,
    columns=COLUMNS,
    checks={
        "row_counts": "The file of each window holds the rows that the panel keeps",
        "self_distance": "Every row is finite where it must be, and its KL to itself is exactly 0",
    },
)
