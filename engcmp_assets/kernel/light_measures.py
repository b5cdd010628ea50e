"""Precision per row of an engine that is known by its top 20 and the actual token: the light capture (MEASURES section 2).

`score_light` holds such rows against full reference rows, `score_light_topk` against top-K ones, `score_light_alone` against the text
alone; `pair_kl20` holds two engines against each other. `light_of` and `light_of_kept` make light rows of full and of kept ones.
Each takes as many rows at once as the caller has: a row reads the same whatever rows stand beside it.

What needs more than the top 20 (kl_full, entropy, rows_bit_identical ..) is not here and never 0: NOT_OF_LIGHT_ROWS says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.buckets import (
    OWN_TOP,
    SUM_ERROR,
    SUMMED_VALUES,
    Bools,
    Float64,
    Int64,
    Rows,
    blocks_of,
    bucket_kl,
    checked_tokens,
    flagged,
    log_probs_at,
    log_sum_exp,
    lost_buckets,
    ordered,
    own_native,
    refuse,
    refuse_bad_values,
    rest_of_listed,
    settled,
    top_ids_of,
)
from engcmp_assets.kernel.fast_rows import RowSums, widened
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.rounding import rounded_to, rounding_sentence
from engcmp_assets.kernel.row_measures import BadRow, contained_in_top3
from engcmp_assets.kernel.topk_measures import ReducedRows, TopKRows, kl_pb20, topk_agreement
from engcmp_resources.errors import EngcmpError

_ROUNDED = "capture this window with all digits: {}"
_SAME_TOKEN = 1e-3  # nats by which an API may differ with itself about one token
_WHOLE_ROW = Missing("a light capture keeps the top 20 and the actual token of a row: the whole row is needed")
_NO_HASH = Missing("a light capture keeps no raw rows, so none can be equal bit for bit")
NOT_OF_LIGHT_ROWS: dict[str, Missing] = {
    **dict.fromkeys(("kl_full", "kl_coarse", "entropy", "excess_entropy", "excess_entropy_at_most", "entropy_ratio"), _WHOLE_ROW),
    **dict.fromkeys(("kl_pair_full", "kl_pair_full_symmetric", "kl_pair_coarse"), _WHOLE_ROW),
    "rows_bit_identical": _NO_HASH,
}  # fmt: skip
"""The measures that a light capture cannot give, each with its reason."""


@dataclass(frozen=True, slots=True)
class LightRows:
    """n rows as an API gives them, natural logarithms of probabilities over the whole vocabulary.

    `top_ids` int64 and `top_log_probs` float64 [n, K] in falling probability, equal ones by the lower id, K = 20 (or the vocabulary,
    where that is smaller); `next_token_log_prob` float64 [n]. `rest_log_mass` float64 [n], the log-probability of all other ids, is
    known only of rows that were full: the rest of others is 1 minus the sum of their top ids. Make them with light_rows or light_of.
    """

    top_ids: Int64
    top_log_probs: Float64
    next_token_log_prob: Float64
    rest_log_mass: Float64 | None = None

    @property
    def rows(self) -> int:
        return len(self.top_ids)

    @property
    def argmax(self) -> Int64:
        """The most probable id of each row, int64 [n]; equal ones go to the lower id."""
        return self.top_ids[:, 0]


@dataclass(frozen=True, slots=True)
class LightScores:
    """One value a row, float64 [n], and int64 for token ids; fields are measure ids (LIGHT_ROW_MEASURES), in nats and 0/1.

    `reference_nll` (nats) and `reference_top_probability` describe the reference's own row. `rest_is_floor`, bool [n], marks the rows
    whose top probabilities sum to 1 or more: their rest in kl_top20 is 2^-149, and they are to be counted.
    """

    kl_top20: Float64
    nll: Float64
    top1: Float64
    nll_minus_reference: Float64
    agree_text: Float64
    top3_contained: Float64
    reference_nll: Float64
    reference_top_probability: Float64
    engine_top_id: Int64
    reference_top_id: Int64
    rest_is_floor: Bools


def light_rows(
    top_ids: npt.NDArray[np.integer[Any]],
    top_log_probs: npt.NDArray[np.floating[Any]],
    next_token_log_prob: npt.NDArray[np.floating[Any]],
    next_tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
    *,
    vocab: int,
    where: str,
) -> LightRows:
    """Rows as an API gave them: ids and log-probabilities [n, K or more] in any order; `next_tokens` [n]; their log-probabilities [n].

    What is listed beyond the top 20 is left out, so an actual token that an API adds is no bucket. Raises EngcmpError naming `where` and
    the rows for arrays that do not pair up, for fewer than 20 ids, an id outside the vocabulary or listed twice, values that are no
    log-probabilities, a sum above 1 by more than rounding, a next token of probability 0, and one whose log-probability is not what
    the list says or allows.
    """
    tokens = np.asarray(next_tokens)
    count, listed = top_ids.shape if top_ids.ndim == 2 else (-1, 0)  # noqa: PLR2004 - dimensions
    if count < 1 or top_log_probs.shape != top_ids.shape or {next_token_log_prob.shape, tokens.shape} != {(count,)}:
        shapes = ", ".join(str(list(one.shape)) for one in (top_ids, top_log_probs, next_token_log_prob, tokens))
        raise EngcmpError(
            f"light rows of shapes {shapes}", where=where, remedy="give a list and a next token for each row"
        )
    wanted = min(OWN_TOP, vocab)
    if listed < wanted:
        text = f"light rows list {listed} ids, the measures are of the top {wanted}"
        raise EngcmpError(text, where=where, remedy=f"ask the engine for its top {wanted} and capture again")
    ids, log_probs = top_ids.astype(np.int64), top_log_probs.astype(np.float64)
    order = np.lexsort((ids, -log_probs), axis=1)
    ids, log_probs = np.take_along_axis(ids, order, axis=1), np.take_along_axis(log_probs, order, axis=1)
    found = LightRows(ids[:, :wanted], log_probs[:, :wanted], next_token_log_prob.astype(np.float64))
    rising = np.sort(ids, axis=1)
    faults = flagged(
        (rising[:, 0] < 0) | (rising[:, -1] >= vocab), f"it lists an id outside the vocabulary of {vocab} ids"
    )
    faults += flagged((rising[:, 1:] == rising[:, :-1]).any(axis=1), "it lists an id twice")
    faults += _faults(found, tokens.astype(np.int64))
    step = rounded_to(log_probs) if faults else None
    refuse(faults, count, where, "recapture this window" if step is None else _ROUNDED.format(rounding_sentence(step)))
    return found


def light_of(logits: Rows, next_tokens: Sequence[int] | Int64, *, where: str, jobs: int = 1) -> LightRows:
    """The light form of full rows [n, V] (logits or log-probabilities; floats, or uint16 as the bits of bfloat16), with their exact rest.

    The 20th place goes to the lower of equal ids. `jobs` threads share the rows; the result is the same bits for any number of them.
    Raises EngcmpError naming `where` and the rows for NaN, +inf, a row of only -inf, a next token outside the vocabulary, and one of
    probability 0.
    """
    tokens = checked_tokens(logits, next_tokens, where)
    refuse_bad_values(logits, tokens, where)

    def reduced(block: slice) -> tuple[npt.NDArray[Any], ...]:
        raw = own_native(logits[block])
        own = top_ids_of(ordered(raw), min(OWN_TOP, logits.shape[1]))
        listed, rest, sums = log_probs_at(raw, own)
        return own, listed, _log_probs_of(raw, tokens[block], sums), rest

    ids, log_probs, following, rest = _by_blocks(reduced, logits, jobs)
    refuse(_infinite_nll(following), len(tokens), where)
    return LightRows(ids, log_probs, following, rest)


def light_of_kept(kept: ReducedRows) -> LightRows:
    """The light form of rows that were kept for a top-K reference: their own top 20, as they are stored in float32."""
    return LightRows(
        kept.own_top_ids.astype(np.int64), kept.own_top_log_probs.astype(np.float64), kept.next_token_log_prob.astype(np.float64)
    )  # fmt: skip


def score_light(
    reference: Rows, engine: LightRows, next_tokens: Sequence[int] | Int64, *, where: str, jobs: int = 1
) -> LightScores:
    """Score n light rows against full reference rows [n, V]; rows and `jobs` as for light_of. Measure ids: LIGHT_ROW_MEASURES.

    kl_top20: buckets are the engine's top 20 and the rest, with p in full; it never exceeds kl_full of the same rows. Raises EngcmpError
    naming `where` and the rows for arrays that do not pair up, for bad rows (NaN, +inf or nothing in the reference, q = 0 where p > 0, a
    next token outside the vocabulary or of probability 0 on either side), and for a KL below -1e-10 (for a marked row: below -1e-10
    less the logarithm of its sum).
    """
    tokens = checked_tokens(reference, next_tokens, where)
    _refuse_other_count(engine, len(tokens), where)
    outside = (engine.top_ids >= reference.shape[1]).any(axis=1)
    refuse(flagged(outside, f"it lists an id outside the vocabulary of {reference.shape[1]} ids"), len(tokens), where)
    if ((tokens < 0) | (tokens >= reference.shape[1])).any():
        refuse_bad_values(reference, tokens, where)

    def looked_up(block: slice) -> tuple[npt.NDArray[Any], ...]:
        raw = own_native(reference[block])
        listed, rest, sums = log_probs_at(raw, engine.top_ids[block])
        contained = contained_in_top3(raw, sums.q_top, engine.argmax[block])
        following = _log_probs_of(raw, tokens[block], sums)
        return np.column_stack([listed, rest]), sums.q_top, 1.0 / sums.q_sum, following, contained

    log_p, top, top_probability, following, contained = _by_blocks(looked_up, reference, jobs)
    if not np.isfinite(top_probability).all():
        refuse_bad_values(reference, tokens, where)
    rest_log_q, is_floor, excess = _rest(engine, np.ones(engine.top_ids.shape, dtype=np.bool_))
    log_q = np.column_stack([engine.top_log_probs, rest_log_q])
    faults = lost_buckets(log_p, log_q, ("reference", "engine")) + _infinite_nll(engine.next_token_log_prob)
    faults += flagged(np.isneginf(following), "its next token has reference probability 0")
    refuse(faults, len(tokens), where)
    nll, reference_nll = 0.0 - engine.next_token_log_prob, 0.0 - following
    return LightScores(
        kl_top20=settled(bucket_kl(log_p, log_q), where, excess),
        nll=nll,
        top1=(engine.argmax == top).astype(np.float64),
        nll_minus_reference=nll - reference_nll,
        agree_text=(engine.argmax == tokens).astype(np.float64),
        top3_contained=contained,
        reference_nll=reference_nll,
        reference_top_probability=top_probability,
        engine_top_id=engine.argmax,
        reference_top_id=top,
        rest_is_floor=is_floor,
    )


def score_light_topk(
    reference: TopKRows, engine: LightRows, next_tokens: Sequence[int] | Int64, *, where: str
) -> tuple[dict[str, Float64], Bools]:
    """Score n light rows against top-K reference rows: values by measure id (LIGHT_TOPK_ROW_MEASURES, and what topk_agreement gives),
    float64 [n]; and the rows, bool [n], whose rest in kl_pb20 is the floor. Raises EngcmpError as score_light, and as score_topk does.
    """
    tokens = np.asarray(next_tokens, dtype=np.int64)
    _refuse_other_count(engine, len(tokens), where)
    refuse(_infinite_nll(engine.next_token_log_prob), engine.rows, where)
    kl, is_floor = kl_pb20(reference, engine.top_ids, engine.top_log_probs, where=where)
    nll = 0.0 - engine.next_token_log_prob
    top1 = (engine.argmax == reference.top_ids[:, 0]).astype(np.float64)
    beside = topk_agreement(reference, engine.argmax, nll, tokens, where=where)
    return {"kl_pb20": kl, "nll": nll, "top1": top1} | beside, is_floor


def score_light_alone(engine: LightRows, next_tokens: Sequence[int] | Int64, *, where: str) -> dict[str, Float64]:
    """What n light rows give without a reference: `nll` and `agree_text`, float64 [n]. Raises EngcmpError for an infinite NLL."""
    tokens = np.asarray(next_tokens, dtype=np.int64)
    _refuse_other_count(engine, len(tokens), where)
    refuse(_infinite_nll(engine.next_token_log_prob), engine.rows, where)
    return {"nll": 0.0 - engine.next_token_log_prob, "agree_text": (engine.argmax == tokens).astype(np.float64)}


def pair_kl20(a: LightRows, b: LightRows, *, where: str) -> tuple[Float64, Bools]:
    """KL(a to b) of each row over the ids that both list and one bucket for the rest, float64 [n] in nats; and the rows, bool [n], where
    a rest is the floor. Measure id: kl_pair20. A row against itself reads exactly 0.

    Raises EngcmpError naming `where` and the rows for captures that do not pair up, for b = 0 where a > 0, and for a KL below -1e-10.
    """
    _refuse_other_count(b, a.rows, where)
    same = a.top_ids[:, :, None] == b.top_ids[:, None, :]
    in_a, in_b = same.any(axis=2), same.any(axis=1)
    of_b = np.take_along_axis(b.top_log_probs, same.argmax(axis=2), axis=1)
    rest_a, floor_a, _ = _rest(a, in_a)
    rest_b, floor_b, excess = _rest(b, in_b)
    log_a = np.column_stack([np.where(in_a, a.top_log_probs, -np.inf), rest_a])
    log_b = np.column_stack([np.where(in_a, of_b, -np.inf), rest_b])
    refuse(lost_buckets(log_a, log_b, ("first", "second")), a.rows, where)
    return settled(bucket_kl(log_a, log_b), where, excess), floor_a | floor_b


def _by_blocks(one: Callable[[slice], tuple[npt.NDArray[Any], ...]], logits: Rows, jobs: int) -> list[npt.NDArray[Any]]:
    """What `one` gives of some rows at a time, of all rows."""
    blocks = list(blocks_of(logits, SUMMED_VALUES))
    if jobs == 1:
        parts = [one(block) for block in blocks]
    else:
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            parts = list(pool.map(one, blocks))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _rest(rows: LightRows, chosen: Bools) -> tuple[Float64, Bools, Float64]:
    """The log of what `chosen` [n, K] of the top ids leave, where it is the floor, and the log of what their sum is above 1 there."""
    if rows.rest_log_mass is None:
        return rest_of_listed(rows.top_log_probs, chosen)
    others = np.where(chosen, -np.inf, rows.top_log_probs)
    rest = log_sum_exp(np.column_stack([others, rows.rest_log_mass]))
    return rest, np.zeros(rows.rows, dtype=np.bool_), np.zeros(rows.rows)


def _log_probs_of(raw: Rows, tokens: Int64, sums: RowSums) -> Float64:
    """The log-probability of one token a row, [n]; -inf for probability 0."""
    with np.errstate(over="ignore"):
        values: Float64 = (
            widened(np.take_along_axis(raw, tokens[:, None], axis=1))[:, 0] - sums.q_max - np.log(sums.q_sum)
        )
    return values


def _faults(rows: LightRows, tokens: Int64) -> list[BadRow]:
    """What rows of an API may not be: each list, and the actual token beside it."""
    values = np.column_stack([rows.top_log_probs, rows.next_token_log_prob])
    lost, above = (np.asarray(bad.any(axis=1), dtype=np.bool_) for bad in (np.isnan(values), values > SUM_ERROR))
    faults = flagged(lost, "it has NaN for a log-probability") + flagged(above, "it has a log-probability above 0")
    with np.errstate(over="ignore"):
        sums = np.exp(rows.top_log_probs).sum(axis=1)
    faults += flagged(sums > 1 + SUM_ERROR, f"the engine's top {rows.top_ids.shape[1]} sum to more than 1")
    faults += _infinite_nll(rows.next_token_log_prob)
    same = rows.top_ids == tokens[:, None]
    with np.errstate(invalid="ignore"):
        listed = np.where(same, rows.top_log_probs, 0.0).sum(axis=1)
        apart = same.any(axis=1) & ~(np.abs(listed - rows.next_token_log_prob) <= _SAME_TOKEN)
    faults += flagged(apart, "its next token has another log-probability in its list of top ids")
    missed = ~same.any(axis=1) & (rows.next_token_log_prob > rows.top_log_probs[:, -1] + _SAME_TOKEN)
    return faults + flagged(missed, "its next token is more probable than its listed ids and is not among them")


def _infinite_nll(log_probs: Float64) -> list[BadRow]:
    return flagged(~np.isfinite(log_probs), "its next token has probability 0, so its NLL is infinite")


def _refuse_other_count(rows: LightRows, count: int, where: str) -> None:
    if rows.rows != count or not count:
        raise EngcmpError(
            f"{rows.rows} light rows, {count} on the other side", where=where, remedy="recapture this window"
        )
