"""Rows known by their top 20 and the actual token: hand-worked answers, a 60-digit oracle, what must never change a value, bad rows."""

import math
from dataclasses import replace
from decimal import localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topk_oracle import INF, LOGIT, W, exact_kl, exact_log_mass, exact_log_softmax, rows, stored_reference

from engcmp_assets.kernel import buckets, light_measures
from engcmp_assets.kernel.light_measures import (
    NOT_OF_LIGHT_ROWS,
    LightRows,
    LightScores,
    light_of,
    light_of_kept,
    light_rows,
    pair_kl20,
    score_light,
    score_light_alone,
    score_light_topk,
)
from engcmp_assets.kernel.measures import LIGHT_ROW_MEASURES, LIGHT_TOPK_ROW_MEASURES, MEASURES
from engcmp_assets.kernel.row_measures import pair_kl, score_rows
from engcmp_assets.kernel.topk_measures import reduce_rows, score_topk, topk_of
from engcmp_resources.errors import EngcmpError

FLOOR = math.log(2.0**-149)
V = 40


def light(logits, tokens=None):
    return light_of(logits, [0] * len(logits) if tokens is None else tokens, where=W)


def as_api(found: LightRows) -> LightRows:
    """The same rows as an API gives them: no more is known of the rest than what the top 20 leave."""
    return replace(found, rest_log_mass=None)


def api(probabilities, token=0, vocab=V, ids=None):
    """One row of 20 listed ids with these probabilities; the next token is one of them."""
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([probabilities], dtype=np.float64))
    ids = np.arange(len(probabilities))[None] if ids is None else np.array([ids])
    own = np.array([log_probs[0, ids[0].tolist().index(token)]])
    return light_rows(ids, log_probs, own, [token], vocab=vocab, where=W)


# ---------------------------------------------------------------- oracle


def top20(row):
    return sorted(range(len(row)), key=lambda one: (-row[one], one))[:20]


def masses(log_p, chosen):
    return [
        *(log_p[one] for one in chosen),
        exact_log_mass([own for one, own in enumerate(log_p) if one not in chosen]),
    ]


def oracle(reference, engine, token):
    """Every measure of one row in 60 digits, from full rows, by its definition."""
    with localcontext() as context:
        context.prec = 60
        log_p, log_q = exact_log_softmax(reference), exact_log_softmax(engine)
        own = top20(engine)
        first = min(range(len(reference)), key=lambda one: (-reference[one], one))
        top3 = sorted(range(len(reference)), key=lambda one: (-reference[one], one))[:3]
        found = {
            "kl_top20": exact_kl(masses(log_p, own), masses(log_q, own)), "nll": -log_q[token],
            "nll_minus_reference": log_p[token] - log_q[token], "reference_nll": -log_p[token],
            "reference_top_probability": log_p[first].exp(), "top1": own[0] == first, "agree_text": own[0] == token,
            "top3_contained": own[0] in top3,
        }  # fmt: skip
        return {name: float(value) for name, value in found.items()}


def pair_oracle(a, b):
    with localcontext() as context:
        context.prec = 60
        shared = [one for one in top20(a) if one in top20(b)]
        return float(exact_kl(masses(exact_log_softmax(a), shared), masses(exact_log_softmax(b), shared)))


def bf16(values):
    """Values that bfloat16 holds, as float32."""
    return (np.asarray(values, dtype="<f4").view("<u4") & np.uint32(0xFFFF0000)).view("<f4")


def kinds():
    chance = np.random.default_rng(5)
    base = chance.normal(0, 3, (12, V))
    peaked = base.copy()
    peaked[np.arange(12), chance.integers(0, V, 12)] += 60
    engine = base + chance.normal(0, 0.5, base.shape)
    masked, engine_masked = base.copy(), engine.copy()
    masked[:, 30:] = -INF
    engine_masked[:, 35:] = -INF
    tied = np.round(base / 3)
    return {
        "random": (base, engine), "peaked": (peaked, peaked + chance.normal(0, 0.5, base.shape)),
        "flat": (base * 1e-3, engine * 1e-3), "constant": (np.zeros((2, V)), np.zeros((2, V))),
        "tied": (tied, np.round(engine / 3)), "masked": (masked, engine_masked), "bfloat16": (bf16(base), bf16(engine)),
        "float16": (base.astype(np.float16), engine.astype(np.float16)), "near-equal": (base, base + 1e-7 * engine),
        "engine sure": (base, peaked), "narrow": (base[:, :7], engine[:, :7]), "twenty": (base[:, :20], engine[:, :20]),
        "twenty-one": (base[:, :21], engine[:, :21]),
    }  # fmt: skip


