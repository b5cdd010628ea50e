"""The speeds of a study as pages and terminal show them: each arm cell by cell, each pair with its verdicts, band and explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.throughput.ratios import SCHEDULED
from engcmp_assets.publication.claims import pair_name, undeclared
from engcmp_assets.publication.formats import format_any, format_interval, listed, number, reason, value_parts

HEADLINES = ("ttft_median_ms", "decode_tok_s", "aggregate_tok_s", "prefill_tok_s")
"""The figures that tables show, of those that are compared; the others are listed with their ids."""
# What stands in their place where an engine does not say how many tokens its first update holds.
_INSTEAD = {"decode_first1_tok_s": "decode_tok_s"}
_SHOWN = 3  # cells that are named where a remark is of some of them

Summary = Mapping[str, Any]


def has_speed(summary: Summary) -> bool:
    """Whether the study measures speed and some arm has it."""
    return any(arm.get("speed") for arm in summary["arms"])


def speed_figures(owner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of speed that belong to an arm or a pair."""
    speed = owner.get("speed")
    if not speed:
        return []
    return list(speed["figures"]) if isinstance(speed, Mapping) else [one for cell in speed for one in cell["figures"]]


def speed_view(summary: Summary, anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """What the speed section of a page shows; None where nothing was measured of it."""
    if not has_speed(summary):
        return None
    terms = {term["measure"]: term for term in summary["terms"]}
    measured = [arm for arm in summary["arms"] if arm.get("speed")]
    cells = list(dict.fromkeys(cell["cell_id"] for arm in measured for cell in arm["speed"]))
    return {
        "cells": cells,
        "repeats": max(cell["repeats"] for arm in measured for cell in arm["speed"]),
        "requests": listed(sorted({str(cell["requests"]) for arm in measured for cell in arm["speed"]})),
        "tables": [
            {
                "measure": name,
                "title": terms[name]["title"],
                "unit": terms[name]["unit"],
                "rows": [{"arm": arm["arm"], "cells": [_cell(arm, cell, name, anchors) for cell in cells]} for arm in measured],
            }
            for name in _measures(measured)
        ],
        "pairs": [_pair(pair, terms, anchors) for pair in summary["comparisons"] if pair.get("speed")],
        "remarks": [*_open_loops(measured), *_remarks(measured)],
    }  # fmt: skip


def _measures(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The headline figures that some cell has; one that stands in for another only where no cell has that."""
    every = {
        one["measure"]
        for arm in measured
        for cell in arm["speed"]
        for one in cell["figures"]
        if number(one["value"]) is not None
    }
    for name in (*HEADLINES, *SCHEDULED):
        yield from [one for one in (name, *(own for own, meant in _INSTEAD.items() if meant == name)) if one in every][
            :1
        ]


def verdict_rows(summary: Summary) -> list[tuple[str, list[str]]]:
    """Each pair that was compared, by name, with the verdicts of each headline figure in words."""
    return [
        (pair_name(pair), [_sentence(pair, name) for name in HEADLINES])
        for pair in summary["comparisons"]
        if pair.get("speed")
    ]


def bands(summary: Summary) -> str:
    """What the noise bands are worth, in a sentence; the pages have each figure's own."""
    found = [
        one for pair in summary["comparisons"] if pair.get("speed") for one in pair["speed"]["measures"] if _is_headline(one["measure"])
    ]  # fmt: skip
    known = [one["band"] for one in found if "missing" not in one["band"]]
    if not known:
        return next((f"no noise band: {one['band']['missing']}" for one in found), "")
    declared, drifts = max(one["declared"] for one in known), [one["widest_drift"] for one in known]
    session = " of one session" if any("one session" in label for one in found for label in one["labels"]) else ""
    span = f"{min(drifts):.0%} to {max(drifts):.0%}"
    return (
        f"band declared ±{declared:.0%}; the repeats{session} differ by up to {span}, by figure and pair, and the wider one decides what "
        "is level."
    )


def _sentence(pair: Mapping[str, Any], name: str) -> str:
    """As `2 faster, 2 level, 0 slower of 4`; nothing where no cell has the figure."""
    same = [name, *(own for own, meant in _INSTEAD.items() if meant == name)]
    for one in pair["speed"]["measures"]:
        if one["measure"] in same:
            figures = [own for own in pair["speed"]["figures"] if own["measure"] == one["measure"]]
            return "none" if all(number(own["value"]) is None for own in figures) else str(one["sentence"])
    return "none"


def _band(band: Mapping[str, Any]) -> str:
    if "missing" in band:
        return f"no band: {band['missing']}"
    return f"band ±{band['share']:.1%} (declared ±{band['declared']:.1%}, the repeats differ by up to {band['widest_drift']:.1%})"


def _figure(arm: Mapping[str, Any], cell_id: str, measure: str) -> Mapping[str, Any] | None:
    found = (one for cell in arm["speed"] if cell["cell_id"] == cell_id for one in cell["figures"])
    figure = next((one for one in found if one["measure"] == measure), None)
    return None if figure is None or number(figure["value"]) is None else figure


def _cell(arm: Mapping[str, Any], cell_id: str, measure: str, anchors: Mapping[str, str]) -> dict[str, Any]:
    figure = _figure(arm, cell_id, measure)
    if figure is None:
        return {"value": None, "text": _why_not(arm, cell_id, measure), "spread": "", "again": ""}
    later = [one["value"] for one in figure["details"]["repeats"].values() if "value" in one]
    return {
        **value_parts(figure["value"], None),
        "anchor": anchors.get(figure["figure_id"]),
        "id": figure["figure_id"],
        "spread": spread_text(figure),
        "again": ", ".join(format_number(one) for one in later),
    }


def spread_text(figure: Mapping[str, Any]) -> str:
    """The outer deciles of the requests that a median is of, as `[10.1, 12.5]`; nothing for what is no median of several."""
    of = figure["details"].get("of") or {}
    if "p10" not in of or of.get("n", 0) < 2:  # noqa: PLR2004 - one request has no spread
        return ""
    return f"[{format_number(of['p10'])}, {format_number(of['p90'])}]"


def again_text(figure: Mapping[str, Any]) -> str:
    """The ratios of the later repeats, each with its own verdict word where that is another than the figure's."""
    floor = figure["floor"]
    again = floor["of_repeats"]
    words = floor.get("words_of_repeats") or [figure["verdict"]] * len(again)
    return ", ".join(
        format_any(one) + (f" ({word})" if number(one) is not None and word != figure["verdict"] else "")
        for one, word in zip(again, words, strict=True)
    )


def _why_not(arm: Mapping[str, Any], cell_id: str, measure: str) -> str:
    found = (one for cell in arm["speed"] if cell["cell_id"] == cell_id for one in cell["figures"])
    return next((reason(one["value"]) for one in found if one["measure"] == measure), "not measured")


def _open_loops(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    cells = (cell for arm in measured for cell in arm["speed"])
    names = [cell["cell_id"] for cell in cells if any(one["measure"] in SCHEDULED for one in cell["figures"])]
    if names:
        yield (
            f"in {', '.join(dict.fromkeys(names))} requests go out at a rate (r: that many a second), whatever comes back: an open loop, "
            "whose latency is also told from when a request was due, so that a client that sends late is not hidden"
        )


def labels_of_cells(summary: Summary) -> Iterator[str]:
    """What the names of cells promise and was not measured, each once, with the cells that it is of."""
    return _remarks([arm for arm in summary["arms"] if arm.get("speed")], ("labels",))


def _remarks(measured: Sequence[Mapping[str, Any]], of: Sequence[str] = ("flags", "labels")) -> Iterator[str]:
    """What must be known of the cells, each once, with the cells that it is of."""
    cells = [(f"{arm['arm']} {cell['cell_id']}", cell) for arm in measured for cell in arm["speed"]]
    found: dict[str, list[str]] = {}
    for name, cell in cells:
        for text in (text for kind in of for text in cell[kind]):
            found.setdefault(text, []).append(name)
    for text, names in found.items():
        if len(names) == len(cells):
            yield f"{text} (in every cell)"
        else:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield f"{text} (in {len(names)} of {len(cells)} cells: {', '.join(names[:_SHOWN])}{more})"


def _pair(pair: Mapping[str, Any], terms: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any]:
    shown = [
        one
        for one in pair["speed"]["measures"]
        if _is_headline(one["measure"]) and _sentence(pair, one["measure"]) != "none"
    ]
    figures = [
        one
        for one in pair["speed"]["figures"]
        if one["measure"] in {own["measure"] for own in shown} and number(one["value"]) is not None
    ]
    common = [
        text for text in (figures[0]["labels"] if figures else ()) if all(text in one["labels"] for one in figures)
    ]
    return {
        "label": pair["label"],
        "undeclared_text": undeclared(pair),
        "candidate": pair["candidate"],
        "baseline": pair["baseline"],
        "sentences": [
            {
                "measure": one["measure"], "title": terms.get(one["measure"], {}).get("title", one["measure"]),
                "sentence": one["sentence"], "band": _band(one["band"]), "labels": one["labels"],
            }
            for one in shown
        ],
        "labels": common,
        "rows": [_row(one, anchors, common) for one in figures],
        "ranges": list(_ranges(figures, terms)),
        "why": [_why(one) for one in pair["speed"]["explanation"]["cells"]],
    }  # fmt: skip


def _ranges(figures: Sequence[Mapping[str, Any]], terms: Mapping[str, Any]) -> Iterator[str]:
    """Of each figure at each length and width: from the least to the largest ratio over several kinds of content."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for one in figures:
        kind, _, rest = str(one["population"]).partition("-")  # no name of a kind has a hyphen
        found.setdefault((one["measure"], rest), []).append((float(one["value"]), kind))
    for (measure, rest), ratios in found.items():
        if len(ratios) > 1:
            (low, least), (high, most) = min(ratios), max(ratios)
            title = terms.get(measure, {}).get("title", measure)
            yield f"{title}, {rest}: {format_number(low)} ({least}) to {format_number(high)} ({most}) over {len(ratios)} kinds of content"


def _row(one: Mapping[str, Any], anchors: Mapping[str, str], common: Sequence[str]) -> dict[str, Any]:
    """A figure of a pair as a line of its table; what holds of every line is not said again."""
    return {
        **value_parts(one["value"], one["interval"] if format_interval(one["interval"]) else None),
        "anchor": anchors.get(one["figure_id"]), "id": one["figure_id"], "cell": one["population"], "measure": one["measure"],
        "candidate": format_any(one["candidate_value"]), "baseline": format_any(one["baseline_value"]), "unit": one["value_unit"],
        "verdict": one["verdict"], "again": again_text(one) or "not repeated",
        "labels": "; ".join(text for text in one["labels"] if text not in common),
    }  # fmt: skip


def _is_headline(measure: str) -> bool:
    return _INSTEAD.get(measure, measure) in (*HEADLINES, *SCHEDULED)


def _why(cell: Mapping[str, Any]) -> str:
    """The scheduling explanation of a cell in a sentence; a single stream has nothing beside it, so that its parts alone are told."""
    words = f"{cell['cell_id']}: "
    overlap = [number(one) for one in cell["overlap_share"]]
    if any(overlap):
        shares = " and ".join(format_any(one) for one in cell["overlap_share"])
        words += f"a share of {shares} (candidate and baseline) of decoding lies beside others' prefill; "
    if number(cell["decode_ratio"]) is not None:
        words += f"streams decode {format_any(cell['decode_ratio'])} times as fast"
        clean = number(cell["clean_decode_ratio"])
        words += (
            f", {format_any(cell['clean_decode_ratio'])} times without prefill beside them"
            if any(overlap) and clean
            else ""
        )
        words += "; "
    parts = cell["aggregate"]
    if "missing" in parts:
        return f"{words}{parts['missing']}."
    total, first = float(parts["total_ms"]), float(parts["prefill_ms"])
    split = f"{_more(first)} before the last first token and {_more(total - first)} after it"
    return f"{words}1,000 tokens of all streams take {_more(total)}: {split}."


def _more(milliseconds: float) -> str:
    return f"{format_number(abs(milliseconds))} ms {'less' if milliseconds < 0 else 'more'}"
