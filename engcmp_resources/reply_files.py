"""Files of replies, one JSON object a line, and the tokenizer of the model that wrote them, proved by probe strings."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gguf_files import open_gguf
from engcmp_resources.tokenizing import GgufTokenizer

_FIELDS = ("reply_id", "kind", "reasoning", "answer", "finish_reason")
_OPTIONAL = ("reasoning",)
_SHAPE = (
    'write {"reply_id", "kind", "reasoning", "answer", "finish_reason"}, all text; null for what there is none of; '
    '"reasoning" may be left out'
)
TOKENIZER_FILE = "tokenizer.json"
# A tokenizer of generated text gives each of these back: letters of both cases, signs, digits, indented code, other scripts, an emoji.
PROBES = (
    "The Quick brown fox, isn't it? (42 + 1,007.5) != 3e-9",
    'def f(x):\n    return {"a": [x, None]}  # end\n',
    "Größe, naïve, Привет, 今日は天気がいい。",
    "ok \N{THUMBS UP SIGN}",
)
_MATCH = "give the tokenizer of the model that wrote the replies"


@dataclass(frozen=True, slots=True)
class ReplyLine:
    """A reply as its line gives it; `line` counts from 1. Texts that are null in the file are empty here."""

    line: int
    reply_id: str
    kind: str
    reasoning: str
    answer: str
    finish_reason: str | None


def read_replies(path: Path) -> Iterator[ReplyLine]:
    """The replies of a file, one by one; blank lines are passed over, other fields than the five are not looked at.

    Raises EngcmpError with the line's number for invalid UTF-8, anything but a JSON object with the five fields, half of a surrogate
    pair, and an id that stands twice; and for a file without a reply, or that cannot be read.
    """
    lines: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                data = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                if not data.strip():
                    continue
                reply = _reply(data, number, f"{path}, line {number}")
                if reply.reply_id in lines:
                    raise EngcmpError(
                        f"reply_id {reply.reply_id[:60]!r} stands on line {lines[reply.reply_id]} already",
                        where=f"{path}, line {number}", remedy="name each reply once",
                    )  # fmt: skip
                lines[reply.reply_id] = number
                yield reply
    except OSError as error:
        raise EngcmpError(
            f"replies cannot be read: {error.strerror}", where=str(path), remedy="name a file that is there"
        ) from error
    if not lines:
        raise EngcmpError("no reply in the file", where=str(path), remedy=_SHAPE)


def _reply(data: bytes, line: int, where: str) -> ReplyLine:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EngcmpError(
            f"invalid UTF-8: byte {error.start + 1} of the line is 0x{data[error.start]:02x}", where=where,
            remedy="write the file as UTF-8, what the engine sent of a cut character as U+FFFD",
        ) from error  # fmt: skip
    try:
        entry = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise EngcmpError(f"not JSON: {error}", where=where, remedy="write one JSON object a line") from error
    if not isinstance(entry, dict):
        raise EngcmpError("not a JSON object", where=where, remedy=_SHAPE)
    for name in _FIELDS:
        if name not in entry and name not in _OPTIONAL:
            raise EngcmpError(f'"{name}" is missing', where=where, remedy=_SHAPE)
        _check(name, entry.get(name), where)
    return ReplyLine(
        line,
        entry["reply_id"],
        entry["kind"],
        entry.get("reasoning") or "",
        entry["answer"] or "",
        entry["finish_reason"],
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in an object")
    return found


def _check(name: str, value: object, where: str) -> None:
    if value is None and name not in ("reply_id", "kind"):
        return
    if not isinstance(value, str) or (not value and name == "reply_id"):
        raise EngcmpError(f'"{name}" is {json.dumps(value)[:60]}, not text', where=where, remedy=_SHAPE)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise EngcmpError(
            f'"{name}" holds half of a surrogate pair, \\u{ord(value[error.start]):04x}, as character {error.start + 1}',
            where=where, remedy="write the whole character, or U+FFFD where the engine cut it",
        ) from error  # fmt: skip


class ReplyTokenizer:
    """The tokenizer of the model that wrote the replies. Names of control tokens in a text are text, as the model wrote them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = tuple(
            token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special and token.content
        )

    @classmethod
    def load(cls, place: Path) -> ReplyTokenizer:
        """The tokenizer of a folder with a tokenizer.json, or that of a GGUF file, once it gives PROBES back.

        Raises EngcmpError for a place without one, a damaged one, and one that loses or changes text.
        """
        named = place.suffix == ".gguf" or place.name == TOKENIZER_FILE or (place.suffix == ".json" and place.is_file())
        path = place if named else place / TOKENIZER_FILE  # a store names a file by its hash
        try:
            text = _gguf_tokenizer(path) if path.suffix == ".gguf" else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EngcmpError(
                f"no tokenizer can be read: {error}", where=str(path),
                remedy=f"name a folder that holds {TOKENIZER_FILE}, or a GGUF file",
            ) from error  # fmt: skip
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library has no class of its own for it
            raise EngcmpError(
                f"not a {TOKENIZER_FILE}: {error}", where=str(path), remedy="fetch it again from the model's files"
            ) from error
        tokenizer.no_truncation()  # a file may ask for both, for training
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        found = cls(tokenizer)
        for probe in PROBES:
            back = found.decode(found.encode(probe))
            if back.strip() != probe.strip():
                raise EngcmpError(
                    f"the tokenizer gives {probe!r} back as {back!r}: it is not one of a model that generates text",
                    where=str(path), remedy=_MATCH,
                )  # fmt: skip
        return found

    def require(self, probes: Mapping[str, list[int]], where: str) -> None:
        """Prove that this is the model's tokenizer: `probes` are texts with the ids that its engine gives them.

        Raises EngcmpError naming the first text that gets other ids, and where there is none.
        """
        if not probes:
            raise EngcmpError(
                "no probe string", where=where, remedy='give {"text": [token ids as the engine gives them]}'
            )
        for text, ids in probes.items():
            own = self.encode(text)
            if own != list(ids):
                raise EngcmpError(
                    f"the tokenizer gives {text[:60]!r} the ids {own[:8]}, the engine {list(ids)[:8]}",
                    where=where,
                    remedy=_MATCH,
                )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, nothing added at either end."""
        return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: list[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def token_texts(self) -> list[str]:
        """The text of every id, [V]; that of an id which is not in use is empty."""
        count = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        return [
            str(text)
            for text in self._tokenizer.decode_batch([[number] for number in range(count)], skip_special_tokens=False)
        ]

    def control_tokens(self, text: str) -> list[str]:
        """The names of control tokens that stand in `text`."""
        return [name for name in self._control if name in text]


def read_probes(path: Path) -> dict[str, list[int]]:
    """Probe strings with the ids that an engine gave them. Raises EngcmpError for anything but {"text": [ids], ...}."""
    remedy = 'write {"text": [ids as the engine gives them], ...}'
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EngcmpError(f"probes cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
    found = parse_json(data, what="the probes file", where=str(path), remedy=remedy)
    whole = isinstance(found, dict) and all(
        isinstance(ids, list) and all(type(number) is int for number in ids) for ids in found.values()
    )
    if not whole:
        raise EngcmpError("not an object of texts and their token ids", where=str(path), remedy=remedy)
    probes: dict[str, list[int]] = found
    return probes


def _gguf_tokenizer(path: Path) -> str:
    with open_gguf(path) as model:
        return GgufTokenizer.from_model(model).as_json()
