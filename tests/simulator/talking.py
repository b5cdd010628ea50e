"""A plain client for the simulator's own tests: it keeps every line as it came."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from .running import Simulator

MODEL = "sim/model"
_DEADLINE_S = 20


@dataclass(slots=True)
class Heard:
    """A stream as it was received: each event's object with the time it came, comments, and how it ended."""

    status: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    done: bool = False
    broken: bool = False

    @property
    def comments(self) -> list[str]:
        return [line for line in self.lines if line.startswith(":")]

    @property
    def deltas(self) -> list[dict[str, Any]]:
        return [event["choices"][0].get("delta", event["choices"][0]) for event in self.events if event.get("choices")]

    @property
    def token_ids(self) -> list[list[int]]:
        """The ids of each chunk that bears any."""
        choices = [event["choices"][0] for event in self.events if event.get("choices")]
        return [choice["token_ids"] for choice in choices if choice.get("token_ids")]

    @property
    def usage(self) -> Any:
        """The last usage object, None without any."""
        return next((event["usage"] for event in reversed(self.events) if event.get("usage")), None)

    def text(self, name: str = "content") -> str:
        return "".join(delta.get(name) or "" for delta in self.deltas)


def stream(simulator: Simulator, path: str, body: dict[str, Any], *, give_up_s: float = _DEADLINE_S) -> Heard:
    """What comes back from a streamed request, until it ends, breaks, or nothing comes for `give_up_s`."""
    heard = Heard()
    client = httpx.Client(base_url=simulator.url, timeout=httpx.Timeout(_DEADLINE_S, read=give_up_s), trust_env=False)
    try:
        with client, client.stream("POST", path, json=body | {"stream": True}) as answer:
            heard.status = answer.status_code
            for line in answer.iter_lines():
                heard.lines.append(line)
                if line == "data: [DONE]":
                    heard.done = True
                elif line.startswith("data: "):
                    heard.times_ns.append(time.monotonic_ns())
                    heard.events.append(json.loads(line[6:]))
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout):
        heard.broken = True
    return heard


def chat_body(text: str = "Hello.", **changes: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12}
    return body | changes


def chat_stream(simulator: Simulator, text: str = "Hello.", *, give_up_s: float = _DEADLINE_S, **changes: Any) -> Heard:
    usage = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    return stream(simulator, "/v1/chat/completions", chat_body(text, **usage | changes), give_up_s=give_up_s)


def ask(simulator: Simulator, path: str, body: Any = None, **settings: Any) -> httpx.Response:
    """A whole answer: POST where there is a body."""
    method = "GET" if body is None else "POST"
    return httpx.request(method, simulator.url + path, json=body, timeout=_DEADLINE_S, trust_env=False, **settings)


def chat(simulator: Simulator, text: str = "Hello.", **changes: Any) -> httpx.Response:
    return ask(simulator, "/v1/chat/completions", chat_body(text, **changes))


def score(simulator: Simulator, prompt: list[int], **changes: Any) -> Any:
    """vLLM's prompt log-probabilities of all tokens, of the one choice."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": -1}
    answer = ask(simulator, "/v1/completions", body | changes)
    answer.raise_for_status()
    return answer.json()["choices"][0]["prompt_logprobs"]


def rows_of(entries: Any, vocab: int) -> list[list[float]]:
    """The rows of prompt log-probabilities, without the null at the start, by token id."""
    return [[entry[str(token)]["logprob"] for token in range(vocab)] for entry in entries[1:]]


def counters(simulator: Simulator) -> dict[str, float]:
    """The counters of /metrics, by name without labels; several lines of one name are added."""
    found: dict[str, float] = {}
    for line in ask(simulator, "/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.split("{")[0], float(line.rsplit(" ", 1)[1])
            found[name] = found.get(name, 0.0) + value
    return found
