"""What the two page templates show, in order and already written as text; a template only places it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL, BUCKET, population_words
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.uncertainty import INTERVAL_CLUSTERS
from engcmp_assets.publication.chart import chart_view, plot_text
from engcmp_assets.publication.claims import (
    APART,
    BIT_IDENTICAL,
    NAME_CHARACTERS,
    claim,
    compares_paths,
    differences,
    distance,
    headline,
    identical_rows,
    is_distance,
    is_identical,
    pair_name,
    rows_said,
    short_sentence,
    side_names,
    undeclared,
    value_only,
    verdict_word,
)
from engcmp_assets.publication.formats import (
    arm_words,
    counted,
    floor_view,
    format_any,
    format_count,
    format_interval,
    format_percent,
    listed,
    not_measured,
    number,
    reason,
    value_parts,
)
from engcmp_assets.publication.gaps import gap_lines
from engcmp_assets.publication.notes import early_lines, notes
from engcmp_assets.publication.owned import figures_of_owner
from engcmp_assets.publication.replies import replies_lead, replies_view
from engcmp_assets.publication.speed import speed_view
from engcmp_assets.publication.startup import startup_view
from engcmp_assets.publication.stated import refuse_overreach
from engcmp_assets.publication.stated_counts import counts_of_cells, refuse_stated

_BYTES_PER_MB = 1_000_000
_NO_FLOOR = {"missing": "no floor was recorded"}

Figure = Mapping[str, Any]


def page_view(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that both pages show, made from the summary alone. Raises EngcmpError where a page would overreach."""
    refuse_overreach(summary["comparisons"])
    refuse_stated(one for pair in summary["comparisons"] for one in counts_of_cells(pair))
    terms = terms_of(summary)
    owners = list(_owners(summary))
    anchors = {entry["figure_id"]: entry["place"] for owner in owners for entry in owner["figures"]}
    return {
        "panels": (panels := [_panel_view(panel, summary, anchors) for panel in panels_of(summary)]),
        "by_length": any(panel["by_length"] for panel in panels),
        "arms": [_arm_view(arm) for arm in summary["arms"]],
        "comparisons": [_pair_view(pair, summary, anchors) for pair in summary["comparisons"]],
        "apart": _apart(summary["comparisons"], terms, anchors),
        "speed": speed_view(summary, anchors),
        "startup": startup_view(summary, anchors),
        "replies": replies_view(summary, anchors),
        "replies_lead": replies_lead(summary),
        "notes": notes(summary),
        "early": early_lines(summary),
        "owners": owners,
        "chart": chart_view(summary["plot"]),
        "plot_text": plot_text(summary["plot"]),
    }


