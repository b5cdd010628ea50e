"""Pairs of which a side was measured before its freeze: shown, never primary, and without a verdict that was declared before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.comparisons.pairs import DESCRIPTIVE
from engcmp_assets.kernel.early_measurements import EARLY, words_of_early

Early = Mapping[str, Mapping[str, str]]
"""Under each name of EARLY, the arms that were measured too early, with why."""
_JUDGED = ("resolved", "not resolved", "baseline-dependent", "faster", "slower", "level")
_WHAT = {"q": "Rows", "t": "Speeds", "l": "Replies"}


def demoted(pair: Mapping[str, Any], early: Early) -> dict[str, Any]:
    """A compared pair, of which no figure is primary or judged that rests on what one of its arms gave before the freeze."""
    found = dict(pair)
    if pair["state"] != "compared":
        return found
    told = []
    for block, part in (("q", None), ("t", "speed"), ("l", "replies")):
        arms = early.get(EARLY[block], {})
        why = [f"{arm}: {arms[arm]}" for arm in dict.fromkeys((pair["candidate"], pair["baseline"])) if arm in arms]
        if not why or (part is not None and part not in found):
            continue
        words = words_of_early("; ".join(why))
        told.append(words[0].upper() + words[1:] if block == "q" else f"{_WHAT[block]} {words}")
        if part is None:
            found["figures"] = _demoted_figures(found["figures"], words)
        else:
            found[part] = _demoted_part(found[part], words)
    return found | {"confounds": [*told, *pair["confounds"]]} if told else found


def _demoted_part(part: Mapping[str, Any], words: str) -> dict[str, Any]:
    """Speeds or replies of a pair: also what is said of a measure over all cells is only described."""
    found = dict(part) | {"figures": _demoted_figures(part["figures"], words)}
    if "measures" in part:
        found["measures"] = [
            dict(one)
            | {
                "sentence": f"{DESCRIPTIVE}: {words}",
                "counts": dict.fromkeys(one["counts"], 0),
                "labels": [*one["labels"], words],
            }
            for one in part["measures"]
        ]
    return found


def _demoted_figures(figures: Any, words: str) -> list[dict[str, Any]]:
    return [dict(figure) | _told(figure, words) for figure in figures]


def _told(figure: Mapping[str, Any], words: str) -> dict[str, Any]:
    """What becomes of a figure: a judged difference is descriptive, what is only a fact of the rows stays."""
    if figure["verdict"].split(",", maxsplit=1)[0] not in _JUDGED:
        return {"primary": False}
    return {"primary": False, "verdict": DESCRIPTIVE, "sentence": f"{DESCRIPTIVE}: {words}"}
