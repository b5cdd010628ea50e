"""Row files: identical rows are identical bytes, the library reads them, and nothing foreign or half written passes."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from homes import CHECKOUT
from safetensors import safe_open
from safetensors.numpy import save_file

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_files import RowFile, read_rows, row_hashes, write_rows

VOCAB = 11
DIGEST = "d" * 64


def rows_of(window: str = "code-1", positions: tuple[int, ...] = (0, 3, 9), seed: int = 1) -> RowFile:
    logits = np.random.default_rng(seed).normal(size=(len(positions), VOCAB)).astype(np.float32)
    return RowFile(window, DIGEST, np.asarray(positions, dtype=np.int32), logits)


def read(path: Path, **changes: Any) -> RowFile:
    expected: dict[str, Any] = {"window_id": "code-1", "tokens_sha256": DIGEST, "positions": (0, 3, 9), "vocab": VOCAB}
    return read_rows(path, **(expected | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "code-1.safetensors"
    write_rows(path, rows_of())
    return path


def test_rows_read_back_bit_for_bit(path: Path) -> None:
    found = read(path)
    assert found.logits.tobytes() == rows_of().logits.tobytes()
    assert found.positions.tolist() == [0, 3, 9]
    assert (found.logits.dtype, found.positions.dtype) == (np.float32, np.int32)


def test_the_library_reads_them_with_their_metadata(path: Path) -> None:
    with safe_open(str(path), framework="numpy") as file:
        assert sorted(file.keys()) == ["logits", "positions"]
        assert file.metadata() == {"window_id": "code-1", "tokens_sha256": DIGEST}
        assert file.get_slice("logits").get_dtype() == "F32"
        assert file.get_slice("positions").get_dtype() == "I32"


def test_the_same_rows_are_the_same_bytes_in_every_process(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    program = (
        "import sys; sys.path.insert(0, 'tests')\nfrom pathlib import Path\nfrom test_row_files import rows_of, write_rows\n"
        "write_rows(Path(sys.argv[1]), rows_of())"
    )
    subprocess.run([sys.executable, "-c", program, str(other)], cwd=CHECKOUT, check=True)
    assert other.read_bytes() == path.read_bytes()


def test_values_that_only_bits_tell_apart_are_kept(tmp_path: Path) -> None:
    values = np.array([[0.0, -0.0, -np.inf, 1e-45, 3.4e38]], dtype=np.float32)
    path = tmp_path / "x.safetensors"
    write_rows(path, RowFile("code-1", DIGEST, np.array([0], dtype=np.int32), values))
    assert read(path, positions=(0,), vocab=5).logits.tobytes() == values.tobytes()


def test_data_begin_where_a_float_may_begin(path: Path) -> None:
    for window in ("a", "ab", "abc", "abcd", "long-name-0"):
        write_rows(path, rows_of(window))
        (size,) = struct.unpack("<Q", path.read_bytes()[:8])
        assert (8 + size) % 8 == 0
        read(path, window_id=window)


def test_rows_in_any_memory_order_give_the_same_file(path: Path, tmp_path: Path) -> None:
    rows = rows_of()
    turned = RowFile(rows.window_id, rows.tokens_sha256, rows.positions.astype(">i4"), np.asfortranarray(rows.logits))
    other = tmp_path / "other.safetensors"
    write_rows(other, turned)
    assert other.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("shape", [(2, VOCAB), (3,), (3, VOCAB, 1)])
def test_logits_that_do_not_fit_the_positions_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    rows = RowFile("code-1", DIGEST, np.array([0, 3, 9], dtype=np.int32), np.zeros(shape, dtype=np.float32))
    with pytest.raises(EngcmpError, match=r"window code-1: logits .* do not fit positions \(3,\)"):
        write_rows(tmp_path / "x.safetensors", rows)
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window_id": "code-2"}, "window code-2: the file holds window code-1"),
        ({"tokens_sha256": "e" * 64}, "of other tokens"),
        ({"positions": (0, 3)}, "3 rows, plan has 2"),
        ({"positions": (0, 3, 8)}, "or at other positions"),
        ({"vocab": VOCAB + 1}, r"logits of shape \(3, 11\), 3 rows of 12 are planned"),
    ],
)  # fmt: skip
def test_rows_of_another_plan_are_refused_by_what_differs(path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EngcmpError, match=rf"{words}.*{path.name}.*capture this window again"):
        read(path, **changes)


def test_a_file_cut_at_any_length_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, *range(150, len(data), 17), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(EngcmpError, match="window code-1: not a whole row file"):
            read(path)
    path.write_bytes(data + b"x")
    with pytest.raises(EngcmpError, match="not a whole row file"):
        read(path)


def test_a_file_that_is_missing_or_something_else_is_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"GGUF" * 100)
    for other in (path, tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(EngcmpError, match="window code-1: not a whole row file"):
            read(other)


def foreign(dtype: str, width: int) -> bytes:
    """A whole safetensors file whose logits have another type."""
    size = 3 * VOCAB * width
    header = {
        "__metadata__": {"tokens_sha256": DIGEST, "window_id": "code-1"},
        "logits": {"dtype": dtype, "shape": [3, VOCAB], "data_offsets": [0, size]},
        "positions": {"dtype": "I32", "shape": [3], "data_offsets": [size, size + 12]},
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size) + np.array([0, 3, 9], dtype="<i4").tobytes()


@pytest.mark.parametrize(
    ("dtype", "width"), [("F64", 8), ("F16", 2), ("BF16", 2), ("F8_E4M3", 1), ("I32", 4), ("BOOL", 1)]
)
def test_rows_of_another_type_are_refused(path: Path, dtype: str, width: int) -> None:
    path.write_bytes(foreign(dtype, width))
    with pytest.raises(EngcmpError, match=r"not a whole row file|not int32 and float32"):
        read(path)


def test_a_file_with_other_tensors_or_without_metadata_is_refused(path: Path) -> None:
    rows = rows_of()
    save_file(
        {"logits": rows.logits, "positions": rows.positions, "more": rows.logits}, str(path), {"window_id": "code-1"}
    )
    with pytest.raises(EngcmpError, match="it holds logits, more, positions"):
        read(path)
    save_file({"logits": rows.logits, "positions": rows.positions}, str(path))
    with pytest.raises(EngcmpError, match="the file holds window None"):
        read(path)
    save_file({"logits": rows.logits, "positions": rows.positions.astype(np.int64)}, str(path))
    with pytest.raises(EngcmpError, match="positions are int64"):
        read(path)


def test_a_row_s_hash_is_of_its_raw_little_endian_bytes() -> None:
    rows = rows_of().logits
    assert row_hashes(rows) == [hashlib.sha256(row.astype("<f4").tobytes()).hexdigest() for row in rows]
    other = rows.copy()
    other[1, 4] = np.nextafter(other[1, 4], np.float32(np.inf))
    differing = [one != two for one, two in zip(row_hashes(rows), row_hashes(other), strict=True)]
    assert differing == [False, True, False]
