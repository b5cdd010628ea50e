"""The plan of a study's speed block: prompts of exact length as token ids, each with a first line that no other has.

A prompt is that line and then the study's own texts of its kind, one after the other and again from the start where they are shorter.
The line is the same for every engine, differs between repeats, and its first token is no other prompt's: nothing of a prompt can be in
a cache. The index holds no text and is frozen with the study; prompts follow from it and the frozen prompt set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_assets.kernel.fields import Sha256
from engcmp_assets.kernel.protocol import field_error
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_assets.kernel.splitmix import outputs
from engcmp_assets.kernel.startup_tables import PrefixPlan
from engcmp_assets.kernel.throughput.plans import Plan, PlanCell, PlanRequest
from engcmp_assets.kernel.throughput_tables import NONCE_TOKENS, CellKey, ChatPrompts, ThroughputPlan
from engcmp_resources.canonical import canonical_bytes, parse_json, sha256_bytes
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.throughput-plan/1"
Texts = Mapping[str, Sequence[int]]
"""Token ids by content kind: all texts of a kind, one after the other."""
_FIRST, _NEXT = re.compile(r"[A-Za-z]{2,}"), re.compile(r" [A-Za-z]{2,}")
# Put behind a message where every cut of it jumps over the wanted length.
_TAILS = ("", ".", " and", "\n", " and so on", "!", " a", "\n\n- ", " 1", " or not")
_SEED_BITS = 31  # what every engine takes as a seed
_RESTORE = "restore the frozen file"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class PlannedChat(_Strict):
    """The same request as a chat of one message: how many of its ids the message is made of, what is put behind, its digest."""

    tokens: int = Field(ge=NONCE_TOKENS)
    tail: str
    text_sha256: Sha256


class PlannedRequest(_Strict):
    """A request of the index: the ids of its first line, where in its kind's texts the rest begins, and the digest of all its ids.

    `chat` where the study sends chats to engines that take no token ids.
    """

    request_id: str
    first_line: list[int] = Field(min_length=NONCE_TOKENS, max_length=NONCE_TOKENS)
    offset: int = Field(ge=0)
    seed: int = Field(ge=0)
    tokens_sha256: Sha256
    chat: PlannedChat | None = None


class PlannedCell(_Strict):
    """A cell of the index in one repeat; `warmup` are sent before it, untimed."""

    cell_id: str
    kind: str
    prompt_tokens: int
    concurrency: int
    rate_per_s: float | None = None
    arrival: Literal["poisson", "constant"] = "poisson"
    arrival_seed: int = 0
    repeat: int
    warmup: list[PlannedRequest]
    requests: list[PlannedRequest]


class PlannedPrefix(_Strict):
    """A prompt of the index that is sent again and again, at the start-up measurement."""

    kind: str
    prompt_tokens: int
    output_tokens: int
    request: PlannedRequest


class Index(_Strict):
    """The frozen index: every request of every repeat, and the prompts that a start-up repeats, where the study declares any."""

    schema_: str = Field(alias="schema", pattern=f"^{SCHEMA}$")
    first_line_tokens: int
    output_tokens: int
    sampling: dict[str, float | bool]
    cells: list[PlannedCell]
    prefix: list[PlannedPrefix] = Field(default_factory=list)

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


def index_bytes(
    plan: ThroughputPlan, prompt_set: bytes, vocabulary: Vocabulary, *, prefix: PrefixPlan | None = None
) -> bytes:
    """The index as it is frozen, from the plan's table and the bytes of the frozen prompt set. Raises EngcmpError as `index_document`."""
    return canonical_bytes(index_document(plan, texts_by_kind(prompt_set), vocabulary, prefix=prefix))


def index_document(
    plan: ThroughputPlan, texts: Texts, vocabulary: Vocabulary, *, prefix: PrefixPlan | None = None
) -> dict[str, Any]:
    """The index of a plan, and of the prompts that a start-up repeats: drawn last, so that they change no other.

    Raises EngcmpError for a content kind without texts, and for a vocabulary with fewer words than there are prompts.
    """
    wanted = [("throughput.kinds", kind) for kind in plan.kinds]
    wanted += [("startup.prefix.kind", prefix.kind)] if prefix else []
    for field, kind in wanted:
        if not texts.get(kind):
            raise EngcmpError(
                f"protocol field {field}: no text is of the kind {kind!r}",
                remedy=f"use one of {', '.join(sorted(texts))}",
            )
    drawn = _Drawn(plan.seed, vocabulary, plan.chat)
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
    } | (
        {"prefix": [_planned_prefix(prefix, tokens, texts[prefix.kind], drawn) for tokens in prefix.prompt_tokens]}
        if prefix
        else {}
    )


