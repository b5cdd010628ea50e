"""The site's drawings as inline SVG: places across are percent of the width, places down are pixels.

So a drawing fills its column, whatever its width, and its words keep their size; colours are classes that a dark scheme changes.
A number that is drawn carries the ids of its figures, as in the table beside it. Axis ticks are no figures and are marked as such.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from engcmp_assets.kernel.plots import format_tick

COLOURS = 6  # classes g0 to g5
_LEFT, _WIDTH = 1.5, 97.0  # percent: the axis within the drawing
_LABEL_CHARACTERS = 42  # of a line that fits a phone
_LINE, _TRACK, _AXIS = 17, 26, 34  # pixels
_TICKS = 5
_LOG_RATIO = 30.0
_RATIO_TICKS = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_NEAREST = 9.0  # percent of the width between two ticks
_HEIGHT = 240


@dataclass(frozen=True, slots=True)
class Dot:
    """A line of a dot plot: label, value with its interval, and what is drawn behind it. Without a value `reason` is written.

    `floor` is the range that the same figure reads between runs of one arm; `rings` are its other repeats.
    """

    label: str
    figure_id: str
    text: str
    value: float | None
    low: float | None = None
    high: float | None = None
    group: int = 0
    reason: str = ""
    floor: tuple[float, float] | None = None
    rings: tuple[float, ...] = ()


class Axis:
    """A linear or log axis over `numbers`, a little wider than they are; places are percent of the drawing's width."""

    def __init__(self, numbers: Iterable[float], *, log: bool = False) -> None:
        found = [number for number in numbers if not log or number > 0] or [1.0]
        self.log = log
        low, high = self._scaled(min(found)), self._scaled(max(found))
        span = (high - low) or abs(high) or 1.0
        self.low, self.span = low - 0.04 * span, 1.08 * span

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def at(self, value: float) -> float:
        """The place of `value`, never outside of the drawing."""
        share = (self._scaled(value) - self.low) / self.span if not self.log or value > 0 else 0.0
        return _LEFT + _WIDTH * min(max(share, 0.0), 1.0)

    def ticks(self, wanted: Sequence[float] = ()) -> list[float]:
        """Round values within the axis, none too near to the one before it."""
        high = self.low + self.span
        if wanted:
            found = [one for one in wanted if self.low <= self._scaled(one) <= high]
        elif self.log:
            low, top = math.floor(self.low), math.ceil(high)
            steps = (1.0,) if top - low > 2 else (1.0, 2.0, 5.0)  # noqa: PLR2004 - decades that leave room for more than powers of ten
            found = [step * 10.0**power for power in range(low, top + 1) for step in steps]
            found = [one for one in found if self.low <= math.log10(one) <= high]
        else:
            from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - loaded where it is drawn, as kernel/plots.py says

            ticks = MaxNLocator(_TICKS, steps=[1, 2, 5, 10]).tick_values(self.low, high)
            found = [float(round(one, 12)) for one in ticks if self.low <= one <= high]
        kept: list[float] = []
        for one in found:
            if not kept or self.at(one) - self.at(kept[-1]) >= _NEAREST:
                kept.append(one)
        return kept


def needs_log(numbers: Sequence[float]) -> bool:
    """Whether a linear axis would press the small of `numbers` against zero, and a log axis can show all."""
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_RATIO


def dots(rows: Sequence[Dot], *, zero: bool = False) -> Markup:
    """A dot with its interval for each row; `zero` keeps zero in view and draws it (of differences)."""
    numbers = [one for row in rows for one in _numbers(row)]
    log = not zero and needs_log(numbers)
    axis = Axis(numbers if log else [0.0, *numbers], log=log)
    return _rows(rows, axis, axis.ticks(), line=0.0 if zero else None)


def ratio_dots(rows: Sequence[Dot], band: tuple[float, float] | None) -> Markup:
    """Ratios on a log axis, so that twice and half lie equally far from level; `band` is shaded."""
    numbers = [one for row in rows for one in _numbers(row)] + [1.0, *(band or ())]
    axis = Axis(numbers, log=True)
    return _rows(rows, axis, axis.ticks(_RATIO_TICKS), line=1.0, band=band)


