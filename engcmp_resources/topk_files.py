"""Files of a window's rows in top-K form, as safetensors: a reference's, and what is kept of an engine's. Same rows, same bytes.

Both hold `positions` U32 [n] (row index r), `next_token_ids` U32 [n] and metadata `window_id` and `tokens_sha256`. All logarithms are
natural, of probabilities that sum to 1 over the vocabulary.

A reference: `roles` U8 [n] (1 = generated, 0 = other), `top_ids` U32 [n, K] in falling probability, equal ones by the lower id,
`top_log_probs` F16 [n, K], `tail_log_mass` F32 [n] of all other ids, `next_token_log_prob` F32 [n].

An engine's reduced rows: `log_probs` F32 [n, K] at the reference's ids, `rest_log_mass` F32 [n] of all other ids, `next_token_log_prob`
F64 [n], `own_top_ids` U32 and `own_top_log_probs` F32 [n, 20] (ordered as above; fewer where the vocabulary is), `entropy` F64 [n] of the
full row in nats, and `reference_ids_digest` U64 [n], the first 64 bits of the SHA-256 of the row's K ids as little-endian U32.

Light rows, of an engine whose API returns no more: `top_ids` U32 and `top_log_probs` F64 [n, 20] (ordered as above; fewer where the
vocabulary is) and `next_token_log_prob` F64 [n].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError
from engcmp_resources.tensor_files import Array, read_tensors, write_tensors

_REMEDY = "capture this window again"
_SHARED = {"positions": ("<u4", "n"), "next_token_ids": ("<u4", "n")}
_REFERENCE = {
    "top_ids": ("<u4", "nk"),
    "top_log_probs": ("<f2", "nk"),
    "tail_log_mass": ("<f4", "n"),
    "next_token_log_prob": ("<f4", "n"),
}
_REDUCED = {
    "log_probs": ("<f4", "nk"),
    "rest_log_mass": ("<f4", "n"),
    "next_token_log_prob": ("<f8", "n"),
    "own_top_ids": ("<u4", "nt"),
    "own_top_log_probs": ("<f4", "nt"),
    "entropy": ("<f8", "n"),
    "reference_ids_digest": ("<u8", "n"),
}
_LIGHT = {"top_ids": ("<u4", "nt"), "top_log_probs": ("<f8", "nt"), "next_token_log_prob": ("<f8", "n")}
_OWN_TOP = 20


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Which rows a file is of: a window, its token digest, and for each row its index and the token that it predicts."""

    window_id: str
    tokens_sha256: str
    positions: Sequence[int]
    next_token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class TopKFile:
    """A reference's rows: `arrays` are those of kernel.topk_measures.TopKRows by name; `roles` uint8 [n], 1 = generated."""

    rows: WindowRows
    roles: npt.NDArray[np.uint8]
    arrays: Mapping[str, Array]


def write_topk(path: Path, file: TopKFile) -> None:
    """Write a reference's top-K rows to `path` (not atomic). Raises EngcmpError for arrays that are not of the layout above."""
    k = _width(file.arrays.get("top_ids"))
    layout = _REFERENCE | {"roles": ("|u1", "n")}
    _write(path, file.rows, layout, {**file.arrays, "roles": file.roles}, {"n": len(file.rows.positions), "k": k})


def read_topk(path: Path, *, expected: WindowRows, vocab: int, k: int) -> TopKFile:
    """A reference's top-K rows, checked against what the panel expects.

    Raises EngcmpError naming file and window for a truncated or foreign file, another window or tokens, other positions, next tokens, K
    or dtypes, roles other than 0 and 1, ids outside the vocabulary or not in falling probability.
    """
    layout = _REFERENCE | {"roles": ("|u1", "n")}
    arrays = _read(path, expected, layout, {"n": len(expected.positions), "k": k})
    roles = arrays.pop("roles")
    if (roles > 1).any():
        raise _error(path, expected, f"roles are 0 and 1, the file has {int(roles.max())}")
    _refuse_outside(path, expected, arrays["top_ids"], vocab)
    log_probs = arrays["top_log_probs"]
    if (log_probs[:, 1:] > log_probs[:, :-1]).any():
        raise _error(path, expected, "top_ids are not in falling probability")
    return TopKFile(expected, roles, arrays)


def write_reduced(path: Path, rows: WindowRows, arrays: Mapping[str, Array]) -> None:
    """Write what is kept of an engine's rows (`arrays` of ReducedRows, by name) to `path` (not atomic).

    Raises EngcmpError for arrays that are not of the layout above.
    """
    sizes = {"k": _width(arrays.get("log_probs")), "t": _width(arrays.get("own_top_ids")), "n": len(rows.positions)}
    _write(path, rows, _REDUCED, arrays, sizes)


