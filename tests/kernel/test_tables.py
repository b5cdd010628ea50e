"""Tables as Parquet: the same bytes for the same data, units and definitions inside, nothing half read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.tables import measure_column, parquet_bytes, parquet_columns, read_parquet
from engcmp_resources.errors import EngcmpError

COLUMNS = (
    Column("window_id", "str", "1", "Name of the window"),
    Column("position", "int", "row", "Row index"),
    Column("kl_full", "float", "nats", "Distance"),
)
DATA = {"window_id": ["a", "b"], "position": np.array([0, 5]), "kl_full": [0.25, None]}


def test_a_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(COLUMNS, DATA))
    for columns in (read_parquet(tmp_path / "t.parquet"), parquet_columns(parquet_bytes(COLUMNS, DATA))):
        assert list(columns) == ["window_id", "position", "kl_full"]
        assert columns["window_id"].tolist() == ["a", "b"]
        assert columns["position"].dtype == np.int64
        assert columns["kl_full"][0] == 0.25
        assert np.isnan(columns["kl_full"][1])


def test_the_same_data_give_the_same_bytes() -> None:
    assert parquet_bytes(COLUMNS, DATA) == parquet_bytes(COLUMNS, {**DATA, "position": [0, 5]})
    assert parquet_bytes(COLUMNS, DATA) != parquet_bytes(COLUMNS, {**DATA, "position": [0, 6]})


def test_each_column_carries_its_unit_and_definition_in_the_file() -> None:
    schema = pq.read_schema(io.BytesIO(parquet_bytes(COLUMNS, DATA)))
    assert schema.field("kl_full").metadata == {b"unit": b"nats", b"description": b"Distance"}
    assert schema.field("position").type == pa.int64()


def test_a_column_without_data_is_an_error_that_names_it() -> None:
    with pytest.raises(EngcmpError, match="column kl_full has no data"):
        parquet_bytes(COLUMNS, {"window_id": [], "position": []})


def test_data_that_no_column_describes_is_left_out() -> None:
    assert list(parquet_columns(parquet_bytes(COLUMNS[:1], DATA))) == ["window_id"]


def test_a_measure_s_column_is_described_by_the_measure_itself() -> None:
    column = measure_column("kl_full")
    assert (column.name, column.dtype, column.unit) == ("kl_full", "float", MEASURES["kl_full"].unit)
    assert MEASURES["kl_full"].definition in column.description


@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "other", "a column twice"])
def test_a_file_that_is_not_whole_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "t.parquet"
    data = parquet_bytes(COLUMNS, DATA)
    if damage == "a column twice":
        one = pa.array([1])
        pq.write_table(pa.Table.from_arrays([one, one], names=["x", "x"]), path)
    elif damage != "missing":
        path.write_bytes({"cut": data[:-9], "empty": b"", "other": b"PAR1" * 30}[damage])
    with pytest.raises(EngcmpError, match=rf"not a whole Parquet file: .*{path}"):
        read_parquet(path)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("str", ["a", None, "ü"]),
        ("str", np.array(["a", "", "ü"])),
        ("float", [1, 2]),
        ("float", [None, float("nan"), -0.0]),
        ("float", np.arange(6.0)[::2]),
        ("float", np.array([0.1, np.inf], dtype=np.float32)),
        ("int", [None, 3]),
        ("int", np.array([1, 2], dtype=np.int32)),
        ("str", []),
    ],
)
def test_a_column_is_the_same_as_from_its_values_one_by_one(dtype: str, values: object) -> None:
    columns = (Column("x", dtype, "1", "any"),)
    make = {"str": str, "float": float, "int": int}[dtype]
    one_by_one = [None if one is None else make(one) for one in values]
    read = pq.read_table(io.BytesIO(parquet_bytes(columns, {"x": values})))
    assert repr(read.column("x").to_pylist()) == repr(one_by_one)
