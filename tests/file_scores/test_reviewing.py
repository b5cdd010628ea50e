"""What is said of an arm and of a pair beside their figures: each check finds what was planted, and says why it finds nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engcmp_assets.file_scores.documents import arm_document, pair_document
from engcmp_assets.file_scores.figures import Keys, keys_of
from engcmp_assets.file_scores.request import request
from engcmp_assets.file_scores.reviewing import Repeats, review_of_arm, review_of_pair
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.uncertainty import Preset

PRESET = Preset(2000, 7)
ROWS, WINDOWS = 60, 10


def keys(*, copies: int = 0, windows: int = WINDOWS) -> Keys:
    """Windows of random tokens; the last `copies` of them repeat the first one's."""
    chance = np.random.default_rng(3)
    texts = [tuple(chance.integers(0, 999, ROWS + 1).tolist()) for _ in range(windows)]
    texts[windows - copies :] = [texts[0]] * copies
    return keys_of(Panel("p", 999, "full", tuple(
        Window(f"w{number}", text, tuple(range(ROWS)), ("context",) * ROWS, f"c{number}", f"b{number % 2}", "k")
        for number, text in enumerate(texts)
    )))  # fmt: skip


def columns(own: Keys, seed: int, *, worse: float = 0.0, flatter: float = 0.0) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    entropy = 2 + 0.01 * chance.random(own.rows) + flatter
    return {
        "kl_full": 0.01 * chance.random(own.rows) + worse,
        "nll": entropy + 0.01 * chance.normal(size=own.rows) + worse,
        "entropy": entropy,
        "excess_entropy": entropy - 2.0,
    }


def apart(own: Keys, *, kl: Any = 0.001, equal: Any = 0.0) -> dict[str, np.ndarray]:
    return {
        "kl_pair_full": np.zeros(own.rows) + kl,
        "rows_bit_identical": np.zeros(own.rows) + equal,
    }


def reviewed(
    own: Keys, arms: dict[str, dict[str, np.ndarray]], pair: str, again: Repeats | None = None
) -> dict[str, Any]:
    asked = request(list(arms), [pair], [])
    return review_of_pair(asked.pairs[0], own, arms, preset=PRESET, repeats=again)


def test_a_repeat_of_the_baseline_that_turns_the_verdict_is_named() -> None:
    own = keys()
    arms = {"A": columns(own, 1), "A2": columns(own, 1, worse=0.3), "B": columns(own, 2, worse=0.3)}
    found = reviewed(own, arms, "A,B", Repeats({"A": ("A2",)}))["baseline_choice"]
    assert found["kl_full"]["found"] and found["kl_full"]["standing"] == ["A"]
    assert found["kl_full"]["high"] - found["kl_full"]["low"] == pytest.approx(0.3)
    assert not found["entropy"]["found"]
    alone = reviewed(own, arms, "A,B")["baseline_choice"]["kl_full"]
    assert alone["swing"] == {"missing": "one baseline run was captured: nothing to choose from"}


def test_every_run_of_a_mean_is_a_baseline_run() -> None:
    own = keys()
    arms = {"A": columns(own, 1), "A2": columns(own, 3), "A3": columns(own, 4), "B": columns(own, 2, worse=0.3)}
    found = reviewed(own, arms, "mean(A,A2),B", Repeats({"A": ("A2", "A3")}))["baseline_choice"]["kl_full"]
    assert set(found["standing"]) == {"A", "A2", "A3"} and not found["found"]


def test_the_floor_is_of_the_same_rows() -> None:
    own = keys()
    chance = np.random.default_rng(1)
    noise = 0.001 * (1 + chance.random(own.rows))
    distances = {("A", "B"): apart(own, kl=3 * noise), ("A", "A2"): apart(own, kl=noise)}
    arms = {name: columns(own, 1) for name in ("A", "A2", "B")}
    found = reviewed(own, arms, "A,B", Repeats({"A": ("A2",)}, distances))["floor_on_same_clusters"]
    assert found["distance"] == "kl_pair_full" and found["A,A2"]["ratio"] == pytest.approx(3)
    assert found["A,A2"]["ratio_interval"]["low"] == pytest.approx(3)
    without = reviewed(own, arms, "A,B", Repeats({}, {("A", "B"): apart(own)}))
    assert without["floor_on_same_clusters"] == {"missing": "no repeat was given"}
    assert reviewed(own, arms, "A,B")["hypersensitive"] == {
        "missing": "the rows of the two arms were not held against each other"
    }


