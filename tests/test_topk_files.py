"""Files of top-K rows: the layout that the field uses, the same bytes for the same rows, and no foreign file read as ours."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engcmp_assets.kernel.topk_measures import ReducedRows, TopKRows, reduce_rows, score_topk, topk_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import RowFile, write_rows
from engcmp_resources.tensor_files import read_tensors, write_tensors
from engcmp_resources.topk_files import TopKFile, WindowRows, read_reduced, read_topk, write_reduced, write_topk

VOCAB, K = 60, 8
WINDOW = WindowRows("a03", "ab" * 32, (1, 4, 5), (7, 9, 59))
ROLES = np.array([0, 1, 1], dtype=np.uint8)


@pytest.fixture
def kept():
    """A reference and an engine's rows as they are kept."""
    reference, engine = np.random.default_rng(1).normal(0, 3, (2, 3, VOCAB)).astype(np.float32)
    top = topk_of(reference, WINDOW.next_token_ids, K, where="window a03")
    return top, reduce_rows(engine, top.top_ids, WINDOW.next_token_ids, where="window a03")


@pytest.fixture
def files(kept, tmp_path):
    """Both files: paths by kind."""
    top, engine = kept
    paths = {"topk": tmp_path / "a03.topk.safetensors", "reduced": tmp_path / "a03.reduced.safetensors"}
    write_topk(paths["topk"], TopKFile(WINDOW, ROLES, top.arrays()))
    write_reduced(paths["reduced"], WINDOW, engine.arrays())
    return paths


def read(kind, path, expected=WINDOW, vocab=VOCAB, k=K):
    return {"topk": read_topk, "reduced": read_reduced}[kind](path, expected=expected, vocab=vocab, k=k)


def rewrite(path, change):
    """The file again, by the library, after `change(tensors, metadata)`."""
    tensors, metadata = dict(load_file(path)), {"window_id": WINDOW.window_id, "tokens_sha256": WINDOW.tokens_sha256}
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


BOTH = pytest.mark.parametrize("kind", ["topk", "reduced"])


def test_what_is_read_is_what_was_written_and_scores_the_same(kept, files):
    top, engine = kept
    found = read("topk", files["topk"])
    assert found.roles.tolist() == ROLES.tolist() and found.rows == WINDOW
    again, reduced = TopKRows(**found.arrays), ReducedRows(**read("reduced", files["reduced"]))
    for old, new in ((top, again), (engine, reduced)):
        for name, array in old.arrays().items():
            assert new.arrays()[name].dtype == array.dtype
            assert new.arrays()[name].tobytes() == array.tobytes(), name
    before, after = (score_topk(*sides, where="window a03") for sides in (kept, (again, reduced)))
    assert before.kl_coarse.tolist() == after.kl_coarse.tolist()
    assert before.kl_pb20.tolist() == after.kl_pb20.tolist()


def test_a_reference_file_has_the_fields_layout_to_the_letter(files):
    data = files["topk"].read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header.pop("__metadata__") == {"window_id": "a03", "tokens_sha256": "ab" * 32}
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()} == {
        "positions": ("U32", [3]),
        "next_token_ids": ("U32", [3]),
        "roles": ("U8", [3]),
        "top_ids": ("U32", [3, K]),
        "top_log_probs": ("F16", [3, K]),
        "tail_log_mass": ("F32", [3]),
        "next_token_log_prob": ("F32", [3]),
    }
    assert load_file(files["topk"])["positions"].tolist() == [1, 4, 5]


@BOTH
def test_a_file_of_another_writer_is_read_and_unknown_tensors_in_it_are_ignored(kind, files):
    rewrite(files[kind], lambda tensors, _: tensors.update(extra=np.zeros(2, dtype=np.float32)))
    assert read(kind, files[kind])


def test_the_same_rows_are_the_same_bytes_in_any_process_and_any_order(files, tmp_path):
    script = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from engcmp_resources.tensor_files import write_tensors\n"
        "write_tensors(Path(sys.argv[1]), {'b': '1', 'a': '2'},"
        " {'y': np.arange(3, dtype='<f4'), 'x': np.arange(2, dtype='<u1'), 'z': np.arange(2, dtype='<f8')})"
    )
    digests = set()
    for seed in range(3):
        path = tmp_path / f"{seed}.safetensors"
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, env={"PYTHONHASHSEED": str(seed)})
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    path = tmp_path / "here.safetensors"
    tensors = {"x": np.arange(2, dtype="<u1"), "z": np.arange(2, dtype="<f8"), "y": np.arange(3, dtype="<f4")}
    write_tensors(path, {"a": "2", "b": "1"}, tensors)
    assert digests == {hashlib.sha256(path.read_bytes()).hexdigest()}
    assert {name: array.tolist() for name, array in load_file(path).items()} == {
        name: array.tolist() for name, array in tensors.items()
    }


