"""What is asked of a server beside the streams: what it refuses of a stream's options, whether it is idle, and its counters."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address, bearer_headers
from engcmp_resources.secrecy import without_key

_TIMEOUT_S = 10.0
_SHOWN = 200
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_REFUSED, _UNKNOWN = frozenset({400, 422}), frozenset({401, 403, 404})
_NO_PATH = frozenset({404, 405, 501})
_COMPLETIONS = "/v1/completions"
_POLL_S = 0.05
# Names of one thing under each engine's exporter, the first that is there counts; gauges first.
_METRICS: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "started_s": ("process_start_time_seconds",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
    "draft_steps": ("vllm:spec_decode_num_drafts_total", "sglang:spec_verify_calls_total"),
    "cached_tokens": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_reqs_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "llamacpp:prompt_tokens_total"),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
}
_STATES = frozenset({"running", "waiting", "started_s"})
# The same of CuteAFD's /v1/stats, as paths in its JSON.
_STATS = {
    "running": ("active",), "waiting": ("http_queue_len",), "generation_tokens": ("generated_tokens",),
    "cached_tokens": ("prefix_cache", "hit_tokens"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine tells of itself at a moment; `values` holds what it states and nothing else. `why` is set where it states nothing."""

    values: Mapping[str, float] = field(default_factory=dict)
    why: str | None = None

    @property
    def busy(self) -> int:
        """Requests that run or wait. An engine that does not tell is not taken for busy."""
        return int(self.values.get("running", 0) + self.values.get("waiting", 0))


