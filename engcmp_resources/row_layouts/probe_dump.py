"""CuteAFD's raw dump of one window: a folder with `manifest.jsonl` and a file `row-%08d.safetensors` for each row.

A line of the manifest is `{"position", "vocab_size", "file", "tensor": "log_probs", "dtype": "F32", "byte_order": "little"}`; a row file
holds the one tensor `log_probs` F32 [vocab]. **Its position p is that of the token which the row predicts, so it is row r = p - 1**; the
conversion is made here and nowhere else. The dump tells neither the window nor its tokens: its folder is named `<window_id>`, or
`<anything>-<window_id>-<process id>` as CuteAFD's own script names it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.row_layouts.checks import refuse_doubled
from engcmp_resources.row_layouts.places import fault, inside, open_regular, small_file
from engcmp_resources.row_layouts.source import Array, RowSource
from engcmp_resources.row_layouts.tensor_map import header_of

MANIFEST = "manifest.jsonl"
TENSOR = "log_probs"
_FIXED = {"tensor": TENSOR, "dtype": "F32", "byte_order": "little"}
_MOST_MANIFEST_BYTES = 32 << 20  # 200,000 rows
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class DumpedRows(RowSource):
    """Rows of one file each. A block is read into an array of its own, so nothing stays mapped."""

    files: Sequence[Path]

    def block(self, start: int, stop: int) -> Array:
        self._checked(start, stop)
        rows = np.empty((stop - start, self.vocab), dtype="<f4")
        for index in range(start, stop):
            self._read_row(index, rows[index - start])
        return rows

    def prefetch(self, start: int, stop: int) -> None:
        self._checked(start, stop)
        if not hasattr(os, "posix_fadvise"):
            return
        for path in self.files[start:stop]:
            descriptor, size = open_regular(path, window_id=self.window_id)
            os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_WILLNEED)
            os.close(descriptor)

    def release(self, start: int, stop: int) -> None:
        self._checked(start, stop)

    def _read_row(self, index: int, row: npt.NDArray[np.float32]) -> None:
        path, what = self.files[index], f"row {self.positions[index]}"
        descriptor, size = open_regular(path, window_id=self.window_id)
        try:
            _, tensors = header_of(descriptor, size, path, self.window_id)
            place = tensors.get(TENSOR)
            if place is None or len(tensors) != 1 or place.dtype != "F32":
                raise fault(self.window_id, f"{what}: the file holds not the one F32 tensor {TENSOR}", path)
            if place.shape != (self.vocab,):
                raise fault(self.window_id, f"{what}: of shape {list(place.shape)}, not [{self.vocab}]", path)
            got = os.preadv(descriptor, [row.data.cast("B")], place.offset_bytes)
            if got != prod(place.shape) * _FLOAT32_BYTES:
                raise fault(self.window_id, f"{what}: {got:,} bytes could be read", path)
        except OSError as error:
            raise fault(self.window_id, f"{what} cannot be read: {error.strerror}", path) from error
        finally:
            os.close(descriptor)


def is_leaf_of(folder: Path, window_id: str) -> bool:
    """Whether a dump's folder is by its name that of a window."""
    return re.fullmatch(rf"(?:.*-)?{re.escape(window_id)}-\d+|{re.escape(window_id)}", folder.name) is not None


def open_dump(folder: Path, window_id: str) -> RowSource:
    """The rows of a dump, in the order of their positions.

    Raises EngcmpError naming window, file and line or row for a manifest that is damaged or lists other than rows of one width, for
    positions that stand twice, and for files that are missing, listed twice or outside the folder.
    """
    manifest = folder / MANIFEST
    lines = small_file(manifest, most_bytes=_MOST_MANIFEST_BYTES, window_id=window_id).splitlines()
    entries = [
        _entry(line, f"line {number}", manifest, window_id) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if len(widths := {entry["vocab_size"] for entry in entries}) > 1:
        raise fault(window_id, f"rows of {' and '.join(str(one) for one in sorted(widths)[:3])} values", manifest)
    vocab = widths.pop() if widths else 0
    entries.sort(key=lambda entry: int(entry["position"]))
    positions = np.array([entry["position"] - 1 for entry in entries], dtype=np.int64)
    refuse_doubled(positions, window_id, manifest)
    files = [inside(folder, entry["file"], listed_in=manifest) for entry in entries]
    if len(set(files)) != len(files):
        raise fault(window_id, "a row file is listed twice", manifest)
    sizes = [_size(path, position, vocab, window_id) for path, position in zip(files, positions.tolist(), strict=True)]
    return DumpedRows(
        window_id, folder, "F32", "log_probs", vocab, positions, None, sum(sizes), files
    )  # fmt: skip


def _entry(line: bytes, place: str, manifest: Path, window_id: str) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise fault(window_id, f"{place} is not JSON: {error}", manifest) from error
    if not isinstance(entry, dict):
        raise fault(window_id, f"{place} is no object", manifest)
    for key, lowest in (("position", 1), ("vocab_size", 1)):
        if type(entry.get(key)) is not int or not lowest <= entry[key] < 1 << 31:
            raise fault(
                window_id,
                f"{place}: {key} is {str(entry.get(key, 'missing'))[:50]}, not a number from {lowest}",
                manifest,
            )
    for key, wanted in _FIXED.items():
        if entry.get(key) != wanted:
            raise fault(window_id, f"{place}: {key} is {str(entry.get(key, 'missing'))[:50]!r}, not {wanted}", manifest)
    return entry


def _size(path: Path, position: int, vocab: int, window_id: str) -> int:
    """The file's bytes, which are at least the row's: so a width that a manifest only claims takes no memory."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise fault(window_id, f"row {position} has no file", path) from error
    if size < vocab * _FLOAT32_BYTES:
        raise fault(window_id, f"row {position}: {size:,} bytes are less than {vocab:,} float32 values", path)
    return size
