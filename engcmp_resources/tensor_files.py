"""Safetensors files whose bytes depend on nothing but their content.

Written by our own few lines, since the safetensors library writes its metadata in an order that changes from process to process. Read by
the library.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from engcmp_resources.disk import disk_errors
from engcmp_resources.errors import EngcmpError

Array = npt.NDArray[Any]
_ALIGNMENT = 8
_NAMES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i4": "I32", "<u8": "U64", "<u4": "U32", "|u1": "U8"}


def write_tensors(path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Array]) -> None:
    """Write `tensors` and `metadata`; the same content gives the same bytes, whatever the order of the mappings.

    The widest values come first, then by name, so that each tensor is aligned. Not atomic: give a temporary path. Raises EngcmpError for
    a dtype that is not little-endian F64, F32, F16, I32, U64, U32 or U8, and where the disk is full.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    end = 0
    for name, tensor in ordered:
        if tensor.dtype.str not in _NAMES:
            raise EngcmpError(
                f"tensor {name} is {tensor.dtype}, which the file cannot hold",
                where=str(path),
                remedy="convert it first",
            )
        start, end = end, end + tensor.nbytes
        dtype = _NAMES[tensor.dtype.str]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    with disk_errors(path), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, tensor in ordered:
            file.write(np.ascontiguousarray(tensor).data)


def read_tensors(path: Path, names: Collection[str], *, what: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and the named tensors of a file; other tensors are not read.

    Raises EngcmpError that names `what` (as `window a03`) and the file, for a file that is missing, truncated or of another kind, and for
    tensors that it lacks.
    """
    where, remedy = f"file {path.name}", "capture this window again"
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            missing = sorted(set(names) - set(file.keys()))
            tensors = {} if missing else {name: np.asarray(file.get_tensor(name)) for name in names}
    except (SafetensorError, OSError) as error:
        raise EngcmpError(f"{what}: not a whole tensor file: {error}", where=where, remedy=remedy) from error
    if missing:
        raise EngcmpError(f"{what}: the file holds no {', '.join(missing)}", where=where, remedy=remedy)
    return metadata, tensors
