"""The header of a GGUF file, walked with every length checked before it is trusted.

Walked here rather than by `gguf.GGUFReader`: a truncated file must be refused with a sentence that says what is
missing, which needs the walk anyway, and that reader's one array for each vocabulary string takes 2 s and 160 MB.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType, GGUFValueType

from engcmp_resources.errors import EngcmpError

REMEDY = "fetch or make the file again"
FIXED_HEADER_BYTES = 24  # magic, version, tensor count, key count

_SUPPORTED_VERSIONS = (2, 3)  # version 1 has 32-bit lengths; no file of it is in use
_MOST_DIMENSIONS = 4  # ggml's own limit: a larger count is damage, not a tensor
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_LENGTH = struct.Struct("<Q")
_ELEMENT_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One key's value with its GGUF type; `element_type` is that of an array's elements."""

    value: Any
    value_type: GGUFValueType
    element_type: GGUFValueType | None = None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies. `shape` is in numpy's order: rows first, the row's elements last.

    `offset_bytes` counts from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    offset_bytes: int
    row_bytes: int

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.rows * self.row_bytes


class _Header:
    """A cursor over the header that refuses to read past the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.offset = 0

    def damaged(self, what: str) -> EngcmpError:
        return EngcmpError(f"damaged GGUF: {what}", where=f"{self._path} at byte {self.offset:,}", remedy=REMEDY)

    def take(self, format_: str, what: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + format_)
        self._need(size, what)
        values = struct.unpack_from("<" + format_, self._data, self.offset)
        self.offset += size
        return values

    def text(self, what: str) -> str:
        (length,) = self.take("Q", what)
        self._need(length, what)
        raw = self._data[self.offset : self.offset + length]
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is not UTF-8") from error
        self.offset += length
        return text

    def texts(self, count: int, what: str) -> list[str]:
        """As `text` does, `count` times; a vocabulary has a hundred thousand, so a sound one is read without a call for each field."""
        data, size, offset, found = self._data, len(self._data), self.offset, list[str]()
        for _ in range(count):
            begin = offset + _LENGTH.size
            try:
                end = begin + _LENGTH.unpack_from(data, offset)[0]
                text = data[begin:end].decode("utf-8")
            except (struct.error, UnicodeDecodeError):
                end = size + 1
            if end > size:
                self.offset = offset
                text = self.text(what)  # which says what is wrong with it
            found.append(text)
            offset = end
        self.offset = offset
        return found

    def value_type(self, what: str) -> GGUFValueType:
        (number,) = self.take("I", what)
        try:
            return GGUFValueType(number)
        except ValueError as error:
            raise self.damaged(f"{what} has the unknown type {number}") from error

    def entry(self, key: str) -> MetadataEntry:
        what = f"the value of {key!r}"
        value_type = self.value_type(what)
        if value_type == GGUFValueType.STRING:
            return MetadataEntry(self.text(what), value_type)
        if value_type != GGUFValueType.ARRAY:
            return MetadataEntry(self.take(_ELEMENT_FORMATS[value_type], what)[0], value_type)
        element_type = self.value_type(what)
        (length,) = self.take("Q", what)
        if element_type == GGUFValueType.STRING:
            return MetadataEntry(self.texts(length, what), value_type, element_type)
        if element_type == GGUFValueType.ARRAY:
            raise self.damaged(f"{what} is an array of arrays")
        element = _ELEMENT_FORMATS[element_type]
        # Checked before the format text is built: a damaged length may be 2**60.
        self._need(length * struct.calcsize("<" + element), what)
        return MetadataEntry(list(self.take(f"{length}{element}", what)), value_type, element_type)

    def tensor(self, index: int) -> TensorEntry:
        """One tensor's entry, its offset still from the start of the data section."""
        name = self.text(f"the name of tensor {index}")
        what = f"the entry of tensor {name!r}"
        (dimensions,) = self.take("I", what)
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.damaged(f"{what} has {dimensions} dimensions")
        shape = tuple(reversed(self.take(f"{dimensions}Q", what)))
        if 0 in shape:
            raise self.damaged(f"{what} has an empty shape")
        number, offset_bytes = self.take("IQ", what)
        try:
            quantization = GGMLQuantizationType(number)
        except ValueError as error:
            raise self.damaged(f"{what} has the unknown quantization {number}") from error
        block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
        if shape[-1] % block:
            raise self.damaged(f"{what} has rows of {shape[-1]}, no multiple of {quantization.name}'s block of {block}")
        return TensorEntry(name, shape, quantization, offset_bytes, shape[-1] // block * block_bytes)

    def _need(self, size: int, what: str) -> None:
        missing = self.offset + size - len(self._data)
        if missing > 0:
            raise EngcmpError(
                f"truncated GGUF: it ends inside {what}, {missing:,} bytes short of its end",
                where=f"{self._path}, {len(self._data):,} bytes",
                remedy=REMEDY,
            )


def read_header(data: mmap.mmap, path: Path) -> tuple[dict[str, MetadataEntry], dict[str, TensorEntry]]:
    """Metadata and tensors of a GGUF, each tensor inside the file. Raises EngcmpError for any damage."""
    header = _Header(data, path)
    magic, version, tensor_count, key_count = header.take("4sIQQ", "the fixed header")
    if magic != b"GGUF":
        raise EngcmpError(f"not a GGUF: it begins with {magic!r}", where=str(path), remedy=REMEDY)
    if version not in _SUPPORTED_VERSIONS:
        raise EngcmpError(
            f"GGUF of version {version}, or of the other byte order; this reads versions 2 and 3, little-endian",
            where=str(path),
            remedy="convert the file with the gguf package",
        )
    metadata: dict[str, MetadataEntry] = {}
    for index in range(key_count):
        key = header.text(f"the name of key {index}")
        if key in metadata:
            raise header.damaged(f"the key {key!r} occurs twice")
        metadata[key] = header.entry(key)
    relative = [header.tensor(index) for index in range(tensor_count)]
    alignment = alignment_of(metadata)
    if alignment < 1 or alignment & (alignment - 1):
        raise header.damaged(f"{_ALIGNMENT_KEY} is {alignment}, not a power of two")
    data_start = -(-header.offset // alignment) * alignment
    tensors: dict[str, TensorEntry] = {}
    for entry in relative:
        placed = replace(entry, offset_bytes=data_start + entry.offset_bytes)
        if placed.name in tensors:
            raise header.damaged(f"the tensor {placed.name!r} occurs twice")
        if placed.end_bytes > len(data):
            raise EngcmpError(
                f"truncated GGUF: tensor {placed.name!r} ends at byte {placed.end_bytes:,}",
                where=f"{path}, {len(data):,} bytes",
                remedy=REMEDY,
            )
        tensors[placed.name] = placed
    return metadata, tensors


def alignment_of(metadata: Mapping[str, MetadataEntry]) -> int:
    """What the offsets of the data section are multiples of, in bytes."""
    entry = metadata.get(_ALIGNMENT_KEY)
    return entry.value if entry is not None and isinstance(entry.value, int) else _DEFAULT_ALIGNMENT
