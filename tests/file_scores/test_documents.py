"""What the documents say of columns of rows: each figure from the rows it names, floors and runs by the arms' names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engcmp_assets.file_scores.documents import arm_document, pair_document, with_derived
from engcmp_assets.file_scores.figures import Keys, keys_of
from engcmp_assets.file_scores.request import request
from engcmp_assets.kernel.records import Missing, Panel, Window
from engcmp_assets.kernel.uncertainty import Preset

PRESET = Preset(2000, 7)
ROWS = 6


def panel(windows: int = 10) -> Panel:
    return Panel("p", 9, "full", tuple(
        Window(f"w{number}", tuple(range(8)), tuple(range(1, ROWS + 1)), ("context",) * ROWS, f"c{number}", f"b{number % 2}", "k")
        for number in range(windows)
    ))  # fmt: skip


def columns(keys: Keys, seed: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    same = (chance.random(keys.rows) > 0.3).astype(float)
    return {
        "kl_full": chance.random(keys.rows) + shift,
        "top1": same,
        "reference_top_probability": chance.random(keys.rows),
    }


def compared(
    arms: dict[str, dict[str, np.ndarray]], pair: str, *repeats: str, keys: Keys | None = None
) -> dict[str, Any]:
    own = keys or keys_of(panel())
    asked = request(list(arms), [pair], repeats)
    equal = {"kl_pair_full": np.zeros(own.rows), "rows_bit_identical": np.ones(own.rows)}
    distances = {one: equal for one in asked.row_pairs()}
    return pair_document(asked.pairs[0], own, arms, repeats=asked.repeats, distances=distances, preset=PRESET)


def test_keys_follow_the_panel_window_by_window() -> None:
    keys = keys_of(panel(2))
    assert keys.window_id.tolist() == ["w0"] * ROWS + ["w1"] * ROWS
    assert keys.position.tolist() == [1, 2, 3, 4, 5, 6] * 2
    assert keys.next_token.tolist() == [2, 3, 4, 5, 6, 7] * 2
    assert [name for name, _ in keys.named("block")] == ["b0", "b1"]


def test_derived_measures_are_of_the_rows_where_the_reference_is_confident() -> None:
    keys = keys_of(panel())
    own = columns(keys, 1)
    found = arm_document(panel(), "A", keys, own, preset=PRESET, inputs=[])["measures"]
    confident = own["reference_top_probability"] >= 0.9
    assert 0 < confident.sum() < keys.rows
    assert found["top1_confident90"]["mean"] == pytest.approx(own["top1"][confident].mean(), rel=1e-14)
    assert found["top1_confident90"]["rows"] == confident.sum()
    assert found["misses_per_1000"]["mean"] == pytest.approx(1000 * (1 - own["top1"].mean()), rel=1e-12)
    assert "reference_top_probability" not in found
    none = with_derived({"nll": own["kl_full"]})
    assert list(none) == ["nll"]


def test_misses_of_confident_rows_are_counted_on_both_denominators() -> None:
    keys = keys_of(panel())
    own = columns(keys, 1)
    own["reference_top_probability"] = 1 - own["reference_top_probability"] * 0.3
    found = arm_document(panel(), "A", keys, own, preset=PRESET, inputs=[])["measures"]
    sure = own["reference_top_probability"] >= 0.9
    misses = int((own["top1"][sure] == 0).sum())
    assert 0 < misses < sure.sum() < keys.rows
    of_confident, of_all = (found[f"confident90_misses_per_1000{name}"] for name in ("", "_of_all"))
    assert of_confident["mean"] == pytest.approx(1000 * misses / sure.sum()) and of_confident["rows"] == sure.sum()
    assert of_all["mean"] == pytest.approx(1000 * misses / keys.rows) and of_all["rows"] == keys.rows
    assert of_confident["mean"] == pytest.approx(1000 * (1 - found["top1_confident90"]["mean"]))


def test_no_miss_at_all_has_an_interval_with_a_width() -> None:
    keys = keys_of(panel())
    own = columns(keys, 1) | {"top1": np.ones(keys.rows)}
    found = arm_document(panel(), "A", keys, own, preset=PRESET, inputs=[])["measures"]
    low, high = found["misses_per_1000"]["interval95"]
    assert found["misses_per_1000"]["mean"] == low == 0 and high > 100
    assert 1000 * (1 - found["top1"]["interval95"][0]) == pytest.approx(high)


def test_the_entropy_ratio_is_of_summed_entropies() -> None:
    keys = keys_of(panel())
    chance = np.random.default_rng(4)
    of_reference = chance.uniform(0, 2, keys.rows)
    entropy = of_reference * chance.uniform(1.0, 1.4, keys.rows)
    own = columns(keys, 1) | {"entropy": entropy, "excess_entropy": entropy - of_reference}
    figure = arm_document(panel(), "A", keys, own, preset=PRESET, inputs=[])["measures"]["entropy_ratio"]
    assert figure["mean"] == pytest.approx(entropy.sum() / of_reference.sum())
    assert figure["interval95"][0] < figure["mean"] < figure["interval95"][1]
    assert (figure["rows"], figure["clusters"], figure["reason"]) == (keys.rows, 10, None)


def test_what_light_rows_lack_stands_among_the_measures_without_a_number() -> None:
    keys = keys_of(panel())
    own = {"kl_top20": np.ones(keys.rows), "rest_is_floor": (np.arange(keys.rows) < 3).astype(float)}
    lacking = {"kl_full": Missing("only the top 20 are known")}
    found = arm_document(panel(), "A", keys, own, preset=PRESET, inputs=[], lacking=lacking)
    for figures in (found["measures"], found["by_block"]["b0"]):
        assert figures["kl_full"]["mean"] is None and figures["kl_full"]["reason"] == "only the top 20 are known"
    assert found["measures"]["kl_top20"]["rows_at_rest_floor"] == 3
    assert [found["by_block"][name]["kl_top20"]["rows_at_rest_floor"] for name in ("b0", "b1")] == [3, 0]
    assert "rest_is_floor" not in found["measures"]


def test_a_pair_says_what_its_arms_and_their_rows_lack() -> None:
    keys = keys_of(panel())
    arms = {"A": columns(keys, 1) | {"kl_top20": np.ones(keys.rows)}, "B": {"kl_top20": np.full(keys.rows, 2.0)}}
    asked = request(["A", "B"], ["A,B"], [])
    found = pair_document(
        asked.pairs[0], keys, arms, repeats={}, preset=PRESET, lacking={"B": {"kl_full": Missing("top 20 only")}},
        distances={("A", "B"): {"kl_pair20": np.ones(keys.rows), "rest_is_floor": np.ones(keys.rows)}},
        not_of_pair={("A", "B"): {"kl_pair_full": Missing("one has no whole rows")}},
    )  # fmt: skip
    assert set(found["measures"]) == {"kl_top20"} and found["declared"]["primary"] == "kl_top20"
    assert found["missing"] == {"kl_full": {"missing": "top 20 only"}}
    apart = found["apart"]["rows"]
    assert apart["kl_pair20"]["mean"] == 1 and apart["kl_pair20"]["rows_at_rest_floor"] == keys.rows
    assert apart["kl_pair_full"]["mean"] is None and apart["kl_pair_full"]["reason"] == "one has no whole rows"
    assert set(apart) == {"kl_pair20", "kl_pair_full"}


def test_derived_figures_are_of_every_distance_from_the_reference() -> None:
    keys = keys_of(panel())
    arms = {"A": columns(keys, 1), "V": columns(keys, 3), "B": columns(keys, 2, shift=1.0)}
    found = compared(arms, "mean(A,V),B")["derived"]
    a = (arms["A"]["kl_full"] + arms["V"]["kl_full"]) / 2
    ratio = arms["B"]["kl_full"].mean() / a.mean()
    assert set(found) == {"relative_difference", "distance_ratio"}
    assert set(found["distance_ratio"]) == {"kl_full"}
    own = {name: found[name]["kl_full"] for name in found}
    assert own["distance_ratio"]["value"] == pytest.approx(ratio)
    assert own["relative_difference"]["value"] == pytest.approx(ratio - 1)
    ends = own["distance_ratio"]["interval95"]
    assert ends[0] < ratio < ends[1]
    assert own["relative_difference"]["interval95"] == pytest.approx([end - 1 for end in ends])
    without = compared({name: {"nll": own["kl_full"]} for name, own in arms.items()}, "A,B")["derived"]
    assert "no distance from a reference" in without["distance_ratio"]["missing"]


def test_a_population_without_a_row_has_a_reason_and_no_number() -> None:
    keys = keys_of(panel())
    own = columns(keys, 1) | {"reference_top_probability": np.full(keys.rows, 0.2)}
    figure = arm_document(panel(), "A", keys, own, preset=PRESET, inputs=[])["measures"]["top1_confident90"]
    assert figure == {
        "mean": None, "interval95": None, "rows": 0, "clusters": 0, "reason": "no row is in the population"
    }  # fmt: skip


def test_the_difference_is_b_minus_a_and_the_rest_share_one_error_rate() -> None:
    keys = keys_of(panel())
    arms = {"A": columns(keys, 1), "B": columns(keys, 2, shift=1.0)}
    found = compared(arms, "A,B")
    look = found["measures"]["kl_full"]
    right = math.fsum(arms["B"]["kl_full"] - arms["A"]["kl_full"]) / keys.rows
    assert look["difference"] == pytest.approx(right, rel=1e-13)
    assert look["verdict"] == "resolved"
    assert look["sign_clusters"] == 10
    assert found["declared"]["primary"] == "kl_full"
    assert found["declared"]["looks"] == 2 * (1 + 2)  # the one bucket is all rows: looked at twice, it is one look
    low, high = look["interval95"]
    wide_low, wide_high = look["bonferroni"]
    assert wide_low <= low < look["difference"] < high <= wide_high
    assert set(found["by_block"]) == {"b0", "b1"} and set(found["by_bucket"]) == {"k"}


def test_only_the_first_measure_over_all_rows_is_judged_without_bonferroni() -> None:
    keys = keys_of(panel())
    by_cluster = np.array([2.2, -0.6, 1.4, 0.9, -0.4, 1.1, 0.2, 1.6, -0.5, 0.3])  # mean 0.62, 2.1 standard errors
    effect = np.repeat(by_cluster, ROWS)
    arms = {"A": dict.fromkeys(("kl_full", "nll"), np.zeros(keys.rows)), "B": {"kl_full": effect, "nll": effect}}
    found = compared(arms, "A,B")
    one, other = (found["measures"][name] for name in ("kl_full", "nll"))
    assert one["interval95"] == other["interval95"] and one["interval95"][0] > 0 > one["bonferroni"][0]
    assert (one["verdict"], other["verdict"]) == ("resolved", "not resolved")
    assert other["bound"] == pytest.approx(max(map(abs, other["bonferroni"])))


def test_floors_and_baseline_runs_go_by_the_arms_names() -> None:
    keys = keys_of(panel())
    base = columns(keys, 1)
    arms = {
        "V": base, "V2": base | {"kl_full": base["kl_full"] + 0.25}, "V3": base | {"kl_full": base["kl_full"] - 0.5},
        "C": columns(keys, 2, shift=1.0),
    }  # fmt: skip
    look = compared(arms, "mean(V,V2),C", "V,V3")["measures"]["kl_full"]
    assert [one["arm"] for one in look["against_each_run"]] == ["V", "V2"]
    mean = math.fsum(arms["C"]["kl_full"] - base["kl_full"]) / keys.rows
    assert [one["difference"] for one in look["against_each_run"]] == pytest.approx([mean, mean - 0.25])
    assert look["difference"] == pytest.approx(mean - 0.125)
    own = look["floor"]["mean(V,V2)"]
    assert (own["run"], own["minus"], own["pairs"]) == ("V3", "V", 2)
    assert own["value"] == pytest.approx(-0.5)
    assert look["floor"]["C"] == {"missing": "no repeat was given"}
    assert "no repeat of the candidate" in look["sentence"]


def test_an_interval_that_cannot_be_given_has_its_reason_beside_it() -> None:
    keys = keys_of(panel())
    asked = request(["A", "B"], ["A,B"], [])
    arms, equal = (
        {"A": columns(keys, 1), "B": columns(keys, 2)},
        {("A", "B"): {"rows_bit_identical": np.ones(keys.rows)}},
    )
    found = pair_document(asked.pairs[0], keys, arms, repeats={}, distances=equal, preset=Preset(200, 7))
    look = found["measures"]["top1"]
    assert look["interval95"] is not None and look["bonferroni"] is None
    assert "200 replicates" in look["reason"]


def test_a_difference_that_rests_on_the_baseline_s_run_says_so() -> None:
    keys = keys_of(panel())
    base = columns(keys, 1)["kl_full"]
    noise = np.random.default_rng(3).normal(0, 0.01, keys.rows)
    arms = {"V": {"kl_full": base}, "V2": {"kl_full": base + 2}, "C": {"kl_full": base + 2 + noise}}
    assert compared(arms, "mean(V,V2),C")["measures"]["kl_full"]["verdict"] == "baseline-dependent"


def test_a_bucket_that_is_one_block_is_found() -> None:
    keys = keys_of(panel())
    last = np.isin(keys.window_id, ["w1", "w3"])
    keys = Keys(
        **{name: getattr(keys, name) for name in Keys.__dataclass_fields__}
        | {"bucket": np.where(last, "long", "short")}
    )
    arms = {"A": columns(keys, 1), "B": columns(keys, 2)}
    assert [one["bucket"] for one in compared(arms, "A,B", keys=keys)["confounds"]] == ["long"]
    assert compared(arms, "A,B")["confounds"] == []


def test_progress_names_the_rows_that_are_looked_at() -> None:
    keys, said = keys_of(panel()), []
    arms = {"A": columns(keys, 1), "B": columns(keys, 2)}
    equal = {("A", "B"): {"rows_bit_identical": np.ones(keys.rows)}}
    pair_document(
        request(["A", "B"], ["A,B"], []).pairs[0],
        keys,
        arms,
        repeats={},
        distances=equal,
        preset=PRESET,
        progress=said.append,
    )
    assert said == ["all rows", "block b0", "block b1", "bucket k"]
