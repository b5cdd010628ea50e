"""What a page states, as claims: each is held against the figure's own numbers before it is printed.

A figure carries its verdict and the numbers that the verdict came from. The claim is what the sentence says; the facts are those numbers.
A sentence that goes further than they do is refused, and with it the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from engcmp_assets.kernel.claims.checking import check_claim
from engcmp_assets.kernel.claims.facts import AgainstRun, Facts, Inputs, Look, Repeats, Speeds
from engcmp_assets.kernel.claims.records import Claim, Ends, Limit, Population, States, Word
from engcmp_assets.kernel.claims.rules_kinds import APART, IDENTICAL
from engcmp_assets.kernel.names import SPEED, population_parts
from engcmp_assets.publication.formats import FLOORS, number
from engcmp_assets.publication.stated_replies import reply_claim_of, reply_facts_of
from engcmp_resources.errors import EngcmpError

HALF = 0.5
"""Of a difference: a document without which this share or less is left carries it."""

Figure = Mapping[str, Any]


def stated(pair: Mapping[str, Any], figure: Figure) -> Claim:
    """What the page says of one figure of a pair. Raises EngcmpError, with rule and remedy, where the figure does not carry that.

    A figure without a value states nothing that could be too much: its reason is what is printed.
    """
    claim = claim_of(pair, figure)
    _refuse(claim, facts_of(pair, figure))
    return claim


def _refuse(claim: Claim, facts: Facts) -> None:
    refused = check_claim(claim, facts)
    if refused:
        first = refused[0]
        raise EngcmpError(
            f"the page would say more than {claim.claim_id} carries: {first.what} (rule {first.rule_id})",
            where="SUMMARY.json", remedy=f"{first.remedy}: make the comparisons and the pages again",
        )  # fmt: skip


def refuse_overreach(pairs: Iterable[Mapping[str, Any]]) -> None:
    """Raise EngcmpError for the first figure of the pairs, speeds and replies among them, of which the page would say too much."""
    for pair in pairs:
        for figure in (*pair.get("figures", ()), *(pair.get("speed") or {}).get("figures", ())):
            if number(figure["value"]) is not None:
                stated(pair, figure)
        for figure in (pair.get("replies") or {}).get("figures", ()):
            if number(figure["value"]) is not None:
                _refuse(reply_claim_of(pair, figure), reply_facts_of(pair, figure))


def verdict_word(figure: Figure) -> str:
    """The verdict without what is said beside it: `resolved` of `resolved, no floor`."""
    return str(figure.get("verdict") or "").split(",", 1)[0].strip()


def claim_of(pair: Mapping[str, Any], figure: Figure) -> Claim:
    """The figure as the claim that its sentence makes."""
    bound, ends = number(figure.get("bound")), deciding(figure)
    wanted = verdict_word(figure) or "descriptive"
    if wanted == "no floor":  # of a speed that was measured once: nothing is said of its difference
        wanted = "descriptive"
    # Where nothing is tested, no word stands against a floor; the column beside it says where there is none.
    repeats = _repeats(figure)
    unknown = repeats is None or repeats.per_row is None
    untested = wanted in ("descriptive", "bit-identical") and unknown
    limits: list[Limit] = ["no floor"] if untested or "no floor" in str(figure.get("verdict")) else []
    limits += ["value only"] if wanted == "not resolved" and bound is None else []
    limits += ["one document carries it"] if carried_by(figure) else []
    return Claim(
        claim_id=figure["figure_id"],
        states=_states(figure),
        candidate=pair["candidate"],
        baseline=pair["baseline"],
        measure=figure["measure"],
        population=_population(figure),
        estimate=number(figure["value"]),
        unit=figure["unit"],
        interval=ends,
        bound=bound if wanted == "not resolved" else None,
        clusters=figure["clusters"],
        band=_band(figure),
        confounds=tuple(pair.get("undeclared", ())),
        verdict=cast(Word, wanted),
        limits=tuple(limits),
    )


def facts_of(pair: Mapping[str, Any], figure: Figure) -> Facts:
    """What the figure's numbers say, its verdict and sentence left aside."""
    if figure["panel"] == SPEED:
        return Facts(speeds=Speeds(band=_band(figure)))
    flip = figure.get("sign_flip_p")
    same = next(
        (
            number(one["value"]) for one in pair.get("figures", ())
            if (one["measure"], one["panel"], one["population"]) == (IDENTICAL, figure["panel"], figure["population"])
        ),
        None,
    )  # fmt: skip
    look = Look(
        estimate=number(figure["value"]),
        unit=figure.get("unit"),
        interval=_ends(figure.get("interval")),
        deciding=deciding(figure),
        primary=bool(figure.get("primary")),
        documents=figure["clusters"],
        against=tuple(
            AgainstRun(one["run"], number(one["value"]), bool(one["stands"]))
            for one in figure.get("against_each_run") or ()
        ),
        sign_flip_p=None if flip is None else number(flip),
        carried_by=carried_by(figure),
        rows_equal=same,
    )
    return Facts(look=look, repeats=_repeats(figure), inputs=Inputs())


def deciding(figure: Figure) -> Ends | None:
    """The interval that decides: a primary look's own, else the one at the level of its family; of a distance its own."""
    wide = figure.get("interval_bonferroni")
    own = figure.get("primary") or wide is None or is_distance(figure)
    return _ends(figure.get("interval") if own else wide)


def is_distance(figure: Figure) -> bool:
    """Whether the figure is read between the two sides, not a difference of what each has."""
    return figure["measure"] in APART or figure["measure"] == IDENTICAL


def carried_by(figure: Figure) -> str | None:
    """The document without which half of a resolved difference or less is left."""
    moving, value = figure.get("largest_cluster"), number(figure["value"])
    if not isinstance(moving, Mapping) or "without" not in moving or not value or verdict_word(figure) != "resolved":
        return None
    return str(moving["cluster"]) if moving["without"] / value <= HALF else None


def _states(figure: Figure) -> States:
    if figure["panel"] == SPEED:
        return "ratio"
    if verdict_word(figure) == "bit-identical" and is_distance(figure):
        return "identical rows"
    return "distance" if is_distance(figure) else "difference"


def _population(figure: Figure) -> Population:
    name = figure["population"]
    if figure["panel"] == SPEED:
        return Population(cell=name)
    block, bucket = population_parts(name) or (None, None)
    return Population(panel=figure["panel"], block=block, bucket=bucket)


def _band(figure: Figure) -> tuple[float, float] | None:
    band = (figure.get("floor") or {}).get("band") if figure["panel"] == SPEED else None
    return (band[0], band[1]) if isinstance(band, (list, tuple)) else None


def _ends(interval: Any) -> Ends | None:
    if not isinstance(interval, Mapping) or "low" not in interval:
        return None
    return Ends(low=interval["low"], high=interval["high"], level=interval["level"], method=interval["method"])


def _repeats(figure: Figure) -> Repeats | None:
    """Whether repeats of both arms were measured: of a side that has none, in no way, the floor is unknown."""
    sides = [figure.get(name) for name in ("candidate_floor", "baseline_floor")]
    known = [own for own in (sides if all(isinstance(one, Mapping) for one in sides) else [figure.get("floor")]) if own]
    if not known:
        return None
    measured = [[own[key]["value"] for key, _ in FLOORS if "value" in own.get(key, {})] for own in known]
    others = tuple(float(value) for own in measured for value in own)
    return Repeats(per_row=float(measured[0][0]) if all(measured) else None, others=others if all(measured) else ())
