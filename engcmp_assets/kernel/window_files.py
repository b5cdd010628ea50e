"""A window's rows in the store's files: full rows, a reference's top K, and what is kept of an engine's rows at those ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.light_measures import LightRows, light_rows
from engcmp_assets.kernel.records import Window
from engcmp_assets.kernel.topk_measures import ReducedRows, TopKRows
from engcmp_resources.row_files import RowFile, read_rows, write_rows
from engcmp_resources.topk_files import (
    TopKFile,
    WindowRows,
    read_light_rows,
    read_reduced,
    read_topk,
    write_light_rows,
    write_reduced,
    write_topk,
)

Logits = npt.NDArray[np.float32]


def write_full(path: Path, window: Window, logits: Logits) -> None:
    """Write full rows, float32 [k, V]."""
    positions = np.asarray(window.positions, dtype=np.int32)
    write_rows(path, RowFile(window.window_id, window.tokens_sha256, positions, logits))


def read_full(path: Path, window: Window, *, vocab: int) -> Logits:
    """The full rows of a window, float32 [k, vocab], checked against the window."""
    rows = read_rows(
        path, window_id=window.window_id, tokens_sha256=window.tokens_sha256, positions=window.positions, vocab=vocab
    )
    return rows.logits


def write_reference(path: Path, window: Window, rows: TopKRows) -> None:
    """Write a reference's top-K rows."""
    roles = np.asarray([role == "generated" for role in window.roles], dtype=np.uint8)
    write_topk(path, TopKFile(_of(window), roles, rows.arrays()))


def read_reference(path: Path, window: Window, *, vocab: int, k: int) -> TopKRows:
    """A reference's top-K rows, checked against the window."""
    return TopKRows(**read_topk(path, expected=_of(window), vocab=vocab, k=k).arrays)


def write_kept(path: Path, window: Window, rows: ReducedRows) -> None:
    """Write what is kept of an engine's rows at the reference's ids."""
    write_reduced(path, _of(window), rows.arrays())


def read_kept(path: Path, window: Window, *, vocab: int, k: int) -> ReducedRows:
    """What is kept of an engine's rows, checked against the window."""
    return ReducedRows(**read_reduced(path, expected=_of(window), vocab=vocab, k=k))


def write_light(path: Path, window: Window, rows: LightRows) -> None:
    """Write light rows: an engine's top ids and the next token's log-probability, and nothing of the rest."""
    arrays = {
        "top_ids": rows.top_ids.astype("<u4"), "top_log_probs": rows.top_log_probs.astype("<f8"),
        "next_token_log_prob": rows.next_token_log_prob.astype("<f8"),
    }  # fmt: skip
    write_light_rows(path, _of(window), arrays)


def read_light(path: Path, window: Window, *, vocab: int) -> LightRows:
    """Light rows, checked against the window."""
    arrays = read_light_rows(path, expected=_of(window), vocab=vocab)
    where = f"file {path.name}, window {window.window_id}"
    return light_rows(**arrays, next_tokens=window.next_tokens, vocab=vocab, where=where)


def _of(window: Window) -> WindowRows:
    return WindowRows(window.window_id, window.tokens_sha256, window.positions, window.next_tokens)
