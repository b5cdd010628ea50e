"""What a careful reviewer would ask of an arm's and of a pair's figures: the checks of kernel.review, on columns of rows, as plain JSON.

A finding that the rows cannot give stands as {"missing": why}. All are of all rows of the panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engcmp_assets.file_scores.figures import Float64, Keys, Measures, runs_of, shared_measures
from engcmp_assets.file_scores.request import PairOf, Side
from engcmp_assets.kernel.measures import DISTANCES
from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.review.baselines import RunResult, baseline_choice
from engcmp_assets.kernel.review.chunks import bit_equality_by_chunk
from engcmp_assets.kernel.review.duplicates import Duplicates, duplicate_windows
from engcmp_assets.kernel.review.few_clusters import few_clusters
from engcmp_assets.kernel.review.hypersensitive import Repeat, hypersensitive_rows
from engcmp_assets.kernel.review.power import panel_power
from engcmp_assets.kernel.review.shared import stands, value_of
from engcmp_assets.kernel.review.shared_floor import floor_on_same_clusters
from engcmp_assets.kernel.review.sharpness import entropy_of_arm, split_nll_gap
from engcmp_assets.kernel.uncertainty import Estimate, Preset, distinct_resamples, population_mean

_PAIR_KL = ("kl_pair_full", "kl_pair_coarse", "kl_pair20")
_NO_REPEAT = Missing("no repeat was given")
Chunks = Mapping[str, Mapping[str, Sequence[int]]]
"""The lengths of the prefill chunks by arm and window, where the capture recorded them."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """Which arms are repeats of which, the rows of pairs of single arms held against each other, and their chunk lengths."""

    of: Mapping[str, Sequence[str]] = field(default_factory=dict)
    distances: Mapping[tuple[str, str], Measures] = field(default_factory=dict)
    chunks: Chunks = field(default_factory=dict)

    def pairs(self, *arms: str) -> list[tuple[str, str]]:
        """Each of the arms with each of its repeats, where their rows were held against each other."""
        wanted = [(arm, again) for arm in arms for again in self.of.get(arm, ())]
        return [one for one in wanted if one in self.distances]

    def known(self, name: str, *arms: str) -> dict[str, Repeat]:
        """The distances `name` between an arm and its repeats that were measured, of all rows."""
        found = {}
        for one in self.pairs(*arms):
            if name in self.distances[one]:
                values = self.distances[one][name]
                found[",".join(one)] = Repeat(values, np.ones(len(values), dtype=np.bool_))
        return found


@dataclass(frozen=True, slots=True)
class _On:
    """The rows that are looked at, and how their intervals resample."""

    keys: Keys
    preset: Preset
    level: float

    def difference(self, values: Float64) -> Estimate:
        return population_mean(values, self.keys.cluster, preset=self.preset, level=self.level, kind="difference")


def review_of_arm(
    arm: str, keys: Keys, measures: Measures, *, preset: Preset, level: float = 0.95, repeats: Repeats | None = None
) -> dict[str, Any]:
    """`<arm>.json`, key `review`: how flat the arm is, how many independent texts its intervals stand on, and its wild rows.

    `measures` are float64 [rows] by id, of the rows of `keys`.
    """
    again, on = repeats or Repeats(), _On(keys, preset, level)
    duplicates = _duplicates(keys)
    return {
        "clusters": _clusters(keys),
        "duplicates": _without_texts(duplicates),
        "entropy": _entropy(measures, on),
        "hypersensitive": _wild(
            next((measures[name] for name in DISTANCES if name in measures), Missing("there is no reference")),
            keys, again.known("kl_pair_full", arm) or again.known("kl_pair_coarse", arm),
        ),
        "bit_equality_by_chunk": _by_chunk(again.pairs(arm), keys, again),
    }  # fmt: skip


def review_of_pair(
    pair: PairOf,
    keys: Keys,
    measures: Mapping[str, Measures],
    *,
    preset: Preset,
    level: float = 0.95,
    repeats: Repeats | None = None,
) -> dict[str, Any]:
    """`<a>-vs-<b>.json`, key `review`, of b - a: whether the run of the baseline matters, the floor on the same rows, wild rows, the number
    of texts, and what the panel could have shown. Its keys `confounds` and `carried_by` are the other two checks.

    `measures` are float64 [rows] by arm and id. What is of one measure is of the first one, the declared look, unless it is given by id.
    """
    again, on = repeats or Repeats(), _On(keys, preset, level)
    shared = shared_measures([*pair.a.arms, *pair.b.arms], measures)
    every = np.ones(keys.rows, dtype=np.bool_)

    def values(side: Side, name: str) -> Float64:
        return runs_of(side, measures, name, every).per_row

    def difference(name: str) -> Float64:
        return values(pair.b, name) - values(pair.a, name)

    primary = shared[0]
    duplicates = _duplicates(keys)
    first = (pair.a.arms[0], pair.b.arms[0])
    return {
        "measure": primary,
        "baseline_choice": {
            name: _baseline_choice(pair, name, measures, on, again)
            for name in shared
        },
        "floor_on_same_clusters": _shared_floor(first, on, again),
        "bit_equality_by_chunk": _by_chunk([first, *again.pairs(*first)], keys, again),
        "few_clusters": plain(few_clusters(difference(primary), keys.cluster, preset=preset, level=level)),
        "duplicates": _without_texts(duplicates) | _merged(duplicates, difference(primary), on),
        "hypersensitive": _between(first, keys, again),
        "sharpness": _sharpness(pair, shared, measures, on),
        "power": {
            name: plain(panel_power(difference(name), keys.cluster, preset=preset, level=level)) for name in shared
        },
    }  # fmt: skip


def _clusters(keys: Keys) -> dict[str, Any]:
    """How many clusters there are, and how many different resamples of them."""
    count = len(np.unique(keys.cluster))
    return {
        "clusters": count,
        "windows": len(np.unique(keys.window_id)),
        "distinct_resamples": distinct_resamples(count),
    }


def _duplicates(keys: Keys) -> Duplicates:
    """Near-copies among the tokens that the rows of each window predict."""
    texts, clusters = {}, {}
    for name, own in keys.named("window_id"):
        texts[str(name)], clusters[str(name)] = keys.next_token[own], str(keys.cluster[own][0])
    return duplicate_windows(texts, clusters)


def _without_texts(found: Duplicates) -> dict[str, Any]:
    """The groups of near-copies; of the merged clusters only those that changed are told, by their windows."""
    document: dict[str, Any] = plain(found)
    del document["merged"]
    return document


def _merged(found: Duplicates, differences: Float64, on: _On) -> dict[str, Any]:
    """The difference with near-copies counted once."""
    if not found.found:
        return {"difference_merged": Missing("no text was counted more than once").as_json()}
    clusters = found.clusters_of(on.keys.window_id)
    own = population_mean(differences, clusters, preset=on.preset, level=on.level, kind="difference")
    return {"difference_merged": plain(own)}


def _entropy(measures: Measures, on: _On) -> Any:
    if "entropy" not in measures:
        return Missing("the rows do not give the entropy of the whole vocabulary").as_json()
    own, excess = measures["entropy"], measures.get("excess_entropy")
    reference = None if excess is None else own - excess
    return plain(entropy_of_arm(own, on.keys.cluster, reference_entropy=reference, preset=on.preset, level=on.level))


def _wild(distances: Float64 | Missing, keys: Keys, repeats: Mapping[str, Repeat]) -> Any:
    if isinstance(distances, Missing):
        return distances.as_json()
    return plain(hypersensitive_rows(distances, windows=keys.window_id, positions=keys.position, repeats=repeats))


def _between(first: tuple[str, str], keys: Keys, repeats: Repeats) -> Any:
    """Rows on which the two arms are far apart, beside each arm's own repeats."""
    name = _pair_kl(repeats, first)
    if isinstance(name, Missing):
        return name.as_json()
    return _wild(repeats.distances[first][name], keys, repeats.known(name, *first))


