"""CuteAFD's raw dump: a file a row, positions counted from the predicted token, and a manifest that is not trusted."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from writing import VOCAB, by_hand, entry, save_dump, values

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import find_rows, open_rows

ROWS = values()


def refused(place: Path, window_id: str = "w1") -> str:
    with pytest.raises(EngcmpError) as caught:
        open_rows(place, window_id).block(0, 3)
    return str(caught.value)


def rewrite(leaf: Path, line: int, **changes: object) -> None:
    path = leaf / "manifest.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[line] |= changes
    path.write_text("\n".join(json.dumps(one) for one in lines))


def test_the_row_at_position_p_is_row_p_minus_1(tmp_path):
    leaf = save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    source = open_rows(tmp_path, "w1")
    assert find_rows(tmp_path).layout == "dump"
    assert source.positions.tolist() == [0, 2, 5]
    assert (source.kind, source.dtype, source.vocab, source.tokens_sha256, source.path) == (
        "log_probs",
        "F32",
        VOCAB,
        None,
        leaf,
    )
    source.prefetch(0, 3)
    assert source.block(0, 3).tobytes() == ROWS.tobytes()
    assert source.block(1, 2).tobytes() == ROWS[1:2].tobytes()
    source.release(0, 3)
    assert source.bytes_on_disk == sum(path.stat().st_size for path in leaf.glob("row-*"))


def test_rows_are_given_by_position_in_whatever_order_they_were_written(tmp_path):
    save_dump(tmp_path / "w1", ROWS[[2, 0, 1]], (6, 1, 3))
    source = open_rows(tmp_path, "w1")
    assert source.positions.tolist() == [0, 2, 5]
    assert source.block(0, 3).tobytes() == ROWS.tobytes()


def test_a_leaf_is_found_by_the_name_that_the_engines_script_gives_it(tmp_path):
    save_dump(tmp_path / "run-7-w1-4711", ROWS, (1, 3, 6))
    save_dump(tmp_path / "run-7-w11-4711", ROWS[:1], (1,))
    assert open_rows(tmp_path, "w1").rows == 3
    assert open_rows(tmp_path / "run-7-w1-4711", "w1").rows == 3
    assert open_rows(tmp_path / "run-7-w1-4711" / "manifest.jsonl", "w1").rows == 3


def test_a_folder_of_just_the_windows_name_is_meant_before_one_that_ends_in_it(tmp_path):
    save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    save_dump(tmp_path / "run-w1-1", ROWS[:1], (1,))
    assert open_rows(tmp_path, "w1").rows == 3


def test_a_dump_of_another_window_or_two_of_one_are_refused(tmp_path):
    save_dump(tmp_path / "run-w2-1", ROWS, (1, 3, 6))
    assert "window w1: no rows of it" in refused(tmp_path / "run-w2-1")
    save_dump(tmp_path / "run-w1-1", ROWS, (1, 3, 6))
    save_dump(tmp_path / "run-w1-2", ROWS, (1, 3, 6))
    assert "several dumps are its by their names: run-w1-1, run-w1-2" in refused(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"position": 1}, "position 0 stands twice"),
        ({"position": 0}, "line 2: position is 0, not a number from 1"),
        ({"position": "3"}, "line 2: position is 3, not a number"),
        ({"position": True}, "line 2: position is True"),
        ({"position": 2**80}, "line 2: position is 1208925819614629174706176"),
        ({"vocab_size": VOCAB + 1}, f"rows of {VOCAB} and {VOCAB + 1} values"),
        ({"dtype": "F16"}, "line 2: dtype is 'F16', not F32"),
        ({"byte_order": "big"}, "line 2: byte_order is 'big', not little"),
        ({"tensor": "logits"}, "line 2: tensor is 'logits', not log_probs"),
        ({"file": "../w2/row-00000001.safetensors"}, "which is no path within its folder"),
        ({"file": "/etc/hostname"}, "which is no path within its folder"),
        ({"file": 7}, "which is no path within its folder"),
        ({"file": "row-00000000.safetensors"}, "a row file is listed twice"),
        ({"file": "row-99999999.safetensors"}, "row 2 has no file"),
        ({"file": "x" * 300}, "row 2 has no file"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(tmp_path, changes, said):
    leaf = save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    rewrite(leaf, 1, **changes)
    text = refused(tmp_path)
    assert said in text and str(leaf) in text


@pytest.mark.parametrize("width", [VOCAB + 1, 2**31 - 1])
def test_a_width_that_is_only_claimed_takes_no_memory(tmp_path, width):
    save_dump(tmp_path / "w1", ROWS, (1, 3, 6), vocab_size=width)
    assert "are less than" in refused(tmp_path) or "not [14]" in refused(tmp_path)


def test_a_manifest_that_was_cut_or_is_empty_is_refused(tmp_path):
    leaf = save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    manifest = leaf / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert "line 3 is not JSON" in refused(tmp_path)
    manifest.write_text("[1]\n")
    assert "line 1 is no object" in refused(tmp_path)
    manifest.write_text("\n")
    assert "window w1: it holds no rows" in refused(tmp_path)
    manifest.write_bytes(b"")
    os.truncate(manifest, 300 << 20)
    assert "at most 33,554,432 are read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ({"log_probs": entry("F32", [VOCAB - 1], 0, 48)}, bytes(48), "not [13]"),
        ({"log_probs": entry("F32", [1, VOCAB], 0, 52)}, bytes(52), "of shape [1, 13]"),
        ({"log_probs": entry("F64", [7], 0, 56)}, bytes(56), "holds not the one F32 tensor log_probs"),
        ({"logits": entry("F32", [VOCAB], 0, 52)}, bytes(52), "holds not the one F32 tensor log_probs"),
        ({"log_probs": entry("F32", [VOCAB], 0, 52)}, bytes(51), "not a whole safetensors file"),
    ],
)
def test_a_row_file_of_another_kind_is_refused_with_its_row(tmp_path, header, data, said):
    leaf = save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    by_hand(leaf / "row-00000001.safetensors", header, data)
    text = refused(tmp_path)
    assert said in text and "window w1" in text and "row-00000001.safetensors" in text


def test_a_row_file_that_is_a_pipe_is_not_waited_for(tmp_path):
    leaf = save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    (leaf / "row-00000001.safetensors").unlink()
    os.mkfifo(leaf / "row-00000001.safetensors")
    assert "0 bytes are less than" in refused(tmp_path)


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path):
    leaf = save_dump(tmp_path / "w1", ROWS, (1, 3, 6))
    (leaf / "manifest.jsonl").unlink()
    os.mkfifo(leaf / "manifest.jsonl")
    assert "window w1: is no regular file" in refused(tmp_path)


def test_values_of_a_dump_are_those_that_were_written(tmp_path):
    rows = np.frombuffer(np.random.default_rng(5).bytes(4 * VOCAB * 4), dtype="<f4").reshape(
        4, VOCAB
    )  # NaN payloads too
    save_dump(tmp_path / "w1", rows, (1, 2, 3, 4))
    assert open_rows(tmp_path, "w1").block(0, 4).tobytes() == rows.tobytes()