def terms_of(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The summary's terms by measure id, in their order."""
    return {term["measure"]: term for term in summary["terms"]}


def panels_of(summary: Mapping[str, Any]) -> list[str]:
    """The panels that the arms' figures come from, in their order."""
    return list(dict.fromkeys(figure["panel"] for arm in summary["arms"] for figure in arm["figures"]))


def measures_of(summary: Mapping[str, Any], panel: str) -> list[str]:
    """The measures that an arm has over all rows of `panel`: as the terms list them, then any other."""
    whole = [one for arm in summary["arms"] for one in arm["figures"] if one["population"] == ALL]
    found = dict.fromkeys(figure["measure"] for figure in whole if figure["panel"] == panel)
    return [name for name in terms_of(summary) if name in found] + [
        name for name in found if name not in terms_of(summary)
    ]


def find_figure(arm: Mapping[str, Any], panel: str, measure: str, population: str) -> Figure | None:
    """An arm's figure, or None where it was not made."""
    wanted = (measure, population)
    fitting = (figure for figure in arm["figures"] if (figure["measure"], figure["population"]) == wanted)
    return next((figure for figure in fitting if figure["panel"] == panel), None)


def parts_of(summary: Mapping[str, Any], panel: str) -> dict[str, int]:
    """The populations of `panel` beside all rows, with their number of documents, in the order of the figures."""
    figures = [one for arm in summary["arms"] for one in arm["figures"] if one["panel"] == panel]
    return {figure["population"]: figure["clusters"] for figure in figures if figure["population"] != ALL}


def measured_on(summary: Mapping[str, Any], panel: str) -> list[Mapping[str, Any]]:
    """The arms that have a figure on `panel`."""
    return [arm for arm in summary["arms"] if any(figure["panel"] == panel for figure in arm["figures"])]


def _panel_view(panel: str, summary: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any]:
    terms, measures, blocks = terms_of(summary), measures_of(summary, panel), parts_of(summary, panel)
    measured = measured_on(summary, panel)
    few = sorted({count for count in blocks.values()})
    return {
        "panel": panel,
        "label": _panel_label(summary, panel),
        "about": list(_about(summary, panel)),
        "values_only": _values_only(summary, panel, ALL),
        "measures": [_heading(name, terms) for name in measures],
        "arms": [
            {"arm": arm["arm"], "cells": [_cell(find_figure(arm, panel, name, ALL), anchors) for name in measures]}
            for arm in measured
        ],
        "by_length": any(BUCKET in name for name in blocks),
        "blocks": [
            {"name": population_words(name), "documents": counted(count, "document")} for name, count in blocks.items()
        ],
        "few_documents": counted(few[0], "document") if len(few) == 1 else None,
        "blocks_values_only": all(_values_only(summary, panel, block) for block in blocks),
        "by_block": [
            {
                **_heading(name, terms),
                "rows": [
                    {
                        "arm": arm["arm"],
                        "cells": [_cell(find_figure(arm, panel, name, block), anchors) for block in blocks],
                    }
                    for arm in measured
                ],
            }
            for name in measures
            if blocks
        ],
    }


def _panel_label(summary: Mapping[str, Any], panel: str) -> str:
    labels = {one["panel"]: one["label"] for one in summary.get("panels", [])}
    return str(labels.get(panel, f"panel {panel}"))


def _about(summary: Mapping[str, Any], panel: str) -> Iterator[str]:
    """What a reader must know of a panel before its numbers, in sentences."""
    plan: Mapping[str, Any] = next((one for one in summary.get("panels", []) if one["panel"] == panel), {})
    counts = [(one["clusters"], one["rows"]) for arm in summary["arms"] for one in _whole(arm["figures"], panel)]
    if counts:
        documents, rows = max(counts)
        yield f"{counted(documents, 'document')}, {counted(rows, 'row')} of each arm."
    if plan.get("reference") == "full":
        yield "The reference's whole distribution is kept, so its measures are over the whole vocabulary."
    if plan.get("reference") == "topk":
        yield (
            "Of the reference its most probable tokens are kept, and all others as one, on more rows. A KL divergence from that is "
            "another measure than kl_full, so the two never share a table."
        )
    if "decode" in str(plan.get("score_path")):
        yield (
            "Decode: the engine's own server computes one token at a time, as when it answers. Prefill: the whole window as one batch. "
            "Of each arm the prefill rows are shown; the two paths meet in a comparison of their own."
        )
    if _values_only(summary, panel, ALL):
        yield _values_only(summary, panel, ALL)


def _whole(figures: Iterable[Figure], panel: str) -> list[Figure]:
    return [one for one in figures if (one["panel"], one["population"]) == (panel, ALL)]


def _values_only(summary: Mapping[str, Any], panel: str, population: str) -> str:
    """A sentence where no figure of the panel has an interval for want of documents; else nothing."""
    figures = [one for arm in summary["arms"] for one in arm["figures"] if number(one["value"]) is not None]
    chosen = [one for one in figures if (one["panel"], one["population"]) == (panel, population)]
    if not chosen or any(one["clusters"] >= INTERVAL_CLUSTERS for one in chosen):
        return ""
    few = counted(chosen[0]["clusters"], "document")
    return f"Only values are given here, no intervals: {few} cannot show how documents differ (at least {INTERVAL_CLUSTERS} are needed)."


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
        **arm_words(arm),
        "size": f"{format_number(arm['file_bytes'] / _BYTES_PER_MB)} MB" if arm.get("file_bytes") else "not recorded",
    }


