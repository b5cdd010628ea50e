"""The frozen prompt set as panels: which token ids, and which of their rows each panel keeps."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_assets.kernel.fields import Name, Sha256
from engcmp_assets.kernel.protocol import Protocol, entry_of, field_error
from engcmp_assets.kernel.records import Panel, Role, Window, tokens_sha256
from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError

TokenId = Annotated[int, Field(ge=0, lt=2**32)]


class _Entry(BaseModel):
    """Other keys are allowed, so that newer files can be read."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _WindowEntry(_Entry):
    window_id: Name
    tokens: list[TokenId] = Field(min_length=2)
    tokens_sha256: Sha256
    cluster: str = Field(min_length=1)
    block: str = Field(min_length=1)
    bucket: str = Field(min_length=1)


class _KeptRows(_Entry):
    positions: list[int]
    roles: list[Role]


class _PromptSet(_Entry):
    vocab: int = Field(ge=1)
    windows: list[_WindowEntry] = Field(min_length=1)
    panels: dict[str, dict[str, _KeptRows]]


def parse_panel(data: bytes, protocol: Protocol, *, panel: str, where: str) -> Panel:
    """The frozen prompt set's bytes as the named panel; unknown keys are allowed.

    Raises EngcmpError naming the field that is missing or of another type, the window whose tokens do not match their digest or lie
    outside the vocabulary, or whose positions lie outside it, and an unknown panel.
    """
    plan = entry_of(protocol.panels, panel, "panel", protocol.study)
    remedy = "restore the frozen file"
    try:
        raw = _PromptSet.model_validate(parse_json(data, what="prompt set", where=where, remedy=remedy))
    except ValidationError as error:
        raise field_error("prompt set field", error, where, remedy) from error
    names = [entry.window_id for entry in raw.windows]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise EngcmpError(f"window {doubled[0]} stands twice in the prompt set", where=where, remedy="name each once")
    kept = entry_of(raw.panels, panel, "rows of panel", protocol.study)
    if unknown := sorted(set(kept) - set(names)):
        raise EngcmpError(f"panel {panel} keeps rows of {unknown[0]!r}, which is no window", where=where, remedy=remedy)
    # Windows from outside are those of their panels alone.
    outside = {
        name
        for one, rows in raw.panels.items()
        if one in protocol.panels and protocol.panels[one].external
        for name in rows
    }
    if plan.external is None and set(kept) != set(plan.windows or [name for name in names if name not in outside]):
        raise EngcmpError(f"panel {panel} does not hold the windows of its plan", where=where, remedy=remedy)
    windows = (
        _window(entry, kept[entry.window_id], raw.vocab, where) for entry in raw.windows if entry.window_id in kept
    )
    return Panel(panel, raw.vocab, plan.reference, tuple(windows), plan.top_k, plan.keep)


def is_laid_out(data: bytes, panel: str) -> bool:
    """Whether a frozen prompt set has the windows of a panel; of bytes that are none `parse_panel` says what is wrong with them."""
    try:
        panels = json.loads(data)["panels"] if data else {}
    except (ValueError, KeyError, TypeError):
        return True
    return panel in panels


def all_windows(data: bytes) -> tuple[Window, ...]:
    """Every window of a frozen prompt set that `parse_panel` took, whether or not a panel keeps rows of it (then it has none here)."""
    raw = _PromptSet.model_validate(json.loads(data))
    return tuple(
        Window(one.window_id, tuple(one.tokens), (), (), one.cluster, one.block, one.bucket) for one in raw.windows
    )


def frozen_vocab(data: bytes) -> int:
    """The width of a row in a frozen prompt set that `parse_panel` took."""
    return int(json.loads(data)["vocab"])


def frozen_tokenizer(data: bytes) -> dict[str, Any] | None:
    """Which tokenizer made a frozen prompt set: `source`, `sha256` of its file, `stand_in`; None where it was that of the weights."""
    try:
        found = json.loads(data).get("tokenizer") if data else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) else None


def even_positions(tokens: int, rows: int) -> tuple[int, ...]:
    """`rows` row indices spread evenly over a window of `tokens` tokens, the first and the last row included; one is the last."""
    last = tokens - 2
    if last + 1 <= rows:
        return tuple(range(last + 1))
    if rows == 1:
        return (last,)
    return tuple(sorted({round(index * last / (rows - 1)) for index in range(rows)}))


def consecutive_positions(tokens: int, rows: int) -> tuple[int, ...]:
    """`rows` row indices one after the other, from the middle of a window of `tokens` tokens; row 0 is left out.

    Raises EngcmpError for a window that has not so many.
    """
    start = max(1, (tokens - 1 - rows) // 2)
    if start + rows > tokens - 1:
        raise EngcmpError(
            f"a window of {tokens} tokens has no {rows} consecutive rows", remedy="choose a longer window"
        )
    return tuple(range(start, start + rows))


def _window(entry: _WindowEntry, kept: _KeptRows, vocab: int, where: str) -> Window:
    place = f"{where}, window {entry.window_id}"
    if tokens_sha256(entry.tokens) != entry.tokens_sha256:
        raise EngcmpError("tokens do not match their digest", where=place, remedy="restore the frozen file")
    if max(entry.tokens) >= vocab:
        raise EngcmpError(
            f"token {max(entry.tokens)} is outside the vocabulary of {vocab}", where=place,
            remedy="tokenize the texts with the study's own tokenizer",
        )  # fmt: skip
    if len(kept.roles) != len(kept.positions):
        raise EngcmpError("roles and positions differ in number", where=place, remedy="give each position one role")
    last, rows = len(entry.tokens) - 2, kept.positions
    if not rows or rows != sorted(set(rows)) or rows[0] < 0 or rows[-1] > last:
        raise EngcmpError(f"positions must rise within 0..{last}", where=place, remedy="restore the frozen file")
    return Window(
        window_id=entry.window_id, tokens=tuple(entry.tokens), positions=tuple(rows), roles=tuple(kept.roles),
        cluster=entry.cluster, block=entry.block, bucket=entry.bucket,
    )  # fmt: skip
