"""Writers of every layout that share no code with the readers: the safetensors library, pyarrow, and bytes put together by hand."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import TensorSpec, serialize_file
from safetensors.numpy import save_file

VOCAB = 13
TOKENS = (3, 1, 4, 1, 5, 9, 2, 6)
DIGEST = hashlib.sha256(struct.pack("<8I", *TOKENS)).hexdigest()
METADATA = {"window_id": "w1", "tokens_sha256": DIGEST}
_LIBRARY_NAMES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F64": "float64",
    "I32": "int32",
    "I64": "int64",
}


def values(rows: int = 3, vocab: int = VOCAB, seed: int = 1) -> np.ndarray:
    """Float32 rows with what rows may hold: -inf, zeros of both signs, tiny and large numbers."""
    found = np.random.default_rng(seed).normal(0, 8, (rows, vocab)).astype(np.float32)
    found[0, :5] = [-np.inf, 0.0, -0.0, 1e-42, -65504.0]
    return found


def bf16_bits(rows: np.ndarray) -> np.ndarray:
    """The upper half of each float32: BF16 values, as uint16."""
    return (rows.view("<u4") >> 16).astype("<u2")


def save_raw(path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str] | None = None) -> Path:
    """A file by the safetensors library, of tensors with their types named; so BF16 too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {name: np.ascontiguousarray(array) for name, (_, array) in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=_LIBRARY_NAMES[dtype],
            shape=kept[name].shape,
            data_ptr=kept[name].ctypes.data,
            data_len=kept[name].nbytes,
        )
        for name, (dtype, _) in tensors.items()
    }
    serialize_file(specs, path, metadata=metadata)
    return path


def save_full(
    folder: Path, window_id: str = "w1", rows: np.ndarray | None = None, positions: Any = (0, 2, 5), **metadata: str
) -> Path:
    tensors = {
        "positions": ("I32", np.asarray(positions, dtype="<i4")),
        "logits": ("F32", values() if rows is None else rows),
    }
    return save_raw(folder / f"{window_id}.safetensors", tensors, METADATA | {"window_id": window_id} | metadata)


def by_hand(path: Path, header: Any, data: bytes, *, padding: bytes = b"") -> Path:
    """A safetensors file from its bytes; `header` is JSON, or its text."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode() + padding
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def save_dump(leaf: Path, rows: np.ndarray, positions: Any, **changes: Any) -> Path:
    """A probe's dump as CuteAFD writes it; `positions` are those of the predicted tokens."""
    leaf.mkdir(parents=True)
    lines = []
    for number, (position, row) in enumerate(zip(positions, rows, strict=True)):
        name = f"row-{number:08d}.safetensors"
        by_hand(
            leaf / name,
            {"log_probs": entry("F32", [row.size], 0, row.size * 4)},
            row.astype("<f4").tobytes(),
            padding=b"  ",
        )
        line = {"position": int(position), "vocab_size": row.size, "file": name, "tensor": "log_probs", "dtype": "F32"}
        lines.append(json.dumps(line | {"byte_order": "little"} | changes))
    (leaf / "manifest.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return leaf


def save_teacher(
    folder: Path, window_id: str = "w1", tokens: Any = TOKENS, rows: np.ndarray | None = None
) -> np.ndarray:
    """A teacher's file and its tokens beside it. Returns the rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = values(len(tokens) - 1) if rows is None else rows
    save_file({"logits": rows}, folder / f"{window_id}.safetensors")
    np.save(folder / f"{window_id}.tokens.npy", np.asarray(tokens, dtype=np.int32))
    return rows


def topk_tensors(positions: Any = (1, 2, 5), shift: int = 1) -> dict[str, np.ndarray]:
    """Top-4 rows that predict the tokens `shift` after their positions."""
    count = len(positions)
    ids = np.random.default_rng(3).permuted(np.tile(np.arange(VOCAB), (count, 1)), axis=1)[:, :4]
    return {
        "positions": np.asarray(positions, dtype="<u4"),
        "next_token_ids": np.array([TOKENS[position + shift] for position in positions], dtype="<u4"),
        "roles": np.array([0, 1, 1][:count], dtype="u1"),
        "top_ids": ids.astype("<u4"),
        "top_log_probs": np.tile(np.array([-0.25, -1.5, -4.0, -np.inf], dtype="<f2"), (count, 1)),
        "tail_log_mass": np.full(count, -3.0, dtype="<f4"),
        "next_token_log_prob": np.linspace(-5, -1, count).astype("<f4"),
    }


def save_topk(
    folder: Path, window_id: str = "w1", metadata: dict[str, str] | None = METADATA, **changes: np.ndarray
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{window_id}.safetensors"
    save_file(topk_tensors() | changes, path, metadata=metadata)
    return path


def light_columns(window_id: str = "w1", positions: Any = (1, 2, 5)) -> dict[str, Any]:
    count = len(positions)
    return {
        "window_id": [window_id] * count,
        "tokens_sha256": [DIGEST] * count,
        "position": list(positions),
        "next_token": [TOKENS[position + 1] for position in positions],
        "next_token_log_prob": [-0.5, -2.25, -1e-3][:count],
        "top_ids": [[5, 2, 9], [4, 9, 1], [0, 3, 12]][:count],
        "top_log_probs": [[-0.5, -1.0, -1.0], [-0.25, -2.0, -3.0], [-0.125, -3.0, -3.0]][:count],
    }


def save_light(path: Path, columns: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path
