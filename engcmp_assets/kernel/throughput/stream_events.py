"""What the events of one stream are, and how many tokens each carries (MEASURES section 6).

A token event is counted by token ids where the engine sends them, else by the growth of continuous usage, else by text that is not
empty. Role-only, empty, usage-only, finish and comment events carry no token.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Ends = npt.NDArray[np.int64]
CountedBy = Literal["ids", "usage", "text"]
KINDS = ("role", "reasoning", "answer", "tool_call", "empty", "usage", "finish", "comment", "error", "done")
_ROLE, _REASONING, _ANSWER, _TOOL, _EMPTY, _USAGE, _FINISH, _COMMENT, _ERROR, _DONE = range(len(KINDS))
_BATCH = 100  # events that are decoded at once: more would not stay in the cache of the processor
_DONE_TEXT, _DONE_LINE, _DATA = b"[DONE]", b"data: [DONE]\n\n", b"data: "
_NEWLINE, _SPACE, _COMMA, _OPEN, _CLOSE = b"\n ,[]"
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE = re.compile(rb"\r\n|\n|\r")
_SHOWN = 300
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Tool(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    role: str | None = None
    tool_calls: list[_Tool] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    prompt_cache_hit_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Timings(msgspec.Struct, gc=False):
    predicted_n: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None  # llama-server's: the tokens so far
    error: Any = None
    message: Any = None


_CHUNKS = msgspec.json.Decoder(list[_Chunk])
_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class StreamEvents:
    """The events of one stream, in order of arrival, and what they say together. Absent is None, never 0.

    `kinds` uint8 [n] into KINDS; `tokens` int32 [n]; `ends` int64 [n]: the offset in the body just after the event's closing blank line.
    `characters` and `text_sha256` are of reasoning and answer text as they came, one after the other. `broken` is the first event
    that is no JSON or has an unknown form, `error` the first error that the stream told.
    """

    kinds: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    counted_by: CountedBy
    done: bool
    finish_reason: str | None
    completion_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    characters: int
    text_sha256: str
    error: str | None
    broken: str | None
    flags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    """Collects what the events say; one entry of each list is one event."""

    kinds: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)  # token ids, -1 where there is no such field
    counts: list[int] = field(default_factory=list)  # completion tokens that usage states beside choices, -1 for none
    answers: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    usage: _Usage | None = None
    finish: str | None = None
    error: str | None = None
    broken: str | None = None
    untyped: bool = False

    def plain(self, kind: int) -> None:
        """An event that carries nothing that counts."""
        self.kinds.append(kind)
        self.ids.append(-1)
        self.counts.append(-1)

    def chunks(self, chunks: list[_Chunk]) -> None:
        """Chunks of any kind. The hot loop: each event of a stream passes here once."""
        add_kind, add_ids, add_count = self.kinds.append, self.ids.append, self.counts.append
        add_answer, add_thought = self.answers.append, self.thoughts.append
        for chunk in chunks:
            choices, usage = chunk.choices, chunk.usage
            if usage is not None:
                self.usage = usage
            if not choices or chunk.error is not None:
                self._without_choice(chunk)
                continue
            choice = choices[0]
            delta = choice.delta
            if delta is None:
                text, thought = choice.text, None
            else:
                text, thought = delta.content or choice.text, delta.reasoning or delta.reasoning_content
            ids = choice.token_ids
            if choice.finish_reason is not None:
                self.finish = choice.finish_reason
            if text:
                add_answer(text)
                add_kind(_ANSWER)
                if thought:
                    add_thought(thought)
            elif thought:
                add_thought(thought)
                add_kind(_REASONING)
            else:
                add_kind(_without_text(choice))
            add_ids(-1 if ids is None else len(ids))
            if usage is not None and usage.completion_tokens is not None:
                add_count(usage.completion_tokens)
            else:
                add_count(
                    -1 if chunk.timings is None or chunk.timings.predicted_n is None else chunk.timings.predicted_n
                )

    def _without_choice(self, chunk: _Chunk) -> None:
        if chunk.error is not None or chunk.message is not None:
            self.fails(str(chunk.error or chunk.message or ""))
        else:
            self.plain(_USAGE if chunk.usage is not None else _EMPTY)

    def fails(self, said: str) -> None:
        """An event that tells an error."""
        self.error = self.error or said[:_SHOWN] or "an error without words"
        self.plain(_ERROR)

    def _payload(self, payload: bytes) -> None:
        """One event by itself: [DONE], a chunk, or what is neither."""
        if payload.strip() == _DONE_TEXT:
            self.plain(_DONE)
            return
        try:
            self.chunks([_CHUNK.decode(payload)])
        except msgspec.ValidationError as error:
            self.broken = self.broken or f"unknown form: {error}"
            self.plain(_EMPTY)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.broken = self.broken or f"no JSON: {payload[:80].decode(errors='replace')!r}"
            self.plain(_EMPTY)

    def block(self, block: bytes) -> None:
        """One event as it was sent, of any form: its lines without the closing blank line."""
        data, name, other = [], b"", False
        for line in _LINE.split(block):
            label, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if label == b"data":
                data.append(value)
            elif label == b"event":
                name = value
            elif label == b"error":  # how llama-server told errors in a stream
                self.fails(value.decode(errors="replace"))
                return
            elif label:
                other = other or label not in (b"id", b"retry")
        payload = b"\n".join(data)
        if name == b"error":
            self.fails(payload.decode(errors="replace"))
        elif data:
            self._payload(payload)
        elif other and not name:
            self.broken = self.broken or f"no event: {block[:80].decode(errors='replace')!r}"
            self.plain(_EMPTY)
        else:
            self.plain(_COMMENT)


def read_stream(body: bytes | bytearray) -> StreamEvents:
    """The events of a body of server-sent events, of whatever line ends, comments between them and events of several lines.

    A last event without its blank line is read where it is whole, and flagged.
    """
    return _finished(*_collected(body))


def reply_texts(body: bytes | bytearray) -> tuple[str, str]:
    """The text of the reasoning and that of the answer in a body, each as it came, one piece after the other."""
    reader, _, _ = _collected(body)
    return "".join(reader.thoughts), "".join(reader.answers)


def _collected(body: bytes | bytearray) -> tuple[_Reader, Ends, list[str]]:
    """Everything that the events of a body say, where each ends, and flags."""
    found = _simple(body) if body.startswith(b"data: {") else None
    reader, ends = found or _general(bytes(body))
    flags = []
    rest = bytes(body[int(ends[-1]) if ends.size else 0 :]).removeprefix(_BYTE_ORDER_MARK).strip(b"\r\n")
    if rest:
        reader.block(rest)
        ends = np.append(ends, len(body))
        flags.append("last event not closed")
    return reader, ends, flags


def _simple(body: bytes | bytearray) -> tuple[_Reader, Ends] | None:
    """Each event is one line of JSON and a blank one, as most servers send; None for any other stream.

    In a copy the line ends become commas and the labels spaces: then many events are one list of JSON, decoded at once.
    """
    text = np.frombuffer(bytearray(body), dtype=np.uint8)
    newlines = np.flatnonzero(text == _NEWLINE)
    newlines = newlines[: newlines.size // 2 * 2]
    if not newlines.size or (newlines[::2] + 1 != newlines[1::2]).any():
        return None
    ends = newlines[1::2] + 1
    done = body.endswith(_DONE_LINE, 0, int(ends[-1]))
    events = ends.size - done
    starts = np.concatenate(([0], ends[: events - 1]))
    for offset, letter in enumerate(_DATA):
        if (text[starts + offset] != letter).any():  # in range: each event but the last is followed by one more
            return None
        text[starts + offset] = _SPACE
    text[ends - 2], text[ends - 1] = _COMMA, _SPACE
    reader = _Reader()
    for first in range(0, events, _BATCH):
        until = min(first + _BATCH, events)
        start, end = int(starts[first]), int(ends[until - 1]) - 1
        text[start], text[end - 1] = _OPEN, _CLOSE
        try:
            chunks = _CHUNKS.decode(text[start:end].data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(chunks) != until - first:
            return None
        reader.chunks(chunks)
    if done:
        reader.plain(_DONE)
    return reader, ends


def _general(content: bytes) -> tuple[_Reader, Ends]:
    """Events of any form, one by one."""
    reader, ends = _Reader(), list[int]()
    start = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    for blank in _BLANK_LINE.finditer(content):
        block = content[start : blank.start()]
        start = blank.end()
        if block.strip(b"\r\n"):
            ends.append(start)
            reader.block(block.strip(b"\r\n"))
    return reader, np.array(ends, dtype=np.int64)


def _without_text(choice: _Choice) -> int:
    """The kind of an event that brings no text. One that brings tokens all the same gets its kind from its neighbours."""
    delta = choice.delta
    if delta is not None and delta.tool_calls:
        return _TOOL
    if choice.finish_reason is not None:
        return _FINISH
    return _ROLE if delta is not None and delta.role else _EMPTY


def _finished(reader: _Reader, ends: npt.NDArray[np.int64], flags: list[str]) -> StreamEvents:
    kinds = np.frombuffer(bytes(reader.kinds), dtype=np.uint8)
    counted_by, tokens = _tokens(reader, kinds)
    kinds = _settled(kinds, tokens)
    done = kinds == _DONE
    if done.any() and (kinds[int(done.argmax()) + 1 :] != _COMMENT).any():
        flags.append("events after [DONE]")
    usage, text = reader.usage or _Usage(), "".join(reader.thoughts)
    answer = "".join(reader.answers)
    details, thought = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = details.cached_tokens if details is not None else None
    return StreamEvents(
        kinds=kinds,
        tokens=tokens,
        ends=ends,
        counted_by=counted_by,
        done=bool(done.any()),
        finish_reason=reader.finish,
        completion_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_cache_hit_tokens if cached is None else cached,
        reasoning_tokens=thought.reasoning_tokens if thought is not None else None,
        characters=len(text) + len(answer),
        text_sha256=hashlib.sha256(f"{text}\0{answer}".encode("utf-8", "surrogatepass")).hexdigest(),
        error=reader.error,
        broken=reader.broken,
        flags=flags,
    )


def _tokens(reader: _Reader, kinds: npt.NDArray[np.uint8]) -> tuple[CountedBy, npt.NDArray[np.int32]]:
    """How tokens can be counted in this stream, and those of each event, int32 [n]."""
    ids, counts = np.array(reader.ids, dtype=np.int64), np.array(reader.counts, dtype=np.int64)
    text = (kinds == _REASONING) | (kinds == _ANSWER) | (kinds == _TOOL)
    if (ids > 0).any() and not (text & (ids < 0)).any():
        return "ids", np.maximum(ids, 0).astype(np.int32)
    if text.any() and not (text & (counts < 0)).any():
        highest = np.maximum.accumulate(np.maximum(counts, 0))
        return "usage", np.diff(highest, prepend=0).astype(np.int32)
    return "text", text.astype(np.int32)


def _settled(kinds: npt.NDArray[np.uint8], tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Kinds in which an event with tokens but no text (part of a character, say) is of the text that follows, else of that before."""
    bare = (tokens > 0) & ((kinds == _ROLE) | (kinds == _EMPTY) | (kinds == _FINISH))
    if not bare.any():
        return kinds
    named = np.flatnonzero((kinds == _REASONING) | (kinds == _ANSWER) | (kinds == _TOOL))
    if not named.size:
        return np.where(bare, np.uint8(_ANSWER), kinds)
    following = named[np.minimum(np.searchsorted(named, np.arange(len(kinds))), named.size - 1)]
    return np.where(bare, kinds[following], kinds)
