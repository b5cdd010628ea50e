"""The summary's one plot: as PNG for Markdown and the UI, and as geometry in percent for the HTML page.

The page draws the same rows itself, so that they stay sharp, fit a narrow screen, and follow a dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.plots import DotRow, dots_with_intervals, format_tick, needs_log_scale
from engcmp_assets.publication.formats import format_measured, number, reason, value_parts

COLOURS = 6  # classes g0 to g5 of the page
_MARGIN = 0.05  # of the axis, left free on either side
_TICKS = 5


def dot_rows(plot: Mapping[str, Any]) -> list[DotRow]:
    """The plot's rows; one without a value keeps its reason."""
    return [
        DotRow(
            label=row["label"],
            value=number(row["value"]),
            low=number(row.get("low")),
            high=number(row.get("high")),
            group=row.get("group") or "",
            note=reason(row["value"]) if number(row["value"]) is None else "",
        )
        for row in plot["rows"]
    ]


def plot_png(plot: Mapping[str, Any], *, pixel_ratio: int = 1) -> bytes:
    """The distance from the reference for each arm, with its interval, on a log axis where a linear one hides the small."""
    rows = dot_rows(plot)
    log = needs_log_scale(rows)
    return dots_with_intervals(
        plot["title"], rows, unit=plot["unit"], zero_line=not log, log=log, pixel_ratio=pixel_ratio
    )


def plot_text(plot: Mapping[str, Any]) -> str:
    """The plot in words, for those who cannot see it."""
    rows = []
    for row in plot["rows"]:
        ends = {end: row[end] for end in ("low", "high") if row.get(end) is not None}
        rows.append(
            f"{row['label']}: {format_measured(row['value'], ends if 'low' in ends and 'high' in ends else None)}"
        )
    return f"{plot['title']} ({plot['unit']}). {'; '.join(rows)}."


def chart_view(plot: Mapping[str, Any]) -> dict[str, Any]:
    """The plot as geometry: each row's dot and interval, and the ticks, as percent of the axis from its left end."""
    rows = dot_rows(plot)
    log = needs_log_scale(rows)
    numbers = [item for row in rows for item in (row.value, row.low, row.high) if item is not None]
    axis = _Axis(numbers if log else [0.0, *numbers], log=log)
    groups = {name: place for place, name in enumerate(dict.fromkeys(row.group for row in rows))}
    return {
        "title": plot["title"],
        "unit": plot["unit"],
        "log": log,
        "ticks": [{"at": axis.percent(tick), "text": format_tick(tick)} for tick in axis.ticks()] if numbers else [],
        "zero": None if log or not numbers else axis.percent(0.0),
        "rows": [
            {
                **value_parts(*_measured(row)),
                "label": row.label,
                "colour": groups[row.group] % COLOURS,
                "at": None if row.value is None else axis.percent(row.value),
                "from": None if row.low is None else axis.percent(row.low),
                "to": None if row.high is None else axis.percent(row.high),
            }
            for row in rows
        ],
    }


def _measured(row: DotRow) -> tuple[Any, Any]:
    value = {"missing": row.note} if row.value is None else row.value
    return value, None if row.low is None or row.high is None else {"low": row.low, "high": row.high}


class _Axis:
    """A linear or log axis that holds all of `numbers` with a margin on either side."""

    def __init__(self, numbers: list[float], *, log: bool) -> None:
        self._log = log
        low, high = (self._scaled(edge) for edge in (min(numbers), max(numbers)))
        if log:  # whole decades: each end of the axis has a label
            low, high = math.floor(low), math.ceil(high)
        span = (high - low) or 1.0
        margin = 0.0 if log else _MARGIN * span
        self._low, self._span = low - margin, span + 2 * margin

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def percent(self, value: float) -> str:
        """Place of `value` on the axis, for a style attribute."""
        return f"{100 * (self._scaled(value) - self._low) / self._span:.2f}"

    def ticks(self) -> list[float]:
        """Powers of ten on a log axis, round steps on a linear one; only those within the axis."""
        high = self._low + self._span
        if self._log:
            return [10.0**power for power in range(math.ceil(self._low), math.floor(high) + 1)]
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - loaded where it is drawn, as kernel/plots.py says

        found = MaxNLocator(_TICKS, steps=[1, 2, 5, 10]).tick_values(self._low, high)
        return [float(round(tick, 12)) for tick in found if self._low <= tick <= high]
