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

from engcmp_resources.disk import disk_errors
from engcmp_resources.errors import EngcmpError

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
    where, remedy = str(path), "capture this window again"
    metadata, found, logits = _tensors(path, window_id, remedy)
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
            f"window {window_id}: logits of shape {logits.shape}, {len(positions)} rows of {vocab} are planned",
            where=where,
            remedy=remedy,
        )
    return RowFile(window_id, tokens_sha256, found, logits)


def _tensors(
    path: Path, window_id: str, remedy: str
) -> tuple[dict[str, str], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Metadata, positions and logits. Raises EngcmpError for a file that is not whole or holds anything else."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            names = sorted(file.keys())
            if names != ["logits", "positions"]:
                raise KeyError(f"it holds {', '.join(names) or 'nothing'}")
            found, logits = file.get_tensor("positions"), file.get_tensor("logits")
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngcmpError(
            f"window {window_id}: not a whole row file: {error}", where=str(path), remedy=remedy
        ) from error
    if found.dtype != np.int32 or logits.dtype != np.float32:
        raise EngcmpError(
            f"window {window_id}: positions are {found.dtype} and logits {logits.dtype}, not int32 and float32",
            where=str(path),
            remedy=remedy,
        )
    return metadata, found, logits


def row_hashes(logits: npt.NDArray[np.float32]) -> list[str]:
    """SHA-256 of each row's raw little-endian bytes, for `rows_bit_identical`."""
    return [hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").data).hexdigest() for row in logits]
