"""Three small plots as PNG bytes: bars, dots with intervals, and a survival curve; and the parts that other plots are drawn with.

The same input gives the same bytes on one version of matplotlib: the font is the one that matplotlib ships, the style
is fixed here rather than taken from the user's settings, and the file carries no software name and no date.
Colours are the Okabe-Ito set, and every group also has its own marker or line, so that no reading rests on colour.
matplotlib takes a second to load and is loaded by the first plot: every command imports this module, few draw. Who makes results
again to compare their figures draws nothing (`undrawn`): a plot takes a tenth of a second, and pictures are not compared.
"""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing
from engcmp_resources.errors import EngcmpError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

P = ParamSpec("P")
Float64 = npt.NDArray[np.float64]

WIDTH_PX = 800
DPI = 110

_INK = "#22272e"
FAINT = "#687078"
GRID = "#e3e5e8"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
_STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": _INK,
    "axes.facecolor": "white",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.usetex": False,
    "text.parse_math": False,
}

_LABEL_CHARACTERS = 32
_NOTE_CHARACTERS = 58
_NOTE_LINES = 3  # what the height of a row holds; the pages have the reason in full
_FIXED_FROM = 1e4
_THOUSAND = 1000
_CURVE_POINTS = 800
_LOG_RATIO = 30.0  # on a linear axis the smallest of such values would lie on the axis itself
_BAR_IN, DOT_IN = 0.34, 0.42  # height of a row
_PLAIN_FROM = -3  # decimal exponent of the smallest tick that is written out
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class DotRow:
    """One line of a dot plot. Without a `value`, `note` is the reason and is written in its place.

    Beside a value, `note` (may be empty) is written after the number. `low` and `high` are the interval's ends or None.
    """

    label: str
    value: float | None
    low: float | None
    high: float | None
    group: str
    note: str


def format_number(value: float) -> str:
    """`value` with four significant digits, the one format of plots and pages: 0.3580, 12,350, 1.234e-05, 0.

    Raises EngcmpError for NaN and infinities: what was not measured is Missing, with its reason.
    """
    if not math.isfinite(value):
        raise EngcmpError(f"{value} is not a figure", remedy="give Missing with the reason instead")
    if value == 0:
        return "0"
    rounded = float(f"{value:.4g}")
    if abs(rounded) >= _FIXED_FROM:
        return f"{rounded:,.0f}"
    return f"{rounded:#.4g}".removesuffix(".")


def format_tick(value: float) -> str:
    """A tick of an axis: 0.001, 25, 16,000, and a power of ten as such where it is below 0.001 (10⁻⁵)."""
    exponent = math.log10(value) if value > 0 else 0.0
    if exponent < _PLAIN_FROM and exponent.is_integer():
        return f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")


def needs_log_scale(rows: Sequence[DotRow]) -> bool:
    """Whether a linear axis would press the small values of a dot plot against zero, and a log axis can show them all.

    True where every value and interval end is above 0 and the largest is at least 30 times the smallest.
    """
    numbers = [number for row in rows for number in (row.value, row.low, row.high) if number is not None]
    return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= _LOG_RATIO


_drawing = ContextVar("drawing", default=True)
NOT_DRAWN = b"\x89PNG"


@contextmanager
def undrawn() -> Iterator[None]:
    """Within it every plot is NOT_DRAWN."""
    before = _drawing.set(False)
    try:
        yield
    finally:
        _drawing.reset(before)


