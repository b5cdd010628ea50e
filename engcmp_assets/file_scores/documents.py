"""The documents of `engcmp score`: an arm's figures, a pair's differences, from columns of rows (MEASURES sections 2, 4, 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.file_scores.request import PairOf, Side
from engcmp_assets.kernel.differences import Comparison, compare
from engcmp_assets.kernel.floors import Floor, RunValues, floor, floor_document
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.records import Interval, Missing, Panel, plain
from engcmp_assets.kernel.review.confounding import confounded_buckets
from engcmp_assets.kernel.review.outliers import carrying_windows
from engcmp_assets.kernel.uncertainty import Kind, Preset, population_mean

ARM_SCHEMA, PAIR_SCHEMA = "engcmp.score.arm/1", "engcmp.score.pair/1"
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Measures = Mapping[str, Float64]
_CONFIDENT = {"top1_confident50": 0.5, "top1_confident90": 0.9}
_LEVEL = 0.95


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


def with_derived(measures: Measures) -> dict[str, tuple[Float64, Bools]]:
    """Every measure that the rows give, each with the rows that it is of: those of single rows, and those made of them.

    `top1_confident50` and `_90` are of the rows whose reference gives its first choice at least that probability.
    """
    rows = len(next(iter(measures.values())))
    every = np.ones(rows, dtype=np.bool_)
    found = {name: (values, every) for name, values in measures.items() if name in MEASURES}
    if "top1" in measures:
        found["misses_per_1000"] = (1000.0 * (1.0 - measures["top1"]), every)
    confidence = measures.get("reference_top_probability")
    if confidence is not None:
        found |= {name: (measures["top1"], confidence >= least) for name, least in _CONFIDENT.items()}
    return found


def arm_document(
    panel: Panel, arm: str, keys: Keys, measures: Measures, *, preset: Preset, inputs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """`<arm>.json`: every measure over all rows, with its interval; and its means by window, block, bucket and role."""
    columns = with_derived(measures)

    def figures(chosen: Bools) -> dict[str, Any]:
        return {
            name: _figure(name, values[chosen & of], keys.cluster[chosen & of], preset)
            for name, (values, of) in columns.items()
        }

    return {
        "schema": ARM_SCHEMA,
        "panel": panel.panel,
        "arm": arm,
        "rows": keys.rows,
        "windows": len(panel.windows),
        "preset": plain(preset),
        "measures": figures(np.ones(keys.rows, dtype=np.bool_)),
        "by_window": {
            window: {name: _mean(values[chosen & of]) for name, (values, of) in columns.items() if (chosen & of).any()}
            for window, chosen in keys.named("window_id")
        },
        **{
            f"by_{column}": {name: figures(chosen) for name, chosen in keys.named(column)}
            for column in ("block", "bucket", "role")
        },
        "inputs": [dict(one) for one in inputs],
    }


def pair_document(
    pair: PairOf,
    keys: Keys,
    measures: Mapping[str, Measures],
    *,
    repeats: Mapping[str, Sequence[str]],
    distances: Mapping[tuple[str, str], Measures],
    preset: Preset,
    progress: Callable[[str], None] = lambda _place: None,
) -> dict[str, Any]:
    """`<a>-vs-<b>.json`: difference = b - a, measure by measure; the headline look is the first measure over all rows.

    All other looks share one error rate, and are judged at its Bonferroni level. `distances` are of pairs of single arms. `progress` is
    told which rows are looked at.
    """
    shared = [name for name in measures[pair.a.arms[0]] if name in measures[pair.b.arms[0]] and name in MEASURES]
    populations = [
        ("", "", np.ones(keys.rows, dtype=np.bool_)),
        *(("block", name, chosen) for name, chosen in keys.named("block")),
        *(("bucket", name, chosen) for name, chosen in keys.named("bucket")),
    ]
    family = len(shared) * len(populations)

    def floor_of(side: Side, name: str, chosen: Bools, clusters: list[str]) -> Floor:
        runs = _runs(Side(_with_repeats(side, repeats)), measures, name, chosen)
        return floor(runs, clusters, preset=preset, level=_LEVEL)

    def look(name: str, chosen: Bools, clusters: list[str], *, primary: bool) -> dict[str, Any]:
        b, a = (_runs(side, measures, name, chosen) for side in (pair.b, pair.a))
        result = compare(
            b, a, clusters, preset=preset, primary=primary, family=family, level=_LEVEL, measure=name,
            floors=(floor_of(pair.b, name, chosen, clusters), floor_of(pair.a, name, chosen, clusters)),
        )  # fmt: skip
        return _look(pair, result, repeats)

    by: dict[str, dict[str, Any]] = {"block": {}, "bucket": {}}
    whole: dict[str, Any] = {}
    for kind, name, chosen in populations:
        progress(f"{kind} {name}" if kind else "all rows")
        clusters = keys.cluster[chosen].tolist()
        found = {one: look(one, chosen, clusters, primary=not kind and one == shared[0]) for one in shared}
        if kind:
            by[kind][name] = found
        else:
            whole = found
    return {
        "schema": PAIR_SCHEMA,
        "pair": {"a": list(pair.a.arms), "b": list(pair.b.arms), "difference": "b - a"},
        "measures": whole,
        "by_block": by["block"],
        "by_bucket": by["bucket"],
        "apart": _apart(pair, repeats, distances, keys, preset),
        "confounds": _confounds(pair, keys, measures, shared[0], preset),
        "carried_by": _carried(pair, keys, measures, shared[0], preset),
        "declared": {"primary": shared[0], "looks": family, "level": _LEVEL, "preset": plain(preset)},
    }


def _figure(name: str, values: Float64, clusters: npt.NDArray[Any], preset: Preset) -> dict[str, Any]:
    kind: Kind = "proportion" if MEASURES[name].unit == "share of rows" else "mean"
    found = population_mean(values, clusters.tolist(), preset=preset, level=_LEVEL, kind=kind)
    return {
        "mean": _number(found.value),
        "interval95": _ends(found.interval),
        "rows": found.rows,
        "clusters": found.clusters,
        "reason": _reason(found.value, found.interval),
    }


def _reason(*found: float | Interval | Missing) -> str | None:
    """Why the first one that is missing is; None where none is."""
    return next((one.reason for one in found if isinstance(one, Missing)), None)


def _number(value: float | Missing) -> float | None:
    """None where there is none: the reason stands beside it."""
    return None if isinstance(value, Missing) else value


def _ends(interval: Interval | Missing) -> list[float] | None:
    return None if isinstance(interval, Missing) else [interval.low, interval.high]


def _mean(values: Float64) -> float:
    return float(np.mean(values))


def _runs(side: Side, measures: Mapping[str, Measures], name: str, chosen: Bools) -> RunValues:
    values = np.stack([measures[arm][name][chosen] for arm in side.arms])
    return RunValues(tuple(f"1.{number}" for number in range(1, len(side.arms) + 1)), values)


def _with_repeats(side: Side, repeats: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The arms that are runs of a side: its own, and the repeats of its first."""
    return tuple(dict.fromkeys((*side.arms, *repeats.get(side.arms[0], ()))))


