"""How two checkpoints on disk are related: which tensors they share byte for byte, and how FP8 weights follow from BF16 ones.

Shards are read one after the other in blocks, so that memory stays small whatever a checkpoint weighs. Nothing is unpickled or loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError
from engcmp_resources.fp8_scales import NOTHING, Fp8Relation, bf16_values, group_of, relation_of

Say = Callable[[str], None]
_BLOCK_BYTES = 8 << 20
_MOST_HEADER_BYTES = 256 << 20
_LENGTH_BYTES = 8
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "F8_E4M3": 8,
    "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
_SCALES = ("_scale_inv", "_scale")  # after the name of the weight, as checkpoints write them


@dataclass(frozen=True, slots=True)
class TensorAt:
    """A tensor of a shard: its type as safetensors names it, its shape, and where its bytes lie in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """The tensors of two checkpoints by name: `equal` byte for byte, `differing` with how, and those that only one has."""

    equal: tuple[str, ...]
    differing: Mapping[str, str]
    only_one: tuple[str, ...]
    only_other: tuple[str, ...]
    bytes_compared: int


@dataclass(frozen=True, slots=True)
class Fp8Check:
    """The relation over all weights that are BF16 in one checkpoint and FP8 in the other, and of each of them; `without` lack scales."""

    whole: Fp8Relation
    by_tensor: Mapping[str, Fp8Relation] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def tensors_of(folder: Path) -> dict[str, TensorAt]:
    """The tensors of every `*.safetensors` below `folder`, by name.

    Raises EngcmpError naming the file for a folder without any, for a header that is no header, for places outside the file, and for a
    tensor that stands in two shards.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise EngcmpError("no safetensors file is there", where=str(folder), remedy="name the folder of a checkpoint")
    found: dict[str, TensorAt] = {}
    for shard in shards:
        for name, tensor in _header(shard):
            if name in found:
                raise _fault(shard, f"tensor {name} stands in {found[name].path.name} too")
            found[name] = tensor
    return found


def tensor_header(path: Path) -> dict[str, TensorAt]:
    """The tensors of one file by name, from its header alone. Raises EngcmpError as `tensors_of`."""
    return dict(_header(path))


def compare_shared(one: Path, other: Path, *, say: Say = lambda _: None) -> SharedTensors:
    """Compare two checkpoints tensor by tensor, byte by byte. Raises EngcmpError as `tensors_of`, and for a file that is cut meanwhile."""
    left, right = tensors_of(one), tensors_of(other)
    equal: list[str] = []
    differing: dict[str, str] = {}
    compared = 0
    shard = ""
    for name in sorted(set(left) & set(right), key=lambda key: (str(left[key].path), left[key].offset)):
        if left[name].path.name != shard:
            shard = left[name].path.name
            say(f"comparing {shard}")
        how = _difference(left[name], right[name])
        compared += left[name].size
        if how is None:
            equal.append(name)
        else:
            differing[name] = how
    return SharedTensors(
        tuple(sorted(equal)),
        differing,
        tuple(sorted(set(left) - set(right))),
        tuple(sorted(set(right) - set(left))),
        compared,
    )


def check_fp8(bf16: Path, fp8: Path, *, say: Say = lambda _: None) -> Fp8Check:
    """Hold each matrix that is BF16 in one checkpoint and FP8 (E4M3) in the other against its scales, NAME_scale_inv or NAME_scale.

    Raises EngcmpError as `tensors_of`, and naming the tensor for shapes that differ, scales that do not fit, and codes that are NaN.
    """
    left, right = tensors_of(bf16), tensors_of(fp8)
    by_tensor: dict[str, Fp8Relation] = {}
    without: list[str] = []
    for name in sorted(set(left) & set(right)):
        weights, codes = left[name], right[name]
        if (weights.dtype, codes.dtype) != ("BF16", "F8_E4M3") or len(weights.shape) != 2:  # noqa: PLR2004 - matrices
            continue
        scale = next((right[name + end] for end in _SCALES if name + end in right), None)
        if scale is None:
            without.append(name)
            continue
        say(f"checking {name}")
        try:
            by_tensor[name] = _fp8_of(weights, codes, scale)
        except EngcmpError as error:
            raise EngcmpError(f"tensor {name}: {error.what}", where=str(codes.path), remedy=error.remedy) from error
    whole = sum(by_tensor.values(), start=NOTHING)
    return Fp8Check(whole, by_tensor, tuple(without))


def _fp8_of(weights: TensorAt, codes: TensorAt, scale: TensorAt) -> Fp8Relation:
    if weights.shape != codes.shape:
        raise EngcmpError(
            f"shapes {list(weights.shape)} and {list(codes.shape)}", remedy="these are no versions of one checkpoint"
        )
    if scale.dtype not in ("F32", "BF16"):
        raise EngcmpError(f"scales are {scale.dtype}", remedy="scales of F32 or BF16 are read")
    group = group_of((weights.shape[0], weights.shape[1]), scale.shape)
    with scale.path.open("rb") as file:
        raw = _read(file, scale, scale.offset, scale.size)
    every = np.frombuffer(raw, "<f4") if scale.dtype == "F32" else bf16_values(np.frombuffer(raw, "<u2"))
    rows, columns = weights.shape
    grid = every.astype(np.float32).reshape(-(-rows // group[0]), -(-columns // group[1]))
    at_once = max(1, _BLOCK_BYTES // (columns * group[0])) * group[0]
    found = NOTHING
    with weights.path.open("rb") as left, codes.path.open("rb") as right:
        for start in range(0, rows, at_once):
            count = min(at_once, rows - start)
            bits = _read(left, weights, weights.offset + start * columns * 2, count * columns * 2)
            own = _read(right, codes, codes.offset + start * columns, count * columns)
            part = grid[start // group[0] : -(-(start + count) // group[0])]
            found += relation_of(
                bf16_values(np.frombuffer(bits, "<u2")).reshape(count, columns),
                np.frombuffer(own, np.uint8).reshape(count, columns), part, group,
            )  # fmt: skip
    return found


def _difference(left: TensorAt, right: TensorAt) -> str | None:
    """How two tensors differ, or None."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return f"{left.dtype} {list(left.shape)} and {right.dtype} {list(right.shape)}"
    with left.path.open("rb") as one, right.path.open("rb") as other:
        for start in range(0, left.size, _BLOCK_BYTES):
            count = min(_BLOCK_BYTES, left.size - start)
            ours, theirs = (
                _read(one, left, left.offset + start, count),
                _read(other, right, right.offset + start, count),
            )
            if ours != theirs:
                apart: npt.NDArray[Any] = np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)
                return f"bytes differ from byte {start + int(apart.argmax()):,} of {left.size:,} on"
    return None


