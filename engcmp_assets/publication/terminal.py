"""The summary for a terminal: what a person wants to see when a run has ended; everything else is on the pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL, BLOCK
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS
from engcmp_assets.publication.claims import short_sentence, verdict_word
from engcmp_assets.publication.formats import (
    counted,
    floor_view,
    format_interval,
    format_percent,
    listed,
    not_measured,
    number,
    reason,
)
from engcmp_assets.publication.notes import family_sizes, floors_are_zero, primary_measures
from engcmp_assets.publication.view import (
    blocks_of,
    find_figure,
    measured_on,
    measures_of,
    panels_of,
    terms_of,
)

TERMINAL_COLUMNS = 100
_GAP = "  "
_INDENT = 32  # of a sentence's further lines
_ZERO = "0 / 0"


def terminal_table(summary: Mapping[str, Any]) -> str:
    """The arms over all rows, each comparison in a line for each measure, the primary measure by block; then how to read it."""
    notes: list[str] = []
    parts = [[*_wrap(f"{summary['title']} ({summary['study']})"), *_wrap(summary["question"])]]
    parts.append(_arms(summary, notes))
    parts.append([line for arm in summary["arms"] if arm["state"] != "measured" for line in _absent(arm)])
    parts.append([line for pair in summary["comparisons"] for line in _pair(summary, pair)])
    parts.append(_blocks(summary, notes))
    marked = [line for place, note in enumerate(notes, 1) for line in _wrap(f"({place}) {note}")]
    parts.append([*marked, *(line for text in _legend(summary) for line in _wrap(text))])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _shown(summary: Mapping[str, Any]) -> dict[str, str]:
    """Each measure over all rows with the first panel that has it; the other panels' values of it are on the pages."""
    found: dict[str, str] = {}
    for panel in panels_of(summary):
        found |= {name: panel for name in measures_of(summary, panel) if name not in found}
    return found


def _arms(summary: Mapping[str, Any], notes: list[str]) -> list[str]:
    """Each arm with its values, its intervals, and its floors where they are not 0; so many measures as the width holds."""
    arms = [arm for arm in summary["arms"] if arm["figures"]]
    shown = _shown(summary)
    figures = [[find_figure(arm, panel, name, ALL) for name, panel in shown.items()] for arm in arms]
    rows = [["arm", *shown]]
    for arm, found in zip(arms, figures, strict=True):
        rows.append([arm["arm"], *(_value(figure, notes) for figure in found)])
        rows.append(["", *(_interval(figure, notes) for figure in found)])
        floors = [_floor(figure, notes) for figure in found]
        if any(floor not in ("", _ZERO) for floor in floors):
            rows.append(["  floor", *floors])
    return _table(rows) if arms else []


def _value(figure: Mapping[str, Any] | None, notes: list[str]) -> str:
    """The value. A reason is too long for a column: `(n)` stands for it, the notes hold it."""
    if figure is None:
        return "none"
    value = number(figure["value"])
    return f"not measured {_mark(notes, reason(figure['value']))}" if value is None else format_number(value)


def _interval(figure: Mapping[str, Any] | None, notes: list[str]) -> str:
    if figure is None or number(figure["value"]) is None:
        return ""
    interval = figure.get("interval")
    lacking = isinstance(interval, Mapping) and not format_interval(interval)
    return f"no interval {_mark(notes, reason(interval))}" if lacking else format_interval(interval)


def _floor(figure: Mapping[str, Any] | None, notes: list[str]) -> str:
    """The floor's two values without their intervals, which the pages show: `0 / 0.0001230`."""
    view = floor_view((figure or {}).get("details", {}).get("floor"))
    if view is None:
        return "" if figure is None else "not declared"
    texts = [part["text"] for part in view["parts"]]
    return " / ".join(_mark(notes, text) if text.startswith("not measured") else text.split()[0] for text in texts)


def _mark(notes: list[str], text: str) -> str:
    if text not in notes:
        notes.append(text)
    return f"({notes.index(text) + 1})"


def _absent(arm: Mapping[str, Any]) -> list[str]:
    return _wrap(f"{arm['arm']}: {not_measured(arm)}")