KINDS = kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_every_measure_agrees_with_a_sixty_digit_oracle(kind):
    reference, engine = KINDS[kind]
    tokens = [int(row.argmax()) for row in reference]
    found = score_light(reference, light(engine, tokens), tokens, where=W)
    for row, (p, q, token) in enumerate(zip(reference, engine, tokens, strict=True)):
        for name, exact in oracle(p, q, token).items():
            assert getattr(found, name)[row] == pytest.approx(exact, rel=1e-11, abs=1e-14), (row, name)
    assert not found.rest_is_floor.any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_pair_divergence_agrees_with_a_sixty_digit_oracle(kind):
    a, b = KINDS[kind]
    found, floors = pair_kl20(light(a), light(b), where=W)
    assert found == pytest.approx([pair_oracle(x, y) for x, y in zip(a, b, strict=True)], rel=1e-11, abs=1e-14)
    assert not floors.any()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("peaked", "engine sure")])
def test_an_api_s_rows_read_the_same_within_what_one_minus_their_sum_keeps(kind):
    reference, engine = KINDS[kind]
    full = light(engine)
    own = score_light(reference, as_api(full), [0] * len(reference), where=W)
    exact = score_light(reference, full, [0] * len(reference), where=W).kl_top20
    assert own.kl_top20[~own.rest_is_floor] == pytest.approx(exact[~own.rest_is_floor], rel=1e-9, abs=1e-12)
    other = light(reference)
    found, floors = pair_kl20(as_api(full), as_api(other), where=W)
    assert found[~floors] == pytest.approx(pair_kl20(full, other, where=W)[0][~floors], rel=1e-9, abs=1e-12)


# ---------------------------------------------------------------- definitions by hand


def test_the_rest_of_an_api_s_row_is_what_its_top_20_leave():
    # q: 0.5 and 19 of 0.02, so the other 20 ids have 0.12 together; p: 0.25, 19 of 0.01, and 0.56 for the others.
    p = np.log([[0.25] + [0.01] * 19 + [0.56 / 20] * 20])
    found = score_light(p, api([0.5] + [0.02] * 19), [0], where=W)
    exact = 0.25 * math.log(0.25 / 0.5) + 0.19 * math.log(0.5) + 0.56 * math.log(0.56 / 0.12)
    assert found.kl_top20[0] == pytest.approx(exact, rel=1e-12)
    assert found.nll[0] == pytest.approx(math.log(2))
    assert found.nll_minus_reference[0] == pytest.approx(math.log(2) - math.log(4))


def test_an_actual_token_beyond_the_top_20_is_no_bucket():
    listed = [0.5] + [0.02] * 19
    log_probs = np.log([[*listed, 0.001]])
    ids = np.array([[*range(20), 33]])
    added = light_rows(ids, log_probs, log_probs[:, -1], [33], vocab=V, where=W)
    assert added.top_ids.tolist() == [list(range(20))]
    p = np.log([[0.25] + [0.01] * 19 + [0.56 / 20] * 20])
    found = score_light(p, added, [33], where=W)
    assert found.kl_top20.tolist() == score_light(p, api(listed), [0], where=W).kl_top20.tolist()
    assert found.nll[0] == pytest.approx(-math.log(0.001))


def test_the_20th_place_goes_to_the_lower_of_equal_ids():
    row = rows([5.0] * 19 + [1.0] * 21)
    assert light(row).top_ids[0].tolist() == list(range(20))
    backwards = light_rows(
        np.arange(V)[None, ::-1], np.log(np.full((1, V), 1 / V)), np.log([1 / V]), [0], vocab=V, where=W
    )
    assert backwards.top_ids[0].tolist() == list(range(20))


