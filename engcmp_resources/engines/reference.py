"""The engine `reference`: the float32 forward pass of a Llama-architecture GGUF, in numpy.

Streamed by layer: all windows pass through a layer before the next one is dequantized, so that memory holds one layer's
weights and the windows' hidden states, whatever the size of the model. Each window is multiplied on its own, so that
its bits depend neither on the other windows of a call nor on their order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from engcmp_resources.engines._llama_layers import (
    Float32,
    LlamaShape,
    Rotation,
    apply_layer,
    llama_shape,
    load_layer,
    rms_norm,
    rotation,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import GgufModel, open_gguf

RowsCallback = Callable[[str, Float32], None]
ProgressCallback = Callable[[str, int, int], None]

_HEAD_ROWS_AT_ONCE = 8192  # vocabulary rows dequantized at a time: 19 MB at a width of 576
_ROWS_A_PRODUCT = 32
_GROUP_BYTES = 128 << 20  # windows share one pass over the head while their rows fit in this


@dataclass(frozen=True, slots=True)
class RowRequest:
    """The rows wanted of a window: row r is the distribution after tokens 0..r, for each r in `positions`."""

    window_id: str
    tokens: Sequence[int]
    positions: Sequence[int]


def reference_rows(
    model_path: Path,
    windows: Sequence[RowRequest],
    *,
    on_rows: RowsCallback,
    progress: ProgressCallback | None = None,
) -> None:
    """Calls `on_rows(window_id, logits)` for each window in order; logits are float32 [len(positions), vocabulary].

    Logits are raw (not normalised), in the order of `positions`. `progress(stage, done, total)` counts, in the stage
    `layers`, windows through layers, and in the stage `rows`, rows given out. All windows' hidden states are held at
    once (4 bytes x tokens x width): split a very large panel over several calls. The bits are the same on every run
    on the same machine. One BLAS thread is used whatever the machine has: BLAS threads that wait for one another spin,
    and on two busy cores 4 s became 77 s.

    Raises EngcmpError for a window without tokens or positions, a token outside the vocabulary, a position outside the
    window, a window longer than the model's context, a window id given twice, and weights that are damaged or are not
    wholly a Llama model as this engine computes it.
    """
    report = progress or (lambda stage, done, total: None)
    with threadpool_limits(limits=1, user_api="blas"), open_gguf(model_path) as model:
        shape = llama_shape(model)
        _check(windows, shape)
        states = _hidden_states(model, shape, windows, report)
        done, total = 0, sum(len(window.positions) for window in windows)
        for group in _groups(windows, shape.vocab):
            wanted = [
                rms_norm(states[window.window_id][list(window.positions)], model.tensor("output_norm.weight"), shape)
                for window in group
            ]
            for window, rows in zip(group, _head(model, shape, wanted), strict=True):
                on_rows(window.window_id, rows)
                done += len(rows)
                report("rows", done, total)


def _check(windows: Sequence[RowRequest], shape: LlamaShape) -> None:
    seen: set[str] = set()
    for window in windows:
        where = f"window {window.window_id}"
        if window.window_id in seen:
            raise EngcmpError("the window id is given twice", where=where, remedy="give every window its own id")
        seen.add(window.window_id)
        _check_indices(window.tokens, shape.vocab, "token", "the vocabulary", where)
        if len(window.tokens) > shape.context:
            raise EngcmpError(
                f"{len(window.tokens):,} tokens, the model's context is {shape.context:,}",
                where=where,
                remedy="shorten the window",
            )
        _check_indices(window.positions, len(window.tokens), "position", "the window", where)


def _check_indices(values: Sequence[int], count: int, name: str, of: str, where: str) -> None:
    if len(values) == 0:
        raise EngcmpError(f"no {name}s", where=where, remedy=f"give at least one {name}")
    for place, value in enumerate(values):
        try:
            inside = 0 <= operator.index(value) < count
        except TypeError:
            inside = False
        if not inside:
            raise EngcmpError(
                f"{name} {value!r} (number {place}) is not in {of}, which ends at {count - 1:,}",
                where=where,
                remedy="tokenize with the model's own vocabulary, and count rows from 0",
            )


def _hidden_states(
    model: GgufModel, shape: LlamaShape, windows: Sequence[RowRequest], report: ProgressCallback
) -> dict[str, Float32]:
    """Every window's hidden states after the last layer, float32 [tokens, width]."""
    states = {window.window_id: model.gather_rows("token_embd.weight", window.tokens) for window in windows}
    turns: Rotation = rotation(shape, max((len(window.tokens) for window in windows), default=0))
    for number in range(shape.layers):
        layer = load_layer(model, number)
        for place, window in enumerate(windows, start=1):
            states[window.window_id] = apply_layer(states[window.window_id], layer, shape, turns)
            report("layers", number * len(windows) + place, shape.layers * len(windows))
    return states


def _groups(windows: Sequence[RowRequest], vocab: int) -> Iterator[list[RowRequest]]:
    """Runs of windows whose rows fit in the group budget together; a window that alone exceeds it goes alone."""
    group: list[RowRequest] = []
    held = 0
    for window in windows:
        size = 4 * vocab * len(window.positions)
        if group and held + size > _GROUP_BYTES:
            yield group
            group, held = [], 0
        group.append(window)
        held += size
    if group:
        yield group


def _head(model: GgufModel, shape: LlamaShape, wanted: Sequence[Float32]) -> list[Float32]:
    """Logits float32 [rows, vocabulary] of each window's normed states; the head is dequantized once, in blocks."""
    logits = [np.empty((len(states), shape.vocab), dtype=np.float32) for states in wanted]
    for start in range(0, shape.vocab, _HEAD_ROWS_AT_ONCE):
        stop = min(start + _HEAD_ROWS_AT_ONCE, shape.vocab)
        block = model.tensor_rows(shape.head, start, stop)
        for states, rows in zip(wanted, logits, strict=True):
            for first in range(0, len(states), _ROWS_A_PRODUCT):
                part = states[first : first + _ROWS_A_PRODUCT]
                # Always the same shape: BLAS sums in another order for few rows, and a row's bits must not depend
                # on how many rows are asked for with it.
                filled = np.pad(part, ((0, _ROWS_A_PRODUCT - len(part)), (0, 0)))
                rows[first : first + len(part), start:stop] = (filled @ block.T)[: len(part)]
    return logits
