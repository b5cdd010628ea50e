"""Agreement of runs, bit for bit, and the values that no captured row may hold."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError

Key = TypeVar("Key", bound=Hashable)


def identical_share(first: Mapping[Key, str], second: Mapping[Key, str]) -> float:
    """Share of rows whose raw hashes are equal in both runs (measure rows_bit_identical).

    Raises EngcmpError where the runs do not hold the same rows, or none.
    """
    if set(first) != set(second) or not first:
        raise EngcmpError("two runs hold different rows", remedy="capture the arm again")
    return sum(first[key] == second[key] for key in first) / len(first)


def refuse_bad_values(
    logits: npt.NDArray[np.float32], *, window_id: str, positions: tuple[int, ...], where: str
) -> None:
    """Raise EngcmpError naming window and rows for NaN, +inf, or a row without any finite value; -inf is legal (probability 0)."""
    bad = np.isnan(logits).any(axis=1) | np.isposinf(logits).any(axis=1) | ~np.isfinite(logits).any(axis=1)
    if bad.any():
        rows = [positions[index] for index in np.flatnonzero(bad)]
        raise EngcmpError(
            f"window {window_id}: {len(rows)} of {len(positions)} rows hold NaN or +infinity, first at row {rows[0]}",
            where=where,
            remedy="the engine is at fault: nothing of this window was kept",
        )


def first_difference(one: Mapping[Key, str], other: Mapping[Key, str]) -> Key | None:
    """The first row, in the order of `one`, whose hash the other run lacks or has otherwise; None where all agree."""
    return next((key for key, digest in one.items() if other.get(key) != digest), None)