def test_where_rounding_leaves_no_rest_it_is_the_smallest_float32_and_the_row_is_marked():
    sure = api([1.0 - 19e-9] + [1e-9 + 1e-15] * 19)
    p = np.log([[0.9] + [0.001] * 19 + [0.081 / 20] * 20])
    found = score_light(p, sure, [0], where=W)
    assert found.rest_is_floor.tolist() == [True]
    listed = 0.9 * math.log(0.9) + 0.019 * math.log(0.001 / 1e-9)
    assert found.kl_top20[0] == pytest.approx(listed + 0.081 * (math.log(0.081) - FLOOR), rel=1e-6)
    other = api([0.9] + [0.001] * 19)
    assert pair_kl20(other, sure, where=W)[1].tolist() == [True] == pair_kl20(sure, other, where=W)[1].tolist()
    assert pair_kl20(other, sure, where=W)[0][0] == pytest.approx(listed + 0.081 * (math.log(0.081) - FLOOR), rel=1e-6)


def test_a_sum_above_one_by_rounding_makes_no_divergence_an_error():
    above = api([0.5 + 2e-6] + [0.5 / 19] * 19)
    p = np.log([[0.5] + [0.5 / 19] * 19 + [1e-300] * 20])
    assert score_light(p, above, [0], where=W).kl_top20[0] < 1e-9
    assert pair_kl20(api([0.5] + [0.5 / 19] * 19), above, where=W)[0][0] < 1e-9


def test_only_what_both_list_is_a_bucket_of_a_pair():
    # a lists ids 0..19, b lists 19..38: they share id 19.
    a = api([0.43] + [0.03] * 19)
    b = api([0.24] + [0.04] * 19, token=19, ids=[*range(19, 39)])
    found = pair_kl20(a, b, where=W)[0][0]
    assert found == pytest.approx(0.03 * math.log(0.03 / 0.24) + 0.97 * math.log(0.97 / 0.76), rel=1e-12)
    other = pair_kl20(b, a, where=W)[0][0]
    assert other == pytest.approx(0.24 * math.log(0.24 / 0.03) + 0.76 * math.log(0.76 / 0.97), rel=1e-12)


def test_rows_that_share_no_id_are_one_bucket_and_read_zero():
    a, b = api([0.05] * 20), api([0.05] * 20, token=20, ids=[*range(20, 40)])
    # 1 minus nothing on both sides
    assert pair_kl20(a, b, where=W)[0].tolist() == [0.0]


def test_without_a_reference_there_are_nll_and_agreement_with_the_text():
    found = score_light_alone(api([0.5] + [0.02] * 19), [0], where=W)
    assert found["nll"][0] == pytest.approx(math.log(2)) and found["agree_text"].tolist() == [1.0]
    assert score_light_alone(api([0.5] + [0.02] * 19, token=3), [3], where=W)["agree_text"].tolist() == [0.0]


def test_a_top_k_reference_gives_a_light_row_what_it_gives_the_kept_row():
    chance = np.random.default_rng(9)
    reference = chance.normal(0, 3, (6, 300))
    engine, tokens = reference + chance.normal(0, 0.5, reference.shape), chance.integers(0, 300, 6)
    teacher = topk_of(reference, tokens, 128, where=W)
    kept = reduce_rows(engine, teacher.top_ids, tokens, where=W)
    full = score_topk(teacher, kept, where=W)
    found, floors = score_light_topk(teacher, light_of_kept(kept), tokens, where=W)
    for name in LIGHT_TOPK_ROW_MEASURES:
        assert found[name].tolist() == getattr(full, name).tolist(), name
    assert floors.tolist() == full.pb20_rest_is_floor.tolist()
    exact = score_rows(reference, engine, tokens, where=W)
    for name in ("agree_text", "top3_contained"):
        assert found[name].tolist() == getattr(exact, name).tolist()
    assert found["nll_minus_reference"] == pytest.approx(exact.nll_minus_reference, abs=1e-6)
    assert found["reference_top_probability"] == pytest.approx(exact.reference_top_probability, rel=5e-3)
    own, _ = score_light_topk(teacher, as_api(light_of(engine, tokens, where=W)), tokens, where=W)
    assert own["kl_pb20"] == pytest.approx(full.kl_pb20, abs=1e-6)


@pytest.mark.parametrize(("first", "contained"), [(7, 1), (9, 1), (4, 1), (2, 0), (30, 0)])
def test_only_the_first_three_of_a_top_k_reference_contain_the_engine_s_choice(first, contained):
    stored = [math.log(0.3), math.log(0.2), math.log(0.2), math.log(0.1)]
    teacher = stored_reference([7, 4, 9, 2], stored, math.log(0.2), next_log_prob=math.log(0.1))
    ids = [first, *(one for one in range(V) if one != first)][:20]
    found, _ = score_light_topk(teacher, api([0.5] + [0.02] * 19, token=first, ids=ids), [first], where=W)
    assert found["top3_contained"].tolist() == [contained] and found["top1"].tolist() == [float(first == 7)]
    assert found["nll_minus_reference"][0] == pytest.approx(math.log(0.1 / 0.5), abs=1e-6)
    assert found["reference_top_probability"][0] == pytest.approx(0.3, rel=1e-3)


