"""What a comparison says in plain words: how far apart the two are, which side stays closer to the reference, how sure that is.

Each sentence is made from the claim that `stated` has held against the figure's own numbers.

A pair holds figures of two kinds. A difference is candidate minus baseline of a measure that both have; a distance (`kl_pair_*`,
`rows_bit_identical`) is read between the two, and nothing is subtracted. The words follow the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.claims.rules_kinds import APART, IDENTICAL
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS
from engcmp_assets.publication.formats import (
    FLOORS,
    counted,
    format_count,
    format_interval,
    format_measured,
    number,
    reason,
)
from engcmp_assets.publication.stated import carried_by, is_distance, stated, verdict_word
from engcmp_resources.errors import EngcmpError

__all__ = [
    "APART", "BIT_IDENTICAL", "IDENTICAL", "NAME_CHARACTERS", "SCORE_PATH", "brief", "claim", "compares_paths", "declared_interval",
    "differences", "distance", "headline", "identical_rows", "is_distance", "is_identical", "pair_name", "rows_said", "short_names",
    "short_sentence", "side_names", "undeclared", "value_only", "verdict_word",
]  # fmt: skip

SCORE_PATH = "score path"
BIT_IDENTICAL = "bit-identical"
NAME_CHARACTERS = 14
"""A longer name does not fit the head of a narrow column, or a cell beside its numbers."""

_NAMED = 6  # of the differences between two launches
_PARTS = ("checkpoint", "engine", "version", "setting")
_DIRECTIONS = ("lower", "higher")


def short_names(candidate: str, baseline: str) -> tuple[str, str]:
    """The two arms by the one part in which they differ (`q4_0`, `q8_0`); by their whole keys where that is not one part."""
    part = _differing_part(candidate, baseline)
    if part is None:
        return candidate, baseline
    return str(getattr(ArmKey.parse(candidate), part)), str(getattr(ArmKey.parse(baseline), part))


def side_names(pair: Mapping[str, Any]) -> tuple[str, str]:
    """The two sides of a pair, candidate first: score paths (`decode`, `prefill`), or arms by the part in which they differ."""
    if compares_paths(pair):
        return str(pair["candidate_path"]), str(pair["baseline_path"])
    return short_names(pair["candidate"], pair["baseline"])


def compares_paths(pair: Mapping[str, Any]) -> bool:
    """Whether the pair is two score paths of one arm, not two arms."""
    return pair.get("kind") == SCORE_PATH


def pair_name(pair: Mapping[str, Any]) -> str:
    """A pair in few words, for a narrow table: `q4_0 beside q8_0, llamacpp@b11549`, `decode beside prefill, q8_0/llamacpp@b1`."""
    candidate, baseline = side_names(pair)
    beside = f"{candidate} beside {baseline}"
    if compares_paths(pair):
        return f"{beside}, {pair['candidate']}"
    part = _differing_part(pair["candidate"], pair["baseline"])
    if part is None:
        return beside
    key = ArmKey.parse(pair["candidate"])
    engine = key.engine if part == "version" else f"{key.engine}@{key.version}"
    shared = {
        "checkpoint": engine, "version": f"{key.checkpoint}/{engine}", "engine": f"{key.checkpoint}, {key.version}",
    }.get(part)  # fmt: skip
    return beside if shared is None or key.setting is not None else f"{beside}, {shared}"


def undeclared(pair: Mapping[str, Any]) -> str:
    """What differs between the launches of a pair's arms and no protocol declares, in few words; empty where nothing does.

    It stands before the pair's first figure, wherever that is shown: a difference that was not asked for may be all of it.
    """
    names = list(pair.get("undeclared") or ())
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"Launch differences that the protocol does not declare: {', '.join(names[:_NAMED])}{more}."


def differences(pair: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The pair's figures that are candidate minus baseline."""
    return [figure for figure in pair["figures"] if not is_distance(figure)]


