"""Sums that round once, for many groups at a time: what `math.fsum` gives for each group, without a Python number for each value."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_BITS = 53  # of a float64's whole number
_HALF = 27  # bits of its lower half: sums of halves are exact in float64 up to 2^26 values
_MOST = 1 << 25  # values at once
_FEW = 1 << 16  # cells of a table that may be mostly empty
_LEAST = -1126  # a float64 is a whole number times 2 to a power from here on


def exact_sums(values: npt.ArrayLike, groups: Int64, count: int) -> Float64:
    """The sum of `values` [n], all finite, by their group `groups` [n] (0 to count - 1), float64 [count].

    Each is the exact sum rounded once, to even, so that the order of the values cannot change it; inf where it is too large for a float64.
    """
    array = np.asarray(values, dtype=np.float64)
    totals = [0] * count
    for start in range(0, len(array), _MOST):
        _add(totals, array[start : start + _MOST], groups[start : start + _MOST])
    # A quotient of whole numbers rounds once; its dividend is the exact sum.
    return np.array([_rounded(total) for total in totals], dtype=np.float64)


def exact_sum(values: npt.ArrayLike) -> float:
    """The sum of finite `values` [n], rounded once; 0 of none."""
    array = np.asarray(values, dtype=np.float64)
    return float(exact_sums(array, np.zeros(len(array), dtype=np.int64), 1)[0])


def numbered(names: npt.ArrayLike) -> tuple[tuple[str, ...], Int64]:
    """The different `names` [n] in their order, and the place of each row's name among them, [n].

    Rows of one name stand side by side as a rule, so only the first of each run is looked up.
    """
    column: npt.NDArray[Any] = np.asarray(names, dtype=np.str_)
    starts = np.concatenate([np.ones(min(1, len(column)), dtype=np.bool_), column[1:] != column[:-1]])
    ids, places = np.unique(column[starts], return_inverse=True)
    numbers: Int64 = places.astype(np.int64)[np.cumsum(starts) - 1]
    return tuple(ids.tolist()), numbers


def _add(totals: list[int], values: Float64, groups: Int64) -> None:
    """Add each value, times 2^-_LEAST, to its group's total: groups and powers of two are few, so few whole numbers are added."""
    fractions, exponents = np.frexp(values)
    whole = np.ldexp(fractions, _BITS).astype(np.int64)
    first = int(exponents.min())
    width = int(exponents.max()) - first + 1
    cells = groups * width + (exponents - first)
    if len(totals) * width > max(_FEW, len(values)):  # most of them are empty
        used, cells = np.unique(cells, return_inverse=True)
    else:
        used = np.arange(len(totals) * width)
    high, low = (
        np.bincount(cells, weights=half, minlength=len(used)).astype(np.int64)
        for half in (whole >> _HALF, whole & ((1 << _HALF) - 1))
    )
    for place in np.flatnonzero((high != 0) | (low != 0)).tolist():
        group, power = divmod(int(used[place]), width)
        totals[group] += ((int(high[place]) << _HALF) + int(low[place])) << (first + power - _BITS - _LEAST)


def _rounded(total: int) -> float:
    try:
        return total / (1 << -_LEAST)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")