def test_rows_that_differ_from_the_second_chunk_on_are_found() -> None:
    own = keys()
    lengths = {name: (40, 30) for name in np.unique(own.window_id).tolist()}
    distances = {("A", "A2"): apart(own, equal=own.position < 40), ("A", "B"): apart(own)}
    arms = {name: columns(own, 1) for name in ("A", "A2", "B")}
    again = Repeats({"A": ("A2",)}, distances, {"A": lengths, "A2": lengths})
    found = reviewed(own, arms, "A,B", again)["bit_equality_by_chunk"]
    assert found["A,A2"]["found"] and found["A,A2"]["starts_at_chunk"] == 2
    assert found["A,B"] == {"missing": "no window's chunk lengths were recorded in both runs"}
    of_arm = review_of_arm("A", own, arms["A"], preset=PRESET, repeats=again)["bit_equality_by_chunk"]
    assert of_arm == {"A,A2": found["A,A2"]}


def test_copies_of_one_text_count_once() -> None:
    own = keys(copies=4)
    arms = {"A": columns(own, 1), "B": columns(own, 2, worse=0.1)}
    found = reviewed(own, arms, "A,B")["duplicates"]
    assert found["found"] and (found["clusters_before"], found["clusters_after"]) == (10, 6)
    assert found["groups"][0]["windows"] == ["w0", "w6", "w7", "w8", "w9"]
    assert found["difference_merged"]["clusters"] == 6 and "t-interval" in found["difference_merged"]["method"]
    single = reviewed(keys(), arms, "A,B")["duplicates"]
    assert single["difference_merged"] == {"missing": "no text was counted more than once"}


def test_a_wild_row_is_found_and_laid_at_the_arm_whose_repeat_has_it_too() -> None:
    own = keys()
    wild = np.where((own.window_id == "w3") & (own.position == 17), 5.0, 0.001)
    distances = {("A", "B"): apart(own, kl=wild), ("A", "A2"): apart(own, kl=wild)}
    arms = {name: columns(own, 1) for name in ("A", "A2", "B")}
    found = reviewed(own, arms, "A,B", Repeats({"A": ("A2",)}, distances))["hypersensitive"]
    assert found["found"] and [(row["window"], row["position"]) for row in found["worst"]] == [("w3", 17)]
    assert found["also_with_itself"] == {"A,A2": [1, 1]}


def test_a_flatter_arm_has_its_gap_in_sharpness() -> None:
    own = keys()
    arms = {"A": columns(own, 1), "B": columns(own, 1, flatter=0.2)}
    split = reviewed(own, arms, "A,B")["sharpness"]
    assert split["found"] and split["sharpness_share"] == pytest.approx(1)
    assert split["kl_gap"]["value"] == pytest.approx(0)
    entropy = review_of_arm("B", own, arms["B"], preset=PRESET)["entropy"]
    assert entropy["excess_share"] == pytest.approx(0.1025, rel=0.01)
    light = {"A": {"nll": arms["A"]["nll"]}, "B": {"nll": arms["B"]["nll"]}}
    assert reviewed(own, light, "A,B")["sharpness"] == {"missing": "the two arms do not both give entropy"}
    assert review_of_arm("A", own, light["A"], preset=PRESET)["entropy"]["missing"].startswith("the rows do not give")


def test_few_texts_have_few_resamples_and_say_so() -> None:
    own = keys(windows=3)
    arms = {"A": columns(own, 1), "B": columns(own, 2, worse=0.1)}
    found = reviewed(own, arms, "A,B")
    assert found["few_clusters"]["estimate"]["distinct_resamples"] == 10
    assert found["few_clusters"]["found"] and found["few_clusters"]["estimate"]["method"].startswith("t-interval")
    assert review_of_arm("A", own, arms["A"], preset=PRESET)["clusters"] == {
        "clusters": 3, "windows": 3, "distinct_resamples": 10,
    }  # fmt: skip


def test_power_is_of_every_measure_and_missing_where_no_cluster_differs() -> None:
    own = keys()
    arms = {"A": columns(own, 1), "B": columns(own, 2)}
    found = reviewed(own, arms, "A,B")["power"]
    assert set(found) == {"kl_full", "nll", "entropy", "excess_entropy"}
    assert 0 < found["kl_full"]["smallest_effect"] < 0.01 and not found["kl_full"]["resolved"]
    same = reviewed(own, {"A": arms["A"], "B": arms["A"]}, "A,B")["power"]["kl_full"]
    assert "no spread" in same["smallest_effect"]["missing"]


def test_the_documents_carry_the_review_as_plain_json() -> None:
    own = keys()
    arms = {"A": columns(own, 1), "B": columns(own, 2)}
    panel = Panel("p", 999, "full", ())
    document = arm_document(panel, "A", own, arms["A"], preset=PRESET, inputs=[])
    assert set(json.loads(json.dumps(document["review"]))) == {
        "clusters", "duplicates", "entropy", "hypersensitive", "bit_equality_by_chunk",
    }  # fmt: skip
    pair = request(["A", "B"], ["A,B"], []).pairs[0]
    whole = pair_document(pair, own, arms, repeats={}, distances={("A", "B"): apart(own)}, preset=PRESET)
    assert json.loads(json.dumps(whole["review"]))["measure"] == "kl_full"
