"""The plan of a study's speed block: prompts of exact length as token ids, each with a first line that no other has.

A prompt is that line and then the study's own texts of its kind, one after the other and again from the start where they are shorter.
The line is the same for every engine, differs between repeats, and its first token is no other prompt's: nothing of a prompt can be in
a cache. The index holds no text and is frozen with the study; prompts follow from it and the frozen prompt set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_assets.kernel.fields import Sha256
from engcmp_assets.kernel.protocol import field_error
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_assets.kernel.splitmix import outputs
from engcmp_assets.kernel.throughput.plans import Plan, PlanCell, PlanRequest
from engcmp_assets.kernel.throughput_tables import NONCE_TOKENS, CellKey, ThroughputPlan
from engcmp_resources.canonical import canonical_bytes, parse_json
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.throughput-plan/1"
Texts = Mapping[str, Sequence[int]]
"""Token ids by content kind: all texts of a kind, one after the other."""
_FIRST, _NEXT = re.compile(r"[A-Za-z]{2,}"), re.compile(r" [A-Za-z]{2,}")
_SEED_BITS = 31  # what every engine takes as a seed
_RESTORE = "restore the frozen file"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class PlannedRequest(_Strict):
    """A request of the index: the ids of its first line, where in its kind's texts the rest begins, and the digest of all its ids."""

    request_id: str
    first_line: list[int] = Field(min_length=NONCE_TOKENS, max_length=NONCE_TOKENS)
    offset: int = Field(ge=0)
    seed: int = Field(ge=0)
    tokens_sha256: Sha256


class PlannedCell(_Strict):
    """A cell of the index in one repeat; `warmup` are sent before it, untimed."""

    cell_id: str
    kind: str
    prompt_tokens: int
    concurrency: int
    repeat: int
    warmup: list[PlannedRequest]
    requests: list[PlannedRequest]


class Index(_Strict):
    """The frozen index: every request of every repeat."""

    schema_: str = Field(alias="schema", pattern=f"^{SCHEMA}$")
    first_line_tokens: int
    output_tokens: int
    sampling: dict[str, float | bool]
    cells: list[PlannedCell]

    def of_repeat(self, repeat: int) -> list[PlannedCell]:
        """The cells of a repeat, in the order in which they are measured."""
        return [cell for cell in self.cells if cell.repeat == repeat]

    @property
    def requests(self) -> int:
        """Timed requests in all."""
        return sum(len(cell.requests) for cell in self.cells)


class Vocabulary(Protocol):
    """The model's own tokenizer."""

    vocab: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def index_bytes(plan: ThroughputPlan, prompt_set: bytes, vocabulary: Vocabulary) -> bytes:
    """The index as it is frozen, from the plan's table and the bytes of the frozen prompt set. Raises EngcmpError as `index_document`."""
    return canonical_bytes(index_document(plan, texts_by_kind(prompt_set), vocabulary))


def index_document(plan: ThroughputPlan, texts: Texts, vocabulary: Vocabulary) -> dict[str, Any]:
    """The index of a plan.

    Raises EngcmpError for a content kind without texts, and for a vocabulary with fewer words than there are prompts.
    """
    missing = [kind for kind in plan.kinds if not texts.get(kind)]
    if missing:
        raise EngcmpError(
            f"protocol field throughput.kinds: no text is of the kind {missing[0]!r}",
            remedy=f"use one of {', '.join(sorted(texts))}",
        )
    drawn = _Drawn(plan.seed, vocabulary)
    cells = [
        _planned(
            plan,
            key,
            repeat,
            texts[key.kind],
            drawn,
            is_first=index == 0 or plan.cells[index - 1].concurrency != key.concurrency,
        )
        for repeat in range(1, plan.repeats + 1)
        for index, key in enumerate(plan.cells)
    ]
    return {
        "schema": SCHEMA,
        "first_line_tokens": NONCE_TOKENS,
        "output_tokens": plan.output_tokens,
        "sampling": plan.sampling.model_dump(),
        "cells": cells,
    }


def _planned(
    plan: ThroughputPlan, key: CellKey, repeat: int, texts: Sequence[int], drawn: _Drawn, *, is_first: bool
) -> dict[str, Any]:
    def request(name: str, number: int, of: int) -> dict[str, Any]:
        line, offset = drawn.first_line(), number * len(texts) // of
        ids = prompt_ids(line, offset, texts, key.prompt_tokens)
        return {
            "request_id": name, "first_line": line, "offset": offset, "seed": drawn.seed(), "tokens_sha256": tokens_sha256(ids),
        }  # fmt: skip

    warmup = plan.warmup if is_first else 0
    return {
        "cell_id": key.cell_id,
        "kind": key.kind,
        "prompt_tokens": key.prompt_tokens,
        "concurrency": key.concurrency,
        "repeat": repeat,
        "warmup": [request(f"{key.cell_id}/r{repeat}/warmup-{n + 1}", n, warmup) for n in range(warmup)],
        "requests": [request(f"{key.cell_id}/r{repeat}/{n + 1}", n, plan.requests) for n in range(plan.requests)],
    }


