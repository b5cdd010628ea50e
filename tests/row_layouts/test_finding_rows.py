"""Which layout a folder has is told from its files; a folder that is empty or holds two layouts is an error that says what was found."""

import numpy as np
import pytest
from writing import (
    METADATA,
    by_hand,
    entry,
    light_columns,
    save_dump,
    save_full,
    save_light,
    save_raw,
    save_teacher,
    save_topk,
    values,
)

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import find_rows, open_rows, read_top_k


def refused(place) -> str:
    with pytest.raises(EngcmpError) as caught:
        find_rows(place)
    return str(caught.value)


WRITERS = {
    "full": lambda folder: save_full(folder, "w1"),
    "teacher": lambda folder: save_teacher(folder, "w2"),
    "topk": lambda folder: save_topk(folder, "w3", METADATA | {"window_id": "w3"}),
    "dump": lambda folder: save_dump(folder / "w4", values(), (1, 2, 3)),
    "light": lambda folder: save_light(folder / "arm.parquet", light_columns("w5")),
}


@pytest.mark.parametrize("layout", WRITERS)
def test_each_layout_is_told_from_its_content(tmp_path, layout):
    WRITERS[layout](tmp_path)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "README.md").write_text("rows")
    (tmp_path / ".unfinished.safetensors").write_bytes(b"half")
    found = find_rows(tmp_path)
    assert found.layout == layout and len(found.files) == 1


@pytest.mark.parametrize("one", WRITERS)
@pytest.mark.parametrize("other", WRITERS)
def test_two_layouts_in_one_folder_are_refused_with_an_example_of_each(tmp_path, one, other):
    if one >= other:
        return
    for layout in (one, other):
        WRITERS[layout](tmp_path)
    text = refused(tmp_path)
    assert f"rows of several layouts ({one}: " in text and f"; {other}: " in text and str(tmp_path) in text


def test_an_empty_folder_names_what_was_looked_for(tmp_path):
    text = refused(tmp_path)
    for name in (
        "<window_id>.safetensors",
        "logits and positions",
        "top_log_probs",
        "manifest.jsonl",
        ".npy",
        ".parquet",
    ):
        assert name in text
    assert "there is no such folder or file" in refused(tmp_path / "none")


def test_a_file_of_other_tensors_says_what_it_holds(tmp_path):
    path = save_raw(tmp_path / "model.safetensors", {"model.norm.weight": ("F32", values())})
    text = refused(tmp_path)
    assert "tensors of no layout: it holds model.norm.weight; looked for" in text and str(path) in text


def test_a_dumped_row_without_its_manifest_is_named_as_such(tmp_path):
    by_hand(tmp_path / "row-00000000.safetensors", {"log_probs": entry("F32", [2], 0, 8)}, bytes(8))
    assert "a dump's rows need their manifest.jsonl" in refused(tmp_path)


def test_a_file_of_two_layouts_at_once_is_refused(tmp_path):
    save_topk(tmp_path, logits=values())
    assert "tensors of several layouts" in refused(tmp_path)


def test_a_damaged_file_is_named_even_if_another_window_is_asked_for(tmp_path):
    save_full(tmp_path, "w1")
    (tmp_path / "w2.safetensors").write_bytes(b"half")
    with pytest.raises(EngcmpError, match=r"window w2: not a whole safetensors file.*w2\.safetensors"):
        open_rows(tmp_path, "w1")


def test_a_window_that_is_not_there_is_named_with_those_that_are(tmp_path):
    save_full(tmp_path, "w1")
    with pytest.raises(EngcmpError, match=r"window w7: no rows of it; there are 1 windows in full layout: w1"):
        open_rows(tmp_path, "w7")


def test_a_file_that_is_named_itself_says_its_window_or_is_named_after_it(tmp_path):
    path = save_full(tmp_path, "w1").rename(tmp_path / "rows.safetensors")
    assert open_rows(path, "w1").rows == 3
    with pytest.raises(EngcmpError, match="window rows: no rows of it"):
        open_rows(path, "rows")
    save_topk(tmp_path, "w3", None)
    assert read_top_k(tmp_path / "w3.safetensors", "w3").rows == 3


def test_what_was_found_once_serves_for_every_window(tmp_path):
    for number in range(3):
        save_full(tmp_path, f"w{number}", values(seed=number))
    folder = find_rows(tmp_path)
    for number in range(3):
        assert np.array_equal(open_rows(folder, f"w{number}").block(0, 3), values(seed=number))
