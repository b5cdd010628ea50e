"""A reply as it is kept (MEASURES section 7): its row in replies.parquet, which holds no text, and its text, which is private."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import pyarrow as pa

from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import tokens_sha256
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.errors import EngcmpError

TEXT_SCHEMA = "engcmp.reply/1"
Block = Literal["long", "again", "code", "json", "math", "needle", "tools", "thinking", "trace"]
BLOCKS: tuple[Block, ...] = ("long", "again", "code", "json", "math", "needle", "tools", "thinking", "trace")
STOPPED_EARLY = "stopped_early"
"""The finish reason of a reply that the driver ended by the declared rule."""
_CLOCK = "reading of CLOCK_MONOTONIC"


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """One row of replies.parquet; REPLY_COLUMNS says what each value means. None stands for what was not told or does not exist."""

    reply_id: str
    block: Block
    stage: str
    kind: str
    item: str
    repeat: int
    seed: int
    prompt_sha256: str
    prompt_tokens: int | None
    cap_tokens: int
    status: str
    cause: str | None
    finish_reason: str | None
    n_tokens: int | None
    n_reasoning_tokens: int | None
    n_answer_tokens: int | None
    reasoning_chars: int | None
    answer_chars: int | None
    text_sha256: str | None
    token_ids_sha256: str | None
    private_sha256: str | None
    started_at_ns: int
    done_at_ns: int
    ttft_ns: int | None
    start: int
    flags: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The row as plain JSON types."""
        return asdict(self) | {"flags": list(self.flags)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ReplyRecord:
        """The row of a table or a journal; further columns are not looked at. Raises EngcmpError for a column that is missing."""
        try:
            values = {one.name: row[one.name] for one in fields(cls)}
        except KeyError as error:
            raise EngcmpError(
                f"a reply without {error}", where="replies.parquet", remedy="measure the replies with this version"
            ) from error
        return cls(**values | {"flags": tuple(values["flags"] or ())})


@dataclass(frozen=True, slots=True)
class ReplyText:
    """What a reply says: never shown, kept by the hash of its JSON.

    `token_ids` are the engine's own, None where it gives none. `tool_calls` are {"name", "arguments"} of the last message; `turns` is a
    whole conversation as `hold_talks` records it, None where there is one message. `messages_sha256` is of what was asked.
    """

    reply_id: str
    reasoning: str
    answer: str
    token_ids: tuple[int, ...] | None
    messages_sha256: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    turns: tuple[Mapping[str, Any], ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """The document that the private store keeps."""
        return {
            "schema": TEXT_SCHEMA,
            "reply_id": self.reply_id,
            "reasoning": self.reasoning,
            "answer": self.answer,
            "token_ids": None if self.token_ids is None else list(self.token_ids),
            "tool_calls": [dict(call) for call in self.tool_calls],
            "messages_sha256": self.messages_sha256,
            "turns": None if self.turns is None else [dict(turn) for turn in self.turns],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ReplyText:
        """The text of a private document. Raises EngcmpError for one of another form."""
        if document.get("schema") != TEXT_SCHEMA:
            raise EngcmpError(
                f"a private text of schema {document.get('schema')!r}", remedy=f"this version reads {TEXT_SCHEMA}"
            )
        ids, turns = document["token_ids"], document["turns"]
        return cls(
            document["reply_id"], document["reasoning"], document["answer"], None if ids is None else tuple(ids),
            document["messages_sha256"], tuple(document["tool_calls"]), None if turns is None else tuple(turns),
        )  # fmt: skip

    @property
    def text_sha256(self) -> str:
        """SHA-256 of the reasoning, a zero byte and the answer, in UTF-8; half a surrogate pair is encoded as it stands."""
        return sha256_bytes(b"\0".join(part.encode("utf-8", "surrogatepass") for part in (self.reasoning, self.answer)))

    @property
    def token_ids_sha256(self) -> str | None:
        """Token digest (MEASURES section 1), None without ids."""
        return None if self.token_ids is None else tokens_sha256(self.token_ids)

    @property
    def private_sha256(self) -> str:
        """The hash under which the private store keeps it."""
        return sha256_bytes(canonical_bytes(self.as_json()))


REPLY_COLUMNS = (
    Column("reply_id", "str", "1", "name of the reply: block, stage, item and repeat"),
    Column("block", "str", "1", f"what it is for: {', '.join(BLOCKS)}"),
    Column("stage", "str", "1", "stage of the driver in which it was made: L1, L2, L3, L3s, or the name of its block"),
    Column("kind", "str", "1", "kind of content that was asked for"),
    Column("item", "str", "1", "prompt, task, scenario or trace"),
    Column("repeat", "int", "1", "number of the reply to the same item, from 1"),
    Column("seed", "int", "1", "sampling seed that was sent; engines are never paired by it"),
    Column("prompt_sha256", "str", "1", "SHA-256 of the canonical JSON of what was asked"),
    Column("prompt_tokens", "int", "token", "tokens of the prompt as the server states them"),
    Column("cap_tokens", "int", "token", "the most tokens that were asked for; of a conversation, of each message"),
    Column("status", "str", "1", "ok; incomplete: it brought tokens and broke off; failed: anything else"),
    Column("cause", "str", "1", "why it is not ok, as of requests.parquet"),
    Column("finish_reason", "str", "1", f"why the reply ended, as the server states it, or {STOPPED_EARLY}"),
    Column("n_tokens", "int", "token", "generated tokens: as counted, else as the server states them"),
    Column("n_reasoning_tokens", "int", "token", "tokens of the reasoning; none where only the text's share is known"),
    Column("n_answer_tokens", "int", "token", "tokens of the answer; none where only the text's share is known"),
    Column("reasoning_chars", "int", "character", "of the reasoning"),
    Column("answer_chars", "int", "character", "of the answer"),
    Column("text_sha256", "str", "1", "SHA-256 of the reasoning, a zero byte, and the answer"),
    Column("token_ids_sha256", "str", "1", "token digest of the engine's own ids; none where it gives none"),
    Column(
        "private_sha256", "str", "1", "hash under which the private store of the home that measured it keeps its text"
    ),
    Column("started_at_ns", "int", "ns", f"just before the request's bytes were written: {_CLOCK}"),
    Column("done_at_ns", "int", "ns", f"the end of the reply: {_CLOCK}"),
    Column("ttft_ns", "int", "ns", "first token event less the start; of a conversation none"),
    Column("start", "int", "1", "start of the engine that made it, as starts.json lists them"),
    Column("flags", "list[str]", "1", "what a reader should know of it; no figure is changed by one"),
)
_TYPES = {"str": pa.string(), "int": pa.int64(), "list[str]": pa.list_(pa.string())}
REPLIES_SCHEMA = pa.schema(
    [
        pa.field(one.name, _TYPES[one.dtype], metadata={"unit": one.unit, "description": one.description})
        for one in REPLY_COLUMNS
    ]
)


def replies_table(replies: Iterable[ReplyRecord]) -> pa.Table:
    """replies.parquet as a table, in the given order."""
    rows = [one.as_json() for one in replies]
    columns = [pa.array([row[one.name] for row in rows], type=_TYPES[one.dtype]) for one in REPLY_COLUMNS]
    return pa.Table.from_arrays(columns, schema=REPLIES_SCHEMA)
