"""Precision per row: hand-worked answers, a 60-digit oracle, and every way in which a row can be bad."""

import math
import tracemalloc
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel import fast_rows, row_measures
from engcmp_assets.kernel.fast_rows import RowSums
from engcmp_assets.kernel.row_measures import BadRow, RowScores, find_bad_rows, pair_kl, score_rows
from engcmp_resources.errors import EngcmpError

INF = math.inf
NAMES = tuple(RowScores.__dataclass_fields__)
# Multiples of 1/64 up to 16: adding an integer to them is exact, so only the scorer can make a difference.
LOGIT = st.integers(-1024, 1024).map(lambda n: n / 64)


def rows(*lists, dtype=np.float64):
    return np.array(lists, dtype=dtype)


def logs(*probabilities):
    with np.errstate(divide="ignore"):
        return np.log(np.array([probabilities], dtype=np.float64))


def one(reference, engine, token=0):
    scores = score_rows(reference, engine, [token], where="window t")
    return {name: getattr(scores, name)[0] for name in NAMES}


def oracle(reference, engine, token):
    """KL, NLL, entropy and excess entropy of one row of logits, in 60 digits."""
    with localcontext() as context:
        context.prec = 60

        def log_softmax(row):
            exact = [None if value == -INF else Decimal(float(value)) for value in row]
            log_sum = sum(value.exp() for value in exact if value is not None).ln()
            return [None if value is None else value - log_sum for value in exact]

        log_p, log_q = log_softmax(reference), log_softmax(engine)
        kl = sum(a.exp() * (a - b) for a, b in zip(log_p, log_q, strict=True) if a is not None)
        p_entropy = -sum(a.exp() * a for a in log_p if a is not None)
        q_entropy = -sum(b.exp() * b for b in log_q if b is not None)
        return {
            "kl_full": float(kl),
            "nll": float(-log_q[token]),
            "entropy": float(q_entropy),
            "excess_entropy": float(q_entropy - p_entropy),
            "nll_minus_reference": float(log_p[token] - log_q[token]),
        }


def two_rows():
    return st.integers(1, 6).flatmap(
        lambda width: st.tuples(
            st.lists(LOGIT, min_size=width, max_size=width),
            st.lists(LOGIT, min_size=width, max_size=width),
            st.integers(0, width - 1),
        )
    )


def test_two_planted_distributions_read_what_they_read_by_hand():
    # p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL = 1/2 ln 2 - 1/4 ln 2 = 1/4 ln 2; both entropies are 3/2 ln 2.
    found = one(logs(0.5, 0.25, 0.25), logs(0.25, 0.25, 0.5), token=2)
    assert found["kl_full"] == pytest.approx(0.25 * math.log(2), abs=1e-15)
    assert found["nll"] == pytest.approx(math.log(2), abs=1e-15)
    assert found["reference_nll"] == pytest.approx(math.log(4), abs=1e-15)
    assert found["nll_minus_reference"] == pytest.approx(-math.log(2), abs=1e-15)
    assert found["entropy"] == pytest.approx(1.5 * math.log(2), abs=1e-15)
    assert found["excess_entropy"] == pytest.approx(0, abs=1e-15)
    assert found["reference_top_probability"] == pytest.approx(0.5, abs=1e-15)
    assert (found["reference_top_id"], found["engine_top_id"]) == (0, 2)
    assert (found["top1"], found["agree_text"], found["top3_contained"]) == (0, 1, 1)


def test_the_direction_of_the_divergence_is_reference_to_engine():
    # p = (1, 0), q = (1/2, 1/2): KL(p to q) = ln 2, while KL(q to p) would be infinite.
    assert one(logs(1, 0), logs(0.5, 0.5))["kl_full"] == pytest.approx(math.log(2), abs=1e-15)


def test_logits_and_log_probabilities_of_one_row_read_the_same():
    logits, engine = rows([1.0, 3.0, -2.0]), rows([0.5, 2.5, 0.0])
    shifted = logits - np.log(np.exp(logits).sum())
    assert one(shifted, engine)["kl_full"] == pytest.approx(one(logits, engine)["kl_full"], abs=1e-14)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("token", [0, 3])
