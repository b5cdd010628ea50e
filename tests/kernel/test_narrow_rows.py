"""Rows of float16 and of bfloat16 (the bits, as uint16): read where they lie, they give what the same rows in float32 give."""

import math

import numpy as np
import pytest

from engcmp_assets.kernel import fast_rows, row_loop
from engcmp_assets.kernel.fast_rows import RowSums, row_sums, widened

INF = math.inf
SUMS = tuple(RowSums.__dataclass_fields__)
NARROW = ("float16", "uint16")


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    """Each test that takes it runs on both ways."""
    if request.param == "numpy":
        monkeypatch.setattr(fast_rows, "compiled", lambda: False)
    return request.param


def narrow(values, dtype):
    """Float32 values as rows of `dtype`; as bfloat16, they are rounded towards 0."""
    return (values.view(np.uint32) >> np.uint32(16)).astype(dtype) if dtype == "uint16" else values.astype(dtype)


def assert_same_bits(one, other):
    for name in SUMS:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


@pytest.mark.parametrize("dtype", NARROW)
def test_each_of_the_65536_values_of_16_bits_is_read_as_numpy_widens_it(way, dtype):
    # A row for each value, alone among zeros, at each place in turn; NaN and infinities are among them.
    values = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    rows = np.zeros((1 << 16, row_loop.GRAIN + 1), dtype=dtype)
    rows[np.arange(1 << 16), np.arange(1 << 16) % rows.shape[1]] = values
    other = np.zeros_like(rows)
    for p, q in ((rows, other), (other, rows)):
        assert_same_bits(row_sums(p, q), row_sums(widened(p), widened(q)))
    sums = row_sums(rows, other)
    with np.errstate(invalid="ignore"):  # some of the values are NaN
        wide = widened(values).astype(np.float64)
    finite = np.isfinite(wide)
    assert finite.sum() == {"float16": 2 * 31 * 1024, "uint16": 2 * 255 * 128}[dtype]
    assert np.array_equal(sums.p_max[finite], np.maximum(wide[finite], 0))
    number = ~np.isnan(wide)
    assert np.array_equal(sums.p_top[number], widened(rows[number]).argmax(axis=1))
    assert np.isnan(sums.p_sum[~finite & (wide != -INF)]).all() and np.isfinite(sums.p_sum[finite]).all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("vocab", [1, 33, 1024, 3 * 1024 + 37])
def test_rows_of_16_bits_give_the_sums_of_the_same_rows_widened(way, dtype, vocab):
    chance = np.random.default_rng(vocab)
    p, q = narrow(chance.normal(0, 4, (2, 9, vocab)).astype(np.float32), dtype)
    lowest = narrow(np.array([-INF, -6e4], dtype=np.float32), dtype)
    p[2, vocab // 2 + 1 :], q[2, vocab // 2 + 1 :] = lowest[0], lowest[0]
    p[3, 1:], q[3, : vocab - 1] = lowest[0], lowest[1]
    q[4, 1:], p[5], q[6, 1:] = lowest[0], lowest[0], lowest[1]
    assert_same_bits(row_sums(p, q), row_sums(widened(p), widened(q)))
    assert_same_bits(row_sums(p[::2], q[8:3:-1]), row_sums(widened(p[::2]), widened(q[8:3:-1])))
    turned = [np.asfortranarray(side) for side in (p, q)]
    assert_same_bits(row_sums(*turned), row_sums(p, q))


@pytest.mark.parametrize("dtype", [*NARROW, "float32"])
def test_rows_of_one_dtype_are_never_copied(dtype, monkeypatch):
    if dtype not in row_loop.compiled():
        pytest.skip("this processor does not widen float16 by itself")
    p, q = narrow(np.random.default_rng(16).normal(0, 3, (2, 4, 1100)).astype(np.float32), dtype)
    expected = row_sums(widened(p), widened(q))

    def refuse(*_):
        raise AssertionError("these rows were widened as a block")

    monkeypatch.setattr(fast_rows, "_widened", refuse)
    assert_same_bits(row_sums(p, q, jobs=2), expected)


@pytest.mark.parametrize("first", [*NARROW, "float32", "float64"])
@pytest.mark.parametrize("second", [*NARROW, "float32", "float64"])
def test_sides_of_two_dtypes_read_as_the_wider_one(way, first, second):
    chance = np.random.default_rng(17)
    p, q = (
        narrow(side, dtype)
        for side, dtype in zip(chance.normal(0, 3, (2, 3, 2061)).astype(np.float32), (first, second), strict=True)
    )
    found, wide = row_sums(p, q), row_sums(widened(p).astype(np.float64), widened(q).astype(np.float64))
    for name in SUMS:
        assert getattr(found, name) == pytest.approx(getattr(wide, name), rel=1e-13, abs=0), name


def test_both_ways_agree_on_rows_of_16_bits(monkeypatch):
    chance = np.random.default_rng(18)
    p, q = chance.normal(0, 4, (2, 5, 20_013)).astype(np.float32)
    p[2, 7:900], q[2, 7:900] = -INF, -INF
    sides = [(narrow(p, dtype), narrow(q, dtype)) for dtype in NARROW]
    compiled = [row_sums(*pair) for pair in sides]
    monkeypatch.setattr(fast_rows, "compiled", lambda: False)
    for one, other in zip(compiled, (row_sums(*pair) for pair in sides), strict=True):
        for name in SUMS:
            assert np.allclose(getattr(one, name), getattr(other, name), rtol=1e-13, atol=0), name
        assert np.array_equal(one.p_top, other.p_top) and np.array_equal(one.q_top, other.q_top)


def test_a_processor_that_cannot_widen_float16_has_it_widened_by_numpy(monkeypatch):
    p, q = np.random.default_rng(19).normal(0, 3, (2, 3, 1100)).astype(np.float16)
    expected = row_sums(p, q)
    loops = {name: loop for name, loop in row_loop.compiled().items() if name != "float16"}
    monkeypatch.setattr(row_loop, "compiled", lambda: loops)
    assert fast_rows.compiled.__wrapped__()
    assert_same_bits(row_sums(p, q), expected)
