"""`exact_period`: planted units, ends that are cut, units that say nothing; and a plain Z-function as the oracle."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.replies.exact_period import Period, exact_period
from engcmp_assets.kernel.replies.spans import Thresholds, Vocabulary, as_tokens

LIMITS = Thresholds()
FILLER = 7  # of the tokens 0 to 1,999; 0 to 6 have no letters
KNOWN = Vocabulary(np.arange(2000) == FILLER, np.arange(2000) >= FILLER, as_tokens(range(2000)))


def found(ids: list[int], limits: Thresholds = LIMITS) -> Period | None:
    return exact_period(as_tokens(ids), KNOWN, limits)


def healthy(count: int, seed: int = 1) -> list[int]:
    chance = Random(seed)
    return [chance.randrange(10, 2000) for _ in range(count)]


def z_function(ids: list[int]) -> list[int]:
    """For each place the length of what begins there and at the start alike."""
    z, left, right = [len(ids), *[0] * (len(ids) - 1)], 0, 0
    for at in range(1, len(ids)):
        if at < right:
            z[at] = min(right - at, z[at - left])
        while at + z[at] < len(ids) and ids[z[at]] == ids[at + z[at]]:
            z[at] += 1
        if at + z[at] > right:
            left, right = at, at + z[at]
    return z


def by_z_function(ids: list[int], limits: Thresholds) -> tuple[int, int] | None:
    """The smallest period of 2 or more tokens, and tokens dropped, as MEASURES section 7 has it."""
    best: tuple[int, int] | None = None
    for dropped in range(min(limits.dropped_tokens, len(ids)) + 1):
        z = z_function(ids[: len(ids) - dropped][::-1]) if len(ids) > dropped else []
        for period in range(2, min(limits.period_tokens, len(z) // limits.period_copies) + 1):
            if z[period] >= (limits.period_copies - 1) * period:
                unit = ids[len(ids) - dropped - period : len(ids) - dropped]
                if len(set(unit) - {FILLER}) >= limits.distinct_tokens and (best is None or period < best[0]):
                    best = period, dropped
    return best


@pytest.mark.parametrize("period", [3, 4, 17, 214, 512])
def test_eight_copies_of_a_unit_are_a_period_and_onset_is_the_second_copy(period: int) -> None:
    unit = healthy(period, seed=period)
    assert found(healthy(300) + unit * 8) == Period(period, 0, 300 + period, 8)
    assert found(healthy(300) + unit * 7) is None


def test_an_end_that_was_cut_or_tokenised_again_is_dropped_and_counted() -> None:
    unit = healthy(20)
    text = healthy(100, seed=5) + unit * 9 + unit[:6]
    assert found([*text, 1999]) == Period(20, 1, 120, 9)
    assert found(text + healthy(8, seed=3)) == Period(20, 8, 120, 9)
    assert found(text + healthy(9, seed=3)) is None


def test_a_unit_needs_three_tokens_that_say_something() -> None:
    assert found([20, 21, FILLER] * 100) is None
    assert found([20, 21, 22, FILLER] * 100) == Period(4, 0, 4, 100)


def test_rules_and_rows_of_empty_cells_are_no_loop() -> None:
    assert found([FILLER] * 32 + [10] * 30) is None
    assert found(healthy(50) + [FILLER, 30] * 90) is None


def test_a_single_token_must_stand_two_hundred_times() -> None:
    assert found([*healthy(30), *[44] * 199]) is None
    assert found([*healthy(30), *[44] * 200]) == Period(1, 0, 31, 200)
    assert found([*healthy(30), *[44, FILLER] * 200]) == Period(2, 0, 32, 200)
    assert found([*healthy(30), *[44, FILLER] * 190]) is None


def test_a_unit_without_a_letter_must_fill_two_hundred_tokens() -> None:
    assert found(healthy(30) + [1, 2, 3, 4, 5] * 30) is None
    assert found(healthy(30) + [1, 2, 3, 4, 5] * 40) == Period(5, 0, 35, 40)


def test_a_long_unit_must_fill_4096_tokens_in_three_copies() -> None:
    unit = healthy(1500)
    assert found(healthy(100, seed=2) + unit * 3) == Period(1500, 0, 1600, 3)
    assert found(healthy(100, seed=2) + unit * 2 + unit[:1400]) is None
    assert found(healthy(100, seed=2) + healthy(600) * 6) is None
    assert found(healthy(100, seed=2) + healthy(600) * 7) == Period(600, 0, 700, 7)


def test_the_smallest_period_is_named_not_a_multiple_of_it() -> None:
    period = found(healthy(8) * 200)
    assert period is not None and period.tokens == 8


@pytest.mark.parametrize("ids", [[], [5], healthy(9), healthy(5000)])
def test_healthy_text_has_none(ids: list[int]) -> None:
    assert found(ids) is None


@given(
    st.lists(st.integers(8, 12), max_size=30),
    st.lists(st.integers(7, 11), min_size=1, max_size=6),
    st.integers(1, 12),
    st.data(),
)
def test_it_is_what_the_z_function_of_the_reversed_tail_gives(
    before: list[int], unit: list[int], copies: int, data: st.DataObject
) -> None:
    small = Thresholds(period_copies=3, period_tokens=16, long_period_copies=1000)
    ids = before + unit * copies + data.draw(st.lists(st.integers(8, 12), max_size=10))
    period = found(ids, small)
    assert (None if period is None else (period.tokens, period.dropped)) == by_z_function(ids, small)
