"""The looks that a protocol declares: which (measure, population) pairs are primary, and how many share one error rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.protocol import BY_BLOCK, PanelPlan, Protocol, Statistics
from engcmp_assets.kernel.row_table import RowTable
from engcmp_assets.kernel.uncertainty import Preset


@dataclass(frozen=True, slots=True)
class Looks:
    """Measures by populations. Primary are the protocol's primary measures on all rows; all others are one family."""

    measures: tuple[str, ...]
    populations: tuple[str, ...]
    primary: frozenset[str]
    preset: Preset
    level: float
    different: int
    """How many of the populations are of different rows: a panel's only block and all rows are one look."""

    @property
    def family(self) -> int:
        """Number of looks that are not primary: the divisor of the Bonferroni level, at least 1."""
        return max(1, len(self.measures) * self.different - len(self.primary))

    def is_primary(self, measure: str, population: str) -> bool:
        return population == ALL and measure in self.primary


def declared_looks(statistics: Statistics, plan: PanelPlan, table: RowTable) -> Looks:
    """The looks that are declared at a panel, over the populations that its rows have."""
    populations = table.populations(plan.by)
    return Looks(
        tuple(plan.measures), populations, frozenset(plan.primary), Preset(statistics.replicates, statistics.seed),
        statistics.level, different_populations([table.rows_of(name) for name in populations]),
    )  # fmt: skip


def declared_parts(protocol: Protocol) -> dict[str, tuple[str, ...]]:
    """By which parts of their rows panels are looked at, of those that are not looked at by kind of content alone."""
    return {name: plan.by for name, plan in protocol.panels.items() if plan.by != BY_BLOCK}


def different_populations(chosen: Sequence[npt.NDArray[np.bool_]]) -> int:
    """How many of the populations, each bool [rows], are of different rows: those of the same rows are one look."""
    return len({np.packbits(rows).tobytes() for rows in chosen})
