"""Three arms whose distances are planted, and the gap between two of them that the third closes in part. No tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from engcmp_assets.comparisons.gaps import PanelGap, gap_document
from engcmp_assets.kernel.looks import Looks
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.row_table import RowTable
from engcmp_assets.kernel.uncertainty import Preset

ROWS, CLUSTERS = 60, 10
FORK, SHIPPED, SETTING = "K4/fork@v1", "K4/afd@v3", "K4/afd@v3+w8a16"
GAP_PLAN = ComparisonPlan(pair_id="s-vs-c", label="W8A16", candidate=SETTING, baseline=SHIPPED, closes="c-vs-b")
GAP = ComparisonPlan(pair_id="c-vs-b", label="AFD beside the fork", candidate=SHIPPED, baseline=FORK)
LONG = "8-16K"
GAP_PARTS = ("all", "block:code", f"bucket:{LONG}", f"block:code,bucket:{LONG}")
GAP_LOOKS = Looks(("kl_full",), GAP_PARTS, frozenset({"kl_full"}), Preset(400, 7), 0.95, 3)


def gap_table(level: float, seed: int) -> RowTable:
    """Rows whose distance lies around `level`, the windows' own spread shared by all arms."""
    shared = np.random.default_rng(0).uniform(0.0, 0.02, CLUSTERS).repeat(ROWS // CLUSTERS)
    values = shared + level + np.random.default_rng(seed).normal(0.0, 0.001, ROWS)
    place = np.arange(ROWS)
    names = np.array([f"w{number:02}" for number in range(CLUSTERS)]).repeat(ROWS // CLUSTERS)
    keys: dict[str, Any] = {
        "window_id": names, "position": place, "next_token": place, "cluster": names,
        "block": np.where(place < ROWS // 2, "code", "prose"), "bucket": np.where(place < ROWS - ROWS // CLUSTERS, LONG, "0-2K"),
        "role": np.full(ROWS, "context"), "raw_row_sha256": names,
    }  # fmt: skip
    return RowTable(("1.1",), keys, {"kl_full": values[None, :]})


def planted_gap(setting: float, candidate: float = 0.06) -> dict[str, Any]:
    own = PanelGap("pa", "kl_full", gap_table(0.04, 1), gap_table(candidate, 2), gap_table(setting, 3), GAP_LOOKS)
    return gap_document("study", GAP_PLAN, GAP, [own])
