"""The summary for a terminal: what a person wants to see when a run has ended; everything else is on the pages."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS
from engcmp_assets.publication.claims import (
    BIT_IDENTICAL,
    brief,
    declared_interval,
    distance,
    headline,
    identical_rows,
    is_identical,
    pair_name,
    rows_said,
    undeclared,
)
from engcmp_assets.publication.formats import (
    FLOORS,
    arm_remarks,
    counted,
    floor_view,
    format_interval,
    format_measured,
    format_percent,
    listed,
    not_measured,
    number,
    reason,
)
from engcmp_assets.publication.notes import early_lines, floors_are_zero, floors_not_measured
from engcmp_assets.publication.replies import identity_lines, outcome_rows, passed_rows, replies_lead
from engcmp_assets.publication.speed import HEADLINES, bands, labels_of_cells, verdict_rows
from engcmp_assets.publication.view import find_figure, measures_of, panels_of, terms_of

TERMINAL_COLUMNS = 100
_GAP = "  "
_ZERO = "0 / 0"
_NONE = "none"

Figure = Mapping[str, Any]


def terminal_table(summary: Mapping[str, Any]) -> str:
    """The arms on the first panel, how far apart each pair is, which side is closer to the reference; then how to read it."""
    notes: list[str] = []
    parts = [[*_wrap(f"{summary['title']} ({summary['study']})"), *_wrap(summary["question"])]]
    parts.append([line for text in early_lines(summary) for line in _wrap(text)])
    lead = replies_lead(summary)
    parts += _replies(summary) if lead else []
    parts.append(_arms(summary, notes))
    parts.append([line for arm in summary["arms"] for line in _absent(arm)])
    parts += _undeclared(summary)
    parts += _apart(summary)
    parts += _closer(summary)
    parts += _speeds(summary)
    parts += [] if lead else _replies(summary)
    parts.append([line for pair in summary["comparisons"] if not pair["figures"] for line in _uncompared(pair)])
    marked = [line for place, note in enumerate(notes, 1) for line in _wrap(f"({place}) {note}")]
    parts.append([*marked, *(line for text in _legend(summary) for line in _wrap(text))])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _speeds(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Each pair's speeds in counts of cells, what the noise band is worth, and what cells do not hold that their names promise."""
    rows = verdict_rows(summary)
    if rows:
        said = [f"Speed: {bands(summary)}", *(f"Speed: {text}." for text in labels_of_cells(summary))]
        table = _table([["Speed, cells by verdict", *HEADLINES], *([name, *words] for name, words in rows)])
        yield [*table, "", *(line for text in said for line in _wrap(text))]


