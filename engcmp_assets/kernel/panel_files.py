"""A panel as a user writes it, and whether rows that were found are the rows that it asks for.

A panel file is JSON: `{"panel", "vocab", "reference": "full" | "topk" | "none", "windows": [{"window_id", "tokens", "tokens_sha256",
"positions", "roles", "cluster", "block", "bucket"}]}`. `positions` are row indices r, rising; `roles` one word for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_assets.kernel.fast_rows import widened
from engcmp_assets.kernel.fields import Name, Sha256
from engcmp_assets.kernel.records import Panel, Role, Window, tokens_sha256
from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError

Int64 = npt.NDArray[np.int64]
_MEND = "mend the panel file"
_CAPTURE = "capture this window again, with this panel"


class _Entry(BaseModel):
    """Other keys are allowed: a panel may say more than is read here."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _WindowEntry(_Entry):
    window_id: Name
    tokens: list[int] = Field(min_length=2)
    tokens_sha256: Sha256
    positions: list[int] = Field(min_length=1)
    roles: list[Role]
    cluster: str = Field(min_length=1)
    block: str = Field(min_length=1)
    bucket: str = Field(min_length=1)


class _PanelFile(_Entry):
    panel: str = Field(min_length=1)
    vocab: int = Field(ge=1, lt=2**32)
    reference: Literal["full", "topk", "none"]
    windows: list[_WindowEntry] = Field(min_length=1)


