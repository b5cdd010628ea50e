"""The Markdown page, the HTML page, the plot and the terminal table, each made from SUMMARY.json and nothing else.

Every number that a reader sees goes through `format_number` (four significant digits) or is a count; a value that is
not there appears as its reason. The functions are pure: the same summary gives the same text.
"""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from engcmp_assets.kernel.plots import DotRow, dots_with_intervals, format_number
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.summary/1"
HEADLINE = ("kl_full", "nll", "top1", "entropy")
"""The measures of the arms table and of the table by block, in this order; all others are listed with their ids."""

TERMINAL_COLUMNS = 100

_ALL = "all"
_BLOCK = "block:"
_FLOORS = (("within_launch", "within a launch"), ("across_launches", "across launches"))
_BYTES_PER_MB = 1_000_000


def render_markdown(summary: Mapping[str, Any], *, plot_href: str | None = None) -> str:
    """The summary as one Markdown page. `plot_href` is where the plot is (a file name or a data URI), if anywhere.

    Raises EngcmpError where the summary is of another schema or holds a value that is neither number nor reason.
    """
    return _render("summary.md.j2", summary, plot_href=plot_href)


def render_html(summary: Mapping[str, Any], plot_png: bytes) -> str:
    """The summary as one self-contained HTML page: no script, no outside request, the plot inside.

    Raises EngcmpError as `render_markdown` does.
    """
    href = f"data:image/png;base64,{base64.b64encode(plot_png).decode('ascii')}"
    return _render("summary.html.j2", summary, plot_href=href)


def render_plot(summary: Mapping[str, Any]) -> bytes:
    """The summary's one plot as PNG: the distance from the reference for each arm, with its interval."""
    _check_schema(summary)
    plot = summary["plot"]
    rows = [
        DotRow(
            label=row["label"],
            value=_number(row["value"]),
            low=_number(row.get("low")),
            high=_number(row.get("high")),
            group=row.get("group") or "",
            note=_reason(row["value"]) if _number(row["value"]) is None else "",
        )
        for row in plot["rows"]
    ]
    return dots_with_intervals(plot["title"], rows, unit=plot["unit"], zero_line=True)


def render_table(summary: Mapping[str, Any]) -> str:
    """The summary for a terminal: aligned plain text, no line longer than TERMINAL_COLUMNS."""
    _check_schema(summary)
    lines = [*_wrap(f"{summary['title']} ({summary['study']})"), *_wrap(summary["question"]), ""]
    rows: list[tuple[str, ...]] = [("arm", "measure", "value", "interval", "floor")]
    notes: list[str] = []
    absent: list[str] = []
    for arm in summary["arms"]:
        if arm["state"] != "measured":
            absent.append(f"{arm['arm']}: {not_measured(arm)}")
            continue
        for place, figure in enumerate(_headline_figures(arm)):
            floor = figure.get("details", {}).get("floor")
            rows.append((arm["arm"] if place == 0 else "", *_terminal_cells(figure, floor, notes)))
    lines += [*_aligned(rows), *_notes(notes), *(line for text in absent for line in _wrap(text)), ""]
    for pair in summary["comparisons"]:
        lines += [*_terminal_pair(pair), ""]
    lines.append("floor: the same measure between runs of one arm, within a launch / across launches")
    return "\n".join([*lines, "Every figure has an id in the summary page: engcmp trace FIGURE", ""])


def format_measured(value: Any, interval: Any = None) -> str:
    """A figure as text: `0.3580 [0.3412, 0.3751]`, or `not measured: reason`.

    `value` is a number, {"missing": reason} or None; `interval` is {"low", "high", ...}, {"missing": reason} or None.
    """
    number = _number(value)
    if number is None:
        return f"not measured: {_reason(value)}"
    between = format_interval(interval)
    if between:
        return f"{format_number(number)} {between}"
    if isinstance(interval, Mapping):
        return f"{format_number(number)} (no interval: {_reason(interval)})"
    return format_number(number)