# ---------------------------------------------------------------- what must hold of every row


@st.composite
def cases(draw):
    width = draw(st.integers(1, 30))
    p, q = (draw(st.lists(LOGIT, min_size=width, max_size=width)) for _ in range(2))
    return rows(p), rows(q), draw(st.integers(0, width - 1))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_a_truncated_divergence_is_at_least_zero_and_never_exceeds_the_full_one(case):
    p, q, token = case
    full = score_rows(p, q, [token], where=W)
    own = score_light(p, light_of(q, [token], where=W), [token], where=W)
    assert 0 <= own.kl_top20[0] <= full.kl_full[0] + 1e-13 * (1 + full.kl_full[0])
    pair = pair_kl20(light(p), light(q), where=W)[0][0]
    assert 0 <= pair <= pair_kl(p, q, where=W)[0] + 1e-13 * (1 + full.kl_full[0])
    for name in ("nll", "nll_minus_reference", "reference_nll", "reference_top_probability"):
        assert getattr(own, name)[0] == pytest.approx(getattr(full, name)[0], abs=1e-12)
    for name in ("top1", "agree_text", "top3_contained", "engine_top_id", "reference_top_id"):
        assert getattr(own, name)[0] == getattr(full, name)[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint16])
def test_a_row_against_itself_reads_exactly_zero_in_every_type(dtype):
    values = np.random.default_rng(2).normal(0, 4, (5, 3000)).astype(np.float32)
    values = (bf16(values).view("<u4") >> 16).astype("<u2") if dtype == np.uint16 else values.astype(dtype)
    own = light(values)
    assert score_light(values, own, [0] * 5, where=W).kl_top20.tolist() == [0.0] * 5
    for side in (own, as_api(own)):
        assert pair_kl20(side, side, where=W)[0].tolist() == [0.0] * 5


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_adding_a_constant_to_the_logits_changes_nothing(case, up, across):
    p, q, token = case
    before = score_light(p, light_of(q, [token], where=W), [token], where=W)
    after = score_light(p + up, light_of(q + across, [token], where=W), [token], where=W)
    for name in LightScores.__dataclass_fields__:
        assert getattr(after, name)[0] == pytest.approx(getattr(before, name)[0], abs=1e-12), name
    assert pair_kl20(light(p + up), light(q + across), where=W)[0][0] == pytest.approx(
        pair_kl20(light(p), light(q), where=W)[0][0], abs=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(V)))
def test_another_order_of_the_vocabulary_changes_nothing_where_no_two_values_are_equal(order):
    p, q = (side[:3] for side in KINDS["random"])
    new = np.argsort(order)
    before = score_light(p, light_of(q, [1, 2, 3], where=W), [1, 2, 3], where=W)
    tokens = new[[1, 2, 3]]
    after = score_light(p[:, order], light_of(q[:, order], tokens, where=W), tokens, where=W)
    for name in LIGHT_ROW_MEASURES:
        assert getattr(after, name) == pytest.approx(getattr(before, name), abs=1e-13), name
    assert after.engine_top_id.tolist() == new[before.engine_top_id].tolist()
    pair = pair_kl20(light(p), light(q), where=W)[0]
    assert pair_kl20(light(p[:, order]), light(q[:, order]), where=W)[0] == pytest.approx(pair, abs=1e-13)


def picked(found: LightRows, order) -> LightRows:
    rest = None if found.rest_log_mass is None else found.rest_log_mass[order]
    return LightRows(found.top_ids[order], found.top_log_probs[order], found.next_token_log_prob[order], rest)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)))
