"""What a comparison says in plain words: which side stays closer to the reference, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.publication.formats import format_interval, format_measured, number, reason
from engcmp_resources.errors import EngcmpError

_PARTS = ("checkpoint", "engine", "version", "setting")
_DIRECTIONS = ("lower", "higher")


def short_names(candidate: str, baseline: str) -> tuple[str, str]:
    """The two arms by the one part in which they differ (`q4_0`, `q8_0`); by their whole keys where that is not one part."""
    try:
        one, other = ArmKey.parse(candidate), ArmKey.parse(baseline)
    except EngcmpError:
        return candidate, baseline
    differing = [part for part in _PARTS if getattr(one, part) != getattr(other, part)]
    if len(differing) != 1 or None in (getattr(one, differing[0]), getattr(other, differing[0])):
        return candidate, baseline
    return str(getattr(one, differing[0])), str(getattr(other, differing[0]))


def headline(figures: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The figure that a comparison's headline is made of: its declared primary look, else its first one over all rows."""
    whole = [figure for figure in figures if figure["population"] == ALL]
    return next((figure for figure in whole if figure.get("primary")), whole[0] if whole else None)


def declared_interval(figure: Mapping[str, Any]) -> Any:
    """The interval that decides: a primary look's own, else the one at the level of its family (MEASURES section 4)."""
    wide = figure.get("interval_bonferroni")
    return figure.get("interval") if figure.get("primary") or wide is None else wide


def claim(pair: Mapping[str, Any], figure: Mapping[str, Any], term: Mapping[str, Any]) -> str:
    """One figure of a pair as a headline without numbers; `term` is the summary's term of its measure."""
    candidate, baseline = short_names(pair["candidate"], pair["baseline"])
    value, word = number(figure["value"]), verdict_word(figure)
    if value is None:
        return f"{candidate} beside {baseline}: not measured: {reason(figure['value'])}"
    directed = _is_of_the_reference(term)
    if word == "resolved" and directed:
        closer, other = _better(candidate, baseline, value, term)
        return f"{closer} stays closer to the reference than {other}"
    if word == "not resolved" and directed:
        return f"Neither {candidate} nor {baseline} is shown to stay closer to the reference"
    words = {
        "resolved": f"{candidate} reads {'higher' if value > 0 else 'lower'} than {baseline}",
        "not resolved": f"No difference between {candidate} and {baseline} is shown",
        "baseline-dependent": f"{candidate} beside {baseline}: it depends on the run of the baseline",
        "bit-identical": f"{candidate} and {baseline} give the same rows, bit for bit",
    }
    return words.get(word, f"{candidate} beside {baseline}")


def short_sentence(pair: Mapping[str, Any], figure: Mapping[str, Any], term: Mapping[str, Any]) -> str:
    """One figure of a pair in half a line: `q8_0 stays closer, by 0.3920 nats [0.3384, 0.4431]`.

    The interval is the one that decides; where the direction is said in words, its ends are magnitudes too.
    """
    candidate, baseline = short_names(pair["candidate"], pair["baseline"])
    value, word, interval = number(figure["value"]), verdict_word(figure), declared_interval(figure)
    if value is None:
        return f"not measured: {reason(figure['value'])}"
    if word == "resolved":
        size = f"{format_number(abs(value))} {figure['unit']}{_magnitudes(interval)}"
        better, _ = _better(candidate, baseline, value, term)
        if _is_of_the_reference(term):
            return f"{better} stays closer, by {size}"
        if term.get("better") in _DIRECTIONS:
            return f"{better} is better ({term['better']}), by {size}"
        return f"{candidate} is {'higher' if value > 0 else 'lower'}, by {size}"
    if word == "not resolved":
        return f"{candidate} minus {baseline}: {format_number(value)} {figure['unit']}; {_bound(figure)}"
    return f"{candidate} minus {baseline}: {format_measured(value, interval)} {figure['unit']}"


def verdict_word(figure: Mapping[str, Any]) -> str:
    """The verdict without what is said beside it: `resolved` of `resolved, no floor`."""
    return str(figure.get("verdict") or "").split(",", 1)[0].strip()


def _is_of_the_reference(term: Mapping[str, Any]) -> bool:
    """Whether the better side is also the closer one: the definition speaks of the reference (that of `nll` does not)."""
    return term.get("better") in _DIRECTIONS and "reference" in str(term.get("definition"))


def _better(candidate: str, baseline: str, value: float, term: Mapping[str, Any]) -> tuple[str, str]:
    """The better side and the other one, for a difference of `value`; candidate first where no direction is better."""
    wins = (value > 0) == (term.get("better") == "higher")
    return (candidate, baseline) if wins or term.get("better") not in _DIRECTIONS else (baseline, candidate)


def _magnitudes(interval: Any) -> str:
    if not format_interval(interval):
        return ""
    low, high = sorted((abs(interval["low"]), abs(interval["high"])))
    return f" {format_interval({'low': low, 'high': high})}"


def _bound(figure: Mapping[str, Any]) -> str:
    bound = figure.get("bound")
    found = number(bound)
    if found is None:
        return f"no bound: {reason(bound)}"
    return f"more than {format_number(found)} is excluded"
