"""Tables as Parquet bytes, each column with its unit and its definition in the file's own schema."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.receipts import Column
from engcmp_resources.errors import EngcmpError

_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}


def measure_column(measure_id: str) -> Column:
    """The column of a measure, described by the measure's one definition."""
    measure = MEASURES[measure_id]
    return Column(measure_id, "float", measure.unit, f"{measure.title}: {measure.definition}")


def parquet_bytes(columns: Sequence[Column], data: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> bytes:
    """`data` as a Parquet file. The same data give the same bytes under the same pyarrow. Raises EngcmpError for a missing column."""
    fields, arrays = [], []
    for column in columns:
        if column.name not in data:
            raise EngcmpError(f"column {column.name} has no data", remedy="this is a fault of engcmp: report it")
        metadata = {"unit": column.unit, "description": column.description}
        fields.append(pa.field(column.name, _TYPES[column.dtype], metadata=metadata))
        arrays.append(_array(data[column.name], _TYPES[column.dtype]))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _array(values: Sequence[Any] | npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    column = np.asarray(values)
    return (
        pa.array(column, type=kind) if column.size else pa.array([], type=kind)
    )  # an empty list has no type of its own


def read_parquet(path: Path) -> dict[str, npt.NDArray[Any]]:
    """A Parquet file's columns as arrays. Raises EngcmpError for a file that is not whole or has a column twice."""
    try:
        return _columns(path)
    except (pa.ArrowException, OSError, KeyError) as error:
        why = " ".join(str(error).split())
        raise EngcmpError(f"not a whole Parquet file: {why}", where=str(path), remedy="make it again") from error


def parquet_columns(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The columns of `parquet_bytes`, as they read back."""
    return _columns(pa.BufferReader(data))


def _columns(source: Any) -> dict[str, npt.NDArray[Any]]:
    table = pq.read_table(source)
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
