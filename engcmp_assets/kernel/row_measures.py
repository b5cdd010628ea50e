"""Precision per row against full reference rows (MEASURES sections 1 and 2), in blocks so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError

Rows = npt.NDArray[np.floating[Any]]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_BLOCK_VALUES = 1 << 19  # 4 MiB for each float64 temporary; about eight live at once, however many rows a window has
_KL_ROUNDING = -1e-10  # a KL below this cannot be rounding
_SHOWN_ROWS = 5  # bad rows that one error text names; find_bad_rows gives all
_TOP = 3  # top3_contained


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that must never be averaged: its index in the window's kept rows, and why."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class RowScores:
    """One value a row, arrays [k]: float64, and int64 for the two token ids. The fields are measure ids.

    `reference_nll`, `reference_entropy` (nats) and `reference_top_probability` describe the reference's own row.
    """

    kl_full: Float64
    nll: Float64
    top1: Float64
    entropy: Float64
    excess_entropy: Float64
    nll_minus_reference: Float64
    agree_text: Float64
    top3_contained: Float64
    reference_nll: Float64
    reference_entropy: Float64
    reference_top_probability: Float64
    engine_top_id: Int64
    reference_top_id: Int64


@dataclass(frozen=True, slots=True)
class _Block:
    """Some rows of both sides: raw values as float64 and their log-softmax, [rows, V], and the rows' faults."""

    start: int
    p_raw: Float64
    q_raw: Float64
    log_p: Float64
    log_q: Float64
    faults: tuple[BadRow, ...]


def score_rows(reference: Rows, engine: Rows, next_tokens: Sequence[int] | Int64, *, where: str) -> RowScores:
    """Score k rows: `reference` and `engine` are [k, V] (float16, float32 or float64; logits or log-probabilities, both
    are normalised here), `next_tokens` [k] the token that each row predicts. Units: nats and 0/1.

    Raises EngcmpError that names `where` and the rows for every row that find_bad_rows would return, for arrays that do
    not pair up, and for a KL below -1e-10. Measure ids: those of RowScores.
    """
    tokens = _checked(reference, engine, next_tokens, where)
    bad = list(_of_wrong_width(reference, engine))
    parts: list[RowScores] = []
    for block in () if bad else _blocks(reference, engine, tokens):
        bad.extend(block.faults)
        if not bad:
            parts.append(_score_block(block, tokens[block.start : block.start + len(block.p_raw)], where))
    _refuse(bad, len(tokens), where)
    return RowScores(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in RowScores.__dataclass_fields__)
    )


def find_bad_rows(
    reference: Rows, engine: Rows, *, next_tokens: Sequence[int] | Int64 | None = None, where: str
) -> tuple[BadRow, ...]:
    """Every row that must not be averaged, in order, each with its reason; arrays as for score_rows.

    A row is bad when either side holds NaN, +inf or only -inf, when q = 0 where p > 0, when the next token is outside
    the vocabulary or gets probability 0 (its NLL is infinite), and when the engine's width is not the reference's (then
    all are). Probability 0 is written as -inf and as nothing else. Raises EngcmpError where rows cannot be paired.
    """
    tokens = _checked(reference, engine, next_tokens, where)
    wrong_width = _of_wrong_width(reference, engine)
    if wrong_width:
        return wrong_width
    return tuple(
        fault for block in _blocks(reference, engine, None if next_tokens is None else tokens) for fault in block.faults
    )


def pair_kl(a: Rows, b: Rows, *, where: str) -> Float64:
    """KL(a to b) of each row in nats, float64 [k]; `a` and `b` are [k, V] as in score_rows. Measure id: kl_pair_full.

    Raises EngcmpError that names `where` and the rows for bad rows and for a KL below -1e-10.
    """
    names = ("first", "second")
    _checked(a, b, None, where, names)
    bad = list(_of_wrong_width(a, b, names))
    parts: list[Float64] = []
    for block in () if bad else _blocks(a, b, None, names):
        bad.extend(block.faults)
        if not bad:
            parts.append(_kl(block, np.exp(block.log_p), where))
    _refuse(bad, len(a), where)
    return np.concatenate(parts)