def _pair(summary: Mapping[str, Any], pair: Mapping[str, Any]) -> list[str]:
    """The comparison's label, then verdict and one short sentence for each measure over all rows."""
    if not pair["figures"]:
        return _wrap(f"{pair['label']}: {not_measured(pair)}")
    looks: dict[str, Mapping[str, Any]] = {}
    for figure in pair["figures"]:
        if figure["population"] == ALL:
            looks.setdefault(figure["measure"], figure)
    if looks and all(verdict_word(figure) == "bit-identical" for figure in looks.values()):
        return _wrap(f"{pair['label']}: bit-identical, every row of every window")
    terms, lines = terms_of(summary), _wrap(pair["label"])
    left = max(map(len, looks), default=0)
    middle = max((len(figure["verdict"]) for figure in looks.values()), default=0)
    for name, figure in looks.items():
        start = f"  {name:{left}}{_GAP}{figure['verdict']:{middle}}{_GAP}"
        sentence = short_sentence(pair, figure, terms.get(name, {}))
        lines += textwrap.wrap(sentence, TERMINAL_COLUMNS, initial_indent=start, subsequent_indent=" " * _INDENT)
    return lines


def _blocks(summary: Mapping[str, Any], notes: list[str]) -> list[str]:
    """The first primary measure by block, values only."""
    shown = _shown(summary)
    measure = next((name for name in primary_measures(summary) if name in shown), next(iter(shown), None))
    blocks = blocks_of(summary, shown[measure]) if measure else {}
    if measure is None or not blocks:
        return []
    rows = [[f"{measure} by block", *blocks]]
    for arm in measured_on(summary, shown[measure]):
        figures = (find_figure(arm, shown[measure], measure, BLOCK + block) for block in blocks)
        rows.append([arm["arm"], *(_value(figure, notes) for figure in figures)])
    return _table(rows)


def _legend(summary: Mapping[str, Any]) -> Iterator[str]:
    """How to read what stands above, in as few lines as can be."""
    primary, sizes = primary_measures(summary), family_sizes(summary)
    looks = [figure for pair in summary["comparisons"] for figure in pair["figures"]]
    wide = {one["interval_bonferroni"]["level"] for one in looks if format_interval(one.get("interval_bonferroni"))}
    own = {one["interval"]["level"] for one in looks if one.get("primary") and format_interval(one.get("interval"))}
    if primary and len(own) == len(wide) == len(sizes) == 1:
        yield (
            f"Intervals: {format_percent(own.pop())}; in comparisons {format_percent(wide.pop())} but for {listed(primary)}: "
            f"{counted(sizes[0], 'further look')} share one error rate."
        )
    if floors_are_zero(summary):
        yield "Floor: 0 within a launch and across launches, for every figure: all repeats agree on every row."
    else:
        yield "Floor: between runs of one arm, within a launch / across launches; 0 where none is shown."
    shown = _shown(summary).items()
    elsewhere = [
        panel for panel in panels_of(summary) if any((name, panel) not in shown for name in measures_of(summary, panel))
    ]
    if elsewhere:
        yield f"The pages also have the same measures on {listed([f'panel {panel}' for panel in elsewhere])}."
    few = min((one["clusters"] for one in looks if one["population"] == ALL), default=BOOTSTRAP_CLUSTERS)
    if few < BOOTSTRAP_CLUSTERS:
        yield f"There are only {counted(few, 'document')}: so few resolve little or nothing, as the pages explain."
    smallest = min((count for panel in panels_of(summary) for count in blocks_of(summary, panel).values()), default=0)
    if smallest:
        yield f"By block there are as few as {counted(smallest, 'document')}: intervals and verdicts are on the pages."


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned lines, the first with a rule under it; columns that do not fit the width follow in a further table."""
    first, *others = list(zip(*rows, strict=True))
    lines: list[str] = []
    group, used = [first], _width(first)
    for column in [*others, None]:
        if column is None or (len(group) > 1 and used + len(_GAP) + _width(column) > TERMINAL_COLUMNS):
            lines += [*([""] if lines else []), *_aligned(group)]
            group, used = [first], _width(first)
        if column is not None:
            group.append(column)
            used += len(_GAP) + _width(column)
    return lines


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Columns as lines; a line that is too long for the terminal is wrapped as words."""
    widths = [_width(column) for column in columns]
    lines = [
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    lines.insert(1, _GAP.join("-" * width for width in widths)[:TERMINAL_COLUMNS])
    return [part for line in lines if line for part in ([line] if len(line) <= TERMINAL_COLUMNS else _wrap(line))]


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, TERMINAL_COLUMNS, subsequent_indent="  ") or [""]
