"""Full rows in a safetensors file: every value as it was written, read where it lies, and nothing damaged or foreign taken for rows."""

import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing import DIGEST, METADATA, VOCAB, bf16_bits, by_hand, entry, save_full, save_raw, values

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import open_rows

ROWS = values()
AS_STORED = {"F32": ROWS, "F16": ROWS.astype("<f2"), "BF16": bf16_bits(ROWS)}
POSITIONS = ("I32", np.array([0, 2, 5], dtype="<i4"))


def refused(place: Path, window_id: str = "w1") -> str:
    with pytest.raises(EngcmpError) as caught:
        open_rows(place, window_id)
    return str(caught.value)


@pytest.mark.parametrize("dtype", AS_STORED)
def test_each_value_comes_back_bit_for_bit_and_is_no_copy(tmp_path, dtype):
    stored = AS_STORED[dtype]
    path = save_raw(tmp_path / "w1.safetensors", {"positions": POSITIONS, "logits": (dtype, stored)}, METADATA)
    source = open_rows(tmp_path, "w1")
    assert (source.dtype, source.vocab, source.rows, source.kind) == (dtype, VOCAB, 3, "unknown")
    assert (source.positions.tolist(), source.tokens_sha256) == ([0, 2, 5], DIGEST)
    assert (source.path, source.bytes_on_disk) == (path, path.stat().st_size)
    block = source.block(1, 3)
    assert block.dtype == stored.dtype and block.tobytes() == stored[1:].tobytes()
    assert not block.flags.owndata and not block.flags.writeable
    assert np.shares_memory(block, source.block(2, 3))


def test_rows_stay_valid_after_their_memory_was_given_back_and_the_source_is_gone(tmp_path):
    save_full(tmp_path)
    source = open_rows(tmp_path, "w1")
    source.prefetch(0, 3)
    block = source.block(0, 3)
    source.release(0, 3)
    source.release(1, 1)
    del source
    assert block.tobytes() == ROWS.tobytes()


def test_a_header_that_leaves_values_unaligned_changes_none(tmp_path):
    header = {
        "logits": entry("F32", [3, VOCAB], 0, ROWS.nbytes),
        "positions": entry("I32", [3], ROWS.nbytes, ROWS.nbytes + 12),
    }
    for length in range(4):
        by_hand(tmp_path / "w1.safetensors", header, ROWS.tobytes() + POSITIONS[1].tobytes(), padding=b" " * length)
        assert open_rows(tmp_path, "w1").block(0, 3).tobytes() == ROWS.tobytes()


@pytest.mark.parametrize("kind", ["logits", "log_probs"])
def test_the_metadata_may_say_what_the_values_are(tmp_path, kind):
    save_full(tmp_path, kind=kind)
    assert open_rows(tmp_path, "w1").kind == kind


def test_a_file_without_metadata_says_nothing_of_its_tokens(tmp_path):
    save_raw(tmp_path / "w1.safetensors", {"positions": POSITIONS, "logits": ("F32", ROWS)})
    assert open_rows(tmp_path, "w1").tokens_sha256 is None


@pytest.mark.parametrize("span", [(-1, 2), (0, 4), (2, 1)])
def test_rows_that_are_not_there_are_an_error(tmp_path, span):
    save_full(tmp_path)
    with pytest.raises(EngcmpError, match="window w1: no rows"):
        open_rows(tmp_path, "w1").block(*span)


@pytest.mark.parametrize("length", [0, 5, 8, 60, -13 * 4, -1])
def test_a_file_that_was_cut_short_is_refused(tmp_path, length):
    path = save_full(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:length])
    text = refused(tmp_path)
    assert "window w1: not a whole safetensors file" in text and str(path) in text


def test_a_file_that_is_cut_while_it_is_read_is_an_error_and_not_the_end_of_the_process(tmp_path):
    path = save_full(tmp_path)
    source = open_rows(tmp_path, "w1")
    os.truncate(path, 100)
    for use in (source.block, source.prefetch):
        with pytest.raises(EngcmpError, match=r"window w1: cut from 4\d\d to 100 bytes while it is read"):
            use(0, 3)


class _Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def test_a_pickle_is_refused_and_not_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w1.safetensors").write_bytes(pickle.dumps(_Bomb()))
    assert "not a whole safetensors file" in refused(tmp_path)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("dtype", "rows", "said"),
    [
        ("F64", ROWS.astype("<f8"), "logits are F64, not F32, F16 or BF16"),
        ("F32", ROWS[0], "no rows by vocabulary"),
        ("F32", ROWS[:2], "2 rows, positions of 3"),
        ("F32", ROWS[:0], "no rows by vocabulary"),
        ("F32", ROWS[:, :0], "no rows by vocabulary"),
    ],
)
def test_values_of_another_type_or_shape_are_refused(tmp_path, dtype, rows, said):
    path = save_raw(tmp_path / "w1.safetensors", {"positions": POSITIONS, "logits": (dtype, rows)}, METADATA)
    text = refused(tmp_path)
    assert said in text and "window w1" in text and str(path) in text


@pytest.mark.parametrize(
    ("dtype", "positions", "said"),
    [
        ("I64", np.array([0, 2, 5], dtype="<i8"), "positions is I64 [3], not I32"),
        ("I32", np.array([[0, 2, 5]], dtype="<i4"), "positions is I32 [1, 3]"),
        ("I32", np.array([0, 5, 5], dtype="<i4"), "position 5 stands twice"),
        ("I32", np.array([0, -2, 5], dtype="<i4"), "row 1 of the file is at position -2"),
    ],
)
def test_positions_that_are_no_row_indices_are_refused(tmp_path, dtype, positions, said):
    save_raw(tmp_path / "w1.safetensors", {"positions": (dtype, positions), "logits": ("F32", ROWS)}, METADATA)
    assert said in refused(tmp_path)


