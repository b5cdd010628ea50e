"""captured_rows/<panel>: what a capture is made of, and how its journal becomes the artifact."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from engcmp_assets.captured_rows.agreement import first_difference, identical_share
from engcmp_assets.kernel.names import LAUNCH, captured_rows
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.protocol import PanelPlan
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Blob

CAPTURE_VERSION = "1"
Kept = Literal["full", "topk", "light"]
_KEPT_WORDS: Mapping[Kept, str] = {
    "full": "the engine's own values for the whole vocabulary, as float32",
    "topk": "the log-probabilities of the reference's most probable tokens, of all others together and of the token that follows, the "
    "engine's own 20 most probable tokens, its entropy and its first choice",
    "light": "the 20 most probable tokens and the token that follows, as the engine's API returned them",
}
NOTES_FILE = "requests.json"
COLUMNS = (
    Column("run", "str", "1", "The pass over the panel, as launch.repeat"),
    Column("launch", "int", "1", "Launch of the engine"),
    Column("repeat", "int", "1", "Repeat within the launch"),
    Column("start", "int", "1", "Start of the engine that measured the row"),
    Column("window_id", "str", "1", "Name of the window"),
    Column("position", "int", "row", "Row index r: the distribution after tokens 0..r"),
    Column(
        "score_path",
        "str",
        "1",
        "How the row was computed: prefill = the whole window in one batch, decode = one token at a time",
    ),
    Column("raw_row_sha256", "str", "1", "SHA-256 of the raw row, taken at capture"),
)


def parameters(study: Study, panel: str) -> Mapping[str, Any]:
    """The panel's plan and the declared capture version; no file hash of any code."""
    plan = study.protocol.panels[panel]
    paths = {path: [one.launches, one.repeats] for path, one in study.protocol.capture.plans if panel in one.panels}
    kept = {} if plan.keep == "rows" else {"keep": plan.keep}
    return {"capture_version": CAPTURE_VERSION, "reference": plan.reference, "top_k": plan.top_k, "paths": paths} | kept


def captured_made(panel: Panel, entries: Sequence[Mapping[str, Any]]) -> Made:
    """The artifact of the journal's window entries (path, launch, start, window, repeats with files and row hashes by position)."""
    order = {window.window_id: index for index, window in enumerate(panel.windows)}
    windows = {window.window_id: window for window in panel.windows}
    table: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
    products = []
    said: list[dict[str, Any]] = []
    own = [entry for entry in entries if panel.panel in entry["panels"]]
    for entry in sorted(own, key=lambda one: (one["launch"], order[one["window"]])):
        window = windows[entry["window"]]
        for repeat, taken in enumerate(entry["repeats"], start=1):
            run, file = f"{entry['launch']}.{repeat}", taken["files"][panel.panel]
            blob = Blob(file["sha256"], file["bytes"], "safetensors")
            name = f"rows/{run}/{window.window_id}"
            products.append(Product(name, "safetensors", blob, rows=len(window.positions)))
            if "notes" in taken:
                said.append({"run": run, "start": entry["start"], "window_id": window.window_id} | taken["notes"])
            for position in window.positions:
                digest = taken["row_sha256"][str(position)]
                values = (
                    run,
                    entry["launch"],
                    repeat,
                    entry["start"],
                    window.window_id,
                    position,
                    entry["path"],
                    digest,
                )
                for column, value in zip(COLUMNS, values, strict=True):
                    table[column.name].append(value)
    if said:  # what the engine's plugin noted of each request: chunks, other requests in its steps, cached tokens
        products.append(Product(NOTES_FILE, "json", canonical_bytes(said)))
    return _described(panel, products, table)


