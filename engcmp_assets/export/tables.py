"""The rows behind the figures as CSV, for a reader that has no Parquet: every run's value of every row, floats to the last bit."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engcmp_assets.export.verifier.tables import KEYS, PAIR_COLUMNS
from engcmp_assets.kernel.row_table import RowTable


def rows_csv(table: RowTable) -> bytes:
    """One line a row: its keys, then each measure of each run as a column `MEASURE@RUN`, in the table's order."""
    names = [f"{measure}@{run}" for measure in table.values for run in table.runs]
    columns = [table.keys[name].tolist() for name in KEYS]
    for values in table.values.values():
        columns += [run.tolist() for run in values]
    return _csv((*KEYS, *names), zip(*columns, strict=True))


def pairs_csv(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """One line a row of a pair's distances, from the columns of its `rows/PAIR.parquet`; empty where bits cannot be compared."""
    return _csv(PAIR_COLUMNS, zip(*(columns[name] for name in PAIR_COLUMNS), strict=True))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode("utf-8")


def _cell(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124 - NaN stands for a value that there is none of
        return ""
    return repr(value) if isinstance(value, float) else str(value)