def test_every_measure_agrees_with_a_sixty_digit_oracle(dtype, token):
    chance = np.random.default_rng(1)
    for _ in range(10):
        reference, engine = chance.normal(0, 4, (2, 1, 5)).astype(dtype)
        found = one(reference, engine, token)
        for name, exact in oracle(reference[0], engine[0], token).items():
            assert found[name] == pytest.approx(exact, abs=1e-13), name


@settings(max_examples=60, deadline=None)
@given(two_rows())
def test_the_divergence_is_never_negative_and_agrees_with_the_oracle(case):
    reference, engine, token = case
    found = one(rows(reference), rows(engine), token)
    assert found["kl_full"] >= 0
    for name, exact in oracle(reference, engine, token).items():
        assert found[name] == pytest.approx(exact, abs=1e-12), name


def test_a_divergence_of_a_millionth_of_a_millionth_is_seen():
    reference = rows([0.3, -1.2, 0.9, 2.0, -0.4])
    engine = reference + 1e-6 * np.array([[1.0, -1.0, 0.5, 0.25, -2.0]])
    exact = oracle(reference[0], engine[0], 0)["kl_full"]
    assert 1e-14 < exact < 1e-11
    assert one(reference, engine)["kl_full"] == pytest.approx(exact, abs=2e-15)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40))
def test_a_row_against_itself_reads_exactly_zero(row):
    found = one(rows(row), rows(row))
    assert found["kl_full"] == 0.0
    assert found["excess_entropy"] == 0.0
    assert found["nll_minus_reference"] == 0.0
    assert found["top1"] == found["top3_contained"] == 1.0
    assert pair_kl(rows(row), rows(row), where="window t").tolist() == [0.0]


def test_a_row_of_a_real_vocabulary_against_itself_reads_exactly_zero():
    row = np.random.default_rng(2).normal(0, 3, (2, 155_000)).astype(np.float32)
    assert score_rows(row, row.copy(), [1, 2], where="window t").kl_full.tolist() == [0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(two_rows(), st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_adding_a_constant_to_the_logits_changes_nothing(case, up, across):
    reference, engine, token = case
    before = one(rows(reference), rows(engine), token)
    after = one(rows(reference) + up, rows(engine) + across, token)
    for name in NAMES:
        assert after[name] == pytest.approx(before[name], abs=1e-12), name


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(9)))
def test_the_order_of_the_rows_changes_no_bit(order):
    chance = np.random.default_rng(3)
    reference, engine = chance.normal(0, 3, (2, 9, 33))
    tokens = chance.integers(0, 33, 9)
    straight = score_rows(reference, engine, tokens, where="window t")
    mixed = score_rows(reference[order], engine[order], tokens[order], where="window t")
    for name in NAMES:
        assert getattr(mixed, name).tolist() == getattr(straight, name)[list(order)].tolist(), name


def test_block_borders_change_no_bit_and_keep_every_row(monkeypatch):
    chance = np.random.default_rng(4)
    reference, engine = chance.normal(0, 3, (2, 7, 20)).astype(np.float16)
    tokens = chance.integers(0, 20, 7)
    whole = score_rows(reference, engine, tokens, where="window t")
    monkeypatch.setattr(fast_rows, "_CHUNK_VALUES", 40)
    blocks = score_rows(reference, engine, tokens, where="window t")
    for name in NAMES:
        assert getattr(blocks, name).tolist() == getattr(whole, name).tolist(), name
    engine[5, 3] = np.nan
    assert [bad.index for bad in find_bad_rows(reference, engine, where="window t")] == [5]