def headline(figures: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The difference that a comparison's headline is made of: its declared primary look, else its first one over all rows."""
    whole = [figure for figure in figures if figure["population"] == ALL and not is_distance(figure)]
    return next((figure for figure in whole if figure.get("primary")), whole[0] if whole else None)


def distance(pair: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How far apart the two sides are over all rows: the pair's first such figure, that of its first panel."""
    figures = (one for one in pair["figures"] if one["population"] == ALL and one["measure"] in APART)
    return next(figures, None)


def identical_rows(pair: Mapping[str, Any], panel: str | None = None) -> Mapping[str, Any] | None:
    """The share of rows that are equal bit for bit, on `panel` or on the pair's first one."""
    figures = [one for one in pair["figures"] if (one["population"], one["measure"]) == (ALL, IDENTICAL)]
    return next((one for one in figures if panel in (None, one["panel"])), None)


def is_identical(pair: Mapping[str, Any]) -> bool:
    """Whether every row of every panel is equal bit for bit."""
    whole = [figure for figure in pair["figures"] if figure["population"] == ALL]
    return bool(whole) and all(verdict_word(figure) == BIT_IDENTICAL for figure in whole)


def rows_said(figure: Mapping[str, Any]) -> str:
    """A share of rows as a count of them: `36 of 384`."""
    share = number(figure["value"])
    if share is None:
        return f"not measured: {reason(figure['value'])}"
    return f"{format_count(round(share * figure['rows']))} of {format_count(figure['rows'])}"


def declared_interval(figure: Mapping[str, Any]) -> Any:
    """The interval that decides: a primary look's own, else the one at the level of its family (MEASURES section 4).

    Of a distance its own: nothing about it was tested.
    """
    wide = figure.get("interval_bonferroni")
    own = figure.get("primary") or wide is None or is_distance(figure)
    return figure.get("interval") if own else wide


def value_only(figure: Mapping[str, Any]) -> bool:
    """Whether there is a value and too little for an interval, so that no verdict can be more than that."""
    interval = declared_interval(figure)
    return number(figure["value"]) is not None and isinstance(interval, Mapping) and "missing" in interval


def too_few(figure: Mapping[str, Any]) -> str:
    """Why a figure is a value only: the number of its documents, or, where they are enough for an interval, what it lacks."""
    if figure["clusters"] < BOOTSTRAP_CLUSTERS:
        return counted(figure["clusters"], "document")
    return reason(declared_interval(figure))


def _from(figure: Mapping[str, Any]) -> str:
    few = too_few(figure)
    return f"from {few}" if figure["clusters"] < BOOTSTRAP_CLUSTERS else few


def claim(pair: Mapping[str, Any], figure: Mapping[str, Any], term: Mapping[str, Any]) -> str:
    """One figure of a pair as a headline without numbers; `term` is the summary's term of its measure."""
    candidate, baseline = side_names(pair)
    value = number(figure["value"])
    if value is None:
        return f"{candidate} beside {baseline}: not measured: {reason(figure['value'])}"
    word = stated(pair, figure).verdict
    if word == "not resolved" and value_only(figure):
        first = candidate.capitalize() if compares_paths(pair) else candidate
        return f"{first} beside {baseline}: values only, {_from(figure)}"
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
        BIT_IDENTICAL: f"{candidate} and {baseline} give the same rows, bit for bit",
    }
    return words.get(word, f"{candidate} beside {baseline}")


def short_sentence(pair: Mapping[str, Any], figure: Mapping[str, Any], term: Mapping[str, Any]) -> str:
    """One figure of a pair in half a line: `q8_0 stays closer, by 0.3920 nats [0.3384, 0.4431]`.

    The interval is the one that decides; where the direction is said in words, its ends are magnitudes too.
    """
    if number(figure["value"]) is None:
        return f"not measured: {reason(figure['value'])}"
    word = stated(pair, figure).verdict
    if is_distance(figure):
        return _distance_sentence(figure)
    if word == BIT_IDENTICAL:
        return "every row of both is equal bit for bit"
    if word == "resolved":
        return _resolved_sentence(pair, figure, term)
    return _difference_sentence(pair, figure)


def brief(pair: Mapping[str, Any], figure: Mapping[str, Any], term: Mapping[str, Any]) -> str:
    """A difference in a cell of a table: `q8_0, by 0.3920 [0.3384, 0.4431]` where a side is closer, else with its sign.

    Two sides with long names are `first` and `second`.
    """
    value, interval = number(figure["value"]), declared_interval(figure)
    if value is None:
        return f"not measured: {reason(figure['value'])}"
    word = stated(pair, figure).verdict
    if word == BIT_IDENTICAL:
        return format_number(value)
    if word == "resolved" and _is_of_the_reference(term):
        names = side_names(pair)
        short = max(map(len, names)) <= NAME_CHARACTERS
        closer, _ = _better(*(names if short else ("first", "second")), value, term)
        return f"{closer}, by {format_number(abs(value))}{_magnitudes(interval)}"
    if value_only(figure):
        return f"{format_number(value)}, {too_few(figure)}: value only"
    return format_measured(value, interval)


def _distance_sentence(figure: Mapping[str, Any]) -> str:
    beside = f"between runs of one arm {_floor(figure)}"
    if figure["measure"] == IDENTICAL:
        return f"{rows_said(figure)} rows are equal bit for bit; {beside}"
    between = format_interval(declared_interval(figure))
    return f"apart by {format_number(figure['value'])} {figure['unit']}{' ' + between if between else ''}; {beside}"


def _resolved_sentence(pair: Mapping[str, Any], figure: Mapping[str, Any], term: Mapping[str, Any]) -> str:
    candidate, baseline = side_names(pair)
    value = figure["value"]
    size = f"{format_number(abs(value))} {figure['unit']}{_magnitudes(declared_interval(figure))}"
    if (document := carried_by(figure)) is not None:
        size += f"; without document {document} half of it or less is left"
    better, _ = _better(candidate, baseline, value, term)
    if _is_of_the_reference(term):
        return f"{better} stays closer, by {size}"
    if term.get("better") in _DIRECTIONS:
        return f"{better} is better ({term['better']}), by {size}"
    return f"{candidate} is {'higher' if value > 0 else 'lower'}, by {size}"


def _difference_sentence(pair: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    candidate, baseline = side_names(pair)
    difference = f"{candidate} minus {baseline}: "
    if verdict_word(figure) != "not resolved":
        return f"{difference}{format_measured(figure['value'], declared_interval(figure))} {figure['unit']}"
    few = f"a value only, {_from(figure)}"
    rest = few if value_only(figure) else _bound(figure)
    return f"{difference}{format_number(figure['value'])} {figure['unit']}; {rest}"


def _differing_part(candidate: str, baseline: str) -> str | None:
    """The one part in which two arms differ, where both have it; else None."""
    try:
        one, other = ArmKey.parse(candidate), ArmKey.parse(baseline)
    except EngcmpError:
        return None
    differing = [part for part in _PARTS if getattr(one, part) != getattr(other, part)]
    if len(differing) != 1 or None in (getattr(one, differing[0]), getattr(other, differing[0])):
        return None
    return differing[0]


def _floor(figure: Mapping[str, Any]) -> str:
    """A distance's floor in words: `0` where all kinds of it that were measured read the same."""
    floor = figure.get("floor")
    found = [] if not isinstance(floor, Mapping) else [(floor.get(key), label) for key, label in FLOORS]
    said = {label: number(part["value"]) for part, label in found if isinstance(part, Mapping) and "value" in part}
    texts = {
        label: _whole_rows(figure, value) if figure["measure"] == IDENTICAL else format_number(value)
        for label, value in said.items()
        if value is not None
    }
    if not texts:
        return "not measured"
    if len(texts) == len(FLOORS) and len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} {label}" for label, text in texts.items())


def _whole_rows(figure: Mapping[str, Any], share: float) -> str:
    return "all" if share == 1 else rows_said({**figure, "value": share})


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