def format_interval(interval: Any) -> str:
    """`[low, high]`, or nothing where there is no interval."""
    if not isinstance(interval, Mapping) or "low" not in interval:
        return ""
    return f"[{format_number(interval['low'])}, {format_number(interval['high'])}]"


def format_any(value: Any) -> str:
    """Whatever a comparison says of its sensitivity, as text: numbers, counts, ranges, reasons, names."""
    if value is None or (isinstance(value, Mapping) and "missing" in value):
        return f"not measured: {_reason(value)}"
    if isinstance(value, Mapping):
        parts = (f"{str(key).replace('_', ' ')} {format_any(item)}" for key, item in value.items())
        return format_interval(value) or ", ".join(parts)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(format_any(item) for item in value)}]"
    if isinstance(value, float):
        return format_number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def not_measured(part: Mapping[str, Any]) -> str:
    """The state of an arm or a pair that has no figures, with its reason: `not measured: the engine died`."""
    return f"{part['state']}: {part.get('reason') or 'no reason recorded'}"


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value is None or (isinstance(value, Mapping) and "missing" in value):
        return None
    raise EngcmpError(f"{value!r} is neither a number nor a reason", where="SUMMARY.json", remedy="publish again")


def _reason(value: Any) -> str:
    reason = value.get("missing") if isinstance(value, Mapping) else None
    return str(reason or "no reason recorded")


def _check_schema(summary: Mapping[str, Any]) -> None:
    if summary.get("schema") != SCHEMA:
        raise EngcmpError(
            f"schema is {summary.get('schema')!r}, this version reads {SCHEMA!r}",
            where="SUMMARY.json",
            remedy="publish again with this version",
        )


# The pages: one view for both templates.


def _render(template: str, summary: Mapping[str, Any], *, plot_href: str | None) -> str:
    _check_schema(summary)
    return _templates().get_template(template).render(summary=summary, plot_href=plot_href, **_view(summary))


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(
        any=format_any, md=_markdown_text, code=_markdown_code, count=_count, slug=_slug, sense=_sense
    )
    return templates


