"""A teacher's file and its tokens: rows 0 to n-2 of the tokens' digest; tokens are numbers or the file is refused."""

import hashlib
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing import DIGEST, TOKENS, VOCAB, save_raw, save_teacher, values

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts import teacher_rows
from engcmp_resources.row_layouts.finding import find_rows, open_rows


def refused(place: Path, window_id: str = "w1") -> str:
    with pytest.raises(EngcmpError) as caught:
        open_rows(place, window_id)
    return str(caught.value)


@pytest.mark.parametrize("name", ["w1.tokens.npy", "w1.npy"])
def test_row_r_follows_token_r_and_the_digest_is_that_of_the_tokens(tmp_path, name):
    rows = save_teacher(tmp_path)
    (tmp_path / "w1.tokens.npy").rename(tmp_path / name)
    source = open_rows(tmp_path, "w1")
    assert find_rows(tmp_path).layout == "teacher"
    assert source.positions.tolist() == list(range(len(TOKENS) - 1))
    assert (source.vocab, source.dtype, source.kind, source.tokens_sha256) == (VOCAB, "F32", "unknown", DIGEST)
    assert source.block(0, source.rows).tobytes() == rows.tobytes()


def test_a_file_alone_finds_its_tokens_beside_it(tmp_path):
    save_teacher(tmp_path)
    assert open_rows(tmp_path / "w1.safetensors", "w1").tokens_sha256 == DIGEST


def published(folder: Path) -> Path:
    """The folders of the published teacher data, with links into a cache, as download tools leave them."""
    cache, arrays, logits = folder / "cache", folder / "data/calibration/panel-v1/arrays", folder / "data/logits"
    arrays.mkdir(parents=True)
    logits.mkdir()
    entries = []
    for number in range(2):
        window_id = f"final-{number:04d}"
        save_teacher(cache, window_id, np.array(TOKENS) + number, values(len(TOKENS) - 1, seed=number))
        (logits / f"window-{number:04d}.safetensors").symlink_to(cache / f"{window_id}.safetensors")
        (arrays / f"{window_id}.tokens.npy").symlink_to(cache / f"{window_id}.tokens.npy")
        entries.append(
            {"window_id": window_id, "path": f"logits/window-{number:04d}.safetensors", "role": "qualification"}
        )
    (folder / "data/dataset-manifest.json").write_text(json.dumps({"vocab_size": VOCAB, "logit_files": entries}))
    return folder / "data"


def test_the_published_data_set_is_read_by_its_manifest(tmp_path):
    folder = find_rows(published(tmp_path))
    assert sorted(folder.files) == ["final-0000", "final-0001"]
    source = open_rows(folder, "final-0001")
    assert source.block(0, 7).tobytes() == values(7, seed=1).tobytes()
    assert source.tokens_sha256 == hashlib.sha256((np.array(TOKENS) + 1).astype("<u4").tobytes()).hexdigest()


def test_a_window_of_the_data_set_that_was_not_downloaded_is_missing_alone(tmp_path):
    folder = published(tmp_path)
    (folder / "logits/window-0001.safetensors").unlink()
    assert open_rows(folder, "final-0000").rows == 7
    text = refused(folder, "final-0001")
    assert "window final-0001: cannot be read" in text and "window-0001.safetensors" in text


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "logits/../../x", "", None, "a\0b", "..\\x"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(tmp_path, name):
    save_teacher(tmp_path, "outside")
    folder = published(tmp_path)
    manifest = folder / "dataset-manifest.json"
    document = json.loads(manifest.read_text())
    document["logit_files"][1]["path"] = name
    manifest.write_text(json.dumps(document))
    assert "which is no path within its folder" in refused(folder, "final-0000")


def test_a_window_listed_twice_is_refused(tmp_path):
    folder = published(tmp_path)
    manifest = folder / "dataset-manifest.json"
    document = json.loads(manifest.read_text())
    document["logit_files"][1]["window_id"] = "final-0000"
    manifest.write_text(json.dumps(document))
    assert "window final-0000: listed twice" in refused(folder, "final-0000")


def test_without_tokens_the_error_names_what_was_looked_for(tmp_path):
    save_teacher(tmp_path)
    (tmp_path / "w1.tokens.npy").unlink()
    text = refused(tmp_path)
    assert "window w1: no token array; looked for w1.tokens.npy, w1.npy" in text


