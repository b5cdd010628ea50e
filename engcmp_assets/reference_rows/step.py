"""reference_rows: the teacher's rows of every panel, from one pass over each window, made once for all arms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from engcmp_assets.kernel.names import PROMPTS, WEIGHTS
from engcmp_assets.kernel.panels import Pass, passes, window_of
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Panel, Window
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.source_outputs import reference_outputs
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.topk_measures import topk_of
from engcmp_assets.kernel.window_files import write_full, write_reference
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.prompt_set.outside import published_topk, rows_files
from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.reference import RowRequest, reference_rows
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import usable_cores
from engcmp_resources.places import home_folder

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
    outside = {
        name: digests
        for name, plan in study.protocol.panels.items()
        if plan.external and (digests := _digests(study, name))
    }
    return {
        "engine": reference.engine,
        "precision": reference.precision,
        "capture_version": CAPTURE_VERSION,
        "panels": {name: [plan.reference, plan.top_k] for name, plan in study.protocol.panels.items()},
        **({"published": outside} if outside else {}),
    }


def make(work: Work) -> Made:
    """One forward pass over all windows; what each panel keeps of a window becomes a file of its own.

    Published rows are taken as they are. A panel without a reference has none.
    """
    every = [work.study.panel(name) for name, plan in work.study.protocol.panels.items() if plan.reference != "none"]
    panels = [one for one in every if work.study.protocol.panels[one.panel].external is None]
    published = [one for one in every if work.study.protocol.panels[one.panel].external]
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
    if requests:
        reference_rows(work.file("sources", WEIGHTS), requests, on_rows=keep, progress=tell)
    for panel in published:
        for window, path in _published(work, panel):
            if panel.reference == "topk":
                products.append(_kept_topk(work, panel, window, path, table))
                continue
            with safe_open(path, framework="numpy") as file:
                logits = np.asarray(file.get_tensor("logits"), dtype=np.float32)[list(window.positions)]
            one = Pass(window.window_id, window.tokens, window.tokens_sha256, window.positions)
            products.extend(_kept(work, [panel], one, logits))
            _describe([panel], one, logits, table)
    rows, expected = len(table["position"]), sum(len(one.positions) for one in runs.values())
    expected += sum(panel.rows for panel in published)
    return Made(
        products=[
            *products,
            Product("reference.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=rows, columns=COLUMNS),
            Product("plot.png", "png", _plot(table, list(dict.fromkeys(table["window_id"]))), role="view"),
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
        details={
            "label": work.study.protocol.reference.label,
            "rows": {panel.panel: panel.rows for panel in (*panels, *published)},
        },
    )


def output_name(panel: str, window_id: str) -> str:
    """Name of the output that holds a panel's reference rows of a window."""
    return f"rows/{panel}/{window_id}"


def _digests(study: Study, panel: str) -> dict[str, str]:
    """The frozen SHA-256 of each file of published rows of a panel, by window; {} of a panel that is not laid out, or has none."""
    data = study.files.get(study.protocol.prompt_set.file)
    kept = json.loads(data)["panels"].get(panel, {}) if data else {}
    return {name: str(one["rows_sha256"]) for name, one in kept.items() if "rows_sha256" in one}


def _published(work: Work, panel: Panel) -> Iterator[tuple[Window, Path]]:
    """Each window of a panel with the file of its published rows. Raises EngcmpError for a file that is not the frozen one."""
    fetched = home_folder() / "fetched" / work.study.protocol.study
    files, frozen = rows_files(work.study.protocol, panel.panel, fetched), _digests(work.study, panel.panel)
    progress = work.progress("windows", len(panel.windows))
    for number, window in enumerate(panel.windows, start=1):
        path = files.get(window.window_id)
        if path is None or sha256_file(path) != frozen.get(window.window_id):
            raise EngcmpError(
                f"panel {panel.panel}, window {window.window_id}: the rows are not those that were frozen", where=str(path or fetched),
                remedy="fetch the source again at its revision, or freeze the study anew",
            )  # fmt: skip
        yield window, path
        progress.update(number, f"published rows of {window.window_id}")


def _kept_topk(work: Work, panel: Panel, window: Window, path: Path, table: Table) -> Product:
    """The file of a window's published top-K rows, and what they say of themselves. Their entropy is not known: the rest is one number."""
    rows, file = published_topk(path, window, vocab=panel.vocab, k=panel.top_k or 0), work.store.temporary()
    write_reference(file, window, rows)
    count = len(window.positions)
    table["window_id"] += [window.window_id] * count
    table["block"] += [window.block] * count
    table["position"] += list(window.positions)
    table["next_token"] += list(window.next_tokens)
    table["reference_nll"] += (-rows.next_token_log_prob.astype(np.float64)).tolist()
    table["reference_entropy"] += [None] * count
    table["reference_top_id"] += rows.top_ids[:, 0].astype(np.int64).tolist()
    table["reference_top_probability"] += np.exp(rows.top_log_probs[:, 0].astype(np.float64)).tolist()
    blob = work.store.put_file(file, "safetensors")
    return Product(output_name(panel.panel, window.window_id), "safetensors", blob, rows=count)


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
    uses=(
        Use("frozen_protocol", "study", ()),
        Use("sources", "arm", lambda study, _arm: reference_outputs(study.protocol)),
        Use("prompt_set", "arm", (PROMPTS,)),
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