def test_the_order_of_the_rows_and_what_stands_beside_a_row_change_no_bit(order):
    p, q = KINDS["random"]
    order = np.array(order)
    tokens = np.arange(12)
    own = light_of(q, tokens, where=W)
    before = score_light(p, own, tokens, where=W)
    after = score_light(p[order], picked(own, order), tokens[order], where=W)
    alone = [score_light(p[one : one + 1], picked(own, [one]), tokens[one : one + 1], where=W) for one in range(12)]
    for name in LightScores.__dataclass_fields__:
        assert getattr(after, name).tolist() == getattr(before, name)[order].tolist()
        assert [getattr(one, name)[0] for one in alone] == getattr(before, name).tolist()
    pair = pair_kl20(light(p), own, where=W)[0]
    assert pair_kl20(picked(light(p), order), picked(own, order), where=W)[0].tolist() == pair[order].tolist()


def test_the_order_of_an_api_s_list_changes_no_bit():
    listed = light(KINDS["random"][1])
    mixed = np.random.default_rng(1).permuted(np.tile(np.arange(20), (12, 1)), axis=1)
    again = light_rows(
        np.take_along_axis(listed.top_ids, mixed, axis=1), np.take_along_axis(listed.top_log_probs, mixed, axis=1),
        listed.next_token_log_prob, [0] * 12, vocab=V, where=W,
    )  # fmt: skip
    assert again.top_ids.tolist() == listed.top_ids.tolist()
    assert again.top_log_probs.tolist() == listed.top_log_probs.tolist()


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_block_borders_and_threads_change_no_bit(monkeypatch, jobs):
    p, q = KINDS["random"]
    own = light(q)
    before = score_light(p, own, [0] * 12, where=W)
    monkeypatch.setattr(light_measures, "SUMMED_VALUES", 3 * V)
    assert light_of(q, [0] * 12, where=W, jobs=jobs).rest_log_mass.tolist() == own.rest_log_mass.tolist()
    after = score_light(p, own, [0] * 12, where=W, jobs=jobs)
    for name in LightScores.__dataclass_fields__:
        assert getattr(after, name).tolist() == getattr(before, name).tolist()
    assert buckets.SUMMED_VALUES > 3 * V


# ---------------------------------------------------------------- bad rows


def changed(**changes):
    """Two rows as an API gives them, with some of their arrays changed."""
    ids = np.tile(np.arange(20), (2, 1))
    log_probs = np.log(np.tile(np.array([0.5] + [0.02] * 19), (2, 1)))
    values = {"ids": ids, "log_probs": log_probs, "own": np.log([0.5, 0.5]), "tokens": [0, 0], "vocab": V} | changes
    return light_rows(
        values["ids"], values["log_probs"], values["own"], values["tokens"], vocab=values["vocab"], where=W
    )


def with_row(array, row):
    found = np.array(array)
    found[1] = row
    return found


GOOD = np.log(np.tile(np.array([0.5] + [0.02] * 19), (2, 1)))
IDS = np.tile(np.arange(20), (2, 1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ids": with_row(IDS, [*range(19), 3])}, "row 1: it lists an id twice"),
        ({"ids": with_row(IDS, [*range(19), V])}, "row 1: it lists an id outside the vocabulary of 40 ids"),
        ({"ids": IDS - 1}, "2 of 2 rows cannot be scored: row 0: it lists an id outside"),
        ({"log_probs": with_row(GOOD, [math.nan] + [-4.0] * 19)}, "row 1: it has NaN for a log-probability"),
        ({"log_probs": with_row(GOOD, [0.5] + [-4.0] * 19)}, "row 1: it has a log-probability above 0"),
        ({"log_probs": GOOD + 0.2}, "row 0: the engine's top 20 sum to more than 1"),
        ({"own": np.array([math.log(0.5), -INF])}, "row 1: its next token has probability 0"),
        ({"own": np.array([math.log(0.5), math.nan])}, "row 1: it has NaN for a log-probability"),
        ({"own": np.log([0.5, 0.4])}, "row 1: its next token has another log-probability in its list"),
        ({"tokens": [0, 33], "own": np.log([0.5, 0.1])}, "row 1: its next token is more probable than its listed ids"),
        ({"ids": IDS[:, :5], "log_probs": GOOD[:, :5]}, "light rows list 5 ids, the measures are of the top 20"),
        ({"ids": IDS[:, :19]}, "light rows of shapes"),
        ({"ids": IDS[0]}, "light rows of shapes"),
        ({"own": np.log([0.5])}, "light rows of shapes"),
        ({"tokens": [0]}, "light rows of shapes"),
        ({"ids": IDS[:0], "log_probs": GOOD[:0], "own": np.zeros(0), "tokens": []}, "light rows of shapes"),
    ],
)
def test_what_no_api_may_give_is_refused_with_its_row_and_place(changes, said):
    with pytest.raises(EngcmpError) as caught:
        changed(**changes)
    assert said in str(caught.value) and W in str(caught.value)


