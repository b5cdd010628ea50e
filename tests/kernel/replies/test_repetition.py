"""`self_repetition` and `restated`: n-grams against a plain count, and planted shares."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.repetition import (
    earlier_counts,
    gram_hashes,
    moving_share,
    restated,
    self_repetition,
)
from engcmp_assets.kernel.replies.spans import Thresholds, as_tokens

LIMITS = Thresholds()


def healthy(count: int, seed: int = 1) -> list[int]:
    chance = Random(seed)
    return [chance.randrange(49152) for _ in range(count)]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 13))
def test_n_grams_are_counted_as_a_plain_loop_counts_them(ids: list[int], length: int) -> None:
    seen: Counter[tuple[int, ...]] = Counter()
    plain = []
    for at in range(len(ids) - length + 1):
        gram = tuple(ids[at : at + length])
        plain.append(seen[gram])
        seen[gram] += 1
    assert earlier_counts(gram_hashes(as_tokens(ids), length)).tolist() == plain


def test_hashes_of_a_million_different_grams_are_all_different() -> None:
    hashes = gram_hashes(np.arange(1_000_050) % 1_000_003, 50)
    assert len(np.unique(hashes[:1_000_000])) == 1_000_000


def test_once_is_a_redraft_and_twice_is_a_repetition() -> None:
    draft = healthy(3000)
    assert self_repetition(as_tokens(draft * 2), LIMITS).share == 0.0
    third = self_repetition(as_tokens(draft * 3), LIMITS)
    # Of the 4,047 n-grams of the tail, the last 2,951 lie in the third copy and had two before.
    assert third.share == pytest.approx(2951 / 4047)
    assert third.looped(LIMITS)


def test_a_share_of_few_n_grams_is_no_loop() -> None:
    assert self_repetition(as_tokens([5] * 150), LIMITS).share == pytest.approx(99 / 101)
    assert not self_repetition(as_tokens([5] * 150), LIMITS).looped(LIMITS)


def test_a_span_shorter_than_one_n_gram_has_no_share() -> None:
    assert isinstance(self_repetition(as_tokens([1] * 49), LIMITS).share, Missing)
    assert isinstance(restated(as_tokens([]), as_tokens(healthy(100)), LIMITS), Missing)


def test_what_the_answer_takes_from_the_reasoning_is_restated_and_no_repetition() -> None:
    code, own = healthy(400), healthy(200, seed=2)
    answer = as_tokens(own + code)
    # 551 n-grams, of which 351 lie within the code.
    assert restated(answer, as_tokens(healthy(50, seed=3) + code), LIMITS) == pytest.approx(351 / 551)
    assert restated(answer, as_tokens(healthy(900, seed=4)), LIMITS) == 0.0
    assert restated(answer, as_tokens([]), LIMITS) == 0.0
    assert self_repetition(answer, LIMITS).share == 0.0


def test_a_moving_share_ends_with_the_tail() -> None:
    flags = np.array([True, True, False, False, False])
    assert moving_share(flags, 2).tolist() == [1.0, 0.5, 0.0, 0.0]
    assert moving_share(flags, 6).size == 0
