"""What the capture plugin wrote of a window, checked before any row of it counts.

The folder `mounted` beside this file goes into the container, read-only and on PYTHONPATH; this module stays outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.canonical import parse_json, sha256_file
from engcmp_resources.disk import disk_errors
from engcmp_resources.engines._api import rows_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.full_rows import open_full
from engcmp_resources.row_layouts.source import RowSource

MOUNTED = Path(__file__).parent / "mounted"
SCHEMA = "engcmp.vllm-capture/1"
# Both sides take the logarithm of the same numbers in float32, whatever the head's dtype: what is left is the rounding of their sums.
MOST_DIFFERENCE = 1e-4
_AGAIN = "capture this window again, with nothing else on the server"
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class CapturedWindow:
    """A window's rows as the head gave them, and the manifest of how they came about. `rows` has every row of the prompt but the last."""

    rows: RowSource
    manifest: Mapping[str, Any]

    def write_float32(self, positions: Sequence[int], out: Path) -> None:
        """Write rows `positions` to `out` as raw little-endian float32 [n, vocab], exactly as they are, whole or not at all."""
        with rows_file(out) as file:
            for start in range(0, len(positions), _ROWS_AT_ONCE):
                for position in positions[start : start + _ROWS_AT_ONCE]:
                    file.write(_float32(self.rows.block(position, position + 1)).tobytes())

    def next_log_probs(self, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        """Natural log-probability of token r + 1 at each row r, float64 [len(tokens) - 1]."""
        found = np.empty(self.rows.rows)
        for start in range(0, self.rows.rows, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, self.rows.rows)
            values = _float32(self.rows.block(start, stop)).astype(np.float64)
            highest = values.max(axis=1)
            sums = np.log(np.exp(values - highest[:, None]).sum(axis=1))
            found[start:stop] = values[np.arange(stop - start), list(tokens[start + 1 : stop + 1])] - highest - sums
        return found


def read_capture(folder: Path, window_id: str, tokens: Sequence[int], *, vocab: int) -> CapturedWindow:
    """What the plugin wrote of a window into `folder`, once the server has answered the request that asked for it.

    Raises EngcmpError naming window and file for a capture that is not there, has a fault, is of other tokens or another vocabulary, has
    rows from the prefix cache, is not whole, or is not the file that the manifest names.
    """
    path = folder / f"{window_id}.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise EngcmpError(
            f"window {window_id}: the server wrote no capture", where=f"file {path}",
            remedy="mount the capture plugin, put its folder on PYTHONPATH, name it in VLLM_PLUGINS where that is set, and set "
            "ENGCMP_CAPTURE_DIR to a folder that the server can write",
        ) from error  # fmt: skip
    manifest = parse_json(data, what=f"window {window_id}: its manifest", where=f"file {path}", remedy=_AGAIN)
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise _fault(window_id, path, f"its manifest is not of the schema {SCHEMA}")
    if manifest["fault"] is not None:
        raise _fault(window_id, path, f"the capture failed: {manifest['fault']}")
    digest = hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()
    wanted = {
        "window_id": window_id, "tokens_sha256": digest, "prompt_tokens": len(tokens), "cached_tokens": 0,
        "rows": len(tokens) - 1, "vocab": vocab,
    }  # fmt: skip
    for name, value in wanted.items():
        if manifest[name] != value:
            raise _fault(window_id, path, f"its {name} is {manifest[name]!r}, not {value!r}")
    rows_path = folder / f"{window_id}.safetensors"
    with disk_errors(rows_path):
        if sha256_file(rows_path) != manifest["file_sha256"]:
            raise _fault(window_id, rows_path, "its rows are not those that its manifest names")
    return CapturedWindow(open_full(rows_path, window_id), manifest)


def check_against_api(window: CapturedWindow, tokens: Sequence[int], api_log_probs: Sequence[float]) -> float:
    """The largest difference, in nats, between the rows and what the API said of each row's next token, for the receipt.

    `api_log_probs` [len(tokens) - 1] are those of tokens 1 on. Raises EngcmpError naming the row where it is over `MOST_DIFFERENCE`.
    """
    said = np.asarray(api_log_probs, dtype=np.float64)
    found = window.next_log_probs(tokens)
    if said.shape != found.shape:
        raise _fault(window.rows.window_id, window.rows.path, f"{said.size} rows by the API, {found.size} captured")
    apart = np.abs(said - found)
    apart[np.isnan(apart)] = np.inf
    row = int(apart.argmax())
    if apart[row] > MOST_DIFFERENCE:
        raise EngcmpError(
            f"window {window.rows.window_id}: at row {row} the captured logits give the next token {found[row]:.6f} nats, the API "
            f"{said[row]:.6f}", where=f"file {window.rows.path}",
            remedy="use none of these rows: they are not what the server answered with; report it with the manifest",
        )  # fmt: skip
    return float(apart[row])


def capture_notes(window: CapturedWindow, difference: float) -> dict[str, Any]:
    """What a measurement's receipt keeps of a capture, for `RowsTaken.notes`: plain JSON; `difference` is `check_against_api`'s."""
    manifest = window.manifest
    return {
        "prompt_tokens": manifest["prompt_tokens"],
        "cached_tokens": manifest["cached_tokens"],
        "chunk_lengths": manifest["chunk_lengths"],
        "other_requests_in_step": [chunk["other_requests"] for chunk in manifest["chunks"]],
        "dtype": manifest["dtype"],
        "largest_difference_from_api_nats": difference,
        "capture": {name: manifest[name] for name in ("runner", "vllm", "hooked", "file_sha256", "chunks")},
    }


def rows_by_chunk(one: CapturedWindow, other: CapturedWindow) -> list[dict[str, int]]:
    """How many rows of two captures of one window are bit-equal, by chunk of the first: `start`, `rows`, `equal`.

    Raises EngcmpError where they are of different windows or dtypes.
    """
    if one.manifest["tokens_sha256"] != other.manifest["tokens_sha256"] or one.rows.dtype != other.rows.dtype:
        raise _fault(one.rows.window_id, other.rows.path, "the two captures are of other tokens or another dtype")
    told = []
    for chunk in one.manifest["chunks"]:
        start, stop = chunk["start"], min(chunk["start"] + chunk["tokens"], one.rows.rows)
        left, right = (np.ascontiguousarray(side.rows.block(start, stop)) for side in (one, other))
        equal = (left.view(np.uint8) == right.view(np.uint8)).all(axis=1)
        told.append({"start": start, "rows": stop - start, "equal": int(equal.sum())})
    return told


def _float32(block: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Rows as float32, exactly; uint16 are the bits of BF16."""
    if block.dtype == np.uint16:
        return (block.astype("<u4") << np.uint32(16)).view("<f4")
    return block.astype("<f4")


def _fault(window_id: str, path: Path, what: str) -> EngcmpError:
    return EngcmpError(f"window {window_id}: {what}", where=f"file {path}", remedy=_AGAIN)
