"""Bit-equality by prefill chunk: variation that starts at a chunk border, and variation that does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.chunks import bit_equality_by_chunk, chunk_numbers
from engcmp_resources.errors import EngcmpError

TWO = {"a": [3, 2], "b": [3, 3]}


def read(equal, windows="aaaaabbbbbb", positions=(0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5), first=TWO, second=TWO):
    return bit_equality_by_chunk(equal, list(windows), positions, first=first, second=second)


def test_a_row_belongs_to_the_chunk_that_read_its_own_token():
    # Row r is there once token r was read: 2,045 tokens give rows 0 to 2,044.
    numbers = chunk_numbers([0, 2044, 2045, 4089, 4090, 4351], [2045, 2045, 262], window="b08")
    assert numbers.tolist() == [1, 1, 2, 2, 3, 3]


def test_rows_equal_in_the_first_chunk_only_are_found_with_the_border():
    result = read([True] * 3 + [False, True] + [True] * 3 + [True, False, False])
    assert [(one.chunk, one.windows, one.rows, one.equal) for one in result.by_chunk] == [(1, 2, 6, 6), (2, 2, 5, 2)]
    assert result.by_chunk[1].share == 0.4
    assert (result.starts_at_chunk, result.first_unequal_position, result.found) == (2, 3, True)
    assert "equal before chunk 2" in result.sentence and "index 3" in result.sentence


def test_variation_from_the_first_chunk_on_is_no_finding_about_chunks():
    result = read([False] + [True] * 10)
    assert (result.starts_at_chunk, result.first_unequal_position, result.found) == (1, 0, False)


def test_runs_that_are_equal_everywhere_have_no_start():
    result = read([True] * 11)
    assert isinstance(result.starts_at_chunk, Missing) and isinstance(result.first_unequal_position, Missing)
    assert not result.found


def test_rows_of_later_chunks_alone_cannot_show_where_it_starts():
    result = read([False, False], windows="aa", positions=(3, 4))
    assert (result.starts_at_chunk, result.found) == (2, False)
    assert "the first that was measured" in result.sentence


def test_windows_that_were_not_recorded_or_were_cut_otherwise_are_named_and_left_out():
    result = read([True] * 5 + [False] * 6, second={"a": [3, 2], "b": [2, 4]})
    assert result.windows_chunked_otherwise == ("b",) and not result.found
    assert isinstance(result.first_unequal_position, Missing)
    assert sum(one.rows for one in result.by_chunk) == 5
    result = read([True] * 5 + [False] * 6, first={"a": [3, 2]})
    assert result.windows_not_recorded == ("b",)


def test_chunks_that_nothing_recorded_are_missing():
    assert "recorded" in read([True] * 11, first={}, second={}).reason
    assert isinstance(read([True] * 11, second={"a": [5], "b": [6]}), Missing)


@pytest.mark.parametrize(("positions", "lengths"), [([5], [3, 2]), ([-1], [3, 2]), ([0], []), ([0], [3, 0])])
def test_rows_outside_the_chunks_and_empty_chunks_are_refused_with_the_window(positions, lengths):
    with pytest.raises(EngcmpError, match="window w7"):
        chunk_numbers(positions, lengths, window="w7")


def test_the_error_names_the_row_and_what_the_chunks_hold():
    with pytest.raises(EngcmpError, match="row 5 lies outside the chunks, which hold 5 tokens"):
        chunk_numbers([4, 5], [3, 2], window="w7")


@given(st.lists(st.booleans(), min_size=11, max_size=11), st.permutations(range(11)))
def test_the_order_of_the_rows_does_not_matter(equal, order):
    windows, positions = "aaaaabbbbbb", (0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5)
    shuffled = read([equal[i] for i in order], [windows[i] for i in order], [positions[i] for i in order])
    assert shuffled == read(equal)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_chunks_number_every_row_once(lengths):
    numbers = chunk_numbers(range(sum(lengths)), lengths, window="w").tolist()
    assert [numbers.count(number) for number in range(1, len(lengths) + 1)] == lengths
    assert numbers == sorted(numbers)
