"""The vote: who decides, in which span, from where on; recovered replies, empty ones, and the early stop."""

from __future__ import annotations

from random import Random

import pytest
from spelling import Speller

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.loops import (
    ReplyVerdict,
    compression,
    early_stop,
    judge,
    templated_lines,
)
from engcmp_assets.kernel.replies.spans import Kind, Thresholds
from engcmp_resources.errors import EngcmpError

LIMITS = Thresholds()


def healthy(count: int, seed: int = 1) -> str:
    chance = Random(seed)
    words = ["".join(chance.choice("abcdefghij") for _ in range(chance.randint(2, 7))) for _ in range(count)]
    return "".join(f"{word}{chance.choice(['', '', '', ',', '.'])} " for word in words)


def verdict(reasoning: str, answer: str = "", *, finish: str | None = "length", kind: Kind = "prose") -> ReplyVerdict:
    speller = Speller()
    reply = speller.reply(reasoning, answer, finish=finish, kind=kind)
    return judge(reply, speller.vocabulary())


UNIT = healthy(23, seed=7)
LOOP = UNIT * 120
COUNTING = "".join(f"Let me try {n} and see. The sum for {n} is {n * 7}, which is too small. " for n in range(100, 320))


def test_a_verbatim_loop_is_found_by_its_period_from_the_second_copy_on() -> None:
    found = verdict(healthy(400) + LOOP[:-9])
    assert found.looped and found.finish == "capped"
    assert found.loop is not None and found.loop.detector == "exact_period" and found.loop_span == "reasoning"
    tokens = len(Speller().ids(healthy(400)))
    # The first copy begins after what ends the text before it, which the copies end with too.
    assert found.loop.onset_token == pytest.approx(tokens + len(Speller().ids(UNIT)), abs=3)
    assert found.loop.period is not None and found.loop.period.dropped > 0


def test_a_loop_of_phrases_in_new_order_is_soft() -> None:
    chance, pool = Random(2), [healthy(12, seed=seed) for seed in range(12)]
    found = verdict(healthy(400), healthy(300, seed=50) + "".join(chance.choice(pool) for _ in range(200)))
    assert found.looped and found.loop is not None and found.loop.detector == "novelty8"
    assert found.loop_span == "answer"
    assert 250 < found.loop.onset_token < 1000


def test_numbers_that_change_are_a_loop_in_the_reasoning_and_a_song_in_an_answer() -> None:
    found = verdict(healthy(300) + COUNTING)
    assert found.looped and found.loop is not None and found.loop.detector == "novelty8_digits"
    song = COUNTING[: len(COUNTING) // 220 * 95]
    assert not verdict(healthy(100), song).looped
    assert verdict(healthy(100), COUNTING).looped
    assert not verdict(healthy(100), COUNTING, kind="code").looped


def test_only_the_span_in_which_the_reply_ended_can_be_looped() -> None:
    found = verdict(healthy(100) + LOOP, healthy(500, seed=3))
    assert not found.looped and found.loop is None and found.finish == "capped"


def test_what_the_answer_restates_is_no_loop() -> None:
    code = healthy(1500)
    found = verdict(code, code)
    assert not found.looped
    assert found.restated == 1.0 and found.measured.repetition.share == 0.0


@pytest.mark.parametrize("left", ["reasoning", "answer"])
def test_a_finished_reply_that_came_out_of_a_loop_is_recovered(left: str) -> None:
    text = healthy(300) + LOOP + healthy(900, seed=4)
    other = healthy(200, seed=5)
    found = verdict(*((text, other) if left == "reasoning" else (other, text)), finish="stop")
    assert (found.finish, found.looped, found.loop_span) == ("recovered", False, left)
    assert found.loop is not None
    assert found.loop.onset_token == pytest.approx(len(Speller().ids(healthy(300))) + len(Speller().ids(UNIT)), abs=60)


def test_a_finished_reply_that_ends_in_a_loop_is_recovered_too_for_it_ended() -> None:
    found = verdict("", healthy(300) + LOOP, finish="stop")
    assert (found.finish, found.looped) == ("recovered", False)


def test_a_healthy_finished_reply_is_finished() -> None:
    found = verdict(healthy(2000), healthy(900, seed=2), finish="stop")
    assert (found.finish, found.looped, found.loop, found.loop_span) == ("finished", False, None, None)


def test_structured_text_is_judged_by_its_period_only() -> None:
    body = "".join(f"  {healthy(6, seed=seed)}\n" for seed in range(30))
    records = "".join(f"- id: {n}\n{body}" for n in range(60))
    assert not verdict("", "```yaml\n" + records, kind="code").looped
    assert verdict("", "```yaml\n" + body * 60, kind="code").looped


def test_an_empty_reply_is_a_class_of_its_own_and_its_measures_are_missing() -> None:
    found = verdict("", "", finish="stop")
    assert (found.finish, found.looped, found.reasoning_tokens, found.answer_chars) == ("empty", False, 0, 0)
    for value in (
        found.restated,
        found.measured.compression,
        found.measured.novelty.share,
        found.measured.repetition.share,
    ):
        assert isinstance(value, Missing)


def test_a_capped_reply_without_a_word_is_capped() -> None:
    assert verdict("", "").finish == "capped"


def test_lengths_are_of_both_spans_in_tokens_and_characters() -> None:
    found = verdict("one two three", "four five", finish="stop")
    assert (found.reasoning_tokens, found.reasoning_chars, found.answer_tokens, found.answer_chars) == (3, 13, 2, 9)


def test_a_broken_stream_is_an_error_and_its_text_tells_whether_it_looped() -> None:
    found = verdict(healthy(100) + LOOP, finish=None)
    assert (found.finish, found.looped) == ("error", True)


def test_an_unknown_reason_is_refused() -> None:
    with pytest.raises(EngcmpError, match="unknown finish_reason"):
        verdict("a", "b", finish="because")


def test_compression_and_lines_of_one_shape_are_printed_and_decide_nothing() -> None:
    table = "".join(f"| {n} | {healthy(3, seed=n)} |\n" for n in range(300))
    rows = "".join(f"row {n} of it\n" for n in range(300))
    assert templated_lines(rows, LIMITS) > 0.9
    share = compression(rows, LIMITS)
    assert not isinstance(share, Missing) and share < 0.2
    assert not verdict("", table).looped
    assert isinstance(templated_lines("", LIMITS), Missing)


def test_a_stream_is_stopped_at_the_third_loop_ten_thousand_characters_apart() -> None:
    period, soft, shape = "exact_period", "novelty8", "novelty8_digits"
    assert early_stop([(10_000, period), (20_000, soft), (30_000, "self_repetition")])
    assert not early_stop([(10_000, period), (20_000, soft)])
    assert not early_stop([(10_000, period), (20_000, None), (30_000, period), (40_000, period)])
    assert not early_stop([(10_000, shape), (20_000, shape), (30_000, shape), (40_000, shape)])
    # Verdicts may come more often: those in between count neither for nor against.
    assert not early_stop([(at, period) for at in range(10_000, 30_000, 2_000)])
    assert early_stop([(at, period) for at in range(10_000, 32_000, 2_000)])
