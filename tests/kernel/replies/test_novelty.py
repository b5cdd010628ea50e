"""`novelty8`: new words, borders between phrases that are said again, digits as 0, text without spaces, and the onset."""

from __future__ import annotations

from random import Random

import pytest
from spelling import Speller

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.novelty import (
    Novelty,
    copies,
    falls_to_the_end,
    has_spaces,
    lowest_end,
    novelty,
    onset_unit,
    token_of_unit,
    unsaid,
)
from engcmp_assets.kernel.replies.repetition import earlier_counts, gram_hashes
from engcmp_assets.kernel.replies.spans import Thresholds

LIMITS = Thresholds()


def words(count: int, seed: int = 1) -> str:
    chance = Random(seed)
    return " ".join("".join(chance.choice("abcdefghij") for _ in range(4)) for _ in range(count))


def measured(text: str) -> Novelty:
    speller = Speller()
    span = speller.span("reasoning", text)
    return novelty(span, speller.vocabulary(), LIMITS)


def test_text_that_says_nothing_twice_is_all_new() -> None:
    found = measured(words(1500))
    assert (found.share, found.folded_share, found.by_word) == (1.0, 1.0, True)


def test_the_share_is_of_the_last_700_n_grams() -> None:
    start, again = words(1000), words(300, seed=2)
    # Of the second copy's 300 words, 293 begin an n-gram that stood before.
    found = measured(f"{start} {again} {words(500, seed=3)} {again}")
    assert found.share == pytest.approx(1 - 293 / 700)


def test_numbers_are_new_until_their_digits_are_0() -> None:
    text = " ".join(f"so let me try the number {n} now because it may work" for n in range(100, 300))
    found = measured(text)
    assert found.share > 0.5 and found.folded_share == 0.0
    assert copies(found.folded_counts, LIMITS) > 100


def test_a_short_span_has_a_share_of_what_there_is_and_none_of_nothing() -> None:
    assert measured(words(20)).share == 1.0
    assert isinstance(measured(words(7)).share, Missing)
    assert not falls_to_the_end(measured("on and on " * 100).counts, 8, LIMITS)


def test_phrases_in_new_order_are_not_new_though_the_n_grams_over_their_borders_are() -> None:
    chance, pool = Random(4), [words(12, seed=seed) for seed in range(20)]
    text = words(400, seed=99) + " " + " ".join(chance.choice(pool) for _ in range(150))
    found = measured(text)
    assert found.share > 0.1
    assert falls_to_the_end(found.counts, found.length, LIMITS)


def test_a_redraft_is_new_enough_and_a_third_draft_is_not() -> None:
    draft = words(900)
    twice, thrice = measured(f"{draft} {draft}"), measured(f"{draft} {draft} {draft}")
    assert twice.share == 0.0 and not falls_to_the_end(twice.counts, 8, LIMITS)
    assert falls_to_the_end(thrice.counts, 8, LIMITS)


def test_text_without_spaces_is_measured_in_tokens() -> None:
    chance = Random(5)
    signs = "".join(chr(chance.randrange(0x4E00, 0x9000)) for _ in range(1200))
    found = measured(signs)
    assert (found.by_word, found.length, found.share) == (False, 12, 1.0)
    assert falls_to_the_end(measured(signs[:40] * 30).counts, 12, LIMITS)
    assert not has_spaces(signs) and has_spaces(words(10))


def test_onset_is_where_the_second_copy_begins() -> None:
    unit = words(30, seed=2)
    speller, text = Speller(), words(500) + " " + " ".join([unit] * 40)
    span = speller.span("reasoning", text)
    found = novelty(span, speller.vocabulary(), LIMITS)
    unit_at = onset_unit(found.counts, found.length, LIMITS)
    assert abs(unit_at - 530) <= 8
    assert token_of_unit(span, found, unit_at) == unit_at  # a token a word


def test_units_in_no_n_gram_that_stood_before_are_unsaid() -> None:
    counts = earlier_counts(gram_hashes(Speller().span("answer", "a b c d x a b c y").tokens, 3))
    # The n-grams are not the same: the first token has no space before it.
    assert unsaid(counts, 3, 1).tolist() == [True] * 9
    counts = earlier_counts(gram_hashes(Speller().span("answer", " a b c d x a b c y").tokens, 3))
    assert unsaid(counts, 3, 1).tolist() == [True] * 5 + [False] * 3 + [True]
    assert unsaid(counts[:0], 3, 1).size == 0


def test_the_end_of_a_loop_that_was_left_is_within_it() -> None:
    found = measured(words(300) + " " + " ".join([words(25, seed=2)] * 60) + " " + words(900, seed=3))
    end = lowest_end(found.counts, found.length, LIMITS)
    assert end is not None and 1000 < end <= 1800
    assert lowest_end(measured(words(2000)).counts, 8, LIMITS) is None