def curves(
    series: Sequence[tuple[int, Sequence[tuple[float, float]]]], *, x_log: bool, y_log: bool, dots_only: bool = False
) -> Markup:
    """Points [x, y] of each series (its colour first), joined by a line unless `dots_only`; both axes with ticks."""
    xs = [x for _, points in series for x, _ in points]
    ys = [y for _, points in series for _, y in points]
    across, down = Axis(xs if x_log else [0.0, *xs], log=x_log), Axis(ys if y_log else [0.0, *ys], log=y_log)

    def height(value: float) -> float:
        share = (down.at(value) - _LEFT) / _WIDTH
        return 10 + (_HEIGHT - 20) * (1 - share)

    parts: list[Markup] = []
    for tick in down.ticks():
        parts.append(_line("grid", f"{_LEFT}%", height(tick), f"{_LEFT + _WIDTH}%", height(tick)))
        parts.append(_text(f"{_LEFT}%", height(tick) - 3, format_tick(tick), "tick"))
    for colour, points in series:
        if not dots_only:
            pairs = pairwise(points)
            parts += [
                _line(f"curve g{colour}", f"{across.at(a):.2f}%", height(b), f"{across.at(c):.2f}%", height(d))
                for (a, b), (c, d) in pairs
            ]
        parts += [_mark(colour, f"{across.at(x):.2f}%", height(y), faint=dots_only) for x, y in points]
    return _svg([*parts, *_axis(across, across.ticks(), _HEIGHT)], _HEIGHT + _AXIS)


def strip(points: Sequence[Sequence[float]], seconds: float, colour: int) -> Markup:
    """One series over time as a narrow strip: [seconds, value] joined by lines, its axis from the least to the most."""
    values = [value for _, value in points]
    low, span = min(values), (max(values) - min(values)) or 1.0
    places = [(100 * at / (seconds or 1.0), 4 + 32 * (1 - (value - low) / span)) for at, value in points]
    lines = [_line(f"curve g{colour}", f"{a:.2f}%", b, f"{c:.2f}%", d) for (a, b), (c, d) in pairwise(places)]
    return _svg(lines or [_mark(colour, f"{places[0][0]:.2f}%", places[0][1])], 40)


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> Markup:
    """A bar for each row, split into named parts by their counts: [label, [(class, count)]]."""
    parts: list[Markup] = []
    top = 0
    for label, counts in rows:
        lines = textwrap.wrap(label, _LABEL_CHARACTERS) or [""]
        parts += [_text(f"{_LEFT}%", top + 13 + _LINE * place, text, "name") for place, text in enumerate(lines)]
        top += _LINE * len(lines)
        whole, begin = sum(count for _, count in counts) or 1, 0.0
        for name, count in counts:
            width = _WIDTH * count / whole
            if count:
                parts.append(
                    Markup('<rect class="o {}" x="{:.2f}%" y="{}" width="{:.2f}%" height="15"/>').format(
                        name, _LEFT + begin, top + 4, width
                    )
                )
            begin += width
        top += _TRACK + 4
    return _svg(parts, top + 4)


def _numbers(row: Dot) -> list[float]:
    return [one for one in (row.value, row.low, row.high, *(row.floor or ()), *row.rings) if one is not None]


