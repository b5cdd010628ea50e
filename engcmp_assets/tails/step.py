"""tails: how bad the worst rows of an arm are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engcmp_assets.kernel.names import PANEL, SCORED_ROWS
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, plain
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes, read_parquet
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work, output_blob
from engcmp_assets.tails.tail_statistics import TailRow, Tails, TailSummary, tail_statistics
from engcmp_resources.canonical import canonical_bytes

_SHARES = ("share_above_0_1_nats", "share_above_0_5_nats", "share_above_1_nats", "share_above_2_nats")
_NATS = (
    "mean_nats",
    "median_nats",
    "p90_nats",
    "p95_nats",
    "p99_nats",
    "p99_9_nats",
    "max_nats",
    "worst_1_percent_mean_nats",
)
COLUMNS = (
    Column("population", "str", "1", "all, block:NAME or bucket:NAME"),
    Column("rows", "int", "row", "Rows of the population"),
    *(
        Column(name, "float", "nats", f"{name.removesuffix('_nats').replace('_', ' ')} of kl_full over the rows")
        for name in _NATS
    ),
    *(
        Column(name, "float", "share of rows", f"Share of rows with kl_full {name[6:].replace('_', ' ', 1)}")
        for name in _SHARES
    ),
)


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The roles whose rows count."""
    return {"roles": study.protocol.panels[PANEL].roles}


def tails_of(rows_file: Path, sha256: str, roles: Sequence[str]) -> Tails:
    """The tails of a scored row file, over the per-row mean of all runs."""
    table = row_table(read_parquet(rows_file), ["kl_full"], roles=roles, where=rows_file.name)
    return tail_statistics(table.per_row("kl_full"), _tail_rows(table), row_file_sha256=sha256)


def make(work: Work) -> Made:
    """Quantiles, shares and worst rows; tails.json carries the hash of the row file they came from."""
    blob = output_blob(work.receipt("scores"), SCORED_ROWS)
    tails = tails_of(work.store.path(blob), blob.sha256, work.study.protocol.panels[PANEL].roles)
    populations = _populations(tails)
    table = {
        "population": list(populations),
        **{
            column.name: [getattr(entry, column.name) for entry in populations.values()]
            for column in COLUMNS
            if column.name != "population"
        },
    }
    quantiles = [getattr(tails.overall, name) for name in _NATS]
    plot = bars(
        "Tails of KL from the reference, all rows",
        [name.removesuffix("_nats") for name in _NATS],
        quantiles,
        unit="nats",
    )
    return Made(
        products=[
            Product("tails.json", "json", canonical_bytes(plain(tails)), rows=tails.overall.rows),
            Product("tails.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=len(populations), columns=COLUMNS),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check(
                "row_counts",
                True,
                f"Tails of {tails.overall.rows} rows",
                {"rows": tails.overall.rows, "row_file": blob.sha256},
            ),
        ],
        details={"worst_rows": plain(tails.overall.worst_rows), "row_file_sha256": blob.sha256},
    )


def _tail_rows(table: RowTable) -> list[TailRow]:
    keys = [table.keys[name].tolist() for name in ("window_id", "position", "next_token", "block", "bucket")]
    return [TailRow(str(w), int(p), int(t), str(b), str(k)) for w, p, t, b, k in zip(*keys, strict=True)]


def _populations(tails: Tails) -> dict[str, TailSummary]:
    return {
        "all": tails.overall,
        **{f"block:{name}": entry for name, entry in tails.by_block.items()},
        **{f"bucket:{name}": entry for name, entry in tails.by_bucket.items()},
    }


STEP = Step(
    artifact="tails",
    title="Tails",
    description=(
        "A mean hides its worst rows. Quantiles of KL up to the maximum, shares of rows above fixed distances, and the ten worst rows with "
        "their window, position and next token, overall and per block and bucket."
    ),
    group="analysis",
    kinds=("numpy", "parquet"),
    version="1",
    uses=(Use("frozen_protocol", "study", ()), Use("scores", "arm", (SCORED_ROWS,))),
    per_arm=True,
    parameters=parameters,
    make=make,
    measures=("kl_full",),
    columns=COLUMNS,
    checks={"row_counts": "The tails are of every scored row in the panel's roles"},
)