def _planned_prefix(plan: PrefixPlan, tokens: int, texts: Sequence[int], drawn: _Drawn) -> dict[str, Any]:
    return {
        "kind": plan.kind, "prompt_tokens": tokens, "output_tokens": plan.output_tokens,
        "request": _request(f"prefix-{tokens}", drawn, 0, texts, tokens),
    }  # fmt: skip


def _request(name: str, drawn: _Drawn, offset: int, texts: Sequence[int], tokens: int) -> dict[str, Any]:
    line = drawn.first_line()
    ids = prompt_ids(line, offset, texts, tokens)
    return {
        "request_id": name, "first_line": line, "offset": offset, "seed": drawn.seed(), "tokens_sha256": tokens_sha256(ids),
    } | ({"chat": drawn.chat(name, ids)} if drawn.form else {})  # fmt: skip


def _planned(
    plan: ThroughputPlan, key: CellKey, repeat: int, texts: Sequence[int], drawn: _Drawn, *, is_first: bool
) -> dict[str, Any]:
    def request(name: str, number: int, of: int) -> dict[str, Any]:
        return _request(name, drawn, number * len(texts) // of, texts, key.prompt_tokens)

    warmup = plan.warmup if is_first else 0
    return {
        "cell_id": key.cell_id,
        "kind": key.kind,
        "prompt_tokens": key.prompt_tokens,
        "concurrency": key.concurrency,
        "repeat": repeat,
        **_pace(plan, key),
        "warmup": [request(f"{key.cell_id}/r{repeat}/warmup-{n + 1}", n, warmup) for n in range(warmup)],
        "requests": [request(f"{key.cell_id}/r{repeat}/{n + 1}", n, plan.requests) for n in range(plan.requests)],
    }


def _pace(plan: ThroughputPlan, key: CellKey) -> dict[str, Any]:
    """How a cell of an open loop is paced; of a closed one there is nothing to say."""
    if key.rate_per_s is None or plan.open_loop is None:
        return {}
    return {"rate_per_s": key.rate_per_s, "arrival": plan.open_loop.arrival, "arrival_seed": plan.seed}


class _Drawn:
    """First lines and seeds, drawn one after the other from one seed; no first token and no seed comes twice. And chats of `form`."""

    def __init__(self, seed: int, vocabulary: Vocabulary, form: ChatPrompts | None) -> None:
        self._vocabulary, self._stream, self.form = vocabulary, _endless(seed), form
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

    def chat(self, name: str, ids: Sequence[int]) -> dict[str, Any]:
        """The message that makes of the template around it a prompt of as many tokens as `ids`, which it begins like."""
        made, text = chat_text(ids, self.form or ChatPrompts(before="", after=""), self._vocabulary, name=name)
        return {**made, "text_sha256": sha256_bytes(text.encode())}

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


def chat_text(
    ids: Sequence[int], form: ChatPrompts, vocabulary: Vocabulary, *, name: str
) -> tuple[dict[str, Any], str]:
    """How a message is made of `ids` (how many of them, and a word behind), and its text: within `form` it is as long as `ids`.

    Raises EngcmpError where no cut gives that length: two texts that meet may share a token, so that a cut can jump over it.
    """

    def text(kept: int, tail: str) -> str:
        return vocabulary.decode(ids[:kept]) + tail

    def length(kept: int, tail: str) -> int:
        return len(vocabulary.encode(f"{form.before}{text(kept, tail)}{form.after}"))

    wanted = len(ids)
    for tail in _TAILS:
        kept, tried = wanted - len(vocabulary.encode(form.before)) - len(vocabulary.encode(form.after)), set[int]()
        while NONCE_TOKENS <= kept <= wanted and kept not in tried:
            tried.add(kept)
            short = wanted - length(kept, tail)
            if short == 0:
                return {"tokens": kept, "tail": tail}, text(kept, tail)
            kept += short
    raise EngcmpError(
        f"prompt {name}: no message within the chat template has {wanted} tokens in all",
        where="protocol field throughput.chat", remedy="write longer prompts, or look at `before` and `after`",
    )  # fmt: skip


def texts_by_kind(prompt_set: bytes) -> dict[str, list[int]]:
    """All ids of each content kind, in the order of the frozen prompt set's windows. Windows of a panel from outside are no prompts."""
    found: dict[str, list[int]] = {}
    for window in json.loads(prompt_set)["windows"]:
        if "from" in window:
            continue
        found.setdefault(window["block"], []).extend(window["tokens"])
    return found


def parse_index(data: bytes, *, where: str) -> Index:
    """The frozen index. Raises EngcmpError naming the field that is missing or of another type."""
    try:
        return Index.model_validate(parse_json(data, what="throughput plan", where=where, remedy=_RESTORE))
    except ValidationError as error:
        raise field_error("throughput plan field", error, where, _RESTORE) from error


def frozen_ids(planned: PlannedRequest, texts: Sequence[int], tokens: int) -> tuple[int, ...]:
    """The ids of a planned prompt. Raises EngcmpError where they are not the frozen ones."""
    ids = prompt_ids(planned.first_line, planned.offset, texts, tokens)
    if tokens_sha256(ids) != planned.tokens_sha256:
        raise EngcmpError(
            f"prompt {planned.request_id} is not the frozen one: its ids have another digest",
            where="throughput plan", remedy="restore the frozen plan and prompt set; nothing was measured",
        )  # fmt: skip
    return tuple(ids)


@dataclass(frozen=True, slots=True)
class AsChats:
    """What is needed to send the plan's prompts as chats: the form, and the vocabulary that their texts come from."""

    form: ChatPrompts
    vocabulary: Vocabulary


def frozen_prompt(planned: PlannedRequest, ids: tuple[int, ...], chats: AsChats | None) -> dict[str, Any]:
    """A planned prompt as a request has it: token ids, or the message of a chat. Raises EngcmpError where that is not the frozen one."""
    if chats is None:
        return {"token_ids": ids}
    text = chats.vocabulary.decode(ids[: planned.chat.tokens]) + planned.chat.tail if planned.chat else None
    if text is None or planned.chat is None or sha256_bytes(text.encode()) != planned.chat.text_sha256:
        raise EngcmpError(
            f"prompt {planned.request_id} as a chat is not the frozen one", where="throughput plan",
            remedy="restore the frozen plan, or freeze the study anew; nothing was measured",
        )  # fmt: skip
    return {"messages": ({"role": "user", "content": text},)}


def sampling_of(index: Index, chats: AsChats | None) -> dict[str, Any]:
    """What goes into each request beside its prompt."""
    template = chats.form.template if chats else {}
    return dict(index.sampling) | ({"chat_template_kwargs": template} if template else {})


def load_plan(index: Index, repeat: int, texts: Texts, *, model: str, chats: AsChats | None = None) -> Plan:
    """The plan of one repeat as the driver takes it, for the name under which an engine serves its model; with `chats` as such.

    Raises EngcmpError naming the first prompt that is not the frozen one: nothing is measured then.
    """

    def request(cell: PlannedCell, planned: PlannedRequest, number: int) -> PlanRequest:
        ids = frozen_ids(planned, texts[cell.kind], cell.prompt_tokens)
        return PlanRequest(
            request_id=planned.request_id, **frozen_prompt(planned, ids, chats), max_tokens=index.output_tokens, seed=planned.seed,
            expected_prompt_tokens=cell.prompt_tokens,
            # In an open loop every request may wait for any before it.
            batch=0 if cell.rate_per_s else number // cell.concurrency,
        )  # fmt: skip

    return Plan(
        model=model,
        sampling=sampling_of(index, chats),
        cells=tuple(
            PlanCell(
                cell_id=cell.cell_id,
                kind=cell.kind,
                concurrency=cell.concurrency,
                repeat=repeat,
                rate_per_s=cell.rate_per_s,
                arrival=cell.arrival,
                arrival_seed=cell.arrival_seed,
                warmup=tuple(request(cell, one, number) for number, one in enumerate(cell.warmup)) or None,
                requests=tuple(request(cell, one, number) for number, one in enumerate(cell.requests)),
            )
            for cell in index.of_repeat(repeat)
        ),
    )
