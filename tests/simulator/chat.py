"""Replies in the form of OpenAI's API, whole or streamed, for chats and completions; what differs between engines is in `Style`."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import model as truth
from .engine import Asked, Engine, Step
from .exchange import Exchange, Refusal
from .model import Row


@dataclass(frozen=True, slots=True)
class Style:
    """How an engine writes a reply.

    `finish_apart`: the finish reason comes in a chunk of its own. `usage_unasked`: usage is on that chunk where no usage chunk was
    asked for. `token_ids`: it honours return_token_ids. `role_chunk`: a chunk with the role alone comes with the first token.
    `extra_usage`: usage names the cached tokens in a field of its own too.
    """

    reasoning_field: str
    fingerprint: str
    finish_apart: bool = False
    usage_unasked: bool = False
    token_ids: bool = False
    role_chunk: bool = True
    extra_usage: bool = False


@dataclass(slots=True)
class TextParts:
    """What the tokens of a reply read as: thought and content apart, whole characters only."""

    thinking: bool
    keep_markers: bool = False
    reasoning_tokens: int = 0
    _decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def read(self, tokens: Sequence[int], *, last: bool = False) -> dict[str, str]:
        """The text that these tokens add to each of `reasoning` and `content`."""
        parts = {"reasoning": "", "content": ""}
        for token in tokens:
            where = "reasoning" if self.thinking and not self.keep_markers else "content"
            self.reasoning_tokens += self.thinking
            if token == truth.END_THINK:
                parts[where] += self._decoder.decode(b"", True)
                self._decoder.reset()
                parts["content"] += truth.piece(token).decode() if self.keep_markers else ""
                self.thinking = False
            else:
                parts[where] += self._decoder.decode(truth.piece(token, special=False))
        if last:
            parts["reasoning" if self.thinking and not self.keep_markers else "content"] += self._decoder.decode(
                b"", True
            )
        return {name: text for name, text in parts.items() if text}


def usage_of(exchange: Exchange, engine: Engine, completion: int, reasoning: int, style: Style) -> dict[str, Any]:
    """The usage object, with what the faults make of it."""
    wrong = exchange.fault("usage_wrong") or {"completion": 0, "prompt": 0}
    prompt = len(exchange.record["prompt_ids"]) + wrong["prompt"]
    said = completion + wrong["completion"]
    cached = engine.told_cached(exchange)
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
    hidden = exchange.fault("cache_hidden") or {"absent": False}
    if not hidden["absent"]:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        usage |= {"prompt_cache_hit_tokens": cached} if style.extra_usage else {}
    untold = exchange.fault("usage_no_reasoning")
    if not (untold and untold["absent"]):
        usage["completion_tokens_details"] = {"reasoning_tokens": 0 if untold else reasoning}
    exchange.record["usage_sent"] = usage
    return usage


@dataclass(slots=True)
class Reply:
    """One reply being written."""

    engine: Engine
    exchange: Exchange
    asked: Asked
    style: Style
    body: dict[str, Any]
    chat: bool
    top: int | None = None  # log-probabilities beside each token
    extra: dict[str, Any] = field(default_factory=dict)  # further fields of a whole answer
    choice_extra: dict[str, Any] = field(default_factory=dict)
    echo: list[tuple[int, Row | None]] = field(
        default_factory=list
    )  # tokens of the prompt to give back, with their rows
    echo_only: bool = False

    def __post_init__(self) -> None:
        if self.body.get("n", 1) != 1:
            raise Refusal(400, "n must be 1")

    def send(self) -> None:
        """The reply, streamed or whole as was asked."""
        if self.body.get("stream"):
            self._stream()
        else:
            self._whole()

    def _head(self, kind: str) -> dict[str, Any]:
        name = "chatcmpl" if self.chat else "cmpl"
        return {
            "id": f"{name}-{self.exchange.record['request']}",
            "object": kind,
            "created": int(time.time()),
            "model": self.engine.model_name(self.exchange),
            "system_fingerprint": self.style.fingerprint,
        }

    def _parts(self) -> TextParts:
        thinking = self.chat and self.engine.model.start(self.asked.prompt).thinking
        return TextParts(thinking, keep_markers=self.exchange.fault("reasoning_in_content") is not None)

    def _named(self, parts: dict[str, str]) -> dict[str, str]:
        fault = self.exchange.fault("reasoning_field") if "reasoning" in parts else None
        name = fault["field"] if fault else self.style.reasoning_field
        names = ("reasoning", "reasoning_content") if name == "both" else (name,)
        text = parts.pop("reasoning", None)
        return ({one: text for one in names} if text is not None else {}) | parts

    def _whole(self) -> None:
        exchange, parts, texts = self.exchange, self._parts(), {"reasoning": "", "content": ""}
        tokens: list[int] = []
        rows: list[Row | None] = []
        for step in self.engine.steps(exchange, self.asked):
            for name, text in parts.read(step.tokens, last=step.finish is not None).items():
                texts[name] += text
            tokens, rows = tokens + step.tokens, [*rows, *step.rows]
        if self.echo_only:
            tokens, rows, texts["content"] = [], [], ""
        choice = self._choice(tokens, rows, {name: text for name, text in texts.items() if text})
        answer = self._head("chat.completion" if self.chat else "text_completion") | {"choices": [choice]}
        if self.chat and self._wants_ids():
            answer["prompt_token_ids"] = exchange.record["prompt_ids"]
        if not exchange.fault("usage_missing"):
            answer["usage"] = usage_of(exchange, self.engine, len(tokens), parts.reasoning_tokens, self.style)
        exchange.hold(tokens)
        exchange.send_json(answer | self.extra)

    def _choice(self, tokens: list[int], rows: list[Row | None], texts: dict[str, str]) -> dict[str, Any]:
        finish = None if self.exchange.fault("finish_missing") else self.exchange.record["finish_reason"]
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": None, **self._named(texts)}
        else:
            echoed = truth.detokenize([token for token, _ in self.echo], special=True)
            choice["text"] = echoed + texts.get("content", "")
        said = [*self.echo, *zip(tokens, rows, strict=False)]
        logprobs = self._logprobs([token for token, _ in said], [row for _, row in said]) if rows or self.echo else {}
        return choice | self.choice_extra | logprobs | self._token_ids(tokens, first=not self.chat)

    def _wants_ids(self) -> bool:
        wants = self.style.token_ids and bool(self.body.get("return_token_ids"))
        return wants and not self.exchange.fault("token_ids_missing")

    def _token_ids(self, tokens: Sequence[int], *, first: bool) -> dict[str, Any]:
        if not self._wants_ids():
            return {}
        prompt = {"prompt_token_ids": self.exchange.record["prompt_ids"]} if first else {}
        return {"token_ids": list(tokens)} | prompt

    def _stream(self) -> None:
        exchange, head = self.exchange, self._head("chat.completion.chunk" if self.chat else "text_completion")
        asked = self.body.get("stream_options") or {}
        with_usage = bool(asked.get("include_usage"))
        parts, sent, finish = self._parts(), 0, None
        writer = _Writer(self, head, continuous=with_usage and bool(asked.get("continuous_usage_stats")))
        exchange.start_stream()
        role_sent = not (self.chat and self.style.role_chunk)
        if self.chat and exchange.fault("role_only_first_chunk"):
            writer.role(parts)
            role_sent = True
        first = True
        for step in self.engine.steps(exchange, self.asked):
            if not role_sent:
                writer.role(parts)
                role_sent = True
            if empty := exchange.fault("empty_content"):
                for _ in range(empty["count"]):
                    writer.chunk({"content": ""}, "empty", sent, parts)
            sent, finish = sent + len(step.tokens), step.finish
            writer.step(step, parts, sent, first=first)
            first = False
        said = None if exchange.fault("finish_missing") else finish
        usage_missing = exchange.fault("usage_missing") is not None
        if self.style.finish_apart:
            usage = usage_of(exchange, self.engine, sent, parts.reasoning_tokens, self.style)
            unasked = self.style.usage_unasked and not with_usage and not usage_missing
            writer.finish(said, usage if unasked else None)
        if with_usage and not usage_missing:
            usage = usage_of(exchange, self.engine, sent, parts.reasoning_tokens, self.style)
            told = None if exchange.fault("usage_null") else usage
            exchange.event(head | {"choices": [], "usage": told}, "usage")
        if not exchange.fault("done_missing"):
            exchange.event("[DONE]", "done")
        exchange.end_stream()

    def _logprobs(self, tokens: Sequence[int], rows: Sequence[Row | None]) -> dict[str, Any]:
        if self.top is None or not rows:
            return {}
        entries = [_entry(token, row, self.top) for token, row in zip(tokens, rows, strict=True)]
        if self.chat:
            return {"logprobs": {"content": entries}}
        return {
            "logprobs": {
                "text_offset": [0] * len(entries),
                "tokens": [entry["token"] for entry in entries],
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": [_by_token(entry["top_logprobs"]) for entry in entries],
            }
        }


@dataclass(slots=True)
class _Writer:
    """The chunks of one stream."""

    reply: Reply
    head: dict[str, Any]
    continuous: bool

    def role(self, parts: TextParts) -> None:
        """The chunk that names the role alone, with the prompt's ids where ids were asked for."""
        prompt = {"prompt_token_ids": self.reply.exchange.record["prompt_ids"]} if self.reply._wants_ids() else {}
        self.chunk({"role": "assistant", "content": ""}, "role", 0, parts, top_level=prompt)

    def chunk(
        self,
        delta: dict[str, str],
        kind: str,
        sent: int,
        parts: TextParts,
        *,
        finish: str | None = None,
        choice_extra: dict[str, Any] | None = None,
        top_level: dict[str, Any] | None = None,
    ) -> None:
        """One chunk; `sent` tokens have been sent with it."""
        reply = self.reply
        body: dict[str, Any] = {"delta": delta} if reply.chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **body, "finish_reason": finish, **(choice_extra or {})}
        usage = {}
        if self.continuous and not reply.exchange.fault("usage_missing"):
            running = usage_of(reply.exchange, reply.engine, sent, parts.reasoning_tokens, reply.style)
            running.pop("prompt_tokens_details", None)  # only the last one tells what came from the cache
            usage["usage"] = running
        if reply.exchange.fault("usage_null"):
            usage["usage"] = None
        reply.exchange.event(self.head | {"choices": [choice]} | usage | (top_level or {}), kind)

    def step(self, step: Step, parts: TextParts, sent: int, *, first: bool) -> None:
        """The chunk of a step, unless there is nothing to see of it: then its tokens go out with the next one."""
        reply, apart = self.reply, self.reply.style.finish_apart
        reply.exchange.hold(step.tokens)
        delta = reply._named(parts.read(step.tokens, last=step.finish is not None))
        wanted = reply._wants_ids()
        ends = step.finish is not None and not apart
        if not (delta or wanted or ends):
            return
        extra = reply._token_ids(step.tokens, first=first and not reply.chat) | reply._logprobs(step.tokens, step.rows)
        finish = step.finish if ends and not reply.exchange.fault("finish_missing") else None
        self.chunk(delta or {"content": ""}, "tokens", sent, parts, finish=finish, choice_extra=extra)

    def finish(self, reason: str | None, usage: dict[str, Any] | None) -> None:
        """The chunk with the finish reason alone."""
        body: dict[str, Any] = {"delta": {}} if self.reply.chat else {"text": ""}
        chunk = self.head | {"choices": [{"index": 0, **body, "finish_reason": reason}]}
        self.reply.exchange.event(chunk | ({"usage": usage} if usage else {}), "finish")


def _entry(token: int, row: Row | None, top: int) -> dict[str, Any]:
    if row is None:  # the first token of a prompt
        return {"token": truth.piece(token).decode(errors="replace"), "logprob": None, "top_logprobs": None}
    best = row.argsort(kind="stable")[::-1][:top].tolist()
    return _named_token(token, row) | {"top_logprobs": [_named_token(one, row) for one in best]}


def _by_token(entries: list[dict[str, Any]] | None) -> dict[str, float] | None:
    return None if entries is None else {entry["token"]: entry["logprob"] for entry in entries}


def _named_token(token: int, row: Row) -> dict[str, Any]:
    content = truth.piece(token)
    logprob = max(float(row[token]), -9999.0)
    return {"token": content.decode(errors="replace"), "logprob": logprob, "bytes": list(content)}