def test_the_shared_writer_gives_the_bytes_that_row_files_always_had(tmp_path):
    rows = RowFile("a03", "ab" * 32, np.array([1, 4], dtype=np.int32), np.ones((2, 5), dtype=np.float32))
    write_rows(tmp_path / "old", rows)
    metadata = {"window_id": "a03", "tokens_sha256": "ab" * 32}
    write_tensors(tmp_path / "new", metadata, {"positions": rows.positions, "logits": rows.logits})
    assert (tmp_path / "new").read_bytes() == (tmp_path / "old").read_bytes()


def test_rows_that_are_a_slice_or_in_column_order_are_written_as_their_values(tmp_path):
    array = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))[:, 1:3]
    write_tensors(tmp_path / "f", {}, {"x": array})
    assert read_tensors(tmp_path / "f", ["x"], what="window t")[1]["x"].tolist() == array.tolist()


@BOTH
@pytest.mark.parametrize(
    ("expected", "said"),
    [
        (replace(WINDOW, window_id="a04"), "window a04: the file is of window a03"),
        (replace(WINDOW, tokens_sha256="cd" * 32), "window a03: the file is of other tokens"),
        (replace(WINDOW, positions=(1, 4, 6)), "window a03: 3 rows, plan has 3, or at other positions"),
        (replace(WINDOW, positions=(1, 4)), "window a03: 3 rows, plan has 2, or at other positions"),
        (replace(WINDOW, next_token_ids=(7, 9, 8)), "window a03: the file's rows predict other tokens"),
    ],
)
def test_rows_of_another_window_are_refused_by_name(kind, expected, said, files):
    with pytest.raises(EngcmpError) as caught:
        read(kind, files[kind], expected)
    assert str(caught.value).startswith(said)
    assert f"(file {files[kind].name}); capture this window again" in str(caught.value)


@BOTH
def test_another_k_or_vocabulary_is_refused(kind, files):
    name = {"topk": "top_ids", "reduced": "log_probs"}[kind]
    with pytest.raises(EngcmpError, match=rf"window a03: {name} is \w+ \[3, 8\], not \w+ \[3, 9\] \(file a03"):
        read(kind, files[kind], k=9)
    with pytest.raises(EngcmpError, match=r"window a03: row \d lists id \d+, the vocabulary has 30"):
        read(kind, files[kind], vocab=30)


@pytest.mark.parametrize(
    ("kind", "name", "dtype"),
    [
        ("topk", "positions", np.int32),
        ("topk", "next_token_ids", np.uint64),
        ("topk", "roles", np.int32),
        ("topk", "top_ids", np.int32),
        ("topk", "top_log_probs", np.float32),
        ("topk", "tail_log_mass", np.float64),
        ("topk", "next_token_log_prob", np.float16),
        ("reduced", "log_probs", np.float16),
        ("reduced", "rest_log_mass", np.float64),
        ("reduced", "next_token_log_prob", np.float32),
        ("reduced", "own_top_ids", np.int64),
        ("reduced", "own_top_log_probs", np.float64),
        ("reduced", "entropy", np.float32),
        ("reduced", "reference_ids_digest", np.int64),
    ],
)
def test_a_tensor_of_another_dtype_or_shape_or_none_is_refused_by_name(kind, name, dtype, files, tmp_path):
    path, whole = files[kind], files[kind].read_bytes()
    rewrite(path, lambda tensors, _: tensors.update({name: tensors[name].astype(dtype)}))
    with pytest.raises(EngcmpError, match=rf"window a03: {name} is {np.dtype(dtype)} \[3.*not .*\(file a03"):
        read(kind, path)
    path.write_bytes(whole)
    rewrite(path, lambda tensors, _: tensors.pop(name))
    with pytest.raises(EngcmpError, match=rf"window a03: the file holds no {name} \(file a03"):
        read(kind, path)
    path.write_bytes(whole)
    rewrite(path, lambda tensors, _: tensors.update({name: tensors[name][:2].copy()}))
    with pytest.raises(EngcmpError, match=r"window a03: .*\(file a03"):
        read(kind, path)


