"""The looks that a protocol declares: which (measure, population) pairs are primary, and how many share one error rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.protocol import PanelPlan, Statistics
from engcmp_assets.kernel.uncertainty import Preset


@dataclass(frozen=True, slots=True)
class Looks:
    """Measures by populations. Primary are the protocol's primary measures on all rows; all others are one family."""

    measures: tuple[str, ...]
    populations: tuple[str, ...]
    primary: frozenset[str]
    preset: Preset
    level: float

    @property
    def family(self) -> int:
        """Number of looks that are not primary: the divisor of the Bonferroni level, at least 1.

        Where a panel has one block, that block and all rows are one look.
        """
        others = sum(name != ALL for name in self.populations)
        different = len(self.populations) - (others == 1 and ALL in self.populations)
        return max(1, len(self.measures) * different - len(self.primary))

    def is_primary(self, measure: str, population: str) -> bool:
        return population == ALL and measure in self.primary


def declared_looks(statistics: Statistics, plan: PanelPlan, populations: Sequence[str]) -> Looks:
    """The looks that are declared at a panel, over the populations that it has."""
    return Looks(
        tuple(plan.measures), tuple(populations), frozenset(plan.primary),
        Preset(statistics.replicates, statistics.seed), statistics.level,
    )  # fmt: skip


def different_populations(chosen: Sequence[npt.NDArray[np.bool_]]) -> int:
    """How many of the populations, each bool [rows], are of different rows: those of the same rows are one look."""
    return len({np.packbits(rows).tobytes() for rows in chosen})
