"""What a page states of a pair's long replies, as claims, with what the pair's own counts and tests say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from engcmp_assets.kernel.claims.facts import Facts, Inputs, Look, Replied
from engcmp_assets.kernel.claims.records import Claim, Ends, Limit, Population, Word
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_measures import TEST_OF
from engcmp_assets.publication.formats import number

Figure = Mapping[str, Any]
IDENTICAL, REPEATED = "reply_identical", "reply_repeated"


def reply_claim_of(pair: Mapping[str, Any], figure: Figure) -> Claim:
    """The figure as the claim that its sentence makes. Replies are paired by prompt; only identity pairs seeds."""
    wanted = cast(Word, figure["verdict"])
    floored = "value" in ((figure.get("floor") or {}).get("across_launches") or {})
    limits: tuple[Limit, ...] = () if floored else ("no floor",)
    limits += ("value only",) if wanted == "not resolved" else ()
    return Claim(
        claim_id=figure["figure_id"],
        states="replies",
        candidate=pair["candidate"],
        baseline=pair["baseline"],
        measure=figure["measure"],
        population=Population(panel=figure["panel"], block=figure["population"]),
        estimate=number(figure["value"]),
        unit=figure["unit"],
        interval=_ends(figure),
        clusters=figure["clusters"] or None,
        confounds=tuple(pair.get("undeclared", ())),
        verdict=wanted,
        paired_by="seed" if figure["measure"] in (IDENTICAL, REPEATED) else "prompt",
        limits=limits,
    )


def reply_facts_of(pair: Mapping[str, Any], figure: Figure) -> Facts:
    """What the pair's stage says beside the figure: the test that was declared, its p, and how many replies were capped."""
    stage = next(one for one in pair["replies"]["stages"] if one["population"] == figure["population"])
    name = TEST_OF.get(figure["measure"])
    test: Mapping[str, Any] = next((one for one in stage.get("tests", ()) if one["name"] == name), {})
    lengths = {"length_ratio": stage.get("lengths"), "thinking_ratio": stage.get("thinking")}.get(figure["measure"])
    ratio = lengths["main"]["ratio"] if lengths and "main" in lengths else None
    engines = {ArmKey.parse(pair[name]).engine for name in ("candidate", "baseline")}
    return Facts(
        look=Look(
            estimate=number(figure["value"]),
            unit=figure["unit"],
            interval=_ends(figure),
            documents=figure["clusters"] or None,
        ),
        inputs=Inputs(same_engine=len(engines) == 1),
        replied=Replied(
            declared=test.get("standing") == "declared",
            p=number(test["p"]) if test else None,
            capped=max(ratio["candidate_capped"], ratio["baseline_capped"]) if ratio else None,
        ),
    )


def _ends(figure: Figure) -> Ends | None:
    ends = figure["interval"]
    return Ends(**{name: ends[name] for name in Ends.model_fields}) if "low" in ends else None