def _score_block(block: _Block, tokens: Int64, where: str) -> RowScores:
    rows = np.arange(len(tokens))
    p = np.exp(block.log_p)
    # The raw values decide order and ties: subtracting the normaliser could make two different values equal.
    p_top, q_top = block.p_raw.argmax(axis=1), block.q_raw.argmax(axis=1)
    nll, reference_nll = 0.0 - block.log_q[rows, tokens], 0.0 - block.log_p[rows, tokens]
    entropy, reference_entropy = _entropy(block.log_q, np.exp(block.log_q)), _entropy(block.log_p, p)
    return RowScores(
        kl_full=_kl(block, p, where),
        nll=nll,
        top1=(q_top == p_top).astype(np.float64),
        entropy=entropy,
        excess_entropy=entropy - reference_entropy,
        nll_minus_reference=nll - reference_nll,
        agree_text=(q_top == tokens).astype(np.float64),
        top3_contained=(_rank(block.p_raw, q_top) < _TOP).astype(np.float64),
        reference_nll=reference_nll,
        reference_entropy=reference_entropy,
        reference_top_probability=p[rows, p_top],
        engine_top_id=q_top.astype(np.int64),
        reference_top_id=p_top.astype(np.int64),
    )


def _log_softmax(raw: Float64) -> Float64:
    # A bad row makes NaN here; it is found and named in _faults, so numpy need not warn as well.
    with np.errstate(invalid="ignore", over="ignore"):
        shifted: Float64 = raw - raw.max(axis=1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _kl(block: _Block, p: Float64, where: str) -> Float64:
    with np.errstate(invalid="ignore"):
        terms = block.log_p - block.log_q
        terms *= p
    terms[np.isneginf(block.log_p)] = 0.0  # 0 log 0 = 0
    kl: Float64 = terms.sum(axis=1)
    if (kl < _KL_ROUNDING).any():
        index = int(kl.argmin())
        raise EngcmpError(
            f"row {block.start + index}: KL is {kl[index]:.3e} nats, below what rounding can explain",
            where=where,
            remedy="report this row as a fault of the scorer",
        )
    kl[kl <= 0] = 0.0  # also turns -0.0 into 0.0
    return kl


def _entropy(log_q: Float64, q: Float64) -> Float64:
    with np.errstate(invalid="ignore"):
        terms = q * log_q
    terms[np.isneginf(log_q)] = 0.0  # 0 log 0 = 0
    entropy: Float64 = 0.0 - terms.sum(axis=1)
    return entropy


def _rank(values: Float64, ids: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Rank (from 0) of one id a row among the row's values in falling order; equal values rank by the lower id."""
    own = np.take_along_axis(values, ids[:, None], axis=1)
    lower_ids = np.arange(values.shape[1]) < ids[:, None]
    rank: npt.NDArray[np.intp] = ((values > own) | ((values == own) & lower_ids)).sum(axis=1)
    return rank


def _blocks(
    first: Rows, second: Rows, tokens: Int64 | None, names: tuple[str, str] = ("reference", "engine")
) -> Iterator[_Block]:
    rows, vocab = first.shape
    step = max(1, _BLOCK_VALUES // vocab)
    for start in range(0, rows, step):
        # A C-ordered copy: each row is then summed the same way, whatever rows stand beside it.
        p_raw = np.array(first[start : start + step], dtype=np.float64, order="C")
        q_raw = np.array(second[start : start + step], dtype=np.float64, order="C")
        log_p, log_q = _log_softmax(p_raw), _log_softmax(q_raw)
        own = None if tokens is None else tokens[start : start + step]
        reasons = _faults(p_raw, q_raw, log_p, log_q, tokens=own, names=names)
        faults = tuple(BadRow(start + row, reasons[row]) for row in sorted(reasons))
        yield _Block(start, p_raw, q_raw, log_p, log_q, faults)


def _faults(
    p_raw: Float64, q_raw: Float64, log_p: Float64, log_q: Float64, *, tokens: Int64 | None, names: tuple[str, str]
) -> dict[int, str]:
    """The first reason found for each bad row of a block."""
    reasons: dict[int, str] = {}
    vocab = p_raw.shape[1]
    for name, raw in zip(names, (p_raw, q_raw), strict=True):
        for kind, found in (("NaN", np.isnan(raw)), ("+inf", np.isposinf(raw))):
            for row in np.flatnonzero(found.any(axis=1)).tolist():
                ids = np.flatnonzero(found[row])
                reasons.setdefault(row, f"the {name}'s row holds {ids.size} x {kind}, first at id {ids[0]}")
        for row in np.flatnonzero(np.isneginf(raw).all(axis=1)).tolist():
            reasons.setdefault(row, f"the {name}'s row is -inf for every id")
    lost = np.isneginf(log_q) & (log_p > -np.inf)
    for row in np.flatnonzero(lost.any(axis=1)).tolist():
        ids = np.flatnonzero(lost[row])
        text = f"the {names[1]}'s probability is 0 where the {names[0]}'s is not, at {ids.size} ids, first {ids[0]}"
        reasons.setdefault(row, text)
    for row, token in enumerate([] if tokens is None else tokens.tolist()):
        if not 0 <= token < vocab:
            reasons.setdefault(row, f"its next token {token} is outside the vocabulary of {vocab} ids")
        elif np.isneginf(log_q[row, token]) or np.isneginf(log_p[row, token]):
            reasons.setdefault(row, f"its next token {token} has probability 0, so its NLL is infinite")
    return reasons


def _checked(
    first: Rows,
    second: Rows,
    next_tokens: Sequence[int] | Int64 | None,
    where: str,
    names: tuple[str, str] = ("reference", "engine"),
) -> Int64:
    """`next_tokens` as int64 [k] (zeros where not given), once both arrays are known to hold the same k > 0 rows."""
    for name, array in zip(names, (first, second), strict=True):
        if array.ndim != 2 or array.dtype.kind != "f":  # noqa: PLR2004
            raise EngcmpError(
                f"the {name}'s rows are {array.dtype} {list(array.shape)}, not floating [rows, vocabulary]", where=where
            )
    if len(first) != len(second):
        raise EngcmpError(
            f"the {names[1]} has {len(second)} rows, the {names[0]} {len(first)}",
            where=where,
            remedy="recapture this window",
        )
    if first.size == 0:
        raise EngcmpError("there is no row to score", where=where, remedy="an empty capture is a failed one: recapture")
    tokens = np.asarray([0] * len(first) if next_tokens is None else next_tokens)
    if tokens.shape != (len(first),) or tokens.dtype.kind not in "iu":
        raise EngcmpError(
            f"next tokens are {tokens.dtype} {list(tokens.shape)}, not integers for {len(first)} rows",
            where=where,
            remedy="give the token that each row predicts",
        )
    return tokens.astype(np.int64)


def _of_wrong_width(first: Rows, second: Rows, names: tuple[str, str] = ("reference", "engine")) -> tuple[BadRow, ...]:
    if first.shape[1] == second.shape[1]:
        return ()
    reason = f"the {names[1]}'s row has {second.shape[1]} values, the {names[0]}'s {first.shape[1]}"
    return tuple(BadRow(row, reason) for row in range(len(first)))


def _refuse(bad: list[BadRow], rows: int, where: str) -> None:
    if not bad:
        return
    shown = "; ".join(f"row {one.index}: {one.reason}" for one in bad[:_SHOWN_ROWS])
    more = "" if len(bad) <= _SHOWN_ROWS else f"; and {len(bad) - _SHOWN_ROWS} more"
    raise EngcmpError(
        f"{len(bad)} of {rows} rows cannot be scored: {shown}{more}", where=where, remedy="recapture this window"
    )
