"""A teacher's rows: a safetensors file with the one tensor `logits` [n-1, V], and the window's n token ids as int32 in a `.npy` file.

Row r of the tensor is the distribution after tokens 0..r, so positions are 0..n-2. The token array lies beside the file, as
`<window_id>.tokens.npy` or `<window_id>.npy`, or where the published teacher data have it: `calibration/panel-v1/arrays/`, below the
folder of the `dataset-manifest.json` that lists the files.
"""

from __future__ import annotations

import hashlib
import os
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.row_layouts.full_rows import refuse_other_window, require
from engcmp_resources.row_layouts.places import fault, open_regular
from engcmp_resources.row_layouts.source import RowSource, mapped_rows
from engcmp_resources.row_layouts.tensor_map import map_tensors

NAMES = frozenset({"logits"})
_ARRAYS = Path("calibration/panel-v1/arrays")
_MOST_TOKENS = 1 << 24
_FETCH_TOKENS = "fetch the window's token array too"
# What numpy raises of bytes that are no array; the last ones come from its parsers of a header that is Python text.
_NO_ARRAY = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    SyntaxError,
    OverflowError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)


def open_teacher(path: Path, window_id: str, *, folder: Path) -> RowSource:
    """The rows of a file whose tokens are beside it or below `folder`. Raises EngcmpError naming window and file for damaged ones,
    a missing token array, and a number of rows that is not one below the number of tokens.
    """
    file = map_tensors(path, window_id=window_id)
    require(file, NAMES)
    refuse_other_window(file)
    tokens = _tokens(_token_file(path, window_id, folder), window_id)
    positions = np.arange(len(tokens) - 1, dtype=np.int64)
    rows = file.tensors["logits"].shape[:1]
    if rows != (len(tokens) - 1,):
        raise fault(
            window_id, f"{rows[0] if rows else 'no'} rows, its {len(tokens):,} tokens have {len(tokens) - 1:,}", path
        )
    digest = hashlib.sha256(tokens.astype("<u4").tobytes()).hexdigest()
    if file.metadata.get("tokens_sha256", digest) != digest:
        raise fault(window_id, "the file is of other tokens than its token array", path)
    return mapped_rows(file, "logits", positions, tokens_sha256=digest)


def _token_file(path: Path, window_id: str, folder: Path) -> Path:
    names = (f"{window_id}.tokens.npy", f"{window_id}.npy")
    places = [place / name for place in dict.fromkeys((path.parent, folder, folder / _ARRAYS)) for name in names]
    found = [place for place in places if place.is_file()]
    if not found:
        raise fault(
            window_id,
            f"no token array; looked for {', '.join(names)} beside it and below {_ARRAYS}",
            path,
            remedy=_FETCH_TOKENS,
        )
    return found[0]


def _tokens(path: Path, window_id: str) -> npt.NDArray[np.int32]:
    """Token ids int32 [n], n of at least 2, none below 0. Nothing is unpickled, and nothing read before its size is known."""
    descriptor, _ = open_regular(path, window_id=window_id)
    os.close(descriptor)
    try:
        found: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except _NO_ARRAY as error:
        raise fault(window_id, f"not a token array: {error}", path, remedy=_FETCH_TOKENS) from error
    shown = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else "an archive of arrays"
    if not isinstance(found, np.memmap) or found.dtype.str != "<i4" or found.ndim != 1 or len(found) < 2:  # noqa: PLR2004 - dimensions
        raise fault(
            window_id, f"{shown}, not int32 of one dimension with two tokens or more", path, remedy=_FETCH_TOKENS
        )
    if len(found) > _MOST_TOKENS:
        raise fault(
            window_id, f"{len(found):,} tokens, a window has at most {_MOST_TOKENS:,}", path, remedy=_FETCH_TOKENS
        )
    try:  # a copy: the pages of a map may go while they are read
        tokens = np.fromfile(path, dtype="<i4", count=len(found), offset=found.offset)
    except OSError as error:
        raise fault(window_id, f"cannot be read: {error.strerror}", path, remedy=_FETCH_TOKENS) from error
    if len(tokens) < len(found):
        raise fault(window_id, "cut while it is read", path, remedy=_FETCH_TOKENS)
    if tokens.min() < 0:
        raise fault(window_id, f"token {int((tokens < 0).argmax())} is {tokens.min()}", path, remedy=_FETCH_TOKENS)
    return tokens
