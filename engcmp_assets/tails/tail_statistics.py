"""How bad the worst rows are (MEASURES section 3): quantiles, shares above limits, and the worst rows themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.exact_sums import exact_sum, numbered
from engcmp_resources.errors import EngcmpError

Float64 = npt.NDArray[np.float64]

_WORST_ROWS = 10
_WORST_SHARE = 100  # the worst 1 % is one row in this many


@dataclass(frozen=True, slots=True, eq=False)
class TailRows:
    """Rows as the tails need them, each field [rows]: `position` is the row index r, `next_token` the id of token r + 1."""

    window_id: npt.NDArray[Any]
    position: npt.NDArray[Any]
    next_token: npt.NDArray[Any]
    block: npt.NDArray[Any]
    bucket: npt.NDArray[Any]

    @classmethod
    def of(cls, columns: Mapping[str, npt.NDArray[Any]]) -> TailRows:
        """The rows of a table whose columns have these names."""
        return cls(**{name: np.asarray(columns[name]) for name in cls.__dataclass_fields__})

    def at(self, chosen: npt.NDArray[Any]) -> TailRows:
        return TailRows(**{name: getattr(self, name)[chosen] for name in TailRows.__dataclass_fields__})


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


def tail_statistics(kl_values: npt.ArrayLike, rows: TailRows, *, row_file_sha256: str) -> Tails:
    """Tails of a row KL, `kl_values` [rows] in nats, overall, per block and per bucket (both in the order of their names).

    Raises EngcmpError where there is no row, a value is not finite or negative, or the two do not pair up.
    """
    kl = np.asarray(kl_values, dtype=np.float64)
    count = len(rows.position)
    if kl.shape != (count,):
        raise EngcmpError(f"{list(kl.shape)} values of KL for {count} rows", remedy="give one value a row")
    if not count:
        raise EngcmpError("there is no row to take tails of", remedy="an empty row file is a failed capture")
    wrong = np.flatnonzero(~(np.isfinite(kl) & (kl >= 0)))
    if wrong.size:
        first = int(wrong[0])
        raise EngcmpError(
            f"KL is {kl[first]}",
            where=f"window {rows.window_id[first]}, row {rows.position[first]}",
            remedy="leave bad rows out first",
        )
    return Tails(
        row_file_sha256=row_file_sha256,
        overall=_summary(kl, rows),
        by_block=_by(kl, rows, rows.block),
        by_bucket=_by(kl, rows, rows.bucket),
    )


def _by(kl: Float64, rows: TailRows, names: npt.NDArray[Any]) -> dict[str, TailSummary]:
    found, numbers = numbered(names)
    groups = {name: np.flatnonzero(numbers == number) for number, name in enumerate(found)}
    return {name: _summary(kl[chosen], rows.at(chosen)) for name, chosen in groups.items()}


def _summary(kl: Float64, rows: TailRows) -> TailSummary:
    quantiles = np.quantile(kl, [0.5, 0.9, 0.95, 0.99, 0.999], method="linear").tolist()
    above = [float((kl > limit).sum()) / len(kl) for limit in (0.1, 0.5, 1.0, 2.0)]
    # Equal values go by window, then row: the same rows are named wherever the file's order comes from.
    order = np.lexsort((rows.position, numbered(rows.window_id)[1], -kl))
    worst_count = math.ceil(len(kl) / _WORST_SHARE)
    return TailSummary(
        rows=len(kl),
        mean_nats=exact_sum(kl) / len(kl),
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
        worst_1_percent_mean_nats=exact_sum(kl[order[:worst_count]]) / worst_count,
        worst_rows=tuple(
            WorstRow(
                str(rows.window_id[index]), int(rows.position[index]), int(rows.next_token[index]), float(kl[index])
            )
            for index in order[:_WORST_ROWS]
        ),
    )
