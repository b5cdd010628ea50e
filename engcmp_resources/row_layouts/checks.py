"""What the rows of any layout must be, row by row: each error names the window, the file and the first row at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.row_layouts.places import fault

_ROUNDING = 1e-3  # a log-probability above 0 by more than this is none


def refuse_doubled(positions: npt.NDArray[np.int64], window_id: str, path: Path) -> None:
    """Raise EngcmpError for no positions at all, and naming the first one that is below 0 or stands twice."""
    if not len(positions):
        raise fault(window_id, "it holds no rows", path)
    below = np.flatnonzero(positions < 0)
    if len(below):
        raise fault(window_id, f"row {below[0]} of the file is at position {positions[below[0]]}", path)
    found, counts = np.unique(positions, return_counts=True)
    if counts.max() > 1:
        raise fault(window_id, f"position {found[counts > 1][0]} stands twice", path)


def refuse_first(window_id: str, path: Path, positions: npt.NDArray[np.int64], bad: Any, what: str) -> None:
    """Raise EngcmpError naming the first row where `bad`, bool [n], holds."""
    if bad.any():
        raise fault(window_id, f"the row at position {positions[bad.argmax()]} {what}", path)


def no_logarithm(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
    """Which values are no logarithm of a probability: NaN, and those above 0 by more than rounding. -inf is one."""
    return ~(values <= _ROUNDING)


def refuse_no_logarithm(
    window_id: str, path: Path, positions: npt.NDArray[np.int64], values: npt.NDArray[np.floating[Any]], name: str
) -> None:
    """Raise EngcmpError naming the first row of `values` [n] or [n, K] with one that is no logarithm of a probability, and that value."""
    bad = no_logarithm(values)
    if bad.any():
        value = float(values[bad][0])
        what = "NaN" if np.isnan(value) else f"{value:g}, above 0,"
        rows = bad.reshape(len(positions), -1).any(axis=1)
        refuse_first(window_id, path, positions, rows, f"has {what} in {name}: no log-probability")


def refuse_no_distribution(
    window_id: str,
    path: Path,
    positions: npt.NDArray[np.int64],
    ids: npt.NDArray[np.integer[Any]],
    log_probs: npt.NDArray[np.floating[Any]],
) -> None:
    """Raise EngcmpError naming the first row of `ids` and `log_probs` [n, K] that lists an id twice or no falling log-probabilities."""
    refuse_no_logarithm(window_id, path, positions, log_probs, "top_log_probs")
    rising = (log_probs[:, 1:] > log_probs[:, :-1]).any(axis=1)
    refuse_first(window_id, path, positions, rising, "is not in falling probability")
    ordered = np.sort(ids, axis=1)
    refuse_first(window_id, path, positions, (ordered[:, 1:] == ordered[:, :-1]).any(axis=1), "lists an id twice")