def _pair_kl(repeats: Repeats, pair: tuple[str, str]) -> str | Missing:
    """The distance between the rows of two arms that was measured."""
    own = repeats.distances.get(pair, {})
    none = Missing("the rows of the two arms were not held against each other")
    return next((name for name in _PAIR_KL if name in own), none)


def _baseline_choice(pair: PairOf, name: str, measures: Mapping[str, Measures], on: _On, repeats: Repeats) -> Any:
    """The difference against every run of the baseline: the arms of its side, and the repeats of the first that give the measure."""
    again = [arm for arm in repeats.of.get(pair.a.arms[0], ()) if name in measures.get(arm, {})]
    runs = tuple(dict.fromkeys((*pair.a.arms, *again)))
    every = np.ones(on.keys.rows, dtype=np.bool_)
    candidate, baseline = (runs_of(side, measures, name, every).per_row for side in (pair.b, pair.a))

    def against(run: str, values: Float64) -> RunResult:
        found = on.difference(candidate - values)
        return RunResult(run, value_of(found), stands(found))

    return plain(baseline_choice(against(str(pair.a), baseline), [against(run, measures[run][name]) for run in runs]))


def _shared_floor(first: tuple[str, str], on: _On, repeats: Repeats) -> Any:
    """The distance between the arms beside that between each arm and its repeats, on the same rows and clusters."""
    name = _pair_kl(repeats, first)
    if isinstance(name, Missing):
        return name.as_json()
    found = {}
    for own, repeat in repeats.known(name, *first).items():
        beside = floor_on_same_clusters(
            repeats.distances[first][name], repeat.distances, on.keys.cluster,
            repeated=repeat.known, preset=on.preset, level=on.level,
        )  # fmt: skip
        found[own] = plain(beside)
    return {"distance": name} | found if found else _NO_REPEAT.as_json()