# Comparisons.


def _pair_view(pair: Mapping[str, Any], summary: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any]:
    terms, measured = terms_of(summary), pair["state"] == "measured" or bool(pair["figures"])
    names, subtracted = side_names(pair), differences(pair)
    short = max(map(len, names)) <= NAME_CHARACTERS
    panels = list(dict.fromkeys(figure["panel"] for figure in pair["figures"]))
    return {
        **pair,
        "reason_text": None if measured else not_measured(pair),
        "not_compared": list(pair.get("not_compared", {}).values()) if measured else [],
        "identical": is_identical(pair),
        "identical_text": _identical_text(pair),
        "how_read": [*pair.get("steps_read", {}).get("sentences", []), *gap_lines(pair)],
        "undeclared_text": undeclared(pair),
        "looks": counted(len(subtracted), "difference"),
        "heads": names if short else ("candidate", "baseline"),
        "sides": _sides(pair),
        "answer": _answer(pair, terms, anchors),
        "panels": [_own_panel(pair, panel, summary, anchors) for panel in panels],
    }  # fmt: skip


def _own_panel(
    pair: Mapping[str, Any], panel: str, summary: Mapping[str, Any], anchors: Mapping[str, str]
) -> dict[str, Any]:
    """A pair on one panel: its differences and its distances, apart from each other, by measure."""
    terms, figures = terms_of(summary), [one for one in pair["figures"] if one["panel"] == panel]
    subtracted = [one for one in figures if not is_distance(one)]
    return {
        "panel": panel,
        "label": _panel_label(summary, panel),
        "levels": [
            _level(subtracted, "interval", "Interval"),
            _level(subtracted, "interval_bonferroni", "Family interval"),
        ],
        "values_only": all(map(value_only, _whole(subtracted, panel))),
        "groups": _groups(subtracted, terms, anchors),
        "distances": _groups([one for one in figures if is_distance(one)], terms, anchors),
    }


