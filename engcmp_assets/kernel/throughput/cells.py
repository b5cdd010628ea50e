"""The figures of one cell, recomputed from its two tables (MEASURES section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from engcmp_assets.kernel.throughput.cell_documents import MIN_UPDATES, cell_document
from engcmp_assets.kernel.throughput.streams import table_arrays

__all__ = ["MIN_UPDATES", "cell_figures"]


def cell_figures(events: pl.DataFrame, requests: pl.DataFrame, cell: Mapping[str, Any]) -> dict[str, Any]:
    """One cell of cells.json from its rows of events.parquet and requests.parquet.

    `cell` gives `cell_id` and `concurrency`, and may give `kind`, `client` (passed on; its `limit` true flags the cell), and `engine`:
    counters as differences over the cell, of which `accepted`, `drafted`, `draft_steps`, `cached_tokens`, `preemptions` and `restarts`
    are read where they are given and no others. `figures` holds each measure of SPEED_MEASURES as `{"value", "n", "unit", "version",
    ...}` or `{"missing": reason}`. With a failed request the cell is not complete: every figure is then missing, and
    `figures_of_completed_requests` has what single requests give.
    Raises EngcmpError for tables that lack a column or are not of one run.
    """
    return cell_document(*table_arrays(events, requests), cell)
