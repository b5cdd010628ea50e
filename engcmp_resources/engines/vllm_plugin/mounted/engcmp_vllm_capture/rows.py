"""The rows of a window while its prompt passes through the engine, and the two files that they become.

`NAME.safetensors` holds `positions` I32 [k] (row r is the distribution after tokens 0..r) and `logits` [k, V] in the head's dtype.
`NAME.json`, written after it, says how they came about: `chunks` are the steps that gave rows (a last step that reads one token alone
gives none). Both appear whole or not at all.
"""

import ctypes
import hashlib
import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DTYPES = {"torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float32": "F32"}
_ALIGNMENT = 8


@dataclass
class Capture:
    """One request's rows so far. `tokens` are the prompt's ids as the runner has them, `next_row` the position that must come next."""

    window_id: str
    request_id: str
    tokens: list[int]
    cached_tokens: int
    next_row: int
    chunks: list[dict[str, int]] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    fault: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the last row that the API scores, the one before the last token's, has come; or nothing more is waited for."""
        return self.fault is not None or self.next_row >= len(self.tokens) - 1

    def begin_chunk(self, chunk: dict[str, int]) -> None:
        """A step reads `chunk["tokens"]` tokens from `chunk["start"]` on. Rows that come twice or with a gap are a fault."""
        if chunk["start"] != self.next_row and self.fault is None:
            self.fault = f"a step reads from token {chunk['start']}, row {self.next_row} was next: preempted?"
        self.chunks.append(chunk)

    def add(self, logits: Any) -> None:
        """The next rows, a tensor [n, V] of torch; a copy in main memory is kept."""
        self.tensors.append(logits.detach().to("cpu", copy=True).contiguous())
        self.next_row += len(logits)

    def write(self, folder: Path, about: dict[str, Any]) -> None:
        """Write both files; of a capture with a fault the second one alone. `about` goes into it."""
        digest = None if self.fault else self._write_rows(folder)
        first = self.tensors[0] if self.tensors else None
        manifest = {
            "schema": "engcmp.vllm-capture/1",
            "window_id": self.window_id,
            "request_id": self.request_id,
            "prompt_tokens": len(self.tokens),
            "tokens_sha256": self._tokens_sha256(),
            "cached_tokens": self.cached_tokens,
            "chunk_lengths": [chunk["tokens"] for chunk in self.chunks],
            "chunks": self.chunks,
            "rows": sum(len(part) for part in self.tensors),
            "vocab": None if first is None else first.shape[1],
            "dtype": None if first is None else DTYPES.get(str(first.dtype), str(first.dtype)),
            "file_sha256": digest,
            "fault": self.fault,
        }
        text = json.dumps(manifest | about, indent=1, sort_keys=True) + "\n"
        _keep(folder / f"{self.window_id}.json", [text.encode()])

    def _write_rows(self, folder: Path) -> str:
        shape = [sum(len(part) for part in self.tensors), self.tensors[0].shape[1]]
        size = sum(part.nbytes for part in self.tensors)
        positions = struct.pack(f"<{shape[0]}i", *range(self.cached_tokens, self.cached_tokens + shape[0]))
        header = {
            "__metadata__": {
                "chunk_lengths": json.dumps([chunk["tokens"] for chunk in self.chunks]),
                "kind": "logits",
                "tokens_sha256": self._tokens_sha256(),
                "window_id": self.window_id,
            },
            "logits": {"dtype": DTYPES[str(self.tensors[0].dtype)], "shape": shape, "data_offsets": [0, size]},
            "positions": {"dtype": "I32", "shape": shape[:1], "data_offsets": [size, size + len(positions)]},
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        blocks = [(ctypes.c_ubyte * part.nbytes).from_address(part.data_ptr()) for part in self.tensors]
        return _keep(
            folder / f"{self.window_id}.safetensors", [len(text).to_bytes(8, "little"), text, *blocks, positions]
        )

    def _tokens_sha256(self) -> str:
        return hashlib.sha256(struct.pack(f"<{len(self.tokens)}I", *self.tokens)).hexdigest()


def _keep(path: Path, blocks: list[Any]) -> str:
    """Write `blocks` as the file `path`, whole or not at all; their SHA-256."""
    digest = hashlib.sha256()
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            for block in blocks:
                file.write(block)
                digest.update(block)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return digest.hexdigest()
