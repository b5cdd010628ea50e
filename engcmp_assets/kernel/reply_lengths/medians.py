"""The median length of an arm's replies under a cap, with an exact interval (MEASURES section 7)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import scipy

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.reply_lengths.records import LEFT_OUT, ReplyLength


@dataclass(frozen=True, slots=True)
class CappedMedian:
    """`value` and `interval` in tokens; of `replies` that count `capped` ones are lower bounds, and `left_out` others do not count."""

    value: float | Missing
    interval: Interval | Missing
    replies: int
    capped: int
    left_out: Mapping[str, int]


def capped_median(lengths: Sequence[ReplyLength], *, level: float = 0.95) -> CappedMedian:
    """The median of the finished and capped replies: with one shared cap the Kaplan-Meier median is that of the ordered lengths.

    The interval lies between two order statistics, by the binomial law of how many lie below the median: exact, whatever law the lengths
    follow. Where the median or an end is a capped reply's it is known only from below, and Missing says by what.
    """
    left = Counter(one.ending for one in lengths if one.ending in LEFT_OUT)
    kept = sorted(
        math.inf if one.ending == "capped" else float(one.tokens) for one in lengths if one.ending not in LEFT_OUT
    )
    bounds = [one.tokens for one in lengths if one.ending == "capped"]
    size = len(kept)
    if not size:
        none = Missing("no reply finished or was capped")
        return CappedMedian(none, none, 0, 0, dict(sorted(left.items())))
    middle = (kept[(size - 1) // 2] + kept[size // 2]) / 2
    value: float | Missing = middle
    if math.isinf(middle):
        value = Missing(
            f"half or more of the {size} replies were capped: the median is at least {min(bounds):,} tokens"
        )
    return CappedMedian(value, _interval(kept, bounds, level), size, len(bounds), dict(sorted(left.items())))


def _interval(kept: Sequence[float], bounds: Sequence[int], level: float) -> Interval | Missing:
    """Order statistics l and n + 1 - l with P(Binomial(n, 1/2) < l) at most half of what the level leaves."""
    size = len(kept)
    lower = int(scipy.stats.binom.ppf((1 - level) / 2, size, 0.5))
    # ppf gives the first k with P(X <= k) at or above the tail: the largest l with P(X < l) at or below it.
    if lower < 1 or scipy.stats.binom.cdf(lower - 1, size, 0.5) > (1 - level) / 2:
        return Missing(f"{size} replies are too few for an interval of the median at {level:.0%}")
    low, high = kept[lower - 1], kept[size - lower]
    if math.isinf(high):
        known = f"at least {min(bounds):,}" if math.isinf(low) else f"from {low:,.0f}"
        return Missing(f"bounded below: {known} tokens, the upper end lies beyond the cap")
    return Interval(low, high, level, f"order statistics {lower} and {size + 1 - lower} of {size}")
