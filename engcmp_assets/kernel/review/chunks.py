"""Where run-to-run differences begin: rows equal bit for bit by the prefill chunk that computed them.

A server that computes a prompt in chunks gives the first chunk nothing earlier to read but its own tokens. Rows that are equal in
chunk 1 and differ from chunk 2 on point at what a later chunk reads (cached keys, sparse selection), not at batching or speculation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.shared import Names, check_rows, many, strings
from engcmp_resources.errors import EngcmpError

Int64 = npt.NDArray[np.int64]
Chunks = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class ChunkShare:
    """Rows of all windows that chunk number `chunk` (from 1) computed, and how many are equal bit for bit in both runs."""

    chunk: int
    windows: int
    rows: int
    equal: int

    @property
    def share(self) -> float:
        return self.equal / self.rows


@dataclass(frozen=True, slots=True)
class ChunkEquality:
    """`first_unequal_position` is the smallest row index that differs in any window that is counted; Missing where none does.

    `starts_at_chunk`: every row of the chunks before it is equal, and its own are not. `found`: it is 2 or more, so the variation
    starts at a chunk border.
    """

    by_chunk: tuple[ChunkShare, ...]
    starts_at_chunk: int | Missing
    first_unequal_position: int | Missing
    windows_not_recorded: tuple[str, ...]
    windows_chunked_otherwise: tuple[str, ...]
    found: bool
    sentence: str


def chunk_numbers(positions: npt.ArrayLike, lengths: Sequence[int], *, window: str) -> Int64:
    """The chunk (from 1) that computed each row index of `positions` [k]: row r is there once token r (from 0) was read.

    Raises EngcmpError for a length below 1, and for a row at or past the last token that the chunks hold.
    """
    rows, ends = np.asarray(positions, dtype=np.int64), np.cumsum(np.asarray(lengths, dtype=np.int64))
    if len(lengths) == 0 or min(lengths) < 1:
        raise EngcmpError(
            f"chunk lengths {list(lengths)}", where=f"window {window}", remedy="record each chunk's tokens"
        )
    wrong = rows[(rows < 0) | (rows >= ends[-1])]
    if wrong.size:
        raise EngcmpError(
            f"row {wrong[0]} lies outside the chunks, which hold {ends[-1]} tokens",
            where=f"window {window}", remedy="record the chunks of the whole window",
        )  # fmt: skip
    return np.searchsorted(ends, rows, side="right").astype(np.int64) + 1


def bit_equality_by_chunk(
    equal: npt.ArrayLike, windows: Names, positions: npt.ArrayLike, *, first: Chunks, second: Chunks
) -> ChunkEquality | Missing:
    """Share of rows equal bit for bit, by chunk. `equal` (bool), `windows`, `positions` (row indices) are [rows].

    `first` and `second` are the chunk lengths of each window in the two runs, where they were recorded. Windows that one run did not
    record, or that the runs cut otherwise, are named and left out; Missing where none is left. Raises EngcmpError as chunk_numbers.
    """
    same, rows, names = np.asarray(equal, dtype=np.bool_), np.asarray(positions, dtype=np.int64), strings(windows)
    check_rows(equal=same, positions=rows, windows=names)
    listed = sorted(set(names.tolist()))
    unknown = tuple(name for name in listed if name not in first or name not in second)
    otherwise = tuple(name for name in listed if name not in unknown and list(first[name]) != list(second[name]))
    kept = [name for name in listed if name not in unknown + otherwise]
    if not kept:
        reason = (
            "no window's chunk lengths were recorded in both runs" if unknown else "the runs cut every window otherwise"
        )
        return Missing(reason)
    of_row = np.zeros(len(names), dtype=np.int64)
    for name in kept:
        own = names == name
        of_row[own] = chunk_numbers(rows[own], first[name], window=name)
    by_chunk = tuple(
        ChunkShare(
            number, len(set(names[of_row == number].tolist())),
            int((of_row == number).sum()), int(same[of_row == number].sum()),
        )
        for number in sorted(set(of_row[of_row > 0].tolist()))
    )  # fmt: skip
    unequal = rows[(of_row > 0) & ~same]
    start: int | Missing = next((one.chunk for one in by_chunk if one.equal < one.rows), Missing("every row is equal"))
    position: int | Missing = int(unequal.min()) if unequal.size else Missing("every row is equal")
    # A later chunk is a finding only beside rows of an earlier one: else nothing shows that those would be equal.
    found = not isinstance(start, Missing) and start > by_chunk[0].chunk
    return ChunkEquality(
        by_chunk, start, position, unknown, otherwise, found, _sentence(by_chunk, start, position, found=found)
    )


def _sentence(by_chunk: tuple[ChunkShare, ...], start: int | Missing, position: int | Missing, *, found: bool) -> str:
    shares = ", ".join(f"chunk {one.chunk}: {one.equal:,} of {many(one.rows, 'row')}" for one in by_chunk)
    if isinstance(start, Missing):
        return f"Every row is equal bit for bit ({shares})."
    where = f"the first row that differs is at index {position}"
    if found:
        return f"The runs are equal before chunk {start} and differ from there on ({shares}); {where}."
    return f"The runs differ from chunk {start} on, the first that was measured ({shares}); {where}."