def _replies(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """How long replies ended, what of them passed, and how many are the same between versions of one engine."""
    for rows in (outcome_rows(summary), passed_rows(summary)):
        if rows:
            yield _table(rows)
    lines = [line for text in identity_lines(summary) for line in _wrap(text)]
    if lines:
        yield lines


def _arms(summary: Mapping[str, Any], notes: list[str]) -> list[str]:
    """Each arm on the first panel: its values, their intervals, and its floors where they are not 0."""
    arms, panels = [arm for arm in summary["arms"] if arm["figures"]], panels_of(summary)
    if not panels:
        return []
    names = measures_of(summary, panels[0])
    figures = [[find_figure(arm, panels[0], name, ALL) for name in names] for arm in arms]
    rows = [[f"arm, panel {panels[0]}", *names]]
    for arm, found in zip(arms, figures, strict=True):
        rows.append([arm["arm"], *(_value(figure, notes) for figure in found)])
        rows.append(["", *(_interval(figure, notes) for figure in found)])
        floors = [_floor(figure, notes) for figure in found]
        if any(floor not in ("", _ZERO) for floor in floors):
            rows.append(["  floor", *floors])
    return _table(rows)


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
    """Why an arm does not stand in the table, or what of it is not asked for or is no primary result."""
    words = [not_measured(arm)] if arm["state"] != "measured" else arm_remarks(arm)
    return _wrap(f"{arm['arm']}: {'; '.join(words)}") if words else []


def _uncompared(pair: Mapping[str, Any]) -> list[str]:
    return _wrap(f"{pair['label']}: {not_measured(pair)}")


def _undeclared(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Before any pair's figures: in what its launches differ that nothing declares, pairs of like launches together."""
    found: dict[str, list[str]] = {}
    for pair in summary["comparisons"]:
        if text := undeclared(pair):
            found.setdefault(text, []).append(pair_name(pair))
    lines = [line for text, names in found.items() for line in _wrap(f"{'; '.join(names)}: {text}")]
    if lines:
        yield lines


def _apart(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """How far apart the two sides of each pair are, arms and score paths alike; a table for each measure that says so."""
    found = [(pair, distance(pair)) for pair in summary["comparisons"]]
    for measure in dict.fromkeys(figure["measure"] for _, figure in found if figure):
        rows = [["How far apart", "How far apart", measure, BIT_IDENTICAL, "floor"]]
        for pair, figure in found:
            if figure and figure["measure"] == measure:
                same = identical_rows(pair, figure["panel"])
                identical = _NONE if same is None else rows_said(same)
                rows.append([*_names(pair), _bare(figure), identical, _distance_floor(figure)])
        yield _named_table(rows)


def _closer(summary: Mapping[str, Any]) -> Iterator[list[str]]:
    """Each pair's headline difference in a line; a table for each measure that is a headline."""
    terms = terms_of(summary)
    found = [(pair, headline(pair["figures"])) for pair in summary["comparisons"]]
    for measure in dict.fromkeys(figure["measure"] for _, figure in found if figure):
        rows = [["Closer to the reference?", "Closer to the reference?", f"{measure}, first minus second", "verdict"]]
        for pair, figure in found:
            if figure and figure["measure"] == measure:
                verdict = BIT_IDENTICAL if is_identical(pair) else figure["verdict"]
                rows.append([*_names(pair), brief(pair, figure, terms.get(measure, {})), verdict])
        yield _named_table(rows)


def _names(pair: Mapping[str, Any]) -> tuple[str, str]:
    return pair_name(pair), str(pair["pair_id"])


def _named_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pairs as one table: by name where that fits the width, else by id. Each row starts with both."""
    by_name, by_id = ([[row[place], *row[2:]] for row in rows] for place in (0, 1))
    columns = list(zip(*by_name, strict=True))
    fits = sum(map(_width, columns)) + len(_GAP) * (len(columns) - 1) <= TERMINAL_COLUMNS
    return _table(by_name if fits else by_id)


def _bare(figure: Figure) -> str:
    """A value with its interval where it has one."""
    interval = figure.get("interval")
    shown = format_interval(interval) and figure["verdict"] != BIT_IDENTICAL
    return format_measured(figure["value"], interval if shown else None)


def _distance_floor(figure: Figure) -> str:
    """`0`, or within a launch / across launches where they read otherwise; what was not measured is `none`."""
    floor = figure.get("floor")
    parts = [floor.get(key) if isinstance(floor, Mapping) else None for key, _ in FLOORS]
    values = [number(part["value"]) if isinstance(part, Mapping) and "value" in part else None for part in parts]
    texts = [_NONE if value is None else format_number(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _legend(summary: Mapping[str, Any]) -> Iterator[str]:
    """How to read what stands above, in as few lines as can be."""
    panels = panels_of(summary)
    names = measures_of(summary, panels[0]) if panels else []
    arms = [find_figure(arm, panels[0], name, ALL) for arm in summary["arms"] for name in names]
    heads = [figure for pair in summary["comparisons"] if (figure := headline(pair["figures"]))]
    own = _levels([one.get("interval") for one in arms if one])
    deciding = _levels([declared_interval(one) for one in heads])
    if own:
        also = f" ({listed(deciding)} where a look shares its error rate)" if set(deciding) - set(own) else ""
        yield f"Intervals: {listed(own)}{also}. An effect outside its interval is excluded. Other measures, blocks: on the pages."
    if floors_are_zero(summary) and not floors_not_measured(summary):
        yield "Floor: 0 within a launch and across launches, for every figure: all repeats agree on every row."
    elif floors_are_zero(summary):
        yield "Floor: 0 within a launch / across launches wherever measured: all repeats agree on every row."
    else:
        yield "Floor: between runs of one arm, within a launch / across launches; 0 where none is shown."
    few = min((one["clusters"] for one in heads if len(_levels([declared_interval(one)]))), default=BOOTSTRAP_CLUSTERS)
    if few < BOOTSTRAP_CLUSTERS:
        yield f"There are only {counted(few, 'document')}: so few resolve little or nothing, as the pages explain."
    if len(panels) > 1:
        yield f"The pages also have {listed([f'panel {panel}' for panel in panels[1:]])}."


def _levels(intervals: Sequence[Any]) -> list[str]:
    return [format_percent(level) for level in sorted({one["level"] for one in intervals if format_interval(one)})]


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
