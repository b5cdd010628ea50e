"""Every published figure of a pair's long replies as a claim, counted again from the verdicts on the single replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engcmp_assets.audit.found import Checked, Found, outcome_of
from engcmp_assets.audit.gathered import Gathered
from engcmp_assets.audit.private_texts import PrivateTexts
from engcmp_assets.kernel.claims.facts import Facts, Look
from engcmp_assets.kernel.claims.records import Cited, Claim
from engcmp_assets.kernel.names import REPLIES, REPLY_CHECKS, SERVING
from engcmp_assets.kernel.records import ArmKey, Missing
from engcmp_assets.kernel.reply_lengths.paired import sign_test
from engcmp_assets.kernel.reply_measures import PASSED_OF, SHARES, TEST_OF
from engcmp_assets.kernel.reply_plan import again_of
from engcmp_assets.kernel.reply_verdicts import Verdict, population_of
from engcmp_assets.publication.formats import number
from engcmp_assets.publication.stated_replies import IDENTICAL, REPEATED, reply_claim_of, reply_facts_of

CHECK = "replies"


def reply_claims(found: Gathered, pair: Mapping[str, Any]) -> Iterator[tuple[Claim, Facts]]:
    """Each figure of the pair's replies that has a value, and what the verdicts of its two arms and the protocol say of it."""
    figures = [one for one in (pair.get("replies") or {}).get("figures", ()) if number(one["value"]) is not None]
    arms = (pair["candidate"], pair["baseline"])
    if not figures or any(arm not in found.verdicts for arm in arms):
        return
    folders = {ArmKey.parse(arm).folder for arm in arms}
    cited = tuple(
        sha256 for place, sha256 in found.reached.heads.items()
        if place.artifact in (REPLIES, REPLY_CHECKS, SERVING) and place.arm_folder in folders
    )  # fmt: skip
    declared = next(one.reply_tests for one in found.study.protocol.comparisons if one.pair_id == pair["pair_id"])
    for figure in figures:
        sides = [
            [one for one in found.verdicts[arm] if population_of(one.block, one.stage, one.block) == figure["population"]]
            for arm in arms
        ]  # fmt: skip
        own = reply_facts_of(pair, figure)
        told = own.replied
        if told is not None:
            told = replace(told, declared=TEST_OF.get(figure["measure"]) in declared)
            again = exact_p(figure["measure"], sides[0], sides[1])
            told = told if again is None else replace(told, p=None if isinstance(again, Missing) else again)
        both, look = [found.verdicts[arm] for arm in arms], own.look or Look()
        again_of = figure["measure"] == REPEATED
        counted = repeated(both, figure["population"]) if again_of else recounted(figure["measure"], *sides)
        facts = replace(
            own,
            look=look if counted is None else replace(look, estimate=counted),
            replied=told,
            known=found.known,
            owners=found.owners,
        )
        yield reply_claim_of(pair, figure).changed(evidence=Cited(receipts=cited)), facts


def recounted(measure: str, candidate: Sequence[Verdict], baseline: Sequence[Verdict]) -> float | None:
    """The figure counted from single verdicts; None for one that is fitted, not counted."""
    if measure == IDENTICAL:
        return _identical(candidate, baseline)
    shares = [_share(measure, side) for side in (candidate, baseline)]
    return None if shares[0] is None or shares[1] is None else shares[0] - shares[1]


def repeated(arms: Sequence[Sequence[Verdict]], population: str) -> float | None:
    """Of the replies of a stage that an arm made a second time under their seeds, the share that is the same: the lesser of the arms'."""
    shares = []
    for every in arms:
        first = [one for one in every if population_of(one.block, one.stage, one.block) == population]
        stages = {again_of(one.stage) for one in first}
        again = [one for one in every if one.block == "again" and one.stage in stages]
        share = _identical(first, again)
        if share is None:
            return None
        shares.append(share)
    return min(shares)


def exact_p(measure: str, candidate: Sequence[Verdict], baseline: Sequence[Verdict]) -> float | Missing | None:
    """The exact p by prompt of what is yes or no of each reply; None for other measures."""
    if measure == "reply_looped":
        return _by_prompt(
            candidate, baseline, lambda one: None if one.ending in ("error", "empty") else one.looped == "yes"
        )
    if measure in PASSED_OF.values():
        return _by_prompt(candidate, baseline, lambda one: None if one.passed is None else one.passed == "yes")
    return None


def _share(measure: str, side: Sequence[Verdict]) -> float | None:
    if measure in SHARES:
        yes = [one.ending == measure.removeprefix("reply_") for one in side if one.ending != "error"]
    elif measure in PASSED_OF.values():
        yes = [one.passed == "yes" for one in side if one.passed is not None]
    else:
        return None
    return sum(yes) / len(yes) if yes else None


def _identical(candidate: Sequence[Verdict], baseline: Sequence[Verdict]) -> float | None:
    sides = [{(one.item, one.seed): one for one in side if one.finish != "error"} for side in (candidate, baseline)]
    same = [_same(sides[0][key], sides[1][key]) for key in sides[0].keys() & sides[1].keys()]
    return sum(same) / len(same) if same else None


def _same(one: Verdict, other: Verdict) -> bool:
    """By the digest of the engine's ids where both have it, else by that of the text."""
    if one.token_ids_sha256 is not None and other.token_ids_sha256 is not None:
        return one.token_ids_sha256 == other.token_ids_sha256
    return one.text_sha256 == other.text_sha256


def _by_prompt(
    candidate: Sequence[Verdict], baseline: Sequence[Verdict], yes: Callable[[Verdict], bool | None]
) -> float | Missing:
    """As many replies of each arm to a prompt as both have: which arm has more of them."""
    signs = []
    for item in sorted({one.item for one in candidate} & {one.item for one in baseline}):
        counts = [
            [found for one in side if one.item == item and (found := yes(one)) is not None]
            for side in (candidate, baseline)
        ]
        size = min(map(len, counts))
        change = sum(counts[0][:size]) - sum(counts[1][:size])
        signs += [(change > 0) - (change < 0)] if size else []
    return sign_test(signs).p


def replies_checked(found: Gathered, private: PrivateTexts | None, problems: Sequence[Found]) -> Checked:
    """What the verdicts on replies were held against: their private texts where these are here, else what receipts hold."""
    count = sum(map(len, found.verdicts.values()))
    code = sum(one.check == "code" and one.passed is not None for own in found.verdicts.values() for one in own)
    if private is not None and private.here:
        how = f"{private.here:,} private texts hashed and judged again"
        how += f"; {private.absent:,} are not here: there the verdict is the receipt's" if private.absent else ""
        how += f"; {code:,} verdicts on code are the receipt's, for an audit runs no code" if code else ""
    else:
        how = "the private texts are not here: each verdict is the receipt's"
    own = [one for one in problems if REPLIES in one.what or REPLY_CHECKS in one.what]
    return Checked(
        CHECK, "Does each reply give its verdict again, and do the verdicts give every figure?",
        f"{how}; every figure is counted again from the verdicts", f"{count:,} replies", outcome_of(own) if count else "not looked at",
    )  # fmt: skip
