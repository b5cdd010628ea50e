"""Whether a result depends on which run of the baseline it is read against (MEASURES section 4, "Sensitivity")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared import many
from engcmp_resources.errors import EngcmpError


@dataclass(frozen=True, slots=True)
class RunResult:
    """The difference against one run of the baseline (or against their mean), and whether it is told from zero."""

    run: str
    value: float
    stands: bool


@dataclass(frozen=True, slots=True)
class BaselineChoice:
    """The range of a difference over all runs of the baseline, in the measure's unit.

    `swing` is high - low, `swing_share` the same as a share of the headline's size. `found`: another choice of the run flips the verdict.
    """

    low: float
    high: float
    lowest_run: str
    highest_run: str
    swing: float | Missing
    swing_share: float | Missing
    standing: tuple[str, ...]
    found: bool
    sentence: str


def baseline_choice(headline: RunResult, runs: Sequence[RunResult]) -> BaselineChoice:
    """Set the headline (against the mean over all runs) beside the difference against every single run.

    The verdict flips where a run says another thing than the headline: one stands and the other does not, or both do on opposite sides.
    With one run there is nothing to choose from: the swing is Missing. Raises EngcmpError for no run and for a run given twice.
    """
    names = [one.run for one in runs]
    if not runs or len(set(names)) != len(names):
        raise EngcmpError(f"baseline runs {names}", remedy="give every run of the baseline once")
    lowest, highest = min(runs, key=lambda one: one.value), max(runs, key=lambda one: one.value)
    flipping = [one for one in runs if _says(one) != _says(headline)]
    swing: float | Missing = highest.value - lowest.value
    share: float | Missing = Missing("the difference is 0")
    if len(runs) == 1:
        swing = share = Missing("one baseline run was captured: nothing to choose from")
    elif headline.value != 0:
        share = (highest.value - lowest.value) / abs(headline.value)
    standing = tuple(one.run for one in runs if one.stands)
    text = (
        f"The difference is {headline.value:+.4g} against the mean of {many(len(runs), 'baseline run')} and runs from "
        f"{lowest.value:+.4g} ({lowest.run}) to {highest.value:+.4g} ({highest.run})"
    )
    if flipping:
        end = f"; against {', '.join(one.run for one in flipping)} the verdict is another one"
    elif isinstance(swing, Missing):
        end = f"; {swing.reason}"
    else:
        end = "; every run gives the same verdict"
    return BaselineChoice(
        low=lowest.value, high=highest.value, lowest_run=lowest.run, highest_run=highest.run, swing=swing,
        swing_share=share, standing=standing, found=bool(flipping), sentence=f"{text}{end}.",
    )  # fmt: skip


def _says(one: RunResult) -> int:
    """0 where zero is not excluded, else the side."""
    if not one.stands:
        return 0
    return 1 if one.value > 0 else -1
