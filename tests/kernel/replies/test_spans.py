"""Spans and vocabularies: what counts as filler, what stands for a number, where a reply ended."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from spelling import Speller

from engcmp_assets.kernel.replies.spans import fold_digits, has_digit, is_filler, vocabulary


@pytest.mark.parametrize("token", ["", " ", "\n\n", "----", " ---", "| | |", "====", "│", "...", "…", "-+-"])
def test_white_space_and_rules_are_filler(token: str) -> None:
    assert is_filler(token)


@pytest.mark.parametrize("token", ["a", ".", " no", ",", "0", "|x|", "的", "!"])
def test_what_says_something_is_not_filler(token: str) -> None:
    assert not is_filler(token)


def test_only_tokens_with_digits_stand_for_each_other() -> None:
    known = vocabulary(["1", "x", "7", "x2", "x5", "�", "�"])
    assert known.folded.tolist() == [0, 1, 0, 3, 3, 5, 6]
    assert known.letters.tolist() == [False, True, False, True, True, False, False]


def test_digits_of_every_script_fold_to_zero() -> None:
    assert fold_digits("a1b22٣c") == "a0b000c"
    every = [chr(number) for number in range(sys.maxunicode + 1)]
    assert fold_digits("".join(every)) == "".join("0" if sign.isdecimal() else sign for sign in every)
    assert {sign for sign in every if has_digit(sign)} == {sign for sign in every if sign.isdecimal()}


def test_a_reply_ends_in_its_answer_where_there_is_one_else_in_its_reasoning() -> None:
    speller = Speller()
    assert speller.reply("thought", "said").last.name == "answer"
    assert speller.reply("thought").last.name == "reasoning"
    assert speller.reply("").last.name == "answer"


def test_a_span_before_a_token_is_the_text_and_the_tokens_that_were_there() -> None:
    part = Speller().span("answer", "one two three four").before(2)
    assert part.text == "one two"
    assert np.array_equal(part.tokens, [0, 1])
