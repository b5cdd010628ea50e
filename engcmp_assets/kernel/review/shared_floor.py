"""A distance between engines beside the distance between repeats, on the same rows and clusters (MEASURES section 4, "Floor")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.review.shared import Names, check_rows, many, numbers, ratio_interval, strings
from engcmp_assets.kernel.uncertainty import Estimate, Preset, by_cluster, population_mean


@dataclass(frozen=True, slots=True)
class SharedFloor:
    """`ratio` is distance over floor on the rows that have a repeat; `mixed_ratio` sets the distance of all rows over it.

    `found`: some rows of the comparison have no repeat, so that the mixed ratio compares other texts and must not be printed.
    """

    distance_all: Estimate
    distance: Estimate
    floor: Estimate
    ratio: float | Missing
    ratio_interval: Interval | Missing
    mixed_ratio: float | Missing
    clusters_without_repeat: tuple[str, ...]
    found: bool
    sentence: str


def floor_on_same_clusters(
    distances: npt.ArrayLike,
    floors: npt.ArrayLike,
    clusters: Names,
    *,
    repeated: npt.ArrayLike,
    preset: Preset,
    level: float = 0.95,
) -> SharedFloor:
    """Compare per-row distances between two arms with those between repeats of one arm; all columns are [rows].

    `repeated` marks the rows that a repeat was captured of: only they are compared, and `floors` is read nowhere else (so it may hold NaN
    there). Both are at least 0, in the distance's unit. The ratio is resampled jointly from 8 clusters on. Raises EngcmpError where
    columns do not pair up or a value that is read is not finite.
    """
    between, within, names = numbers(distances), numbers(floors), strings(clusters)
    known = np.asarray(repeated, dtype=np.bool_)
    check_rows(distances=between, floors=within, clusters=names, repeated=known)
    own = names[known]
    everywhere = population_mean(between, names, preset=preset, level=level)
    distance = population_mean(between[known], own, preset=preset, level=level)
    floor = population_mean(within[known], own, preset=preset, level=level)
    without = tuple(sorted(set(names.tolist()) - set(own.tolist())))
    ratio = _ratio(distance.value, floor.value)
    mixed = _ratio(everywhere.value, floor.value)
    interval = (
        ratio
        if isinstance(ratio, Missing)
        else ratio_interval(by_cluster(between[known], own), by_cluster(within[known], own), preset, level)
    )
    return SharedFloor(
        distance_all=everywhere, distance=distance, floor=floor, ratio=ratio,
        ratio_interval=interval, mixed_ratio=mixed,
        clusters_without_repeat=without, found=not known.all() and bool(known.any()),
        sentence=_sentence(distance, floor, ratio, mixed, without),
    )  # fmt: skip


def _ratio(value: float | Missing, floor: float | Missing) -> float | Missing:
    if isinstance(value, Missing) or isinstance(floor, Missing):
        return Missing("no repeat was captured of these rows")
    return value / floor if floor > 0 else Missing("the repeats are equal, so the floor is 0 and a ratio has no value")


def _sentence(
    distance: Estimate,
    floor: Estimate,
    ratio: float | Missing,
    mixed: float | Missing,
    without: tuple[str, ...],
) -> str:
    if isinstance(distance.value, Missing) or isinstance(floor.value, Missing):
        return "There is no floor: no repeat was captured of these rows."
    text = f"On {many(distance.clusters, 'cluster')} with a repeat the distance is {distance.value:.4g} and the floor {floor.value:.4g}"
    if isinstance(ratio, Missing) or isinstance(mixed, Missing):
        return f"{text}: {ratio.reason if isinstance(ratio, Missing) else ''}."
    text += f", {ratio:.2f} times"
    if without:
        text += (
            f" (the distance of all clusters over it would read {mixed:.2f}, but {len(without)} of them have no repeat)"
        )
    return f"{text}."
