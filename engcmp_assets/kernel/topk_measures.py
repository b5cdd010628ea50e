"""Precision per row against a top-K reference (MEASURES sections 1 and 2): what is kept of a row, and what is measured from it.

Both sides know a row as K token ids and one bucket for all other ids, so their buckets partition the vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.buckets import (
    CACHED_VALUES,
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
from engcmp_assets.kernel.fast_rows import widened
from engcmp_assets.kernel.row_measures import BadRow
from engcmp_resources.errors import EngcmpError

TOP_K = 1024
_BLOCK_VALUES = CACHED_VALUES
_SUMMED_VALUES = SUMMED_VALUES
# A log-prob x stored in float16 is off by at most |x| / 2,048, so a row's sum by at most ln(K + 1) / 2,048 = 0.34 %.
_REFERENCE_SUM_ERROR = 0.01
_CONTAINED = 3  # top3_contained


@dataclass(frozen=True, slots=True)
class TopKRows:
    """A reference's rows as they are stored: n rows, K ids, natural logarithms.

    `top_ids` uint32 [n, K] in falling probability, equal ones by the lower id; `top_log_probs` float16 [n, K];
    `tail_log_mass` float32 [n], the log of the summed probability of all other ids; `next_token_log_prob` float32 [n].
    """

    top_ids: npt.NDArray[np.uint32]
    top_log_probs: npt.NDArray[np.float16]
    tail_log_mass: npt.NDArray[np.float32]
    next_token_log_prob: npt.NDArray[np.float32]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self, name) for name in TopKRows.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class ReducedRows:
    """What is kept of an engine's rows: n rows, the K ids of a reference, natural logarithms.

    `log_probs` float32 [n, K] at the reference's ids, `rest_log_mass` float32 [n] of all other ids, `next_token_log_prob` float64 [n];
    `own_top_ids` uint32 and `own_top_log_probs` float32 [n, 20], ordered as TopKRows; `entropy` float64 [n] of the full row;
    `reference_ids_digest` uint64 [n] tells which ids `log_probs` belong to. The first own top id is the argmax.
    """

    log_probs: npt.NDArray[np.float32]
    rest_log_mass: npt.NDArray[np.float32]
    next_token_log_prob: Float64
    own_top_ids: npt.NDArray[np.uint32]
    own_top_log_probs: npt.NDArray[np.float32]
    entropy: Float64
    reference_ids_digest: npt.NDArray[np.uint64]

    @property
    def argmax(self) -> Int64:
        """The most probable id of each row, int64 [n]; equal ones go to the lower id."""
        return self.own_top_ids[:, 0].astype(np.int64)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self, name) for name in ReducedRows.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class TopKScores:
    """One value a row, float64 [n], in nats and 0/1; the fields are measure ids (TOPK_ROW_MEASURES).

    `pb20_rest_is_floor`, bool [n], marks the rows whose top-20 probabilities sum to 1 or more, which are to be counted.
    """

    kl_coarse: Float64
    kl_pb20: Float64
    nll: Float64
    top1: Float64
    entropy: Float64
    pb20_rest_is_floor: Bools


def topk_of(logits: Rows, next_tokens: Sequence[int] | Int64, k: int = TOP_K, *, where: str) -> TopKRows:
    """The top-K form of full rows [n, V] for `next_tokens` [n]: logits or log-probabilities; floats, or uint16 as the bits of bfloat16.

    The tail is a log-sum-exp over the ids that are not in the top K, and -inf where k = V. What float16 does to kl_coarse: see
    score_topk. Raises EngcmpError for k below 1 or above V, and naming `where` and the rows for NaN, +inf, a row of only -inf, and a
    next token outside the vocabulary.
    """
    tokens = checked_tokens(logits, next_tokens, where)
    refuse_bad_values(logits, tokens, where)
    vocab = logits.shape[1]
    if not 1 <= k <= vocab:
        raise EngcmpError(
            f"there are no top {k} ids of {vocab} ids", where=where, remedy=f"ask for k from 1 to {vocab}"
        )
    parts = []
    for block in blocks_of(logits, _BLOCK_VALUES):
        raw = np.array(widened(logits[block]), dtype=np.float64, order="C")
        ids = top_ids_of(raw, k)
        log_p, log_sum = _normalised(raw)
        next_log_prob = np.take_along_axis(log_p, tokens[block, None], axis=1)[:, 0] - log_sum
        top = np.take_along_axis(log_p, ids, axis=1) - log_sum[:, None]
        np.put_along_axis(log_p, ids, -np.inf, axis=1)
        parts.append((ids, top, log_sum_exp(log_p) - log_sum, next_log_prob))
    ids, top, tail, next_log_prob = (np.concatenate(part) for part in zip(*parts, strict=True))
    with np.errstate(over="ignore"):  # below -65,504 a float16 is -inf, and exp is 0 from -746 on
        return TopKRows(
            ids.astype(np.uint32), top.astype(np.float16), tail.astype(np.float32), next_log_prob.astype(np.float32)
        )


def reduce_rows(
    logits: Rows, top_ids: npt.NDArray[np.uint32], next_tokens: Sequence[int] | Int64, *, where: str
) -> ReducedRows:
    """What is kept of an engine's full rows [n, V] (as for topk_of) once `top_ids` [n, K] of the reference are known.

    All is computed in float64 from the full row before it is dropped. Raises EngcmpError naming `where` and the rows for NaN, +inf, a row
    of only -inf, a next token outside the vocabulary, and for ids that do not fit the rows: another count, outside the vocabulary, twice.
    """
    tokens = checked_tokens(logits, next_tokens, where)
    if ((tokens < 0) | (tokens >= logits.shape[1])).any():
        refuse_bad_values(logits, tokens, where)
    places = _checked_ids(top_ids, logits, where)
    parts = []
    for block in blocks_of(logits, _SUMMED_VALUES):
        raw = own_native(logits[block])
        listed, rest, sums = log_probs_at(raw, places[block])
        if not np.isfinite(sums.q_sum).all():
            refuse_bad_values(logits, tokens, where)
        log_sum = np.log(sums.q_sum)
        own = top_ids_of(ordered(raw), min(OWN_TOP, logits.shape[1]))
        with np.errstate(over="ignore"):
            following, own_top = (
                widened(np.take_along_axis(raw, ids, axis=1)) - sums.q_max[:, None] - log_sum[:, None]
                for ids in (tokens[block, None], own)
            )
        parts.append((listed, rest, following[:, 0], own, own_top, log_sum - sums.q_moment / sums.q_sum))
    listed, rest, following, own, own_top, entropy = (np.concatenate(part) for part in zip(*parts, strict=True))
    with np.errstate(over="ignore"):
        return ReducedRows(
            listed.astype(np.float32), rest.astype(np.float32), following,
            own.astype(np.uint32), own_top.astype(np.float32), entropy, _digests(top_ids),
        )  # fmt: skip


def score_topk(reference: TopKRows, engine: ReducedRows, *, where: str) -> TopKScores:
    """Score n rows of an engine against a top-K reference. Measure ids: the fields of TopKScores.

    kl_coarse: the reference's K + 1 stored values are renormalised in float64, and so are the engine's: its buckets partition the
    vocabulary, so this takes off nothing but float32 storage, which alone made KLs of down to -4e-8 on rows of SmolLM2.
    kl_pb20 knows of the engine only what an unmodified server returns, its top 20, so a light capture of the row reads the same: the
    rest is log1p(-sum), and where rounding makes the sum 1 or more it is 2^-149, the smallest positive float32, and the row is marked.
    (A rest that is summed itself would move it by at most 1.7e-7 on the rows below.)

    float16 storage: with h = |log p| / 2,048, H = log sum p e^h and r = e^(h + H) - 1, kl_coarse is within sum p r (|log p/q| + r) of
    the exact KL over these buckets, so it can exceed kl_full by as much. On 384 rows of SmolLM2: within 4.5e-4 on a row and 2.4e-6 on
    the mean at a mean KL of 0.385 (4-bit), 5.8e-5 and 2.2e-7 at 0.0045 (8-bit); the reference against itself reads 2.4e-7, at most 8e-7.

    Raises EngcmpError naming `where` and rows for arrays that do not pair up, for bad rows (q = 0 where p > 0, an infinite NLL, values
    that do not sum to 1), and for a KL below -1e-10 (for a marked row: below -1e-10 less the logarithm of its sum).
    """
    _refuse_other_ids(reference, engine, where)
    log_p_stored = _with_rest(reference.top_log_probs, reference.tail_log_mass)
    log_q_stored = _with_rest(engine.log_probs, engine.rest_log_mass)
    log_p, log_q = _renormalised(log_p_stored), _renormalised(log_q_stored)
    own_log_q = engine.own_top_log_probs.astype(np.float64)
    faults = [
        *_sum_faults(log_p_stored, "reference", _REFERENCE_SUM_ERROR),
        *_sum_faults(log_q_stored, "engine", SUM_ERROR),
        *_own_sum_faults(own_log_q),
        *lost_buckets(log_p, log_q, ("reference", "engine")),
        *flagged(~np.isfinite(reference.next_token_log_prob), "its next token has reference probability 0"),
        *flagged(~np.isfinite(engine.next_token_log_prob), "its next token has probability 0, so its NLL is infinite"),
        *flagged(~np.isfinite(engine.entropy), "the engine's entropy is not a number"),
    ]
    refuse(faults, len(log_p), where)
    pb20, is_floor = _kl_pb20(log_p, reference.top_ids, engine.own_top_ids, own_log_q, where)
    return TopKScores(
        kl_coarse=settled(bucket_kl(log_p, log_q), where),
        kl_pb20=pb20,
        nll=0.0 - engine.next_token_log_prob.astype(np.float64),
        top1=(engine.argmax == reference.top_ids[:, 0]).astype(np.float64),
        entropy=engine.entropy.astype(np.float64),
        pb20_rest_is_floor=is_floor,
    )


def kl_pb20(
    reference: TopKRows, own_ids: npt.NDArray[np.integer[Any]], own_log_probs: Float64, *, where: str
) -> tuple[Float64, Bools]:
    """kl_pb20 of n rows whose engine is known by its top 20 alone, `own_ids` and `own_log_probs` [n, 20]: float64 [n] in nats; and the
    rows, bool [n], whose rest is the floor. It is the value that score_topk gives of a row whose top 20 are these.

    Raises EngcmpError naming `where` and rows for another number of rows, for values that do not sum to 1 (the reference) or to more than
    1 (the engine), for q = 0 where p > 0, and for a KL as score_topk does.
    """
    if len(own_ids) != len(reference.top_ids):
        text = f"the engine has {len(own_ids)} rows, the reference {len(reference.top_ids)}"
        raise EngcmpError(text, where=where, remedy="recapture this window")
    stored = _with_rest(reference.top_log_probs, reference.tail_log_mass)
    faults = _sum_faults(stored, "reference", _REFERENCE_SUM_ERROR) + _own_sum_faults(own_log_probs)
    refuse(faults, len(stored), where)
    return _kl_pb20(_renormalised(stored), reference.top_ids, own_ids, own_log_probs, where)


def topk_agreement(
    reference: TopKRows, engine_top: Int64, nll: Float64, next_tokens: Int64, *, where: str
) -> dict[str, Float64]:
    """What else n rows of an engine give beside a top-K reference, by measure id, float64 [n], of their first choices and NLLs [n].

    `nll_minus_reference` (nats), `agree_text`, `top3_contained`, and of the reference `reference_top_probability`. The stored order
    decides among equal ids. Raises EngcmpError naming `where` and rows for a next token of reference probability 0.
    """
    faults = flagged(~np.isfinite(reference.next_token_log_prob), "its next token has reference probability 0")
    refuse(faults, len(engine_top), where)
    log_p = _renormalised(_with_rest(reference.top_log_probs, reference.tail_log_mass))
    first = reference.top_ids[:, :_CONTAINED].astype(np.int64)
    return {
        "nll_minus_reference": nll + reference.next_token_log_prob.astype(np.float64),
        "agree_text": (engine_top == next_tokens).astype(np.float64),
        "top3_contained": (first == engine_top[:, None]).any(axis=1).astype(np.float64),
        "reference_top_probability": np.exp(log_p[:, 0]),
    }


def entropy_at_least(reference: TopKRows) -> Float64:
    """The entropy of each row of a top-K reference over its K + 1 buckets, float64 [n] in nats: its own entropy is at least this.

    An engine's entropy less it is the measure excess_entropy_at_most.
    """
    log_p = _renormalised(_with_rest(reference.top_log_probs, reference.tail_log_mass))
    return 0.0 - bucket_kl(log_p, np.zeros_like(log_p))


def pair_coarse(a: ReducedRows, b: ReducedRows, *, where: str) -> Float64:
    """KL(a to b) of each row over the reference's K ids and one bucket for the rest, float64 [n] in nats. Measure id: kl_pair_coarse.

    Both sides' K + 1 values are renormalised in float64, for the reason given in score_topk; a row against itself reads exactly 0.
    Raises EngcmpError naming `where` and rows for rows that were reduced at other ids, for bad rows and for a KL below -1e-10.
    """
    same_shape = a.log_probs.shape == b.log_probs.shape
    if not same_shape or (a.reference_ids_digest != b.reference_ids_digest).any():
        raise EngcmpError(
            "two captures were reduced at different ids", where=where, remedy="reduce both with one reference's ids"
        )
    stored_a, stored_b = (_with_rest(side.log_probs, side.rest_log_mass) for side in (a, b))
    log_a, log_b = _renormalised(stored_a), _renormalised(stored_b)
    faults = _sum_faults(stored_a, "first", SUM_ERROR) + _sum_faults(stored_b, "second", SUM_ERROR)
    refuse(faults + lost_buckets(log_a, log_b, ("first", "second")), len(log_a), where)
    return settled(bucket_kl(log_a, log_b), where)


def _kl_pb20(
    log_p: Float64,
    top_ids: npt.NDArray[np.uint32],
    own_ids: npt.NDArray[np.integer[Any]],
    own_log_q: Float64,
    where: str,
) -> tuple[Float64, Bools]:
    """kl_pb20 of each row and whether its rest is the floor; `log_p` [n, K + 1] renormalised, the rest last."""
    same = own_ids[:, :, None] == top_ids[:, None, :]
    listed, places = same.any(axis=2), same.argmax(axis=2)
    # The ids of a bucket, and then all others with the tail as one: an own id that the reference does not list is among these.
    bucket_log_p = np.where(listed, np.take_along_axis(log_p, places, axis=1), -np.inf)
    others = np.exp(log_p)
    rows, columns = np.nonzero(listed)
    others[rows, places[rows, columns]] = 0.0
    with np.errstate(divide="ignore"):
        rest_log_p = np.log(others.sum(axis=1))
    rest_log_q, is_floor, excess = rest_of_listed(own_log_q, listed)
    bucket_log_p, log_q = np.column_stack([bucket_log_p, rest_log_p]), np.column_stack([own_log_q, rest_log_q])
    refuse(lost_buckets(bucket_log_p, log_q, ("reference", "engine")), len(log_p), where)
    kl = bucket_kl(bucket_log_p, log_q)
    return settled(kl, where, excess), is_floor


def _normalised(raw: Float64) -> tuple[Float64, Float64]:
    """`raw`, changed in place to values whose maximum is 0 in each row, and the log of the sum of their exponentials [n]."""
    with np.errstate(over="ignore"):
        raw -= raw.max(axis=1, keepdims=True)
    return raw, np.log(np.exp(raw).sum(axis=1))


def _digests(top_ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """The first 64 bits of the SHA-256 of each row's ids, as little-endian numbers, [n]."""
    rows = np.ascontiguousarray(top_ids, dtype="<u4")
    digests = [hashlib.sha256(row.data).digest()[:8] for row in rows]
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


