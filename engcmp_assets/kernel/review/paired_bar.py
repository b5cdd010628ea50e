"""The one-sided paired bar: whether a candidate is shown to be within a margin of its baseline (MEASURES sections 4, 5).

`paired_bar` is the bar of `--preset paired-bar`. `full_bar` also wants two windows or more, both runs inside the absolute bar, and no
tripwire of the data set tripped. The bar is defined for changes within one engine; across engines it is labelled "by analogy".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy

from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared import Bools, Float64, Names, check_rows, many, mean_of, numbers, said, strings
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, INTERVAL_CLUSTERS, ClusterSums, Preset, by_cluster
from engcmp_resources.errors import EngcmpError

PAIRED_BAR = Preset(replicates=5_000, seed=20260829)
TOP1_MARGIN = 0.005
KL_MARGIN = 0.005  # nats
LEAST_TOP1, MOST_KL, LEAST_WINDOW_TOP1 = 0.90, 0.06, 0.80  # the absolute bar, unless the data set is calibrated
GENERATED = "generated"

_LEVEL = 0.95
_Z = 1.6448536269514722  # the normal quantile at 0.95, as the bar's definition writes it
_ROUNDING = 1e-12  # a share of exactly 0.90 must pass however it was summed
_TWO = 2  # windows that a spread needs

Word = Literal["within bar", "not shown within bar"]


@dataclass(frozen=True, slots=True)
class BarSide:
    """One statistic of the bar: how much worse the candidate is, its one-sided 95 % upper bound, and the margin (same unit).

    `within`: the bound is strictly below the margin. `t_upper` stands beside the bound under 8 windows, where a bootstrap is too narrow;
    the bar's definition does not use it.
    """

    worse_by: float
    upper: float | Missing
    margin: float
    within: bool
    t_upper: float | Missing


@dataclass(frozen=True, slots=True)
class PairedBar:
    """`top1` is a loss (share of rows), `kl` a rise (nats), both on generated rows: above 0 the candidate is worse."""

    top1: BarSide
    kl: BarSide
    windows: int
    rows: int
    by_analogy: bool
    verdict: Word
    sentence: str


@dataclass(frozen=True, slots=True)
class AbsoluteBar:
    """One run alone, on generated rows. `failures` says what lies outside; none where the run is inside the bar."""

    top1: float
    kl: float
    lowest_window: str
    lowest_window_top1: float
    failures: tuple[str, ...]

    @property
    def within(self) -> bool:
        return not self.failures


@dataclass(frozen=True, slots=True)
class Tripwire:
    """A guard of the data set: what it reads, its limit, and whether it tripped."""

    name: str
    value: float
    limit: float
    tripped: bool


@dataclass(frozen=True, slots=True)
class FullBar:
    """The paired bar with everything that the `full` one adds; `failures` names each part that does not hold."""

    verdict: Word
    failures: tuple[str, ...]
    sentence: str


def paired_bar(
    *,
    candidate_top1: npt.ArrayLike,
    baseline_top1: npt.ArrayLike,
    candidate_kl: npt.ArrayLike,
    baseline_kl: npt.ArrayLike,
    windows: Names,
    roles: Names,
    same_engine: bool,
    top1_margin: float = TOP1_MARGIN,
    kl_margin: float = KL_MARGIN,
    preset: Preset = PAIRED_BAR,
) -> PairedBar:
    """Judge a candidate against a baseline on the same rows; all columns are [rows], and only rows of role `generated` count.

    Loss and rise are ratios of sums over windows; the same draws of windows serve both. The bound of the loss is itself + z times the
    standard deviation of the replicates (ddof 1), that of the rise the replicates' type-7 95 % quantile. With one window there is no
    spread, so no bound, and nothing is shown. Raises EngcmpError for columns that do not pair up, no generated row, values not finite, and
    a margin that is not above 0.
    """
    columns = {
        "candidate_top1": numbers(candidate_top1), "baseline_top1": numbers(baseline_top1),
        "candidate_kl": numbers(candidate_kl), "baseline_kl": numbers(baseline_kl),
    }  # fmt: skip
    kept, names = _generated(windows, roles, **columns)
    if min(top1_margin, kl_margin) <= 0:
        raise EngcmpError(f"margins {top1_margin} and {kl_margin}", remedy="give margins above 0")
    loss = by_cluster((columns["baseline_top1"] - columns["candidate_top1"])[kept], names)
    rise = by_cluster((columns["candidate_kl"] - columns["baseline_kl"])[kept], names)
    one_window = Missing("1 window has no spread, so there is no bound")
    upper: tuple[float | Missing, float | Missing] = (one_window, one_window)
    if len(loss.ids) >= _TWO:
        drawn = drawn_counts(len(loss.ids), preset.replicates, preset.seed)
        losses, rises = (replicate_ratios(side.sums, side.counts, drawn) for side in (loss, rise))
        upper = (
            loss.mean + _Z * float(losses.std(ddof=1)),
            float(np.quantile(rises, _LEVEL, method="linear")),
        )
    top1, kl = _side(loss, upper[0], top1_margin), _side(rise, upper[1], kl_margin)
    word: Word = "within bar" if top1.within and kl.within else "not shown within bar"
    text = _sentence(word, top1, kl, windows=len(loss.ids), by_analogy=not same_engine)
    return PairedBar(top1, kl, len(loss.ids), int(kept.sum()), not same_engine, word, text)


def absolute_bar(
    top1: npt.ArrayLike,
    kl: npt.ArrayLike,
    *,
    windows: Names,
    roles: Names,
    least_top1: float = LEAST_TOP1,
    most_kl: float = MOST_KL,
    least_window_top1: float = LEAST_WINDOW_TOP1,
) -> AbsoluteBar:
    """Judge one run by itself, on its generated rows; columns are [rows], the limits by default those of no calibrated data set.

    Raises EngcmpError for columns that do not pair up, no generated row and values not finite.
    """
    same, far = numbers(top1), numbers(kl)
    kept, names = _generated(windows, roles, top1=same, kl=far)
    groups = by_cluster(same[kept], names)
    share, distance = groups.mean, by_cluster(far[kept], names).mean
    lowest = int(groups.means.argmin())
    window, window_share = groups.ids[lowest], float(groups.means[lowest])
    failures = []
    if share + _ROUNDING < least_top1:
        failures.append(f"top-1 {share:.4g} is below {least_top1:g}")
    if distance > most_kl:
        failures.append(f"KL {distance:.4g} nats is above {most_kl:g}")
    if window_share + _ROUNDING < least_window_top1:
        failures.append(f"top-1 of window {window}, {window_share:.4g}, is below {least_window_top1:g}")
    return AbsoluteBar(share, distance, window, window_share, tuple(failures))


def share_tripwire(name: str, values: npt.ArrayLike, *, least: float) -> Tripwire:
    """Trips where the mean of `values` [rows] (0/1) of one arm is below `least`."""
    own = numbers(values)
    check_rows(values=own)
    mean = mean_of(own)
    return Tripwire(name, mean, least, mean + _ROUNDING < least)


def loss_tripwire(
    name: str,
    candidate: npt.ArrayLike,
    baseline: npt.ArrayLike,
    *,
    windows: Names,
    most: float,
    preset: Preset = PAIRED_BAR,
) -> Tripwire:
    """Trips where a loss (baseline minus candidate, [rows]) is shown to be above `most`: its 5 % lower bound over resampled windows is."""
    one, two, names = numbers(candidate), numbers(baseline), strings(windows)
    check_rows(candidate=one, baseline=two, windows=names)
    groups = by_cluster(two - one, names)
    replicates = replicate_ratios(
        groups.sums, groups.counts, drawn_counts(len(groups.ids), preset.replicates, preset.seed)
    )
    lower = float(np.quantile(replicates, 1 - _LEVEL, method="linear"))
    return Tripwire(name, lower, most, lower > most)


def rise_tripwire(name: str, candidate: npt.ArrayLike, baseline: npt.ArrayLike, *, most: float) -> Tripwire:
    """Trips where the mean of candidate minus baseline ([rows]) is above `most`."""
    one, two = numbers(candidate), numbers(baseline)
    check_rows(candidate=one, baseline=two)
    rise = mean_of(one - two)
    return Tripwire(name, rise, most, rise > most)


def full_bar(
    paired: PairedBar, *, candidate: AbsoluteBar, baseline: AbsoluteBar, tripwires: Sequence[Tripwire]
) -> FullBar | Missing:
    """The full bar; Missing without the data set's tripwires, because a guard that was not looked at has not held."""
    if not tripwires:
        return Missing("the data set's tripwires were not given")
    failures = [] if paired.verdict == "within bar" else [f"the paired bar: {paired.verdict}"]
    if paired.windows < _TWO:
        failures.append(f"{many(paired.windows, 'window')}, at least {_TWO} are wanted")
    for name, run in (("candidate", candidate), ("baseline", baseline)):
        failures += [f"the {name}'s absolute bar: {failure}" for failure in run.failures]
    failures += [
        f"tripwire {one.name}: {one.value:.4g} against a limit of {one.limit:g}" for one in tripwires if one.tripped
    ]
    word: Word = "not shown within bar" if failures else "within bar"
    text = f"Full bar: {word}" + (f" ({'; '.join(failures)})." if failures else ".")
    return FullBar(word, tuple(failures), text)