def runs_by_path(table: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """The runs of each score path, in order."""
    found: dict[str, set[str]] = {}
    for run, path in zip(table["run"], table["score_path"], strict=True):
        found.setdefault(path, set()).add(run)
    return {path: sorted(runs) for path, runs in found.items()}


def _described(panel: Panel, products: Sequence[Product], table: Mapping[str, list[Any]]) -> Made:
    paths = runs_by_path(table)
    runs = sorted(set(table["run"]))
    rows, expected = len(table["run"]), len(runs) * panel.rows
    shares: dict[str, float] = {}
    differing: dict[str, str] = {}
    for own in paths.values():
        hashes = _hashes(table, own)
        for one, two in pairwise(own):
            shares[f"{one} and {two}"] = identical_share(hashes[one], hashes[two])
            if (row := first_difference(hashes[one], hashes[two])) is not None:
                window, position = row
                differing[f"{one} and {two}"] = f"window {window}, the row at position {position}"
    files = {product.content.sha256 for product in products if isinstance(product.content, Blob)}
    if shares:
        plot = bars("Rows equal bit for bit, run beside run", list(shares), list(shares.values()), unit="share of rows")
    else:  # a study may ask for a single run: there is nothing to hold beside it
        plot = bars(
            "Rows captured",
            [f"run {run}" for run in runs],
            [float(table["run"].count(run)) for run in runs],
            unit="rows",
        )
    agree = all(share == 1.0 for share in shares.values())
    first = "; ".join(f"runs {pair} at {place}" for pair, place in differing.items())
    words = f"Runs differ, first {first}; the floor beside each figure says by how much"
    if agree:
        words = (
            "Every row is bit-identical in every run" if shares else "Each score path has one run: nothing to compare"
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
            Check("repeats_agree", agree, words, shares or {"runs": len(runs)}),
        ],
        flags=[] if agree else ["runs differ"],
        details={"runs": paths, "distinct_row_files": len(files), "rows_bit_identical": shares}
        | ({"first_difference": differing} if differing else {}),
    )  # fmt: skip


def _hashes(table: Mapping[str, list[Any]], runs: Sequence[str]) -> dict[str, dict[tuple[str, int], str]]:
    hashes: dict[str, dict[tuple[str, int], str]] = {run: {} for run in runs}
    names = ("run", "window_id", "position", "raw_row_sha256")
    for run, window, position, digest in zip(*(table[name] for name in names), strict=True):
        if run in hashes:
            hashes[run][(window, position)] = digest
    return hashes


def _unreachable(_work: Work) -> Made:
    raise EngcmpError("rows are captured within an engine's life", remedy="call the capture session")


def kept_of(plan: PanelPlan) -> Kept:
    """What a panel keeps of an engine's rows."""
    return "light" if plan.keep == "light" else "topk" if plan.reference == "topk" else "full"


@functools.cache
def rows_step(panel: str, kept: Kept) -> Step:
    """The step of a panel. A top-K panel keeps of each row what its measures need, at the reference's ids."""
    words = _KEPT_WORDS[kept]
    reference = (Use("reference_rows", "arm"),) if kept == "topk" else ()

    def own_parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
        return parameters(study, panel)

    return Step(
        artifact=captured_rows(panel),
        title=f"Captured rows, panel {panel}",
        description=(
            f"What the arm's engine predicted at the rows that panel {panel} keeps: {words}. Files hold only what was measured, so that "
            "identical rows are one file; a hash of every raw row was taken at capture."
        ),
        group="capture",
        kinds=("cplusplus", "safetensors"),
        version=CAPTURE_VERSION,
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("prompt_set", "arm", (f"{panel}.json",)),
            *reference,
            Use(LAUNCH, "arm", ("spec.json",)),
        ),
        per_arm=True,
        parameters=own_parameters,
        make=_unreachable,
        columns=COLUMNS,
        checks={
            "row_counts": "Every run holds exactly the rows that the panel keeps",
            "identical_inputs": "Every row file carries the token digest of its window",
            "no_bad_values": "No captured row holds NaN or +infinity",
            "repeats_agree": "Whether runs of the arm give the same rows bit for bit; where not, the floor says by how much",
        },
    )