class Control:
    """Control requests to one server, each on a connection of its own. Its errors never hold the key."""

    def __init__(self, address: Address, key: str | None, *, patience_s: float = 600.0) -> None:
        self._address, self._key, self._patience_s = address, key, patience_s
        self._tls = ssl.create_default_context() if address.tls else None

    def state(self) -> EngineState:
        """The engine's counters, of Prometheus' /metrics or CuteAFD's /v1/stats."""
        values: dict[str, float] = {}
        text = self._text("/metrics")
        if text is not None:
            sums: dict[str, float] = {}
            for name, value in _LINE.findall(text):
                number = _number(value)
                if number is not None:
                    sums[name] = sums.get(name, 0.0) + number
            for ours, names in _METRICS.items():
                found = next((name for name in names if name in sums), None)
                values |= {ours: sums[found]} if found else {}
        if not values and (stats := self._text("/v1/stats")) is not None:
            values = _of_stats(stats)
        return EngineState(values, None if values else "neither /metrics nor /v1/stats states anything that is known")

    def settled(self, within_s: float) -> EngineState:
        """The state once nothing runs or waits, or the last one after `within_s` seconds."""
        until = time.monotonic() + within_s
        while (state := self.state()).busy and time.monotonic() < until:
            time.sleep(_POLL_S)
        return state

    def refusal(self, path: str, body: bytes) -> str | None:
        """What the server says where it refuses a streamed request with 400 or 422; None where it takes it, or fails otherwise.

        Raises EngcmpError where nothing answers, and where the key, the model or the path is refused.
        """
        connection = self._connection()
        with contextlib.closing(connection):
            try:
                connection.connect()
            except OSError as error:
                raise EngcmpError(
                    f"nothing answers: {error}",
                    where=str(self._address),
                    remedy="start the server, or correct --base-url",
                ) from error
            connection.sock.settimeout(self._patience_s)  # it may first have to load, or to wait for others
            try:
                status, content = self._answer(connection, "POST", path, body)
            except TimeoutError as error:
                raise EngcmpError(
                    f"the server gave no answer to a first short request within {self._patience_s:g} s", where=f"{self._address}{path}",
                    remedy="see whether it still generates, or give it longer (--first-byte-s)",
                ) from error  # fmt: skip
            except (OSError, http.client.HTTPException):
                return None  # what goes wrong within a stream is for the measured requests to tell
        said = _said(without_key(content, self._key))
        if status in _UNKNOWN:
            raise EngcmpError(
                f"the server answers {status}: {said}", where=f"{self._address}{path}",
                remedy="correct the plan's model, --base-url, or the key (--key-env)",
            )  # fmt: skip
        return said if status in _REFUSED else None

    def no_token_ids(self, model: str) -> str | None:
        """Why a server takes no token ids as a prompt: it has no such path, or refuses them; None where it answers them.

        Raises EngcmpError where nothing answers, and for an answer that tells neither.
        """
        body = json.dumps({"model": model, "prompt": [1, 2, 3], "max_tokens": 1, "temperature": 0.0}).encode()
        with contextlib.closing(self._connection()) as connection:
            try:
                connection.connect()
                connection.sock.settimeout(self._patience_s)
                status, content = self._answer(connection, "POST", _COMPLETIONS, body)
            except (OSError, http.client.HTTPException) as error:
                raise EngcmpError(
                    f"no answer to three token ids: {error}", where=f"{self._address}{_COMPLETIONS}", remedy="start the server"
                ) from error  # fmt: skip
        if status == http.HTTPStatus.OK:
            return None
        said = _said(content)
        said = said.replace(self._key, "(the key)") if self._key else said
        if status in _NO_PATH or status in _REFUSED:
            return f"{_COMPLETIONS} answers {status}"
        raise EngcmpError(
            f"the server answers three token ids with {status}: {said}", where=f"{self._address}{_COMPLETIONS}",
            remedy="see its log; nothing was measured",
        )  # fmt: skip

    def token_ids(self, body: Mapping[str, Any]) -> list[int] | None:
        """What /tokenize makes of `body`; None where it gives no ids, or does not answer."""
        with contextlib.closing(self._connection()) as connection:
            try:
                status, content = self._answer(connection, "POST", "/tokenize", json.dumps(body).encode())
                answer = json.loads(content) if status == http.HTTPStatus.OK else None
            except (OSError, http.client.HTTPException, ValueError):
                return None
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        return ids if isinstance(ids, list) else None

    def _text(self, path: str) -> str | None:
        with contextlib.closing(self._connection()) as connection:
            try:
                status, content = self._answer(connection, "GET", path, None)
            except (OSError, http.client.HTTPException):
                return None
        return content.decode(errors="replace") if status == http.HTTPStatus.OK else None

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)

    def _answer(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        """Status and body. Redirects are not followed, and a proxy of the environment is not used."""
        headers = dict(bearer_headers(self._key)) | ({"Content-Type": "application/json"} if body else {})
        connection.request(method, self._address.prefix + path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def granted(ask: Callable[[Mapping[str, bool]], str | None]) -> tuple[dict[str, bool], dict[str, str]]:
    """Which of `token_ids`, `usage`, `continuous` and `timings` a server takes, and what it said of each that it refused.

    `ask` sends one request with these wishes and gives the refusal, if any. Raises EngcmpError where it refuses one without wishes.
    """
    wishes = {"token_ids": True, "continuous": True, "usage": True, "timings": True}
    said = ask(wishes)
    if said is None:
        return wishes, {}
    refused: dict[str, str] = {}
    # One away at a time, then all that may be left of them: a server names only the first that it does not know. The timings go with
    # the first: a server that has them refuses none of the others.
    for others in (
        (),
        ("token_ids",),
        ("continuous",),
        ("token_ids", "continuous"),
        ("continuous", "usage"),
        tuple(wishes)[:3],
    ):
        drop = ("timings", *others)
        tried = {name: name not in drop for name in wishes}
        again = ask(tried)
        if again is None:
            return tried, {name: refused.get(name, said) for name in drop}
        for name in drop:
            refused.setdefault(name, again)
        last = again
    raise EngcmpError(
        f"the server refuses a plain streamed request: {last}",
        remedy="correct the model's name and the plan's sampling",
    )


def difference(before: EngineState, after: EngineState) -> dict[str, Any]:
    """Counters as differences over a cell, of those that both states hold. After a restart there are none.

    `restarts` is 1 where the process start changed or a counter fell, 0 where a process start is stated and did not change, else absent.
    """
    shared = {name: (before.values[name], after.values[name]) for name in before.values if name in after.values}
    start = shared.get("started_s")
    fell = any(new < old for name, (old, new) in shared.items() if name not in _STATES)
    if fell or (start and start[0] != start[1]):
        return {"restarts": 1}
    found: dict[str, Any] = {name: _plain(new - old) for name, (old, new) in shared.items() if name not in _STATES}
    return found | ({"restarts": 0} if start else {})


def _plain(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _of_stats(text: str) -> dict[str, float]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    values = {}
    for ours, path in _STATS.items():
        found = document
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            values[ours] = float(found)
    return values


def _said(content: bytes) -> str:
    return " ".join(content[: 4 * _SHOWN].decode(errors="replace").split())[:_SHOWN] or "nothing"
