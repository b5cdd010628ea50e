"""events.parquet and requests.parquet: their columns, each with unit and definition, and how they are written from a cell's records."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.throughput.requests import RequestRecords
from engcmp_assets.kernel.throughput.stream_arrays import Events
from engcmp_assets.kernel.throughput.stream_events import KINDS

_TYPES = {"str": pa.string(), "int": pa.int64(), "int32": pa.int32(), "list[str]": pa.list_(pa.string())}
_GROUP = 1 << 16  # rows that are written at once
_PACKED = 256  # rows of a table from which on compressing it is worth the time
_CLOCK = "reading of CLOCK_MONOTONIC"
EVENT_COLUMNS = (
    Column("request_id", "str", "1", "the request whose stream the event is of"),
    Column("t_ns", "int", "ns", f"when the read came that brought the event's closing blank line: {_CLOCK}"),
    Column("kind", "str", "1", f"what the event is: {', '.join(KINDS)}"),
    Column("tokens", "int32", "token", "generated tokens that it carries; 0 for an event that carries none"),
)
REQUEST_COLUMNS = (
    Column("request_id", "str", "1", "name of the request"),
    Column("cell_id", "str", "1", "the cell it belongs to"),
    Column("t0_ns", "int", "ns", f"just before its bytes were written on an open connection: {_CLOCK}"),
    Column(
        "scheduled_at_ns", "int", "ns", f"when it was to go out; in a closed loop, when its place became free: {_CLOCK}"
    ),
    Column("ttft_ns", "int", "ns", "first token event less t0"),
    Column("ttfa_ns", "int", "ns", "first event with answer text less t0"),
    Column("last_at_ns", "int", "ns", f"last token event: {_CLOCK}"),
    Column("done_at_ns", "int", "ns", f"the event [DONE], or the end of an exchange without one: {_CLOCK}"),
    Column(
        "n_tokens",
        "int",
        "token",
        "generated tokens: the counted ones; where text was counted, what the server's usage states",
    ),
    Column("n_first_tokens", "int", "token", "tokens of the first token event; none where text was counted"),
    Column(
        "usage_completion_tokens", "int", "token", "completion tokens as the server states them; none where it does not"
    ),
    Column("usage_prompt_tokens", "int", "token", "prompt tokens as the server states them"),
    Column("cached_tokens", "int", "token", "prompt tokens from its cache, as the server states them; absent is not 0"),
    Column("finish_reason", "str", "1", "why the reply ended, as the server states it"),
    Column("status", "str", "1", "ok; incomplete: it brought tokens and broke off; failed: anything else"),
    Column("cause", "str", "1", "why it is not ok"),
    Column("flags", "list[str]", "1", "what a reader should know of it; no figure is changed by one"),
    Column("detail", "str", "1", "the server's or the system's own words for the cause"),
    Column("repeat", "int", "1", "number of the repeat its cell belongs to"),
    Column("batch", "int", "1", "requests of one number depend on each other"),
    Column("concurrency", "int", "1", "streams at a time of its cell"),
    Column("kind", "str", "1", "kind of content of its cell"),
    Column("seed", "int", "1", "sampling seed that was sent"),
    Column("max_tokens", "int", "token", "the most tokens that were asked for"),
    Column("expected_prompt_tokens", "int", "token", "prompt tokens that the plan expects of this engine"),
    Column("characters", "int", "character", "of reasoning and answer text"),
    Column("reasoning_tokens", "int", "token", "reasoning tokens as the server states them"),
    Column("text_sha256", "str", "1", "SHA-256 of the reasoning, a zero byte, and the answer"),
    Column("counted_by", "str", "1", "how tokens were counted: ids, usage (its growth) or text (one for each event)"),
    Column("t_first_role_ns", "int", "ns", f"first event with a role and no token: {_CLOCK}"),
    Column("chunk_events", "int", "1", "token events"),
    Column("retries", "int", "1", "times that the server refused it with 429 before"),
    Column("http_status", "int", "1", "status of the last answer"),
)


def _schema(columns: Sequence[Column]) -> pa.Schema:
    described = [(one, {"unit": one.unit, "description": one.description}) for one in columns]
    return pa.schema([pa.field(one.name, _TYPES[one.dtype], metadata=text) for one, text in described])


EVENTS_SCHEMA, REQUESTS_SCHEMA = _schema(EVENT_COLUMNS), _schema(REQUEST_COLUMNS)


def events_of(records: Sequence[RequestRecords]) -> Events:
    """The events of a cell, in order of arrival within each request."""
    counts = [len(one.t_ns) for one in records]
    return Events(
        [one.row["request_id"] for one in records],
        np.repeat(np.arange(len(records), dtype=np.int32), counts),
        _joined([one.t_ns for one in records], np.int64),
        _joined([one.kinds for one in records], np.uint8),
        _joined([one.tokens for one in records], np.int32),
    )


def _joined(parts: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype=dtype)


def requests_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """requests.parquet of a cell: few rows of many columns, where dictionaries, statistics and compression cost more than they save."""
    buffer = io.BytesIO()
    packing = "zstd" if len(rows) >= _PACKED else "none"
    pq.write_table(requests_table(rows), buffer, compression=packing, use_dictionary=False, write_statistics=False)
    return buffer.getvalue()


def requests_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """requests.parquet of a cell, in the order of the plan."""
    columns = [pa.array([row[one.name] for row in rows], type=_TYPES[one.dtype]) for one in REQUEST_COLUMNS]
    return pa.Table.from_arrays(columns, schema=REQUESTS_SCHEMA)


def events_bytes(events: Events) -> bytes:
    """events.parquet of a cell. Names are written out for one group of rows at a time: they are most of the table in memory."""
    names, kinds = pa.array(events.names, type=pa.string()), pa.array(KINDS)
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, EVENTS_SCHEMA, compression="zstd") as writer:
        for start in range(0, max(1, len(events.t_ns)), _GROUP):
            part = slice(start, start + _GROUP)
            columns = [
                pa.DictionaryArray.from_arrays(pa.array(events.owners[part]), names).dictionary_decode(),
                pa.array(events.t_ns[part]),
                pa.DictionaryArray.from_arrays(pa.array(events.kinds[part].astype(np.int8)), kinds).dictionary_decode(),
                pa.array(events.tokens[part]),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=EVENTS_SCHEMA))
    return buffer.getvalue()


def table_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file. The same table gives the same bytes under the same pyarrow."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def joined_bytes(schema: pa.Schema, paths: Iterable[Path]) -> bytes:
    """The tables of several files, one after the other, as one Parquet file; one part is in memory at a time."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for path in paths:
            writer.write_table(pq.read_table(path, schema=schema))
    return buffer.getvalue()
