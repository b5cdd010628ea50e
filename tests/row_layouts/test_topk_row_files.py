"""Top-K rows as the field writes them: with metadata or without, found by name or by a manifest, and checked row by row."""

import json
from pathlib import Path

import numpy as np
import pytest
from writing import DIGEST, METADATA, save_topk, topk_tensors

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import find_rows, open_rows, read_top_k
from engcmp_resources.topk_files import TopKFile, WindowRows, write_topk


def refused(place: Path, window_id: str = "w1") -> str:
    with pytest.raises(EngcmpError) as caught:
        read_top_k(place, window_id)
    return str(caught.value)


def test_each_array_comes_back_as_it_was_written(tmp_path):
    path = save_topk(tmp_path)
    found = read_top_k(tmp_path, "w1")
    assert find_rows(tmp_path).layout == "topk"
    assert (found.window_id, found.tokens_sha256, found.path) == ("w1", DIGEST, path)
    for name, array in topk_tensors().items():
        if name == "positions":
            assert found.positions.tolist() == array.tolist()
        else:
            assert getattr(found, name).dtype == array.dtype and getattr(found, name).tobytes() == array.tobytes(), name


def test_a_file_without_metadata_is_read_and_says_nothing_of_its_tokens(tmp_path):
    save_topk(tmp_path, metadata=None)
    assert read_top_k(tmp_path, "w1").tokens_sha256 is None


def test_the_files_of_our_own_store_are_read(tmp_path):
    tensors = topk_tensors()
    roles, positions, following = (tensors.pop(name) for name in ("roles", "positions", "next_token_ids"))
    rows = WindowRows("w1", DIGEST, positions.tolist(), following.tolist())
    write_topk(tmp_path / "w1.safetensors", TopKFile(rows, roles, tensors))
    assert read_top_k(tmp_path, "w1").roles.tolist() == [0, 1, 1]


def test_a_data_set_is_read_by_its_manifest(tmp_path):
    save_topk(tmp_path / "windows", metadata=None).rename(tmp_path / "windows/0001.safetensors")
    entry = {"window": "w1", "path": "windows/0001.safetensors", "sha256": "0" * 64, "bytes": 1, "shape": [3, 4]}
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "reference-top1024-plus-tail", "files": [entry]}))
    assert read_top_k(tmp_path, "w1").rows == 3
    (tmp_path / "manifest.json").write_text(json.dumps({"files": [entry | {"path": "../windows/0001.safetensors"}]}))
    assert "which is no path within its folder" in refused(tmp_path)


def test_a_manifest_of_another_kind_changes_nothing(tmp_path):
    save_topk(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"files": ["README.md"]}))
    assert read_top_k(tmp_path, "w1").rows == 3


def changed(name: str, row: int, value: object) -> dict[str, np.ndarray]:
    array = topk_tensors()[name].copy()
    array[row] = value
    return {name: array}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (changed("positions", 1, 5), "position 5 stands twice"),
        (changed("roles", 1, 2), "the row at position 2 has a role other than 0 and 1"),
        (changed("top_ids", 2, 7), "the row at position 5 lists an id twice"),
        (changed("top_log_probs", 1, [-1, -0.5, -2, -3]), "the row at position 2 is not in falling probability"),
        (changed("top_log_probs", 1, np.nan), "the row at position 2 has NaN in top_log_probs: no log-probability"),
        (
            changed("top_log_probs", 0, [0.5, -1, -2, -3]),
            "the row at position 1 has 0.5, above 0, in top_log_probs: no log-probability",
        ),
        (changed("tail_log_mass", 1, np.inf), "the row at position 2 has inf, above 0, in tail_log_mass"),
        (changed("next_token_log_prob", 2, np.nan), "the row at position 5 has NaN in next_token_log_prob"),
        ({"positions": np.array([1, 2], dtype="<u4")}, "2 positions of 4 ids"),
        ({"tail_log_mass": np.zeros(2, dtype="<f4")}, "tail_log_mass of shape [2], 3 positions"),
        ({"top_ids": np.zeros((3, 0), dtype="<u4")}, "top_ids of shape [3, 0]"),
        ({"top_log_probs": np.zeros((3, 4), dtype="<f4")}, "top_log_probs is F32 [3, 4], not F16 of 2 dimensions"),
        ({"positions": np.array([1, 2, 5], dtype="<i4")}, "positions is I32 [3], not U32 of 1 dimension"),
        ({"positions": np.zeros(0, dtype="<u4")}, "it holds no rows"),
    ],
)
def test_rows_that_are_no_top_k_rows_are_refused(tmp_path, changes, said):
    path = save_topk(tmp_path, **changes)
    text = refused(tmp_path)
    assert said in text and "window w1" in text and str(path) in text


def test_rows_of_another_window_are_refused(tmp_path):
    save_topk(tmp_path, metadata=METADATA | {"window_id": "w9"})
    assert "holds rows of window 'w9'" in refused(tmp_path)


def test_they_are_not_taken_for_full_rows(tmp_path):
    save_topk(tmp_path)
    with pytest.raises(EngcmpError, match="topk rows, full ones are needed"):
        open_rows(tmp_path, "w1")
