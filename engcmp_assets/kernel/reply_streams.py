"""What a reply's stream says: its two spans as text, the engine's own token ids, and the log-probabilities of its first token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engcmp_assets.kernel.fixed_traces import EndLogProb, from_top_rows
from engcmp_assets.kernel.records import Missing
from engcmp_resources.errors import EngcmpError

_BLANK_LINE = re.compile(r"\n\n+")
_BY_ID = re.compile(r"token_id:(\d+)")  # how vLLM names a token where it is asked for ids
TOP = 20
"""Log-probabilities that are asked for beside a trace's first token."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The log-probabilities beside a reply's first token, natural logarithms over the whole vocabulary, by token id."""

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class ReplyParts:
    """`token_ids` are all of the reply's, None where any event with text came without its ids. `first` is None where none were given."""

    reasoning: str
    answer: str
    token_ids: tuple[int, ...] | None
    first: FirstToken | Missing


@dataclass(slots=True)
class _Collected:
    thoughts: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    ids: list[int] | None = field(default_factory=list)
    first: Any = None


def read_parts(body: bytes | bytearray) -> ReplyParts:
    """The parts of a body of server-sent events, whole or cut anywhere. Reasoning may come under either of its two names.

    What is no JSON is passed over (whoever judges the stream tells it), invalid UTF-8 becomes U+FFFD.
    """
    found = _Collected()
    for event in _events(bytes(body).decode("utf-8", "replace")):
        choices = event.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            _take(found, choices[0])
    ids = None if not found.ids else tuple(found.ids)
    return ReplyParts("".join(found.thoughts), "".join(found.answers), ids, _first_token(found.first))


def end_log_prob(first: FirstToken | Missing, token: int) -> EndLogProb | Missing:
    """How likely `token` was in place of the reply's first one; a bound where it is not among those that were given."""
    if isinstance(first, Missing):
        return first
    if not first.top:
        return Missing("the engine gives no log-probability beside the first token's own")
    ids, logs = [one for one, _ in first.top], [value for _, value in first.top]
    try:
        (one,) = from_top_rows([ids], [logs], token, next_tokens=[first.token], next_log_probs=[first.log_prob])  # type: ignore[arg-type] # None was refused above
    except EngcmpError as error:
        return Missing(error.what)
    return one


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    for block in _BLANK_LINE.split(text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
        if not lines or lines == ["[DONE]"]:
            continue
        try:
            event = json.loads("\n".join(lines))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, Mapping):
            yield event


def _take(found: _Collected, choice: Mapping[str, Any]) -> None:
    delta = choice.get("delta")
    delta = delta if isinstance(delta, Mapping) else {}
    text = _text(delta.get("content")) or _text(choice.get("text"))
    thought = _text(delta.get("reasoning")) or _text(delta.get("reasoning_content"))
    found.answers.append(text)
    found.thoughts.append(thought)
    ids = choice.get("token_ids")
    if isinstance(ids, list) and found.ids is not None:
        found.ids += [int(one) for one in ids if isinstance(one, int)]
    elif text or thought:
        found.ids = None
    if found.first is None:
        found.first = choice.get("logprobs")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _first_token(said: Any) -> FirstToken | Missing:
    """Of `logprobs` in a completion's or a chat's form. A token that is named by its text alone is no id: texts are not unique."""
    none = Missing("the answer holds no log-probabilities by token id")
    if not isinstance(said, Mapping):
        return none
    try:
        if isinstance(said.get("content"), list):
            one = said["content"][0]
            return FirstToken(
                _id(one),
                float(one["logprob"]),
                tuple((_id(other), float(other["logprob"])) for other in one["top_logprobs"]),
            )
        top: Mapping[str, float] = said["top_logprobs"][0]
        own = _id({"token": said["tokens"][0]})
        return FirstToken(
            own,
            float(said["token_logprobs"][0]),
            tuple((_id({"token": name}), float(value)) for name, value in top.items()),
        )
    except (KeyError, IndexError, TypeError, ValueError):
        return none


def _id(entry: Mapping[str, Any]) -> int:
    if isinstance(entry.get("id"), int):
        return int(entry["id"])
    match = _BY_ID.fullmatch(str(entry["token"]))
    if match is None:
        raise ValueError("a token without its id")
    return int(match[1])


def log_prob_document(found: EndLogProb | Missing) -> dict[str, Any]:
    """A log-probability as JSON: `{"log_prob", "bound"}` or `{"missing": reason}`."""
    return found.as_json() if isinstance(found, Missing) else {"log_prob": found.value, "bound": found.bound}


def total(values: Sequence[int | None]) -> int | None:
    """The sum; None where any value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