def test_rows_of_another_window_are_refused(tmp_path):
    save_full(tmp_path, "w2").rename(tmp_path / "w1.safetensors")
    assert "window w1: the file holds rows of window 'w2'" in refused(tmp_path)


SPACE = {"logits": entry("F32", [1, 2], 0, 8), "positions": entry("I32", [1], 8, 12)}
DOUBLED = json.dumps(SPACE)[:-1] + ', "positions": ' + json.dumps(SPACE["positions"]) + "}"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (SPACE | {"positions": entry("I32", [1], 4, 8)}, "does not begin where the one before ends"),
        (SPACE | {"positions": entry("I32", [1], 9, 13)}, "does not begin where the one before ends"),
        (SPACE | {"more": entry("U8", [1], 12, 13)}, "its tensors need"),
        (
            SPACE | {"logits": entry("F32", [2**40, 2**40], 0, 8)},
            "needs 4,835,703,278,458,516,698,824,704 bytes and has 8",
        ),
        (SPACE | {"logits": entry("F32", [-1, -2], 0, 8)}, "has no shape"),
        (SPACE | {"logits": entry("F32", [True, 2], 0, 8)}, "has no shape"),
        (SPACE | {"logits": entry("F32", [2] * 9, 0, 2048)}, "has no shape"),
        (SPACE | {"logits": entry("F32", [99] * 400_000, 0, 8)}, "has no shape"),
        (SPACE | {"logits": {"dtype": "F32"}}, "has no shape"),
        (SPACE | {"logits": entry("Q7", [1, 2], 0, 8)}, "has no type"),
        (SPACE | {"logits": 7}, "has no type"),
        (SPACE | {"__metadata__": {"window_id": 7}}, "the metadata are no texts"),
        ([1, 2], "the header is no object"),
        (DOUBLED, "stands twice"),
        ("{", "not a whole safetensors file"),
        ("[" * 100_000, "not a whole safetensors file"),
        ('{"logits": {"dtype": "F32", "shape": [' + "9" * 5000 + "]}}", "not a whole safetensors file"),
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(tmp_path, header, said):
    by_hand(tmp_path / "w1.safetensors", header, bytes(12))
    text = refused(tmp_path)
    assert said in text and "window w1" in text


def test_a_header_of_absurd_size_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "w1.safetensors"
    for claimed, said in ((2**63, "claims 9,223,372,036,854,775,808"), (90 << 20, "files of rows have at most")):
        path.write_bytes(struct.pack("<Q", claimed))
        os.truncate(path, 100 << 20)
        assert said in refused(tmp_path)


def test_positions_of_absurd_size_are_refused_before_they_are_read(tmp_path):
    count = 200 << 20
    header = {"logits": entry("F32", [1, 2], 0, 8), "positions": entry("I32", [count], 8, 8 + 4 * count)}
    path = by_hand(tmp_path / "w1.safetensors", header, b"")
    os.truncate(path, path.stat().st_size + 8 + 4 * count)
    assert "positions has 838,860,800 bytes, at most 536,870,912 are read" in refused(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "w1.safetensors")
    assert "looked for" in refused(tmp_path)  # no file: it is passed over
    (tmp_path / "plain").mkdir()
    assert "no such folder or file" in refused(tmp_path / "w1.safetensors")


@pytest.mark.parametrize("window_id", ["../w1", "/etc/passwd", "", ".w1", "a/b", "w1\n"])
def test_a_window_id_cannot_lead_out_of_the_folder(tmp_path, window_id):
    save_full(tmp_path / "inside")
    assert "is no plain name" in refused(tmp_path / "inside", window_id)


@given(place=st.integers(0, 10_000), change=st.binary(min_size=1, max_size=12))
def test_whatever_bytes_are_damaged_the_answer_is_rows_or_a_clear_error(tmp_path_factory, place, change):
    folder = tmp_path_factory.mktemp("fuzzed")
    path = save_full(folder)
    data = bytearray(path.read_bytes())
    place %= len(data)
    data[place : place + len(change)] = change
    path.write_bytes(data)
    try:
        source = open_rows(folder, "w1")
    except EngcmpError as error:
        assert "w1" in str(error)
    else:
        assert source.block(0, source.rows).shape == (source.rows, source.vocab)


def test_the_chunks_of_a_capture_are_read_where_they_were_recorded(tmp_path):
    save_full(tmp_path, chunk_lengths="[4, 2]")
    assert open_rows(tmp_path, "w1").chunk_lengths == (4, 2)
    save_full(tmp_path / "without")
    assert open_rows(tmp_path / "without", "w1").chunk_lengths is None


@pytest.mark.parametrize("said", ["", "4", "[]", "[4, 0]", "[4.5]", "[true]", '["4"]', "[" * 5000])
def test_chunks_that_are_no_numbers_of_tokens_are_refused(tmp_path, said):
    save_full(tmp_path, chunk_lengths=said)
    source = open_rows(tmp_path, "w1")
    with pytest.raises(EngcmpError, match=r"window w1: chunk_lengths .* are no list of numbers of tokens"):
        _ = source.chunk_lengths
