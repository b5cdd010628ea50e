"""kl_pb20: the engine's top 20 as far as the reference lists them, and a rest that is 1 minus their sum."""

import math
from dataclasses import replace

import numpy as np
import pytest
from topk_oracle import INF, W, both, logs, rows, stored_reference

from engcmp_assets.kernel.buckets import settled
from engcmp_assets.kernel.topk_measures import reduce_rows, score_topk
from engcmp_resources.errors import EngcmpError

FLOOR = math.log(2.0**-149)


def test_an_own_choice_that_the_reference_does_not_list_is_part_of_the_rest():
    # V = 40 equal weights but three; the reference lists ids 0 and 1; the engine's top 20 are 2 and then 0, 1, 3 ..
    engine = np.array([[0.2, 0.1, 0.5] + [0.2 / 37] * 37])
    top = stored_reference([0, 1], [math.log(0.5), math.log(0.25)], math.log(0.25))
    found = score_topk(top, reduce_rows(np.log(engine), top.top_ids, [0], where=W), where=W)
    exact = 0.5 * math.log(0.5 / 0.2) + 0.25 * math.log(0.25 / 0.1) + 0.25 * math.log(0.25 / 0.7)
    assert found.kl_pb20[0] == pytest.approx(exact, abs=1e-3)


def test_a_listed_id_outside_the_engines_top_twenty_is_part_of_the_rest_but_a_bucket_of_the_coarse_divergence():
    # The engine's 20 first are ids 1..20; the reference lists 0 (0.5), which the engine has at rank 21.
    engine = np.array([[0.01] + [0.0495] * 20])
    top = stored_reference([0, 1], [math.log(0.5), math.log(0.25)], math.log(0.25))
    found = score_topk(top, reduce_rows(np.log(engine), top.top_ids, [0], where=W), where=W)
    coarse = 0.5 * math.log(0.5 / 0.01) + 0.25 * math.log(0.25 / 0.0495) + 0.25 * math.log(0.25 / 0.9405)
    pb20 = 0.25 * math.log(0.25 / 0.0495) + 0.75 * math.log(0.75 / 0.9505)
    assert found.kl_coarse[0] == pytest.approx(coarse, abs=2e-3)
    assert found.kl_pb20[0] == pytest.approx(pb20, abs=1e-3)


def test_the_twentieth_place_goes_to_the_lower_of_two_equal_ids():
    # 19 ids above, then ids 19 and 20 equal: 19 is a bucket and 20 is not.
    engine = rows([5.0] * 19 + [1.0, 1.0])
    kept = reduce_rows(engine, np.array([[19, 20]], dtype=np.uint32), [0], where=W)
    assert kept.own_top_ids[0].tolist() == list(range(20))


def test_what_a_light_capture_does_not_have_does_not_move_kl_pb20():
    chance = np.random.default_rng(9)
    reference, engine = chance.normal(0, 3, (2, 5, 200))
    top, kept = both(reference, engine, [0] * 5, 64)
    other = replace(kept, log_probs=(kept.log_probs - 1e-6).astype(np.float32))
    before, after = score_topk(top, kept, where=W), score_topk(top, other, where=W)
    assert after.kl_coarse.tolist() != before.kl_coarse.tolist()
    assert after.kl_pb20.tolist() == before.kl_pb20.tolist()


def with_top(own_log_probs, **changes):
    """An engine's row over three ids whose top probabilities are set by hand."""
    kept = reduce_rows(logs(0.5, 0.25, 0.25), np.array([[0, 1, 2]], dtype=np.uint32), [0], where=W)
    return replace(kept, own_top_log_probs=np.array([own_log_probs], dtype=np.float32), **changes)


def test_where_rounding_leaves_no_rest_it_is_the_smallest_float32_and_the_row_is_marked():
    kept = with_top([math.log(0.5) + 1e-7, math.log(0.25) + 1e-7, math.log(0.25) + 1e-7])
    top = stored_reference([0, 1, 2], [math.log(0.5), math.log(0.25), math.log(0.249)], math.log(0.001))
    kept = replace(kept, log_probs=np.log(np.array([[0.5, 0.25, 0.249]])).astype(np.float32),
                   rest_log_mass=np.log(np.array([0.001])).astype(np.float32))  # fmt: skip
    found = score_topk(top, kept, where=W)
    assert found.pb20_rest_is_floor.tolist() == [True]
    assert found.kl_pb20[0] == pytest.approx(0.001 * (math.log(0.001) - FLOOR), abs=1e-3)
    below = replace(kept, own_top_log_probs=kept.own_top_log_probs - np.float32(1e-6))
    assert score_topk(top, below, where=W).pb20_rest_is_floor.tolist() == [False]


def test_a_sum_above_one_by_rounding_makes_no_divergence_an_error():
    # p has no rest, so that with q's sum at 1 + 3e-7 the plain formula reads -3e-7; the excess is known to be rounding.
    shift = 3e-7
    kept = with_top([math.log(0.5) + shift, math.log(0.25) + shift, math.log(0.25) + shift])
    top = stored_reference([0, 1, 2], [math.log(0.5), math.log(0.25), math.log(0.25)], -INF)
    found = score_topk(top, kept, where=W)
    assert found.pb20_rest_is_floor.tolist() == [True]
    assert 0 <= found.kl_pb20[0] < 1e-7
    with pytest.raises(EngcmpError, match="row 0: the engine's top 20 sum to more than 1"):
        score_topk(top, with_top([math.log(0.5), math.log(0.26), math.log(0.25)]), where=W)


def test_a_divergence_below_rounding_is_an_error_and_one_within_rounding_is_zero():
    found = settled(np.array([-9e-11, -0.0, 2.0]), W)
    assert found.tolist() == [0.0, 0.0, 2.0] and math.copysign(1, found[1]) == 1
    with pytest.raises(EngcmpError, match=r"row 1: KL is -1.100e-10 nats.*window t"):
        settled(np.array([0.0, -1.1e-10]), W)
    assert settled(np.array([-2e-7, 0.0]), W, np.array([2e-7, 0.0])).tolist() == [0.0, 0.0]
    with pytest.raises(EngcmpError, match="row 1"):
        settled(np.array([-2e-7, -2e-7]), W, np.array([2e-7, 0.0]))
