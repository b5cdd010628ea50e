"""A setting's share of a gap: known on planted rows, withheld without a gap, and the same from the verifier's own Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_gaps import CLUSTERS, GAP, GAP_LOOKS, GAP_PLAN, gap_table, planted_gap

from engcmp_assets.comparisons.gaps import PanelGap, gap_document
from engcmp_assets.comparisons.pairs import figure_record
from engcmp_assets.export.verifier.intervals import Clusters, closed_interval
from engcmp_resources.errors import EngcmpError


def over_all(setting: float, candidate: float = 0.06) -> dict[str, Any]:
    figure = planted_gap(setting, candidate)["figures"][0]
    figure_record(figure)  # what a receipt holds of it
    return dict(figure)


@pytest.mark.parametrize(("setting", "share"), [(0.06, 0.0), (0.05, 0.5), (0.04, 1.0), (0.07, -0.5)])
def test_the_share_is_what_was_planted_and_its_interval_holds_it(setting: float, share: float) -> None:
    figure = over_all(setting)
    assert figure["value"] == pytest.approx(share, abs=0.03) and figure["gap"]["verdict"] == "resolved"
    for ends in (figure["interval"], figure["interval_bonferroni"]):
        assert ends["low"] <= figure["value"] <= ends["high"]
    wide, narrow = figure["interval_bonferroni"], figure["interval"]
    assert wide["low"] <= narrow["low"] and narrow["high"] <= wide["high"]
    assert figure["figure_id"] == "study/pair/s-vs-c/pa/all/gap_closed" and (figure["rows"], figure["clusters"]) == (
        60,
        10,
    )


def test_of_a_gap_that_may_be_none_no_share_is_given() -> None:
    figure = over_all(0.05, candidate=0.04)
    assert "no share of it can be closed" in figure["value"]["missing"] and "missing" in figure["interval"]


def test_few_documents_give_a_share_without_an_interval() -> None:
    few = planted_gap(0.05)["figures"][1]  # code: five of the ten windows
    assert few["clusters"] == CLUSTERS // 2 and ("missing" in few["interval"] or "missing" in few["value"])


def test_other_rows_are_refused() -> None:
    other = gap_table(0.05, 3)
    moved = replace(other, keys={**other.keys, "next_token": other.keys["next_token"] + 1})
    own = PanelGap("pa", "kl_full", gap_table(0.04, 1), gap_table(0.06, 2), moved, GAP_LOOKS)
    with pytest.raises(EngcmpError, match="differ in their rows on panel pa"):
        gap_document("study", GAP_PLAN, GAP, [own])


def test_plain_python_gives_the_same_interval() -> None:
    figure = over_all(0.05)
    tables = (gap_table(0.04, 1), gap_table(0.06, 2), gap_table(0.05, 3))
    groups = [Clusters(one.per_row("kl_full").tolist(), one.keys["cluster"].tolist()) for one in tables]
    ends = closed_interval(groups, replicates=400, seed=7, level=0.95)
    assert ends == pytest.approx((figure["interval"]["low"], figure["interval"]["high"]), rel=1e-12)