def _groups(figures: Sequence[Figure], terms: Mapping[str, Any], anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    """One panel's figures of a pair by measure, each as a row."""
    return [
        {
            **_heading(measure, terms),
            "rows": [_look(figure, anchors) for figure in figures if figure["measure"] == measure],
        }
        for measure in dict.fromkeys(figure["measure"] for figure in figures)
    ]


def _sides(pair: Mapping[str, Any]) -> dict[str, str]:
    """What is subtracted from what: two arms, or two score paths of one arm."""
    if compares_paths(pair):
        arm = pair["candidate"]
        return {"candidate": f"{arm} {pair['candidate_path']}", "baseline": f"{arm} {pair['baseline_path']}"}
    return {"candidate": pair["candidate"], "baseline": pair["baseline"]}


def _identical_text(pair: Mapping[str, Any]) -> str:
    """For a pair whose rows are all equal: on how many rows of which panels."""
    if not is_identical(pair):
        return ""
    rows = {one["panel"]: one["rows"] for one in pair["figures"] if one["population"] == ALL}
    on = listed([f"panel {panel} ({counted(count, 'row')})" for panel, count in rows.items()])
    return f"Every row is equal bit for bit on {on}, so every difference and every distance is 0."


def _apart(
    pairs: Sequence[Mapping[str, Any]], terms: Mapping[str, Any], anchors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """How far apart the sides of every pair are over all rows: a table for each measure, never two of them in one."""
    found = [
        (pair, one) for pair in pairs for one in pair["figures"] if one["population"] == ALL and one["measure"] in APART
    ]
    return [
        {
            **_heading(measure, terms),
            "panels": listed([f"panel {panel}" for panel in dict.fromkeys(one["panel"] for _, one in found if one["measure"] == measure)]),
            "rows": [_apart_row(pair, one, anchors) for pair, one in found if one["measure"] == measure],
        }
        for measure in dict.fromkeys(one["measure"] for _, one in found)
    ]  # fmt: skip


def _apart_row(pair: Mapping[str, Any], figure: Figure, anchors: Mapping[str, str]) -> dict[str, Any]:
    same, identical = identical_rows(pair, figure["panel"]), verdict_word(figure) == BIT_IDENTICAL
    return {
        **_linked({**figure, "interval": None} if identical else figure, anchors),
        "label": pair["label"],
        "name": pair_name(pair),
        "panel": figure["panel"],
        "documents": counted(figure["clusters"], "document"),
        "value_only": value_only(figure),
        "identical": "not recorded" if same is None else rows_said(same),
        "floor": floor_view(figure.get("floor")) or floor_view(_NO_FLOOR),
    }


def _answer(pair: Mapping[str, Any], terms: Mapping[str, Any], anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """The comparison at a glance: the claim of its headline look, how far, how sure; then its other looks in a sentence."""
    figure = headline(pair["figures"])
    if figure is None:
        return None
    means = [figure.get("candidate_mean"), figure.get("baseline_mean")]
    apart = distance(pair)
    others = [one for one in pair["figures"] if one["population"] == ALL and one is not figure]
    return {
        "claim": claim(pair, figure, terms.get(figure["measure"], {})),
        "title": terms.get(figure["measure"], {}).get("title", figure["measure"]),
        "measure": figure["measure"],
        "means": [
            {"name": name, "value": format_number(float(mean))}
            for name, mean in zip(side_names(pair), means, strict=True)
            if mean is not None
        ],
        "look": _look(figure, anchors),
        "panel": figure["panel"],
        "value_only": value_only(figure),
        "short": short_sentence(pair, figure, terms.get(figure["measure"], {})),
        "apart": None if apart is None else _apart_row(pair, apart, anchors),
        "others": [
            {
                "verdict": one["verdict"],
                "title": terms.get(one["measure"], {}).get("title", one["measure"]),
                "panel": one["panel"],
                "sentence": short_sentence(pair, one, terms.get(one["measure"], {})),
            }
            for one in others
        ],
    }


def _level(figures: Sequence[Figure], key: str, otherwise: str) -> str:
    """The head of a column of intervals: their level, where all have the same."""
    levels = {figure[key]["level"] for figure in figures if "level" in (figure.get(key) or {})}
    return f"{format_percent(levels.pop())} interval" if len(levels) == 1 else otherwise


def _look(figure: Figure, anchors: Mapping[str, str]) -> dict[str, Any]:
    """One difference as a row: value, the interval, the one for the family, floor, verdict, and what speaks for or against."""
    wide, flip = figure.get("interval_bonferroni"), figure.get("sign_flip_p")
    flip_p = None if flip is None else number(flip)
    return {
        **_linked(figure, anchors),
        "rows_text": population_words(figure["population"]),
        "documents": counted(figure["clusters"], "document"),
        "rows": format_count(figure["rows"]),
        "unit": figure["unit"],
        "value_only": value_only(figure),
        "whole": figure["population"] == ALL,
        "primary": bool(figure.get("primary")),
        "candidate": _said(figure.get("candidate_mean")),
        "baseline": _said(figure.get("baseline_mean")),
        "wide": format_interval(wide) or ("not recorded" if wide is None else f"none: {reason(wide)}"),
        "floor": floor_view(figure.get("floor")) or floor_view(_NO_FLOOR),
        "verdict": figure["verdict"],
        "sentence": figure.get("sentence", ""),
        "exact_p": None if flip_p is None else f"exact p {flip_p:.4g}",
        "doubts": _doubts(figure),
    }


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
    named = [(arm["arm"], arm) for arm in summary["arms"]] + [(pair["label"], pair) for pair in summary["comparisons"]]
    owners = [(name, figures_of_owner(own)) for name, own in named]
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
