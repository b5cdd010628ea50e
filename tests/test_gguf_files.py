"""Reading GGUF files that are whole, damaged or cut short, and writing them again in another quantization."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf, requantize

MATRIX = np.random.default_rng(5).standard_normal((6, 64)).astype(np.float32)
VECTOR = np.arange(64, dtype=np.float32) / 7


def write_model(path: Path, *, alignment: int | None = None, matrix: np.ndarray = MATRIX) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", ""])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 3])
    writer.add_file_type(0)
    writer.add_tensor("plain.weight", matrix)
    writer.add_tensor(
        "small.weight",
        gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q8_0),
        raw_dtype=gguf.GGMLQuantizationType.Q8_0,
    )
    writer.add_tensor("half.weight", matrix.astype(np.float16))
    writer.add_tensor("norm.weight", VECTOR)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf")


def test_metadata_comes_back_with_its_types(model_path: Path) -> None:
    with open_gguf(model_path) as model:
        assert model.architecture == "llama"
        assert model.integer("llama.block_count") == 2
        assert model.number("llama.rope.freq_base") == 10000.0
        assert model.texts("tokenizer.ggml.tokens") == ["a", "é", ""]
        assert model.integers("tokenizer.ggml.token_type") == [1, 1, 3]
        assert model.integer("llama.absent", 9) == 9
        assert model.number("llama.absent", 0.5) == 0.5


def test_tensors_come_back_as_the_package_itself_reads_and_dequantizes_them(model_path: Path) -> None:
    with open_gguf(model_path) as model:
        for tensor in gguf.GGUFReader(model_path).tensors:
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            found = model.tensor(tensor.name)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, expected)
        assert model.tensor("norm.weight").shape == (64,)


def test_rows_can_be_read_by_range_and_by_number(model_path: Path) -> None:
    with open_gguf(model_path) as model:
        whole = model.tensor("small.weight")
        np.testing.assert_array_equal(model.tensor_rows("small.weight", 2, 5), whole[2:5])
        np.testing.assert_array_equal(model.gather_rows("small.weight", [4, 0, 4]), whole[[4, 0, 4]])
        assert model.tensor_rows("plain.weight", 3, 3).shape == (0, 64)
        with pytest.raises(EngcmpError, match=r"row 6 of tensor 'small.weight', which has 6"):
            model.gather_rows("small.weight", [0, 6])
        with pytest.raises(EngcmpError, match=r"rows 4 to 7 of tensor 'plain.weight', which has 6"):
            model.tensor_rows("plain.weight", 4, 7)


def test_what_the_file_lacks_is_named_with_the_file_and_the_remedy(model_path: Path) -> None:
    with open_gguf(model_path) as model:
        with pytest.raises(EngcmpError, match=r"no key 'llama\.context_length' .*model\.gguf.*fetch or make"):
            model.integer("llama.context_length")
        with pytest.raises(EngcmpError, match=r"no tensor 'output\.weight' .*model\.gguf.*fetch or make"):
            model.tensor("output.weight")
        with pytest.raises(EngcmpError, match=r"'llama\.block_count' is not a string"):
            model.text("llama.block_count")
        with pytest.raises(EngcmpError, match=r"'tokenizer\.ggml\.add_bos_token' is not an integer"):
            model.integer("tokenizer.ggml.add_bos_token")
        with pytest.raises(EngcmpError, match=r"'tokenizer\.ggml\.tokens' is not an array of INT32"):
            model.integers("tokenizer.ggml.tokens")


def test_a_file_cut_anywhere_is_refused_with_its_name(model_path: Path, tmp_path: Path) -> None:
    data = model_path.read_bytes()
    with open_gguf(model_path) as model:
        needed = max(entry.end_bytes for entry in model.tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in range(needed):  # header, keys, tensor entries and data, byte by byte
        cut.write_bytes(data[:size])
        with pytest.raises(EngcmpError, match=r"truncated.*cut\.gguf.*fetch or make the file again"):
            open_gguf(cut)
    cut.write_bytes(data[:needed])
    open_gguf(cut).close()


def test_a_changed_header_byte_is_refused_or_read_but_never_another_error(model_path: Path, tmp_path: Path) -> None:
    data = bytearray(model_path.read_bytes())
    with open_gguf(model_path) as model:
        header = min(entry.offset_bytes for entry in model.tensors.values())
    changed = tmp_path / "changed.gguf"
    refused = 0
    for place in range(header):
        for flip in (0xFF, 0x01):
            data[place] ^= flip
            changed.write_bytes(data)
            data[place] ^= flip
            try:
                open_gguf(changed).close()
            except EngcmpError as error:
                refused += 1
                assert "changed.gguf" in str(error)
    assert refused > header / 4


def test_what_is_not_a_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>not found, but long enough for a header</html>")
    with pytest.raises(EngcmpError, match=r"not a GGUF: it begins with b'<htm'.*page\.gguf"):
        open_gguf(path)
    path.write_bytes(struct.pack(">4sIQQ", b"GGUF", 3, 0, 0))
    with pytest.raises(EngcmpError, match=r"of the other byte order"):
        open_gguf(path)
    with pytest.raises(EngcmpError, match=r"cannot read the GGUF: No such file.*absent\.gguf"):
        open_gguf(tmp_path / "absent.gguf")
    with pytest.raises(EngcmpError, match=r"cannot read the GGUF"):
        open_gguf(tmp_path)


def test_a_closed_model_says_so(model_path: Path) -> None:
    model = open_gguf(model_path)
    model.close()
    model.close()
    with pytest.raises(EngcmpError, match="closed"):
        model.tensor("plain.weight")


@pytest.mark.parametrize(("kind", "stored"), [("q8_0", "Q8_0"), ("q4_0", "Q4_0"), ("f32", "F32")])
def test_requantizing_stores_matrices_as_the_kind_and_vectors_as_float32(
    model_path: Path, tmp_path: Path, kind: str, stored: str
) -> None:
    target = tmp_path / "out.gguf"
    steps: list[tuple[int, int]] = []
    requantize(model_path, target, kind, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(target).tensors}
    assert list(tensors) == ["plain.weight", "small.weight", "half.weight", "norm.weight"]
    for name in ("plain.weight", "small.weight", "half.weight"):
        assert tensors[name].tensor_type.name == stored
    np.testing.assert_array_equal(tensors["norm.weight"].data, VECTOR)
    step = {"q8_0": 1 / 127, "q4_0": 1 / 8, "f32": 0.0}[kind]
    with open_gguf(model_path) as before, open_gguf(target) as after:
        difference = np.abs(after.tensor("plain.weight") - before.tensor("plain.weight"))
        assert difference.max() <= step * np.abs(MATRIX).max()
        assert after.texts("tokenizer.ggml.tokens") == before.texts("tokenizer.ggml.tokens")
        assert after.integer("general.file_type") == {"q8_0": 7, "q4_0": 2, "f32": 0}[kind]


def test_requantizing_keeps_a_custom_alignment(tmp_path: Path) -> None:
    requantize(write_model(tmp_path / "model.gguf", alignment=128), tmp_path / "out.gguf", "q8_0")
    with open_gguf(tmp_path / "out.gguf") as model:
        assert {entry.offset_bytes % 128 for entry in model.tensors.values()} == {0}
        np.testing.assert_array_equal(model.tensor("norm.weight"), VECTOR)


def test_requantizing_is_the_same_bytes_every_time_however_the_rows_are_split(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requantize(model_path, tmp_path / "one.gguf", "q4_0")
    monkeypatch.setattr("engcmp_resources.gguf_files._ROWS_AT_ONCE", 4)
    requantize(model_path, tmp_path / "two.gguf", "q4_0")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_a_matrix_that_the_kind_cannot_hold_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_tensor("odd.weight", np.zeros((2, 40), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(EngcmpError, match=r"'odd.weight' has rows of 40, which q8_0 cannot hold"):
        requantize(tmp_path / "odd.gguf", tmp_path / "out.gguf", "q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.gguf"]


def run_requantize(source: Path, target: Path, before: str, in_progress: str) -> subprocess.CompletedProcess[str]:
    program = f"""
