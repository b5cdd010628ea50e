"""How sure the figures are, in words: what the floor reads, which looks share an error rate, what few documents mean.

Each sentence is made from what the summary says; where it says nothing of the kind, there is no sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, INTERVAL_CLUSTERS
from engcmp_assets.publication.formats import FLOORS, counted, format_interval, format_percent, listed, number

SIGN_FLIP_P = 0.05
"""Under 8 documents a difference also needs an exact sign-flip p below this (MEASURES section 5)."""


def notes(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The notes of the section "How sure we are": each with a `title` and a `text`."""
    found = (_floor_note(summary), _family_note(summary), _bootstrap_note(summary), _few_note(summary))
    return [note for note in found if note]


def family_sizes(summary: Mapping[str, Any]) -> list[int]:
    """How many looks of a comparison share one error rate: each number that occurs."""
    return sorted({one["family"] for pair in summary["comparisons"] for one in pair["figures"] if "family" in one})


def primary_measures(summary: Mapping[str, Any]) -> list[str]:
    """The measures whose look over all rows was declared primary."""
    figures = [figure for pair in summary["comparisons"] for figure in pair["figures"]]
    return list(dict.fromkeys(one["measure"] for one in figures if one.get("primary") and one["population"] == ALL))


def floors_are_zero(summary: Mapping[str, Any]) -> bool:
    """Whether no value of any row differed between two runs of an arm, in everything that the summary holds."""
    measured = [floor for floor in _floors(summary) if "value" in floor]
    return bool(measured) and all(
        number(floor["value"]) == 0 and floor.get("rows_that_differ") == 0 for floor in measured
    )


def _floor_note(summary: Mapping[str, Any]) -> dict[str, str]:
    text = (
        "The floor is what the same measure reads between runs of one arm, where nothing differs: within a launch / "
        "across launches. A difference means something only beside it. "
    )
    if floors_are_zero(summary):
        text += (
            "Here no value of any row differed between two runs. Repeats that are bit-identical make the floor exactly 0: "
            "nothing of a difference is run-to-run noise. It does not follow that another machine or build gives the same."
        )
    absent = Counter(floor["missing"] for floor in _floors(summary) if "missing" in floor)
    if absent:
        why = "; ".join(f"{reason} ({counted(count, 'figure')})" for reason, count in absent.items())
        text += f" Not every floor was measured: {why}."
    return {"title": "The run-to-run floor", "text": " ".join(text.split())}


def _family_note(summary: Mapping[str, Any]) -> dict[str, str]:
    sizes, primary = family_sizes(summary), primary_measures(summary)
    levels = {one["level"] for pair in summary["comparisons"] for one in _wide_intervals(pair)}
    if len(sizes) != 1 or len(levels) != 1:
        return {}
    own = sorted({one["interval"]["level"] for one in _primaries(summary) if format_interval(one.get("interval"))})
    declared = (
        f"Declared before the run: {listed(primary)} over all rows, judged at {' and '.join(map(format_percent, own))}. "
        if primary and own
        else ""
    )
    others = "The other" if declared else "The"
    text = (
        f"{declared}{others} {counted(sizes[0], 'look')} of a comparison share one error rate, so each is judged at its "
        f"{format_percent(levels.pop())} interval (Bonferroni): the more one looks, the more chance finds."
    )
    return {"title": f"{counted(sizes[0], 'look')} share one error rate", "text": text}


def _bootstrap_note(summary: Mapping[str, Any]) -> dict[str, str]:
    methods = sorted({one["method"] for one in _intervals(summary) if "bootstrap" in one["method"]})
    if not methods:
        return {}
    text = (
        f"From {BOOTSTRAP_CLUSTERS} documents on: {listed(methods)}. Whole documents are drawn, since the rows of one are "
        "alike: what counts is how far the documents agree, not how many rows there are."
    )
    return {"title": "Intervals", "text": text}


def _few_note(summary: Mapping[str, Any]) -> dict[str, str]:
    figures = [one for part in (*summary["arms"], *summary["comparisons"]) for one in part["figures"]]
    few = sorted({one["clusters"] for one in figures if INTERVAL_CLUSTERS <= one["clusters"] < BOOTSTRAP_CLUSTERS})
    if not few:
        return {}
    text = (
        f"Under {BOOTSTRAP_CLUSTERS} documents there is too little to resample, so the interval is a t-interval on the means of "
        f"the documents (here {listed([str(count) for count in few])} of them). It is wide, because so few say little of how "
        "documents differ; it assumes that their means scatter normally; and its ends may lie where the measure cannot (a KL "
        f"below 0, a share above 1). A difference must also have an exact sign-flip p below {SIGN_FLIP_P:g}."
    )
    smallest = {count: 2.0 ** (1 - count) for count in few}
    hopeless = [count for count in few if smallest[count] >= SIGN_FLIP_P]
    if hopeless and any(pair["figures"] for pair in summary["comparisons"]):
        limits = listed([f"{smallest[count]:g} with {count} documents" for count in hopeless])
        text += f" That p cannot fall below {limits}: there no difference can be resolved, however large it is."
    return {"title": f"Fewer than {BOOTSTRAP_CLUSTERS} documents", "text": text}


def _primaries(summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for pair in summary["comparisons"]:
        yield from (figure for figure in pair["figures"] if figure.get("primary"))


def _wide_intervals(pair: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for figure in pair["figures"]:
        wide = figure.get("interval_bonferroni")
        if format_interval(wide) and not figure.get("primary"):
            yield wide


def _intervals(summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in (*summary["arms"], *summary["comparisons"]):
        for figure in part["figures"]:
            if format_interval(figure.get("interval")):
                yield figure["interval"]


def _floors(summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    figures = [(one.get("details") or {}).get("floor") for arm in summary["arms"] for one in arm["figures"]]
    figures += [one.get("floor") for pair in summary["comparisons"] for one in pair["figures"]]
    for floor in figures:
        if isinstance(floor, Mapping):
            yield from (floor[key] for key, _ in FLOORS if isinstance(floor.get(key), Mapping))
