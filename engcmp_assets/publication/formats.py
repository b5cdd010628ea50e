"""Figures, intervals, floors and reasons as text: the one way in which the pages and the terminal write them.

Every number goes through `format_number` (four significant digits) or is a count; what is not there is its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_resources.errors import EngcmpError

FLOORS = (("within_launch", "within a launch"), ("across_launches", "across launches"))
"""The two kinds of floor: the key in SUMMARY.json, and how a reader is told."""


def format_measured(value: Any, interval: Any = None) -> str:
    """A figure as text: `0.3580 [0.3412, 0.3751]`, or `not measured: reason`.

    `value` is a number, {"missing": reason} or None; `interval` is {"low", "high", ...}, {"missing": reason} or None.
    """
    found = number(value)
    if found is None:
        return f"not measured: {reason(value)}"
    between = format_interval(interval)
    if between:
        return f"{format_number(found)} {between}"
    if isinstance(interval, Mapping):
        return f"{format_number(found)} (no interval: {reason(interval)})"
    return format_number(found)


def format_interval(interval: Any) -> str:
    """`[low, high]`, or nothing where there is no interval."""
    if not isinstance(interval, Mapping) or "low" not in interval:
        return ""
    return f"[{format_number(interval['low'])}, {format_number(interval['high'])}]"


def format_any(value: Any) -> str:
    """Whatever a comparison says of its sensitivity, as text: numbers, counts, ranges, reasons, names."""
    if value is None or (isinstance(value, Mapping) and "missing" in value):
        return f"not measured: {reason(value)}"
    if isinstance(value, Mapping):
        parts = (f"{str(key).replace('_', ' ')} {format_any(item)}" for key, item in value.items())
        return format_interval(value) or ", ".join(parts)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(format_any(item) for item in value)}]"
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_percent(level: float) -> str:
    """A level as `95 %` or `99.74 %`."""
    return f"{level * 100:.4g} %"


def format_count(value: Any) -> str:
    """A count with thousands separated; anything else as `format_any` writes it."""
    return f"{value:,}" if isinstance(value, int) else format_any(value)


def counted(count: int, noun: str) -> str:
    """`1 document`, `12 documents`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def not_measured(part: Mapping[str, Any]) -> str:
    """The state of an arm or a pair that has no figures, with its reason: `not measured: the engine died`."""
    state, reason_given = part["state"], part.get("reason") or "no reason recorded"
    return str(reason_given) if reason_given.startswith(state) else f"{state}: {reason_given}"


def arm_remarks(arm: Mapping[str, Any]) -> list[str]:
    """What of a measured arm is not there because it is not asked for, and what is there and is no primary result."""
    lacking = [f"no {word}: {reason(why)}" for word, why in arm.get("not_asked", {}).items()]
    return [*lacking, *(f"{word} {why}" for word, why in arm.get("before_freeze", {}).items())]


def arm_words(arm: Mapping[str, Any]) -> dict[str, str | None]:
    """The state of an arm with its remarks, and what stands in its line where there are no path, windows and runs to stand there."""
    words = "; ".join([arm["state"], *arm_remarks(arm)])
    absent = not_measured(arm) if arm["state"] != "measured" else None
    return {"reason_text": absent or (None if "score_path" in arm else words), "state_text": words}


def number(value: Any) -> float | None:
    """The value as a float; None where it is a reason. Raises EngcmpError for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value is None or (isinstance(value, Mapping) and "missing" in value):
        return None
    raise EngcmpError(f"{value!r} is neither a number nor a reason", where="SUMMARY.json", remedy="publish again")


def reason(value: Any) -> str:
    """Why a value is missing."""
    found = value.get("missing") if isinstance(value, Mapping) else None
    return str(found or "no reason recorded")


def value_parts(value: Any, interval: Any) -> dict[str, Any]:
    """What `format_measured` writes, whole and in parts, so that a page can break the line between them."""
    found = number(value)
    between = format_interval(interval)
    return {
        "text": format_measured(value, interval),
        "value": None if found is None else format_number(found),
        "interval": between,
        "no_interval": "" if between or interval is None else f"no interval: {reason(interval)}",
    }


def floor_view(floor: Any) -> dict[str, Any] | None:
    """The floor within a launch and across launches; None where the figure declares no floor at all.

    `short` is `0 / 0` where both are a bare number; `parts` has each with its label, in full.
    """
    if not isinstance(floor, Mapping):
        return None
    found = [(label, floor if "missing" in floor else floor.get(key)) for key, label in FLOORS]
    parts = [{"label": label, "text": _floor_text(part)} for label, part in found]
    bare = all(" " not in part["text"] for part in parts)
    return {"parts": parts, "short": " / ".join(part["text"] for part in parts) if bare else None}


def _floor_text(part: Any) -> str:
    """A floor that is exactly 0 with no spread at all is `0`; why one has no interval is said where its panel is explained."""
    if not isinstance(part, Mapping) or "value" not in part:
        return format_measured(part)
    interval = part.get("interval")
    ends = [interval.get("low"), interval.get("high")] if isinstance(interval, Mapping) else []
    exact = number(part["value"]) == 0 and ends == [0, 0]
    return format_measured(part["value"], interval if format_interval(interval) and not exact else None)
