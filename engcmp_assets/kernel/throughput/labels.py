"""What the name of a speed cell promises and its measurement does not hold, in words beside the ratio (MEASURES section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALIKE = 0.05  # text and updates differ in kind where their figures lie further apart than this share
_SAME_LENGTH = 0.01  # replies of a planned length differ by no more than this share

Cell = Mapping[str, Any]


def pair_labels(candidate: Cell, baseline: Cell, names: tuple[str, str]) -> tuple[str, ...]:
    """Labels of a cell that both arms have completed: its own flags on each arm, and where the two did not do the same work."""
    labels = []
    for name, cell in zip(names, (candidate, baseline), strict=True):
        labels += [f"{name}: {word}" for word in (*cell.get("labels", ()), *cell.get("flags", ()))]
    lengths = [cell["n_tokens"] for cell in (candidate, baseline)]
    if _apart(*lengths) > _SAME_LENGTH:
        labels.append(
            f"the replies hold {lengths[0]:,} tokens on {names[0]} and {lengths[1]:,} on {names[1]}: not the same work"
        )
    if candidate["finish_reasons"] != baseline["finish_reasons"]:
        ends = (f"{name}: {_reasons(cell)}" for name, cell in zip(names, (candidate, baseline), strict=True))
        labels.append(f"replies ended differently ({'; '.join(ends)})")
    for measure_id, words in (
        ("chars_per_token", "characters a token"),
        ("tokens_per_update", "tokens an update, so first token times and gaps are not of the same thing"),
    ):
        values = [cell["figures"].get(measure_id, {}).get("value") for cell in (candidate, baseline)]
        if None not in values and _apart(*values) > _ALIKE:
            labels.append(f"{values[0]:.3g} against {values[1]:.3g} {words}")
    return tuple(labels)


def _apart(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return high / low - 1 if low > 0 else float(high > 0)


def _reasons(cell: Cell) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in cell["finish_reasons"].items())
