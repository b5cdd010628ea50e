"""How sure the figures are, in words: what the floor reads, which looks share an error rate, what few documents mean.

Each sentence is made from what the summary says; where it says nothing of the kind, there is no sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, INTERVAL_CLUSTERS
from engcmp_assets.publication.claims import IDENTICAL, differences, is_distance
from engcmp_assets.publication.formats import counted, format_interval, format_percent, listed, number
from engcmp_assets.publication.stated_counts import (
    few_resolve_nothing,
    floors,
    looks_share_a_rate,
    no_row_differs,
    refuse_stated,
    resampled,
)

SIGN_FLIP_P = 0.05
"""Under 8 documents a difference also needs an exact sign-flip p below this (MEASURES section 5)."""


def notes(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The notes of the section "How sure we are": each with a `title` and a `text`.

    Raises EngcmpError where one would say more than the figures carry.
    """
    refuse_stated(note_claims(summary))
    found = (_floor_note(summary), _family_note(summary), _bootstrap_note(summary), _few_note(summary))
    return [note for note in found if note]


def note_claims(summary: Mapping[str, Any]) -> Iterator[tuple[Claim, Facts]]:
    """What the notes state, as claims, each with what the summary's figures say of it."""
    if floors_are_zero(summary):
        yield from no_row_differs(summary)
    yield from looks_share_a_rate(summary, families(summary))
    yield from resampled(summary)
    yield from few_resolve_nothing(summary, _hopeless(_few(summary)))


def early_lines(summary: Mapping[str, Any]) -> list[str]:
    """What was captured before its freeze, arm by arm and why: it stands above everything that it touches."""
    return [
        f"{arm} was captured before its freeze, so nothing of it is a primary result: {why}."
        for arm, why in summary.get("before_freeze", {}).items()
    ]


