"""A claim goes no further than its evidence: mistaken ones are refused however they are put, and their sound twins are accepted."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from claim_cases import BAND, CASES, DOCUMENTS, LAUNCHES, LOOK, SOLO, Case, cause, claim, ratio
from pydantic import BaseModel

from engcmp_assets.kernel.claims.checking import RULES, check_claim, narrowed
from engcmp_assets.kernel.claims.claims_file import parse_claims
from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_resources.errors import EngcmpError

IDS = [f"{number}-{case.rule_id}" for number, case in enumerate(CASES)]
# The review's findings, and the rule of the house that public tools broke.
FINDINGS = {"I1", "I2", *(f"U{n}" for n in range(1, 6)), *(f"M{n}" for n in range(1, 7)), "public"}
NAMES = {
    *DOCUMENTS, "K/cand@v1", "K/base@v1", "reading", "chat", "math", "8-16K", "0-8K", "kda_fp8", "output_shard", "indexer keys",
    "placement", "memory share", "launcher", "pb", "code", "reasoning about code", "greedy", "greedy, engine v1",
}  # fmt: skip
SCALED = ("estimate", "low", "high", "bound", "value", "per_row", "estimate_on_them")


def said_otherwise(value: Any, factor: float, name: str = "") -> Any:
    """The same claim or facts with every free name in other words, and every number another one."""
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        own = type(value).__annotations__
        return type(value)(**{key: said_otherwise(getattr(value, key), factor, key) for key in own})
    if isinstance(value, tuple):
        return tuple(said_otherwise(one, factor, name) for one in value)
    if isinstance(value, dict):
        return {said_otherwise(key, factor): said_otherwise(one, factor, name) for key, one in value.items()}
    if isinstance(value, str):
        return reworded(value) if value in NAMES or name in ("claim_id", "unit") else value
    return value * factor if isinstance(value, float) and name in SCALED else value


def reworded(name: str) -> str:
    return name.replace("reasoning about ", "").replace("code", "listing") if "code" in name else f"other-{name}"


def variant(one: Claim, facts: Facts) -> tuple[Claim, Facts]:
    """Renumbered by a third, where a number is not a ratio or a count."""
    factor = 1.0 if one.states in ("ratio", "loops", "counts", "looks") else 1.37
    return said_otherwise(one, factor), said_otherwise(facts, factor)


def rules_of(one: Claim, facts: Facts) -> list[str]:
    return [found.rule_id for found in check_claim(one, facts)]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_mistaken_claim_is_found_by_its_rule(case: Case) -> None:
    assert case.rule_id in rules_of(case.mistaken, case.facts)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_reworded_and_renumbered_it_is_found_too(case: Case) -> None:
    other, facts = variant(case.mistaken, case.facts)
    assert other != case.mistaken
    assert case.rule_id in rules_of(other, facts)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_its_sound_twin_is_accepted(case: Case) -> None:
    assert rules_of(case.sound, case.facts_of_twin) == []
    assert narrowed(case.sound, case.facts_of_twin) == case.sound


REWRITTEN = [case for case in CASES if narrowed(case.mistaken, case.facts) is not None]


def test_most_mistakes_can_be_rewritten_and_what_cannot_is_refused() -> None:
    assert len(REWRITTEN) > len(CASES) / 2
    for case in CASES:
        if case not in REWRITTEN:
            assert "refuse" in {one.action for one in check_claim(case.mistaken, case.facts)}, case.rule_id


@pytest.mark.parametrize("case", REWRITTEN, ids=[case.rule_id for case in REWRITTEN])
def test_a_rewritten_claim_is_another_one_and_sound(case: Case) -> None:
    better = narrowed(case.mistaken, case.facts)
    assert better is not None and better != case.mistaken
    assert check_claim(better, case.facts) == []


def test_every_rule_has_a_mistaken_claim_and_every_finding_a_rule() -> None:
    assert {case.rule_id for case in CASES} == set(RULES)
    assert {one.finding for one in RULES.values()} == FINDINGS


def test_a_rule_says_what_it_looks_at_and_what_to_do() -> None:
    for one in RULES.values():
        assert one.looks_at and one.remedy and one.find.__doc__


def test_batching_is_rewritten_to_where_the_variation_begins() -> None:
    better = narrowed(cause("batching"), SOLO)
    assert better is not None and better.cause is not None
    assert (better.cause.factor, better.cause.name) == ("prefill chunk", "2")


def test_an_ablation_of_two_settings_is_rewritten_to_both_together() -> None:
    better = narrowed(claim(states="ablation"), LAUNCHES)
    assert better is not None
    assert (better.states, better.cause, better.confounds) == ("difference", None, ("kda_fp8", "output_shard"))


def test_a_ratio_inside_the_band_is_rewritten_to_level() -> None:
    better = narrowed(ratio(estimate=0.95, verdict="slower"), BAND)
    assert better is not None and (better.verdict, better.band) == ("level", (0.92, 1.08))


def test_a_band_that_is_stated_is_the_one_that_was_measured() -> None:
    assert rules_of(ratio(estimate=1.09, band=(0.9, 1.1)), BAND) == ["another-band-than-measured"]
    assert rules_of(ratio(estimate=1.09, band=(0.99, 1.01)), BAND) == ["another-band-than-measured"]
    assert rules_of(ratio(estimate=1.09, band=(0.92, 1.08)), BAND) == []


def test_a_refused_claim_has_no_narrower_form() -> None:
    assert narrowed(claim(measure="kl_top20", baseline_measure="kl_full"), Facts(look=LOOK)) is None


def test_a_finding_says_claim_rule_and_remedy() -> None:
    (found,) = check_claim(ratio(estimate=1.05), BAND)
    assert str(found) == (
        "c-1: 1.05 times is called faster, and the noise band is 0.92 to 1.08 (ratio-inside-the-band, M1); say `level`"
    )


# Reading.

ONE = {"claim_id": "a", "states": "difference", "candidate": "K/x@1", "measure": "nll", "verdict": "descriptive"}


def test_claims_are_read_from_json_and_from_toml() -> None:
    document = json.dumps({"claims": [ONE]}).encode()
    lines = "\n".join(f'{name} = "{value}"' for name, value in ONE.items())
    found = parse_claims(document, where="claims.json")
    assert found == parse_claims(f"[[claims]]\n{lines}\n".encode(), where="c.toml")
    assert [one.claim_id for one in found.claims] == ["a"]


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ([{**ONE, "verdict": "clearly better"}], "claims.0.verdict"),
        ([{**ONE, "estimat": 1.0}], "did you mean 'estimate'"),
        ([{**ONE, "limits": ["small"]}], "claims.0.limits.0"),
        ([{**ONE, "evidence": {"receipts": ["abc"]}}], "claims.0.evidence.receipts.0"),
        ([{"claim_id": "a"}], "claims.0.states"),
        ([{**ONE, "claim_id": "a\x1b[31m"}], "claims.0.claim_id: Value error, holds a line break"),
        ([{**ONE, "confounds": ["one", "two\nthree"]}], "claims.0.confounds.1: Value error, holds a line break"),
        ([ONE, ONE], "claim a stands twice"),
        ([], "claims"),
    ],
)
def test_a_claim_that_is_none_is_refused_by_its_field(claims: list[Any], words: str) -> None:
    with pytest.raises(EngcmpError) as caught:
        parse_claims(json.dumps({"claims": claims}).encode(), where="claims.json")
    assert words in str(caught.value) and "claims.json" in str(caught.value)


def test_what_is_neither_json_nor_toml_is_refused() -> None:
    for where in ("claims.json", "claims.toml"):
        with pytest.raises(EngcmpError, match=r"claims"):
            parse_claims(b"{ nothing", where=where)
