"""The looks that a protocol declares: which (measure, population) pairs are primary, and how many share one error rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        """Number of looks that are not primary: the divisor of the Bonferroni level, at least 1."""
        return max(1, len(self.measures) * len(self.populations) - len(self.primary))

    def is_primary(self, measure: str, population: str) -> bool:
        return population == ALL and measure in self.primary


def declared_looks(statistics: Statistics, plan: PanelPlan, populations: Sequence[str]) -> Looks:
    """The looks that are declared at a panel, over the populations that it has."""
    return Looks(
        tuple(plan.measures), tuple(populations), frozenset(plan.primary),
        Preset(statistics.replicates, statistics.seed), statistics.level,
    )  # fmt: skip
