"""What the two page templates show, in order and already written as text; a template only places it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL, BLOCK
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.chart import chart_view, plot_text
from engcmp_assets.publication.claims import claim, headline, short_names
from engcmp_assets.publication.formats import (
    counted,
    floor_view,
    format_any,
    format_count,
    format_interval,
    format_percent,
    not_measured,
    number,
    reason,
    value_parts,
)
from engcmp_assets.publication.notes import notes

_BYTES_PER_MB = 1_000_000
_NAME_CHARACTERS = 14  # a longer name does not fit the head of a narrow column
_NO_FLOOR = {"missing": "no floor was recorded"}

Figure = Mapping[str, Any]


def page_view(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that both pages show, made from the summary alone."""
    terms = terms_of(summary)
    owners = list(_owners(summary))
    anchors = {entry["figure_id"]: entry["place"] for owner in owners for entry in owner["figures"]}
    return {
        "panels": [_panel_view(panel, summary, anchors) for panel in panels_of(summary)],
        "arms": [_arm_view(arm) for arm in summary["arms"]],
        "comparisons": [_pair_view(pair, terms, anchors) for pair in summary["comparisons"]],
        "notes": notes(summary),
        "owners": owners,
        "chart": chart_view(summary["plot"]),
        "plot_text": plot_text(summary["plot"]),
    }


