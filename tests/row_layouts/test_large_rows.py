"""Files larger than 2^31 values and larger than memory may be: sparse ones, which take no disk."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from homes import CHECKOUT
from writing import entry

from engcmp_resources.row_layouts.finding import open_rows

VOCAB = 154_880
ROWS = 13_900  # 2.15e9 values: 8.6 GB as float32
_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from engcmp_resources.row_layouts.finding import open_rows

def peak():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024

source = open_rows(Path(sys.argv[1]), "w1")
before, total = peak(), 0.0
for start in range(0, source.rows, 32):
    stop = min(start + 32, source.rows)
    source.prefetch(start, stop)
    block = source.block(start, stop)
    total += float(block[:, -1].sum()) + float(block[:, ::1024].sum())
    source.release(start, stop)
print(source.bytes_on_disk, before, peak(), total)
"""


def sparse(path: Path, rows: int, *, dtype: str = "F32", marks: dict[tuple[int, int], bytes]) -> None:
    """A file of rows that are zero but for `marks`, the bytes of a value by row and id; positions count up."""
    width = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    end = rows * VOCAB * width
    header = json.dumps(
        {"logits": entry(dtype, [rows, VOCAB], 0, end), "positions": entry("I32", [rows], end, end + 4 * rows)}
    )
    start = 8 + len(header)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        for (row, token), value in marks.items():
            file.seek(start + (row * VOCAB + token) * width)
            file.write(value)
        file.seek(start + end)
        file.write(np.arange(rows, dtype="<i4").tobytes())


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_row_beyond_two_to_the_31_values_is_that_row(tmp_path, dtype):
    assert ROWS * VOCAB > 2**31
    one = {"F32": b"\x00\x00\x80\x3f", "F16": b"\x00\x3c", "BF16": b"\x80\x3f"}[dtype]
    sparse(tmp_path / "w1.safetensors", ROWS, dtype=dtype, marks={(ROWS - 1, 7): one, (ROWS - 2, VOCAB - 1): one})
    source = open_rows(tmp_path, "w1")
    source.prefetch(ROWS - 2, ROWS)
    block = source.block(ROWS - 2, ROWS)
    assert np.argwhere(block != 0).tolist() == [[0, VOCAB - 1], [1, 7]]
    assert block[1, 7].tobytes() == one
    source.release(ROWS - 2, ROWS)
    assert source.block(ROWS - 1, ROWS)[0, 7].tobytes() == one


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_eight_gigabytes_stream_through_in_little_memory(tmp_path):
    one = np.float32(1).tobytes()
    marks = {(row, VOCAB - 1): one for row in range(0, ROWS, 100)}
    sparse(tmp_path / "w1.safetensors", ROWS, marks=marks)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    size, before, peak, total = (float(word) for word in done.stdout.split())
    assert size > 8 << 30 and total == len(marks)
    assert peak < 600 << 20
    assert peak - before < 150 << 20  # two blocks of 32 rows are 40 MB
