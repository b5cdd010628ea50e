"""Precision per row against full reference rows (MEASURES sections 1 and 2), from the sums of fast_rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.fast_rows import RowSums, row_sums, widened
from engcmp_assets.kernel.records import Missing
from engcmp_resources.errors import EngcmpError

Rows = npt.NDArray[np.floating[Any]] | npt.NDArray[np.uint16]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

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


def score_rows(
    reference: Rows, engine: Rows, next_tokens: Sequence[int] | Int64, *, where: str, jobs: int = 1
) -> RowScores:
    """Score k rows: `reference` and `engine` are [k, V] (float16, float32, float64, or bfloat16 as its bits in uint16; logits or
    log-probabilities, both are normalised here), `next_tokens` [k] the token that each row predicts. Units: nats and 0/1.

    `jobs` threads share the rows; the scores are the same bits for any number of them. Measure ids: those of RowScores.
    Raises EngcmpError that names `where` and the rows for every row that find_bad_rows would return, for arrays that do
    not pair up, and for a KL below -1e-10.
    """
    tokens = _checked(reference, engine, next_tokens, where)
    _refuse(_of_wrong_width(reference, engine), len(tokens), where)
    sums, bad = _sums(reference, engine, tokens, jobs=jobs)
    _refuse(bad, len(tokens), where)
    rows = np.arange(len(tokens))
    log_p, log_q = (
        widened(side[rows, tokens]) - top - np.log(total)
        for side, top, total in ((reference, sums.p_max, sums.p_sum), (engine, sums.q_max, sums.q_sum))
    )
    reference_entropy = np.log(sums.p_sum) - sums.p_moment / sums.p_sum
    entropy = np.log(sums.q_sum) - sums.q_moment / sums.q_sum
    nll, reference_nll = 0.0 - log_q, 0.0 - log_p
    return RowScores(
        kl_full=_kl(sums, where),
        nll=nll,
        top1=(sums.q_top == sums.p_top).astype(np.float64),
        entropy=entropy,
        excess_entropy=entropy - reference_entropy,
        nll_minus_reference=nll - reference_nll,
        agree_text=(sums.q_top == tokens).astype(np.float64),
        top3_contained=contained_in_top3(reference, sums.p_top, sums.q_top),
        reference_nll=reference_nll,
        reference_entropy=reference_entropy,
        reference_top_probability=1.0 / sums.p_sum,
        engine_top_id=sums.q_top,
        reference_top_id=sums.p_top,
    )


def find_bad_rows(
    reference: Rows, engine: Rows, *, next_tokens: Sequence[int] | Int64 | None = None, where: str, jobs: int = 1
) -> tuple[BadRow, ...]:
    """Every row that must not be averaged, in order, each with its reason; arrays and `jobs` as for score_rows.

    A row is bad when either side holds NaN, +inf or only -inf, when q = 0 where p > 0, when the next token is outside
    the vocabulary or gets probability 0 (its NLL is infinite), and when the engine's width is not the reference's (then
    all are). Probability 0 is written as -inf and as nothing else. Raises EngcmpError where rows cannot be paired.
    """
    tokens = _checked(reference, engine, next_tokens, where)
    wrong_width = _of_wrong_width(reference, engine)
    if wrong_width:
        return wrong_width
    return _sums(reference, engine, None if next_tokens is None else tokens, jobs=jobs)[1]


def pair_kl(a: Rows, b: Rows, *, where: str, jobs: int = 1) -> Float64:
    """KL(a to b) of each row in nats, float64 [k]; `a`, `b` and `jobs` are as in score_rows. Measure id: kl_pair_full.

    Raises EngcmpError that names `where` and the rows for bad rows and for a KL below -1e-10.
    """
    names = ("first", "second")
    _checked(a, b, None, where, names)
    _refuse(_of_wrong_width(a, b, names), len(a), where)
    sums, bad = _sums(a, b, None, jobs=jobs, names=names)
    _refuse(bad, len(a), where)
    return _kl(sums, where)


def contained_in_top3(reference: Rows, reference_top: Int64, engine_top: Int64) -> Float64:
    """1 where `engine_top` [k] is among the three first ids of its row of `reference` [k, V], else 0; `reference_top` [k] are the first.

    The raw values decide, equal ones rank by the lower id. Measure id: top3_contained.
    """
    contained = np.ones(len(reference_top), dtype=np.float64)
    for row in np.flatnonzero(reference_top != engine_top).tolist():
        values, place = widened(reference[row]), int(engine_top[row])
        rank = np.count_nonzero(values[:place] >= values[place]) + np.count_nonzero(values[place:] > values[place])
        contained[row] = rank < _TOP
    return contained


def symmetric_pair_kl(a: Rows, b: Rows, forward: Float64, *, where: str, jobs: int = 1) -> Float64 | Missing:
    """Half of `forward`, KL(a to b) as pair_kl gives it, and of KL(b to a), float64 [k] in nats. Measure id: kl_pair_full_symmetric.

    Missing where a gives probability 0 to what b does not: that direction is infinite, though the other is not.
    """
    sums, bad = _sums(b, a, None, jobs=jobs, names=("second", "first"))
    if bad:
        return Missing(f"the other direction is infinite on a row: {bad[0].reason}")
    return 0.5 * (forward + _kl(sums, where))


def _kl(sums: RowSums, where: str) -> Float64:
    """Sum of p (log p - log q), with log p - log q = x_p - x_q - log(p_sum / q_sum): exactly 0 for equal rows."""
    kl = sums.cross / sums.p_sum - np.log(sums.p_sum / sums.q_sum)
    if (kl < _KL_ROUNDING).any():
        index = int(kl.argmin())
        raise EngcmpError(
            f"row {index}: KL is {kl[index]:.3e} nats, below what rounding can explain",
            where=where,
            remedy="report this row as a fault of the scorer",
        )
    return np.where(kl > 0, kl, 0.0)


def _sums(
    p: Rows, q: Rows, tokens: Int64 | None, *, jobs: int, names: tuple[str, str] = ("reference", "engine")
) -> tuple[RowSums, tuple[BadRow, ...]]:
    """The sums of all rows, and the rows that must not be averaged."""
    sums = row_sums(p, q, jobs=jobs)
    bad = ~np.isfinite(sums.p_moment + sums.q_moment + sums.cross)
    if tokens is not None:
        inside = (tokens >= 0) & (tokens < p.shape[1])
        rows, own = np.arange(len(p)), np.where(inside, tokens, 0)
        bad |= ~inside
        for side, top in ((p, sums.p_max), (q, sums.q_max)):
            with np.errstate(invalid="ignore", over="ignore"):
                bad |= np.isneginf(widened(side[rows, own]) - top)
    found = np.flatnonzero(bad).tolist()
    own_tokens = [None] * len(p) if tokens is None else tokens.tolist()
    return sums, tuple(BadRow(row, _fault(p[row], q[row], own_tokens[row], names)) for row in found)


def _fault(p: Rows, q: Rows, token: int | None, names: tuple[str, str]) -> str:
    """Why a row [V] of both sides is bad: the first reason found."""
    sides = [widened(side).astype(np.float64) for side in (p, q)]
    for name, raw in zip(names, sides, strict=True):
        for kind, wrong in (("NaN", np.isnan(raw)), ("+inf", np.isposinf(raw))):
            if wrong.any():
                return f"the {name}'s row holds {wrong.sum()} x {kind}, first at id {wrong.argmax()}"
        if np.isneginf(raw).all():
            return f"the {name}'s row is -inf for every id"
    with np.errstate(over="ignore"):
        none_p, none_q = (np.isneginf(raw - raw.max()) for raw in sides)
    lost = none_q & ~none_p
    if lost.any():
        text = f"the {names[1]}'s probability is 0 where the {names[0]}'s is not"
        return f"{text}, at {lost.sum()} ids, first {lost.argmax()}"
    if token is not None and not 0 <= token < p.size:
        return f"its next token {token} is outside the vocabulary of {p.size} ids"
    return f"its next token {token} has probability 0, so its NLL is infinite"


def _checked(
    first: Rows,
    second: Rows,
    next_tokens: Sequence[int] | Int64 | None,
    where: str,
    names: tuple[str, str] = ("reference", "engine"),
) -> Int64:
    """`next_tokens` as int64 [k] (zeros where not given), once both arrays are known to hold the same k > 0 rows."""
    for name, array in zip(names, (first, second), strict=True):
        if array.ndim != 2 or not (array.dtype.kind == "f" or array.dtype == np.uint16):  # noqa: PLR2004 - dimensions
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


def _refuse(bad: Sequence[BadRow], rows: int, where: str) -> None:
    if not bad:
        return
    shown = "; ".join(f"row {one.index}: {one.reason}" for one in bad[:_SHOWN_ROWS])
    more = "" if len(bad) <= _SHOWN_ROWS else f"; and {len(bad) - _SHOWN_ROWS} more"
    raise EngcmpError(
        f"{len(bad)} of {rows} rows cannot be scored: {shown}{more}", where=where, remedy="recapture this window"
    )
