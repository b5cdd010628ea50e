"""How the rows of a pair came about, by what the engines noted of each capture: steps, other requests in them, what came from a cache.

A claim that rows differ between runs or arms because of the chunk size or of the company in a batch can be held against it: rows that are
equal bit for bit are counted by the step that read them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.plots import format_number

Notes = Sequence[Mapping[str, Any]]
"""What `requests.json` of an arm's captured rows holds: an entry for each window of each run."""


def steps_document(
    sides: Sequence[tuple[str, Notes]],
    keys: tuple[Sequence[str], Sequence[int]],
    identical: npt.NDArray[np.bool_],
    runs: Sequence[str],
) -> dict[str, Any] | None:
    """Both sides' notes in short, and the rows that are bit-equal by step; None where neither engine noted its steps.

    `sides` are (arm, notes), candidate first; `runs` the run of each whose rows were held against each other; `keys` the window ids and
    positions [rows] of these, `identical` [rows] whether both sides' are equal bit for bit.
    """
    told = [_side(arm, notes) for arm, notes in sides]
    known = [place for place, side in enumerate(told) if "missing" not in side]
    if not known:
        return None
    found: dict[str, Any] = {"sides": told, "by_step": []}
    if len(known) == len(sides):
        # Of the side with more steps: within one of its steps, the other side's rows come from one step too, or it cannot be told apart.
        most = max(known, key=lambda place: told[place]["steps"][1])
        found |= {"of": sides[most][0], "by_step": _by_step(sides[most][1], runs[most], keys, identical)}
    return found | {"sentences": _sentences(found)}


def _side(arm: str, notes: Notes) -> dict[str, Any]:
    if not notes or any(isinstance(one["chunk_lengths"], Mapping) for one in notes):
        return {"arm": arm, "missing": "the engine states nothing of its steps"}
    cached = [one["cached_tokens"] for one in notes]
    apart = [one["largest_difference_from_api_nats"] for one in notes if "largest_difference_from_api_nats" in one]
    return {
        "arm": arm,
        "captures": len(notes),
        "steps": _range([len(one["chunk_lengths"]) for one in notes]),
        "tokens_of_a_step": _range([tokens for one in notes for tokens in one["chunk_lengths"]]),
        "other_requests": _range([others for one in notes for others in one["other_requests_in_step"]]),
        "cached_tokens": {"missing": "the engine does not state it"}
        if any(isinstance(one, Mapping) for one in cached)
        else _range(cached),
        "from_api_nats": max(apart) if apart else {"missing": "the rows are the API's own"},
    }


def _range(values: Sequence[int]) -> list[int]:
    return [min(values), max(values)]


def _by_step(
    notes: Notes, run: str, keys: tuple[Sequence[str], Sequence[int]], identical: npt.NDArray[np.bool_]
) -> list[dict[str, int]]:
    """Rows and how many of them are bit-equal, by the number of the step that read the row's token."""
    ends = {one["window_id"]: list(accumulate(one["chunk_lengths"])) for one in notes if one["run"] == run}
    counts: dict[int, list[int]] = {}
    for window, position, same in zip(*keys, identical, strict=True):
        of_step = counts.setdefault(1 + bisect_right(ends[window], position), [0, 0])
        of_step[0] += 1
        of_step[1] += bool(same)
    return [{"step": step, "rows": rows, "equal": equal} for step, (rows, equal) in sorted(counts.items())]


def _sentences(found: Mapping[str, Any]) -> list[str]:
    told = [f"{_told(side)}." for side in found["sides"]]
    if found["by_step"]:
        counts = "; ".join(f"step {one['step']}: {one['equal']:,} of {one['rows']:,}" for one in found["by_step"])
        told.append(f"Rows equal bit for bit, by the step of {found['of']} that read them: {counts}.")
    return told


def _told(side: Mapping[str, Any]) -> str:
    if "missing" in side:
        return f"How {side['arm']} read its windows is not known: {side['missing']}"
    cached, apart = side["cached_tokens"], side["from_api_nats"]
    words = [
        f"{_counted(side['steps'], 'step')} of {_counted(side['tokens_of_a_step'], 'token')}",
        f"{_counted(side['other_requests'], 'other request')} in a step",
        f"tokens from a cache are not known ({cached['missing']})"
        if isinstance(cached, Mapping)
        else f"{_counted(cached, 'token')} from a cache",
        str(apart["missing"])
        if isinstance(apart, Mapping)
        else f"at most {format_number(apart)} nats from what the API said of the same request",
    ]
    return f"{side['arm']} read its windows, by the notes of its {side['captures']:,} captures: {', '.join(words)}"


def _counted(ends: Sequence[int], noun: str) -> str:
    low, high = ends
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number if high else 'no'} {noun}{'s' if high > 1 else ''}"