class _Drawn:
    """First lines and seeds, drawn one after the other from one seed; no first token and no seed comes twice."""

    def __init__(self, seed: int, vocabulary: Vocabulary) -> None:
        self._vocabulary, self._stream = vocabulary, _endless(seed)
        words = [(token, vocabulary.decode([token])) for token in range(vocabulary.vocab)]
        self._first = [token for token, text in words if _FIRST.fullmatch(text)]
        self._next = [token for token, text in words if _NEXT.fullmatch(text)]
        self._seeds: set[int] = set()

    def first_line(self) -> list[int]:
        """Ids of a line of words; its text gives the same ids, so that engines that are given text read it alike."""
        while self._first and self._next:
            first = self._first.pop(next(self._stream) % len(self._first))
            rest = [self._next[next(self._stream) % len(self._next)] for _ in range(NONCE_TOKENS - 2)]
            ids = self._vocabulary.encode(self._vocabulary.decode([first, *rest]) + "\n")
            if ids[:-1] == [first, *rest] and len(ids) == NONCE_TOKENS:
                return ids
        raise EngcmpError(
            "the vocabulary has too few words to begin each prompt of the plan with another one",
            where="protocol field throughput.requests", remedy="write fewer cells, requests or repeats",
        )  # fmt: skip

    def seed(self) -> int:
        while (drawn := next(self._stream) >> (64 - _SEED_BITS)) in self._seeds:
            pass
        self._seeds.add(drawn)
        return drawn


def _endless(seed: int) -> Iterator[int]:
    first, count = 0, 1024
    while True:
        yield from map(int, outputs(seed, first, count))
        first += count


def prompt_ids(first_line: Sequence[int], offset: int, texts: Sequence[int], tokens: int) -> list[int]:
    """A prompt of exactly `tokens` ids: the first line, then the texts from `offset` on, round and round."""
    wanted = tokens - len(first_line)
    turns = -(-(offset + wanted) // len(texts))
    return [*first_line, *(list(texts) * turns)[offset : offset + wanted]]


def texts_by_kind(prompt_set: bytes) -> dict[str, list[int]]:
    """All ids of each content kind, in the order of the frozen prompt set's windows."""
    found: dict[str, list[int]] = {}
    for window in json.loads(prompt_set)["windows"]:
        found.setdefault(window["block"], []).extend(window["tokens"])
    return found


def parse_index(data: bytes, *, where: str) -> Index:
    """The frozen index. Raises EngcmpError naming the field that is missing or of another type."""
    try:
        return Index.model_validate(parse_json(data, what="throughput plan", where=where, remedy=_RESTORE))
    except ValidationError as error:
        raise field_error("throughput plan field", error, where, _RESTORE) from error


def load_plan(index: Index, repeat: int, texts: Texts, *, model: str) -> Plan:
    """The plan of one repeat as the driver takes it, for the name under which an engine serves its model.

    Raises EngcmpError naming the first prompt that is not the frozen one: nothing is measured then.
    """

    def request(cell: PlannedCell, planned: PlannedRequest, number: int) -> PlanRequest:
        ids = prompt_ids(planned.first_line, planned.offset, texts[cell.kind], cell.prompt_tokens)
        if tokens_sha256(ids) != planned.tokens_sha256:
            raise EngcmpError(
                f"prompt {planned.request_id} is not the frozen one: its ids have another digest",
                where="throughput plan", remedy="restore the frozen plan and prompt set; nothing was measured",
            )  # fmt: skip
        return PlanRequest(
            request_id=planned.request_id, token_ids=tuple(ids), max_tokens=index.output_tokens, seed=planned.seed,
            expected_prompt_tokens=cell.prompt_tokens, batch=number // cell.concurrency,
        )  # fmt: skip

    return Plan(
        model=model,
        sampling=dict(index.sampling),
        cells=tuple(
            PlanCell(
                cell_id=cell.cell_id,
                kind=cell.kind,
                concurrency=cell.concurrency,
                repeat=repeat,
                warmup=tuple(request(cell, one, number) for number, one in enumerate(cell.warmup)) or None,
                requests=tuple(request(cell, one, number) for number, one in enumerate(cell.requests)),
            )
            for cell in index.of_repeat(repeat)
        ),
    )
