"""Two arms' long replies under one cap, and the identity of replies between versions of one engine."""

from dataclasses import replace
from typing import Any

import pytest

from engcmp_assets.kernel.records import ArmKey, Missing
from engcmp_assets.kernel.reply_comparison import ReplyFacts, compare_replies, reply_identity
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

CAP = 1000
FEW = Preset(replicates=30, seed=1)


def reply(
    prompt: int, finish: str = "finished", *, tokens: int | None = None, seed: int = 0, **more: Any
) -> ReplyFacts:
    length = CAP if finish == "capped" else 300 + 7 * prompt if tokens is None else tokens
    facts = ReplyFacts(
        f"p{prompt:02}", seed, finish, False, "answer", length, length // 3, f"sha-{prompt}-{seed}-{length}"
    )
    return replace(facts, **more)


def arm(count: int = 12, **more: Any) -> list[ReplyFacts]:
    return [reply(prompt, **more) for prompt in range(count)]


def test_endings_are_counted_apart_and_add_up() -> None:
    candidate = [
        reply(0), reply(1, "recovered"), reply(2, "capped"), reply(3, "capped", looped=True),
        reply(4, "stopped_early", looped=True), reply(5, "stopped_early"), reply(6, "error"), reply(7, "empty", tokens=0),
    ]  # fmt: skip
    found = compare_replies(arm(8), candidate, CAP, preset=FEW)
    assert found.candidate.endings == {
        "capped": 1, "empty": 1, "error": 1, "finished": 1, "looped": 2, "recovered": 1, "stopped_early": 1,
    }  # fmt: skip
    assert sum(found.candidate.endings.values()) == found.candidate.replies == 8
    assert found.baseline.endings == {"finished": 8}
    tests = {one.name: one.test for one in found.tests}
    assert (tests["looped"].candidate_more, tests["looped"].undecided) == (2, 4)
    assert tests["capped"].candidate_more == 1


def test_tests_passed_are_compared_by_prompt_on_graded_replies_only() -> None:
    baseline = [reply(n, passed=True) for n in range(10)]
    candidate = [reply(n, passed=n > 5) for n in range(9)] + [reply(9, "capped", passed=Missing("capped"))]
    found = compare_replies(baseline, candidate, CAP, preset=FEW)
    passed = next(one for one in found.tests if one.name == "passed").test
    assert (passed.baseline_more, passed.candidate_more, passed.undecided) == (6, 0, 3)
    assert passed.p == pytest.approx(2 / 2**6)
    assert (found.candidate.passed, found.candidate.passed_graded) == (3, 9)
    assert found.ungraded_pairs == {"passed": 1, "json_valid": 10}
    assert (found.baseline.json_valid, found.baseline.json_graded) == (0, 0)


def test_arms_are_paired_by_prompt_and_never_by_seed() -> None:
    """The same replies under other seeds, in another order, give the same figures."""
    baseline = [reply(n, seed=s, tokens=200 + 10 * n + s) for n in range(10) for s in range(3)]
    candidate = [reply(n, seed=s, tokens=260 + 10 * n + s) for n in range(10) for s in range(3)]
    moved = [replace(one, seed=99 - one.seed) for one in candidate]
    first, second = (compare_replies(baseline, one, CAP, preset=FEW) for one in (candidate, moved))
    assert first.lengths.main.ratio == second.lengths.main.ratio
    assert first.tests == second.tests


def test_a_test_is_descriptive_unless_it_was_declared() -> None:
    found = compare_replies(arm(), arm(), CAP, declared={"passed"}, preset=FEW)
    assert {one.name: one.standing for one in found.tests} == {
        "capped": "descriptive", "looped": "descriptive", "longer": "descriptive", "thinks_longer": "descriptive",
        "passed": "declared", "json_valid": "descriptive",
    }  # fmt: skip
    with pytest.raises(EngcmpError, match="'faster' is no test of replies; declare some of capped, looped"):
        compare_replies(arm(), arm(), CAP, declared={"faster"}, preset=FEW)


def test_thinking_that_ended_counts_though_its_answer_was_cut() -> None:
    baseline = [reply(n, reasoning_tokens=150 + 3 * n * n) for n in range(10)]
    candidate = [reply(n, "capped", reasoning_tokens=450 + 10 * n) for n in range(10)]
    found = compare_replies(baseline, candidate, CAP, preset=FEW)
    assert isinstance(found.lengths.main.ratio.ratio, Missing)
    assert not isinstance(found.thinking, Missing)
    assert found.thinking.main.ratio.ratio == pytest.approx(found.thinking.main.under_cap.ratio, rel=1e-3)


def test_without_thinking_there_is_no_thinking_length() -> None:
    found = compare_replies(arm(reasoning_tokens=None), arm(), CAP, preset=FEW)
    assert found.thinking == Missing("an arm has no reply with thinking")
    assert "thinks_longer" not in {one.name for one in found.tests}


def test_a_prompt_and_seed_twice_is_refused() -> None:
    with pytest.raises(EngcmpError, match="prompt p00, seed 0: 2 replies under one cap"):
        compare_replies([reply(0), reply(0)], arm(), CAP, preset=FEW)


OLD, NEW = ArmKey.parse("K4/cuteafd@v3.0.1"), ArmKey.parse("K4/cuteafd@v4.0.0")


def test_replies_of_two_versions_are_the_same_by_token_ids() -> None:
    first = arm(75, token_ids=(5, 6, 7))
    found = reply_identity(OLD, NEW, first, first)
    assert not isinstance(found, Missing)
    assert str(found) == "75 of 75 identical"
    assert found.by_digest == 0


def test_the_first_token_that_differs_is_told() -> None:
    first = [
        reply(0, token_ids=(1, 2, 3)),
        reply(1, token_ids=(1, 2, 3)),
        reply(2, token_ids=(1, 2, 3)),
        reply(3, token_ids=()),
    ]
    second = [
        reply(0, token_ids=(1, 9, 3)),
        reply(1, token_ids=(1, 2, 3, 4)),
        reply(2, token_ids=(1, 2, 3)),
        reply(3, token_ids=(4,)),
    ]
    found = reply_identity(OLD, NEW, first, second)
    assert not isinstance(found, Missing)
    assert [(one.prompt_id, one.first_token) for one in found.divergences] == [("p00", 1), ("p01", 3), ("p03", 0)]
    assert (found.identical, found.compared) == (1, 4)


def test_without_token_ids_of_both_the_digest_decides_and_no_place_is_told() -> None:
    first = [reply(0, token_ids=(1, 2)), reply(1)]
    second = [reply(0), reply(1, text_sha256="other", token_ids=(1,))]
    found = reply_identity(OLD, NEW, first, second)
    assert not isinstance(found, Missing)
    assert (found.identical, found.compared, found.by_digest) == (1, 2, 2)
    assert found.divergences[0].first_token == Missing("token ids are not known of both replies")


def test_failed_and_lone_replies_are_counted_not_compared() -> None:
    found = reply_identity(OLD, NEW, [reply(0), reply(1, "error"), reply(2)], [reply(0), reply(1), reply(2, seed=5)])
    assert not isinstance(found, Missing)
    assert (found.identical, found.compared, found.broken, found.unpaired) == (1, 1, 1, 2)


@pytest.mark.parametrize("other", ["K4/vllm@v4.0.0", "Q8/cuteafd@v4.0.0", "K4/cuteafd@v4.0.0+fast"])
def test_engines_are_never_paired_by_seed(other: str) -> None:
    found = reply_identity(OLD, ArmKey.parse(other), arm(), arm())
    assert isinstance(found, Missing)
    assert "only between versions of one engine" in found.reason