class RowFacts(Protocol):
    """What a file says of a window's rows: `positions` int64 [k]; of which tokens, or None where it does not say."""

    @property
    def window_id(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def positions(self) -> Int64: ...
    @property
    def tokens_sha256(self) -> str | None: ...


def parse_panel_file(data: bytes, *, where: str) -> Panel:
    """A panel file's bytes as a panel.

    Raises EngcmpError naming the file, the window and the position for missing keys (all of that window) and values of another type,
    window ids that stand twice, tokens outside the vocabulary or not of their digest, positions that do not rise within the window, and
    roles that are unknown or of another number.
    """
    document = parse_json(data, what="panel", where=f"file {where}", remedy=_MEND)
    try:
        raw = _PanelFile.model_validate(document)
    except ValidationError as error:
        raise _field_error(error, document, where) from error
    seen: set[str] = set()
    for entry in raw.windows:
        if entry.window_id in seen:
            raise _error(f"window {entry.window_id} stands twice", where, None)
        seen.add(entry.window_id)
    return Panel(raw.panel, raw.vocab, raw.reference, tuple(_window(entry, raw.vocab, where) for entry in raw.windows))


def rows_of(
    facts: RowFacts, window: Window, *, arm: str, next_token_ids: npt.NDArray[np.integer[Any]] | None = None
) -> Int64:
    """Where each of the window's rows stands among the rows that `arm` has of it: indices [k], in the panel's order.

    Rows that the panel does not keep are passed over. With `next_token_ids` (what top-K and light files say that each of their rows
    predicts) the rows are held against the window's tokens; and a file all of whose positions are those of the predicted tokens, as
    published top-K data have them, is read as such. Raises EngcmpError naming arm, file, window and position for rows of another window or
    of other tokens, and for rows that are missing.
    """
    if facts.window_id != window.window_id:
        raise _row_error(facts, arm, window, f"the rows are of window {facts.window_id}")
    if facts.tokens_sha256 not in (None, window.tokens_sha256):
        raise _row_error(facts, arm, window, "the rows are of other tokens than the panel's")
    positions = facts.positions
    if next_token_ids is not None:
        positions = positions - _counted_from(facts, window, next_token_ids, arm)
    order = np.argsort(positions, kind="stable")
    wanted = np.asarray(window.positions, dtype=np.int64)
    places = np.minimum(np.searchsorted(positions[order], wanted), len(positions) - 1)
    found: Int64 = order[places].astype(np.int64)
    missing = wanted[positions[found] != wanted]
    if missing.size:
        raise _row_error(
            facts, arm, window, f"no row at position {missing[0]}; {missing.size} of {wanted.size} rows are missing"
        )
    return found


def check_width(facts: RowFacts, vocab: int, panel: Panel, *, arm: str) -> None:
    """Raise EngcmpError naming arm, file and window for rows of another width than the panel's vocabulary."""
    if vocab != panel.vocab:
        raise EngcmpError(
            f"arm {arm}, window {facts.window_id}: rows of {vocab:,} values, panel {panel.panel} has a vocabulary of {panel.vocab:,}",
            where=f"file {facts.path}", remedy="score rows with the panel that they were captured with",
        )  # fmt: skip


def check_ids(
    facts: RowFacts, ids: npt.NDArray[np.integer[Any]], positions: Sequence[int] | Int64, vocab: int, *, arm: str
) -> None:
    """Raise EngcmpError naming the first row of `ids` [n, K] (rows at `positions` [n]) that lists an id outside the vocabulary."""
    outside = (ids >= vocab).any(axis=1)
    if outside.any():
        row = int(outside.argmax())
        raise EngcmpError(
            f"arm {arm}, window {facts.window_id}: the row at position {positions[row]} lists id {ids[row].max()}, "
            f"the vocabulary has {vocab:,}",
            where=f"file {facts.path}", remedy="score rows with the panel that they were captured with",
        )  # fmt: skip


def check_roles(facts: RowFacts, roles: npt.NDArray[np.uint8], window: Window, *, arm: str) -> None:
    """Raise EngcmpError naming the first of the window's rows whose role in the file, `roles` [k] with 1 = generated, is another."""
    wanted = np.array([role == "generated" for role in window.roles])
    wrong = np.flatnonzero((roles == 1) != wanted)
    if wrong.size:
        position, said = window.positions[wrong[0]], window.roles[wrong[0]]
        raise _row_error(
            facts, arm, window, f"the row at position {position} has another role than the panel's, {said}"
        )


def refuse_bad_rows(block: npt.NDArray[Any], positions: Sequence[int] | Int64, facts: RowFacts, *, arm: str) -> None:
    """Raise EngcmpError naming the first row of `block` [n, V] with NaN, +inf or nothing but -inf; its rows are at `positions` [n].

    Values are float16, float32 or float64, or uint16 as the bits of BF16.
    """
    for index, row in enumerate(block):
        highest = float(widened(row).max())
        if not np.isfinite(highest):
            kind = "NaN" if np.isnan(highest) else "+inf" if highest > 0 else "nothing but -inf"
            raise EngcmpError(
                f"arm {arm}, window {facts.window_id}: the row at position {positions[index]} holds {kind}",
                where=f"file {facts.path}", remedy="capture this window again; such a row is never averaged",
            )  # fmt: skip


def refuse_other_panels(arms: Mapping[str, Mapping[str, RowFacts]]) -> None:
    """Raise EngcmpError that names two arms (each its rows by window id) with rows of other windows, positions or tokens."""
    for (one, rows), (other, others) in pairwise(arms.items()):
        if apart := sorted(set(rows) ^ set(others)):
            holder = one if apart[0] in rows else other
            raise _panel_error(one, other, f"only {holder} has window {apart[0]}", None)
        for window_id, facts in rows.items():
            found = others[window_id]
            if None not in (facts.tokens_sha256, found.tokens_sha256) and facts.tokens_sha256 != found.tokens_sha256:
                raise _panel_error(one, other, f"window {window_id} is of other tokens", (facts, found))
            only = np.setxor1d(facts.positions, found.positions)
            if only.size:
                holder = one if only[0] in facts.positions else other
                raise _panel_error(
                    one, other, f"window {window_id}: only {holder} has a row at position {only[0]}", (facts, found)
                )


def _window(entry: _WindowEntry, vocab: int, where: str) -> Window:
    name = entry.window_id
    tokens, positions = (np.array(one, dtype=object) for one in (entry.tokens, entry.positions))
    outside = np.flatnonzero((tokens < 0) | (tokens >= vocab))
    if outside.size:
        raise _error(
            f"token {tokens[outside[0]]} at index {outside[0]} is outside the vocabulary of {vocab:,}", where, name
        )
    if tokens_sha256(entry.tokens) != entry.tokens_sha256:
        raise _error("tokens do not match their digest tokens_sha256", where, name)
    last = len(tokens) - 2
    outside = np.flatnonzero((positions < 0) | (positions > last))
    if outside.size:
        raise _error(f"position {positions[outside[0]]} lies outside 0..{last:,}", where, name)
    for one, following in pairwise(entry.positions):
        if following <= one:
            fault = "stands twice" if following == one else f"stands after {one}"
            raise _error(f"position {following} {fault}; positions must rise", where, name)
    if len(entry.roles) != len(positions):
        raise _error(f"{len(entry.roles)} roles for {len(positions)} positions", where, name)
    return Window(
        window_id=name, tokens=tuple(entry.tokens), positions=tuple(entry.positions), roles=tuple(entry.roles),
        cluster=entry.cluster, block=entry.block, bucket=entry.bucket,
    )  # fmt: skip


def _field_error(error: ValidationError, document: Any, where: str) -> EngcmpError:
    """Names the window at fault, and the position where it is one of the lists by row that has a bad value."""
    errors = error.errors(include_url=False, include_input=False)
    missing = [one for one in errors if one["type"] == "missing"]
    first = (missing or errors)[0]
    window, field = _at(first["loc"], document)
    if missing:
        keys = [_at(one["loc"], document) for one in missing]
        return _error(f"missing keys: {', '.join(key for place, key in keys if place == window)}", where, window)
    return _error(f"{field}: {first['msg']}", where, window)


def _at(place: Sequence[int | str], document: Any) -> tuple[str | None, str]:
    """The window, if the place is within one, and the field, of a place in the document."""
    match place:
        case ["windows", int(index), *rest]:
            entry = document["windows"][index]
            found = entry.get("window_id") if isinstance(entry, dict) else None
            name = found if isinstance(found, str) and found else f"number {index + 1}"
            field = " index ".join(str(part) for part in rest) or "window"
            if rest[:1] == ["roles"] and len(rest) > 1:
                field += _position_of(entry, int(rest[1]))
            return name[:100], field
        case _:
            return None, ".".join(str(part) for part in place) or "(the whole)"


def _position_of(entry: Mapping[str, Any], index: int) -> str:
    positions = entry.get("positions")
    return f" (position {positions[index]})" if isinstance(positions, list) and index < len(positions) else ""


def _counted_from(facts: RowFacts, window: Window, said: npt.NDArray[np.integer[Any]], arm: str) -> int:
    """0 where the file counts a row from its own index r, 1 where from the token r + 1 that it predicts.

    Raises EngcmpError naming the first row whose next token is another than the window's.
    """
    tokens = np.asarray(window.tokens, dtype=np.int64)

    def agree(positions: Int64) -> npt.NDArray[np.bool_]:
        within = (positions >= 0) & (positions < len(tokens) - 1)
        right: npt.NDArray[np.bool_] = within & (tokens[np.where(within, positions, 0) + 1] == said)
        return right

    as_rows, as_tokens = agree(facts.positions), agree(facts.positions - 1)
    if as_rows.all():
        return 0
    if as_tokens.all():
        return 1
    position = facts.positions[int((~as_rows).argmax())]
    raise _row_error(
        facts, arm, window, f"the row at position {position} predicts another token than the window's next"
    )


def _error(what: str, where: str, window: str | None) -> EngcmpError:
    return EngcmpError(what if window is None else f"window {window}: {what}", where=f"file {where}", remedy=_MEND)


def _row_error(facts: RowFacts, arm: str, window: Window, what: str) -> EngcmpError:
    return EngcmpError(f"arm {arm}, window {window.window_id}: {what}", where=f"file {facts.path}", remedy=_CAPTURE)


def _panel_error(one: str, other: str, what: str, files: tuple[RowFacts, RowFacts] | None) -> EngcmpError:
    where = None if files is None else f"files {files[0].path} and {files[1].path}"
    return EngcmpError(
        f"arms {one} and {other} have different panels: {what}", where=where, remedy="capture both with one panel"
    )