def _with_rest(listed: Rows, rest: Rows) -> Float64:
    """K + 1 buckets in float64: the listed ids, then the rest."""
    return np.column_stack([listed.astype(np.float64), rest.astype(np.float64)])


def _renormalised(log_values: Float64) -> Float64:
    with np.errstate(invalid="ignore"):  # a row of only -inf is found by its sum
        shared: Float64 = log_values - log_sum_exp(log_values)[:, None]
    return shared


def _own_sum_faults(own_log_q: Float64) -> list[BadRow]:
    with np.errstate(over="ignore"):
        sums = np.exp(own_log_q).sum(axis=1)
    return flagged(~(sums <= 1 + SUM_ERROR), "the engine's top 20 sum to more than 1")  # NaN is bad as well


def _sum_faults(log_values: Float64, name: str, tolerance: float) -> list[BadRow]:
    with np.errstate(over="ignore"):
        sums = np.exp(log_values).sum(axis=1)
    bad = np.flatnonzero(~(np.abs(sums - 1.0) <= tolerance))  # NaN is bad as well
    return [BadRow(int(row), f"the {name}'s kept probabilities sum to {sums[row]:.6g}, not 1") for row in bad]


def _checked_ids(top_ids: npt.NDArray[np.uint32], logits: Rows, where: str) -> Int64:
    """`top_ids` as int64 [n, K], once they are known to be distinct ids of the rows' vocabulary."""
    rows, vocab = logits.shape
    if top_ids.ndim != 2 or len(top_ids) != rows or not top_ids.size or top_ids.dtype.kind not in "iu":  # noqa: PLR2004 - dimensions
        text = f"the reference's ids are {top_ids.dtype} {list(top_ids.shape)}, not integers [rows, K] for {rows} rows"
        raise EngcmpError(text, where=where, remedy="give the top ids of the same window's reference")
    rising = np.sort(top_ids.astype(np.int64), axis=1)
    outside = (rising[:, 0] < 0) | (rising[:, -1] >= vocab)
    faults = flagged(outside, f"the reference lists an id outside the vocabulary of {vocab} ids")
    faults += flagged((rising[:, 1:] == rising[:, :-1]).any(axis=1), "the reference lists an id twice")
    refuse(faults, rows, where)
    return top_ids.astype(np.int64)


def _refuse_other_ids(reference: TopKRows, engine: ReducedRows, where: str) -> None:
    if reference.top_ids.shape != engine.log_probs.shape:
        raise EngcmpError(
            f"the engine has {list(engine.log_probs.shape)} values, the reference {list(reference.top_ids.shape)} (rows, ids)",
            where=where,
            remedy="reduce the engine's rows with this reference, or recapture this window",
        )
    other = _digests(reference.top_ids) != engine.reference_ids_digest
    refuse(flagged(other, "the engine's values are at other ids than the reference's"), len(other), where)
