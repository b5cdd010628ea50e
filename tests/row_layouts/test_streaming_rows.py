"""Several sources side by side: each block holds the rows that were asked for, of every side, whatever their order in the files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing import save_dump, save_full, values

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.finding import open_rows
from engcmp_resources.row_layouts.streaming import stream_rows

ROWS = 11


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A mapped file and a dump, each with rows of its own."""
    folder = tmp_path_factory.mktemp("rows")
    save_full(folder / "a", rows=values(ROWS, seed=1), positions=range(ROWS))
    save_dump(folder / "b" / "w1", values(ROWS, seed=2), range(1, ROWS + 1))
    return [open_rows(folder / name, "w1") for name in "ab"]


@given(data=st.data(), block_rows=st.integers(1, ROWS + 2), count=st.integers(0, ROWS))
def test_all_rows_come_in_the_order_that_was_asked_for(sources, data, block_rows, count):
    order = st.lists(st.integers(0, ROWS - 1), min_size=count, max_size=count).map(
        lambda one: np.array(one, dtype=np.int64)
    )
    sides = [(source, data.draw(order)) for source in sources]
    blocks = [(part, [np.array(side) for side in found]) for part, found in stream_rows(sides, block_rows=block_rows)]
    assert [row for part, _ in blocks for row in range(ROWS)[part]][:count] == list(range(count))
    assert all(len(side) <= block_rows for _, found in blocks for side in found)
    for number, (_, indices) in enumerate(sides):
        found = np.concatenate([np.zeros((0, 13), np.float32), *(sides_of[number] for _, sides_of in blocks)])
        assert found.tobytes() == values(ROWS, seed=number + 1)[indices].tobytes()


def test_rows_that_follow_each_other_are_not_copied(sources):
    mapped = sources[0]
    for part, (block,) in stream_rows([(mapped, np.arange(2, 9))], block_rows=3):
        assert np.shares_memory(block, mapped.block(0, ROWS)[2:9][part])


def test_a_row_that_cannot_be_read_is_an_error_and_not_the_end(sources, tmp_path):
    leaf = save_dump(tmp_path / "w1", values(ROWS), range(1, ROWS + 1))
    source = open_rows(tmp_path, "w1")
    (leaf / "row-00000007.safetensors").unlink()
    taken = []
    with pytest.raises(EngcmpError, match=r"window w1: cannot be read.*row-00000007"):
        taken.extend(part for part, _ in stream_rows([(source, np.arange(ROWS))], block_rows=2))
    assert len(taken) == 3


def test_sides_of_different_numbers_of_rows_are_refused(sources):
    with pytest.raises(EngcmpError, match=r"sides of \[2, 3\] rows"):
        list(stream_rows([(sources[0], np.arange(2)), (sources[1], np.arange(3))]))
