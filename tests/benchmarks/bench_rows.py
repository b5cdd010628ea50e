"""Full-vocabulary scoring: milliseconds a row of the plain float64 way with scipy's log_softmax, and of the ways of fast_rows.

All measures of score_rows are computed from float32 rows by each way, in turn in one process; ratios are medians of each turn's ratios.
The rows are those of one window of a real panel. Freed memory stays with the process: asking the system for the arrays again makes
scipy's way four times slower, which is the allocator's speed and not scipy's. Wanted: 7 times scipy's rows on one thread, 13 on two, on the
whole window and row by row, where its arrays stay in the cache.

Before that, the first call in a process of its own: with nothing kept of an earlier one, and with its compiled code.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from unittest import mock

import numpy as np
import numpy.typing as npt
from scipy import special

from engcmp_assets.kernel import fast_rows
from engcmp_assets.kernel.row_measures import score_rows

Rows = npt.NDArray[np.float32]
Scored = Mapping[str, npt.NDArray[np.float64]]
_MEASURES = (
    "kl_full",
    "nll",
    "entropy",
    "excess_entropy",
    "reference_nll",
    "reference_entropy",
    "top1",
    "top3_contained",
)
_CHECKED = 4  # rows that are computed once more in longer floats
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt's names, from malloc.h
_WHOLE, _EACH = "scipy, whole window", "scipy, row by row"


def plain(reference: Rows, engine: Rows, tokens: npt.NDArray[np.int64]) -> Scored:
    """The measures as one writes them down: every step of it a float64 array of all rows."""
    p_raw, q_raw = reference.astype(np.float64), engine.astype(np.float64)
    log_p, log_q = special.log_softmax(p_raw, axis=1), special.log_softmax(q_raw, axis=1)
    p, q, rows = np.exp(log_p), np.exp(log_q), np.arange(len(tokens))
    p_top, q_top = p_raw.argmax(axis=1), q_raw.argmax(axis=1)
    entropy, reference_entropy = -(q * log_q).sum(axis=1), -(p * log_p).sum(axis=1)  # finite rows: no 0 log 0 here
    return {
        "kl_full": (p * (log_p - log_q)).sum(axis=1),
        "nll": -log_q[rows, tokens],
        "entropy": entropy,
        "excess_entropy": entropy - reference_entropy,
        "reference_nll": -log_p[rows, tokens],
        "reference_entropy": reference_entropy,
        "top1": (p_top == q_top).astype(np.float64),
        "top3_contained": ((p_raw > p_raw[rows, q_top][:, None]).sum(axis=1) < 3).astype(np.float64),
    }


def plain_by_row(reference: Rows, engine: Rows, tokens: npt.NDArray[np.int64]) -> Scored:
    """The same, one row after the other, so that more of it stays in the cache."""
    each = [plain(reference[row : row + 1], engine[row : row + 1], tokens[row : row + 1]) for row in range(len(tokens))]
    return {name: np.concatenate([one[name] for one in each]) for name in _MEASURES}


def ours(jobs: int, *, compiled: bool) -> Callable[..., Scored]:
    """score_rows on `jobs` threads, compiled or by numpy."""

    def score(reference: Rows, engine: Rows, tokens: npt.NDArray[np.int64]) -> Scored:
        with mock.patch.object(fast_rows, "compiled", lambda: compiled):
            scores = score_rows(reference, engine, tokens, where="benchmark", jobs=jobs)
        return {name: getattr(scores, name) for name in _MEASURES}

    return score


def measure(rows: int, vocab: int, jobs: int, turns: int) -> None:
    """Time every way `turns` times on the same rows and print a line for each."""
    chance = np.random.default_rng(20260929)
    reference = chance.normal(0, 3, (rows, vocab)).astype(np.float32)
    engine = reference + chance.normal(0, 0.1, reference.shape).astype(np.float32)
    tokens = chance.integers(0, vocab, rows)
    works = fast_rows.compiled()
    print(first_calls(turns) if works else "this machine cannot compile", flush=True)
    ways: dict[str, Callable[..., Scored]] = {
        _WHOLE: plain,
        _EACH: plain_by_row,
        "numpy, 1 thread": ours(1, compiled=False),
    }
    for threads in sorted({1, jobs}) if works else ():
        ways[f"compiled, {threads} thread{'s' * (threads > 1)}"] = ours(threads, compiled=True)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found = {}
    for _ in range(turns):
        for name, way in ways.items():
            started = time.perf_counter()
            found[name] = way(reference, engine, tokens)
            seconds[name].append(time.perf_counter() - started)
    right = exact(reference[:_CHECKED], engine[:_CHECKED], tokens[:_CHECKED])
    print(
        f"{rows} rows of {vocab:,} ids, {turns} turns; error on {_CHECKED} rows as a share of max(1e-12 relative, 1e-14 absolute)"
    )
    print(f"{'way':24}{'ms a row':>10}{'rows/s':>9}{'x whole':>9}{'x by row':>10}{'error':>8}")
    for name, own in seconds.items():
        each = statistics.median(own) / rows
        ratios = [statistics.median(a / b for a, b in zip(seconds[base], own, strict=True)) for base in (_WHOLE, _EACH)]
        print(
            f"{name:24}{each * 1e3:10.3f}{1 / each:9.0f}{ratios[0]:9.1f}{ratios[1]:10.1f}{_error(found[name], right):8.2f}"
        )


_FIRST = """
import time
from engcmp_assets.kernel import fast_rows, row_loop
from engcmp_resources.object_cache import ObjectCache
row_loop.keep_objects(ObjectCache())
started = time.perf_counter()
fast_rows.compiled()
print(time.perf_counter() - started)
"""


def first_calls(turns: int) -> str:
    """The seconds of the first call in a new process, without and with what an earlier process kept: medians, as a line."""
    seconds: dict[str, list[float]] = {"compiled": [], "kept": []}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as cache:
            for own in seconds.values():
                command = [sys.executable, "-c", _FIRST]
                environment = os.environ | {"XDG_CACHE_HOME": cache}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                own.append(float(done.stdout))
    new, kept = (statistics.median(own) for own in seconds.values())
    return (
        f"first call in a process: {new * 1e3:.0f} ms, and {kept * 1e3:.0f} ms with the code that an earlier one kept"
    )


def exact(reference: Rows, engine: Rows, tokens: npt.NDArray[np.int64]) -> Scored:
    """The figures in nats again, in numpy's longest floats (80 bits on x86): what each way's error is held against."""
    sides = []
    for raw in (reference, engine):
        shifted = raw.astype(np.longdouble) - raw.max(axis=1, keepdims=True)
        sides.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    log_p, log_q = sides
    p, q, rows = np.exp(log_p), np.exp(log_q), np.arange(len(tokens))
    entropy, reference_entropy = -(q * log_q).sum(axis=1), -(p * log_p).sum(axis=1)
    return {
        "kl_full": (p * (log_p - log_q)).sum(axis=1),
        "nll": -log_q[rows, tokens],
        "entropy": entropy,
        "excess_entropy": entropy - reference_entropy,
        "reference_nll": -log_p[rows, tokens],
        "reference_entropy": reference_entropy,
    }


def _error(found: Scored, expected: Scored) -> float:
    """The largest difference as a share of the tolerance: 1e-12 relative or 1e-14 absolute, whichever is larger."""
    shares = []
    for name, right in expected.items():
        shares.append(np.abs(found[name][: len(right)] - right) / np.maximum(1e-12 * np.abs(right), 1e-14))
    return float(np.max(shares))


def keep_freed_memory() -> None:
    """Let glibc's malloc give nothing back to the system; elsewhere nothing is changed."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_rows.py --rows 32 --vocab 154880 --jobs 2"
    )
    parser.add_argument("--rows", type=int, default=512, help="Rows of a window (512).")
    parser.add_argument("--vocab", type=int, default=154_880, help="Ids of the vocabulary (154,880).")
    parser.add_argument("--jobs", type=int, default=2, help="Threads of the last way (2).")
    parser.add_argument("--turns", type=int, default=5, help="How often each way is timed (5).")
    arguments = parser.parse_args()
    keep_freed_memory()
    measure(arguments.rows, arguments.vocab, arguments.jobs, arguments.turns)


if __name__ == "__main__":
    main()
