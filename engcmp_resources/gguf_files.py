"""GGUF files: metadata and tensors read piece by piece as float32, and requantized whole or not at all.

Quantization arithmetic and writing are the `gguf` package's.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal, Self

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFValueType

from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_header import (
    FIXED_HEADER_BYTES,
    REMEDY,
    MetadataEntry,
    TensorEntry,
    alignment_of,
    read_header,
)

Kind = Literal["q8_0", "q4_0", "f32"]
Float32 = npt.NDArray[np.float32]

_ROWS_AT_ONCE = 4096  # the 49,152 x 576 embedding then needs 9 MB of float32 at a time in place of 113 MB
# What each kind stores its matrices as, and the number that `general.file_type` gives it.
_KINDS: dict[Kind, tuple[GGMLQuantizationType, int]] = {
    "q8_0": (GGMLQuantizationType.Q8_0, 7),
    "q4_0": (GGMLQuantizationType.Q4_0, 2),
    "f32": (GGMLQuantizationType.F32, 0),
}
# Written by the writer or for the target; a copy of the source's values would contradict the new tensors.
_KEYS_OF_THE_TARGET = ("general.architecture", "general.file_type", "general.quantization_version")
_QUANTIZATION_VERSION = 2


class GgufModel:
    """An open GGUF file: metadata by key, tensors as float32. Closed by `close()` or at the end of a `with` block.

    Every error names the file; a missing key or tensor is an EngcmpError.
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, MetadataEntry], tensors: Mapping[str, TensorEntry], descriptor: int
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def text(self, key: str) -> str:
        """The string under `key`."""
        return str(self._typed(key, str, "a string"))

    def integer(self, key: str, default: int | None = None) -> int:
        """The integer under `key`, or `default` where one is given and the key is absent."""
        if default is not None and key not in self.metadata:
            return default
        return int(self._typed(key, int, "an integer"))

    def number(self, key: str, default: float | None = None) -> float:
        """The number under `key`, or `default` where one is given and the key is absent."""
        if default is not None and key not in self.metadata:
            return default
        return float(self._typed(key, (float, int), "a number"))

    def texts(self, key: str) -> list[str]:
        """The array of strings under `key`."""
        return self._array(key, GGUFValueType.STRING)

    def integers(self, key: str) -> list[int]:
        """The array of 32-bit signed integers under `key`."""
        return self._array(key, GGUFValueType.INT32)

    def entry(self, name: str) -> TensorEntry:
        """Shape, quantization and place of a tensor."""
        if name not in self.tensors:
            raise EngcmpError(f"no tensor {name!r} in the GGUF", where=str(self.path), remedy=REMEDY)
        return self.tensors[name]

    def tensor(self, name: str) -> Float32:
        """A whole tensor, float32, in numpy's order (a matrix is [out, in])."""
        entry = self.entry(name)
        values = np.empty((entry.rows, entry.shape[-1]), dtype=np.float32)
        for start in range(0, entry.rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, entry.rows)
            values[start:stop] = self.tensor_rows(name, start, stop)
        return values.reshape(entry.shape)

    def tensor_rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows `start` to `stop` (exclusive) of a tensor seen as a matrix [rows, row elements], float32."""
        entry = self.entry(name)
        if not 0 <= start <= stop <= entry.rows:
            raise EngcmpError(
                f"rows {start} to {stop} of tensor {name!r}, which has {entry.rows}", where=str(self.path)
            )
        raw = self._read(entry.offset_bytes + start * entry.row_bytes, (stop - start) * entry.row_bytes)
        return self._dequantized(entry, raw, stop - start)

    def gather_rows(self, name: str, rows: Sequence[int]) -> Float32:
        """The given rows of a tensor seen as a matrix, float32 [len(rows), row elements], in the order asked."""
        entry = self.entry(name)
        outside = [row for row in rows if not 0 <= row < entry.rows]
        if outside:
            raise EngcmpError(f"row {outside[0]} of tensor {name!r}, which has {entry.rows}", where=str(self.path))
        raw = b"".join(self._read(entry.offset_bytes + row * entry.row_bytes, entry.row_bytes) for row in rows)
        return self._dequantized(entry, raw, len(rows))

    def _dequantized(self, entry: TensorEntry, raw: bytes, rows: int) -> Float32:
        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
        if rows == 0 or entry.quantization in plain:
            stored = np.frombuffer(raw, dtype=plain.get(entry.quantization, np.float32))
            return stored.astype(np.float32).reshape(rows, entry.shape[-1])
        try:
            values = gguf.quants.dequantize(
                np.frombuffer(raw, dtype=np.uint8).reshape(rows, entry.row_bytes), entry.quantization
            )
        except NotImplementedError as error:
            raise EngcmpError(
                f"tensor {entry.name!r} is stored as {entry.quantization.name}, which cannot be dequantized here",
                where=str(self.path),
                remedy="use weights in a quantization that the gguf package dequantizes",
            ) from error
        return np.asarray(values, dtype=np.float32)

    def _read(self, offset_bytes: int, size: int) -> bytes:
        if self._descriptor < 0:
            raise EngcmpError("the GGUF file is closed", where=str(self.path))
        pieces: list[bytes] = []
        while size:
            piece = os.pread(self._descriptor, size, offset_bytes)
            if not piece:
                raise EngcmpError("the GGUF file became shorter while it was read", where=str(self.path), remedy=REMEDY)
            pieces.append(piece)
            offset_bytes += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _typed(self, key: str, types: type | tuple[type, ...], name: str) -> Any:
        if key not in self.metadata:
            raise EngcmpError(f"no key {key!r} in the GGUF's metadata", where=str(self.path), remedy=REMEDY)
        value = self.metadata[key].value
        if not isinstance(value, types) or isinstance(value, bool):
            raise EngcmpError(f"the GGUF's key {key!r} is not {name}", where=str(self.path), remedy=REMEDY)
        return value

    def _array(self, key: str, element_type: GGUFValueType) -> list[Any]:
        values: list[Any] = self._typed(key, list, "an array")
        if self.metadata[key].element_type != element_type:
            raise EngcmpError(
                f"the GGUF's key {key!r} is not an array of {element_type.name}", where=str(self.path), remedy=REMEDY
            )
        return values


def open_gguf(path: Path) -> GgufModel:
    """Opens a GGUF file after checking that all its header and all its tensors are there.

    Raises EngcmpError for a file that is absent, is not a GGUF, is damaged, or is shorter than its tensors.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return GgufModel(path, *_checked_header(descriptor, path), descriptor)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise EngcmpError(f"cannot read the GGUF: {error.strerror}", where=str(path), remedy=REMEDY) from error


