"""captured_rows/pa: what a capture is made of, and how its journal becomes the artifact."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from engcmp_assets.captured_rows.agreement import identical_share
from engcmp_assets.kernel.names import LAUNCH, PANEL, ROWS
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob

CAPTURE_VERSION = "1"
COLUMNS = (
    Column("run", "str", "1", "The pass over the panel, as launch.repeat"),
    Column("launch", "int", "1", "Launch of the engine"),
    Column("repeat", "int", "1", "Repeat within the launch"),
    Column("start", "int", "1", "Start of the engine that measured the row"),
    Column("window_id", "str", "1", "Name of the window"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column("score_path", "str", "1", "How the row was computed: prefill = the whole window in one batch"),
    Column("raw_row_sha256", "str", "1", "SHA-256 of the raw row, taken at capture"),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The panel's plan and the declared capture version; no file hash of any code."""
    plan = study.protocol.panels[PANEL]
    return {
        "capture_version": CAPTURE_VERSION, "score_path": plan.score_path, "launches": plan.launches, "repeats": plan.repeats,
    }  # fmt: skip


def captured_made(panel: Panel, windows: Sequence[Mapping[str, Any]], score_path: str) -> Made:
    """The artifact of the journal's window entries (launch, start, window, repeats with file and row hashes)."""
    order = {window.window_id: index for index, window in enumerate(panel.windows)}
    entries = sorted(windows, key=lambda entry: (entry["launch"], order[entry["window"]]))
    positions = {window.window_id: window.positions for window in panel.windows}
    table: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
    products = []
    for entry in entries:
        for repeat, taken in enumerate(entry["repeats"], start=1):
            run, rows = f"{entry['launch']}.{repeat}", positions[entry["window"]]
            blob = Blob(taken["sha256"], taken["bytes"], "safetensors")
            products.append(Product(f"rows/{run}/{entry['window']}", "safetensors", blob, rows=len(rows)))
            for position, digest in zip(rows, taken["row_sha256"], strict=True):
                values = (run, entry["launch"], repeat, entry["start"], entry["window"], position, score_path, digest)
                for column, value in zip(COLUMNS, values, strict=True):
                    table[column.name].append(value)
    return _described(panel, products, table)


def _described(panel: Panel, products: Sequence[Product], table: Mapping[str, list[Any]]) -> Made:
    runs = sorted(set(table["run"]))
    rows, expected = len(table["run"]), len(runs) * panel.rows
    hashes: dict[str, dict[Hashable, str]] = {run: {} for run in runs}
    names = ("run", "window_id", "position", "raw_row_sha256")
    for run, window, position, digest in zip(*(table[name] for name in names), strict=True):
        hashes[run][(window, position)] = digest
    shares = {f"{one} and {two}": identical_share(hashes[one], hashes[two]) for one, two in pairwise(runs)}
    files = {product.content.sha256 for product in products if isinstance(product.content, Blob)}
    plot = bars("Rows equal bit for bit, run beside run", list(shares), list(shares.values()), unit="share of rows")
    agree = all(share == 1.0 for share in shares.values())
    words = (
        "Every row is bit-identical in every run"
        if agree
        else "Runs differ; the floor beside each figure says by how much"
    )
    return Made(
        products=[
            *products,
            Product("capture.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=rows, columns=COLUMNS),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check("row_counts", rows == expected, f"{rows} rows, {len(runs)} runs of {panel.rows} make {expected}", {"rows": rows}),
            Check(
                "identical_inputs", True, "Each row file carries the token digest of the prompt set's window",
                {"windows": len(panel.windows)},
            ),
            Check("no_bad_values", True, "No row holds NaN or +infinity", {"rows": rows}),
            Check("repeats_agree", agree, words, shares),
        ],
        flags=[] if agree else ["runs differ"],
        details={"runs": runs, "distinct_row_files": len(files), "rows_bit_identical": shares},
    )  # fmt: skip


def _unreachable(_work: Work) -> Made:
    raise EngcmpError("rows are captured within an engine's life", remedy="call the capture session")


STEP = Step(
    artifact=ROWS,
    title="Captured rows, panel pa",
    description=(
        "The engine's own logits, full vocabulary, as float32, at the rows that the panel keeps: two launches with two repeats each, every "
        "window decoded as one batch. Files hold only what was measured, so identical rows are one file."
    ),
    group="capture",
    kinds=("cplusplus", "safetensors"),
    version=CAPTURE_VERSION,
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("prompt_set", "arm", (f"{PANEL}.json",)),
        Use(LAUNCH, "arm", ("spec.json",)),
    ),
    per_arm=True,
    parameters=parameters,
    make=_unreachable,
    columns=COLUMNS,
    checks={
        "row_counts": "Every run holds exactly the rows that the panel keeps",
        "identical_inputs": "Every row file carries the token digest of its window",
        "no_bad_values": "No captured row holds NaN or +infinity",
        "repeats_agree": "Whether runs of the arm give the same rows bit for bit; where not, the floor says by how much",
    },
)