def _generated(windows: Names, roles: Names, **columns: Float64) -> tuple[Bools, npt.NDArray[np.str_]]:
    """Which rows are generated, and their windows."""
    names = strings(windows)
    kept: Bools = strings(roles) == GENERATED
    check_rows(windows=names, roles=kept, **columns)
    if not kept.any():
        raise EngcmpError("no generated row", remedy="the bar is of generated rows only: give windows that have some")
    return kept, names[kept]


def _side(groups: ClusterSums, upper: float | Missing, margin: float) -> BarSide:
    within = not isinstance(upper, Missing) and upper < margin
    return BarSide(groups.mean, upper, margin, within, _t_upper(groups))


def _t_upper(groups: ClusterSums) -> float | Missing:
    size = len(groups.ids)
    if size >= BOOTSTRAP_CLUSTERS:
        return Missing(f"{many(size, 'window')}: the bootstrap has enough of them")
    if size < INTERVAL_CLUSTERS:
        return Missing(f"{many(size, 'window')}: a t bound needs at least {INTERVAL_CLUSTERS}")
    half = float(scipy.special.stdtrit(size - 1, _LEVEL)) * float(groups.means.std(ddof=1)) / math.sqrt(size)
    return mean_of(groups.means) + half


def _sentence(word: Word, top1: BarSide, kl: BarSide, *, windows: int, by_analogy: bool) -> str:
    text = (
        f"{word[0].upper()}{word[1:]}{' (by analogy: the bar is defined within one engine)' if by_analogy else ''}: on "
        f"{many(windows, 'window')} top-1 falls by {said(top1.worse_by)}, at most {said(top1.upper)} (margin {top1.margin:g}), and "
        f"KL rises by {said(kl.worse_by)} nats, at most {said(kl.upper)} (margin {kl.margin:g})"
    )
    if isinstance(top1.t_upper, Missing) or isinstance(kl.t_upper, Missing):
        return f"{text}."
    return f"{text}; so few windows want a t bound beside it: {said(top1.t_upper)} and {said(kl.t_upper)}."
