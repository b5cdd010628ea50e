"""The documents of `engcmp score`: an arm's figures, a pair's differences, from columns of rows (MEASURES sections 2, 4, 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engcmp_assets.file_scores.figures import (
    LEVEL,
    Bools,
    Float64,
    Keys,
    Measures,
    derived_figure,
    ends_of,
    figure_of,
    no_figure,
    number_of,
    reason_of,
    runs_of,
    shared_measures,
)
from engcmp_assets.file_scores.measuring import KEPT_EQUAL, REST_IS_FLOOR
from engcmp_assets.file_scores.request import PairOf, Side
from engcmp_assets.file_scores.reviewing import Chunks, Repeats, review_of_arm, review_of_pair
from engcmp_assets.kernel.derived_figures import ratio_of_means, relative_difference
from engcmp_assets.kernel.differences import EQUAL_KEPT, EQUAL_ROWS, Comparison, compare
from engcmp_assets.kernel.floors import Floor, floor, floor_document
from engcmp_assets.kernel.looks import different_populations
from engcmp_assets.kernel.measures import DISTANCES, MEASURES
from engcmp_assets.kernel.records import Missing, Panel, plain
from engcmp_assets.kernel.review.confounding import confounded_buckets
from engcmp_assets.kernel.review.outliers import carrying_windows
from engcmp_assets.kernel.uncertainty import Preset

ARM_SCHEMA, PAIR_SCHEMA = "engcmp.score.arm/1", "engcmp.score.pair/1"
Reasons = Mapping[str, Missing]
_CONFIDENT = {"top1_confident50": 0.5, "top1_confident90": 0.9}
_SURE = 0.9
_EQUAL = {"rows_bit_identical": EQUAL_ROWS, KEPT_EQUAL: EQUAL_KEPT}
_OF_TOP_20 = ("kl_top20", "kl_pb20", "kl_pair20")


def with_derived(measures: Measures) -> dict[str, tuple[Float64, Bools]]:
    """Every measure that the rows give, each with the rows that it is of: those of single rows, and those made of them.

    `top1_confident50`, `_90` and `confident90_misses_per_1000` are of the rows whose reference gives its first choice at least that
    probability; `confident90_misses_per_1000_of_all` counts the same misses among all rows.
    """
    rows = len(next(iter(measures.values())))
    every = np.ones(rows, dtype=np.bool_)
    found = {name: (values, every) for name, values in measures.items() if name in MEASURES}
    if "top1" in measures:
        found["misses_per_1000"] = (1000.0 * (1.0 - measures["top1"]), every)
    confidence = measures.get("reference_top_probability")
    if confidence is not None:
        found |= {name: (measures["top1"], confidence >= least) for name, least in _CONFIDENT.items()}
        misses, sure = 1000.0 * (1.0 - measures["top1"]), confidence >= _SURE
        found["confident90_misses_per_1000"] = (misses, sure)
        found["confident90_misses_per_1000_of_all"] = (misses * sure, every)
    return found


def arm_document(
    panel: Panel,
    arm: str,
    keys: Keys,
    measures: Measures,
    *,
    preset: Preset,
    inputs: Sequence[Mapping[str, Any]],
    lacking: Reasons | None = None,
    repeats: Repeats | None = None,
) -> dict[str, Any]:
    """`<arm>.json`: every measure over all rows, with its interval; and its means by window, block, bucket and role.

    `lacking` are measures that its rows cannot give: they stand among the others, with their reasons and no number.
    """
    columns = with_derived(measures)

    def figures(chosen: Bools) -> dict[str, Any]:
        found = {
            name: figure_of(name, values[chosen & of], keys.cluster[chosen & of], preset)
            for name, (values, of) in columns.items()
        }
        for name in set(found) & set(_OF_TOP_20):
            found[name] |= _at_the_floor(measures, chosen)
        if {"entropy", "excess_entropy"} <= set(measures):
            found["entropy_ratio"] = _entropy_ratio(measures, chosen, keys, preset)
        return found | {name: no_figure(why) for name, why in (lacking or {}).items()}

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
        "review": review_of_arm(arm, keys, measures, preset=preset, level=LEVEL, repeats=repeats),
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
    lacking: Mapping[str, Reasons] | None = None,
    not_of_pair: Mapping[tuple[str, str], Reasons] | None = None,
    chunks: Chunks | None = None,
    progress: Callable[[str], None] = lambda _place: None,
) -> dict[str, Any]:
    """`<a>-vs-<b>.json`: difference = b - a, measure by measure; the headline look is the first measure over all rows.

    All other looks share one error rate, and are judged at its Bonferroni level. `distances` are of pairs of single arms, and
    `not_of_pair` those that a pair does not have; `lacking` says the same of single arms. `progress` is told which rows are looked at.
    """
    shared = shared_measures([*pair.a.arms, *pair.b.arms], measures)
    populations = [
        ("", "", np.ones(keys.rows, dtype=np.bool_)),
        *(("block", name, chosen) for name, chosen in keys.named("block")),
        *(("bucket", name, chosen) for name, chosen in keys.named("bucket")),
    ]
    known = distances.get((pair.a.arms[0], pair.b.arms[0]), {})
    family = len(shared) * different_populations([chosen for *_, chosen in populations])

    def floor_of(side: Side, name: str, chosen: Bools, clusters: list[str]) -> Floor:
        runs = runs_of(Side(_with_repeats(side, repeats)), measures, name, chosen)
        return floor(runs, clusters, preset=preset, level=LEVEL)

    def look(name: str, chosen: Bools, clusters: list[str], *, primary: bool) -> dict[str, Any]:
        b, a = (runs_of(side, measures, name, chosen) for side in (pair.b, pair.a))
        result = compare(
            b, a, clusters, preset=preset, primary=primary, family=family, level=LEVEL, measure=name,
            floors=(floor_of(pair.b, name, chosen, clusters), floor_of(pair.a, name, chosen, clusters)),
        )  # fmt: skip
        found = _look(pair, result, repeats)
        if np.ptp(np.concatenate([a.values, b.values]), axis=0).any():
            return found
        return found | _if_equal(known, chosen)

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
        "missing": {
            name: why.as_json()
            for arm in (*pair.a.arms, *pair.b.arms)
            for name, why in (lacking or {}).get(arm, {}).items()
        },
        "derived": _derived(pair, keys, measures, shared, preset),
        "apart": _apart(pair, repeats, (distances, not_of_pair or {}), keys, preset),
        "confounds": _confounds(pair, keys, measures, shared[0], preset),
        "carried_by": _carried(pair, keys, measures, shared[0], preset),
        "review": review_of_pair(
            pair, keys, measures, preset=preset, level=LEVEL, repeats=Repeats(repeats, distances, chunks or {})
        ),
        "declared": {"primary": shared[0], "looks": family, "level": LEVEL, "preset": plain(preset)},
    }


def _derived(
    pair: PairOf, keys: Keys, measures: Mapping[str, Measures], shared: Sequence[str], preset: Preset
) -> dict[str, Any]:
    """The difference as a share of a's own distance, and the ratio of b's distance to a's, of every distance from the reference."""
    every, clusters = np.ones(keys.rows, dtype=np.bool_), keys.cluster.tolist()
    found: dict[str, Any] = {"relative_difference": {}, "distance_ratio": {}}
    for name in (one for one in shared if one in DISTANCES):
        b, a = (runs_of(side, measures, name, every).per_row for side in (pair.b, pair.a))
        for kind, of in (("relative_difference", relative_difference), ("distance_ratio", ratio_of_means)):
            found[kind][name] = derived_figure(of(b, a, clusters, preset=preset, level=LEVEL))
    none = Missing("the two arms have no distance from a reference in common").as_json()
    return {kind: own or none for kind, own in found.items()}


