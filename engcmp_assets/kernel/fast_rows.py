"""The sums over the vocabulary from which every full-row measure follows, for many rows at the speed of the processor.

Two ways give them: a loop that is compiled for the processor (row_loop), and numpy in blocks that stay in the cache, for machines that
cannot compile. They are the same sums in another order of additions: they agree to 1e-13 relative, and each is exact about ties and zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel import row_loop

Rows = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# Values of each side that one turn takes: a widened side is 4 MiB, and 6 rows of 155,000 share the calls from Python.
_CHUNK_VALUES = 1 << 20
_CACHED_VALUES = 1 << 14  # of the numpy way: five float64 temporaries of 128 KiB
_FAR = -700.0  # below its row's maximum: exp is 1e-304
_ZERO = -746.0  # exp of this and of all below is 0.0 in float64
_NOTHING = 1e-250  # no sum of float32 or float64 differences is as small: it is made of values that stand for 0
_AGREEMENT = 1e-13  # relative: both ways on the rows of the self-test


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums over the vocabulary of rows p and q, arrays [k]; x = raw value - the row's maximum, and exp(-inf) x = 0.

    `p_sum` of exp(x), `p_moment` of exp(x) x, the same for q, and `cross` of exp(x_p) (x_p - x_q): exactly 0 for equal rows, +inf where
    q = 0 at an id where p > 0. `p_top` and `q_top` are the ids of the maxima, the lower one of equals. A row with NaN, +inf or only -inf
    has NaN in its sums.
    """

    p_max: Float64
    q_max: Float64
    p_top: Int64
    q_top: Int64
    p_sum: Float64
    p_moment: Float64
    q_sum: Float64
    q_moment: Float64
    cross: Float64


