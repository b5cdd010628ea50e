"""Light rows in Parquet: an API's top ids and the actual token, of one window or many in a file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from writing import DIGEST, light_columns, save_full, save_light

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts import light_rows
from engcmp_resources.row_layouts.finding import find_rows, read_light, read_top_k
from engcmp_resources.row_layouts.light_rows import LightFile, LightWindow, read_light_window


def refused(place: Path, window_id: str = "w1") -> str:
    with pytest.raises(EngcmpError) as caught:
        read_light(place, window_id)
    return str(caught.value)


def test_each_value_comes_back_and_equal_ones_stand_by_the_lower_id(tmp_path):
    path = save_light(tmp_path / "arm.parquet", light_columns() | {"rank": [1, 2, 3]})
    found = read_light(tmp_path, "w1")
    assert find_rows(tmp_path).layout == "light"
    assert (found.window_id, found.tokens_sha256, found.path) == ("w1", DIGEST, path)
    assert found.positions.tolist() == [1, 2, 5] and found.next_token_ids.tolist() == [4, 1, 2]
    assert found.next_token_log_prob.tolist() == [-0.5, -2.25, -1e-3]
    assert found.top_ids.tolist() == [[5, 2, 9], [4, 9, 1], [0, 3, 12]]
    columns = light_columns()
    columns["top_ids"] = [[5, 9, 2], [4, 9, 1], [0, 12, 3]]
    save_light(path, columns)
    assert read_light(tmp_path, "w1").top_ids.tolist() == found.top_ids.tolist()
    assert found.top_log_probs.tolist() == columns["top_log_probs"]


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 3)])
def test_every_kind_of_list_and_number_is_read(tmp_path, lists):
    columns = light_columns()
    columns["top_ids"] = pa.array(columns["top_ids"], lists(pa.uint32()))
    columns["top_log_probs"] = pa.array(columns["top_log_probs"], lists(pa.float32()))
    columns["position"] = pa.array(columns["position"], pa.int32())
    columns["window_id"] = pa.array(columns["window_id"], pa.large_string())
    save_light(tmp_path / "arm.parquet", columns)
    found = read_light(tmp_path, "w1")
    assert found.top_ids.tolist() == [[5, 2, 9], [4, 9, 1], [0, 3, 12]] and found.top_log_probs[1].tolist() == [
        -0.25,
        -2.0,
        -3.0,
    ]


@pytest.mark.parametrize("together", [True, False])
def test_windows_lie_in_one_file_or_in_one_each(tmp_path, together):
    first, second = light_columns("w1"), light_columns("w2", (0, 3))
    if together:
        save_light(tmp_path / "all.parquet", {name: first[name] + second[name] for name in first})
    else:
        save_light(tmp_path / "a.parquet", first)
        save_light(tmp_path / "b.parquet", second)
    folder = find_rows(tmp_path)
    assert sorted(folder.files) == ["w1", "w2"]
    assert read_light(folder, "w1").positions.tolist() == [1, 2, 5]
    assert read_light(folder, "w2").positions.tolist() == [0, 3]
    assert "window w3: no rows of it; there are 2 windows in light layout: w1, w2" in refused(tmp_path, "w3")


def test_the_digest_may_be_left_out(tmp_path):
    columns = light_columns()
    del columns["tokens_sha256"]
    save_light(tmp_path / "arm.parquet", columns)
    assert read_light(tmp_path, "w1").tokens_sha256 is None


def test_a_window_in_two_files_is_refused(tmp_path):
    save_light(tmp_path / "a.parquet", light_columns())
    save_light(tmp_path / "b.parquet", light_columns())
    assert "window w1: it has rows in a.parquet too" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"position": [1, 2, 2]}, "position 2 stands twice"),
        ({"position": [1, 2, -5]}, "position holds -5"),
        ({"position": [1.0, 2.0, 5.0]}, "position are double, not integers"),
        ({"next_token": [4, None, 2]}, "next_token: 1 values are missing"),
        ({"next_token": [4, 2**40, 2]}, "next_token holds 1099511627776"),
        ({"next_token_log_prob": ["a", "b", "c"]}, "next_token_log_prob are string, not floats"),
        (
            {"next_token_log_prob": [-0.5, float("nan"), -1.0]},
            "window w1: the row at position 2 has NaN in next_token_log_prob: no log-probability",
        ),
        ({"top_ids": [[5, 2, 9], [4, 9], [0, 3, 12]]}, "the row at position 2 has other top_ids than 3, or none"),
        ({"top_ids": [[5, 2], [4, 9], [0, 3]]}, "lists of 2 ids and 3 log-probabilities"),
        ({"top_ids": [[], [], []]}, "the row at position 1 has other top_ids than 0, or none"),
        ({"top_ids": [[5, 2, 9], None, [0, 3, 12]]}, "top_ids: 1 values are missing"),
        ({"top_ids": [[5, 2, 9], [4, None, 1], [0, 3, 12]]}, "top_ids: 1 values are missing"),
        ({"top_ids": [[5, 2, 9], [4, 4, 1], [0, 3, 12]]}, "the row at position 2 lists an id twice"),
        ({"top_ids": [1, 2, 3]}, "top_ids are int64, not lists"),
        (
            {"top_log_probs": [[-1.0, -2.0, -3.0], [-2.0, -1.0, -3.0], [-1.0, -2.0, -3.0]]},
            "position 2 is not in falling",
        ),
        (
            {"top_log_probs": [[-1.0, -2.0, -3.0], [0.5, -1.0, -3.0], [-1.0, -2.0, -3.0]]},
            "position 2 has 0.5, above 0, in top_log_probs",
        ),
        ({"tokens_sha256": ["a" * 64, "b" * 64, "a" * 64]}, "rows of 2 token digests"),
        ({"window_id": [1, 2, 3]}, "window_id is int64, not text"),
    ],
)
def test_rows_that_are_no_light_rows_are_refused(tmp_path, changes, said):
    path = save_light(tmp_path / "arm.parquet", light_columns() | changes)
    text = refused(tmp_path)
    assert said in text and str(path) in text


def test_a_column_that_is_missing_is_named_with_those_that_are_there(tmp_path):
    columns = light_columns()
    del columns["top_ids"], columns["next_token"]
    save_light(tmp_path / "arm.parquet", columns)
    text = refused(tmp_path)
    assert "no column next_token, top_ids; it has window_id, tokens_sha256, position" in text


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_file_that_was_cut_or_is_of_another_kind_is_refused(tmp_path, keep):
    path = save_light(tmp_path / "arm.parquet", light_columns())
    path.write_bytes(path.read_bytes()[:keep])
    text = refused(tmp_path)
    assert "not a whole Parquet file" in text and str(path) in text
    save_full(tmp_path).rename(path)
    assert "not a whole Parquet file" in refused(tmp_path)


def test_a_file_without_a_row_and_rows_of_another_layout_are_refused(tmp_path):
    path = save_light(tmp_path / "arm.parquet", {name: pa.array([], pa.string()) for name in light_columns()})
    assert "it holds no rows" in refused(tmp_path)
    save_light(path, light_columns())
    with pytest.raises(EngcmpError, match="light rows, top-K ones are needed"):
        read_top_k(tmp_path, "w1")


# ---------------------------------------------------------------- many windows in one file


def many(path: Path, names: list[str], *, mixed: bool = False) -> Path:
    """Windows of three rows, one after the other or with their rows mixed."""
    parts = [light_columns(name) for name in names]
    columns = {column: [value for part in parts for value in part[column]] for column in parts[0]}
    if mixed:
        rows = [row for start in range(3) for row in range(start, 3 * len(names), 3)]
        columns = {column: [values[row] for row in rows] for column, values in columns.items()}
    return save_light(path, columns)


def same(found: LightWindow, other: LightWindow) -> bool:
    return all(np.array_equal(getattr(found, name), getattr(other, name)) for name in LightWindow.__dataclass_fields__)


NAMES = [f"w{number}" for number in range(9)]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], [*NAMES, *NAMES], ["w3", "w1", "w8", "w0"]])
@pytest.mark.parametrize("batch", [1, 4, 8192])
def test_windows_of_a_shared_file_read_as_each_alone_in_any_order(tmp_path, monkeypatch, mixed, order, batch):
    monkeypatch.setattr(light_rows, "_BATCH_ROWS", batch)
    monkeypatch.setattr(light_rows, "_HELD_ROWS", 2)
    path = many(tmp_path / "all.parquet", NAMES, mixed=mixed)
    file = LightFile(path, set(order))
    for name in order:
        assert same(file.window(name), read_light_window(path, name)), name


def test_windows_in_the_file_s_order_are_read_in_one_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(light_rows, "_BATCH_ROWS", 4)
    path = many(tmp_path / "all.parquet", NAMES)
    file, read = LightFile(path, NAMES), []
    restart = file._restart
    monkeypatch.setattr(file, "_restart", lambda: read.append("again") or restart())
    for name in NAMES:
        assert file.window(name).window_id == name
        assert not set(file._held) - {NAMES[NAMES.index(name) + 1] if name != NAMES[-1] else None}
    assert read == []
    file.window("w0")
    assert read == ["again"]


def test_windows_that_are_not_asked_for_are_not_held_and_not_given(tmp_path):
    path = many(tmp_path / "all.parquet", NAMES)
    file = LightFile(path, ["w2"])
    with pytest.raises(EngcmpError, match="window w5: it holds no rows of it"):
        file.window("w5")
    assert file.window("w2").rows == 3 and not file._held
    with pytest.raises(EngcmpError, match="window w77: it holds no rows of it"):
        LightFile(path, ["w77"]).window("w77")


def test_a_shared_file_that_changes_or_is_damaged_is_refused(tmp_path):
    path = many(tmp_path / "all.parquet", NAMES)
    file = LightFile(path, NAMES)
    many(path, NAMES[:5])
    with pytest.raises(EngcmpError, match="window w8: the file changed while it was read"):
        file.window("w8")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(EngcmpError, match="not a whole Parquet file"):
        LightFile(path, NAMES)


def test_a_bad_row_in_a_shared_file_names_its_window(tmp_path):
    path = many(tmp_path / "all.parquet", NAMES)
    columns = pq.read_table(path).to_pydict()
    columns["position"][3 * 4 + 2] = 1
    save_light(path, columns)
    file = LightFile(path, NAMES)
    assert file.window("w3").rows == 3
    with pytest.raises(EngcmpError, match="window w4: position 1 stands twice"):
        file.window("w4")


def test_more_rows_of_a_window_than_are_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(light_rows, "_MOST_ROWS", 2)
    path = many(tmp_path / "all.parquet", NAMES)
    for read in (lambda: read_light_window(path, "w1"), lambda: LightFile(path, NAMES).window("w1")):
        with pytest.raises(EngcmpError, match="window w1: more than 2 rows"):
            read()
