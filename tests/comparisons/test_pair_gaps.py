"""A setting's share of a gap: known on planted rows, withheld without a gap, and the same from the verifier's own Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planted_gaps import (
    CLUSTERS,
    FORK,
    GAP,
    GAP_LOOKS,
    GAP_PARTS,
    GAP_PLAN,
    LONG,
    SETTING,
    SHIPPED,
    gap_table,
    planted_gap,
)

from engcmp_assets.comparisons.gaps import PanelGap, gap_document
from engcmp_assets.comparisons.pairs import figure_record
from engcmp_assets.export.verifier.figures import Figures, _whose_gap_faults
from engcmp_assets.export.verifier.intervals import Clusters, closed_interval
from engcmp_assets.export.verifier.tables import ArmRows
from engcmp_assets.kernel.differences import compare
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.records import plain
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


def test_the_share_at_one_context_length_is_a_figure_of_its_own() -> None:
    """As the seeds have it: a setting that closes 59 % of the gap at 8-16K, and nothing elsewhere."""
    shipped = gap_table(0.06, 2)
    long = shipped.keys["bucket"] == LONG
    values = shipped.values["kl_full"] - np.where(long, 0.59 * (0.06 - 0.04), 0.0)
    setting = replace(shipped, values={"kl_full": values})
    own = PanelGap("pb", "kl_full", gap_table(0.04, 1), shipped, setting, GAP_LOOKS)
    figures = {one["population"]: one for one in gap_document("study", GAP_PLAN, GAP, [own])["figures"]}
    assert tuple(figures) == GAP_PARTS and {one["family"] for one in figures.values()} == {GAP_LOOKS.different}
    at = figures[f"bucket:{LONG}"]
    assert at["figure_id"] == f"study/pair/s-vs-c/pb/bucket:{LONG}/gap_closed"
    assert at["value"] == pytest.approx(0.59, abs=0.01) and at["interval"]["low"] < 0.59 < at["interval"]["high"]
    assert (at["rows"], at["clusters"]) == (54, 9)
    assert figures["all"]["value"] == pytest.approx(0.59 * 54 / 60, abs=0.01)
    code = figures[f"block:code,bucket:{LONG}"]
    assert code["clusters"] == CLUSTERS // 2  # too few to resolve the gap, so there is no share of it
    assert "no share of it can be closed" in code["value"]["missing"] and "missing" in code["interval"]


def tampered(change: Callable[[dict[str, Any]], None]) -> list[str]:
    """What the bundle's verifier says of a gap whose document was changed, with the rows of all three arms at hand."""
    document = json.loads(json.dumps(planted_gap(0.05)))
    change(document["figures"][0])
    tables = {FORK: gap_table(0.04, 1), SHIPPED: gap_table(0.06, 2), SETTING: gap_table(0.05, 3)}
    rows = {
        arm: ArmRows(
            {name: one.keys[name].tolist() for name in ("block", "bucket", "cluster")},
            {"kl_full": {"1.1": one.per_row("kl_full").tolist()}},
        )
        for arm, one in tables.items()
    }

    class Own(Figures):
        def __init__(self) -> None:
            self.recomputed = self.by_chain = 0

        def _table(self, arm: str, panel: str, score_path: str) -> ArmRows | None:
            del panel, score_path
            return rows[arm]

    pair = GAP_PLAN.model_dump() | {"gap": document}
    between = compare(
        RunValues(("1.1",), tables[SHIPPED].values["kl_full"]), RunValues(("1.1",), tables[FORK].values["kl_full"]),
        tables[FORK].keys["cluster"].tolist(), preset=GAP_LOOKS.preset, primary=True, family=GAP_LOOKS.family,
    )  # fmt: skip
    gap_pair = {
        "figures": [
            {
                "figure_id": "gap", "panel": "pa", "population": "all", "measure": "kl_full", "verdict": between.verdict.word,
                "value": between.difference.value, "interval": plain(between.interval95),
            }
        ]
    }  # fmt: skip
    judged = {"replicates": 400, "seed": 7, "level": 0.95}
    figure = document["figures"][0]
    return [
        str(one)
        for one in (*Own()._gap_faults("here", pair, figure, judged), *_whose_gap_faults("here", gap_pair, figure))
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.update(value=0.9), "is 0.9; its rows give"),
        (lambda one: one["interval"].update(low=0.49), "its interval is"),
        (lambda one: one["interval_bonferroni"].update(high=0.51), "its interval is"),
        (lambda one: one.update(family=1), "its interval is"),
        (lambda one: one.update(rows=600), "states 600 rows"),
        (lambda one: one["means"].update(setting=0.03), "the mean of its setting is 0.03"),
        (lambda one: one["gap"].update(difference=0.04), "its gap is 0.04"),
        (lambda one: one["gap"]["interval"].update(low=0.0199), "gap says otherwise"),
        (
            lambda one: one.update(value={"missing": "?"}, gap=one["gap"] | {"verdict": "not resolved"}),
            "gap says otherwise",
        ),
    ],
)
def test_a_gap_that_was_tampered_with_is_found_and_named(change: Callable[[dict[str, Any]], None], said: str) -> None:
    assert tampered(lambda _figure: None) == []
    found = tampered(change)
    assert found and any(said in one and "gap_closed" in one for one in found), found


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
