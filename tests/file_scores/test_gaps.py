"""How much of a gap a setting closes: of which arms and measures, and where there is no gap to close."""

from __future__ import annotations

import numpy as np
import pytest
from test_documents import PRESET, ROWS, panel

from engcmp_assets.file_scores.figures import keys_of
from engcmp_assets.file_scores.gaps import gap_document
from engcmp_assets.file_scores.request import request

KEYS = keys_of(panel())
ARMS = ["V", "V2", "C", "S"]


def arms(gap: float = 1.0, closed: float = 0.75) -> dict[str, dict[str, np.ndarray]]:
    chance = np.random.default_rng(7)
    v = chance.uniform(0.5, 1.5, KEYS.rows)
    c = v + gap * chance.uniform(0.5, 1.5, KEYS.rows)
    same = (chance.random(KEYS.rows) > 0.5).astype(float)
    values = {"V": v, "V2": v, "C": c, "S": c - closed * (c - v)}
    return {arm: {"kl_full": own, "top1": same, "entropy": own} for arm, own in values.items()}


def asked(text: str):
    return request(ARMS, [], [], [text]).gaps[0]


def test_the_share_is_of_the_gap_between_baseline_and_candidate() -> None:
    found = gap_document(asked("mean(V,V2),C,S"), KEYS, arms(), preset=PRESET)
    assert found["gap"]["baseline"] == ["V", "V2"] and found["gap"]["setting"] == ["S"]
    own = found["gap_closed"]["kl_full"]
    assert own["value"] == pytest.approx(0.75) and own["interval95"] == pytest.approx([0.75, 0.75])
    assert own["gap"]["verdict"] == "resolved" and own["gap"]["difference"] == pytest.approx(1.0, abs=0.1)
    assert own["reason"] is None
    assert found["declared"]["primary"] == "kl_full" and found["declared"]["looks"] == 2


def test_a_measure_without_a_better_direction_has_no_gap_and_one_without_a_gap_has_a_reason() -> None:
    found = gap_document(asked("V,C,S"), KEYS, arms(), preset=PRESET)["gap_closed"]
    assert set(found) == {"kl_full", "top1"}
    assert found["top1"]["value"] is None and found["top1"]["interval95"] is None
    assert "not resolved" in found["top1"]["reason"] and found["top1"]["gap"]["verdict"] == "not resolved"
    none = gap_document(asked("V,C,S"), KEYS, arms(gap=0.0), preset=PRESET)["gap_closed"]["kl_full"]
    assert none["value"] is None and "not resolved" in none["reason"]


def test_a_gap_that_rests_on_the_baseline_s_run_is_none() -> None:
    own = arms()
    own["V2"] = own["V2"] | {"kl_full": own["C"]["kl_full"] + 0.01}
    found = gap_document(asked("mean(V,V2),C,S"), KEYS, own, preset=PRESET)["gap_closed"]["kl_full"]
    assert found["value"] is None and "baseline-dependent" in found["reason"]
    assert KEYS.rows == 10 * ROWS
