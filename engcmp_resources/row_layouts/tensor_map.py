"""A safetensors file as a memory map, its header checked before anything in it is trusted.

The library neither says where a tensor lies nor gives BF16 to numpy, so rows cannot be read in place through it.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.row_layouts.cut_files import announce
from engcmp_resources.row_layouts.places import fault, open_regular

Array = npt.NDArray[Any]
# How each type is read; BF16 as its bits. A file with other types holds no rows.
_READ_AS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_LENGTH_BYTES = 8
_MOST_DIMENSIONS = 8
_MOST_COPIED_BYTES = 512 << 20
_MOST_HEADER_BYTES = 4 << 20  # a dozen tensors take 1 KB; metadata may hold what a server said of itself


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor's type as safetensors names it, its shape, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """A mapped file: its metadata, its tensors by name, its size. The map goes with the last array that was made of it.

    `in_place`: it may be read where it lies, even while someone cuts it; else only by `read`.
    """

    path: Path
    window_id: str
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorPlace]
    size_bytes: int
    data: mmap.mmap
    in_place: bool

    def view(self, name: str) -> Array:
        """The tensor where it lies, read-only; BF16 as uint16."""
        place = self.tensors[name]
        flat = np.frombuffer(self.data, dtype=_READ_AS[place.dtype], count=prod(place.shape), offset=place.offset_bytes)
        return flat.reshape(place.shape)

    def refuse_shorter(self) -> None:
        """Raise EngcmpError where the file was cut since it was mapped: what was read of it since then may be zeros."""
        if (now := self.data.size()) < self.size_bytes:
            raise fault(self.window_id, f"cut from {self.size_bytes:,} to {now:,} bytes while it is read", self.path)

    def array(self, name: str, dtype: str, dimensions: int) -> Array:
        """A copy of a small tensor. Raises EngcmpError that says what it is where it is of another type, dimensions or not small."""
        place = self.tensors[name]
        if place.dtype != dtype or len(place.shape) != dimensions:
            found = f"{place.dtype} {list(place.shape)}"
            raise fault(
                self.window_id,
                f"{name} is {found}, not {dtype} of {dimensions} dimension{'s'[: dimensions - 1]}",
                self.path,
            )
        if place.size_bytes > _MOST_COPIED_BYTES:
            raise fault(
                self.window_id,
                f"{name} has {place.size_bytes:,} bytes, at most {_MOST_COPIED_BYTES:,} are read",
                self.path,
            )
        copied = self.read(name, 0, place.shape[0])
        self.refuse_shorter()
        return copied

    def read(self, name: str, start: int, stop: int) -> Array:
        """A copy of the tensor from `start` to `stop` of its first dimension. Raises EngcmpError where the file ends before."""
        place = self.tensors[name]
        if self.in_place:
            return self.view(name)[start:stop].copy()
        found = np.empty((stop - start, *place.shape[1:]), dtype=_READ_AS[place.dtype])
        offset = place.offset_bytes + start * (place.size_bytes // max(1, place.shape[0]))
        with self.path.open("rb", buffering=0) as file:
            file.seek(offset)
            rest = found.data.cast("B") if found.size else memoryview(b"")
            while rest and (got := file.readinto(rest)):  # at most 2 GiB at once
                rest = rest[got:]
        if rest:
            raise fault(self.window_id, f"it ends {len(rest):,} bytes before its tensor {name}", self.path)
        return found


def map_tensors(path: Path, *, window_id: str) -> TensorMap:
    """Map the file. Raises EngcmpError naming window and file for one that is missing, truncated, of another kind, or inconsistent."""
    descriptor, size = open_regular(path, window_id=window_id)
    try:
        metadata, tensors = header_of(descriptor, size, path, window_id)
        data = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        data.madvise(mmap.MADV_SEQUENTIAL)  # rows are read in their order: look further ahead
    except (OSError, ValueError) as error:  # ValueError: cut shorter since its size was asked for
        raise fault(window_id, f"cannot be read: {error}", path) from error
    finally:
        os.close(descriptor)
    return TensorMap(path, window_id, metadata, tensors, size, data, announce(data))


def tensor_names(path: Path, *, window_id: str) -> frozenset[str]:
    """The names of the file's tensors. Raises as map_tensors."""
    return frozenset(map_tensors(path, window_id=window_id).tensors)


def header_of(descriptor: int, size: int, path: Path, window_id: str) -> tuple[dict[str, str], dict[str, TensorPlace]]:
    """Metadata and tensors of an open file of `size` bytes. Raises EngcmpError naming window and file for a damaged or foreign one."""
    length = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
    if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
        raise fault(window_id, f"not a whole safetensors file: of {size:,} bytes its header claims {length:,}", path)
    if length > _MOST_HEADER_BYTES:
        raise fault(
            window_id, f"its header claims {length:,} bytes, files of rows have at most {_MOST_HEADER_BYTES:,}", path
        )
    raw, start = os.pread(descriptor, length, _LENGTH_BYTES), _LENGTH_BYTES + length
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_each_once)
        if not isinstance(header, dict):
            raise ValueError("the header is no object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("the metadata are no texts")
        tensors = {name: _place(name, entry, start) for name, entry in header.items()}
        _refuse_gaps(tensors, start, size)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise fault(window_id, f"not a whole safetensors file: {error}", path) from error
    return metadata, tensors


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand once: readers differ in which of two they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key of the header stands twice")
    return found


def _place(name: str, entry: Any, start: int) -> TensorPlace:
    known = isinstance(entry, dict) and isinstance(entry.get("dtype"), str) and entry["dtype"] in _READ_AS
    if not known:
        raise ValueError(f"tensor {name[:100]!r} has no type that rows are stored in")
    dtype, shape, offsets = entry["dtype"], entry.get("shape"), entry.get("data_offsets")
    if not (_counts(shape) and _counts(offsets) and len(offsets) == 2):  # noqa: PLR2004 - begin and end
        raise ValueError(f"tensor {name[:100]!r} has no shape or no offsets")
    needed = prod(shape) * np.dtype(_READ_AS[dtype]).itemsize
    if offsets[1] - offsets[0] != needed:
        raise ValueError(f"tensor {name[:100]!r} needs {needed:,} bytes and has {offsets[1] - offsets[0]:,}")
    return TensorPlace(dtype, tuple(shape), start + offsets[0], needed)


def _counts(value: Any) -> bool:
    """Whether it is a short list of sizes that a file can have."""
    short = isinstance(value, list) and len(value) <= _MOST_DIMENSIONS
    return short and all(type(one) is int and 0 <= one < 1 << 63 for one in value)


def _refuse_gaps(tensors: Mapping[str, TensorPlace], start: int, size: int) -> None:
    """Each byte of the data belongs to one tensor; else the file was cut, or two tensors share bytes."""
    end = start
    for name, place in sorted(tensors.items(), key=lambda item: (item[1].offset_bytes, item[1].size_bytes)):
        if place.offset_bytes != end:
            raise ValueError(f"tensor {name[:100]!r} does not begin where the one before ends")
        end += place.size_bytes
    if end != size:
        raise ValueError(f"its tensors need {end:,} bytes and the file has {size:,}")