import os, resource, signal
from pathlib import Path
from engcmp_resources.gguf_files import requantize
{before}
def progress(done, total):
    {in_progress}
requantize(Path({str(source)!r}), Path({str(target)!r}), "q8_0", progress=progress)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_kill_in_the_middle_leaves_the_old_file_as_it_was(model_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    target.write_text("the old file")
    run = run_requantize(model_path, target, "", "os.kill(os.getpid(), signal.SIGKILL)")
    assert run.returncode == -signal.SIGKILL
    assert target.read_text() == "the old file"


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(model_path: Path, tmp_path: Path) -> None:
    limit = (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))"  # the system refuses to write beyond, as a full disk
    )
    run = run_requantize(model_path, tmp_path / "out.gguf", limit, "pass")
    assert run.returncode == 1
    assert "EngcmpError: cannot write the q8_0 weights" in run.stderr
    assert "out.gguf); check the folder and its free space" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(
    ("kind", "sha256"),
    [
        ("q8_0", "fe19b98b2f2a8de893ba169faddcd76a53f64df6b55add36ebdb662e89c4e0b1"),
        ("q4_0", "b6cad9db83f2e286e513a3ca2be46297563ca18ceeda3998d96d10383d18b997"),
    ],
)
def test_the_checkpoints_of_the_study_are_made_to_the_byte(
    smollm2_weights: Path, tmp_path: Path, kind: str, sha256: str
) -> None:
    requantize(smollm2_weights, tmp_path / "out.gguf", kind)
    assert sha256_file(tmp_path / "out.gguf") == sha256
