"""`engcmp score` on files: its rate from a cold disk against a bare sequential read of the same files, and its peak memory.

A panel of random rows is written in float32, float16 and bfloat16. In each turn the files of every type are dropped from the page cache
and read from end to end, dropped again and scored; ratios are medians of each turn's ratios. Peak memory is that of the whole command, on
the same panel and on a larger one of empty (sparse) files. Wanted: 0.85 of the bare read or more, and below 600 MiB whatever the size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engcmp_assets.file_scores.reading import score_files
from engcmp_assets.kernel import fast_rows
from engcmp_assets.kernel.panel_files import parse_panel_file
from engcmp_assets.kernel.records import Panel, tokens_sha256
from engcmp_resources.row_layouts.finding import find_rows

Array = npt.NDArray[np.generic]
TYPES = ("F32", "F16", "BF16")
SIDES = ("reference", "arm")
_ITEM = {"F32": 4, "F16": 2, "BF16": 2}
BLOCK = 32  # rows that are written at once
_READ = 8 << 20
_ENOUGH = 0.85
_MOST_MIB = 600


def write_panel(folder: Path, windows: int, rows: int, vocab: int) -> Path:
    """A panel file of random tokens, whose windows keep every row."""
    tokens = np.random.default_rng(20260929).integers(0, vocab, (windows, rows + 1)).tolist()
    return write_panel_of(folder, tokens, range(rows), vocab)


def write_panel_of(folder: Path, texts: list[list[int]], positions: range, vocab: int) -> Path:
    """A panel file of a window for each of the texts, which keeps the rows at `positions`."""
    entries = [
        {
            "window_id": f"w{number}", "tokens": tokens, "tokens_sha256": tokens_sha256(tokens), "positions": list(positions),
            "roles": ["context"] * len(positions), "cluster": f"c{number}", "block": f"b{number % 4}", "bucket": "all",
        }
        for number, tokens in enumerate(texts)
    ]  # fmt: skip
    path = folder / "panel.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"panel": "bench", "vocab": vocab, "reference": "full", "windows": entries}), "utf-8")
    return path


def write_rows(folder: Path, panel: Panel, dtype: str, blocks: Iterator[Array] | None) -> None:
    """The panel's rows in one folder, a file a window: `blocks` one after the other, or nothing but holes."""
    folder.mkdir(parents=True)
    for window in panel.windows:
        rows = len(window.positions)
        size = rows * panel.vocab * _ITEM[dtype]
        header = json.dumps({
            "__metadata__": {"window_id": window.window_id, "tokens_sha256": window.tokens_sha256},
            "positions": {"dtype": "I32", "shape": [rows], "data_offsets": [0, rows * 4]},
            "logits": {"dtype": dtype, "shape": [rows, panel.vocab], "data_offsets": [rows * 4, rows * 4 + size]},
        }).encode()  # fmt: skip
        header += b" " * (-len(header) % 8)
        with (folder / f"{window.window_id}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + np.array(window.positions, dtype="<i4").tobytes())
            for start in range(0, rows, BLOCK) if blocks else ():
                file.write(np.ascontiguousarray(next(blocks)[: rows - start]).data)
            file.truncate(8 + len(header) + rows * 4 + size)
            file.flush()
            os.fsync(file.fileno())


def random_blocks(vocab: int, dtype: str, noise: float) -> Iterator[Array]:
    """Blocks of rows without end; `noise` nats lie between two sides. Rows repeat, each time with another constant added."""
    chance = np.random.default_rng(1)
    base = chance.normal(0, 3, (BLOCK, vocab)).astype(np.float32)
    base += np.random.default_rng(2).normal(0, noise, base.shape).astype(np.float32)
    while True:
        rows = base + np.float32(chance.integers(0, 4))
        yield {"F32": rows, "F16": rows.astype(np.float16), "BF16": (rows.view(np.uint32) >> 16).astype(np.uint16)}[
            dtype
        ]


def files_in(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]


def drop(paths: list[Path]) -> bool:
    """Drop files from the page cache; whether that worked, from a look at the middle of each."""
    dropped = []
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(descriptor, [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
            dropped.append(False)
        except BlockingIOError:
            dropped.append(True)
        os.close(descriptor)
    return all(dropped)


def bare_read(paths: list[Path]) -> None:
    """Every byte, in order, into one buffer."""
    buffer = bytearray(_READ)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak_mib(panel_file: Path, folder: Path, jobs: int, out: Path) -> float:
    """The most memory that the command held at once, in MiB."""
    command = [
        sys.executable, "-m", "engcmp_assets.commands", "score", "--panel", panel_file, "--reference", folder / "reference",
        "--arm", f"A={folder / 'arm'}", "--jobs", jobs, "--out", out,
    ]  # fmt: skip
    with subprocess.Popen([str(one) for one in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        said = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(said.decode())
    return usage.ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


def measure_rates(folder: Path, panel: Panel, jobs: int, turns: int) -> None:
    """Bare read and scoring of each type, in turn, `turns` times."""
    bare: dict[str, list[float]] = {dtype: [] for dtype in TYPES}
    ours: dict[str, list[float]] = {dtype: [] for dtype in TYPES}
    warm: dict[str, list[float]] = {dtype: [] for dtype in TYPES}
    cold = True
    for _ in range(turns):
        for dtype in TYPES:
            reference, arm = (find_rows(folder / dtype / side) for side in SIDES)
            paths = files_in(reference.place, arm.place)
            cold &= drop(paths)
            bare[dtype].append(seconds(lambda paths=paths: bare_read(paths)))
            cold &= drop(paths)
            for own in (ours, warm):
                own[dtype].append(seconds(lambda r=reference, a=arm: score_files(panel, r, {"A": a}, [], jobs=jobs)))
    print("the page cache was dropped before each read" if cold else "the page cache could NOT be dropped: not cold")
    print(f"{'type':6}{'bare GB/s':>11}{'scored GB/s':>13}{'of bare':>9}{'rows/s':>9}{'rows/s cached':>15}{'x F32':>8}")
    for dtype in TYPES:
        size = sum(path.stat().st_size for path in files_in(*(folder / dtype / side for side in SIDES)))
        read, scored, cached = (statistics.median(one[dtype]) for one in (bare, ours, warm))
        share = statistics.median(a / b for a, b in zip(bare[dtype], ours[dtype], strict=True))
        against = statistics.median(a / b for a, b in zip(ours["F32"], ours[dtype], strict=True))
        print(
            f"{dtype:6}{size / read / 1e9:11.2f}{size / scored / 1e9:13.2f}{share:9.2f}{panel.rows / scored:9.0f}"
            f"{panel.rows / cached:15.0f}{against:8.2f}{'' if share >= _ENOUGH else '  BELOW ' + str(_ENOUGH)}"
        )


def measure(folder: Path, options: argparse.Namespace) -> None:
    """Write the panel, print rates, then peak memory."""
    panel_file = write_panel(folder, options.windows, options.rows, options.vocab)
    panel = parse_panel_file(panel_file.read_bytes(), where=str(panel_file))
    for dtype in TYPES:
        for side, noise in zip(SIDES, (0.0, 0.1), strict=True):
            write_rows(folder / dtype / side, panel, dtype, random_blocks(panel.vocab, dtype, noise))
    print(
        f"{panel.rows:,} rows of {panel.vocab:,} ids in {options.windows} windows, {options.turns} turns, {options.jobs} threads"
    )
    print(f"files in {folder}; {'compiled' if fast_rows.compiled() else 'numpy'} sums", flush=True)
    measure_rates(folder, panel, options.jobs, options.turns)
    for number, dtype in enumerate(TYPES):
        _print_peak(f"{dtype}, this panel", peak_mib(panel_file, folder / dtype, options.jobs, folder / f"out{number}"))
    large = folder / "large"
    large.mkdir()
    panel_file = write_panel(large, options.large_windows, options.large_rows, options.vocab)
    panel = parse_panel_file(panel_file.read_bytes(), where=str(panel_file))
    for side in SIDES:
        write_rows(large / side, panel, "F32", None)
    size = sum(path.stat().st_size for path in files_in(*(large / side for side in SIDES))) / (1 << 30)
    _print_peak(f"F32, sparse, {size:.1f} GiB", peak_mib(panel_file, large, options.jobs, large / "out"))


def _print_peak(label: str, mib: float) -> None:
    print(
        f"peak memory of the command, {label:24}{mib:6.0f} MiB{'' if mib < _MOST_MIB else '  ABOVE ' + str(_MOST_MIB)}",
        flush=True,
    )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_score.py --windows 4 --rows 256 --folder /mnt/disk"
    )
    parser.add_argument("--windows", type=int, default=4, help="Windows of the panel (4).")
    parser.add_argument("--rows", type=int, default=256, help="Rows of a window (256).")
    parser.add_argument("--vocab", type=int, default=154_880, help="Ids of the vocabulary (154,880).")
    parser.add_argument("--large-windows", type=int, default=4, help="Windows of the sparse panel (4).")
    parser.add_argument("--large-rows", type=int, default=2047, help="Rows of a window of the sparse panel (2,047).")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Threads (all cores).")
    parser.add_argument("--turns", type=int, default=5, help="How often each type is read and scored (5).")
    parser.add_argument(
        "--folder", type=Path, help="Where the files are written for a while (the system's temporary folder)."
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-score-", dir=arguments.folder) as folder:
        measure(Path(folder), arguments)


if __name__ == "__main__":
    main()
