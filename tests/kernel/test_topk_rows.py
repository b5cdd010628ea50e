"""What a top-K panel keeps of a row: the right ids and values, whatever the blocks, and no bad row."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topk_oracle import INF, W, both, float64_buckets, logs, rows

from engcmp_assets.kernel import fast_rows, topk_measures
from engcmp_assets.kernel.buckets import ordered
from engcmp_assets.kernel.fast_rows import widened
from engcmp_assets.kernel.row_measures import score_rows
from engcmp_assets.kernel.topk_measures import ReducedRows, pair_coarse, reduce_rows, score_topk, topk_of
from engcmp_resources.errors import EngcmpError


def test_a_reference_keeps_the_most_probable_ids_the_rest_as_one_and_the_next_token_even_outside():
    top = topk_of(logs(0.125, 0.5, 0.0625, 0.25, 0.0625), [2], 2, where=W)
    assert top.top_ids.tolist() == [[1, 3]]
    assert top.top_log_probs.tolist() == [[float(np.float16(math.log(0.5))), float(np.float16(math.log(0.25)))]]
    assert top.tail_log_mass.tolist() == [float(np.float32(math.log(0.25)))]
    assert top.next_token_log_prob.tolist() == [float(np.float32(math.log(0.0625)))]
    assert [array.dtype.name for array in top.arrays().values()] == ["uint32", "float16", "float32", "float32"]


def test_an_engine_keeps_the_references_ids_in_their_order_and_its_own_top_twenty():
    chance = np.random.default_rng(1)
    engine = chance.normal(0, 3, (3, 50))
    ids = np.array([chance.permutation(50)[:7] for _ in range(3)], dtype=np.uint32)
    kept = reduce_rows(engine, ids, [49, 0, 1], where=W)
    exact = float64_buckets(engine, ids)
    assert kept.log_probs.tolist() == exact[:, :-1].astype(np.float32).tolist()
    assert kept.rest_log_mass.tolist() == exact[:, -1].astype(np.float32).tolist()
    log_q = engine - np.logaddexp.reduce(engine, axis=1, keepdims=True)
    assert kept.next_token_log_prob == pytest.approx([log_q[0, 49], log_q[1, 0], log_q[2, 1]], abs=1e-14)
    order = np.argsort(-engine, axis=1)[:, :20]
    assert kept.own_top_ids.tolist() == order.tolist()
    assert kept.own_top_log_probs.tolist() == np.take_along_axis(log_q, order, axis=1).astype(np.float32).tolist()
    assert kept.argmax.tolist() == engine.argmax(axis=1).tolist()
    assert kept.entropy == pytest.approx(-(np.exp(log_q) * log_q).sum(axis=1), abs=1e-14)
    names = [array.dtype.name for array in kept.arrays().values()]
    assert names == ["float32", "float32", "float64", "uint32", "float32", "float64", "uint64"]


@pytest.mark.parametrize("depth", [40.0, 1000.0])
def test_the_rest_is_summed_itself_so_that_no_tail_is_lost_to_one_minus_the_sum(depth):
    # Two ids of weight 1 and three that are e^-depth of it: their mass is below what 1 - sum can show.
    logits = rows([0.0, -depth, 0.0, -depth, -depth])
    exact = math.log(3) - depth - math.log(2)
    top, kept = both(logits, logits, [0], 2)
    assert top.tail_log_mass[0] == np.float32(exact)
    assert kept.rest_log_mass[0] == np.float32(exact)


def test_where_k_is_the_vocabulary_the_rest_has_probability_zero_and_nothing_is_lost():
    reference, engine = logs(0.5, 0.25, 0.25), logs(0.25, 0.5, 0.25)
    top, kept = both(reference, engine, [2], 3)
    assert top.tail_log_mass.tolist() == kept.rest_log_mass.tolist() == [-INF]
    found = score_topk(top, kept, where=W)
    assert found.kl_coarse[0] == pytest.approx(score_rows(reference, engine, [2], where=W).kl_full[0], abs=2e-4)
    assert pair_coarse(kept, kept, where=W).tolist() == [0.0]


@pytest.mark.parametrize("k", [0, 4])
def test_a_k_that_the_vocabulary_does_not_have_is_refused(k):
    with pytest.raises(EngcmpError, match=rf"no top {k} ids of 3 ids \(window t\); ask for k from 1 to 3"):
        topk_of(np.zeros((1, 3)), [0], k, where=W)


def test_the_default_is_the_top_1024():
    assert topk_of(np.zeros((1, 1030)), [0], where=W).top_ids.tolist() == [list(range(1024))]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=400), st.data())
def test_order_is_falling_probability_and_ties_go_to_the_lower_id_also_at_the_border(values, data):
    k = data.draw(st.integers(1, min(len(values), 40)))
    logits = rows([-INF if value == -3 else float(value) for value in values])
    if max(values) == -3:
        logits[0, 0] = 0.0
    expected = sorted(range(len(values)), key=lambda index: (-logits[0, index], index))
    top, kept = both(logits, logits, [0], k)
    assert top.top_ids[0].tolist() == expected[:k]
    assert kept.own_top_ids[0].tolist() == expected[:20]


def test_the_top_of_a_real_vocabulary_is_that_of_a_full_sort():
    logits = np.random.default_rng(2).normal(0, 3, (3, 50_003)).astype(np.float16)  # 16-bit values tie often
    expected = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")
    top, kept = both(logits, logits, [0, 0, 0], 1024)
    assert top.top_ids.tolist() == expected[:, :1024].tolist()
    assert kept.own_top_ids.tolist() == expected[:, :20].tolist()


def test_values_that_differ_only_in_the_last_bit_are_not_a_tie():
    logits = rows([0.0, 5e-324, -50.0])
    assert topk_of(logits, [0], 1, where=W).top_ids.tolist() == [[1]]


def test_block_borders_change_no_bit_and_keep_every_row(monkeypatch):
    chance = np.random.default_rng(4)
    reference, engine = chance.normal(0, 3, (2, 7, 60)).astype(np.float32)
    whole = both(reference, engine, [0] * 7, 9)
    monkeypatch.setattr(topk_measures, "_BLOCK_VALUES", 120)
    monkeypatch.setattr(topk_measures, "_SUMMED_VALUES", 180)
    for old, new in zip(whole, both(reference, engine, [0] * 7, 9), strict=True):
        for name, array in old.arrays().items():
            assert new.arrays()[name].tolist() == array.tolist(), name


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_rows_are_read_as_they_are(dtype):
    narrow = np.random.default_rng(8).normal(0, 4, (2, 3, 30)).astype(dtype)
    kept, wide = both(*narrow, [0, 1, 2], 5), both(*narrow.astype(np.float64), [0, 1, 2], 5)
    for one_side, other in zip(kept, wide, strict=True):
        assert {n: a.tolist() for n, a in one_side.arrays().items()} == {
            n: a.tolist() for n, a in other.arrays().items()
        }


def bits_of_bfloat16(values):
    """The bits of float32 values that are rounded towards 0 to what a bfloat16 holds."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def test_the_bits_of_bfloat16_are_read_as_the_numbers_that_they_hold():
    logits = np.random.default_rng(8).normal(0, 4, (2, 4, 3000))
    logits[:, 1, 40:2000] = -INF
    logits[:, 2, 7:] = -INF  # the rest of the top 9 holds nothing
    short = bits_of_bfloat16(logits)
    for one, other in zip(both(*short, [0, 1, 2, 3], 9), both(*widened(short), [0, 1, 2, 3], 9), strict=True):
        for name, array in one.arrays().items():
            assert array.tobytes() == other.arrays()[name].tobytes(), name