def _rows(
    rows: Sequence[Dot],
    axis: Axis,
    ticks: Sequence[float],
    *,
    line: float | None,
    band: tuple[float, float] | None = None,
) -> Markup:
    parts: list[Markup] = []
    top = 4
    for row in rows:
        lines = textwrap.wrap(row.label, _LABEL_CHARACTERS) or [""]
        parts += [_text(f"{_LEFT}%", top + 12 + _LINE * place, text, "name") for place, text in enumerate(lines)]
        top += _LINE * len(lines)
        written = textwrap.wrap(row.text or row.reason, _LABEL_CHARACTERS + 6)[:2]
        parts += [
            _text(
                f"{_LEFT}%",
                top + 12 + _LINE * place,
                text,
                "read" if row.value is not None else "why",
                figure_id=row.figure_id,
            )
            for place, text in enumerate(written)
        ]
        top += _LINE * len(written)
        middle = top + _TRACK / 2
        if row.value is not None:
            parts += _dot(row, axis, middle)
        top += _TRACK
    behind = [_line("grid", f"{axis.at(tick):.2f}%", 0, f"{axis.at(tick):.2f}%", top) for tick in ticks]
    if band:
        first = Markup('<rect class="band" x="{:.2f}%" y="0" width="{:.2f}%" height="{}"/>').format(
            axis.at(band[0]), axis.at(band[1]) - axis.at(band[0]), top
        )
        behind.insert(0, first)
    if line is not None:
        behind.append(_line("zero", f"{axis.at(line):.2f}%", 0, f"{axis.at(line):.2f}%", top))
    return _svg([*behind, *parts, *_axis(axis, ticks, top)], top + _AXIS)


def _dot(row: Dot, axis: Axis, middle: float) -> list[Markup]:
    parts: list[Markup] = []
    if row.floor is not None:
        low, high = axis.at(row.floor[0]), axis.at(row.floor[1])
        parts.append(
            Markup('<rect class="floor" x="{:.2f}%" y="{}" width="{:.2f}%" height="18"/>').format(
                low, middle - 9, max(high - low, 0.6)
            )
        )
    if row.low is not None and row.high is not None:
        begin, end = f"{axis.at(row.low):.2f}%", f"{axis.at(row.high):.2f}%"
        parts.append(_line(f"interval g{row.group}", begin, middle, end, middle))
        parts += [_line(f"interval g{row.group}", one, middle - 5, one, middle + 5) for one in (begin, end)]
    parts += [
        Markup('<circle class="ring" cx="{:.2f}%" cy="{}" r="4"/>').format(axis.at(one), middle) for one in row.rings
    ]
    if row.value is not None:
        parts.append(_mark(row.group, f"{axis.at(row.value):.2f}%", middle))
    return parts


def _axis(axis: Axis, ticks: Sequence[float], top: float) -> list[Markup]:
    parts = [_line("axis", f"{_LEFT}%", top, f"{_LEFT + _WIDTH}%", top)]
    for tick in ticks:
        place = axis.at(tick)
        anchor = "start" if place < 5 else "end" if place > 95 else "middle"  # noqa: PLR2004 - percent: nothing is cut off at the edges
        parts.append(_text(f"{place:.2f}%", top + 18, format_tick(tick), "tick", anchor=anchor))
    return parts


def _line(name: str, x1: str, y1: float, x2: str, y2: float) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{:.4g}" x2="{}" y2="{:.4g}"/>').format(name, x1, y1, x2, y2)


def _mark(colour: int, x: str, y: float, *, faint: bool = False) -> Markup:
    return Markup('<circle class="dot g{}{}" cx="{}" cy="{:.4g}" r="{}"/>').format(
        colour % COLOURS, " faint" if faint else "", x, y, 3 if faint else 5
    )


def _text(x: str, y: float, text: str, name: str, *, figure_id: str = "", anchor: str = "start") -> Markup:
    mark = {"tick": Markup(' data-axis=""'), "name": Markup(' data-label=""')}.get(name, Markup(""))
    if figure_id:
        mark = Markup(' data-figure="{}"').format(figure_id)
    return Markup('<text class="{}" x="{}" y="{:.4g}" text-anchor="{}"{}>{}</text>').format(
        name, x, y, anchor, mark, escape(text)
    )


def _svg(parts: Iterable[Markup], height: float) -> Markup:
    return Markup(
        '<svg class="plot" width="100%" height="{:.4g}" aria-hidden="true" focusable="false">{}</svg>'
    ).format(height, Markup("").join(parts))
