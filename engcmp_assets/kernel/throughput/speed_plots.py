"""Two plots of throughput as PNG bytes, in the style of kernel/plots.py: cells as ratios with the noise band, decode against overlap."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from engcmp_assets.kernel.plots import (
    COLOURS,
    DOT_IN,
    FAINT,
    GRID,
    LINES,
    MARKERS,
    DotRow,
    a_plot,
    blank,
    canvas_for,
    draw_dot,
    finish_rows,
    format_number,
    format_tick,
    own_style,
    png_of,
    write_value,
)
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.throughput.bands import NoBand
from engcmp_assets.kernel.throughput.ratios import CellRatio, MeasureRatios
from engcmp_assets.kernel.throughput.scheduling import BINS, CLEAN_BELOW, decode_by_overlap
from engcmp_resources.errors import EngcmpError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The colour of a verdict is the same in every plot, whichever verdicts it holds.
_VERDICTS = ("faster", "slower", "level", "no floor", "descriptive")
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_REASON_CHARACTERS, _REASON_LINES, _UNIT_CHARACTERS = 66, 2, 84
_MARGIN = 1.08  # of a ratio axis, beyond the furthest number


@a_plot
def ratio_dots(title: str, found: MeasureRatios, *, pixel_ratio: int = 1) -> bytes:
    """The cells of one figure as dots of candidate / baseline, their interval and verdict beside them, the band shaded, as PNG.

    Small rings are the arms' own drift repeats. The axis is a log one: twice and half lie equally far from 1. A cell that is not
    comparable is its reason in words.
    """
    rows = [_row(cell) for cell in found.cells]
    with own_style():
        canvas, axes = canvas_for(title, rows, row_in=DOT_IN, pixel_ratio=pixel_ratio)
        axes.set_xscale("log")
        if not isinstance(found.band, NoBand):
            axes.axvspan(found.band.low, found.band.high, color=GRID, zorder=0, linewidth=0)
        axes.axvline(1, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        for place, (row, cell) in enumerate(zip(rows, found.cells, strict=True)):
            if isinstance(cell.ratio, Missing):
                _not_comparable(axes, place, cell.ratio.reason)
                continue
            drift = [one.ratio for one in cell.drift]
            axes.plot(drift, [place] * len(drift), "o", mfc="none", mec=FAINT, ms=4, mew=0.9, zorder=2)
            draw_dot(axes, place, row, _VERDICTS.index(cell.verdict))
            write_value(axes, place, row)
        _ratio_axis(axes, found, rows)
        named = [DotRow(row.label, row.value, None, None, "", "") for row in rows]
        finish_rows(axes, named, textwrap.fill(_unit(found), _UNIT_CHARACTERS), marker=True)
        return png_of(canvas)


def _row(cell: CellRatio) -> DotRow:
    value = None if isinstance(cell.ratio, Missing) else cell.ratio
    low, high = (cell.interval.low, cell.interval.high) if isinstance(cell.interval, Interval) else (None, None)
    return DotRow(cell.cell_id, value, low, high, cell.verdict, cell.verdict)


def _unit(found: MeasureRatios) -> str:
    which = f"candidate / baseline, {'above' if found.better == 'higher' else 'below'} 1 is better"
    if isinstance(found.band, NoBand):
        return f"{which}; no band: {found.band.reason}"
    rings = "; rings: repeats of one arm" if any(cell.drift for cell in found.cells) else ""
    return f"{which}; shaded: noise band ±{found.band.share:.1%}{rings}"


def _not_comparable(axes: Axes, place: int, reason: str) -> None:
    text = textwrap.fill(f"not comparable: {reason}", _REASON_CHARACTERS, max_lines=_REASON_LINES, placeholder=" …")
    style: dict[str, Any] = {"va": "center", "fontsize": 8.5, "style": "italic", "color": FAINT, "zorder": 4}
    axes.text(
        0.02,
        place,
        text,
        transform=axes.get_yaxis_transform(),
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        **style,
    )


def _ratio_axis(axes: Axes, found: MeasureRatios, rows: Sequence[DotRow]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator  # noqa: PLC0415 - as in plots.py

    numbers = [number for row in rows for number in (row.value, row.low, row.high) if number is not None]
    numbers += [one.ratio for cell in found.cells for one in cell.drift] + [1.0]
    if not isinstance(found.band, NoBand):
        numbers += [found.band.low, found.band.high]
    low, high = min(numbers) / _MARGIN, max(numbers) * _MARGIN
    axes.set_xlim(low, high)
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: format_tick(tick)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


@a_plot
def decode_against_overlap(
    title: str, arms: Mapping[str, pl.DataFrame], *, decode: str = "decode", pixel_ratio: int = 1
) -> bytes:
    """Each stream's decode rate against the share of its decode beside other streams' prefill, for the arms' stream tables, as PNG.

    A line joins the medians of the bins; left of the dashed line a stream's decode is clean. Raises EngcmpError where no stream of
    any arm has a decode rate.
    """
    known = {arm: table.select("overlap", decode).drop_nulls() for arm, table in arms.items()}
    if not any(len(table) for table in known.values()):
        raise EngcmpError(f"plot {title!r} has no stream with a decode rate", remedy="leave the plot out and say why")
    with own_style():
        canvas, axes = blank(title, height_in=4.2, pixel_ratio=pixel_ratio)
        axes.axvline(CLEAN_BELOW, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        for number, (arm, table) in enumerate(known.items()):
            look: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "marker": MARKERS[number % len(MARKERS)],
            }
            axes.plot(
                table["overlap"].to_numpy(),
                table[decode].to_numpy(),
                linestyle="none",
                alpha=0.35,
                ms=4.5,
                mew=0,
                **look,
            )
            line = [(_middle(table, one.low, one.high), one.decode_tok_s) for one in decode_by_overlap(table, decode)]
            points = [(at, float(rate)) for at, rate in line if not isinstance(rate, Missing)]
            label = f"{arm} ({len(table):,} streams{_clean(table, decode)})"
            xs, ys = ([point[side] for point in points] for side in (0, 1))
            axes.plot(xs, ys, label=label, linestyle=LINES[number % len(LINES)], ms=8, mec="white", zorder=3, **look)
        axes.set_xlim(-0.03, 1.03)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("share of a stream's decode beside other streams' prefill (dashed: clean below 5 %)")
        axes.set_ylabel("decode of a stream (tokens/s)")
        axes.grid(True)
        axes.figure.legend(loc="outside lower center", ncols=1, fontsize=8.5)
        return png_of(canvas)


def _middle(table: pl.DataFrame, low: float, high: float) -> float:
    """Where the streams of a bin lie, so that a bin that is all at 0 is drawn at 0."""
    last = pl.col("overlap") == high if high == BINS[-1] else pl.lit(False)
    inside = table.filter((pl.col("overlap") >= low) & ((pl.col("overlap") < high) | last))["overlap"].to_numpy()
    return float(np.median(inside)) if len(inside) else (low + high) / 2


def _clean(table: pl.DataFrame, decode: str) -> str:
    rates = table.filter(pl.col("overlap") < CLEAN_BELOW)[decode].to_numpy()
    return (
        f"; {len(rates):,} clean: {format_number(float(np.median(rates)))} tokens/s" if len(rates) else "; none clean"
    )