def test_minus_infinity_is_probability_zero_on_either_side():
    # p = (1/2, 1/2, 0), q = (1/4, 3/4, 0): KL = 1/2 ln 2 + 1/2 ln(2/3).
    found = one(logs(0.5, 0.5, 0), logs(0.25, 0.75, 0))
    assert found["kl_full"] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-15)
    assert found["entropy"] == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), abs=1e-15)
    assert found["reference_entropy"] == pytest.approx(math.log(2), abs=1e-15)
    certain = one(logs(1, 0), logs(1, 0))
    assert (certain["kl_full"], certain["nll"], certain["entropy"]) == (0, 0, 0)
    assert all(math.copysign(1, value) == 1 for value in certain.values())


def test_ties_go_to_the_lower_id_on_both_sides():
    found = one(rows([1.0, 2.0, 2.0]), rows([0.0, 5.0, 5.0]), token=2)
    assert (found["reference_top_id"], found["engine_top_id"]) == (1, 1)
    assert (found["top1"], found["agree_text"]) == (1, 0)


def test_a_fourth_choice_that_ties_with_the_third_is_not_in_the_top_three():
    reference = rows([3.0, 2.0, 1.0, 1.0, 0.0])
    third, fourth = rows([0.0, 0.0, 9.0, 0.0, 0.0]), rows([0.0, 0.0, 0.0, 9.0, 0.0])
    assert one(reference, third)["top3_contained"] == 1
    assert one(reference, fourth)["top3_contained"] == 0


def test_values_that_differ_only_in_the_last_bit_are_not_a_tie():
    tiny = 5e-324
    found = one(rows([0.0, tiny, -50.0]), rows([0.0, tiny, -50.0]))
    assert found["reference_top_id"] == found["engine_top_id"] == 1


@pytest.mark.parametrize(
    ("side", "row", "said"),
    [
        ("engine", [0.0, math.nan, math.nan], "the engine's row holds 2 x NaN, first at id 1"),
        ("reference", [math.nan, 0.0, 0.0], "the reference's row holds 1 x NaN, first at id 0"),
        ("engine", [0.0, 0.0, INF], "the engine's row holds 1 x +inf, first at id 2"),
        ("reference", [-INF, -INF, -INF], "the reference's row is -inf for every id"),
        ("engine", [-INF, -INF, -INF], "the engine's row is -inf for every id"),
        ("engine", [0.0, -INF, 0.0], "the engine's probability is 0 where the reference's is not, at 1 ids, first 1"),
    ],
)
def test_a_bad_row_is_located_with_its_reason_and_never_scored(side, row, said):
    good = [0.0, 1.0, 2.0]
    arrays = {"reference": rows(good, good, good), "engine": rows(good, good, good)}
    arrays[side][1] = row
    bad = find_bad_rows(arrays["reference"], arrays["engine"], next_tokens=[0, 0, 0], where="window a03")
    assert bad == (BadRow(1, said),)
    with pytest.raises(EngcmpError) as caught:
        score_rows(arrays["reference"], arrays["engine"], [0, 0, 0], where="window a03")
    assert str(caught.value).startswith("1 of 3 rows cannot be scored: row 1: ")
    assert said in str(caught.value) and "(window a03)" in str(caught.value)


def test_a_finite_mask_is_a_probability_above_zero():
    masked = rows([0.0, -1e30])
    assert one(masked, masked)["kl_full"] == 0.0
    assert len(find_bad_rows(masked, logs(1, 0), where="window t")) == 1
    assert find_bad_rows(logs(1, 0), masked, where="window t") == ()


@pytest.mark.parametrize("token", [-1, 3])
def test_a_next_token_outside_the_vocabulary_is_a_bad_row(token):
    array = rows([0.0, 1.0, 2.0])
    (bad,) = find_bad_rows(array, array, next_tokens=[token], where="window t")
    assert bad.index == 0 and "outside the vocabulary of 3 ids" in bad.reason
    with pytest.raises(EngcmpError, match="outside the vocabulary"):
        score_rows(array, array, [token], where="window t")