def _read(file: BinaryIO, tensor: TensorAt, offset: int, count: int) -> bytes:
    file.seek(offset)
    data = file.read(count)
    if len(data) != count:
        raise _fault(tensor.path, "cut while it is read")
    return data


def _header(path: Path) -> Iterator[tuple[str, TensorAt]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise _fault(path, "its header reaches beyond the file")
        try:
            header = json.loads(file.read(length))
            entries = {name: value for name, value in header.items() if name != "__metadata__"}
            for name, value in entries.items():
                dtype, shape, (begin, end) = (
                    str(value["dtype"]),
                    tuple(int(one) for one in value["shape"]),
                    value["data_offsets"],
                )
                if (
                    dtype not in _BITS
                    or min(shape, default=0) < 0
                    or not 0 <= begin <= end <= size - _LENGTH_BYTES - length
                ):
                    raise _fault(path, f"tensor {name} is {dtype} at {begin} to {end}, which the file does not hold")
                if prod(shape) * _BITS[dtype] // 8 != end - begin:
                    raise _fault(path, f"tensor {name}: {end - begin:,} bytes for {dtype} {list(shape)}")
                yield name, TensorAt(path, dtype, shape, _LENGTH_BYTES + length + begin, end - begin)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _fault(path, f"its header is no safetensors header: {error}") from error


def _fault(path: Path, what: str) -> EngcmpError:
    return EngcmpError(f"{path.name}: {what}", where=str(path), remedy="fetch this file again")
