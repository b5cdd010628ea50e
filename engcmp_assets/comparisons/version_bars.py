"""The paired bar of each pair of the newest version and the one before it, from the scored rows of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engcmp_assets.kernel.names import scored_rows
from engcmp_assets.kernel.protocol import PanelPlan
from engcmp_assets.kernel.records import ArmKey, Missing
from engcmp_assets.kernel.review.paired_bar import PairedBar, paired_bar
from engcmp_assets.kernel.row_table import RowTable, row_table
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.version_alerts import newest_pairs
from engcmp_assets.kernel.work import Session, output_blob

_GENERATED = "generated"


def version_bars(session: Session, pairs: Sequence[Mapping[str, Any]]) -> dict[str, PairedBar | Missing]:
    """By pair: the bar on the first panel with generated rows, their top-1 and a distance from the reference; else why there is none."""
    return {pair["pair_id"]: _bar(session, pair) for pair in newest_pairs(pairs)}


def _bar(session: Session, pair: Mapping[str, Any]) -> PairedBar | Missing:
    for name, plan in session.study.protocol.panels.items():
        kl = next((one for one in plan.measures if one.startswith("kl_")), None)
        if _GENERATED not in plan.roles or kl is None or "top1" not in plan.measures:
            continue
        candidate, baseline = (_rows(session, pair[side], name, plan, kl) for side in ("candidate", "baseline"))
        if candidate is None or baseline is None:
            return Missing(f"the rows of panel {name} were not scored on both sides")
        return paired_bar(
            candidate_top1=candidate.per_row("top1"), baseline_top1=baseline.per_row("top1"), candidate_kl=candidate.per_row(kl),
            baseline_kl=baseline.per_row(kl), windows=candidate.keys["window_id"].tolist(), roles=candidate.keys["role"].tolist(),
            same_engine=True,
        )  # fmt: skip
    return Missing("no panel has generated rows with their top-1 and a distance from the reference")


def _rows(session: Session, arm: str, panel: str, plan: PanelPlan, kl: str) -> RowTable | None:
    done = session.current("scores", ArmKey.parse(arm))
    if done is None:
        return None
    columns = read_parquet(session.store.path(output_blob(done.receipt, scored_rows(panel))))
    path = session.study.protocol.capture.main_path(panel)
    if not (np.isin(columns["role"], [_GENERATED]) & (columns["score_path"] == path)).any():
        return None
    return row_table(columns, ("top1", kl), roles=[_GENERATED], path=path, where=f"scores of {arm}, panel {panel}")