def _floor_figures(found: Floor, arms: Sequence[str]) -> Mapping[str, Any]:
    """The repeat furthest from the first run, by the arms' names. Whether it was captured in another launch, row files do not say."""
    if isinstance(found.within_launch, Missing):
        return Missing("no repeat was given").as_json()
    own = dict(floor_document(found)["within_launch"])
    return own | {key: _arm_of_run(own[key], arms) for key in ("run", "minus")}


def _arm_of_run(run: str, arms: Sequence[str]) -> str:
    return arms[int(run.split(".")[1]) - 1]


def _look(pair: PairOf, result: Comparison, repeats: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    left_out, moving = result.leave_one_cluster_out, result.most_moving_cluster
    floors = ((pair.b, result.candidate_floor), (pair.a, result.baseline_floor))
    return {
        "difference": _number(result.difference.value),
        "interval95": _ends(result.interval95),
        "bonferroni": _ends(result.interval_bonferroni),
        "clusters": result.difference.clusters,
        "reason": _reason(result.difference.value, result.interval95, result.interval_bonferroni),
        "verdict": result.verdict.word,
        "sentence": result.verdict.sentence,
        "bound": plain(result.bound),
        "floor": {str(side): _floor_figures(found, _with_repeats(side, repeats)) for side, found in floors},
        "leave_one_out": plain(left_out) if isinstance(left_out, Missing) else [left_out.low, left_out.high],
        "sign_clusters": result.clusters_with_the_sign,
        "sign_flip_p": plain(result.sign_flip_p),
        "largest_cluster": plain(moving),
        "against_each_run": [
            {
                "arm": _arm_of_run(one.run, pair.a.arms),
                "difference": _number(one.difference.value),
                "stands": one.stands,
            }
            for one in result.against_each_run
        ],
    }


def _apart(
    pair: PairOf, repeats: Mapping[str, Sequence[str]], distances: Mapping[tuple[str, str], Measures], keys: Keys, preset: Preset
) -> dict[str, Any]:  # fmt: skip
    """How far the rows of the first arms are from each other, beside the same between an arm and its repeats."""
    clusters = keys.cluster

    def of(one: tuple[str, str]) -> dict[str, Any]:
        return {name: _figure(name, values, clusters, preset) for name, values in distances[one].items()}

    own = [(arm, again) for side in (pair.a, pair.b) for arm in side.arms[:1] for again in repeats.get(arm, ())]
    return {
        "rows": of((pair.a.arms[0], pair.b.arms[0])),
        "floor": {f"{arm},{again}": of((arm, again)) for arm, again in own} or {"missing": "no repeat was given"},
    }


def _confounds(
    pair: PairOf, keys: Keys, measures: Mapping[str, Measures], name: str, preset: Preset
) -> list[dict[str, Any]]:
    """Buckets whose rows come from one block: a trend over buckets would be a difference between blocks."""
    differences = _difference(pair, measures, name)
    found = confounded_buckets(
        differences, keys.cluster, blocks=keys.block, buckets=keys.bucket, preset=preset, level=_LEVEL
    )
    return [plain(one) for one in found]


def _carried(pair: PairOf, keys: Keys, measures: Mapping[str, Measures], name: str, preset: Preset) -> Any:
    """Whether one window carries the result."""
    b, a = (_runs(side, measures, name, np.ones(keys.rows, dtype=np.bool_)).per_row for side in (pair.b, pair.a))
    found = carrying_windows(
        b, a, windows=keys.window_id, positions=keys.position, clusters=keys.cluster, preset=preset, level=_LEVEL
    )
    return plain(found)


def _difference(pair: PairOf, measures: Mapping[str, Measures], name: str) -> Float64:
    every = np.ones(len(measures[pair.a.arms[0]][name]), dtype=np.bool_)
    b, a = (_runs(side, measures, name, every).per_row for side in (pair.b, pair.a))
    return b - a
