"""The document of `--gap`: how much of the gap between a baseline and a candidate a setting of the candidate closes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engcmp_assets.file_scores.figures import (
    LEVEL,
    Keys,
    Measures,
    derived_figure,
    ends_of,
    number_of,
    runs_of,
    shared_measures,
)
from engcmp_assets.file_scores.request import GapOf
from engcmp_assets.kernel.derived_figures import gap_closed
from engcmp_assets.kernel.differences import compare
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.uncertainty import Preset

GAP_SCHEMA = "engcmp.score.gap/1"


def gap_document(gap: GapOf, keys: Keys, measures: Mapping[str, Measures], *, preset: Preset) -> dict[str, Any]:
    """`gap-<b>-<c>-<s>.json`: how much of the gap between a baseline b and a candidate c closes with a setting s of the candidate.

    It is given of every measure in which a direction is better, over all rows, and is Missing where the gap itself is not resolved: the
    first measure is the declared look, the others are judged at their Bonferroni level.
    """
    sides = (gap.baseline, gap.candidate, gap.setting)
    shared = [
        name
        for name in shared_measures([arm for side in sides for arm in side.arms], measures)
        if MEASURES[name].better != "neither"
    ]
    every, clusters = np.ones(keys.rows, dtype=np.bool_), keys.cluster.tolist()
    found = {}
    for name in shared:
        b, c, s = (runs_of(side, measures, name, every) for side in sides)
        between = compare(
            c, b, clusters, preset=preset, primary=name == shared[0], family=len(shared), level=LEVEL, measure=name
        )
        closed = gap_closed(
            b.per_row, c.per_row, s.per_row, clusters, gap_verdict=between.verdict.word, preset=preset, level=LEVEL
        )
        found[name] = derived_figure(closed) | {
            "gap": {
                "difference": number_of(between.difference.value),
                "interval95": ends_of(between.interval95),
                "verdict": between.verdict.word,
            }
        }
    return {
        "schema": GAP_SCHEMA,
        "gap": {
            "baseline": list(gap.baseline.arms),
            "candidate": list(gap.candidate.arms),
            "setting": list(gap.setting.arms),
            "gap_closed": "1 - (setting - baseline) / (candidate - baseline)",
        },
        "gap_closed": found,
        "declared": {"primary": shared[0], "looks": len(shared), "level": LEVEL, "preset": plain(preset)},
    }
