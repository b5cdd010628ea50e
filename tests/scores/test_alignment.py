"""An off-by-one between rows and tokens is caught by what the first choices match."""

import numpy as np
import pytest

from engcmp_assets.kernel.records import Missing, Window
from engcmp_assets.scores.alignment import check_alignment
from engcmp_resources.errors import EngcmpError


def window(count=200, seed=0, positions=None, vocab=1000):
    """Random tokens and the rows to keep (all of them unless given)."""
    tokens = tuple(np.random.default_rng(seed).integers(0, vocab, count).tolist())
    return tokens, tuple(range(count - 1)) if positions is None else positions


def tops(one, ids):
    """The window `w` with the first choices `ids` of its rows."""
    tokens, positions = one
    return Window("w", tokens, positions, ("context",) * len(positions), "c", "b", "k"), np.asarray(ids)


def choices(one, shift, hit_every=2):
    """First choices that match the token at `shift` on every second row, and no token elsewhere."""
    tokens, positions = one
    ids = np.full(len(positions), 99_999)
    for index, row in enumerate(positions):
        target = row + 1 + shift
        if index % hit_every == 0 and 0 <= target < len(tokens):
            ids[index] = tokens[target]
    return tops(one, ids)


def test_first_choices_that_match_the_next_token_are_aligned():
    found = check_alignment([choices(window(), 0)])
    assert (found.verdict, found.shift, found.rows) == ("aligned", 0, 199)
    assert found.counts[0] == 100


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_planted_off_by_one_is_caught_with_its_shift(shift):
    found = check_alignment([choices(window(), shift)])
    assert (found.verdict, found.shift) == ("misaligned", shift)
    assert found.p_values[shift] < 0.001
    assert found.p_values[-shift] > 0.001
    assert "off by one" in found.explanation


def test_rows_are_gathered_over_all_windows_of_the_panel():
    panel = [window(40, seed=seed) for seed in range(3)]
    assert check_alignment([choices(panel[0], 1)]).verdict == "undetermined"
    found = check_alignment([choices(one, 1) for one in panel])
    assert (found.verdict, found.shift, found.rows) == ("misaligned", 1, 117)


def test_the_test_needs_sixty_four_comparable_rows():
    # A window of n tokens has n - 1 rows, of which n - 2 can be compared with shift +1.
    short, enough = window(65), window(66)
    assert check_alignment([choices(short, 1, 1)]).verdict == "undetermined"
    found = check_alignment([choices(enough, 1, 1)])
    assert found.verdict == "misaligned"
    assert [one.rows for one in found.tests] == [64, 64]


def test_the_p_value_is_the_exact_binomial_over_discordant_rows():
    # 10 discordant rows, all for shift +1: one-sided p = 2^-10 < 0.001; 9 of them: 2^-9 > 0.001.
    one = window()
    for hits, verdict in ((10, "misaligned"), (9, "undetermined")):
        ids = np.full(199, 99_999)
        ids[50 : 50 + hits] = one[0][52 : 52 + hits]
        found = check_alignment([tops(one, ids)])
        assert found.p_values[1] == pytest.approx(2.0**-hits)
        assert found.verdict == verdict


def test_the_last_row_is_left_out_at_plus_one_and_row_zero_at_minus_one():
    one = window(positions=(0, 198))
    found = check_alignment([tops(one, [one[0][0], one[0][199]])])
    before, after = found.tests
    # Row 0 cannot be row -1 and row 198 cannot be row 199, so a match there says nothing about that shift.
    assert (before.shift, before.rows, before.only_shift, before.only_zero) == (-1, 1, 0, 1)
    assert (after.shift, after.rows, after.only_shift, after.only_zero) == (1, 1, 0, 0)
    assert found.counts == {-1: 0, 0: 1, 1: 0}


def test_a_text_of_one_repeated_token_is_undetermined_because_all_shifts_match_alike():
    found = check_alignment([tops(((7,) * 200, tuple(range(199))), [7] * 199)])
    assert found.verdict == "undetermined"
    assert isinstance(found.shift, Missing) and "no shift stands out" in found.explanation


def test_first_choices_that_match_nothing_are_undetermined():
    assert check_alignment([tops(window(), [99_999] * 199)]).verdict == "undetermined"


def test_two_shifts_that_both_stand_out_are_reported_by_the_stronger():
    one = window(400)
    ids = np.full(399, 99_999)
    ids[20:40] = one[0][20:40]
    ids[100:200] = one[0][102:202]
    found = check_alignment([tops(one, ids)])
    assert (found.verdict, found.shift) == ("misaligned", 1)
    assert found.p_values[-1] < 0.001


def test_first_choices_that_do_not_pair_up_with_rows_are_refused():
    with pytest.raises(EngcmpError, match=r"198.*199 rows \(window w\)"):
        check_alignment([tops(window(), [0] * 198)])
    with pytest.raises(EngcmpError, match="row 199 predicts no token"):
        check_alignment([tops(window(positions=(199,)), [0])])


def test_no_window_is_undetermined():
    found = check_alignment([])
    assert (found.verdict, found.rows) == ("undetermined", 0)
