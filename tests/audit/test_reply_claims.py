"""Figures of a pair's long replies are claims: counted again from single verdicts, and refused where they say more."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from planted_replies import graded, verdict, with_ids

from engcmp_assets.audit.found import Found
from engcmp_assets.audit.gathered import Gathered
from engcmp_assets.audit.private_texts import PrivateTexts
from engcmp_assets.audit.reply_claims import recounted, repeated, replies_checked, reply_claims
from engcmp_assets.comparisons.replies import ArmSide, Judging, replies_document
from engcmp_assets.kernel.claims.checking import check_claim
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_verdicts import Verdict
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.publication.stated import refuse_overreach
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Place

STUDY, CANDIDATE, BASELINE = "planted", "q8_0/llamacpp@b11549", "q8_0/llamacpp@b10809"
PLACE = Place(STUDY, ArmKey.parse(CANDIDATE).folder, "long_output_checks")
Wrong = dict[str, list[str]]


def side(*endings: str, passed: bool) -> list[Verdict]:
    long = [
        with_ids(verdict(f"p{number}", ending), [number, ending == "looped"]) for number, ending in enumerate(endings)
    ]
    return [*long, graded(verdict("m1", block="math", stage="math", kind="reasoning"), "math", passed)]


def pair_of(*declared: str) -> tuple[dict[str, Any], Gathered]:
    verdicts = {
        CANDIDATE: side(*["looped"] * 6, "finished", passed=True), BASELINE: side(*["finished"] * 7, passed=False),
    }  # fmt: skip
    plan = ComparisonPlan(
        pair_id="p", label="p", candidate=CANDIDATE, baseline=BASELINE, reply_tests=cast(Any, declared)
    )
    sides = [ArmSide(ArmKey.parse(arm), own, {}) for arm, own in verdicts.items()]
    document = replies_document(STUDY, plan, (sides[0], sides[1]), Judging(Preset(50, 1), 0.95, declared))
    pair = {"pair_id": "p", "candidate": CANDIDATE, "baseline": BASELINE, "undeclared": [], "replies": document}
    found = SimpleNamespace(
        verdicts=verdicts, reached=SimpleNamespace(heads={PLACE: "ab" * 32}), known=frozenset({"ab" * 32}), owners={},
        study=SimpleNamespace(protocol=SimpleNamespace(comparisons=[plan])),
    )  # fmt: skip
    return pair, cast(Gathered, found)


def wrong(pair: dict[str, Any], found: Gathered) -> Wrong:
    read = [(claim, check_claim(claim, facts)) for claim, facts in reply_claims(found, pair)]
    assert len(read) > 6
    return {claim.measure: [one.rule_id for one in faults] for claim, faults in read if faults}


def figure(pair: dict[str, Any], measure: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in pair["replies"]["figures"] if one["measure"] == measure)
    return found


def test_sound_figures_hold_and_are_counted_again_from_single_verdicts() -> None:
    pair, found = pair_of("looped")
    assert wrong(pair, found) == {} and figure(pair, "reply_looped")["verdict"] == "resolved"
    refuse_overreach([{**pair, "figures": []}])
    sides = [[one for one in found.verdicts[arm] if one.block == "long"] for arm in (CANDIDATE, BASELINE)]
    assert recounted("reply_looped", *sides) == pytest.approx(6 / 7)
    assert recounted("reply_identical", *sides) == pytest.approx(1 / 7)
    assert recounted("length_ratio", *sides) is None


def test_replies_that_were_made_twice_are_counted_again_from_single_verdicts() -> None:
    first = [verdict(f"p{number}") for number in range(4)]
    again = [replace(one, block="again", stage="again-L1") for one in first]
    once = [*first, *again]
    other = [*first, replace(again[0], text_sha256="0" * 64), *again[1:]]
    assert repeated([once, other], "long-L1") == 0.75 and repeated([once, first], "long-L1") is None


@pytest.mark.parametrize(
    ("measure", "change", "rule"),
    [
        ("reply_looped", {"value": 0.5}, "another-number-than-measured"),
        ("reply_identical", {"value": 1.0}, "another-number-than-measured"),
        ("math_right", {"verdict": "resolved"}, "replies-judged-by-no-declared-test"),
    ],
)
def test_a_figure_that_says_more_than_the_verdicts_is_found(measure: str, change: dict[str, Any], rule: str) -> None:
    pair, found = pair_of("looped")
    figure(pair, measure).update(change)
    assert rule in wrong(pair, found).pop(measure)


def test_a_verdict_stands_only_by_its_own_test_of_the_protocol() -> None:
    pair, found = pair_of("looped")
    for one in found.verdicts[CANDIDATE][:5]:
        found.verdicts[CANDIDATE][found.verdicts[CANDIDATE].index(one)] = verdict(one.item)
    assert "replies-resolved-without-their-test" in wrong(pair, found)["reply_looped"]  # one of seven prompts: p = 1
    pair, found = pair_of("looped")
    plans = found.study.protocol.comparisons
    plans[0] = plans[0].model_copy(
        update={"reply_tests": ()}
    )  # what the comparison took for declared is not in the protocol
    assert wrong(pair, found) == {"reply_looped": ["replies-judged-by-no-declared-test"]}


def test_a_page_is_refused_that_calls_undeclared_replies_resolved() -> None:
    pair, _ = pair_of()
    figure(pair, "reply_looped")["verdict"] = "resolved"
    with pytest.raises(EngcmpError, match="no test of them was declared"):
        refuse_overreach([{**pair, "figures": []}])


def test_the_audit_says_whether_it_judged_the_texts_or_took_the_receipts_word() -> None:
    _, found = pair_of()
    here = replies_checked(found, PrivateTexts(16, 0), ())
    assert "16 private texts hashed and judged again" in here.how and here.outcome == "holds"
    some = replies_checked(found, PrivateTexts(10, 6), ())
    assert "6 are not here: there the verdict is the receipt's" in some.how
    gone = replies_checked(found, PrivateTexts(0, 16), ())
    assert gone.how.startswith("the private texts are not here: each verdict is the receipt's")
    fault = Found("proof", "corrected", "x", "long_output_checks of q: verdicts.parquet differs", "again")
    assert replies_checked(found, PrivateTexts(16, 0), (fault,)).outcome == "corrected"
