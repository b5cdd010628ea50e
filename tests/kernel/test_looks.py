"""How many looks share one error rate: what is looked at twice counts once."""

import numpy as np
import pytest

from engcmp_assets.kernel.looks import Looks, declared_looks, different_populations
from engcmp_assets.kernel.protocol import PanelPlan, Statistics
from engcmp_assets.kernel.row_table import RowTable
from engcmp_assets.kernel.uncertainty import PANEL


def looks(*populations: str, primary: tuple[str, ...] = ("kl_full",), different: int | None = None) -> Looks:
    count = len(populations) if different is None else different
    return Looks(("kl_full", "nll", "top1"), populations, frozenset(primary), PANEL, 0.95, count)


DECLARED = {
    "label": "", "reference": "full", "rows": "even", "rows_per_window": 4, "roles": ["context"],
    "measures": ["kl_full", "nll", "top1"], "primary": ["kl_full"], "pair_measures": [],
}  # fmt: skip
JUDGED = Statistics(preset="panel", replicates=200, seed=7, level=0.95, cluster="document")


def table(*windows: tuple[str, str]) -> RowTable:
    """A row for each window, given as its block and its bucket; later windows are longer."""
    names = [f"w{place}" for place in range(len(windows))]
    keys = {
        "window_id": names, "position": range(len(windows)), "next_token": range(len(windows)), "cluster": names,
        "block": [block for block, _ in windows], "bucket": [bucket for _, bucket in windows],
    }  # fmt: skip
    return RowTable(("1.1",), {name: np.asarray(list(values)) for name, values in keys.items()}, {})


@pytest.mark.parametrize(
    ("windows", "by", "family"),
    [
        ([("code", "k")] * 2, ["block"], 2),  # the one block is all rows: three measures, of which one is primary
        ([("code", "k"), ("chat", "k")], ["block"], 8),
        ([("code", "k"), ("chat", "k")], ["block", "bucket"], 8),  # the one bucket is all rows
        ([("code", "k"), ("chat", "2k")], ["block", "bucket", "block at bucket"], 8),  # each bucket is one block
        ([("code", "k"), ("chat", "k"), ("chat", "2k")], ["block", "bucket"], 14),
        ([("code", "k"), ("chat", "k"), ("chat", "2k")], ["block at bucket"], 11),
    ],
)
def test_looks_at_the_same_rows_are_one_look(windows: list[tuple[str, str]], by: list[str], family: int) -> None:
    assert declared_looks(JUDGED, PanelPlan.model_validate(DECLARED | {"by": by}), table(*windows)).family == family


def test_without_a_word_the_looks_are_by_kind_of_content_alone() -> None:
    plan = PanelPlan.model_validate(DECLARED)
    assert declared_looks(JUDGED, plan, table(("code", "k"), ("chat", "2k"))).populations == (
        "all",
        "block:chat",
        "block:code",
    )


def test_a_family_has_at_least_one_look() -> None:
    assert looks("all", "block:code", primary=("kl_full", "nll", "top1"), different=1).family == 1


def test_populations_of_the_same_rows_are_one_look() -> None:
    every, first, second = np.ones(10, bool), np.arange(10) < 4, np.arange(10) >= 4
    assert different_populations([every, every.copy()]) == 1
    assert different_populations([every, first, second, first.copy()]) == 3
    # Rows beyond the last whole byte count too.
    assert different_populations([np.arange(10) < 8, np.arange(10) < 9]) == 2
