"""The windows of a fidelity set (`cuteafd.fidelity.set/1`): a JSON file with the token ids of each window and the role of each token.

`{"schema", "set_sha256", "windows": [{"id", "block", "bucket", "tokens", "roles", "score_from"}]}`: `tokens` are ids, `roles` one of `gen`
and `ctx` for each. What is scored of a window are its tokens from `score_from` on: row r = p - 1 predicts token p. `set_sha256` is that of
the document without it, as sorted compact ASCII JSON. Its files of rows hold no tokens: this one has them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError, first_fault

SET_SCHEMA = "cuteafd.fidelity.set/1"
Role = Literal["generated", "context", "trailing"]
_REMEDY = "fetch the set again at its revision"


class _Entry(BaseModel):
    """Other keys are allowed: a set says more of a window than is read here."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Window(_Entry):
    id: Annotated[str, Field(min_length=1)]
    block: Annotated[str, Field(min_length=1)]
    bucket: Annotated[str, Field(min_length=1)]
    tokens: list[Annotated[int, Field(ge=0)]]
    roles: list[Literal["gen", "ctx"]]
    score_from: Annotated[int, Field(ge=1)]


class _Set(_Entry):
    schema_: Literal["cuteafd.fidelity.set/1"] = Field(alias="schema")
    set_sha256: str | None = None
    windows: list[_Window] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class SetWindow:
    """A window of a set: its token ids, the rows that are scored of it (rising) and the role of the token that each predicts."""

    window_id: str
    block: str
    bucket: str
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    roles: tuple[Role, ...]


def read_fidelity_set(path: Path, *, vocab: int, rows: int) -> dict[str, SetWindow]:
    """The windows of a set by id, `rows` rows of each.

    A token that is not generated and stands behind generated ones is `trailing`. Raises EngcmpError that names file, window and field for a
    damaged or foreign file, ids outside the vocabulary, roles of another number, and a window that is too short for its rows.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EngcmpError(f"the set cannot be read: {error.strerror}", where=str(path), remedy=_REMEDY) from error
    document = parse_json(data, what="the set", where=str(path), remedy=_REMEDY)
    try:
        found = _Set.model_validate(document)
    except ValidationError as error:
        raise _fault(path, document, error) from error
    if found.set_sha256 is not None and found.set_sha256 != set_sha256(document):
        raise EngcmpError("the set is not of its own set_sha256", where=str(path), remedy=_REMEDY)
    windows: dict[str, SetWindow] = {}
    for one in found.windows:
        if one.id in windows:
            raise EngcmpError(f"window {one.id} stands twice", where=str(path), remedy=_REMEDY)
        windows[one.id] = _window(path, one, vocab, rows)
    return windows


def set_sha256(document: dict[str, Any]) -> str:
    """The digest that a set states of itself."""
    bare = {name: value for name, value in document.items() if name != "set_sha256"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _window(path: Path, one: _Window, vocab: int, rows: int) -> SetWindow:
    end = one.score_from + rows
    faults = (
        (len(one.roles) != len(one.tokens), f"{len(one.roles)} roles for {len(one.tokens)} tokens"),
        (len(one.tokens) < end, f"{len(one.tokens)} tokens, {rows} rows from token {one.score_from} on need {end}"),
        (
            max(one.tokens, default=0) >= vocab,
            f"token {max(one.tokens, default=0)} is outside the vocabulary of {vocab:,}",
        ),
    )
    for wrong, what in faults:
        if wrong:
            raise EngcmpError(f"window {one.id}: {what}", where=str(path), remedy=_REMEDY)
    generated = [number for number, role in enumerate(one.roles) if role == "gen"]
    first = generated[0] if generated else len(one.tokens)
    roles: tuple[Role, ...] = tuple(
        "generated" if one.roles[number] == "gen" else "trailing" if number > first else "context"
        for number in range(one.score_from, end)
    )
    return SetWindow(one.id, one.block, one.bucket, tuple(one.tokens), tuple(range(one.score_from - 1, end - 1)), roles)


def _fault(path: Path, document: Any, error: ValidationError) -> EngcmpError:
    place, words = first_fault(error.errors())
    name = ""
    if len(place) > 1 and place[0] == "windows" and isinstance(place[1], int):
        entry = document["windows"][place[1]]
        told = entry.get("id") if isinstance(entry, dict) else None
        name, place = f"window {told or place[1] + 1}: ", place[2:]
    field = ".".join(str(part) for part in place) or "(the whole)"
    why = "; the set states a number of tokens and not their ids" if field == "tokens" else ""
    return EngcmpError(
        f"{name}{field}: {words}{why}", where=str(path), remedy=f"{_REMEDY}; a set is of schema {SET_SCHEMA}"
    )
