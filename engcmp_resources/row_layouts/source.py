"""A window's rows over the whole vocabulary, read a block at a time from where they lie."""

from __future__ import annotations

import json
import mmap
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.checks import refuse_doubled
from engcmp_resources.row_layouts.places import fault
from engcmp_resources.row_layouts.tensor_map import TensorMap

Array = npt.NDArray[Any]
RowDtype = Literal["F32", "F16", "BF16"]
RowKind = Literal["logits", "log_probs", "unknown"]
_PAGE = mmap.PAGESIZE
_MATRIX = 2


@dataclass(frozen=True, slots=True, eq=False)
class RowSource(ABC):
    """The rows of one window, as one arm or reference has them.

    `positions` int64 [k] are row indices r: row r predicts token r + 1; no two are equal, in the order of the file. `kind` is what the
    file says that its values are; both are scored alike. `tokens_sha256` is None where the files do not tell of which tokens they are.
    `path` is the file, or the folder of one file a row; `bytes_on_disk` its size.
    """

    window_id: str
    path: Path
    dtype: RowDtype
    kind: RowKind
    vocab: int
    positions: npt.NDArray[np.int64]
    tokens_sha256: str | None
    bytes_on_disk: int

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def chunk_lengths(self) -> tuple[int, ...] | None:
        """How many tokens each prefill chunk of the window read, in their order; None where the files do not say."""
        return None

    @abstractmethod
    def block(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop` in the file's order, [stop - start, vocab]: float32, float16, or uint16 as the bits of BF16.

        Raises EngcmpError naming window and row where a row cannot be read, or there are no such rows.
        """

    @abstractmethod
    def prefetch(self, start: int, stop: int) -> None:
        """Read these rows from the disk, for a thread beside the one that computes: what `block` gives then waits for nothing."""

    @abstractmethod
    def release(self, start: int, stop: int) -> None:
        """Give the memory of these rows back. Arrays of them stay valid: what is used again is read again.

        Raises EngcmpError where the file was cut while they were used: what was made of them is then worth nothing.
        """

    def _checked(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.rows:
            raise EngcmpError(
                f"window {self.window_id}: no rows {start} to {stop}, there are {self.rows}", where=f"file {self.path}"
            )


@dataclass(frozen=True, slots=True, eq=False)
class MappedRows(RowSource):
    """Rows that are one tensor [k, vocab] of a mapped file."""

    file: TensorMap
    tensor: str

    @property
    def chunk_lengths(self) -> tuple[int, ...] | None:
        return chunk_lengths_of(self.file)

    def block(self, start: int, stop: int) -> Array:
        self._checked(start, stop)
        self.file.refuse_shorter()
        return (
            self.file.view(self.tensor)[start:stop] if self.file.in_place else self.file.read(self.tensor, start, stop)
        )

    def prefetch(self, start: int, stop: int) -> None:
        first, last = self._pages(start, stop)
        self.file.refuse_shorter()
        if not self.file.in_place:
            return  # a copy is made when it is asked for
        # One byte of each page: a fault reads far ahead, and numpy lets other threads run. (MADV_WILLNEED would hold them all up.)
        np.frombuffer(self.file.data, dtype=np.uint8)[first:last:_PAGE].max(initial=0)

    def release(self, start: int, stop: int) -> None:
        first, last = self._pages(start, stop)
        self.file.refuse_shorter()
        if stop > start and self.file.in_place:
            self.file.data.madvise(mmap.MADV_DONTNEED, first, last - first)

    def _pages(self, start: int, stop: int) -> tuple[int, int]:
        """The bytes of the file from the first page of the rows to the end of their last one."""
        self._checked(start, stop)
        place = self.file.tensors[self.tensor]
        row_bytes = place.size_bytes // self.rows
        first, last = (place.offset_bytes + row * row_bytes for row in (start, stop))
        return first // _PAGE * _PAGE, -(-last // _PAGE) * _PAGE


def chunk_lengths_of(file: TensorMap) -> tuple[int, ...] | None:
    """The metadata `chunk_lengths`, a JSON list of numbers of tokens. Raises EngcmpError for anything else there."""
    said = file.metadata.get("chunk_lengths")
    if said is None:
        return None
    try:
        lengths = json.loads(said)
    except (ValueError, RecursionError):
        lengths = None
    if not (isinstance(lengths, list) and lengths and all(type(one) is int and one > 0 for one in lengths)):
        raise fault(file.window_id, f"chunk_lengths {said[:100]!r} are no list of numbers of tokens", file.path)
    return tuple(lengths)


def mapped_rows(
    file: TensorMap, tensor: str, positions: npt.NDArray[np.int64], *, tokens_sha256: str | None
) -> MappedRows:
    """Rows of a mapped file. Raises EngcmpError for a type or shape that rows do not have, and positions below 0 or doubled."""
    place = file.tensors[tensor]
    dtypes: dict[str, RowDtype] = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
    if place.dtype not in dtypes:
        raise fault(file.window_id, f"{tensor} are {place.dtype}, not F32, F16 or BF16", file.path)
    if len(place.shape) != _MATRIX or not all(place.shape):
        raise fault(file.window_id, f"{tensor} of shape {list(place.shape)} are no rows by vocabulary", file.path)
    if len(positions) != place.shape[0]:
        raise fault(file.window_id, f"{place.shape[0]:,} rows, positions of {len(positions):,}", file.path)
    refuse_doubled(positions, file.window_id, file.path)
    said = file.metadata.get("kind")
    kind: RowKind = "logits" if said == "logits" else "log_probs" if said == "log_probs" else "unknown"
    return MappedRows(
        file.window_id, file.path, dtypes[place.dtype], kind, place.shape[1], positions, tokens_sha256,
        file.size_bytes, file, tensor,
    )  # fmt: skip
