"""What all measures of a few ids and one bucket for the rest share: the divergence over buckets, rests, top ids, and bad rows.

MEASURES section 2: natural logarithms, float64; a row's buckets partition the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.fast_rows import RowSums, row_sums, widened
from engcmp_assets.kernel.row_measures import BadRow
from engcmp_resources.errors import EngcmpError

Rows = npt.NDArray[np.floating[Any]] | npt.NDArray[np.uint16]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OWN_TOP = 20  # what an unmodified server returns of a row
# 1 MiB for each float64 temporary, so that they stay in the cache: blocks of 2 MiB take twice as long.
CACHED_VALUES = 1 << 17
SUMMED_VALUES = 1 << 19  # of rows that are summed at once, in their own dtype
SUM_ERROR = 1e-5  # of probabilities that were rounded to float32, with room: 4e-7
_KL_ROUNDING = -1e-10  # a KL below this cannot be rounding
_SMALLEST_FLOAT32 = float(np.finfo(np.float32).smallest_subnormal)  # 2^-149
_MINUS_INF_BFLOAT16 = 0xFF80
_SHOWN_ROWS = 5  # bad rows that one error text names


def log_probs_at(raw: Rows, ids: Int64) -> tuple[Float64, Float64, RowSums]:
    """Log-probabilities of rows [n, V] at `ids` [n, K], as [n, K], and of all other ids together, [n]: -inf where these have none.

    The rest is a log-sum-exp of its own, so no tail is lost to 1 minus a sum. The sums of q are those of the whole rows; a row with NaN,
    +inf or only -inf has no finite `q_sum` and no meaning.
    """
    minus_inf = _MINUS_INF_BFLOAT16 if raw.dtype == np.uint16 else -np.inf
    others = raw.copy()
    np.put_along_axis(others, ids, minus_inf, axis=1)
    sums = row_sums(others, raw)
    empty = np.isneginf(sums.p_max)  # of no other id has a probability: such a row has no sums at all
    if empty.any():
        others[empty] = raw[empty]
        sums = row_sums(others, raw)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_sum = np.log(sums.q_sum)
        listed = widened(np.take_along_axis(raw, ids, axis=1)) - sums.q_max[:, None] - log_sum[:, None]
        rest = np.where(empty, -np.inf, sums.p_max - sums.q_max + np.log(sums.p_sum) - log_sum)
    return listed, rest, sums


def rest_of_listed(log_q: Float64, chosen: Bools) -> tuple[Float64, Bools, Float64]:
    """Of rows that are known by `log_q` [n, K] alone: the log of what the `chosen` ids leave, log1p(-sum), [n]; where it is the floor;
    and the log of what the sum is above 1 there.

    Where rounding makes the sum 1 or more, the rest is 2^-149, the smallest positive float32, and the row is to be counted.
    """
    total = np.where(chosen, np.exp(log_q), 0.0).sum(axis=1)
    is_floor = total >= 1.0
    rest = np.where(is_floor, np.log(_SMALLEST_FLOAT32), np.log1p(-np.where(is_floor, 0.0, total)))
    return rest, is_floor, np.log(np.where(is_floor, total, 1.0))


def own_native(block: Rows) -> npt.NDArray[Any]:
    """Rows of any byte order and layout as the machine's own, side by side."""
    return np.ascontiguousarray(block, dtype=block.dtype.newbyteorder("="))


def bucket_kl(log_p: Float64, log_q: Float64) -> Float64:
    """Sum over buckets of p (log p - log q) of each row, from log-probabilities [n, B]: float64 [n] in nats."""
    with np.errstate(invalid="ignore"):
        terms = np.exp(log_p) * (log_p - log_q)
    terms[np.isneginf(log_p)] = 0.0  # 0 log 0 = 0
    kl: Float64 = terms.sum(axis=1)
    return kl


def settled(kl: Float64, where: str, excess: Float64 | float = 0.0) -> Float64:
    """`kl` with rounding below 0 made 0. `excess` is what the logarithm of q's sum is above 0: it alone may lower a KL that far."""
    below = kl + excess
    if (below < _KL_ROUNDING).any():
        index = int(below.argmin())
        raise EngcmpError(
            f"row {index}: KL is {kl[index]:.3e} nats, below what rounding can explain",
            where=where,
            remedy="report this row as a fault of the scorer",
        )
    return np.where(kl > 0, kl, 0.0)


def log_sum_exp(values: Float64) -> Float64:
    """Log of the summed exponentials of each row, by its own maximum; -inf for a row of nothing but -inf."""
    top = values.max(axis=1)
    with np.errstate(invalid="ignore"):
        summed: Float64 = top + np.log(np.exp(values - top[:, None]).sum(axis=1))
    return np.where(np.isneginf(top), -np.inf, summed)


