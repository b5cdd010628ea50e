"""Exact paired tests of lengths under a shared cap."""

import math

import numpy as np
import pytest
from length_draws import capped_at, drawn

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_lengths.paired import longer_on_decided, mcnemar_capped, sign_test
from engcmp_assets.kernel.reply_lengths.records import ReplyLength, pair_up, reply_length, thinking_length
from engcmp_resources.errors import EngcmpError


def test_p_is_the_binomial_tail_doubled() -> None:
    found = sign_test([1] * 9 + [-1] + [0] * 5)
    assert (found.candidate_more, found.baseline_more, found.undecided) == (9, 1, 5)
    assert found.p == pytest.approx(2 * (1 + 10) / 2**10)


def test_nothing_decided_has_no_p() -> None:
    assert sign_test([0, 0]).p == Missing("no prompt is decided")


def replies(*lengths: int | None, cap: int = 100) -> list[ReplyLength]:
    """One reply to each prompt; None is a capped one."""
    return [
        ReplyLength(f"p{n}", cap if one is None else one, "capped" if one is None else "finished")
        for n, one in enumerate(lengths)
    ]


def test_a_capped_reply_is_longer_than_any_finished_one_and_two_capped_are_undecided() -> None:
    pairs = pair_up(replies(100, None, None, 40), replies(None, 100, None, 41), 100)
    longer = longer_on_decided(pairs)
    assert (longer.candidate_more, longer.baseline_more, longer.undecided) == (2, 1, 1)
    capped = mcnemar_capped(pairs)
    assert (capped.candidate_more, capped.baseline_more, capped.undecided) == (1, 1, 2)
    assert capped.p == 1


def test_looped_failed_and_empty_replies_are_left_out_and_counted_and_the_sensitivity_caps_those_that_may_have_gone_on() -> (
    None
):
    baseline = replies(10, 20, 30, 40, 50)
    endings = ("looped", "stopped_early", "error", "empty")
    candidate = [ReplyLength(f"p{n}", 5, ending) for n, ending in enumerate(endings)] + [
        ReplyLength("p4", 60, "finished")
    ]
    main = pair_up(baseline, candidate, 100)
    assert [pair.prompt_id for pair in main.pairs] == ["p4"]
    assert main.left_out == {"baseline": {}, "candidate": dict.fromkeys(endings, 1)}
    assert main.prompts_left_out == ("p0", "p1", "p2", "p3")
    other = pair_up(baseline, candidate, 100, as_capped=True)
    assert [pair.candidate[0] for pair in other.pairs] == [math.inf, math.inf, math.inf, 60]
    assert other.prompts_left_out == ("p3",)


def test_several_replies_to_a_prompt_are_one_sign_and_neither_arm_has_more_of_them() -> None:
    baseline = [ReplyLength("a", one, "finished") for one in (10, 20, 30)]
    candidate = [ReplyLength("a", 15, "finished"), ReplyLength("a", 100, "capped")]
    pairs = pair_up(baseline, candidate, 100)
    assert pairs.surplus == 1
    assert pairs.pairs[0].baseline == (10, 20)
    assert longer_on_decided(pairs).candidate_more == 1
    assert mcnemar_capped(pairs).candidate_more == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (ReplyLength("x", 101, "finished"), "finished after 101 tokens under a cap of 100"),
        (ReplyLength("x", 0, "finished"), "finished after 0 tokens"),
        (ReplyLength("x", 50, "capped"), "capped after 50 tokens, the shared cap is 100"),
    ],
)
def test_lengths_that_no_shared_cap_explains_are_refused(reply: ReplyLength, words: str) -> None:
    with pytest.raises(EngcmpError, match=words):
        pair_up([reply], [], 100)


def test_a_reply_s_ending_follows_from_its_class_and_the_vote() -> None:
    assert reply_length("p", 9, "capped", looped=True).ending == "looped"
    assert reply_length("p", 9, "recovered", looped=False).ending == "finished"
    with pytest.raises(EngcmpError, match="'gone' is no finish class"):
        reply_length("p", 9, "gone", looped=False)


def test_thinking_is_complete_once_the_answer_has_begun() -> None:
    assert thinking_length("p", 9, "capped", looped=True, ended_in="answer").ending == "finished"
    assert thinking_length("p", 9, "capped", looped=False, ended_in="reasoning").ending == "capped"
    assert thinking_length("p", 9, "capped", looped=True, ended_in="reasoning").ending == "looped"
    assert thinking_length("p", 0, "finished", looped=False, ended_in="answer").ending == "empty"
    assert thinking_length("p", 9, "finished", looped=False, ended_in="reasoning").ending == "stopped_early"


@pytest.mark.parametrize("share", [0.05, 0.45, 0.75])
def test_the_tests_reject_a_true_ratio_of_one_no_more_often_than_they_say(share: float) -> None:
    rng = np.random.default_rng(20261130)
    cap, trials = capped_at(share, 1.0), 400
    rejected = {"longer": 0, "capped": 0}
    for _ in range(trials):
        pairs = pair_up(*drawn(rng, ratio=1.0, cap=cap), cap)
        for name, test in (("longer", longer_on_decided), ("capped", mcnemar_capped)):
            p = test(pairs).p
            rejected[name] += not isinstance(p, Missing) and p <= 0.05
    # An exact test rejects at most 5 %: 20 of 400, and 33 with three standard errors.
    assert max(rejected.values()) <= 33, rejected


def test_the_sign_test_sees_a_true_ratio_of_1_30_under_half_caps() -> None:
    rng = np.random.default_rng(5)
    cap = capped_at(0.45, 1.3)
    found = [longer_on_decided(pair_up(*drawn(rng, ratio=1.3, cap=cap), cap)).p for _ in range(200)]
    rejected = sum(not isinstance(p, Missing) and p <= 0.05 for p in found)
    assert rejected > 50  # 5 % of them would be 10
