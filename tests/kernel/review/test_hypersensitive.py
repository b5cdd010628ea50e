"""Hypersensitive rows: planted ones are found, and laid at an arm's door only where a repeat says so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.hypersensitive import Repeat, hypersensitive_rows
from engcmp_resources.errors import EngcmpError

WINDOWS = [f"w{number}" for number in range(6) for _ in range(10)]
POSITIONS = list(range(10)) * 6


def quiet():
    """Six windows of ten rows, each row at 0.01 nats."""
    return np.full(60, 0.01)


def planted():
    values = quiet()
    values[[31, 32]] = [3.0, 2.0]
    return values


def read(values, **more):
    return hypersensitive_rows(values, windows=WINDOWS, positions=POSITIONS, **more)


def test_rows_of_nats_in_a_quiet_panel_are_found_with_their_place_and_weight():
    found = read(planted())
    assert (found.bound, found.sensitive, found.found) == (pytest.approx(0.5), 2, True)
    assert [(row.window, row.position, row.distance) for row in found.worst] == [("w3", 1, 3.0), ("w3", 2, 2.0)]
    (window,) = found.windows
    assert (window.window, window.rows, window.sensitive) == ("w3", 10, 2)
    assert window.mean == pytest.approx(0.508)
    assert found.share_of_sum == pytest.approx(5 / 5.58)
    assert "no repeat was captured of them" in found.sentence


def test_a_quiet_panel_has_none():
    found = read(quiet())
    assert not found.found and found.windows == () and "No row is above 0.5 nats" in found.sentence


def test_a_row_at_the_bound_is_not_above_it_and_ten_rows_are_shown():
    values = quiet()
    values[:20] = 3.0
    values[30] = read(quiet()).bound
    found = read(values)
    assert (found.sensitive, len(found.worst)) == (20, 10)
    assert [(row.window, row.position) for row in found.worst] == [("w0", place) for place in range(10)]


def test_an_arm_that_is_as_far_from_itself_is_named():
    itself = np.where(planted() > 1, 1.9, 0.0)
    found = read(
        planted(),
        repeats={"C": Repeat(itself, np.ones(60, dtype=bool)), "V": Repeat(np.zeros(60), np.ones(60, dtype=bool))},
    )
    assert found.also_with_itself == {"C": (2, 2), "V": (0, 2)}
    assert found.windows[0].repeats == {"C": pytest.approx(0.38), "V": 0.0}
    assert found.worst[0].repeats == {"C": 1.9, "V": 0.0}
    assert found.sentence == (
        "2 of 60 rows in 1 window are above 0.5 nats and carry 89.6 % of the sum, 2 of them in w3; "
        "C is as far from its own repeat on 2 of 2, V is as far from its own repeat on 0 of 2."
    )


def test_rows_without_a_repeat_are_nobody_s_and_never_zero():
    known = np.array(WINDOWS) != "w3"
    repeat = Repeat(np.where(known, 0.001, np.nan), known)
    found = read(planted(), repeats={"V": repeat})
    assert isinstance(found.also_with_itself["V"], Missing)
    assert isinstance(found.windows[0].repeats["V"], Missing) and isinstance(found.worst[0].repeats["V"], Missing)
    assert "cannot be given to either arm" in found.sentence


def test_wild_windows_do_not_move_the_bound_while_they_are_fewer_than_half():
    values = quiet()
    values[:20] = 3.0
    assert read(values).bound == pytest.approx(0.5) and read(values).sensitive == 20


def test_the_rows_that_set_the_bound_can_be_named():
    # Wild rows in every window: only the panel's own rows know what is typical.
    wild = np.array([place >= 3 for place in POSITIONS])
    values = np.where(wild, 2.0, 0.01)
    assert not read(values).found
    found = read(values, panel=~wild)
    assert found.sensitive == 42 and found.share_of_sum > 0.99


def test_a_panel_of_zeros_still_has_a_bound():
    values = np.zeros(60)
    values[5] = 3.0
    assert (read(values).bound, read(values).sensitive) == (0.1, 1)
    same = read(np.zeros(60))
    assert not same.found and isinstance(same.share_of_sum, Missing)


@pytest.mark.parametrize(
    ("more", "named"),
    [({"panel": np.zeros(60, dtype=bool)}, "0 rows"), ({"factor": 0}, "factor 0"), ({"least": 0}, "least 0")],
)
def test_a_bound_that_nothing_sets_is_refused(more, named):
    with pytest.raises(EngcmpError, match=named):
        read(quiet(), **more)


@pytest.mark.parametrize("wrong", [-0.1, np.nan, np.inf])
def test_a_kl_that_is_none_is_refused_with_its_column(wrong):
    values = quiet()
    values[3] = wrong
    with pytest.raises(EngcmpError, match="distances"):
        read(values)
    with pytest.raises(EngcmpError, match="repeats of V"):
        read(quiet(), repeats={"V": Repeat(values, np.ones(60, dtype=bool))})
    with pytest.raises(EngcmpError, match="repeats of V 59"):
        read(quiet(), repeats={"V": Repeat(values[:59], np.ones(60, dtype=bool))})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 4), min_size=60, max_size=60), st.permutations(range(60)))
def test_the_order_of_the_rows_does_not_matter(values, order):
    values, order = np.array(values), np.array(order)
    whole = read(values, repeats={"V": Repeat(values / 2, values > 1)})
    own = values[order]
    shuffled = hypersensitive_rows(
        own,
        windows=np.array(WINDOWS)[order],
        positions=np.array(POSITIONS)[order],
        repeats={"V": Repeat(own / 2, own > 1)},
    )
    assert shuffled == whole
