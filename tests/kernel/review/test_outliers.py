"""The window that carries a result: planted, absent, and where too few clusters are left to say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.outliers import carrying_windows
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

QUICK = Preset(replicates=400, seed=5)
NAMES = [f"w{number:02}" for number in range(12)]


def read(differences, windows, *, positions=None, clusters=None, **more):
    """Candidate minus baseline is `differences`, against a baseline of 1."""
    baseline = np.ones(len(differences))
    return carrying_windows(
        baseline + np.asarray(differences), baseline, windows=windows, clusters=clusters or windows, preset=QUICK,
        positions=range(len(differences)) if positions is None else positions, **more,
    )  # fmt: skip


def test_the_one_wild_window_is_found_with_its_worst_rows():
    # Eleven windows near 0 and w07 at -8: the whole mean is its doing.
    effects = [0.01 * (-1) ** number for number in range(12)]
    effects[7] = -8.0
    rows = [(effect, name, place) for effect, name in zip(effects, NAMES, strict=True) for place in range(4)]
    rows[28:32] = [(-1.0, "w07", 0), (-20.0, "w07", 1), (8.0, "w07", 2), (-19.0, "w07", 3)]
    values, windows, positions = zip(*rows, strict=True)
    found = read(values, windows, positions=positions)
    assert found.found and found.most_moving.window == "w07" and found.carrying[0].window == "w07"
    assert found.carrying[0].halves and found.carrying[0].robust_distance > 100
    assert [(row.position, row.difference) for row in found.worst_rows] == [(1, -20.0), (3, -19.0), (2, 8.0), (0, -1.0)]
    assert (found.worst_rows[0].candidate, found.worst_rows[0].baseline) == (-19.0, 1.0)
    assert found.low < -0.7 and found.high == pytest.approx(0.01 / 11)
    assert "leaving out w07" in found.sentence and "1 (-20)" in found.sentence


def test_windows_that_all_agree_carry_nothing_alone():
    found = read([0.9, 1.0, 1.1, 1.0, 0.95, 1.05, 1.0, 0.9, 1.1, 1.0, 1.02, 0.98], NAMES)
    assert not found.found and "no single window carries it" in found.sentence
    assert (found.low, found.high) == pytest.approx((10.9 / 11, 11.1 / 11))


def test_a_verdict_that_turns_without_one_window_is_found_although_the_effect_stays_on_its_side():
    values = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -2.4, -2.6]
    found = read(values, NAMES)
    turned = {one.window for one in found.carrying if one.verdict_changes is True}
    assert turned == {"w10", "w11"} and not any(one.halves for one in found.carrying)


def test_the_worst_rows_are_of_the_window_that_the_sentence_names():
    # w01 moves the mean most and changes nothing; without w03 zero is excluded.
    found = read([0.5, 3.0, -1.0, -2.0, -1.0, 1.0, -1.0, 3.0, 1.0, 1.0, 1.0, 0.5], NAMES)
    assert (found.most_moving.window, found.carrying[0].window) == ("w01", "w03")
    assert [row.window for row in found.worst_rows] == ["w03"]
    assert "leaving out w03 turns the verdict" in found.sentence


def test_the_share_that_counts_as_halved_is_a_parameter():
    values = [6.0] + [1.0] * 11
    assert {one.window for one in read(values, NAMES, share=0.75).carrying if one.halves} == {"w00"}
    assert not any(one.halves for one in read(values, NAMES, share=0.7).carrying)  # 17/12 falls to 1: 0.706 is left


def test_exactly_half_counts_and_the_window_that_moves_most_comes_first():
    found = read([4.0, 1.0, 1.0], ["a", "b", "c"])  # 2 falls to 1
    assert [one.window for one in found.carrying] == ["a"]
    # 3 falls to 4/3 without a, and to 1 without b.
    two = read([8.0, 9.0, -3.0, -2.0], ["a", "b", "c", "d"])
    assert [one.window for one in two.carrying] == ["b", "a"] and two.most_moving.window == "b"


def test_a_change_of_method_is_not_taken_for_a_change_of_verdict():
    eight = read([1.0, 1.1] * 4, NAMES[:8])
    assert (
        isinstance(eight.most_moving.verdict_changes, Missing)
        and "7 clusters" in eight.most_moving.verdict_changes.reason
    )
    nine = read([1.0, 1.1, 0.9] * 3, NAMES[:9])
    assert nine.most_moving.verdict_changes is False
    three = read([1.0, 1.1, 1.2], NAMES[:3])
    assert isinstance(three.most_moving.verdict_changes, Missing)


def test_windows_of_one_document_are_left_out_one_by_one():
    # Documents d0 to d8 of two windows each: leaving a window out keeps its document.
    windows = [f"d{number}-{length}" for number in range(9) for length in ("32k", "64k")]
    found = read([1.0] * 18, windows, clusters=[name[:2] for name in windows])
    assert found.most_moving.without.clusters == 9 and found.most_moving.verdict_changes is False


def test_the_robust_distance_by_hand_and_two_windows_are_enough():
    # Means 1, 2, 3, 4, 10: median 3, deviations 2 1 0 1 7, their median 1.
    found = read([1.0, 2.0, 3.0, 3.0, 4.0, 10.0], ["a", "b", "c", "c", "d", "e"])
    assert found.most_moving.window == "e" and found.most_moving.robust_distance == pytest.approx(7 / 1.4826)
    two = read([1.0, 3.0], ["a", "b"])
    assert (two.low, two.high) == (1.0, 3.0)


def test_a_scale_of_zero_gives_no_robust_distance():
    found = read([1.0] * 11 + [5.0], NAMES)
    assert isinstance(found.most_moving.robust_distance, Missing)


def test_identical_arms_give_zero_and_no_finding():
    found = read([0.0] * 12, NAMES)
    assert (found.low, found.high, found.found, found.worst_rows) == (0.0, 0.0, False, ())


def test_one_window_leaves_nothing():
    assert "1 window" in read([1.0, 2.0], ["a", "a"]).reason


def test_columns_that_do_not_pair_up_are_named():
    with pytest.raises(EngcmpError, match="positions 1"):
        read([1.0, 2.0], ["a", "b"], positions=[0])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-1, 1), st.sampled_from(NAMES)), min_size=2, max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_rows_does_not_matter(drawn, chance):
    rows = [(value, window, place) for place, (value, window) in enumerate(drawn)]

    def answer(own):
        values, windows, positions = zip(*own, strict=True)
        return read(values, windows, positions=positions)

    assert answer(rows) == answer(chance.sample(rows, len(rows)))
