"""Row files: `<window>.safetensors` with `positions` I32 [k] (row index r) and `logits` F32 [k, V], metadata window_id and tokens_sha256.

Written by our own few lines, since the safetensors library writes its metadata in an order that changes from process to process, and
identical rows must be identical bytes. Read by the library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import disk_errors

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class RowFile:
    """A window's rows: `positions` int32 [k], `logits` float32 [k, V], and which window they are of."""

    window_id: str
    tokens_sha256: str
    positions: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]


def write_rows(path: Path, rows: RowFile) -> None:
    """Write a row file; the same rows give the same bytes. Raises EngcmpError where the shapes disagree or the disk is full."""
    positions = np.ascontiguousarray(rows.positions, dtype="<i4")
    logits = np.ascontiguousarray(rows.logits, dtype="<f4")
    if logits.ndim != 2 or positions.shape != (logits.shape[0],):  # noqa: PLR2004 - rows by vocabulary
        raise EngcmpError(
            f"window {rows.window_id}: logits {logits.shape} do not fit positions {positions.shape}",
            where=str(path), remedy="capture the window again",
        )  # fmt: skip
    header: dict[str, Any] = {
        "__metadata__": {"tokens_sha256": rows.tokens_sha256, "window_id": rows.window_id},
        "logits": {"dtype": "F32", "shape": list(logits.shape), "data_offsets": [0, logits.nbytes]},
        "positions": {
            "dtype": "I32", "shape": list(positions.shape), "data_offsets": [logits.nbytes, logits.nbytes + positions.nbytes],
        },
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    with disk_errors(path), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        file.write(logits.data)
        file.write(positions.data)


def read_rows(path: Path, *, window_id: str, tokens_sha256: str, positions: Sequence[int], vocab: int) -> RowFile:
    """The rows of a window, checked against what the panel expects of it.

    Raises EngcmpError naming file and window for a truncated or foreign file, another window or tokens, positions or width that differ.
    """
    where, remedy = f"file {path.name}", "capture this window again"
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            found = np.asarray(file.get_tensor("positions"))
            logits = np.asarray(file.get_tensor("logits"))
    except (SafetensorError, OSError, KeyError) as error:
        raise EngcmpError(f"window {window_id}: not a whole row file: {error}", where=where, remedy=remedy) from error
    if metadata.get("window_id") != window_id or metadata.get("tokens_sha256") != tokens_sha256:
        raise EngcmpError(
            f"window {window_id}: the file holds window {metadata.get('window_id')} of other tokens or another name",
            where=where, remedy=remedy,
        )  # fmt: skip
    if found.tolist() != list(positions):
        raise EngcmpError(
            f"window {window_id}: {found.size} rows, plan has {len(positions)}, or at other positions",
            where=where,
            remedy=remedy,
        )
    if logits.shape != (len(positions), vocab):
        raise EngcmpError(
            f"window {window_id}: rows of width {logits.shape[-1]}, the vocabulary has {vocab}",
            where=where,
            remedy=remedy,
        )
    return RowFile(window_id, tokens_sha256, found.astype(np.int32), logits.astype(np.float32, copy=False))


def row_hashes(logits: npt.NDArray[np.float32]) -> list[str]:
    """SHA-256 of each row's raw little-endian bytes, for `rows_bit_identical`."""
    return [hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").data).hexdigest() for row in logits]
