"""The one window that carries a result: what is left of a difference without each window in turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared import Names, check_rows, mean_of, numbers, said, stands, strings, value_of
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, INTERVAL_CLUSTERS, Estimate, Preset, population_mean

HALF = 0.5  # of the effect: a window whose removal leaves this share or less carries the result
WORST_ROWS = 10
_TWO = 2
_MAD_TO_SD = 1.4826  # scales a median absolute deviation to the standard deviation of a normal distribution


@dataclass(frozen=True, slots=True)
class WorstRow:
    """A row of the carrying window, by size of candidate minus baseline."""

    window: str
    position: int
    candidate: float
    baseline: float
    difference: float


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The difference without one window. `verdict_changes` is Missing where too few clusters are left for the same method."""

    window: str
    without: Estimate
    moves_by: float
    halves: bool
    verdict_changes: bool | Missing
    robust_distance: float | Missing

    @property
    def carries(self) -> bool:
        return self.halves or self.verdict_changes is True


@dataclass(frozen=True, slots=True)
class CarryingWindows:
    """`low` and `high`: the leave-one-window-out range. `carrying`: windows that carry the result, the one that moves it most first.

    `worst_rows` are of the first of them, or of the window that moves the difference most where none carries it. `found`:
    some window carries the result.
    """

    difference: Estimate
    low: float
    high: float
    most_moving: LeftOut
    carrying: tuple[LeftOut, ...]
    worst_rows: tuple[WorstRow, ...]
    found: bool
    sentence: str


def carrying_windows(
    candidate: npt.ArrayLike,
    baseline: npt.ArrayLike,
    *,
    windows: Names,
    positions: npt.ArrayLike,
    clusters: Names,
    preset: Preset,
    level: float = 0.95,
    share: float = HALF,
) -> CarryingWindows | Missing:
    """Leave out each window in turn; all columns are [rows], both arms in the measure's unit.

    A window carries the result where leaving it out turns the verdict (zero excluded or not), turns the sign, or leaves at most `share`
    of the effect. Its robust distance is that of its mean from the median of window means, in scaled median absolute deviations.
    Missing for one window. Raises EngcmpError for columns that do not pair up and values that are not finite.
    """
    one, two = numbers(candidate), numbers(baseline)
    column, names = strings(windows), strings(clusters)
    rows = np.asarray(positions, dtype=np.int64)
    check_rows(candidate=one, baseline=two, windows=column, positions=rows, clusters=names)
    listed = sorted(set(column.tolist()))
    if len(listed) < _TWO:
        return Missing("1 window: nothing is left without it")
    differences = one - two

    def estimate(chosen: npt.NDArray[np.bool_]) -> Estimate:
        return population_mean(differences[chosen], names[chosen], preset=preset, level=level, kind="difference")

    whole = estimate(np.ones(len(column), dtype=np.bool_))
    means = np.array([mean_of(differences[column == name]) for name in listed])
    left = [
        _left_out(name, whole, estimate(column != name), _distance(means, place), share)
        for place, name in enumerate(listed)
    ]
    most = max(left, key=lambda item: abs(item.moves_by))
    carrying = tuple(sorted((item for item in left if item.carries), key=lambda item: -abs(item.moves_by)))
    values = [value_of(item.without) for item in left]
    shown = (carrying[0] if carrying else most).window
    own = np.flatnonzero(column == shown)
    # Equal sizes go by position, so that the order of the rows given does not matter.
    order = own[np.lexsort((rows[own], -np.abs(differences[own])))][:WORST_ROWS]
    worst = tuple(
        WorstRow(shown, int(rows[row]), float(one[row]), float(two[row]), float(differences[row]))
        for row in order.tolist()
        if differences[row] != 0
    )
    text = _sentence(whole, min(values), max(values), carrying, worst)
    return CarryingWindows(whole, min(values), max(values), most, carrying, worst, bool(carrying), text)


def _left_out(window: str, whole: Estimate, without: Estimate, distance: float | Missing, share: float) -> LeftOut:
    with_it, rest = value_of(whole), value_of(without)
    changes: bool | Missing = stands(whole) != stands(without)
    for least in (BOOTSTRAP_CLUSTERS, INTERVAL_CLUSTERS):
        if without.clusters < least <= whole.clusters:
            changes = Missing(f"without it {without.clusters} clusters are left, which another method judges")
    halves = with_it != 0 and rest * np.sign(with_it) <= share * abs(with_it)
    return LeftOut(window, without, with_it - rest, bool(halves), changes, distance)


def _distance(means: npt.NDArray[np.float64], place: int) -> float | Missing:
    centre = float(np.median(means))
    spread = _MAD_TO_SD * float(np.median(np.abs(means - centre)))
    if spread == 0:
        return Missing("half of the windows or more read the same: there is no scale")
    return abs(float(means[place]) - centre) / spread


def _sentence(
    whole: Estimate, low: float, high: float, carrying: tuple[LeftOut, ...], worst: tuple[WorstRow, ...]
) -> str:
    text = f"The difference is {said(whole.value)}; without one window it lies between {low:+.4g} and {high:+.4g}"
    if not carrying:
        return f"{text}, and no single window carries it."
    first = carrying[0]
    what = "turns the verdict" if first.verdict_changes is True else "takes most of it away"
    rows = ", ".join(f"{row.position} ({row.difference:+.3g})" for row in worst[:3])
    return f"{text}: leaving out {first.window} {what} ({said(first.without.value)}); its worst rows are {rows}."
