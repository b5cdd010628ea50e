"""Full rows: `<window_id>.safetensors` with `positions` I32 [k] (row indices r) and `logits` [k, V] in F32, F16 or BF16.

Metadata: `window_id`, `tokens_sha256`, and, if they are known, `kind`: "logits" or "log_probs", and `chunk_lengths`: the tokens that each
prefill chunk read, as a JSON list.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engcmp_resources.row_layouts.places import fault
from engcmp_resources.row_layouts.source import RowSource, mapped_rows
from engcmp_resources.row_layouts.tensor_map import TensorMap, map_tensors

NAMES = frozenset({"positions", "logits"})


def open_full(path: Path, window_id: str) -> RowSource:
    """The rows of a file. Raises EngcmpError naming window and file for a damaged or foreign one and for rows of another window."""
    file = map_tensors(path, window_id=window_id)
    require(file, NAMES)
    refuse_other_window(file)
    positions = file.array("positions", "I32", 1).astype(np.int64)
    return mapped_rows(file, "logits", positions, tokens_sha256=file.metadata.get("tokens_sha256"))


def require(file: TensorMap, names: frozenset[str]) -> None:
    """Raise EngcmpError that lists the tensors which the file lacks, and those it has."""
    if missing := sorted(names - file.tensors.keys()):
        held = ", ".join(sorted(file.tensors)[:10]) or "nothing"
        raise fault(file.window_id, f"the file holds no {', '.join(missing)}; it holds {held[:300]}", file.path)


def refuse_other_window(file: TensorMap) -> None:
    """Raise EngcmpError where the metadata name another window; metadata that name none are not at fault."""
    said = file.metadata.get("window_id", file.window_id)
    if said != file.window_id:
        raise fault(file.window_id, f"the file holds rows of window {said[:100]!r}", file.path)