def _view(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the templates show, in order and already formatted; they only place it."""
    terms = {term["measure"]: term for term in summary["terms"]}
    arms = summary["arms"]
    found = [figure for arm in arms for figure in arm["figures"]]
    measures = [name for name in HEADLINE if any(figure["measure"] == name for figure in found)]
    blocks = [name.removeprefix(_BLOCK) for name in _populations(found) if name.startswith(_BLOCK)]
    listed = list(_listed(summary))
    anchors = {entry["figure_id"]: entry["anchor"] for entry in listed}
    return {
        "measures": [_heading(name, terms) for name in measures],
        "arms": [_arm_view(arm, measures, anchors) for arm in arms],
        "blocks": blocks,
        "by_block": [_block_view(name, terms, arms, blocks, anchors) for name in measures] if blocks else [],
        "comparisons": [_pair_view(pair, anchors) for pair in summary["comparisons"]],
        "listed": listed,
        "methods": _methods(summary),
        "floors": [label for _, label in _FLOORS],
        "plot_text": _plot_text(summary["plot"]),
    }


def _heading(measure: str, terms: Mapping[str, Any]) -> dict[str, str]:
    term = terms.get(measure, {})
    return {
        "measure": measure,
        "title": term.get("title", measure),
        "unit": term.get("unit", ""),
        "sense": _sense(term.get("better", "")),
    }


def _cell(figure: Mapping[str, Any] | None, anchors: Mapping[str, str]) -> dict[str, Any]:
    """One figure in a table: its parts as text, its floor, and the place on the page that holds its id."""
    if figure is None:
        return {**_parts({"missing": "no figure was made"}, None), "measure": "", "floor": []}
    return {
        **_parts(figure["value"], figure.get("interval"), anchors[figure["figure_id"]]),
        "measure": figure["measure"],
        "floor": _floor_view(figure.get("details", {}).get("floor")),
    }


def _parts(value: Any, interval: Any, anchor: str | None = None) -> dict[str, Any]:
    """What `format_measured` writes, whole and in parts, so that a page can break the line between them."""
    number = _number(value)
    return {
        "text": format_measured(value, interval),
        "value": None if number is None else format_number(number),
        "interval": format_interval(interval),
        "no_interval": _no_interval(interval),
        "anchor": anchor,
    }


def _no_interval(interval: Any) -> str:
    return "" if format_interval(interval) or interval is None else f"no interval: {_reason(interval)}"


def _floor_view(floor: Any) -> list[dict[str, Any]]:
    """The floor within a launch and across launches, as text; nothing where the figure declares no floor at all."""
    if not isinstance(floor, Mapping):
        return []
    found = [(label, floor if "missing" in floor else floor.get(key)) for key, label in _FLOORS]
    return [{"label": label, **_floor_parts(part)} for label, part in found]


def _floor_parts(part: Any) -> dict[str, Any]:
    if isinstance(part, Mapping) and "value" in part:
        return _parts(part["value"], part.get("interval"))
    return _parts(part, None)


def _arm_view(arm: Mapping[str, Any], measures: Sequence[str], anchors: Mapping[str, str]) -> dict[str, Any]:
    return {
        **arm,
        "reason_text": None if arm["state"] == "measured" else not_measured(arm),
        "cells": [_cell(_find(arm, name, _ALL), anchors) for name in measures],
        "size": f"{format_number(arm['file_bytes'] / _BYTES_PER_MB)} MB" if arm.get("file_bytes") else "not recorded",
    }


def _block_view(
    measure: str, terms: Mapping[str, Any], arms: Sequence[Any], blocks: Sequence[str], anchors: Mapping[str, str]
) -> dict[str, Any]:
    rows = [
        {"arm": arm["arm"], "cells": [_cell(_find(arm, measure, _BLOCK + block), anchors) for block in blocks]}
        for arm in arms
        if arm["state"] == "measured"
    ]
    return {**_heading(measure, terms), "rows": rows}


def _pair_view(pair: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any]:
    measured = pair["state"] == "measured" or bool(pair["figures"])
    return {
        **pair,
        "reason_text": None if measured else not_measured(pair),
        "rows": [
            {
                **figure,
                "cell": _parts(figure["value"], figure.get("interval"), anchors[figure["figure_id"]]),
                "floor": _floor_view(figure.get("floor")) or _floor_view({"missing": "no floor was recorded"}),
                "doubts": _doubts(figure),
            }
            for figure in pair["figures"]
        ],
    }


def _doubts(figure: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How sure one difference is: what the other ways to look at it read, as (name, text)."""
    found = []
    bonferroni = figure.get("interval_bonferroni")
    if bonferroni is not None:
        level = f" ({_percent(bonferroni['level'])})" if "level" in bonferroni else ""
        text = format_interval(bonferroni) or f"not measured: {_reason(bonferroni)}"
        found.append((f"Interval for the whole family{level}", text))
    for key, name in (
        ("leave_one_out", "Range with one cluster left out"),
        ("sign_clusters", "Clusters with the sign of the mean"),
        ("largest_cluster", "Cluster that moves it most"),
        ("bound", "Largest effect not excluded"),
    ):
        if figure.get(key) is not None:
            found.append((name, format_any(figure[key])))
    return [*found, ("Rows", _count(figure["rows"])), ("Clusters", _count(figure["clusters"]))]


def _listed(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every figure of the summary, with the id that `engcmp trace` takes and the place on the page that holds it."""
    owners = [(arm["arm"], arm["figures"]) for arm in summary["arms"]]
    owners += [(pair["label"], pair["figures"]) for pair in summary["comparisons"]]
    number = 0
    for owner, figures in owners:
        for figure in figures:
            number += 1
            yield {
                "owner": owner,
                "label": figure["label"],
                "population": figure["population"],
                "cell": _parts(figure["value"], figure.get("interval")),
                "unit": figure["unit"],
                "rows": _count(figure["rows"]),
                "clusters": _count(figure["clusters"]),
                "figure_id": figure["figure_id"],
                "anchor": f"figure-{number}",
            }


def _find(arm: Mapping[str, Any], measure: str, population: str) -> Mapping[str, Any] | None:
    for figure in arm["figures"]:
        if figure["measure"] == measure and figure["population"] == population:
            return dict(figure)
    return None


def _populations(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(figure["population"] for figure in figures))


def _methods(summary: Mapping[str, Any]) -> list[str]:
    """The kinds of interval that the summary holds, as `95 % cluster bootstrap`, each once."""
    parts = [*summary["arms"], *summary["comparisons"]]
    intervals = [figure.get("interval") for part in parts for figure in part["figures"]]
    texts = (f"{_percent(item['level'])} {item['method']}" for item in intervals if format_interval(item))
    return list(dict.fromkeys(texts))


def _plot_text(plot: Mapping[str, Any]) -> str:
    """The plot in words, for those who cannot see it."""
    rows = []
    for row in plot["rows"]:
        ends = {end: row[end] for end in ("low", "high") if row.get(end) is not None}
        rows.append(
            f"{row['label']}: {format_measured(row['value'], ends if 'low' in ends and 'high' in ends else None)}"
        )
    return f"{plot['title']} ({plot['unit']}). {'; '.join(rows)}."


def _percent(level: float) -> str:
    return f"{level * 100:.4g} %"


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else format_any(value)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _sense(better: Any) -> str:
    return f"{better} is better" if better in ("lower", "higher") else str(better or "")


def _markdown_text(value: Any) -> str:
    """Text that stays text in Markdown: no HTML, no link, no table cell or emphasis of its own, on one line."""
    text = " ".join(str(value).split()).replace("\\", "\\\\")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
    return re.sub(r"([|`*])", r"\\\1", text)


def _markdown_code(value: Any) -> str:
    """A code span that can stand in a table cell."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


# The terminal table.


def _headline_figures(arm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = (_find(arm, measure, _ALL) for measure in HEADLINE)
    return [figure for figure in found if figure is not None]


def _terminal_cells(figure: Mapping[str, Any], floor: Any, notes: list[str]) -> tuple[str, ...]:
    """Measure, value, interval and floor. A reason is too long for a column: `(n)` stands for it, the notes hold it."""
    number = _number(figure["value"])
    value = f"not measured {_mark(notes, _reason(figure['value']))}" if number is None else format_number(number)
    interval = format_interval(figure.get("interval"))
    if not interval and number is not None and isinstance(figure.get("interval"), Mapping):
        interval = f"none {_mark(notes, _no_interval(figure['interval']))}"
    return (figure["measure"], value, interval, _terminal_floor(floor, notes))


def _terminal_floor(floor: Any, notes: list[str]) -> str:
    """The floor's two values without their intervals, which the pages show: `0 / 0.0001230`."""
    texts = [part["text"] for part in _floor_view(floor)]
    return " / ".join(_mark(notes, text) if text.startswith("not measured") else text.split()[0] for text in texts)


def _mark(notes: list[str], reason: str) -> str:
    if reason not in notes:
        notes.append(reason)
    return f"({notes.index(reason) + 1})"


def _terminal_pair(pair: Mapping[str, Any]) -> list[str]:
    if not pair["figures"]:
        return _wrap(f"{pair['label']}: {not_measured(pair)}")
    notes: list[str] = []
    rows: list[tuple[str, ...]] = [("measure", "difference", "interval", "floor", "verdict")]
    for figure in pair["figures"]:
        rows.append((*_terminal_cells(figure, figure.get("floor"), notes), figure["verdict"]))
    said = [f"- {figure['sentence']}" for figure in pair["figures"] if figure.get("sentence")]
    return [*_wrap(pair["label"]), *_aligned(rows), *_notes(notes), *(line for text in said for line in _wrap(text))]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as columns; a row that is too long for the terminal is wrapped as words."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths)[:TERMINAL_COLUMNS])
    return [part for line in lines for part in ([line] if len(line) <= TERMINAL_COLUMNS else _wrap(line))]


def _notes(notes: Sequence[str]) -> list[str]:
    return [line for number, note in enumerate(notes, 1) for line in _wrap(f"({number}) {note}")]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, TERMINAL_COLUMNS, subsequent_indent="  ") or [""]