@pytest.mark.parametrize("dtype", ["float16", "uint16"])
def test_all_values_of_16_bits_are_ordered_as_the_numbers_that_they_hold(dtype):
    rows = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = widened(rows)
    rows = rows[~np.isnan(wide)][np.argsort(wide[~np.isnan(wide)], kind="stable")]
    found = ordered(rows[None])[0].astype(np.int64)
    assert np.array_equal(np.diff(found) > 0, widened(rows)[1:] > widened(rows)[:-1])
    assert (np.diff(found) >= 0).all() and len(rows) == {"float16": 63_490, "uint16": 65_282}[dtype]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_without_the_compiled_loop_the_rows_are_reduced_to_the_same_values(dtype, monkeypatch):
    reference, engine = np.random.default_rng(10).normal(0, 3, (2, 4, 5003)).astype(dtype)
    engine[1, 9:4000] = -INF
    compiled = both(reference, engine, [1] * 4, 100)[1]
    monkeypatch.setattr(fast_rows, "compiled", lambda: False)
    for name, array in both(reference, engine, [1] * 4, 100)[1].arrays().items():
        close = 1e-12 if array.dtype == np.float64 else 1e-7
        assert np.allclose(array, getattr(compiled, name), rtol=close, atol=0), name


@pytest.mark.parametrize("kept", [1, 5, 30])
def test_a_row_whose_other_ids_have_no_probability_has_no_rest_and_loses_nothing_else(kept):
    # Beside it a row that has a rest: both are summed in one call.
    engine = np.random.default_rng(11).normal(0, 3, (2, 60))
    engine[0, kept:] = -INF
    found = reduce_rows(engine, np.arange(kept, dtype=np.uint32)[None].repeat(2, axis=0), [0, 0], where=W)
    log_q = engine - np.logaddexp.reduce(engine, axis=1, keepdims=True)
    assert found.rest_log_mass[0] == -INF
    assert found.rest_log_mass[1] == pytest.approx(np.logaddexp.reduce(log_q[1, kept:]), rel=1e-6)
    assert found.log_probs == pytest.approx(log_q[:, :kept], rel=1e-6, abs=1e-12)
    entropy = [-(np.exp(row) * row).sum() for row in (log_q[0, :kept], log_q[1])]
    assert found.entropy == pytest.approx(entropy, rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("bad", [0x7FC0, 0x7F80])
def test_a_bad_row_of_bfloat16_is_located_with_its_reason(bad):
    logits = np.zeros((2, 3), dtype=np.uint16)
    logits[1, 2] = bad
    said = {0x7FC0: "NaN", 0x7F80: r"\+inf"}[bad]
    with pytest.raises(EngcmpError, match=f"row 1: the row holds {said}"):
        topk_of(logits, [0, 0], 2, where=W)
    with pytest.raises(EngcmpError, match=f"row 1: the row holds {said}"):
        reduce_rows(logits, np.array([[0, 1]] * 2, dtype=np.uint32), [0, 0], where=W)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([0.0, math.nan, -INF], "the row holds NaN"),
        ([0.0, INF, 0.0], r"the row holds \+inf"),
        ([math.nan, INF, 0.0], "the row holds NaN"),
        ([-INF, -INF, -INF], "the row is -inf for every id"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_bad_row_is_located_with_its_reason_on_both_sides(bad, said, dtype):
    logits = rows([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], bad, dtype=dtype)
    message = rf"1 of 3 rows cannot be scored: row 2: {said} \(window t\)"
    with pytest.raises(EngcmpError, match=message):
        topk_of(logits, [0, 0, 0], 2, where=W)
    with pytest.raises(EngcmpError, match=message):
        reduce_rows(logits, np.array([[0, 1]] * 3, dtype=np.uint32), [0, 0, 0], where=W)


@pytest.mark.parametrize("token", [-1, 3])
def test_a_next_token_outside_the_vocabulary_is_a_bad_row(token):
    with pytest.raises(EngcmpError, match=f"row 1: its next token {token} is outside the vocabulary of 3 ids"):
        topk_of(np.zeros((2, 3)), [0, token], 2, where=W)
    with pytest.raises(EngcmpError, match=f"row 1: its next token {token} is outside"):
        reduce_rows(np.zeros((2, 3)), np.array([[0], [0]], dtype=np.uint32), [0, token], where=W)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([[0, 1], [2, 2]], "row 1: the reference lists an id twice"),
        ([[0, 1], [2, 9]], "row 1: the reference lists an id outside the vocabulary of 3 ids"),
        ([[0, 1]], "not integers .rows, K. for 2 rows"),
        ([[], []], "not integers"),
        ([[0.5], [0.0]], "not integers"),
    ],
)
def test_ids_that_do_not_fit_the_rows_are_refused(ids, said):
    with pytest.raises(EngcmpError, match=said):
        reduce_rows(np.zeros((2, 3)), np.array(ids), [0, 0], where=W)