def terms_of(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The summary's terms by measure id, in their order."""
    return {term["measure"]: term for term in summary["terms"]}


def panel_of(figure: Figure) -> str:
    """The panel that a figure was measured on: the part of its id before population and measure."""
    owner = str(figure["figure_id"]).removesuffix(f"/{figure['population']}/{figure['measure']}")
    return owner.rsplit("/", 1)[-1]


def panels_of(summary: Mapping[str, Any]) -> list[str]:
    """The panels that the arms' figures come from, in their order."""
    return list(dict.fromkeys(panel_of(figure) for arm in summary["arms"] for figure in arm["figures"]))


def measures_of(summary: Mapping[str, Any], panel: str) -> list[str]:
    """The measures that an arm has over all rows of `panel`: as the terms list them, then any other."""
    whole = [one for arm in summary["arms"] for one in arm["figures"] if one["population"] == ALL]
    found = dict.fromkeys(figure["measure"] for figure in whole if panel_of(figure) == panel)
    return [name for name in terms_of(summary) if name in found] + [
        name for name in found if name not in terms_of(summary)
    ]


def find_figure(arm: Mapping[str, Any], panel: str, measure: str, population: str) -> Figure | None:
    """An arm's figure, or None where it was not made."""
    wanted = (measure, population)
    fitting = (figure for figure in arm["figures"] if (figure["measure"], figure["population"]) == wanted)
    return next((figure for figure in fitting if panel_of(figure) == panel), None)


def blocks_of(summary: Mapping[str, Any], panel: str) -> dict[str, int]:
    """The blocks of `panel` with their number of documents, in the order of the figures."""
    figures = [one for arm in summary["arms"] for one in arm["figures"] if panel_of(one) == panel]
    chosen = [figure for figure in figures if figure["population"].startswith(BLOCK)]
    return {figure["population"].removeprefix(BLOCK): figure["clusters"] for figure in chosen}


def measured_on(summary: Mapping[str, Any], panel: str) -> list[Mapping[str, Any]]:
    """The arms that have a figure on `panel`."""
    return [arm for arm in summary["arms"] if any(panel_of(figure) == panel for figure in arm["figures"])]


def population_name(population: str) -> str:
    """`all rows`, or the block's name."""
    return "all rows" if population == ALL else population.removeprefix(BLOCK)


def _panel_view(panel: str, summary: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any]:
    terms, measures, blocks = terms_of(summary), measures_of(summary, panel), blocks_of(summary, panel)
    labels = {one["panel"]: one["label"] for one in summary.get("panels", [])}
    measured = measured_on(summary, panel)
    few = sorted({count for count in blocks.values()})
    return {
        "panel": panel,
        "label": labels.get(panel, f"panel {panel}"),
        "measures": [_heading(name, terms) for name in measures],
        "arms": [
            {"arm": arm["arm"], "cells": [_cell(find_figure(arm, panel, name, ALL), anchors) for name in measures]}
            for arm in measured
        ],
        "blocks": [{"name": name, "documents": counted(count, "document")} for name, count in blocks.items()],
        "few_documents": counted(few[0], "document") if len(few) == 1 else None,
        "by_block": [
            {
                **_heading(name, terms),
                "rows": [
                    {
                        "arm": arm["arm"],
                        "cells": [_cell(find_figure(arm, panel, name, BLOCK + block), anchors) for block in blocks],
                    }
                    for arm in measured
                ],
            }
            for name in measures
            if blocks
        ],
    }


def _heading(measure: str, terms: Mapping[str, Any]) -> dict[str, str]:
    term = terms.get(measure, {})
    return {"measure": measure, "title": term.get("title", measure), "unit": term.get("unit", "")}


def _cell(figure: Figure | None, anchors: Mapping[str, str]) -> dict[str, Any]:
    """One figure in a table: its parts as text, its floor, and the place on the page that holds its id."""
    if figure is None:
        return {**value_parts({"missing": "no figure was made"}, None), "anchor": None, "id": None, "floor": None}
    return {**_linked(figure, anchors), "floor": floor_view(figure.get("details", {}).get("floor"))}


def _linked(figure: Figure, anchors: Mapping[str, str]) -> dict[str, Any]:
    return {
        **value_parts(figure["value"], figure.get("interval")),
        "anchor": anchors[figure["figure_id"]],
        "id": figure["figure_id"],
    }


def _arm_view(arm: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **arm,
        "reason_text": None if arm["state"] == "measured" else not_measured(arm),
        "size": f"{format_number(arm['file_bytes'] / _BYTES_PER_MB)} MB" if arm.get("file_bytes") else "not recorded",
    }


# Comparisons.


def _pair_view(pair: Mapping[str, Any], terms: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any]:
    measured = pair["state"] == "measured" or bool(pair["figures"])
    names = short_names(pair["candidate"], pair["baseline"])
    short = max(map(len, names)) <= _NAME_CHARACTERS
    keys = list(dict.fromkeys((panel_of(figure), figure["measure"]) for figure in pair["figures"]))
    panels = {panel for panel, _ in keys}
    return {
        **pair,
        "reason_text": None if measured else not_measured(pair),
        "looks": counted(len(pair["figures"]), "difference"),
        "heads": names if short else ("candidate", "baseline"),
        "answer": _answer(pair, terms, anchors),
        "levels": [_level(pair, "interval", "Interval"), _level(pair, "interval_bonferroni", "Family interval")],
        "groups": [
            {
                **_heading(measure, terms),
                "panel": panel if len(panels) > 1 else None,
                "rows": [
                    _look(figure, anchors)
                    for figure in pair["figures"]
                    if (panel_of(figure), figure["measure"]) == (panel, measure)
                ],
            }
            for panel, measure in keys
        ],
    }


def _answer(pair: Mapping[str, Any], terms: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """The comparison at a glance: the claim of its headline look, how far, how sure; then its other looks in a sentence."""
    figure = headline(pair["figures"])
    if figure is None:
        return None
    names = short_names(pair["candidate"], pair["baseline"])
    means = [figure.get("candidate_mean"), figure.get("baseline_mean")]
    others = [one for one in pair["figures"] if one["population"] == ALL and one is not figure]
    return {
        "claim": claim(pair, figure, terms.get(figure["measure"], {})),
        "title": terms.get(figure["measure"], {}).get("title", figure["measure"]),
        "means": [
            {"name": name, "value": format_number(float(mean))}
            for name, mean in zip(names, means, strict=True)
            if mean is not None
        ],
        "look": _look(figure, anchors),
        "others": [{"verdict": one["verdict"], "sentence": one.get("sentence", "")} for one in others],
    }


def _level(pair: Mapping[str, Any], key: str, otherwise: str) -> str:
    """The head of a column of intervals: their level, where all have the same."""
    levels = {figure[key]["level"] for figure in pair["figures"] if "level" in (figure.get(key) or {})}
    return f"{format_percent(levels.pop())} interval" if len(levels) == 1 else otherwise


def _look(figure: Figure, anchors: Mapping[str, str]) -> dict[str, Any]:
    """One difference as a row: value, the interval, the one for the family, floor, verdict, and what speaks for or against."""
    wide, flip = figure.get("interval_bonferroni"), figure.get("sign_flip_p")
    flip_p = None if flip is None else number(flip)
    return {
        **_linked(figure, anchors),
        "rows_text": population_name(figure["population"]),
        "documents": counted(figure["clusters"], "document"),
        "rows": format_count(figure["rows"]),
        "unit": figure["unit"],
        "whole": figure["population"] == ALL,
        "primary": bool(figure.get("primary")),
        "candidate": _mean(figure.get("candidate_mean")),
        "baseline": _mean(figure.get("baseline_mean")),
        "wide": format_interval(wide) or ("not recorded" if wide is None else f"none: {reason(wide)}"),
        "floor": floor_view(figure.get("floor")) or floor_view(_NO_FLOOR),
        "verdict": figure["verdict"],
        "sentence": figure.get("sentence", ""),
        "exact_p": None if flip_p is None else f"exact p {flip_p:.4g}",
        "doubts": _doubts(figure),
    }


def _mean(value: Any) -> str:
    return "not recorded" if value is None else format_any(value)


def _doubts(figure: Figure) -> dict[str, str]:
    """What the other ways to look at one difference read (MEASURES section 4, sensitivity)."""
    against = figure.get("against_each_run")
    moving, bound = figure.get("largest_cluster"), figure.get("bound")
    cluster = moving.get("cluster") if isinstance(moving, Mapping) else None
    moves = f"{cluster} ({format_any(moving['without'])})" if cluster and moving else _said(moving)
    same = figure.get("sign_clusters")
    return {
        "leave_one_out": _said(figure.get("leave_one_out")),
        "moves": moves,
        "agree": _said(same) if not isinstance(same, int) else f"{same:,} of {figure['clusters']:,}",
        "against": f"{sum(bool(one['stands']) for one in against)} of {len(against)}" if against else "not recorded",
        "bound": "zero is excluded" if figure["verdict"].startswith("resolved") else _said(bound),
    }


def _said(value: Any) -> str:
    if value is None:
        return "not recorded"
    return reason(value) if isinstance(value, Mapping) and "missing" in value else format_any(value)


# Every figure, with the id that `engcmp trace` takes.


def _owners(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Arms and pairs with their figures, each with the place on the page that holds its id."""
    owners: list[tuple[str, Sequence[Figure]]] = [(arm["arm"], arm["figures"]) for arm in summary["arms"]]
    owners += [(pair["label"], pair["figures"]) for pair in summary["comparisons"]]
    taken = 0
    for owner, figures in owners:
        if figures:
            yield {"owner": owner, "count": counted(len(figures), "figure"), "figures": _entries(figures, taken)}
        taken += len(figures)


def _entries(figures: Iterable[Figure], taken: int) -> list[dict[str, Any]]:
    return [
        {
            **value_parts(figure["value"], figure.get("interval")),
            "label": figure["label"],
            "unit": figure["unit"],
            "rows": format_count(figure["rows"]),
            "documents": format_count(figure["clusters"]),
            "figure_id": figure["figure_id"],
            "anchor": None,
            "place": f"figure-{place}",
        }
        for place, figure in enumerate(figures, taken + 1)
    ]
