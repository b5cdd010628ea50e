"""How many looks share one error rate: what is looked at twice counts once."""

import numpy as np
import pytest

from engcmp_assets.kernel.looks import Looks, different_populations
from engcmp_assets.kernel.uncertainty import PANEL


def looks(*populations: str, primary: tuple[str, ...] = ("kl_full",)) -> Looks:
    return Looks(("kl_full", "nll", "top1"), populations, frozenset(primary), PANEL, 0.95)


@pytest.mark.parametrize(
    ("populations", "family"),
    [
        (("all",), 2),  # three measures on all rows, of which one is primary
        (("all", "block:code"), 2),  # the one block is all rows
        (("all", "block:chat", "block:code"), 8),
    ],
)
def test_a_panel_of_one_block_has_the_family_of_its_rows(populations: tuple[str, ...], family: int) -> None:
    assert looks(*populations).family == family


def test_a_family_has_at_least_one_look() -> None:
    assert looks("all", "block:code", primary=("kl_full", "nll", "top1")).family == 1


def test_populations_of_the_same_rows_are_one_look() -> None:
    every, first, second = np.ones(10, bool), np.arange(10) < 4, np.arange(10) >= 4
    assert different_populations([every, every.copy()]) == 1
    assert different_populations([every, first, second, first.copy()]) == 3
    # Rows beyond the last whole byte count too.
    assert different_populations([np.arange(10) < 8, np.arange(10) < 9]) == 2
