"""Light rows: what an engine's API returns of a row, its top ids (20 as a rule) and the actual token, in Parquet.

One file for all windows or one for each, whatever its name, a line for each row:

* `window_id` text; `position` integer, the row index r;
* `next_token` integer, the token r + 1 of the window, and `next_token_log_prob` float, whether or not it is among the top ids;
* `top_ids` list of integers and `top_log_probs` list of floats, of one length K on all lines, in falling probability, without the actual
  token where an API adds it beyond its top K;
* `tokens_sha256` text, if it is known: the digest of the window's tokens.

Logarithms are natural, of probabilities over the whole vocabulary. Other columns are not read.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engcmp_resources.row_layouts.checks import (
    refuse_doubled,
    refuse_first,
    refuse_no_distribution,
    refuse_no_logarithm,
)
from engcmp_resources.row_layouts.places import fault, open_regular

_DIGEST = "tokens_sha256"
_COLUMNS = ("window_id", "position", "next_token", "next_token_log_prob", "top_ids", "top_log_probs")
_BATCH_ROWS = 1 << 13
_MOST_ROWS = 1 << 20  # of one window
_HELD_ROWS = 1 << 18  # of windows that were not yet asked for: about 60 MB
_BUFFER_BYTES = 1 << 20  # of each column; else a row group is read whole
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_HIGHEST = 1 << 32  # token ids and positions are below


@dataclass(frozen=True, slots=True, eq=False)
class LightWindow:
    """The light rows of one window: n rows of K ids, equal log-probabilities by the lower id; logarithms as float64."""

    window_id: str
    path: Path
    tokens_sha256: str | None
    bytes_on_disk: int
    positions: npt.NDArray[np.int64]
    next_token_ids: npt.NDArray[np.uint32]
    next_token_log_prob: npt.NDArray[np.float64]
    top_ids: npt.NDArray[np.uint32]
    top_log_probs: npt.NDArray[np.float64]

    @property
    def rows(self) -> int:
        return len(self.positions)


def light_windows(path: Path) -> list[str]:
    """The windows that a file has rows of. Raises EngcmpError for a damaged or foreign file."""
    names: dict[str, None] = {}
    for batch in _batches(path, ["window_id"], ""):
        names |= dict.fromkeys(str(name) for name in batch.column(0).unique().to_pylist())
    if not names:
        raise fault("", "it holds no rows", path)
    return list(names)


def read_light_window(path: Path, window_id: str) -> LightWindow:
    """A window's rows. Raises EngcmpError naming window, file and row for a damaged or foreign file, columns of other types, missing
    values, lists of several lengths, positions or ids that stand twice, and values that are no falling log-probabilities.
    """
    batches, rows = [], 0
    for batch in _batches(path, [*_COLUMNS, _DIGEST], window_id):
        rows += batch.num_rows
        _refuse_more(rows, window_id, path)
        batches.append(batch)
    if not batches:
        raise fault(window_id, "it holds no rows of it", path)
    return _window(pa.Table.from_batches(batches), window_id, path)


class LightFile:
    """A file of the rows of many windows. Those that are asked for in the file's own order are read in one pass over it.

    Rows of `windows` are held until they are asked for, of other windows none; another order costs further passes, and no more memory.
    """

    def __init__(self, path: Path, windows: Collection[str]) -> None:
        """Counts the rows of each window. Raises EngcmpError for a damaged or foreign file."""
        self._path, self._windows = path, frozenset(windows)
        self._rows: Counter[str] = Counter()
        for batch in _batches(path, ["window_id"], ""):
            for found in batch.column(0).value_counts().to_pylist():
                self._rows[str(found["values"])] += int(found["counts"])
        self._restart()

    def window(self, window_id: str) -> LightWindow:
        """A window's rows, as read_light_window gives them; it raises what that raises."""
        if window_id not in self._windows or not self._rows[window_id]:
            raise fault(window_id, "it holds no rows of it", self._path)
        _refuse_more(self._rows[window_id], window_id, self._path)
        table = self._read_on(window_id)
        if table is None:  # it stands before what was read last
            self._restart()
            table = self._read_on(window_id)
        if table is None:
            raise fault(window_id, "the file changed while it was read", self._path)
        return _window(table, window_id, self._path)

    def _restart(self) -> None:
        self._stream = _batches(self._path, [*_COLUMNS, _DIGEST], "")
        self._held: dict[str, list[Any]] = {}

    def _read_on(self, window_id: str) -> Any:
        """All rows of a window as a table; None where the rest of the file does not have them."""
        while sum(batch.num_rows for batch in self._held.get(window_id, [])) < self._rows[window_id]:
            batch = next(self._stream, None)
            if batch is None:
                return None
            for name in batch.column("window_id").unique().to_pylist():
                if name in self._windows:
                    self._held.setdefault(name, []).append(_of_window(batch, name))
            self._let_go(window_id)
        return pa.Table.from_batches(self._held.pop(window_id))

    def _let_go(self, window_id: str) -> None:
        """Hold no more than some rows beside those that are being read: the others are read again when they are asked for."""
        held = sum(batch.num_rows for batches in self._held.values() for batch in batches)
        if held > _HELD_ROWS + _BATCH_ROWS + self._rows[window_id]:
            self._held = {name: batches for name, batches in self._held.items() if name == window_id}


