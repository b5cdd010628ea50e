"""Top-K rows: `<window_id>.safetensors` with `positions` and `next_token_ids` U32 [n], `roles` U8 [n] (1 = generated), `top_ids` U32
and `top_log_probs` F16 [n, K] in falling probability, `tail_log_mass` and `next_token_log_prob` F32 [n]. Natural logarithms.

Published data of this kind count a position from the predicted token (p = r + 1), ours from the row; no field says which. The token ids
of a window decide it: see kernel.panel_files.rows_of.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engcmp_resources.row_layouts.checks import (
    refuse_doubled,
    refuse_first,
    refuse_no_distribution,
    refuse_no_logarithm,
)
from engcmp_resources.row_layouts.full_rows import refuse_other_window, require
from engcmp_resources.row_layouts.places import fault
from engcmp_resources.row_layouts.tensor_map import map_tensors

_LAYOUT = {
    "positions": ("U32", 1), "next_token_ids": ("U32", 1), "roles": ("U8", 1), "top_ids": ("U32", 2), "top_log_probs": ("F16", 2),
    "tail_log_mass": ("F32", 1), "next_token_log_prob": ("F32", 1),
}  # fmt: skip
NAMES = frozenset(_LAYOUT)


@dataclass(frozen=True, slots=True, eq=False)
class TopKWindow:
    """The rows of one window, n of K ids: the arrays of the file, `positions` as int64.

    `tokens_sha256` is None where the file does not tell of which tokens it is.
    """

    window_id: str
    path: Path
    tokens_sha256: str | None
    bytes_on_disk: int
    positions: npt.NDArray[np.int64]
    next_token_ids: npt.NDArray[np.uint32]
    roles: npt.NDArray[np.uint8]
    top_ids: npt.NDArray[np.uint32]
    top_log_probs: npt.NDArray[np.float16]
    tail_log_mass: npt.NDArray[np.float32]
    next_token_log_prob: npt.NDArray[np.float32]

    @property
    def rows(self) -> int:
        return len(self.positions)


def read_topk_window(path: Path, window_id: str) -> TopKWindow:
    """The rows of a file. Raises EngcmpError naming window, file and row for a damaged or foreign file, another window's rows, shapes
    that disagree, positions or ids that stand twice, roles other than 0 and 1, and values that are no falling log-probabilities.
    """
    file = map_tensors(path, window_id=window_id)
    require(file, NAMES)
    refuse_other_window(file)
    arrays = {name: file.array(name, *kind) for name, kind in _LAYOUT.items()}
    positions = arrays.pop("positions").astype(np.int64)
    refuse_doubled(positions, window_id, path)
    shape = (len(positions), arrays["top_ids"].shape[1])
    for name, array in arrays.items():
        if array.shape != shape[: array.ndim] or not array.size:
            raise fault(
                window_id, f"{name} of shape {list(array.shape)}, {shape[0]:,} positions of {shape[1]:,} ids", path
            )
    refuse_first(window_id, path, positions, arrays["roles"] > 1, "has a role other than 0 and 1")
    refuse_no_distribution(window_id, path, positions, arrays["top_ids"], arrays["top_log_probs"].astype(np.float32))
    for name in ("tail_log_mass", "next_token_log_prob"):
        refuse_no_logarithm(window_id, path, positions, arrays[name], name)
    return TopKWindow(window_id, path, file.metadata.get("tokens_sha256"), file.size_bytes, positions, **arrays)
