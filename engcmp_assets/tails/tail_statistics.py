"""How bad the worst rows are (MEASURES section 3): quantiles, shares above limits, and the worst rows themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]

_WORST_ROWS = 10
_WORST_SHARE = 100  # the worst 1 % is one row in this many


@dataclass(frozen=True, slots=True)
class TailRow:
    """One row as the tails need it: `position` is the row index r, `next_token` the id of token r + 1."""

    window: str
    position: int
    next_token: int
    block: str
    bucket: str


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One of the worst rows, and where to find it."""

    window: str
    position: int
    next_token: int
    kl_nats: float


@dataclass(frozen=True, slots=True)
class TailSummary:
    """Tails of a KL over `rows` rows, in nats; shares are of rows strictly above the limit.

    Quantiles are type 7. The worst 1 % are ceil(rows / 100) rows, so at least one; that number is kept beside its mean.
    """

    rows: int
    mean_nats: float
    median_nats: float
    p90_nats: float
    p95_nats: float
    p99_nats: float
    p99_9_nats: float
    max_nats: float
    share_above_0_1_nats: float
    share_above_0_5_nats: float
    share_above_1_nats: float
    share_above_2_nats: float
    worst_1_percent_rows: int
    worst_1_percent_mean_nats: float
    worst_rows: tuple[WorstRow, ...]


@dataclass(frozen=True, slots=True)
class Tails:
    """The tails of one arm on one panel, with the digest of the row file that they come from."""

    row_file_sha256: str
    overall: TailSummary
    by_block: dict[str, TailSummary]
    by_bucket: dict[str, TailSummary]


def tail_statistics(kl_values: npt.ArrayLike, rows: Sequence[TailRow], *, row_file_sha256: str) -> Tails:
    """Tails of a row KL, `kl_values` [rows] in nats, overall, per block and per bucket (both in the order of their names).

    Raises EngcmpError where there is no row, a value is not finite or negative, or the two do not pair up.
    """
    kl = np.asarray(kl_values, dtype=np.float64)
    if kl.shape != (len(rows),):
        raise EngcmpError(f"{list(kl.shape)} values of KL for {len(rows)} rows", remedy="give one value a row")
    if not rows:
        raise EngcmpError("there is no row to take tails of", remedy="an empty row file is a failed capture")
    wrong = np.flatnonzero(~(np.isfinite(kl) & (kl >= 0)))
    if wrong.size:
        row = rows[int(wrong[0])]
        raise EngcmpError(
            f"KL is {kl[wrong[0]]}",
            where=f"window {row.window}, row {row.position}",
            remedy="leave bad rows out first",
        )
    return Tails(
        row_file_sha256=row_file_sha256,
        overall=_summary(kl, rows),
        by_block=_by(kl, rows, [row.block for row in rows]),
        by_bucket=_by(kl, rows, [row.bucket for row in rows]),
    )


def _by(kl: Float64, rows: Sequence[TailRow], names: list[str]) -> dict[str, TailSummary]:
    summaries = {}
    for name in sorted(set(names)):
        chosen = [index for index, own in enumerate(names) if own == name]
        summaries[name] = _summary(kl[chosen], [rows[index] for index in chosen])
    return summaries


def _summary(kl: Float64, rows: Sequence[TailRow]) -> TailSummary:
    quantiles = np.quantile(kl, [0.5, 0.9, 0.95, 0.99, 0.999], method="linear").tolist()
    above = [float((kl > limit).sum()) / len(kl) for limit in (0.1, 0.5, 1.0, 2.0)]
    # Equal values go by window, then row: the same rows are named wherever the file's order comes from.
    order = sorted(range(len(kl)), key=lambda index: (-kl[index], rows[index].window, rows[index].position))
    worst_count = math.ceil(len(kl) / _WORST_SHARE)
    return TailSummary(
        rows=len(kl),
        mean_nats=math.fsum(kl) / len(kl),
        median_nats=quantiles[0],
        p90_nats=quantiles[1],
        p95_nats=quantiles[2],
        p99_nats=quantiles[3],
        p99_9_nats=quantiles[4],
        max_nats=float(kl.max()),
        share_above_0_1_nats=above[0],
        share_above_0_5_nats=above[1],
        share_above_1_nats=above[2],
        share_above_2_nats=above[3],
        worst_1_percent_rows=worst_count,
        worst_1_percent_mean_nats=math.fsum(kl[order[:worst_count]]) / worst_count,
        worst_rows=tuple(
            WorstRow(rows[index].window, rows[index].position, rows[index].next_token, float(kl[index]))
            for index in order[:_WORST_ROWS]
        ),
    )
