"""Rows on which any change of arithmetic moves the distribution by nats, so that they say nothing of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.exact_sums import exact_sum
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared import Bools, Float64, Names, check_rows, many, mean_of, numbers, strings
from engcmp_resources.errors import EngcmpError

FACTOR = 50.0  # times the typical window's mean
LEAST = 0.1  # nats: below it no row is called hypersensitive, however quiet the panel is
SHOWN_ROWS = 10


@dataclass(frozen=True, slots=True)
class Repeat:
    """KL of each row between two runs of one arm, [rows]; `known` marks the rows that were captured twice (others are not read)."""

    distances: Float64
    known: Bools


@dataclass(frozen=True, slots=True)
class SensitiveRow:
    """A row above the bound, with its KL between the arms and, by arm, between the arm's repeats."""

    window: str
    position: int
    distance: float
    repeats: Mapping[str, float | Missing]


@dataclass(frozen=True, slots=True)
class SensitiveWindow:
    """How many of a window's rows are above the bound, and the window's mean KL; `repeats` by arm, over its rows captured twice."""

    window: str
    rows: int
    sensitive: int
    mean: float
    repeats: Mapping[str, float | Missing]


@dataclass(frozen=True, slots=True)
class Hypersensitive:
    """`bound` in nats. `share_of_sum`: what part of the summed KL the rows above it carry (Missing where the sum is 0).

    `also_with_itself`, by arm: how many of the rows above the bound that were captured twice are above it between the arm's own repeats;
    Missing where none of them was, and then the rows cannot be laid at either arm's door. `found`: some row is above the bound.
    """

    bound: float
    rows: int
    sensitive: int
    share_of_sum: float | Missing
    windows: tuple[SensitiveWindow, ...]
    worst: tuple[SensitiveRow, ...]
    also_with_itself: Mapping[str, tuple[int, int] | Missing]
    found: bool
    sentence: str


def hypersensitive_rows(
    distances: npt.ArrayLike,
    *,
    windows: Names,
    positions: npt.ArrayLike,
    repeats: Mapping[str, Repeat] | None = None,
    panel: npt.ArrayLike | None = None,
    factor: float = FACTOR,
    least: float = LEAST,
) -> Hypersensitive:
    """Rows whose KL between two arms (`distances` [rows], nats) is far above the panel's.

    The bound is `factor` times the median of the windows' means, or `least` where that is more: half of the windows may be wild before it
    moves. `panel` (bool [rows]) marks the rows that set it, for example the generated ones when other rows are looked at; by default all.
    `repeats` holds, by arm, the same KL between repeats. Raises EngcmpError for columns that do not pair up, values that are not finite or
    below 0, a `panel` without a row, and a factor or least that is not above 0.
    """
    values, names = numbers(distances), strings(windows)
    rows = np.asarray(positions, dtype=np.int64)
    setting = np.ones(len(values), dtype=np.bool_) if panel is None else np.asarray(panel, dtype=np.bool_)
    check_rows(distances=values, windows=names, positions=rows, panel=setting)
    own = dict(repeats or {})
    for arm, repeat in own.items():
        check_rows(distances=values, **{f"repeats of {arm}": repeat.distances, f"known of {arm}": repeat.known})
        _check(repeat.distances[repeat.known], f"repeats of {arm}")
    _check(values, "distances")
    if not setting.any() or factor <= 0 or least <= 0:
        raise EngcmpError(
            f"{int(setting.sum())} rows set the bound, factor {factor}, least {least}",
            remedy="give a row, and both above 0",
        )
    means = [mean_of(values[setting & (names == name)]) for name in sorted(set(names[setting].tolist()))]
    bound = max(least, factor * float(np.median(means)))
    above = values > bound
    total = exact_sum(values)
    by_window = tuple(_window(name, names == name, values, above, own) for name in sorted(set(names[above].tolist())))
    order = np.flatnonzero(above)
    order = order[np.lexsort((rows[order], names[order], -values[order]))][:SHOWN_ROWS]
    worst = tuple(
        SensitiveRow(
            str(names[row]), int(rows[row]), float(values[row]),
            {arm: _mean(repeat, np.arange(len(values)) == row) for arm, repeat in own.items()},
        )
        for row in order.tolist()
    )  # fmt: skip
    itself = {arm: _itself(repeat, above, bound) for arm, repeat in own.items()}
    part: float | Missing = exact_sum(values[above]) / total if total > 0 else Missing("every row is equal")
    text = _sentence(bound, above, part, by_window, itself)
    return Hypersensitive(bound, len(values), int(above.sum()), part, by_window, worst, itself, bool(above.any()), text)


def _check(values: Float64, name: str) -> None:
    if not np.isfinite(values).all() or (values < 0).any():
        raise EngcmpError(f"{name}: a KL is not finite or below 0", remedy="leave bad rows out first")


def _window(name: str, own: Bools, values: Float64, above: Bools, repeats: Mapping[str, Repeat]) -> SensitiveWindow:
    beside = {arm: _mean(repeat, own) for arm, repeat in repeats.items()}
    return SensitiveWindow(name, int(own.sum()), int((own & above).sum()), mean_of(values[own]), beside)


def _mean(repeat: Repeat, own: Bools) -> float | Missing:
    known = own & repeat.known
    return mean_of(repeat.distances[known]) if known.any() else Missing("no repeat was captured of it")


def _itself(repeat: Repeat, above: Bools, bound: float) -> tuple[int, int] | Missing:
    known = above & repeat.known
    if not known.any():
        return Missing("no repeat was captured of these rows")
    return int((repeat.distances[known] > bound).sum()), int(known.sum())


def _sentence(
    bound: float,
    above: Bools,
    part: float | Missing,
    windows: tuple[SensitiveWindow, ...],
    itself: Mapping[str, tuple[int, int] | Missing],
) -> str:
    if not windows:
        return f"No row is above {bound:.3g} nats."
    worst = max(windows, key=lambda one: (one.sensitive, one.window))
    weight = "" if isinstance(part, Missing) else f" and carry {100 * part:.3g} % of the sum"
    text = (
        f"{int(above.sum()):,} of {many(len(above), 'row')} in {many(len(windows), 'window')} are above {bound:.3g} nats{weight}, "
        f"{worst.sensitive:,} of them in {worst.window}"
    )
    if not itself or all(isinstance(one, Missing) for one in itself.values()):
        return f"{text}; no repeat was captured of them, so they cannot be given to either arm."
    words = [
        f"{arm}: {one.reason}"
        if isinstance(one, Missing)
        else f"{arm} is as far from its own repeat on {one[0]:,} of {one[1]:,}"
        for arm, one in sorted(itself.items())
    ]
    return f"{text}; {', '.join(words)}."