def top_ids_of(raw: Rows, k: int) -> Int64:
    """The ids of the k largest raw values of each row, in falling order, equal ones by the lower id.

    Raw values decide: subtracting the normaliser could make two different ones equal. The k-th largest of the maxima of any groups is
    at most the k-th largest value, so few values are left to sort: faster than a partition of the row.
    """
    vocab = raw.shape[1]
    depth = max(1, vocab // (3 * k))  # of about 3 k groups
    found = np.empty((len(raw), k), dtype=np.int64)
    for row, ids in zip(raw, found, strict=True):
        maxima = row[: vocab - vocab % depth].reshape(depth, -1).max(axis=0)
        floor = np.partition(maxima, maxima.size - k)[maxima.size - k]
        candidates = np.flatnonzero(row >= floor)
        ids[:] = candidates[np.argsort(-row[candidates], kind="stable")[:k]]
    return found


def ordered(rows: Rows) -> npt.NDArray[Any]:
    """What orders rows without NaN: integers for 16-bit floats, which numpy compares slowly or, as bits, wrongly; others as they are."""
    if rows.dtype.itemsize > np.int16().itemsize:
        return rows
    bits = rows.view(np.int16)
    minus = bits >> 15  # -1 where the sign is set, else 0
    return ((bits & np.int16(0x7FFF)) ^ minus) - minus  # 0 and -0 are equal


def blocks_of(logits: Rows, values: int) -> Iterator[slice]:
    """Some rows at a time, of about so many values; each is summed the same way whatever rows stand beside it."""
    step = max(1, values // logits.shape[1])
    for start in range(0, len(logits), step):
        yield slice(start, start + step)


def flagged(bad: Bools, reason: str) -> list[BadRow]:
    """The rows where `bad` [n] holds, each with the reason."""
    return [BadRow(int(row), reason) for row in np.flatnonzero(bad)]


def lost_buckets(log_p: Float64, log_q: Float64, names: tuple[str, str]) -> list[BadRow]:
    """The rows whose q is 0 at a bucket where p is not; buckets [n, B], the rest last."""
    lost = np.isneginf(log_q) & (log_p > -np.inf)
    reason = f"the {names[1]}'s probability is 0 where the {names[0]}'s is not"
    faults = []
    for row in np.flatnonzero(lost.any(axis=1)):
        rest = ", the rest among them" if lost[row, -1] else ""
        faults.append(BadRow(int(row), f"{reason}, at {lost[row].sum()} of {lost.shape[1]} buckets{rest}"))
    return faults


def checked_tokens(logits: Rows, next_tokens: Sequence[int] | Int64, where: str) -> Int64:
    """`next_tokens` as int64 [n], once the rows are known to be floating and to hold something."""
    floating = logits.dtype.kind == "f" or logits.dtype == np.uint16
    if logits.ndim != 2 or not floating or logits.size == 0:  # noqa: PLR2004 - dimensions
        text = f"rows are {logits.dtype} {list(logits.shape)}, not floating [rows, vocabulary] with a row or more"
        raise EngcmpError(text, where=where, remedy="recapture this window")
    tokens = np.asarray(next_tokens)
    if tokens.shape != (len(logits),) or tokens.dtype.kind not in "iu":
        text = f"next tokens are {tokens.dtype} {list(tokens.shape)}, not integers for {len(logits)} rows"
        raise EngcmpError(text, where=where, remedy="give the token that each row predicts")
    return tokens.astype(np.int64)


def refuse_bad_values(logits: Rows, tokens: Int64, where: str) -> None:
    """Raise for rows with NaN, +inf or only -inf, and for tokens outside the vocabulary."""
    tops = np.concatenate(
        [widened(logits[block]).max(axis=1) for block in blocks_of(logits, CACHED_VALUES)]
    )  # NaN where a row holds NaN
    vocab = logits.shape[1]
    faults = flagged(np.isnan(tops), "the row holds NaN") + flagged(np.isposinf(tops), "the row holds +inf")
    faults += flagged(np.isneginf(tops), "the row is -inf for every id")
    for row in np.flatnonzero((tokens < 0) | (tokens >= vocab)):
        faults.append(BadRow(int(row), f"its next token {tokens[row]} is outside the vocabulary of {vocab} ids"))
    refuse(faults, len(logits), where)


def refuse(faults: list[BadRow], rows: int, where: str, remedy: str = "recapture this window") -> None:
    """Raise for any fault, with the first reason of each of the first rows."""
    if not faults:
        return
    first = {one.index: one.reason for one in reversed(faults)}
    shown = "; ".join(f"row {index}: {first[index]}" for index in sorted(first)[:_SHOWN_ROWS])
    more = "" if len(first) <= _SHOWN_ROWS else f"; and {len(first) - _SHOWN_ROWS} more"
    raise EngcmpError(f"{len(first)} of {rows} rows cannot be scored: {shown}{more}", where=where, remedy=remedy)
