"""What some rows of one window give: the measures of each arm, full or light, and the distances of pairs (MEASURES section 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.light_measures import (
    NOT_OF_LIGHT_ROWS,
    LightRows,
    light_of,
    pair_kl20,
    score_light,
    score_light_alone,
    score_light_topk,
)
from engcmp_assets.kernel.measures import LIGHT_ROW_MEASURES, ROW_MEASURES, TOPK_ROW_MEASURES, WITHOUT_REFERENCE
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.row_measures import pair_kl, score_rows, symmetric_pair_kl
from engcmp_assets.kernel.topk_measures import (
    ReducedRows,
    TopKRows,
    entropy_at_least,
    pair_coarse,
    reduce_rows,
    score_topk,
    topk_agreement,
)
from engcmp_resources.errors import EngcmpError

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Pair = tuple[str, str]

REFERENCE = "reference"  # its name among the sides; no arm may have it
REST_IS_FLOOR = "rest_is_floor"
"""Beside a KL over an engine's top 20: 1 where these sum to 1 or more, so that the rest is the smallest positive float32."""
KEPT_EQUAL = "kept_equal"
"""Of two arms of light rows: 1 where all that both keep of a row has the same bits. Of the rest of the row nothing is known."""
_TOP_PROBABILITY = "reference_top_probability"
_WHOLE = {
    "full": (*ROW_MEASURES, "entropy_ratio"),
    "topk": (*TOPK_ROW_MEASURES, "excess_entropy_at_most"),
    "none": WITHOUT_REFERENCE,
}
_PAIRS = {
    "full": ("kl_pair_full", "kl_pair_full_symmetric", "rows_bit_identical"),
    "topk": ("kl_pair_coarse", "rows_bit_identical"),
    "none": ("kl_pair_full", "kl_pair_full_symmetric", "rows_bit_identical"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one window on every side: by arm `full` rows [n, V] (a full reference among them) or `light` ones; a top-K reference.

    `tokens` int64 [n] follow in the text. `files` names the files of some sides, for an error.
    """

    tokens: Int64
    full: Mapping[str, Array]
    light: Mapping[str, LightRows]
    top_k: TopKRows | None
    files: Callable[..., str]


@dataclass(slots=True)
class Measured:
    """By arm its measures and first choices, by pair its distances, arrays [n]; and what a pair does not have, with the reason."""

    measures: dict[str, dict[str, Float64]] = field(default_factory=dict)
    tops: dict[str, Int64] = field(default_factory=dict)
    distances: dict[Pair, dict[str, Float64]] = field(default_factory=dict)
    missing: dict[Pair, dict[str, Missing]] = field(default_factory=dict)


def lacking(reference: str, *, light: bool) -> dict[str, Missing]:
    """The measures that an arm of light rows does not have on a panel with this reference, and an arm of full rows does."""
    return {name: NOT_OF_LIGHT_ROWS[name] for name in _WHOLE[reference] if light and name in NOT_OF_LIGHT_ROWS}


def measure(part: Part, reference: str, arms: Sequence[str], pairs: Sequence[Pair], *, jobs: int) -> Measured:
    """Score every arm on these rows, and hold the rows of `pairs` against each other; `reference` is full, topk or none.

    Where one arm has light rows, full ones also give what light rows give, so that the two can be compared. Raises EngcmpError naming
    arm, file and row for bad rows.
    """
    found = Measured()
    light = dict(part.light)
    reduced: dict[str, ReducedRows] = {}
    for name in arms:
        if name in part.light:
            found.measures[name] = _light(part, name, reference, jobs)
            found.tops[name] = part.light[name].argmax
            continue
        if part.light:
            light[name] = light_of(part.full[name], part.tokens, where=f"arm {name}, {part.files(name)}", jobs=jobs)
        if reference == "topk":
            reduced[name] = _reduced(part, name)
            found.measures[name], found.tops[name] = _topk(part, name, reduced[name]), reduced[name].argmax
        else:
            found.measures[name], found.tops[name] = _full(part, name, reference, light.get(name), jobs)
    for a, b in pairs:
        own, missing = _apart(part, (a, b), reference, reduced=reduced, light=light, jobs=jobs)
        found.distances[(a, b)], found.missing[(a, b)] = own, missing
    return found


def _full(
    part: Part, name: str, reference: str, light: LightRows | None, jobs: int
) -> tuple[dict[str, Float64], Int64]:
    other = REFERENCE if reference == "full" else name
    where = f"arm {name}, {part.files(*dict.fromkeys((name, other)))}"
    scores = score_rows(part.full[other], part.full[name], part.tokens, where=where, jobs=jobs)
    if reference == "none":
        return {one: getattr(scores, one) for one in WITHOUT_REFERENCE}, scores.engine_top_id
    truncated = {}
    if light is not None:
        truncated = _floored(score_light(part.full[other], light, part.tokens, where=where, jobs=jobs))
    own = {one: getattr(scores, one) for one in (*ROW_MEASURES, _TOP_PROBABILITY)}
    return {"kl_full": own["kl_full"]} | truncated | own, scores.engine_top_id


def _floored(scores: Any) -> dict[str, Float64]:
    return {"kl_top20": scores.kl_top20, REST_IS_FLOOR: scores.rest_is_floor.astype(np.float64)}


def _light(part: Part, name: str, reference: str, jobs: int) -> dict[str, Float64]:
    rows = part.light[name]
    where = f"arm {name}, {part.files(*((name,) if reference == 'none' else (name, REFERENCE)))}"
    if reference == "none":
        return score_light_alone(rows, part.tokens, where=where)
    if reference == "topk":
        own, is_floor = score_light_topk(_stored(part), rows, part.tokens, where=where)
        return own | {REST_IS_FLOOR: is_floor.astype(np.float64)}
    scores = score_light(part.full[REFERENCE], rows, part.tokens, where=where, jobs=jobs)
    return _floored(scores) | {one: getattr(scores, one) for one in (*LIGHT_ROW_MEASURES, _TOP_PROBABILITY)}


def _reduced(part: Part, name: str) -> ReducedRows:
    where = f"arm {name}, {part.files(name, REFERENCE)}"
    return reduce_rows(part.full[name], _stored(part).top_ids, part.tokens, where=where)


def _topk(part: Part, name: str, reduced: ReducedRows) -> dict[str, Float64]:
    where, stored = f"arm {name}, {part.files(name, REFERENCE)}", _stored(part)
    scores = score_topk(stored, reduced, where=where)
    own = {one: getattr(scores, one) for one in TOPK_ROW_MEASURES}
    own["excess_entropy_at_most"] = scores.entropy - entropy_at_least(stored)
    own[REST_IS_FLOOR] = scores.pb20_rest_is_floor.astype(np.float64)
    return own | topk_agreement(stored, reduced.argmax, scores.nll, part.tokens, where=where)


def _apart(
    part: Part, pair: Pair, reference: str, *, reduced: Mapping[str, ReducedRows], light: Mapping[str, LightRows], jobs: int
) -> tuple[dict[str, Float64], dict[str, Missing]]:  # fmt: skip
    a, b = pair
    where = f"arms {a} and {b}, {part.files(a, b)}"
    truncated = {}
    if light:
        kl, is_floor = pair_kl20(light[a], light[b], where=where)
        truncated = {"kl_pair20": kl, REST_IS_FLOOR: is_floor.astype(np.float64)}
    if a in part.light and b in part.light:
        truncated[KEPT_EQUAL] = _equal_light(light[a], light[b])
    if a in part.light or b in part.light:
        return truncated, {name: NOT_OF_LIGHT_ROWS[name] for name in _PAIRS[reference]}
    one, other = part.full[a], part.full[b]
    equal = {"rows_bit_identical": _equal_rows(one, other)}
    if reference == "topk":
        return {"kl_pair_coarse": pair_coarse(reduced[a], reduced[b], where=where)} | truncated | equal, {}
    own = {"kl_pair_full": pair_kl(one, other, where=where, jobs=jobs)}
    both = symmetric_pair_kl(one, other, own["kl_pair_full"], where=where, jobs=jobs)
    if isinstance(both, Missing):
        return own | truncated | equal, {"kl_pair_full_symmetric": both}
    return own | {"kl_pair_full_symmetric": both} | truncated | equal, {}


def _stored(part: Part) -> TopKRows:
    if part.top_k is None:
        raise EngcmpError("a top-K panel needs a reference", remedy="give --reference")
    return part.top_k


def _equal_light(a: LightRows, b: LightRows) -> Float64:
    """1 where all that both keep of a row has the same bits, else 0."""
    columns = (
        (a.top_ids, b.top_ids),
        (a.top_log_probs, b.top_log_probs),
        (a.next_token_log_prob, b.next_token_log_prob),
    )
    same = [(one.view(np.int64) == other.view(np.int64)).reshape(a.rows, -1).all(axis=1) for one, other in columns]
    return np.asarray(np.stack(same).all(axis=0), dtype=np.float64)


def _equal_rows(a: Array, b: Array) -> Float64:
    """1 where two raw rows have the same bits and type, else 0."""
    if a.dtype != b.dtype:
        return np.zeros(len(a))
    bits = np.dtype(f"u{a.dtype.itemsize}")
    return np.array([np.array_equal(x.view(bits), y.view(bits)) for x, y in zip(a, b, strict=True)], dtype=np.float64)