def test_a_next_token_of_probability_zero_is_a_bad_row_because_its_nll_is_infinite():
    array = logs(0.5, 0.5, 0)
    (bad,) = find_bad_rows(array, array, next_tokens=[2], where="window t")
    assert "NLL is infinite" in bad.reason
    assert find_bad_rows(array, array, where="window t") == ()


def test_every_row_of_the_wrong_width_is_bad():
    bad = find_bad_rows(np.zeros((2, 4)), np.zeros((2, 5)), where="window t")
    assert [one.index for one in bad] == [0, 1]
    assert bad[0].reason == "the engine's row has 5 values, the reference's 4"
    with pytest.raises(EngcmpError, match="2 of 2 rows cannot be scored"):
        score_rows(np.zeros((2, 4)), np.zeros((2, 5)), [0, 0], where="window t")
    with pytest.raises(EngcmpError, match="2 of 2 rows cannot be scored"):
        pair_kl(np.zeros((2, 4)), np.zeros((2, 5)), where="window t")


@pytest.mark.parametrize(
    ("reference", "engine", "tokens"),
    [
        (np.zeros((3, 4)), np.zeros((2, 4)), [0, 0, 0]),
        (np.zeros((0, 4)), np.zeros((0, 4)), []),
        (np.zeros((2, 0)), np.zeros((2, 0)), [0, 0]),
        (np.zeros(4), np.zeros(4), [0]),
        (np.zeros((1, 4), dtype=np.int64), np.zeros((1, 4)), [0]),
        (np.zeros((2, 4)), np.zeros((2, 4)), [0]),
        (np.zeros((1, 4)), np.zeros((1, 4)), [0.5]),
    ],
)
def test_arrays_that_do_not_pair_up_or_hold_no_row_are_refused(reference, engine, tokens):
    with pytest.raises(EngcmpError, match="window t"):
        score_rows(reference, engine, tokens, where="window t")


def test_an_error_names_a_few_bad_rows_and_counts_the_others():
    engine = np.full((9, 3), np.nan)
    with pytest.raises(EngcmpError) as caught:
        score_rows(np.zeros((9, 3)), engine, [0] * 9, where="window t")
    assert "9 of 9 rows" in str(caught.value) and "row 4:" in str(caught.value)
    assert "and 4 more" in str(caught.value) and "row 5:" not in str(caught.value)


def test_a_divergence_below_rounding_is_an_error_and_one_within_rounding_is_zero():
    def sums(cross):
        one, top = np.ones(1), np.zeros(1, dtype=np.int64)
        return RowSums(one, one, top, top, one, one, one, one, np.array([cross]))

    assert row_measures._kl(sums(-9e-11), "window t").tolist() == [0.0]
    with pytest.raises(EngcmpError, match=r"row 0: KL is -1.100e-10 nats"):
        row_measures._kl(sums(-1.1e-10), "window t")


def test_the_pair_divergence_has_a_direction_and_names_its_sides():
    a, b = logs(0.5, 0.5), logs(0.25, 0.75)
    there = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    back = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert pair_kl(a, b, where="window t").tolist() == pytest.approx([there], abs=1e-15)
    assert pair_kl(b, a, where="window t").tolist() == pytest.approx([back], abs=1e-15)
    with pytest.raises(EngcmpError, match="the second's row holds 1 x NaN"):
        pair_kl(a, rows([0.0, math.nan]), where="window t")


def test_memory_does_not_grow_with_the_rows_of_a_window(tmp_path):
    vocab, count = 155_000, 40
    paths = [tmp_path / "reference.f16", tmp_path / "engine.f16"]
    for seed, path in enumerate(paths):
        block = np.random.default_rng(seed).normal(0, 3, (4, vocab)).astype(np.float16)
        path.write_bytes(block.tobytes() * (count // 4))
    reference, engine = (np.memmap(path, dtype=np.float16, mode="r", shape=(count, vocab)) for path in paths)
    tracemalloc.start()
    scores = score_rows(reference, engine, [0] * count, where="window t")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(scores.kl_full) == count
    # One float64 copy of a whole side would be 50 MB.
    assert peak < 45e6