def a_plot(draw: Callable[P, bytes]) -> Callable[P, bytes]:
    """`draw`, except where nothing is to be drawn."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> bytes:
        return draw(*arguments, **options) if _drawing.get() else NOT_DRAWN

    return drawn


@a_plot
def bars(
    title: str,
    labels: Sequence[str],
    values: Sequence[float | Missing],
    *,
    unit: str,
    groups: Sequence[str] | None = None,
) -> bytes:
    """Horizontal bars from zero, one for each label, as PNG. A Missing value is its reason in words, not a bar.

    Where all values are whole they are written as counts (1,079), else with four significant digits.
    """
    names = [""] * len(labels) if groups is None else list(groups)
    if not len(labels) == len(values) == len(names):
        raise EngcmpError(f"plot {title!r}: labels, values and groups differ in length", remedy="give one a bar")
    rows = [
        DotRow(label, None, None, None, group, value.reason)
        if isinstance(value, Missing)
        else DotRow(label, value, None, None, group, "")
        for label, value, group in zip(labels, values, names, strict=True)
    ]
    whole = all(row.value is None or float(row.value).is_integer() for row in rows)
    with own_style():
        canvas, axes = canvas_for(title, rows, row_in=_BAR_IN)
        index = _group_index(names)
        for place, row in enumerate(rows):
            if row.value is None:
                _write_reason(axes, place, row.note)
                continue
            axes.barh(place, row.value, height=0.62, color=COLOURS[index[row.group] % len(COLOURS)])
            axes.annotate(
                f"{row.value:,.0f}" if whole else format_number(row.value),
                (row.value, place),
                xytext=(4 if row.value >= 0 else -4, 0),
                textcoords="offset points",
                va="center",
                ha="left" if row.value >= 0 else "right",
                fontsize=8.5,
            )
        axes.axvline(0, color=FAINT, linewidth=0.8)
        finish_rows(axes, rows, unit, marker=False)
        return png_of(canvas)


@a_plot
def dots_with_intervals(
    title: str,
    rows: Sequence[DotRow],
    *,
    unit: str,
    zero_line: bool = False,
    log: bool = False,
    pixel_ratio: int = 1,
) -> bytes:
    """A horizontal dot with its interval for each row, the number beside it, as PNG.

    A row without a value is written as `not measured: reason`. `zero_line` draws zero and keeps it in view. `log` asks
    for a log axis, which has no zero; it stays linear where a number is not above 0. `pixel_ratio` 2 gives twice
    WIDTH_PX, for a page that is read on a fine screen.
    """
    numbers = [number for row in rows for number in (row.value, row.low, row.high) if number is not None]
    log = log and bool(numbers) and min(numbers) > 0
    with own_style():
        canvas, axes = canvas_for(title, rows, row_in=DOT_IN, pixel_ratio=pixel_ratio)
        index = _group_index([row.group for row in rows])
        for place, row in enumerate(rows):
            if row.value is None:
                _write_reason(axes, place, row.note)
                continue
            draw_dot(axes, place, row, index[row.group])
            write_value(axes, place, row)
        if log:
            _set_log(axes)
            axes.set_xlim(10.0 ** math.floor(math.log10(min(numbers))), 10.0 ** math.ceil(math.log10(max(numbers))))
        elif zero_line:
            axes.axvline(0, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        axes.margins(x=0.06)
        finish_rows(axes, rows, f"{unit}, log scale" if log else unit, marker=True)
        return png_of(canvas)


@a_plot
def survival(title: str, series: Mapping[str, Iterable[float]], *, unit: str) -> bytes:
    """The share of rows whose value is above x, for each named series, on two log axes, as PNG.

    Rows at exactly 0 have no place on a log axis: they show as a curve that starts below 1, and the legend counts
    the rows above 0. Series with the same values are one curve that carries all their names. Raises EngcmpError for an
    empty series or one with a value that is not finite.
    """
    if not series:
        raise EngcmpError(f"plot {title!r} has no series", remedy="give at least one")
    with own_style():
        canvas, axes = blank(title, height_in=4.0)
        axes.set_yscale("log")
        _plain_log_ticks(axes.yaxis)
        _set_log(axes)
        for number, (names, falling) in enumerate(_distinct(title, series)):
            _draw_curve(axes, names, falling, number)
        axes.set_ylim(top=1.25)
        axes.set_xlabel(f"x ({unit})")
        axes.set_ylabel("share of rows above x")
        axes.grid(True, which="major")
        axes.legend(loc="lower left", fontsize=8.5)
        return png_of(canvas)


def markdown_image(png: bytes, alt: str = "plot") -> str:
    """The PNG as one Markdown image that needs no file beside it (a data URI)."""
    words = " ".join(alt.replace("[", "(").replace("]", ")").split())
    return f"![{words}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})"


@contextmanager
def own_style() -> Iterator[None]:
    """Matplotlib's defaults with this module's style, until the plot is drawn; the caller's settings come back after.

    The settings are the process's: two threads must not draw at once.
    """
    import matplotlib as mpl  # noqa: PLC0415 - see above

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def canvas_for(
    title: str, rows: Sequence[DotRow], *, row_in: float, pixel_ratio: int = 1
) -> tuple[FigureCanvasAgg, Axes]:
    """An empty plot that is high enough for `rows`. Raises EngcmpError for no row, and for a number that is not finite."""
    if not rows:
        raise EngcmpError(f"plot {title!r} has no rows", remedy="give at least one")
    for row in rows:
        for number in (row.value, row.low, row.high):
            if number is not None and not math.isfinite(number):
                raise EngcmpError(
                    f"plot {title!r}, row {row.label!r}: {number} is not a figure",
                    remedy="give no value, and the reason as the note",
                )
    legend_in = 0.35 if _needs_legend(rows) else 0.0
    return blank(title, height_in=1.1 + legend_in + row_in * max(len(rows), 2), pixel_ratio=pixel_ratio)


def blank(title: str, *, height_in: float, pixel_ratio: int = 1) -> tuple[FigureCanvasAgg, Axes]:
    """An empty plot of the one width, its title at the left edge."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - see above
    from matplotlib.figure import Figure  # noqa: PLC0415 - see above
    from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415 - see above

    figure = Figure(
        figsize=(WIDTH_PX / DPI, height_in),
        dpi=DPI * pixel_ratio,
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1),
        facecolor="white",
    )
    figure.suptitle(title, x=0.016, horizontalalignment="left", fontsize=11, fontweight="bold")
    return FigureCanvasAgg(figure), figure.add_subplot()


def _group_index(groups: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(groups))}


