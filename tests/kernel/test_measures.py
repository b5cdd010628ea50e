"""Every measure is described once, and an unknown one is refused."""

import pytest

from engcmp_assets.frozen_protocol.conformance import frozen_values, frozen_versions
from engcmp_assets.kernel.light_measures import LightScores
from engcmp_assets.kernel.measures import (
    ADDED,
    DISTANCES,
    LIGHT_ROW_MEASURES,
    LIGHT_TOPK_ROW_MEASURES,
    MEASURES,
    ROW_MEASURES,
    TOPK_ROW_MEASURES,
    measure,
)
from engcmp_assets.kernel.row_measures import RowScores
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_assets.kernel.topk_measures import TopKScores
from engcmp_resources.errors import EngcmpError

EXPECTED = {
    "resident_bytes",
    "gpu_memory_bytes",
    "kv_pool_tokens",
    "ready_s",
    "prefix_ttft_ms",
    "prefix_cached_tokens",
    "kl_full",
    "nll",
    "top1",
    "entropy",
    "excess_entropy",
    "nll_minus_reference",
    "agree_text",
    "top3_contained",
    "top1_confident50",
    "top1_confident90",
    "misses_per_1000",
    "rows_bit_identical",
    "kl_pair_full",
    "kl_coarse",
    "kl_pb20",
    "kl_pair_coarse",
    "kl_top20",
    "kl_pair20",
    "kl_pair_full_symmetric",
    "confident90_misses_per_1000",
    "confident90_misses_per_1000_of_all",
    "entropy_ratio",
    "excess_entropy_at_most",
    "gap_closed",
    *(f"{name}_{one}_ms" for name in ("ttft", "ttfa", "ttft_scheduled") for one in ("median", "p90", "max")),
    "e2e_median_ms",
    "decode_tok_s",
    "decode_first1_tok_s",
    "clean_decode_tok_s",
    "clean_decode_first1_tok_s",
    "aggregate_tok_s",
    "aggregate_steady_tok_s",
    "prefill_tok_s",
    "prefill_share",
    "overlap_share",
    "update_gap_median_ms",
    "tokens_per_update",
    "chars_per_token",
    "reasoning_share",
    "left_reasoning_share",
    "acceptance",
    "accepted_length",
    *("reply_finished", "reply_capped", "reply_looped", "reply_recovered", "reply_tokens", "thinking_tokens"),
    *("code_passed", "json_valid", "json_valid_unfenced", "math_right", "needle_found", "tool_points"),
    *("reply_identical", "reply_repeated", "length_ratio", "thinking_ratio"),
}


def test_the_law_names_exactly_these_measures_each_under_its_own_id():
    assert set(MEASURES) == EXPECTED
    assert all(key == one.id for key, one in MEASURES.items())


def test_every_measure_has_a_version_a_unit_a_title_and_a_definition_of_one_to_three_sentences():
    for one in MEASURES.values():
        assert one.version >= 1
        assert one.unit and one.title
        assert one.definition.endswith(".")
        assert 1 <= one.definition.count(". ") + 1 <= 3


def test_no_two_measures_share_a_title_or_a_definition():
    assert len({one.title for one in MEASURES.values()}) == len(MEASURES)
    assert len({one.definition for one in MEASURES.values()}) == len(MEASURES)


def test_a_divergence_is_better_lower_agreement_is_better_higher_and_entropy_is_neither():
    assert measure("kl_full").better == "lower"
    assert measure("misses_per_1000").better == "lower"
    assert measure("top1").better == "higher"
    assert measure("entropy").better == "neither"


def test_every_row_measure_is_described_and_is_a_column_of_the_row_scores():
    assert set(ROW_MEASURES) <= set(MEASURES)
    assert list(ROW_MEASURES) == list(RowScores.__dataclass_fields__)[: len(ROW_MEASURES)]


def test_every_measure_of_a_top_k_row_is_described_and_is_a_column_of_the_top_k_scores():
    assert set(TOPK_ROW_MEASURES) <= set(MEASURES)
    assert set(TOPK_ROW_MEASURES) <= set(TopKScores.__dataclass_fields__)


def test_every_measure_of_a_light_row_is_described_and_is_a_column_of_the_light_scores():
    assert set(LIGHT_ROW_MEASURES) | set(LIGHT_TOPK_ROW_MEASURES) <= set(MEASURES)
    assert list(LIGHT_ROW_MEASURES) == list(LightScores.__dataclass_fields__)[: len(LIGHT_ROW_MEASURES)]


def test_the_distances_are_those_from_a_reference():
    assert set(DISTANCES) <= set(MEASURES)
    assert all(measure(name).better == "lower" and measure(name).unit == "nats" for name in DISTANCES)
    assert set(DISTANCES) == {name for name in MEASURES if name.startswith("kl_") and "pair" not in name}


def test_measures_that_were_added_since_change_no_freeze_that_does_not_declare_them():
    study = load_study("smollm2-cpu")
    assert frozen_versions(study.base) == study.frozen["versions"]
    assert {name: f"{value:.12g}" for name, value in frozen_values(study.base).items()} == study.frozen["conformance"]
    frozen = study.frozen["versions"]["measures"]
    # The study measures speed and its starts, and declares no other of the later ones.
    assert set(frozen) & ADDED == {*SPEED_IDS, *STARTUP_IDS} and set(MEASURES) == {*frozen, *ADDED}
    slow = study.base.model_copy(update={"throughput": None, "startup": None})
    assert not set(frozen_versions(slow)["measures"]) & ADDED


def test_a_freeze_covers_the_later_measures_and_drivers_that_its_study_uses():
    base = load_study("smollm2-cpu").base
    light = base.panels["pa"].model_copy(update={"measures": ["kl_top20"], "pair_measures": ["kl_pair20"]})
    engine = base.engines["llamacpp"].model_copy(update={"kind": "docker"})
    changed = base.model_copy(
        update={"panels": base.panels | {"pa": light}, "engines": base.engines | {"boxed": engine}}
    )
    now, then = frozen_versions(changed), frozen_versions(base)
    assert set(now["measures"]) - set(then["measures"]) == {"kl_top20", "kl_pair20"}
    assert set(now["drivers"]) - set(then["drivers"]) == {"docker"}
    assert set(frozen_values(changed)) - set(frozen_values(base)) == {"mean kl_top20", "mean kl_pair20"}


def test_an_unknown_measure_is_refused_by_name_with_the_ids_there_are():
    with pytest.raises(EngcmpError, match=r"'kl_typo'.*kl_full"):
        measure("kl_typo")