def test_fewer_ids_than_20_are_all_where_the_vocabulary_has_no_more():
    found = light_rows(np.array([[2, 0, 1]]), np.log([[0.2, 0.5, 0.3]]), np.log([0.2]), [2], vocab=3, where=W)
    assert found.top_ids.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("side", "value", "said"),
    [
        ("reference", math.nan, "row 3: the row holds NaN"),
        ("reference", math.inf, "row 3: the row holds +inf"),
        ("engine", math.nan, "row 3: the row holds NaN"),
        ("engine", math.inf, "row 3: the row holds +inf"),
    ],
)
def test_a_bad_full_row_is_located_with_its_reason(side, value, said):
    p, q = (one.copy() for one in KINDS["random"])
    (p if side == "reference" else q)[3, 5] = value
    with pytest.raises(EngcmpError) as caught:
        score_light(p, light(q), [0] * 12, where=W)
    assert said in str(caught.value) and "1 of 12 rows" in str(caught.value)


def test_a_probability_of_zero_where_the_reference_has_some_is_a_bad_row():
    p, q = (one.copy() for one in KINDS["random"])
    q[4, 20:] = -INF
    q[4, 0] = 30
    with pytest.raises(
        EngcmpError, match=r"row 4: the engine's probability is 0 where .* at 1 of 21 buckets, the rest among them"
    ):
        score_light(p, light(q), [0] * 12, where=W)
    only = p.copy()
    only[4, np.argsort(p[4])[:20]] = -INF  # nothing but what both list
    with pytest.raises(EngcmpError, match="row 4: the second's probability is 0 where the first's is not"):
        pair_kl20(light(p), light(only), where=W)
    few = api([0.5, 0.5] + [0.0] * 18)
    with pytest.raises(
        EngcmpError, match="row 0: the engine's probability is 0 where the reference's is not, at 18 of 21"
    ):
        score_light(p[:1], few, [0], where=W)


def test_a_next_token_of_probability_zero_on_either_side_is_a_bad_row():
    p, q = (one.copy() for one in KINDS["masked"])
    with pytest.raises(EngcmpError, match="row 0: its next token has reference probability 0"):
        score_light(p, light(q), [32] * 12, where=W)
    with pytest.raises(EngcmpError, match="row 0: its next token has probability 0, so its NLL is infinite"):
        light(q, [39] * 12)


def test_captures_that_do_not_pair_up_are_refused():
    p, q = KINDS["random"]
    own = light(q)
    with pytest.raises(EngcmpError, match="12 light rows, 11 on the other side"):
        score_light(p[:11], own, [0] * 11, where=W)
    with pytest.raises(EngcmpError, match="12 light rows, 11 on the other side"):
        score_light_alone(own, [0] * 11, where=W)
    with pytest.raises(EngcmpError, match="11 light rows, 12 on the other side"):
        pair_kl20(own, light(q[:11]), where=W)
    with pytest.raises(EngcmpError, match="it lists an id outside the vocabulary of 30 ids"):
        score_light(p[:, :30], own, [0] * 12, where=W)
    teacher = stored_reference([0, 1], [math.log(0.5), math.log(0.25)], math.log(0.25))
    with pytest.raises(EngcmpError, match="the engine has 12 rows, the reference 1"):
        score_light_topk(teacher, own, [0] * 12, where=W)


def test_the_measures_of_light_rows_are_described_and_what_they_lack_has_a_reason():
    assert set(LIGHT_ROW_MEASURES) <= set(MEASURES)
    assert list(LIGHT_ROW_MEASURES) == list(LightScores.__dataclass_fields__)[: len(LIGHT_ROW_MEASURES)]
    assert {"kl_full", "entropy", "rows_bit_identical", "kl_pair_full"} <= set(NOT_OF_LIGHT_ROWS) <= set(MEASURES)
    assert not set(NOT_OF_LIGHT_ROWS) & {*LIGHT_ROW_MEASURES, *LIGHT_TOPK_ROW_MEASURES}
    assert all(len(one.reason) > 20 for one in NOT_OF_LIGHT_ROWS.values())