def families(summary: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    """By panel: how many looks of a comparison share one error rate, and the level of each; panels without an interval left out."""
    found: dict[str, tuple[int, float]] = {}
    for pair in summary["comparisons"]:
        for one in differences(pair):
            wide = one.get("interval_bonferroni")
            if "family" in one and not one.get("primary") and wide and format_interval(wide):
                found.setdefault(one["panel"], (one["family"], wide["level"]))
    return found


def primary_measures(summary: Mapping[str, Any]) -> list[str]:
    """The measures whose look over all rows was declared primary."""
    figures = [figure for pair in summary["comparisons"] for figure in pair["figures"]]
    return list(dict.fromkeys(one["measure"] for one in figures if one.get("primary") and one["population"] == ALL))


def floors_are_zero(summary: Mapping[str, Any]) -> bool:
    """Whether no value of any row differed between two runs of an arm, wherever that was measured."""
    measured = [(figure, floor) for _, figure, floor in floors(summary) if "value" in floor]
    return bool(measured) and all(_no_row_differs(figure, floor) for figure, floor in measured)


def floors_not_measured(summary: Mapping[str, Any]) -> bool:
    """Whether a floor is missing anywhere."""
    return any("missing" in floor for _, _, floor in floors(summary))


def _no_row_differs(figure: Mapping[str, Any], floor: Mapping[str, Any]) -> bool:
    """A distance has no `rows_that_differ`: all rows equal is a share of 1, and a mean KL of 0 is 0 on every row."""
    if figure["measure"] == IDENTICAL:
        return number(floor["value"]) == 1
    return number(floor["value"]) == 0 and (is_distance(figure) or floor.get("rows_that_differ") == 0)


def _floor_note(summary: Mapping[str, Any]) -> dict[str, str]:
    text = (
        "The floor is what the same measure reads between runs of one arm, where nothing differs: within a launch / "
        "across launches. A difference or a distance means something only beside it. "
    )
    if floors_are_zero(summary):
        text += (
            f"{'Where it was measured' if floors_not_measured(summary) else 'Here'} no value of any row differed between two runs. "
            "Repeats that are bit-identical make the floor exactly 0: "
            "nothing of a difference is run-to-run noise. It does not follow that another machine or build gives the same."
        )
    absent = Counter(floor["missing"] for _, _, floor in floors(summary) if "missing" in floor)
    if absent:
        why = "; ".join(f"{reason} ({counted(count, 'figure')})" for reason, count in absent.items())
        text += f" Not every floor was measured: {why}."
    return {"title": "The run-to-run floor", "text": " ".join(text.split())}


def _family_note(summary: Mapping[str, Any]) -> dict[str, str]:
    found, primary = families(summary), primary_measures(summary)
    if not found:
        return {}
    own = sorted({one["interval"]["level"] for one in _primaries(summary) if format_interval(one.get("interval"))})
    declared = (
        f"Declared before the run: {listed(primary)} over all rows, judged at {' and '.join(map(format_percent, own))}. "
        if primary and own
        else ""
    )
    others = "The other" if declared else "The"
    looks = "; ".join(
        f"{f'on panel {panel}, ' if len(found) > 1 else ''}{counted(size, 'look')}, each judged at its {format_percent(level)} interval"
        for panel, (size, level) in found.items()
    )
    text = (
        f"{declared}{others} looks of a comparison on a panel share one error rate (Bonferroni): {looks}. The more one looks, the more "
        "chance finds. A distance (how far apart two captures are) is described, not tested."
    )
    sizes = {size for size, _ in found.values()}
    looks = counted(sizes.pop(), "look") if len(sizes) == 1 else "The looks of a panel"
    return {"title": f"{looks} share one error rate", "text": text}


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
    none = sorted({one["clusters"] for one in figures if one["clusters"] < INTERVAL_CLUSTERS})
    few = _few(summary)
    if not few:
        return {"title": f"Fewer than {INTERVAL_CLUSTERS} documents", "text": _only_values(none)} if none else {}
    text = (
        f"Under {BOOTSTRAP_CLUSTERS} documents there is too little to resample, so the interval is a t-interval on the means of "
        f"the documents (here {listed([str(count) for count in few])} of them). It is wide, because so few say little of how "
        "documents differ; it assumes that their means scatter normally; and its ends may lie where the measure cannot (a KL "
        f"below 0, a share above 1). A difference must also have an exact sign-flip p below {SIGN_FLIP_P:g}."
    )
    hopeless = _hopeless(few)
    if hopeless and any(pair["figures"] for pair in summary["comparisons"]):
        limits = listed([f"{_smallest_p(count):g} with {count} documents" for count in hopeless])
        text += f" That p cannot fall below {limits}: there no difference can be resolved, however large it is."
    if none:
        text += f" {_only_values(none)}"
    return {"title": f"Fewer than {BOOTSTRAP_CLUSTERS} documents", "text": text}


def _few(summary: Mapping[str, Any]) -> list[int]:
    """The numbers of documents, of any figure, that are too few to resample and enough for an interval."""
    figures = [one for part in (*summary["arms"], *summary["comparisons"]) for one in part["figures"]]
    return sorted({one["clusters"] for one in figures if INTERVAL_CLUSTERS <= one["clusters"] < BOOTSTRAP_CLUSTERS})


def _smallest_p(documents: int) -> float:
    """The least p that the exact sign-flip test can give."""
    return 2.0 ** (1 - documents)


def _hopeless(few: list[int]) -> list[int]:
    return [count for count in few if _smallest_p(count) >= SIGN_FLIP_P]


def _only_values(counts: list[int]) -> str:
    """What stands where there are too few documents for any interval."""
    few = (
        counted(counts[0], "document") if len(counts) == 1 else f"{listed([str(count) for count in counts])} documents"
    )
    return (
        f"From {few} there are values only: an interval needs at least {INTERVAL_CLUSTERS}, so the verdict can be no more than "
        "not resolved."
    )


def _primaries(summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for pair in summary["comparisons"]:
        yield from (figure for figure in pair["figures"] if figure.get("primary"))


def _intervals(summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in (*summary["arms"], *summary["comparisons"]):
        for figure in part["figures"]:
            if format_interval(figure.get("interval")):
                yield figure["interval"]
