"""What a panel could have excluded, and the smallest effect that it would have resolved (MEASURES section 4, "Bound")."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy.typing as npt
import scipy

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared import Names, check_rows, many, numbers, said, stands, strings
from engcmp_assets.kernel.uncertainty import (
    BOOTSTRAP_CLUSTERS,
    INTERVAL_CLUSTERS,
    Estimate,
    Preset,
    by_cluster,
    population_mean,
)
from engcmp_resources.errors import EngcmpError

POWER = 0.8
_NO_WIDTH = 1e-12  # relative: a spread below it is rounding
_STEPS = 200  # of a bisection: more than a float64 has bits


@dataclass(frozen=True, slots=True)
class Power:
    """All in the measure's unit. `excluded_above`, `excluded_below`: effects beyond them lie outside the interval.

    `half_width` is that of the interval at the observed spread between clusters; `smallest_effect` the true difference whose interval would
    exclude zero with probability `power`; `power_at` the probability of that for the effect that was asked about.
    """

    difference: Estimate
    excluded_above: float | Missing
    excluded_below: float | Missing
    half_width: float | Missing
    standard_error: float | Missing
    smallest_effect: float | Missing
    power: float
    power_at: float | Missing
    resolved: bool
    sentence: str


def panel_power(
    differences: npt.ArrayLike,
    clusters: Names,
    *,
    preset: Preset,
    level: float = 0.95,
    power: float = POWER,
    effect: float | None = None,
) -> Power:
    """What the panel resolves, from the spread of `differences` [rows] between `clusters` [rows].

    The standard error is the clustered one of a ratio (8 clusters or more), or that of the mean of cluster means (3 to 7); the test is a t
    test with G - 1 degrees of freedom, and its power comes from the noncentral t distribution. Missing under 3 clusters, and where no
    cluster differs from another. Raises EngcmpError for columns that do not pair up, values not finite, a power outside (0.5, 1), and
    an effect that is 0.
    """
    values, names = numbers(differences), strings(clusters)
    check_rows(differences=values, clusters=names)
    if not 0.5 < power < 1 or effect == 0:  # noqa: PLR2004 - more than a half
        raise EngcmpError(
            f"a power of {power} for an effect of {effect}", remedy="give a power from 0.5 to 1, no effect of 0"
        )
    estimate = population_mean(values, names, preset=preset, level=level, kind="difference")
    error = _error(values, names, estimate)
    if isinstance(error, Missing):
        text = f"The difference is {said(estimate.value)}; {error.reason}."
        return Power(estimate, error, error, error, error, error, power, error, stands(estimate), text)
    freedom = estimate.clusters - 1
    at: float | Missing = Missing("no effect was asked about")
    smallest, ends = error * _needed(freedom, level, power), estimate.interval
    low, high = (ends, ends) if isinstance(ends, Missing) else (ends.low, ends.high)
    text = (
        f"The difference is {said(estimate.value)}; effects above {said(high)} or below {said(low)} are excluded, and "
        f"{smallest:.3g} is the smallest that {many(estimate.clusters, 'cluster')} resolve with {100 * power:.3g} % power"
    )
    if effect is not None:
        at = _reached(abs(effect) / error, freedom, level)
        text += f"; an effect of {abs(effect):.3g} would be resolved with {100 * at:.3g} %"
    half = ends if isinstance(ends, Missing) else (ends.high - ends.low) / 2
    return Power(estimate, high, low, half, error, smallest, power, at, stands(estimate), f"{text}.")


def _error(values: npt.ArrayLike, clusters: Names, estimate: Estimate) -> float | Missing:
    if estimate.clusters < INTERVAL_CLUSTERS:
        return Missing(f"{many(estimate.clusters, 'cluster')}: no power without at least {INTERVAL_CLUSTERS}")
    means = by_cluster(values, clusters).means
    if float(means.max() - means.min()) <= _NO_WIDTH * float(abs(means).max()):
        return Missing(f"every cluster reads {means[0]:.4g}: with no spread, no effect can be excluded")
    if estimate.clusters >= BOOTSTRAP_CLUSTERS:
        return estimate.standard_error
    return float(means.std(ddof=1)) / math.sqrt(estimate.clusters)


def _reached(standardised: float, freedom: int, level: float) -> float:
    """Probability that a two-sided t test at `level` excludes zero where the true effect is `standardised` standard errors."""
    critical = float(scipy.special.stdtrit(freedom, 0.5 + level / 2))
    above = 1 - float(scipy.special.nctdtr(freedom, standardised, critical))
    below = float(scipy.special.nctdtr(freedom, standardised, -critical))
    return above + below


def _needed(freedom: int, level: float, power: float) -> float:
    """The effect in standard errors that is told from zero with probability `power`, by bisection."""
    low, high = 0.0, 1.0
    while _reached(high, freedom, level) < power:
        high *= 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _reached(middle, freedom, level) < power else (low, middle)
    return high
