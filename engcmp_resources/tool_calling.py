"""Holds conversations with tools over an OpenAI-compatible chat API: several user turns, a world that answers the calls, and the clock.

The conversation is recorded as it went, for a grader that is not here. A request that fails ends its conversation and is told; nothing is
tried again, and nothing that the model wrote is repaired.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import without_key

Respond = Callable[[str, str], str]
_NS_PER_MS = 1e6
_SHOWN = 300
_OK = 200


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How every request of a run is made. `max_tokens` and `max_steps` (assistant messages) are for each user turn's replies.

    `extra` goes into the request as it is, for example {"chat_template_kwargs": {"enable_thinking": false}}.
    """

    seed: int
    temperature: float = 0.0
    max_tokens: int = 16_384
    max_steps: int = 8
    timeout_s: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation to hold: the tools as the API takes them, what the user says turn by turn, and who answers the calls."""

    talk_id: str
    system: str
    tools: Sequence[Mapping[str, Any]]
    user_turns: Sequence[str]
    respond: Respond


def hold_talks(
    url: str,
    model: str,
    talks: Sequence[Talk],
    settings: ChatSettings,
    *,
    concurrency: int,
    headers: Mapping[str, str] | None = None,
    done: Callable[[str], None] = lambda talk_id: None,
) -> dict[str, dict[str, Any]]:
    """The conversations by id, `concurrency` of them at once: `{"turns": [{"user", "steps", "failure"}]}`.

    A step is one assistant message: `content`, `reasoning`, `tool_calls` (name and arguments as sent) and their `results`, `finish_reason`,
    `usage`, and `ms` from the request to its whole answer. `done` is told each conversation that has ended.
    Raises EngcmpError for a concurrency below 1 and ids that repeat.
    """
    if concurrency < 1 or len({talk.talk_id for talk in talks}) != len(talks):
        raise EngcmpError(
            f"{len(talks)} conversations, {concurrency} at once",
            remedy="give 1 or more at once, and each conversation an id of its own",
        )
    limits = httpx.Limits(max_connections=concurrency)
    with (
        httpx.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=settings.timeout_s, limits=limits, trust_env=False
        ) as client,
        ThreadPoolExecutor(concurrency) as pool,
    ):

        def one(talk: Talk) -> dict[str, Any]:
            found = _Conversation(client, model, talk, settings).hold()
            done(talk.talk_id)
            return found

        return dict(zip([talk.talk_id for talk in talks], pool.map(one, talks), strict=True))


class _Failed(Exception):
    """A request without a usable answer."""


class _Conversation:
    def __init__(self, client: httpx.Client, model: str, talk: Talk, settings: ChatSettings) -> None:
        self._client, self._model, self._talk, self._settings = client, model, talk, settings
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": talk.system}]

    def hold(self) -> dict[str, Any]:
        turns = []
        for said in self._talk.user_turns:
            turn, goes_on = self._turn(said)
            turns.append(turn)
            if not goes_on:
                break
        return {"turns": turns}

    def _turn(self, said: str) -> tuple[dict[str, Any], bool]:
        """A user turn, and whether the next one follows: it does after a whole answer."""
        self._messages.append({"role": "user", "content": said})
        steps: list[dict[str, Any]] = []
        turn: dict[str, Any] = {"user": said, "steps": steps, "failure": None}
        for number in range(self._settings.max_steps):
            try:
                step, ids = self._step()
            except _Failed as failed:
                turn["failure"] = str(failed)
                return turn, False
            steps.append(step)
            if step["finish_reason"] == "length":  # a call that was cut is not carried out
                return turn, False
            if not step["tool_calls"]:
                self._messages.append({"role": "assistant", "content": step["content"] or ""})
                return turn, True
            if number + 1 < self._settings.max_steps:
                self._carry_out(step, ids)
        return turn, False

    def _step(self) -> tuple[dict[str, Any], list[str]]:
        body = {
            "model": self._model,
            "messages": self._messages,
            "tools": list(self._talk.tools),
            "tool_choice": "auto",
            "temperature": self._settings.temperature,
            "seed": self._settings.seed,
            "max_tokens": self._settings.max_tokens,
            **self._settings.extra,
        }
        started = time.monotonic_ns()
        try:
            answer = self._client.post("/v1/chat/completions", json=body)
        except httpx.TimeoutException as error:
            raise _Failed(f"no answer within {self._settings.timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise _Failed(f"the connection failed: {type(error).__name__}") from error
        taken = (time.monotonic_ns() - started) / _NS_PER_MS
        if answer.status_code != _OK:
            raise _Failed(f"HTTP {answer.status_code}: {self._beginning(answer)}")
        return self._read(answer, taken)

    def _read(self, answer: httpx.Response, taken_ms: float) -> tuple[dict[str, Any], list[str]]:
        try:
            found = answer.json()
            choice = found["choices"][0]
            message = choice["message"]
            calls = [(one.get("id"), one["function"]) for one in message.get("tool_calls") or []]
            made = [{"name": str(one["name"]), "arguments": _as_sent(one.get("arguments"))} for _, one in calls]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _Failed(f"an answer that is no chat completion: {self._beginning(answer)}") from error
        ids = [str(one) for one, _ in calls]
        if len(set(ids)) != len(ids) or not all(one for one, _ in calls):
            ids = [f"call_{len(self._messages)}_{number}" for number in range(len(calls))]
        step = {
            "content": message.get("content"),
            "reasoning": message.get("reasoning") or message.get("reasoning_content"),
            "tool_calls": made,
            "results": [],
            "finish_reason": choice.get("finish_reason"),
            "ms": taken_ms,
            "usage": found.get("usage"),
        }
        return step, ids

    def _beginning(self, answer: httpx.Response) -> str:
        key = self._client.headers.get("Authorization", "").removeprefix("Bearer ")
        return without_key(answer.content, key).decode(errors="replace")[:_SHOWN]

    def _carry_out(self, step: dict[str, Any], ids: Sequence[str]) -> None:
        calls = step["tool_calls"]
        asked = [
            {"id": name, "type": "function", "function": dict(call)} for name, call in zip(ids, calls, strict=True)
        ]
        self._messages.append({"role": "assistant", "content": step["content"], "tool_calls": asked})
        for name, call in zip(ids, calls, strict=True):
            result = self._talk.respond(call["name"], call["arguments"])
            step["results"].append(result)
            self._messages.append({"role": "tool", "tool_call_id": name, "content": result})


def _as_sent(arguments: Any) -> str:
    """Arguments as text; an API that sends an object instead has parsed them itself."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