def read_reduced(path: Path, *, expected: WindowRows, vocab: int, k: int) -> dict[str, Array]:
    """The arrays of ReducedRows by name, checked as in read_topk."""
    sizes = {"n": len(expected.positions), "k": k, "t": min(_OWN_TOP, vocab)}
    arrays = _read(path, expected, _REDUCED, sizes)
    _refuse_outside(path, expected, arrays["own_top_ids"], vocab)
    return arrays


def write_light_rows(path: Path, rows: WindowRows, arrays: Mapping[str, Array]) -> None:
    """Write light rows (`arrays` by name as above) to `path` (not atomic). Raises EngcmpError for arrays of another layout."""
    _write(path, rows, _LIGHT, arrays, {"t": _width(arrays.get("top_ids")), "n": len(rows.positions)})


def read_light_rows(path: Path, *, expected: WindowRows, vocab: int) -> dict[str, Array]:
    """The arrays of light rows by name, checked as in read_topk."""
    arrays = _read(path, expected, _LIGHT, {"n": len(expected.positions), "t": min(_OWN_TOP, vocab)})
    _refuse_outside(path, expected, arrays["top_ids"], vocab)
    if (arrays["top_log_probs"][:, 1:] > arrays["top_log_probs"][:, :-1]).any():
        raise _error(path, expected, "top_ids are not in falling probability")
    return arrays


def _write(
    path: Path,
    rows: WindowRows,
    layout: Mapping[str, tuple[str, str]],
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> None:
    tensors = {
        **arrays,
        "positions": np.asarray(rows.positions, dtype="<u4"),
        "next_token_ids": np.asarray(rows.next_token_ids, dtype="<u4"),
    }
    layout = {**layout, **_SHARED}
    if set(tensors) != set(layout):
        odd = ", ".join(sorted(set(tensors) ^ set(layout)))
        raise _error(path, rows, f"tensors that are missing or not of the layout: {odd}")
    _refuse_other_layout(path, rows, layout, tensors, sizes)
    write_tensors(path, {"window_id": rows.window_id, "tokens_sha256": rows.tokens_sha256}, tensors)


def _read(
    path: Path, expected: WindowRows, layout: Mapping[str, tuple[str, str]], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The layout's tensors without the shared ones, once they are known to be of the expected window and rows."""
    layout = {**layout, **_SHARED}
    metadata, tensors = read_tensors(path, layout, what=f"window {expected.window_id}")
    if metadata.get("window_id") != expected.window_id:
        raise _error(path, expected, f"the file is of window {metadata.get('window_id')}")
    if metadata.get("tokens_sha256") != expected.tokens_sha256:
        raise _error(path, expected, "the file is of other tokens")
    found = tensors["positions"]
    if found.tolist() != list(expected.positions):
        raise _error(path, expected, f"{found.size} rows, plan has {len(expected.positions)}, or at other positions")
    _refuse_other_layout(path, expected, layout, tensors, sizes)
    if tensors["next_token_ids"].tolist() != list(expected.next_token_ids):
        raise _error(path, expected, "the file's rows predict other tokens")
    return {name: tensor for name, tensor in tensors.items() if name not in _SHARED}


def _refuse_other_layout(
    path: Path,
    rows: WindowRows,
    layout: Mapping[str, tuple[str, str]],
    tensors: Mapping[str, Array],
    sizes: Mapping[str, int],
) -> None:
    for name, (dtype, axes) in layout.items():
        found, shape = tensors[name], tuple(sizes[axis] for axis in axes)
        if found.dtype.str != dtype or found.shape != shape:
            raise _error(
                path, rows, f"{name} is {found.dtype} {list(found.shape)}, not {np.dtype(dtype)} {list(shape)}"
            )


def _refuse_outside(path: Path, rows: WindowRows, ids: Array, vocab: int) -> None:
    outside = (ids >= vocab).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        raise _error(
            path, rows, f"row {rows.positions[row]} lists id {int(ids[row].max())}, the vocabulary has {vocab}"
        )


def _width(array: Array | None) -> int:
    """The width of a matrix; 0, which no matrix of the layout has, for what is none."""
    return int(array.shape[1]) if array is not None and array.ndim == 2 else 0  # noqa: PLR2004 - dimensions


def _error(path: Path, rows: WindowRows, what: str) -> EngcmpError:
    return EngcmpError(f"window {rows.window_id}: {what}", where=f"file {path.name}", remedy=_REMEDY)
