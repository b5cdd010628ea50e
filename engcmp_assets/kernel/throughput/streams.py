"""One row for each request of a cell, recomputed from its events: when tokens came, how many, and how fast (MEASURES section 6).

All times are readings of one monotonic clock in integer nanoseconds. A token event is an event with at least one token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from engcmp_assets.kernel.throughput.stream_arrays import INTS, NS_PER_S, TEXTS, Columns, Events, masked, stream_columns
from engcmp_assets.kernel.throughput.stream_events import KINDS
from engcmp_resources.errors import EngcmpError

__all__ = ["EVENT_COLUMNS", "KINDS", "NS_PER_S", "REQUEST_COLUMNS", "frame_columns", "stream_table", "table_arrays"]

EVENT_COLUMNS = ("request_id", "t_ns", "kind", "tokens")
REQUEST_COLUMNS = (
    "request_id", "cell_id", "t0_ns", "scheduled_at_ns", "ttft_ns", "ttfa_ns", "last_at_ns", "done_at_ns", "n_tokens", "n_first_tokens",
    "usage_completion_tokens", "usage_prompt_tokens", "cached_tokens", "finish_reason", "status", "cause", "flags",
)  # fmt: skip
_TYPES = {"i": pl.Int64, "f": pl.Float64, "b": pl.Boolean}


def stream_table(events: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """One row for each request of `requests`, in its order, recomputed from `events`; absent is null.

    Times (ns): `first` and `last` token event, `answer` (first answer text), `free` (when it left prefill: its first token, or its end
    where there is none). Tokens: `counted` (of all token events), `n_first` (of the first one), `at_first` (of all that came in the
    first one's read), `reasoning`, `answered` (answer text and tool calls), `steady` (while every stream of its batch decoded), and
    `n`, which the rates divide: the counted ones, or the server's `usage.completion_tokens` where only text was counted. `updates` is
    the number of token events. `decode` and `decode_first1` are tokens/s with `n_first` as counted and as 1; `overlap` is the share of
    the decode window in which another stream was in prefill. `ok` is false without a token event.
    Raises EngcmpError for a table that lacks a column, and for events and requests that are not of one run.
    """
    columns, _ = stream_columns(*table_arrays(events, requests))
    made = [
        pl.Series(name, column.tolist(), dtype=_TYPES[column.dtype.kind])
        for name, column in columns.items()
        if column.dtype.kind in _TYPES
    ]
    texts = [pl.Series(name, columns[name].tolist(), dtype=pl.String) for name in TEXTS if name != "flags"]
    return requests.with_columns(*made, *texts)


def table_arrays(events: pl.DataFrame, requests: pl.DataFrame) -> tuple[Events, Columns]:
    """The two tables as arrays. Another client's requests.parquet may lack the further columns: absent is null.

    Raises EngcmpError for a column that must be there, and for a kind of event that is none.
    """
    _need(events, EVENT_COLUMNS, "events.parquet")
    _need(requests, REQUEST_COLUMNS, "requests.parquet")
    unknown = set(events["kind"].unique().to_list()) - set(KINDS)
    if unknown:
        raise EngcmpError(
            f"event kind {sorted(map(str, unknown))[0]!r}",
            where="events.parquet",
            remedy=f"the kinds are {', '.join(KINDS)}",
        )
    names = events["request_id"].unique(maintain_order=True)
    found = Events(
        names.to_list(),
        events["request_id"].cast(pl.Enum(names)).to_physical().to_numpy(),
        events["t_ns"].cast(pl.Int64).to_numpy(),
        events["kind"].cast(pl.Enum(KINDS)).to_physical().cast(pl.UInt8).to_numpy(),
        events["tokens"].cast(pl.Int32).to_numpy(),
    )
    return found, frame_columns(requests, INTS) | {name: masked(_values(requests, name), object) for name in TEXTS}


def frame_columns(frame: pl.DataFrame, names: Iterable[str]) -> Columns:
    """Columns of numbers of a frame as masked arrays: of float64 where they are so there, else of int64."""
    found = {}
    for name in names:
        is_float = name in frame.columns and frame[name].dtype.is_float()
        found[name] = masked(_values(frame, name), np.float64 if is_float else np.int64)
    return found


def _values(frame: pl.DataFrame, name: str) -> list[Any]:
    if name not in frame.columns or (name == "flags" and frame[name].dtype != pl.List):
        return [None] * len(frame)
    return frame[name].to_list()


def _need(table: pl.DataFrame, columns: Iterable[str], where: str) -> None:
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise EngcmpError(
            f"column {missing[0]} is missing", where=where, remedy=f"the table needs the columns {', '.join(columns)}"
        )