def _refuse_more(rows: int, window_id: str, path: Path) -> None:
    if rows > _MOST_ROWS:
        raise fault(window_id, f"more than {_MOST_ROWS:,} rows", path)


def _window(table: Any, window_id: str, path: Path) -> LightWindow:
    positions = _integers(table, "position", window_id, path)
    refuse_doubled(positions, window_id, path)
    tokens = _integers(table, "next_token", window_id, path)
    next_log_prob = _floats(table, "next_token_log_prob", window_id, path)
    refuse_no_logarithm(window_id, path, positions, next_log_prob, "next_token_log_prob")
    ids = _lists(table, "top_ids", positions, window_id, path)
    log_probs = _lists(table, "top_log_probs", positions, window_id, path)
    if ids.shape != log_probs.shape:
        raise fault(window_id, f"lists of {ids.shape[1]} ids and {log_probs.shape[1]} log-probabilities", path)
    order = np.lexsort((ids, -log_probs), axis=1)
    refuse_no_distribution(window_id, path, positions, ids, log_probs)
    return LightWindow(
        window_id, path, _digest(table, window_id, path), path.stat().st_size, positions, tokens.astype(np.uint32), next_log_prob,
        np.take_along_axis(ids, order, axis=1).astype(np.uint32), np.take_along_axis(log_probs, order, axis=1),
    )  # fmt: skip


def _batches(path: Path, columns: Sequence[str], window_id: str) -> Iterator[Any]:
    """The lines of a window, or of all for "", a few at a time: a file may be larger than the memory that one window takes."""
    descriptor, _ = open_regular(path, window_id=window_id)
    with os.fdopen(descriptor, "rb") as opened:
        try:
            file = pq.ParquetFile(opened, pre_buffer=False, buffer_size=_BUFFER_BYTES)
            _check_schema(file.schema_arrow, columns, window_id, path)
            present = [column for column in columns if column in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=present):
                kept = _of_window(batch, window_id) if window_id else batch
                if kept.num_rows:
                    yield kept
        except (pa.ArrowException, OSError, ValueError) as error:
            raise fault(window_id, f"not a whole Parquet file: {str(error)[:300]}", path) from error


def _of_window(batch: Any, window_id: str) -> Any:
    return batch.filter(pc.equal(batch.column("window_id"), window_id))


def _check_schema(schema: Any, columns: Sequence[str], name: str, path: Path) -> None:
    if missing := [column for column in columns if column not in schema.names and column != _DIGEST]:
        raise fault(
            name, f"no column {', '.join(missing)}; it has {', '.join(schema.names)[:300]}", path,
            remedy="write light rows with the columns " + ", ".join(_COLUMNS),
        )  # fmt: skip
    kind = schema.field("window_id").type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise fault(name, f"window_id is {kind}, not text", path)


def _values(column: Any, name: str, wanted: str, window_id: str, path: Path) -> npt.NDArray[Any]:
    right = pa.types.is_integer if wanted == "integers" else pa.types.is_floating
    if not right(column.type):
        raise fault(window_id, f"{name} are {column.type}, not {wanted}", path)
    if column.null_count:
        raise fault(window_id, f"{name}: {column.null_count} values are missing", path)
    found: npt.NDArray[Any] = (
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    )
    return found


def _integers(table: Any, name: str, window_id: str, path: Path) -> npt.NDArray[np.int64]:
    values = _values(table.column(name), name, "integers", window_id, path)
    return _in_range(values, name, window_id, path)


def _in_range(values: npt.NDArray[Any], name: str, window_id: str, path: Path) -> npt.NDArray[np.int64]:
    outside = (values < 0) | (values >= _HIGHEST)
    if outside.any():
        raise fault(window_id, f"{name} holds {values[outside][0]}", path)
    return values.astype(np.int64)


def _floats(table: Any, name: str, window_id: str, path: Path) -> npt.NDArray[np.float64]:
    return _values(table.column(name), name, "floats", window_id, path).astype(np.float64)


def _lists(table: Any, name: str, positions: npt.NDArray[np.int64], window_id: str, path: Path) -> npt.NDArray[Any]:
    """A column of lists as a matrix [n, K]: int64 ids or float64 log-probabilities."""
    column = table.column(name).combine_chunks()
    if not any(is_list(column.type) for is_list in _LISTS):
        raise fault(window_id, f"{name} are {column.type}, not lists", path)
    if column.null_count:
        raise fault(window_id, f"{name}: {column.null_count} values are missing", path)
    lengths = np.array(column.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
    other = (lengths != lengths[0]) | (lengths == 0)
    refuse_first(window_id, path, positions, other, f"has other {name} than {lengths[0]}, or none")
    wanted = "integers" if name == "top_ids" else "floats"
    values = _values(column.flatten(), name, wanted, window_id, path).reshape(len(positions), -1)
    return _in_range(values, name, window_id, path) if wanted == "integers" else values.astype(np.float64)


def _digest(table: Any, window_id: str, path: Path) -> str | None:
    if _DIGEST not in table.column_names:
        return None
    found = table.column(_DIGEST).unique().to_pylist()
    if len(found) != 1:
        raise fault(window_id, f"rows of {len(found)} token digests", path)
    return None if found[0] is None else str(found[0])
