"""What the checks of this package share: columns that must pair up, whether a difference stands, numbers in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.exact_sums import exact_sum
from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, ClusterSums, Estimate, Preset, excludes_zero
from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Names = Sequence[str] | npt.NDArray[Any]

SIGN_FLIP_P = 0.05  # under 8 clusters the exact test must agree (MEASURES section 5)


def strings(names: Names) -> npt.NDArray[np.str_]:
    """A column of names as an array of strings [rows], so that ids compare the same from a list and from an array."""
    return np.asarray(names, dtype=np.str_)


def numbers(values: npt.ArrayLike) -> Float64:
    """A column of values as float64 [rows]."""
    return np.asarray(values, dtype=np.float64)


def mean_of(values: Float64) -> float:
    """The mean of one or more values; rounded once, so that their order does not matter."""
    return exact_sum(values) / len(values)


def check_rows(**columns: Any) -> int:
    """The number of rows that all `columns` have. Raises EngcmpError that names the columns which differ, and for no row."""
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) != 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise EngcmpError(f"columns differ in length: {listed}", remedy="give one entry a row in every column")
    rows = next(iter(sizes.values()))
    if rows == 0:
        raise EngcmpError(f"no row in {', '.join(sizes)}", remedy="give the rows that the figure averages")
    return rows


def stands(estimate: Estimate) -> bool:
    """Whether a difference is told from zero, as a verdict needs it (MEASURES section 5): its interval excludes it.

    Under 8 clusters the exact sign-flip test must agree.
    """
    if not excludes_zero(estimate.interval):
        return False
    if estimate.clusters >= BOOTSTRAP_CLUSTERS:
        return True
    return not isinstance(estimate.sign_flip_p, Missing) and estimate.sign_flip_p < SIGN_FLIP_P


def ratio_interval(top: ClusterSums, bottom: ClusterSums, preset: Preset, level: float) -> Interval | Missing:
    """Interval of summed `top` over summed `bottom`, both on the same clusters and resampled jointly; Missing under 8 clusters."""
    size = len(top.ids)
    if size < BOOTSTRAP_CLUSTERS:
        return Missing(f"{many(size, 'cluster')}: the interval of a ratio needs at least {BOOTSTRAP_CLUSTERS}")
    if (bottom.sums <= 0).any():
        return Missing("what is divided by is 0 in a whole cluster, so a resample's ratio may have no value")
    drawn = replicate_ratios(top.sums, bottom.sums, drawn_counts(size, preset.replicates, preset.seed))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], method="linear").tolist()
    return Interval(low, high, level, f"cluster bootstrap, {preset.replicates:,} replicates, seed {preset.seed}")


def value_of(estimate: Estimate) -> float:
    """The value of an estimate that has rows. Raises EngcmpError with the reason for one that has none."""
    if isinstance(estimate.value, Missing):
        raise EngcmpError(f"a figure has no value: {estimate.value.reason}", remedy="give the rows that it averages")
    return estimate.value


def said(value: float | Missing) -> str:
    """A signed number with four digits, or the reason why there is none."""
    return f"({value.reason})" if isinstance(value, Missing) else f"{value:+.4g}"


def between(interval: Interval | Missing) -> str:
    """An interval in brackets, or the reason why there is none."""
    if isinstance(interval, Missing):
        return f"(no interval: {interval.reason})"
    return f"[{interval.low:+.4g}, {interval.high:+.4g}]"


def many(count: int, thing: str) -> str:
    """`count` and the thing, in the plural unless it is one."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