def row_sums(p: Rows, q: Rows, *, jobs: int = 1) -> RowSums:
    """The sums of k > 0 rows [k, V] of each side, on `jobs` threads; the same bits for any number of them.

    float32 and float64 are read where they lie, memory-mapped files included; other floats, and uint16 as the bits of bfloat16, are
    widened some rows at a time.
    """
    step = max(1, _CHUNK_VALUES // p.shape[1])
    chunks = [slice(start, start + step) for start in range(0, len(p), step)]
    if jobs == 1:
        parts = [_chunk_sums(*_widened(p[chunk], q[chunk])) for chunk in chunks]
    else:
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            parts = list(pool.map(lambda chunk: _chunk_sums(*_widened(p[chunk], q[chunk])), chunks))
    return RowSums(*(np.concatenate([getattr(part, name) for part in parts]) for name in RowSums.__dataclass_fields__))


def widened(rows: Rows) -> npt.NDArray[np.floating[Any]]:
    """Rows as float32 or float64, without a change of any value: float16 and bfloat16 (the bits, as uint16) become float32."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return rows.astype(np.float32 if rows.dtype.itemsize <= np.float32().itemsize else np.float64, copy=False)


def _widened(p: Rows, q: Rows) -> tuple[Rows, Rows]:
    sides = [widened(side) for side in (p, q)]
    shared = np.result_type(*sides)
    one, other = (np.asarray(side, dtype=shared) for side in sides)
    inner = shared.itemsize
    return tuple(side if side.strides[1] == inner else np.ascontiguousarray(side) for side in (one, other))  # type: ignore[return-value]


def _chunk_sums(p: Rows, q: Rows) -> RowSums:
    # Of equals the lower id comes first, and NaN counts as the largest, so that it cannot hide.
    p_top, q_top = p.argmax(axis=1), q.argmax(axis=1)
    p_max, q_max = (
        np.take_along_axis(side, top[:, None], axis=1)[:, 0].astype(np.float64)
        for side, top in ((p, p_top), (q, q_top))
    )
    add_up = _compiled_sums if compiled() else _numpy_sums
    with np.errstate(invalid="ignore", over="ignore"):  # rows with bad values make NaN, which the caller finds
        sums, q_lowest = add_up(p, q, p_max, q_max)
        far = np.flatnonzero(q_lowest - q_max < _FAR)
        sums[far, 4] = [_far_cross(p[row] - p_max[row], q[row] - q_max[row], sums[row, 4]) for row in far]
    sums[np.abs(sums) < _NOTHING] = 0.0
    sums[~(np.isfinite(p_max) & np.isfinite(q_max))] = np.nan
    return RowSums(p_max, q_max, p_top.astype(np.int64), q_top.astype(np.int64), *np.ascontiguousarray(sums.T))


def _far_cross(x: Float64, y: Float64, cross: float) -> float:
    """`cross` of a row of q with values that both ways take for -700: it matters only where p is not 0."""
    if (np.isneginf(y) & (x > -np.inf)).any():
        return float(np.inf)
    wrong = (y < _FAR) & (x > _ZERO)
    near = np.maximum(x[wrong], _FAR)
    return float(cross + (np.exp(x[wrong]) * (x[wrong] - y[wrong]) - np.exp(near) * (near - _FAR)).sum())


def _compiled_sums(p: Rows, q: Rows, p_max: Float64, q_max: Float64) -> tuple[Float64, Float64]:
    loops = row_loop.compiled()
    name = str(p.dtype)
    first = loops.get((name, "plain"), loops[(name, "any")])
    found = _run(first, p, q, p_max, q_max)
    if first is not loops[(name, "any")]:
        far = np.flatnonzero(~(np.minimum(found[:, 5] - p_max, found[:, 6] - q_max) >= _FAR))
        for row in far:
            one = slice(row, row + 1)
            found[one] = _run(loops[(name, "any")], p[one], q[one], p_max[one], q_max[one])
    whole = p.shape[1] - p.shape[1] % first.lanes
    if whole < p.shape[1]:
        rest = _run(loops[(name, "rest")], p[:, whole:], q[:, whole:], p_max, q_max)
        found[:, :5] += rest[:, :5]
        found[:, 6] = np.minimum(found[:, 6], rest[:, 6])
    return found[:, :5] / row_loop.SCALE, found[:, 6]


def _run(loop: row_loop.RowLoop, p: Rows, q: Rows, p_max: Float64, q_max: Float64) -> Float64:
    """The loop's sums over the first whole multiple of its lanes of each row, [k, 7]."""
    out = row_loop.outputs(len(p))
    strides = [side.strides[0] // side.itemsize for side in (p, q)]
    places = [row_loop.address(one) for one in (p_max, q_max, out)]
    count = p.shape[1] - p.shape[1] % loop.lanes
    loop.run(row_loop.address(p), row_loop.address(q), count, len(p), *strides, *places)
    return out


def _numpy_sums(p: Rows, q: Rows, p_max: Float64, q_max: Float64) -> tuple[Float64, Float64]:
    sums, q_lowest = np.zeros((len(p), 5)), np.full(len(p), np.inf)
    for rows, ids in _cached(*p.shape):
        y = q[rows, ids].astype(np.float64, order="C")
        q_lowest[rows] = np.fmin(q_lowest[rows], y.min(axis=1))
        y -= q_max[rows, None]
        x = p[rows, ids].astype(np.float64, order="C")
        x -= p_max[rows, None]
        weights = np.exp(np.maximum(x, _FAR, out=x))
        sums[rows, 0] += weights.sum(axis=1)
        sums[rows, 1] += (weights * x).sum(axis=1)
        x -= np.maximum(y, _FAR, out=y)
        sums[rows, 4] += np.multiply(weights, x, out=x).sum(axis=1)
        np.exp(y, out=weights)
        sums[rows, 2] += weights.sum(axis=1)
        sums[rows, 3] += np.multiply(weights, y, out=y).sum(axis=1)
    return sums, q_lowest


def _cached(rows: int, vocab: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of some rows and some ids: a row is cut and added up the same way, whatever rows stand beside it."""
    ids = min(vocab, _CACHED_VALUES)
    count = max(1, _CACHED_VALUES // ids)
    for start in range(0, rows, count):
        for first in range(0, vocab, ids):
            yield slice(start, start + count), slice(first, first + ids)


@functools.cache
def compiled() -> bool:
    """Whether the compiled loop is in use: llvmlite works here, and on test rows the loop gives what numpy gives."""
    try:
        row_loop.compiled()
    except (ImportError, OSError, RuntimeError, AttributeError):
        return False
    return all(_agree(dtype) for dtype in (np.float32, np.float64))


def _agree(dtype: type[np.floating[Any]]) -> bool:
    ids = np.arange(2 * 1031, dtype=np.float64).reshape(2, -1)
    p, q = (((ids * step) % 1009 / 32).astype(dtype) for step in (7919, 104729))
    p[0, 7], q[0, 7], q[1, 8] = -np.inf, -np.inf, -1e30
    tops = [side.max(axis=1).astype(np.float64) for side in (p, q)]
    one, other = (add_up(p, q, *tops) for add_up in (_compiled_sums, _numpy_sums))
    return bool(np.allclose(one[0], other[0], rtol=_AGREEMENT, atol=0) and np.array_equal(one[1], other[1]))