@pytest.mark.parametrize("rows", [len(TOKENS), len(TOKENS) - 2])
def test_a_number_of_rows_that_is_not_one_below_the_tokens_is_refused(tmp_path, rows):
    save_teacher(tmp_path, rows=values(rows))
    assert f"{rows} rows, its 8 tokens have 7" in refused(tmp_path)


def test_metadata_of_other_tokens_are_refused(tmp_path):
    save_teacher(tmp_path)
    save_raw(tmp_path / "w1.safetensors", {"logits": ("F32", values(7))}, {"tokens_sha256": "0" * 64})
    assert "of other tokens than its token array" in refused(tmp_path)


class _Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize("how", ["pickle", "object array", "archive"])
def test_nothing_is_unpickled(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    save_teacher(tmp_path)
    path = tmp_path / "w1.tokens.npy"
    if how == "pickle":
        path.write_bytes(pickle.dumps(_Bomb()))
    elif how == "object array":
        np.save(path, np.array([_Bomb(), _Bomb()], dtype=object), allow_pickle=True)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tokens.npy", b"")
    assert "window w1" in refused(tmp_path)
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (np.array(TOKENS, dtype="<i8"), "int64 [8], not int32"),
        (np.array(TOKENS, dtype=">i4"), "not int32"),
        (np.array([TOKENS], dtype="<i4"), "int32 [1, 8], not int32 of one dimension"),
        (np.array([3], dtype="<i4"), "with two tokens or more"),
        (np.array([3, -7, 5], dtype="<i4"), "token 1 is -7"),
        (np.array(3.5), "not int32"),
    ],
)
def test_tokens_of_another_type_or_shape_are_refused(tmp_path, tokens, said):
    save_teacher(tmp_path)
    np.save(tmp_path / "w1.tokens.npy", tokens)
    assert said in refused(tmp_path)


def test_an_array_whose_header_claims_more_than_the_file_holds_is_refused(tmp_path):
    save_teacher(tmp_path)
    path = tmp_path / "w1.tokens.npy"
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (10000000000000,), }"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert "not a token array" in refused(tmp_path)
    path.write_bytes(b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little") + b" " * 100)
    assert "not a token array" in refused(tmp_path)


def test_more_tokens_than_a_window_has_are_refused_before_they_are_read(tmp_path):
    save_teacher(tmp_path)
    path = tmp_path / "w1.tokens.npy"
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (1000000000,), }"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    os.truncate(path, path.stat().st_size + 4_000_000_000)
    assert "1,000,000,000 tokens, a window has at most 16,777,216" in refused(tmp_path)


def test_a_pipe_in_place_of_tokens_is_not_waited_for(tmp_path):
    save_teacher(tmp_path)
    (tmp_path / "w1.tokens.npy").unlink()
    os.mkfifo(tmp_path / "w1.tokens.npy")
    assert "no token array" in refused(tmp_path)


@given(place=st.integers(0, 200), change=st.binary(min_size=1, max_size=12), cut=st.integers(0, 100))
def test_whatever_bytes_of_the_tokens_are_damaged_the_answer_is_rows_or_a_clear_error(
    tmp_path_factory, place, change, cut
):
    folder = tmp_path_factory.mktemp("fuzzed")
    save_teacher(folder)
    path = folder / "w1.tokens.npy"
    data = bytearray(path.read_bytes())
    place %= len(data)
    data[place : place + len(change)] = change
    path.write_bytes(data[: len(data) - cut % 3])
    try:
        source = open_rows(folder, "w1")
    except EngcmpError as error:
        assert "w1" in str(error)
    else:
        assert source.rows == len(TOKENS) - 1


def test_a_token_array_that_is_cut_while_it_is_read_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "w1.tokens.npy"
    np.save(path, np.arange(5000, dtype="<i4"))
    load = np.load

    def cut_behind_its_back(*arguments, **more):
        found = load(*arguments, **more)
        os.truncate(path, 200)
        return found

    monkeypatch.setattr(np, "load", cut_behind_its_back)
    with pytest.raises(EngcmpError, match=r"window w1: cut while it is read.*w1\.tokens\.npy"):
        teacher_rows._tokens(path, "w1")
