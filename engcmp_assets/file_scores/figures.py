"""What the documents of `engcmp score` are made of: the rows' keys, the runs of a side, and one figure as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.file_scores.request import Side
from engcmp_assets.kernel.derived_figures import DerivedFigure
from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.records import Interval, Missing, Panel
from engcmp_assets.kernel.uncertainty import Kind, Preset, population_mean

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Measures = Mapping[str, Float64]
LEVEL = 0.95
_PER_1000 = "rows per 1,000"


@dataclass(frozen=True, slots=True)
class Keys:
    """What is known of each row of a panel, arrays [rows], in the panel's order: window by window, position by position."""

    window_id: npt.NDArray[Any]
    position: npt.NDArray[np.int64]
    next_token: npt.NDArray[np.int64]
    role: npt.NDArray[Any]
    cluster: npt.NDArray[Any]
    block: npt.NDArray[Any]
    bucket: npt.NDArray[Any]

    @property
    def rows(self) -> int:
        return len(self.position)

    def named(self, column: str) -> Iterator[tuple[str, Bools]]:
        """Each value of a column, and the rows that have it, in the order of the names."""
        values = getattr(self, column)
        for name in sorted(set(values.tolist())):
            yield name, values == name


def keys_of(panel: Panel) -> Keys:
    """The rows of a panel."""
    windows = panel.windows

    def spread(name: str) -> npt.NDArray[Any]:
        return np.concatenate([np.repeat(getattr(window, name), len(window.positions)) for window in windows])

    return Keys(
        spread("window_id"),
        np.concatenate([np.asarray(window.positions, dtype=np.int64) for window in windows]),
        np.concatenate([np.asarray(window.next_tokens, dtype=np.int64) for window in windows]),
        np.concatenate([np.asarray(window.roles) for window in windows]),
        spread("cluster"),
        spread("block"),
        spread("bucket"),
    )


def runs_of(side: Side, measures: Mapping[str, Measures], name: str, chosen: Bools) -> RunValues:
    """The values of a side's arms on the chosen rows: each arm is a run."""
    values = np.stack([measures[arm][name][chosen] for arm in side.arms])
    return RunValues(tuple(f"1.{number}" for number in range(1, len(side.arms) + 1)), values)


def shared_measures(arms: Sequence[str], measures: Mapping[str, Measures]) -> list[str]:
    """The measures that all of these arms have, in the order of the first."""
    own, others = measures[arms[0]], [measures[arm] for arm in arms[1:]]
    return [name for name in own if name in MEASURES and all(name in other for other in others)]


def figure_of(name: str, values: Float64, clusters: npt.NDArray[Any], preset: Preset) -> dict[str, Any]:
    """A measure's mean over rows with its interval, as JSON; `values` and `clusters` are arrays [rows]."""
    # A share that is counted per 1,000 rows is a share: at its ends it must not get an interval without a width.
    scale = 1000.0 if MEASURES[name].unit == _PER_1000 else 1.0
    kind: Kind = "proportion" if MEASURES[name].unit in ("share of rows", _PER_1000) else "mean"
    found = population_mean(values / scale, clusters.tolist(), preset=preset, level=LEVEL, kind=kind)
    mean, ends = number_of(found.value), ends_of(found.interval)
    return {
        "mean": None if mean is None else scale * mean,
        "interval95": None if ends is None else [scale * end for end in ends],
        "rows": found.rows,
        "clusters": found.clusters,
        "reason": reason_of(found.value, found.interval),
    }


def derived_figure(found: DerivedFigure) -> dict[str, Any]:
    """A derived figure as JSON."""
    return {
        "value": number_of(found.value),
        "interval95": ends_of(found.interval),
        "reason": reason_of(found.value, found.interval),
    }


def no_figure(why: Missing) -> dict[str, Any]:
    """What stands in the place of a figure that the rows cannot give."""
    return {"mean": None, "interval95": None, "rows": 0, "clusters": 0, "reason": why.reason}


def reason_of(*found: float | Interval | Missing) -> str | None:
    """Why the first one that is missing is; None where none is."""
    return next((one.reason for one in found if isinstance(one, Missing)), None)


def number_of(value: float | Missing) -> float | None:
    """None where there is none: the reason stands beside it."""
    return None if isinstance(value, Missing) else value


def ends_of(interval: Interval | Missing) -> list[float] | None:
    """The two ends of an interval; None where there is none."""
    return None if isinstance(interval, Missing) else [interval.low, interval.high]
