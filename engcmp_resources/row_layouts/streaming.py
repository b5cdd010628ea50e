"""The rows of several sources side by side, block by block, in little memory, each block read while the one before is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.source import Array, RowSource

Int64 = npt.NDArray[np.int64]
Side = tuple[RowSource, Int64]


def stream_rows(sides: Sequence[Side], *, block_rows: int = 32) -> Iterator[tuple[slice, list[Array]]]:
    """For k rows of each side, given as (source, indices [k] in its order): which of the k rows, and a block of them of each side.

    A block is [at most `block_rows`, V], as RowSource.block gives it; its memory is given back when the next one is asked for, so two
    blocks of each side are in memory. Raises EngcmpError where a row cannot be read, and for sides of different numbers of rows.
    """
    counts = {len(indices) for _, indices in sides}
    if len(counts) != 1:
        raise EngcmpError(
            f"sides of {sorted(counts)} rows cannot be read side by side", remedy="choose the same rows of each"
        )
    parts = [slice(start, start + block_rows) for start in range(0, counts.pop(), block_rows)]

    def fetch(part: slice) -> None:
        for source, indices in sides:
            for start, stop in _spans(indices[part]):
                source.prefetch(start, stop)

    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead = pool.submit(fetch, parts[0]) if parts else None
        for number, part in enumerate(parts, 1):
            if ahead is not None:
                ahead.result()
            ahead = pool.submit(fetch, parts[number]) if number < len(parts) else None
            yield part, [_block(source, indices[part]) for source, indices in sides]
            for source, indices in sides:
                for start, stop in _spans(indices[part]):
                    source.release(start, stop)


def _block(source: RowSource, indices: Int64) -> Array:
    """The rows at `indices`: where they lie if they follow each other, else a copy."""
    blocks = [source.block(start, stop) for start, stop in _spans(indices)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _spans(indices: Int64) -> list[tuple[int, int]]:
    """Indices as spans (start, stop) of consecutive ones, in their order."""
    pieces = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]