@BOTH
@pytest.mark.parametrize("metadata", ["none", "without a digest"])
def test_a_file_that_does_not_say_whose_rows_it_holds_is_refused(kind, metadata, files):
    drop = {"none": ["window_id", "tokens_sha256"], "without a digest": ["tokens_sha256"]}[metadata]
    rewrite(files[kind], lambda _, found: [found.pop(name) for name in drop])
    with pytest.raises(EngcmpError, match=r"window a03: the file is of (window None|other tokens)"):
        read(kind, files[kind])


@BOTH
@pytest.mark.parametrize("damage", ["truncated", "longer", "empty", "HTML", "missing", "a folder", "header"])
def test_a_file_that_is_not_whole_is_refused_by_file_and_window(kind, damage, files):
    path, data = files[kind], files[kind].read_bytes()
    bad = {"truncated": data[:-5], "longer": data + b"\0", "empty": b"", "HTML": b"<html></html>" * 9,
           "header": data[:8] + b"\xff" + data[9:]}  # fmt: skip
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes(bad[damage])
    with pytest.raises(EngcmpError) as caught:
        read(kind, path)
    assert str(caught.value).startswith("window a03: not a whole tensor file")
    assert f"(file {path.name})" in str(caught.value)


def test_one_kind_of_file_is_not_read_as_the_other(files):
    with pytest.raises(EngcmpError, match="the file holds no entropy"):
        read("reduced", files["topk"])
    with pytest.raises(EngcmpError, match="the file holds no roles"):
        read("topk", files["reduced"])


def test_roles_are_0_or_1_and_ids_fall_in_probability(files):
    whole = files["topk"].read_bytes()
    rewrite(files["topk"], lambda tensors, _: tensors.update(roles=np.array([0, 1, 2], dtype=np.uint8)))
    with pytest.raises(EngcmpError, match="window a03: roles are 0 and 1, the file has 2"):
        read("topk", files["topk"])
    files["topk"].write_bytes(whole)
    rewrite(files["topk"], lambda tensors, _: tensors.update(top_log_probs=tensors["top_log_probs"][:, ::-1].copy()))
    with pytest.raises(EngcmpError, match="window a03: top_ids are not in falling probability"):
        read("topk", files["topk"])


def test_a_reference_whose_vocabulary_is_all_listed_is_read_with_its_empty_tail(tmp_path):
    top = topk_of(np.array([[0.0, -np.inf, 1.0]]), [0], 3, where="window t")
    window = WindowRows("t", "00", (0,), (0,))
    write_topk(tmp_path / "t", TopKFile(window, np.zeros(1, dtype=np.uint8), top.arrays()))
    assert read_topk(tmp_path / "t", expected=window, vocab=3, k=3).arrays["tail_log_mass"].tolist() == [-np.inf]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top_log_probs": np.zeros((3, K), dtype=np.float32)}, "top_log_probs is float32"),
        (
            {"top_ids": np.zeros((3, K + 1), dtype=np.uint32)},
            r"top_log_probs is float16 \[3, 8\], not float16 \[3, 9\]",
        ),
        ({"top_ids": np.zeros(3, dtype=np.uint32)}, r"top_ids is uint32 \[3\]"),
        ({"tail_log_mass": np.zeros(2, dtype=np.float32)}, r"tail_log_mass is float32 \[2\], not float32 \[3\]"),
        ({"logits": np.zeros(2, dtype=np.float32)}, "missing or not of the layout: logits"),
    ],
)
def test_nothing_is_written_of_arrays_that_are_not_of_the_layout(changes, said, kept, tmp_path):
    with pytest.raises(EngcmpError, match=said):
        write_topk(tmp_path / "out", TopKFile(WINDOW, ROLES, kept[0].arrays() | changes))
    assert not (tmp_path / "out").exists()


def test_a_dtype_that_the_file_cannot_hold_is_refused(tmp_path):
    with pytest.raises(EngcmpError, match="tensor x is complex128"):
        write_tensors(tmp_path / "out", {}, {"x": np.zeros(1, dtype=np.complex128)})
    with pytest.raises(EngcmpError, match="tensor x is >f4"):
        write_tensors(tmp_path / "out", {}, {"x": np.zeros(1, dtype=">f4")})


def test_a_full_disk_is_said(kept):
    with pytest.raises(EngcmpError, match="the disk is full"):
        write_reduced(Path("/dev/full"), WINDOW, kept[1].arrays())
