"""The sums over the vocabulary from which every full-row measure follows, for many rows at the speed of the processor.

Two ways give them: a loop that is compiled for the processor (row_loop), and numpy in blocks that stay in the cache, for machines that
cannot compile. They are the same sums in another order of additions: they agree to 1e-13 relative, and each is exact about ties and zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel import row_loop
from engcmp_resources.errors import EngcmpError

Rows = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_CHUNK_VALUES = 1 << 20  # values of each side that are widened at once: 4 MiB
_TURNS = 2  # of a thread: each costs a tenth of a millisecond
_LEAST_VALUES = 1 << 19  # of a turn: half a millisecond
_CACHED_VALUES = 1 << 15  # of the numpy way: five float64 temporaries of 256 KiB
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

    Floats of 16, 32 and 64 bits, and uint16 as the bits of bfloat16, are read where they lie, memory-mapped files included, where a
    loop reads them; others, and sides of two dtypes, are widened some rows at a time. Raises EngcmpError for fewer than one thread.
    """
    if jobs < 1:
        raise EngcmpError(f"rows cannot be scored on {jobs} threads", remedy="give 1 or more")
    # Turns for each thread, so that none waits long for one that is held up; none so short that calling costs more than adding up.
    step = len(p) if jobs == 1 else max(-(-len(p) // (_TURNS * jobs)), -(-_LEAST_VALUES // p.shape[1]))
    in_place = _in_place(p, q)
    if not in_place:
        step = min(step, max(1, _CHUNK_VALUES // p.shape[1]))
    chunks = [slice(start, start + step) for start in range(0, len(p), step)]
    add_up = _compiled_sums if compiled() else _numpy_sums

    def summed(chunk: slice) -> RowSums:
        sides = p[chunk], q[chunk]
        return _chunk_sums(*(sides if in_place else _widened(*sides)), add_up)

    if jobs == 1:
        parts = [summed(chunk) for chunk in chunks]
    else:
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            parts = list(pool.map(summed, chunks))
    return RowSums(*(np.concatenate([getattr(part, name) for part in parts]) for name in RowSums.__dataclass_fields__))


def widened(rows: Rows) -> npt.NDArray[np.floating[Any]]:
    """Rows as float32 or float64, without a change of any value: float16 and bfloat16 (the bits, as uint16) become float32."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return rows.astype(np.float32 if rows.dtype.itemsize <= np.float32().itemsize else np.float64, copy=False)


def _widened(p: Rows, q: Rows) -> tuple[Rows, Rows]:
    """Both sides in one dtype, each row's values side by side."""
    one, other = widened(p), widened(q)
    shared = np.result_type(one, other)
    one, other = (side.astype(shared, copy=False) for side in (one, other))
    return _packed(one), _packed(other)


def _packed(rows: Rows) -> Rows:
    return rows if _side_by_side(rows) else np.ascontiguousarray(rows)


def _side_by_side(rows: Rows) -> bool:
    return rows.strides[1] == rows.itemsize and rows.strides[0] % rows.itemsize == 0


def _in_place(p: Rows, q: Rows) -> bool:
    """Whether the rows can be read where they lie."""
    read = row_loop.compiled() if compiled() else ("float32", "float64")
    readable = p.dtype == q.dtype and p.dtype.isnative and p.dtype.name in read
    return readable and _side_by_side(p) and _side_by_side(q)


def _chunk_sums(p: Rows, q: Rows, add_up: Callable[[Rows, Rows], tuple[Int64, Int64, Float64, Float64]]) -> RowSums:
    with np.errstate(invalid="ignore", over="ignore"):  # rows with bad values make NaN, which the caller finds
        p_top, q_top, sums, q_lowest = add_up(p, q)
        p_max, q_max = _at(p, p_top), _at(q, q_top)
        far = np.flatnonzero(q_lowest - q_max < _FAR)
        sums[far, 4] = [
            _far_cross(widened(p[row]) - p_max[row], widened(q[row]) - q_max[row], sums[row, 4]) for row in far
        ]
    sums[np.abs(sums) < _NOTHING] = 0.0
    sums[~(np.isfinite(p_max) & np.isfinite(q_max))] = np.nan
    return RowSums(p_max, q_max, p_top, q_top, *np.ascontiguousarray(sums.T))


def _at(rows: Rows, ids: Int64) -> Float64:
    return widened(rows[np.arange(len(rows)), ids]).astype(np.float64)


def _far_cross(x: Float64, y: Float64, cross: float) -> float:
    """`cross` of a row of q with values that both ways take for -700: it matters only where p is not 0."""
    if (np.isneginf(y) & (x > -np.inf)).any():
        return float(np.inf)
    wrong = (y < _FAR) & (x > _ZERO)
    near = np.maximum(x[wrong], _FAR)
    return float(cross + (np.exp(x[wrong]) * (x[wrong] - y[wrong]) - np.exp(near) * (near - _FAR)).sum())


def _compiled_sums(p: Rows, q: Rows) -> tuple[Int64, Int64, Float64, Float64]:
    """Ids of the maxima of p and q, the five sums [k, 5], and the lowest values of q."""
    vocab = p.shape[1]
    whole = vocab - vocab % row_loop.GRAIN
    ends = [widened(side[:, whole:]) for side in (p, q)]
    found, places = _run(p, q, ends)
    for row, number in np.argwhere(places < 0):
        places[row, number] = widened((p, q)[number][row]).argmax()
    sums, q_lowest = found[:, :5] / row_loop.SCALE, found[:, 8]
    if whole < vocab:
        rest, rest_lowest = _added(ends[0], ends[1], found[:, 5], found[:, 6])
        sums, q_lowest = sums + rest, np.fmin(q_lowest, rest_lowest)
    return places[:, 0], places[:, 1], sums, q_lowest


def _run(p: Rows, q: Rows, ends: list[Rows]) -> tuple[Float64, Int64]:
    """What the loop says of all of each row but its end: [k, 9], and the places [k, 2] of the maxima; -1 is the end."""
    out, places = np.empty((len(p), len(row_loop.OUTPUTS))), np.full((len(p), 2), -1, dtype=np.int64)
    lowest = np.finfo(ends[0].dtype).min
    for side, end in enumerate(ends):
        out[:, 5 + side] = np.fmax.reduce(end, axis=1, initial=lowest)
    strides = [side.strides[0] // side.itemsize for side in (p, q)]
    whole = p.shape[1] - ends[0].shape[1]

    def run(rows: slice, *, far: bool) -> None:
        row_loop.compiled()[row_loop.FAR * far + p.dtype.name](
            row_loop.address(p[rows]),
            row_loop.address(q[rows]),
            whole,
            len(p[rows]),
            *strides,
            row_loop.address(out[rows]),
            row_loop.address(places[rows]),
        )

    begin = out.copy()
    # Rows of one capture are alike: where the first one has values far below its highest, all are taken to have some.
    run(slice(0, 1), far=False)
    far = bool(_far(out[:1])[0])
    run(slice(1, None), far=far)
    for row in np.flatnonzero(_far(out)).tolist() if not far else [0]:
        out[row], places[row] = begin[row], -1
        run(slice(row, row + 1), far=True)
    return out, places


def _far(out: Float64) -> npt.NDArray[np.bool_]:
    """Which rows have values so far below their highest that their sums need the loop for these."""
    return np.asarray((out[:, 7:9] - out[:, 5:7] < _FAR).any(axis=1))


def _numpy_sums(p: Rows, q: Rows) -> tuple[Int64, Int64, Float64, Float64]:
    # Of equals the lower id comes first, and NaN counts as the largest.
    p_top, q_top = (side.argmax(axis=1).astype(np.int64) for side in (p, q))
    return p_top, q_top, *_added(p, q, _at(p, p_top), _at(q, q_top))


def _added(p: Rows, q: Rows, p_max: Float64, q_max: Float64) -> tuple[Float64, Float64]:
    """The five sums [k, 5] and the lowest values of q, by numpy."""
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
    return all(_agree(name) for name in row_loop.compiled() if not name.startswith(row_loop.FAR))


def _agree(dtype: str) -> bool:
    ids = np.arange(3 * 1031, dtype=np.float64).reshape(3, -1)
    p, q = (((ids * step) % 1009 / 32).astype(np.float32) for step in (7919, 104729))
    p[1, 7], q[1, 7], q[2, 8] = -np.inf, -np.inf, -6e4  # the first row has nothing far below its highest
    p, q = (_upper_halves(side) if dtype == "uint16" else side.astype(dtype) for side in (p, q))
    one, other = _compiled_sums(p, q), _numpy_sums(widened(p), widened(q))
    exact = all(np.array_equal(one[place], other[place]) for place in (0, 1, 3))
    return bool(exact and np.allclose(one[2], other[2], rtol=_AGREEMENT, atol=0))


def _upper_halves(rows: Rows) -> Rows:
    """The bits of bfloat16, as uint16, of float32 rows rounded towards 0."""
    return (rows.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