def _needs_legend(rows: Sequence[DotRow]) -> bool:
    """Whether the groups say something that the rows' own labels do not."""
    return len({row.group for row in rows}) > 1 and not all(row.group in row.label for row in rows)


def _set_log(axes: Axes) -> None:
    axes.set_xscale("log")
    _plain_log_ticks(axes.xaxis)


def _plain_log_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - see above

    axis.set_major_locator(LogLocator(base=10, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda tick, _: format_tick(tick)))
    axis.set_minor_formatter(NullFormatter())


def draw_dot(axes: Axes, place: int, row: DotRow, group: int) -> None:
    """A row's dot and interval on line `place`, in the colour and with the marker of its group."""
    colour = COLOURS[group % len(COLOURS)]
    if row.low is not None and row.high is not None:
        axes.plot([row.low, row.high], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt", zorder=2)
        axes.plot([row.low, row.high], [place, place], color=colour, linestyle="none", marker="|", markersize=9)
    if row.value is not None:
        axes.plot([row.value], [place], marker=MARKERS[group % len(MARKERS)], color=colour, markersize=7.5, zorder=3)


def write_value(axes: Axes, place: int, row: DotRow) -> None:
    """A row's number, interval and note at the right edge of line `place`."""
    if row.value is None:
        return
    text = format_number(row.value)
    if row.low is not None and row.high is not None:
        text += f" [{format_number(row.low)}, {format_number(row.high)}]"
    if row.note:
        text += "\n" + textwrap.fill(row.note, _LABEL_CHARACTERS)
    axes.text(1.015, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5, color=_INK)


def _write_reason(axes: Axes, place: int, reason: str) -> None:
    words = f"not measured: {reason or 'no reason recorded'}"
    text = textwrap.fill(words, _NOTE_CHARACTERS, max_lines=_NOTE_LINES, placeholder=" …")
    axes.text(
        0.02,
        place,
        text,
        transform=axes.get_yaxis_transform(),
        va="center",
        fontsize=8.5,
        style="italic",
        color=FAINT,
        zorder=4,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


def finish_rows(axes: Axes, rows: Sequence[DotRow], unit: str, *, marker: bool) -> None:
    """Names, scale, grid and (for more than one group) the legend of a plot with one line for each row."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - see above
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415 - see above

    axes.set_yticks(range(len(rows)), [textwrap.fill(row.label, _LABEL_CHARACTERS) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit)
    axes.grid(True, axis="x")
    if axes.get_xscale() == "linear":
        axes.ticklabel_format(axis="x", style="plain", useOffset=False)
        if max(map(abs, axes.get_xlim())) >= _THOUSAND:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: format_tick(tick)))
    if all(row.value is None for row in rows):
        axes.set_xticks([])
    if _needs_legend(rows):
        handles = [
            Line2D([], [], color=colour, marker=MARKERS[number % len(MARKERS)] if marker else "s", linestyle="none",
                   label=name or "other")
            for name, number in _group_index([row.group for row in rows]).items()
            for colour in [COLOURS[number % len(COLOURS)]]
        ]  # fmt: skip
        axes.figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), fontsize=8.5)


def _distinct(title: str, series: Mapping[str, Iterable[float]]) -> list[tuple[list[str], Float64]]:
    """The series' values in falling order; those that are the same, once, with all their names."""
    found: dict[bytes, tuple[list[str], Float64]] = {}
    for name, given in series.items():
        values = np.asarray(list(given), dtype=np.float64)
        if values.size == 0 or not np.isfinite(values).all():
            raise EngcmpError(
                f"plot {title!r}, series {name!r}: {values.size} values, all of which must be finite",
                remedy="leave the series out and say why",
            )
        falling = np.sort(values)[::-1]
        found.setdefault(falling.tobytes(), ([], falling))[0].append(name)
    return list(found.values())


def _draw_curve(axes: Axes, names: Sequence[str], falling: Float64, number: int) -> None:
    above_zero = int((falling > 0).sum())
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}, the same values"
    label = f"{who} ({above_zero:,} of {falling.size:,} rows above 0)"
    style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linestyle": LINES[number % len(LINES)]}
    if above_zero == 0:
        axes.plot([], [], label=label, **style)
        return
    # Evenly spaced ranks on the log scale: the tail keeps every row, the dense head is thinned below a pixel.
    ranks = np.unique(np.geomspace(1, above_zero, _CURVE_POINTS).round().astype(np.int64))[::-1]
    x = np.append(falling[ranks - 1], falling[0])
    share = np.append(ranks / falling.size, 0.5 / falling.size)
    axes.plot(x, share, drawstyle="steps-pre", label=label, **style)


def png_of(canvas: FigureCanvasAgg) -> bytes:
    """The drawn canvas as a PNG without transparency and without metadata."""
    from PIL import Image  # noqa: PLC0415 - see above

    untyped: Any = canvas  # matplotlib gives these two methods no types
    untyped.draw()
    image = Image.fromarray(np.asarray(untyped.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True)
    return buffer.getvalue()