def _by_chunk(pairs: Sequence[tuple[str, str]], keys: Keys, repeats: Repeats) -> Any:
    """Where the rows of two runs begin to differ, by the prefill chunk that computed them."""
    found = {}
    for first, second in pairs:
        equal = repeats.distances.get((first, second), {}).get("rows_bit_identical")
        if equal is not None:
            chunks = [repeats.chunks.get(arm, {}) for arm in (first, second)]
            by_chunk = bit_equality_by_chunk(
                equal == 1, keys.window_id, keys.position, first=chunks[0], second=chunks[1]
            )
            found[f"{first},{second}"] = plain(by_chunk)
    return found or Missing("no two captures of whole rows were held against each other").as_json()


def _sharpness(pair: PairOf, shared: Sequence[str], measures: Mapping[str, Measures], on: _On) -> Any:
    """How much of the gap of NLL is a flatter or sharper distribution; beside it the gap of KL from a full reference."""
    if lacking := [name for name in ("nll", "entropy") if name not in shared]:
        return Missing(f"the two arms do not both give {' and '.join(lacking)}").as_json()
    every = np.ones(on.keys.rows, dtype=np.bool_)

    def both(name: str) -> tuple[Float64, Float64]:
        return runs_of(pair.b, measures, name, every).per_row, runs_of(pair.a, measures, name, every).per_row

    nll, entropy = both("nll"), both("entropy")
    kl = both("kl_full") if "kl_full" in shared else (None, None)
    split = split_nll_gap(
        *nll, candidate_entropy=entropy[0], baseline_entropy=entropy[1], clusters=on.keys.cluster,
        candidate_kl=kl[0], baseline_kl=kl[1], preset=on.preset, level=on.level,
    )  # fmt: skip
    return plain(split)
