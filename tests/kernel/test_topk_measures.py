"""Scores of a top-K panel: hand-worked answers, a 60-digit oracle, what 16-bit storage costs, and rows that must not be averaged."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topk_oracle import (
    INF,
    W,
    both,
    cases,
    exact_kl,
    exact_log_mass,
    exact_log_softmax,
    float64_buckets,
    logs,
    oracle,
    rows,
    scored,
    storage_bound,
    stored_reference,
)

from engcmp_assets.kernel.measures import MEASURES, TOPK_ROW_MEASURES
from engcmp_assets.kernel.row_measures import pair_kl, score_rows
from engcmp_assets.kernel.topk_measures import TopKScores, pair_coarse, reduce_rows, score_topk, topk_of
from engcmp_resources.errors import EngcmpError

FLOOR = math.log(2.0**-149)  # of kl_pb20's rest


def one(reference, engine, token=0, k=2):
    scores = scored(reference, engine, [token], k)
    return {name: getattr(scores, name)[0] for name in TopKScores.__dataclass_fields__}


# ---------------------------------------------------------------- the measures


def test_planted_distributions_read_what_they_read_by_hand():
    # p = (1/2, 1/4, 1/8, 1/8), q = (1/4, 1/2, 1/8, 1/8): the top 2 and the rest (1/4 on both sides) give 1/4 ln 2.
    found = one(logs(0.5, 0.25, 0.125, 0.125), logs(0.25, 0.5, 0.125, 0.125), token=3)
    assert found["kl_coarse"] == pytest.approx(0.25 * math.log(2), abs=3e-4)  # float16 storage
    assert found["kl_pb20"] == pytest.approx(0.25 * math.log(2), abs=3e-4)
    assert found["nll"] == pytest.approx(math.log(8), abs=1e-15)
    assert found["top1"] == 0
    assert found["entropy"] == pytest.approx(1.75 * math.log(2), abs=1e-15)


def test_the_references_stored_values_are_renormalised_before_use():
    # Stored: (e^-0.40625, e^-1.40625, rest e^-2.40625), all exact in 16 bits, with a sum of 1.0014. So p is (1, e^-1, e^-2) / z.
    top = stored_reference([3, 0], [-0.40625, -1.40625], -2.40625)
    kept = reduce_rows(logs(0.25, 0.25, 0.25, 0.25), top.top_ids, [0], where=W)
    z = 1 + math.exp(-1) + math.exp(-2)
    p = [1 / z, math.exp(-1) / z, math.exp(-2) / z]
    exact = sum(a * math.log(a / b) for a, b in zip(p, (0.25, 0.25, 0.5), strict=True))
    found = score_topk(top, kept, where=W)
    assert found.kl_coarse[0] == pytest.approx(exact, abs=1e-7)
    assert found.kl_pb20[0] == pytest.approx(exact, abs=1e-7)


@settings(max_examples=80, deadline=None)
@given(cases(minus_inf=True))
def test_every_measure_agrees_with_a_sixty_digit_oracle_of_the_stored_reference(case):
    reference, engine, token, k = case
    top, kept = both(reference, engine, [token], k)
    found = score_topk(top, kept, where=W)
    exact = oracle(top, engine[0].tolist(), token)
    for name in ("nll", "entropy"):
        assert getattr(found, name)[0] == pytest.approx(exact[name], abs=1e-13), name
    # The engine's values are stored as float32: 2^-24 of a log-prob of up to 35.
    assert found.kl_coarse[0] == pytest.approx(exact["kl_coarse"], abs=5e-6)
    assert found.kl_pb20[0] == pytest.approx(exact["kl_pb20"], abs=exact["pb20_tolerance"])
    assert found.top1[0] == (engine[0].argmax() == reference[0].argmax())


@settings(max_examples=80, deadline=None)
@given(cases())
def test_from_the_same_stored_values_the_arithmetic_is_exact_to_1e_12(case):
    reference, engine, token, k = case
    top, kept = both(reference, engine, [token], k)
    found = score_topk(top, kept, where=W)
    with localcontext() as context:
        context.prec = 60
        log_p = exact_log_softmax([*top.top_log_probs[0].tolist(), float(top.tail_log_mass[0])])
        log_q = exact_log_softmax([*kept.log_probs[0].tolist(), float(kept.rest_log_mass[0])])
        assert found.kl_coarse[0] == pytest.approx(float(exact_kl(log_p, log_q)), abs=1e-12)
        assert pair_coarse(kept, kept, where=W)[0] == 0.0
        ids, own = (
            top.top_ids[0].tolist(),
            dict(zip(*(a[0].tolist() for a in (kept.own_top_ids, kept.own_top_log_probs)), strict=True)),
        )
        buckets = [index for index in own if index in ids]
        left = 1 - sum((Decimal(own[index]).exp() for index in buckets), Decimal(0))
        if not 0 < left < Decimal(2) ** -51:  # in between, the rounding of the float64 sum decides
            assert found.pb20_rest_is_floor[0] == (left <= Decimal(2) ** -54)
        p_rest = exact_log_mass([log_p[-1], *(log_p[ids.index(index)] for index in ids if index not in buckets)])
        q_rest = Decimal(FLOOR) if found.pb20_rest_is_floor[0] else left.ln()
        exact = exact_kl([*(log_p[ids.index(index)] for index in buckets), p_rest],
                         [*(Decimal(own[index]) for index in buckets), q_rest])  # fmt: skip
        # log1p(-sum) of a float64 sum: an error of 1e-16 in a rest that is at least 2^-53.
        tolerance = 1e-12 if p_rest is None else 1e-12 + float(p_rest.exp()) * min(1.0, 4e-16 / max(1e-17, float(left)))
        assert found.kl_pb20[0] == pytest.approx(max(0.0, float(exact)), abs=tolerance)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_truncated_divergence_never_exceeds_the_full_one_by_more_than_storage(case):
    reference, engine, token, k = case
    top, kept = both(reference, engine, [token], k)
    found = score_topk(top, kept, where=W)
    full = score_rows(reference, engine, [token], where=W).kl_full[0]
    log_p, log_q = float64_buckets(reference, top.top_ids), float64_buckets(engine, top.top_ids)
    bound = storage_bound(log_p, log_q)[0] + 5e-6  # and float32 of the engine's
    with np.errstate(invalid="ignore"):
        unstored = np.where(log_p > -INF, np.exp(log_p) * (log_p - log_q), 0.0).sum()
    assert unstored <= full + 1e-13
    assert found.kl_coarse[0] == pytest.approx(unstored, abs=bound)
    assert 0 <= found.kl_coarse[0] <= full + bound
    tolerance = 5e-6 + oracle(top, engine[0].tolist(), token)["pb20_tolerance"]
    assert 0 <= found.kl_pb20[0] <= found.kl_coarse[0] + tolerance


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_sixteen_bit_storage_costs_no_more_than_its_bound_on_rows_of_a_real_size(noise):
    chance = np.random.default_rng(5)
    reference = chance.normal(0, 1, (24, 20_000)) * np.linspace(1, 5, 24)[:, None]  # flat to peaked
    engine = reference + chance.normal(0, noise, reference.shape)
    top, kept = both(reference, engine, [0] * 24, 1024)
    found = score_topk(top, kept, where=W)
    log_p, log_q = float64_buckets(reference, top.top_ids), float64_buckets(engine, top.top_ids)
    unstored = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    assert (np.abs(found.kl_coarse - unstored) <= storage_bound(log_p, log_q) + 1e-9).all()
    full = score_rows(reference, engine, [0] * 24, where=W).kl_full
    assert (unstored <= full + 1e-12).all()
    if noise == 0:  # the reference against itself: 16-bit rounding reads as a KL of its own, always above 0
        assert 0 < found.kl_coarse.mean() < 2e-6 and found.kl_coarse.max() < 4e-6


def test_a_row_against_itself_is_not_refused_though_float32_alone_would_make_it_negative():
    # Stored as float32 and not renormalised, seven equal values of 1/7 sum to more than 1: a KL of -5.3e-8, an error by the law.
    equal = np.zeros((1, 7))
    kept = reduce_rows(equal, np.arange(7, dtype=np.uint32)[None], [0], where=W)
    stored = kept.log_probs.astype(np.float64)
    assert (math.log(1 / 7) - stored).mean() < -1e-10
    assert pair_coarse(kept, reduce_rows(equal + 3, np.arange(7, dtype=np.uint32)[None], [0], where=W), where=W)[0] == 0
    assert one(equal, equal, k=7)["kl_coarse"] < 1e-15


def test_nll_top1_and_entropy_are_those_of_full_rows():
    chance = np.random.default_rng(6)
    reference, engine = chance.normal(0, 4, (2, 30, 300)).astype(np.float32)
    engine[::2] = reference[::2] + 0.1
    tokens = chance.integers(0, 300, 30)
    full, found = score_rows(reference, engine, tokens, where=W), scored(reference, engine, tokens, 20)
    assert found.nll == pytest.approx(full.nll, rel=1e-14)
    assert found.top1.tolist() == full.top1.tolist() and 0 < found.top1.mean() < 1
    assert found.entropy == pytest.approx(full.entropy, abs=1e-13)


def test_top1_gives_ties_to_the_lower_id_on_both_sides():
    assert one(rows([1.0, 2.0, 2.0]), rows([0.0, 5.0, 5.0]))["top1"] == 1
    assert one(rows([1.0, 2.0, 2.0]), rows([0.0, 4.0, 5.0]))["top1"] == 0


def test_float16_ties_do_not_move_the_references_first_choice():
    # Both log-probs are one float16 value; id 1 is the larger.
    reference = rows([0.0, 1e-6, -9.0])
    top = topk_of(reference, [0], 2, where=W)
    assert top.top_log_probs[0, 0] == top.top_log_probs[0, 1]
    assert top.top_ids.tolist() == [[1, 0]]


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_adding_a_constant_to_the_logits_changes_nothing(case, up, across):
    reference, engine, token, k = case
    before, after = both(reference, engine, [token], k), both(reference + up, engine + across, [token], k)
    for old, new in zip(before, after, strict=True):
        for name, array in old.arrays().items():
            assert new.arrays()[name] == pytest.approx(array, rel=1e-6, abs=1e-12), name
    old, new = (score_topk(*sides, where=W) for sides in (before, after))
    for name in TOPK_ROW_MEASURES:
        assert getattr(new, name)[0] == pytest.approx(getattr(old, name)[0], abs=1e-11), name


def test_log_probabilities_read_as_the_logits_they_come_from():
    logits, engine = rows([1.0, 3.0, -2.0]), rows([0.5, 2.5, 0.0])
    shifted = logits - np.log(np.exp(logits).sum())
    assert one(shifted, engine)["kl_coarse"] == pytest.approx(one(logits, engine)["kl_coarse"], abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(9)))
def test_the_order_of_the_rows_changes_no_bit(order):
    chance = np.random.default_rng(3)
    reference, engine = chance.normal(0, 3, (2, 9, 33))
    tokens = chance.integers(0, 33, 9)
    straight = both(reference, engine, tokens, 8)
    mixed = both(reference[order], engine[order], tokens[order], 8)
    for old, new in zip(straight, mixed, strict=True):
        for name, array in old.arrays().items():
            assert new.arrays()[name].tolist() == array[list(order)].tolist(), name
    scores = [score_topk(*sides, where=W) for sides in (straight, mixed)]
    for name in TopKScores.__dataclass_fields__:
        assert getattr(scores[1], name).tolist() == getattr(scores[0], name)[list(order)].tolist(), name


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(40)))
def test_renaming_the_vocabulary_changes_nothing(order):
    chance = np.random.default_rng(7)
    reference, engine = chance.normal(0, 3, (2, 4, 40))
    straight = scored(reference, engine, [0, 1, 2, 3], 25)
    renamed = [order.index(token) for token in range(4)]
    mixed = scored(reference[:, order], engine[:, order], renamed, 25)
    for name in TOPK_ROW_MEASURES:
        assert getattr(mixed, name) == pytest.approx(getattr(straight, name), abs=1e-8), name


# ---------------------------------------------------------------- pairs


def test_the_pair_divergence_has_a_direction_and_is_over_the_references_ids():
    ids = np.array([[2, 0]], dtype=np.uint32)
    a, b = (reduce_rows(logs(*p), ids, [0], where=W) for p in ((0.5, 0.125, 0.25, 0.125), (0.25, 0.25, 0.25, 0.25)))
    there = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    back = 0.25 * math.log(0.5) + 0.5 * math.log(2)
    assert pair_coarse(a, b, where=W)[0] == pytest.approx(there, abs=1e-7)
    assert pair_coarse(b, a, where=W)[0] == pytest.approx(back, abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_pair_divergence_is_at_least_zero_and_at_most_the_full_one(case):
    reference, engine, token, k = case
    ids = topk_of(engine, [token], k, where=W).top_ids
    a, b = (reduce_rows(side, ids, [token], where=W) for side in (reference, engine))
    assert 0 <= pair_coarse(a, b, where=W)[0] <= pair_kl(reference, engine, where=W)[0] + 5e-6
    assert pair_coarse(a, a, where=W).tolist() == [0.0]


def test_rows_that_were_reduced_at_other_ids_are_never_compared():
    logits = np.random.default_rng(10).normal(0, 3, (2, 9))
    top = topk_of(logits, [0, 0], 4, where=W)
    kept = reduce_rows(logits, top.top_ids, [0, 0], where=W)
    swapped = top.top_ids.copy()
    swapped[1, [0, 1]] = swapped[1, [1, 0]]
    other = reduce_rows(logits, swapped, [0, 0], where=W)
    with pytest.raises(EngcmpError, match="reduced at different ids"):
        pair_coarse(kept, other, where=W)
    with pytest.raises(EngcmpError, match=r"1 of 2 rows cannot be scored: row 1: the engine's values are at other ids"):
        score_topk(top, other, where=W)
    with pytest.raises(EngcmpError, match=r"the engine has \[2, 3\] values, the reference \[2, 4\]"):
        score_topk(top, reduce_rows(logits, top.top_ids[:, :3], [0, 0], where=W), where=W)
    with pytest.raises(EngcmpError, match="reduced at different ids"):
        pair_coarse(kept, reduce_rows(logits, top.top_ids[:, :3], [0, 0], where=W), where=W)


# ---------------------------------------------------------------- bad rows


def test_minus_infinity_is_probability_zero_in_the_list_and_in_the_rest():
    # p = (1/2, 1/2, 0, 0), q = (1/4, 3/4, 0, 0): the third listed id and the rest have probability 0 on both sides.
    found = one(logs(0.5, 0.5, 0, 0), logs(0.25, 0.75, 0, 0), k=3)
    assert found["kl_coarse"] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-7)
    assert found["entropy"] == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), abs=1e-15)
    certain = one(logs(1, 0), logs(1, 0), k=1)
    assert all(certain[name] == 0 and math.copysign(1, certain[name]) == 1 for name in ("kl_coarse", "nll", "entropy"))


@pytest.mark.parametrize(
    ("k", "engine", "said"),
    [
        (3, (0.5, 0.5, 0, 0), "the engine's probability is 0 where the reference's is not, at 2 of 4 buckets, the rest among them"),
        (3, (0.5, 0.25, 0, 0.25), "the engine's probability is 0 where the reference's is not, at 1 of 4 buckets (window t)"),
        (2, (0.5, 0.5, 0, 0), "at 1 of 3 buckets, the rest among them"),
    ],
)  # fmt: skip
def test_an_engine_that_gives_nothing_where_the_reference_gives_something_is_a_bad_row(k, engine, said):
    top, kept = both(logs(0.4, 0.3, 0.2, 0.1), logs(*engine), [0], k)
    with pytest.raises(EngcmpError) as caught:
        score_topk(top, kept, where=W)
    assert "1 of 1 rows cannot be scored: row 0: " in str(caught.value) and said in str(caught.value)
    full = reduce_rows(logs(0.4, 0.3, 0.2, 0.1), top.top_ids, [0], where=W)
    with pytest.raises(EngcmpError, match="the second's probability is 0 where the first's is not"):
        pair_coarse(full, kept, where=W)
    assert pair_coarse(kept, full, where=W)[0] > 0


def test_a_next_token_of_probability_zero_is_kept_but_never_scored():
    zero, some = logs(0.5, 0.5, 0), logs(0.25, 0.25, 0.5)
    top, kept = both(zero, some, [2], 2)
    assert top.next_token_log_prob.tolist() == [-INF]
    with pytest.raises(EngcmpError, match="its next token has reference probability 0"):
        score_topk(top, kept, where=W)
    sound = replace(top, next_token_log_prob=np.array([-9.0], dtype=np.float32))
    with pytest.raises(EngcmpError, match="its next token has probability 0, so its NLL is infinite"):
        score_topk(sound, reduce_rows(zero, top.top_ids, [2], where=W), where=W)


@pytest.mark.parametrize(
    ("side", "changes", "said"),
    [
        ("engine", {"log_probs": [[-0.1, -0.2]]}, "the engine's kept probabilities sum to"),
        ("engine", {"log_probs": [[math.nan, -1.0]]}, "the engine's kept probabilities sum to nan, not 1"),
        ("engine", {"rest_log_mass": [INF]}, "the engine's kept probabilities sum to inf, not 1"),
        ("engine", {"own_top_log_probs": [[math.nan, -1.0, -2.0]]}, "the engine's top 20 sum to more than 1"),
        ("engine", {"entropy": [math.nan]}, "the engine's entropy is not a number"),
        ("engine", {"next_token_log_prob": [math.nan]}, "its next token has probability 0"),
        ("reference", {"top_log_probs": [[2.0, 1.0]]}, "the reference's kept probabilities sum to"),
        ("reference", {"tail_log_mass": [math.nan]}, "the reference's kept probabilities sum to nan"),
        ("reference", {"next_token_log_prob": [math.nan]}, "its next token has reference probability 0"),
    ],
)
def test_stored_values_that_are_no_distribution_are_refused_as_bad_rows(side, changes, said):
    logits = logs(0.5, 0.25, 0.25)
    sides = dict(zip(("reference", "engine"), both(logits, logits, [0], 2), strict=True))
    old = sides[side]
    sides[side] = replace(old, **{name: np.array(v, dtype=getattr(old, name).dtype) for name, v in changes.items()})
    with pytest.raises(EngcmpError, match=f"row 0: {said}"):
        score_topk(sides["reference"], sides["engine"], where=W)


def test_a_finite_mask_beyond_float16_is_probability_zero_as_stored_and_warns_nobody(recwarn):
    masked = rows([0.0, -1e30, -1.0], dtype=np.float32)
    top, kept = both(masked, masked, [0], 3)
    assert top.top_log_probs[0, 2] == -INF and kept.log_probs[0, 2] == np.float32(-1e30)
    assert score_topk(top, kept, where=W).kl_coarse[0] < 1e-6
    assert not recwarn.list


# ---------------------------------------------------------------- the rest of the law


def test_the_row_measures_of_a_topk_panel_are_described_and_are_the_scores_columns():
    assert set(TOPK_ROW_MEASURES) <= set(MEASURES)
    assert list(TOPK_ROW_MEASURES) == list(TopKScores.__dataclass_fields__)[: len(TOPK_ROW_MEASURES)]
    assert {MEASURES[name].better for name in ("kl_coarse", "kl_pb20")} == {"lower"}
    assert MEASURES["kl_pair_coarse"].better == "neither"
