"""Sums that round once, held against `math.fsum`, which adds a Python number at a time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.exact_sums import exact_sum, exact_sums, numbered

ANY = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(ANY, st.integers(0, 4)), max_size=60))
def test_each_group_has_the_sum_of_fsum(rows: list[tuple[float, int]]) -> None:
    values, groups = [row[0] for row in rows], np.array([row[1] for row in rows], dtype=np.int64)

    def plain(group: int) -> float:
        own = [row[0] for row in rows if row[1] == group]
        try:
            return math.fsum(own)
        except (
            OverflowError
        ):  # fsum gives up where a partial sum is too large; halves are exact enough to tell the sign
            half = math.fsum(one / 4 for one in own)
            return 4 * half

    found = exact_sums(values, groups, 5).tolist()
    for group, one in enumerate(found):
        assert one == plain(group)


@pytest.mark.parametrize(
    "values",
    [
        [1e100, 1.0, -1e100],  # what is small survives what is large
        [5e-324, 5e-324, -5e-324],
        [0.1] * 10,
        [2.0**53, 1.0, 2.0**-60],  # above half of the last place: up, and not to even
        [2.0**53, 1.0],  # half of it: to even
        [],
        [-0.0],
    ],
)
def test_a_sum_rounds_once(values: list[float]) -> None:
    assert exact_sum(values) == math.fsum(values)


def test_a_sum_of_many_rows_is_that_of_fsum() -> None:
    values = np.random.default_rng(5).gamma(0.1, size=100_000)
    assert exact_sum(values) == math.fsum(values.tolist())


def test_a_sum_that_is_too_large_is_infinite() -> None:
    assert exact_sum([1.7e308] * 2) == math.inf
    assert exact_sum([-1.7e308] * 2) == -math.inf


@pytest.mark.parametrize("kind", [list, np.array, lambda names: np.array(names, dtype=object)])
def test_names_are_numbered_in_their_order(kind: object) -> None:
    ids, places = numbered(kind(["b", "b", "ä", "a", "b", "Z"]))
    assert ids == ("Z", "a", "b", "ä")
    assert places.tolist() == [2, 2, 3, 1, 2, 0]


def test_no_name_has_no_number() -> None:
    ids, places = numbered([])
    assert ids == () and places.tolist() == []


def test_many_groups_of_values_far_apart_are_summed_each_by_itself() -> None:
    chance = np.random.default_rng(6)
    values = chance.normal(size=20_000) * np.exp2(chance.integers(-1000, 1000, 20_000))
    groups = np.arange(20_000) % 9_000
    found = exact_sums(values, groups, 9_001).tolist()
    assert found == [math.fsum(values[group::9_000].tolist()) for group in range(9_000)] + [0.0]