def _checked_header(descriptor: int, path: Path) -> tuple[dict[str, MetadataEntry], dict[str, TensorEntry]]:
    size = os.fstat(descriptor).st_size
    if size < FIXED_HEADER_BYTES:
        raise EngcmpError(f"not a GGUF, or truncated: {size} bytes", where=str(path), remedy=REMEDY)
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        return read_header(data, path)


def requantize(source: Path, target: Path, kind: Kind, *, progress: Callable[[int, int], None] | None = None) -> None:
    """Writes `source` again with every matrix as `kind`; vectors stay float32. The same bytes on every run.

    `progress(done, total)` counts tensors. `target` appears whole or not at all: the file is written beside it, synced,
    and renamed. Raises EngcmpError where the source is damaged, a matrix cannot be stored as `kind`, or writing fails.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open_gguf(source) as model:
            _write_requantized(model, partial, kind, progress)
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    except OSError as error:
        raise EngcmpError(
            f"cannot write the {kind} weights: {error}",
            where=str(target),
            remedy="check the folder and its free space, then run again",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_requantized(model: GgufModel, path: Path, kind: Kind, progress: Callable[[int, int], None] | None) -> None:
    _, file_type = _KINDS[kind]
    writer = gguf.GGUFWriter(path, model.architecture)
    # The writer pads by this field, which a copied key alone does not set.
    writer.data_alignment = alignment_of(model.metadata)
    for key, entry in model.metadata.items():
        # The writer cannot pack an empty array, and readers take an absent one as empty.
        if key not in _KEYS_OF_THE_TARGET and entry.value != []:
            writer.add_key_value(key, entry.value, entry.value_type, entry.element_type)
    writer.add_file_type(file_type)
    writer.add_quantization_version(_QUANTIZATION_VERSION)
    for tensor in model.tensors.values():
        stored = _stored_as(model, tensor, kind)
        block, block_bytes = gguf.GGML_QUANT_SIZES[stored]
        size = prod(tensor.shape) // block * block_bytes
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, raw_dtype=stored)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for done, tensor in enumerate(model.tensors.values(), start=1):
            writer.write_tensor_data(np.concatenate(list(_requantized(model, tensor, kind))))
            if progress is not None:
                progress(done, len(model.tensors))
    finally:
        writer.close()


def _stored_as(model: GgufModel, tensor: TensorEntry, kind: Kind) -> GGMLQuantizationType:
    stored = _KINDS[kind][0] if len(tensor.shape) == 2 else GGMLQuantizationType.F32  # noqa: PLR2004 - a matrix
    if tensor.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0]:
        raise EngcmpError(
            f"tensor {tensor.name!r} has rows of {tensor.shape[-1]}, which {kind} cannot hold",
            where=str(model.path),
            remedy="choose f32",
        )
    return stored


def _requantized(model: GgufModel, tensor: TensorEntry, kind: Kind) -> Iterator[npt.NDArray[Any]]:
    """The tensor's stored bytes in blocks of rows. Quantization never crosses a row: the split does not show."""
    stored = _stored_as(model, tensor, kind)
    for start in range(0, tensor.rows, _ROWS_AT_ONCE):
        values = model.tensor_rows(tensor.name, start, min(start + _ROWS_AT_ONCE, tensor.rows))
        yield gguf.quants.quantize(values, stored)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