@pytest.mark.parametrize(
    ("logits", "tokens"),
    [
        (np.zeros((0, 4)), []),
        (np.zeros((2, 0)), [0, 0]),
        (np.zeros(4), [0]),
        (np.zeros((1, 4), dtype=np.int64), [0]),
        (np.zeros((2, 4)), [0]),
        (np.zeros((1, 4)), [0.5]),
    ],
)
def test_arrays_that_do_not_pair_up_or_hold_no_row_are_refused(logits, tokens):
    with pytest.raises(EngcmpError, match="window t"):
        topk_of(logits, tokens, 1, where=W)
    with pytest.raises(EngcmpError, match="window t"):
        reduce_rows(logits, np.zeros((len(logits), 1), dtype=np.uint32), tokens, where=W)


def test_an_error_names_a_few_bad_rows_and_counts_the_others():
    with pytest.raises(EngcmpError) as caught:
        topk_of(np.full((9, 3), np.nan), [0] * 9, 2, where=W)
    assert "9 of 9 rows" in str(caught.value) and "row 4:" in str(caught.value)
    assert "and 4 more" in str(caught.value) and "row 5:" not in str(caught.value)


def test_memory_does_not_grow_with_the_rows_of_a_window(tmp_path):
    vocab, count = 155_000, 40
    path = tmp_path / "rows.f16"
    block = np.random.default_rng(0).normal(0, 3, (4, vocab)).astype(np.float16)
    path.write_bytes(block.tobytes() * (count // 4))
    logits = np.memmap(path, dtype=np.float16, mode="r", shape=(count, vocab))
    tracemalloc.start()
    top = topk_of(logits, [0] * count, where=W)
    kept = reduce_rows(logits, top.top_ids, [0] * count, where=W)
    score_topk(top, kept, where=W)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(kept, ReducedRows)
    # One float64 copy of the rows would be 50 MB.
    assert peak < 15e6