def _entropy_ratio(measures: Measures, chosen: Bools, keys: Keys, preset: Preset) -> dict[str, Any]:
    own = measures["entropy"][chosen]
    clusters = keys.cluster[chosen].tolist()
    ratio = ratio_of_means(own, own - measures["excess_entropy"][chosen], clusters, preset=preset, level=LEVEL)
    found = derived_figure(ratio)
    return {
        "mean": found["value"],
        "interval95": found["interval95"],
        "rows": len(own),
        "clusters": len(set(clusters)),
        "reason": found["reason"],
    }


def _at_the_floor(measures: Measures, chosen: Bools) -> dict[str, int]:
    """How many of the rows have top probabilities that sum to 1 or more, so that their rest is the smallest positive float32."""
    return {"rows_at_rest_floor": int(measures[REST_IS_FLOOR][chosen].sum())} if REST_IS_FLOOR in measures else {}


def _mean(values: Float64) -> float:
    return float(np.mean(values))


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
        "difference": number_of(result.difference.value),
        "interval95": ends_of(result.interval95),
        "bonferroni": ends_of(result.interval_bonferroni),
        "clusters": result.difference.clusters,
        "reason": reason_of(result.difference.value, result.interval95, result.interval_bonferroni),
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
                "difference": number_of(one.difference.value),
                "stands": one.stands,
            }
            for one in result.against_each_run
        ],
    }


def _if_equal(known: Measures, chosen: Bools) -> dict[str, Any]:
    """The verdict of a measure that reads the same on both sides because their rows are equal; none where these differ or are not known."""
    for name, (word, sentence) in _EQUAL.items():
        if name in known and known[name][chosen].all():
            return {"verdict": word, "sentence": sentence, "bound": 0.0}
    return {}


def _apart(
    pair: PairOf,
    repeats: Mapping[str, Sequence[str]],
    known: tuple[Mapping[tuple[str, str], Measures], Mapping[tuple[str, str], Reasons]],
    keys: Keys,
    preset: Preset,
) -> dict[str, Any]:
    """How far the rows of the first arms are from each other, beside the same between an arm and its repeats."""
    clusters, (distances, missing) = keys.cluster, known
    every = np.ones(keys.rows, dtype=np.bool_)

    def of(one: tuple[str, str]) -> dict[str, Any]:
        own = {name: values for name, values in distances[one].items() if name in MEASURES}
        found = {name: figure_of(name, values, clusters, preset) for name, values in own.items()}
        for name in set(found) & set(_OF_TOP_20):
            found[name] |= _at_the_floor(distances[one], every)
        return found | {name: no_figure(why) for name, why in missing.get(one, {}).items()}

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
        differences, keys.cluster, blocks=keys.block, buckets=keys.bucket, preset=preset, level=LEVEL
    )
    return [plain(one) for one in found]


def _carried(pair: PairOf, keys: Keys, measures: Mapping[str, Measures], name: str, preset: Preset) -> Any:
    """Whether one window carries the result."""
    b, a = (runs_of(side, measures, name, np.ones(keys.rows, dtype=np.bool_)).per_row for side in (pair.b, pair.a))
    found = carrying_windows(
        b, a, windows=keys.window_id, positions=keys.position, clusters=keys.cluster, preset=preset, level=LEVEL
    )
    return plain(found)


def _difference(pair: PairOf, measures: Mapping[str, Measures], name: str) -> Float64:
    every = np.ones(len(measures[pair.a.arms[0]][name]), dtype=np.bool_)
    b, a = (runs_of(side, measures, name, every).per_row for side in (pair.b, pair.a))
    return b - a
