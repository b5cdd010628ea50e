"""What llama.cpp's HTTP server is asked, and what its answers must be to count as rows from the decode path."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from engcmp_resources.engines.servers import Endpoint
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import without_key

_SHOWN_CHARACTERS = 120
_ENTRY_BYTES = 1024  # no vocabulary's entries are this large on average; an answer without an end must not fill memory
_ANSWER_BYTES = 1 << 22
# The server writes this float32 for the logarithm of 0, which JSON cannot hold.
_NO_PROBABILITY = float(np.finfo(np.float32).min)
_FORCING_TEXT = "a"
_FORCING_BIAS = 1e4
_ANOTHER = "another program answers at this address: end it, or let the engine choose a free port"
_UNKNOWN_FORM = "use a version with the known answers, or teach _llamacpp_http.py the new ones"
_LOG_WAIT_S = 1.0
_LOG_POLL_S = 0.05
_LOGGED = {
    "n_batch": re.compile(rb"llama_context: n_batch +=\s*(\d+)"),
    "n_ubatch": re.compile(rb"llama_context: n_ubatch +=\s*(\d+)"),
    "n_threads": re.compile(rb"system_info: n_threads = (\d+)"),
    "n_threads_batch": re.compile(rb"system_info: n_threads = \d+ \(n_threads_batch = (\d+)\)"),
}


class Late(EngcmpError):
    """No whole answer within the deadline."""


class BrokenOff(EngcmpError):
    """The connection was refused, or ended before a whole answer."""


class _Entry(msgspec.Struct, frozen=True, gc=False):
    id: int
    logprob: float


class _Distribution(msgspec.Struct, frozen=True):
    top_logprobs: list[_Entry]


class _Timings(msgspec.Struct, frozen=True):
    prompt_n: int
    cache_n: int


class _Completion(msgspec.Struct, frozen=True):
    model: str
    content: str
    timings: _Timings
    completion_probabilities: list[_Distribution] = []


class _Health(msgspec.Struct, frozen=True):
    status: str


class _SlotSettings(msgspec.Struct, frozen=True):
    n_ctx: int


class _Props(msgspec.Struct, frozen=True):
    default_generation_settings: _SlotSettings
    total_slots: int
    build_info: str


class _Meta(msgspec.Struct, frozen=True):
    n_vocab: int
    n_params: int
    n_embd: int
    size: int


class _Model(msgspec.Struct, frozen=True):
    id: str
    meta: _Meta


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class CompletionClient:
    """The server at `address`, asked with `key` (empty for none) for `model`, the name under which it was told to serve its file.

    `label` names the launch in errors; `vocab` is the width of a row. All methods raise EngcmpError: Late, BrokenOff, or
    for an answer that is not as it must be.
    """

    def __init__(self, address: str, *, key: str, label: str, model: str, vocab: int) -> None:
        self._address, self._label, self._model, self._vocab = address, label, model, vocab
        self.endpoint = Endpoint(address, model, key or None)
        self._http = httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,  # the user's proxy does not lead to this machine's loopback
            limits=httpx.Limits(max_keepalive_connections=0),  # the server drops an idle one after 5 s, under a request
        )
        self._forced: int | None = None

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get_ready(self, deadline_s: float) -> dict[str, Any]:
        """What the server states of itself, once it has completed an inference of one token of the right model."""
        until, doing = time.monotonic() + deadline_s, "getting ready"
        health = self._ask(_Health, "/health", None, doing, until)
        if health.status != "ok":
            raise self._error(f"{doing}: the server's health is {health.status!r}", "read the log of the engine")
        models = self._ask(_Models, "/v1/models", None, doing, until).data
        if [model.id for model in models] != [self._model]:
            raise self._wrong_model(doing, ", ".join(model.id for model in models))
        props = self._ask(_Props, "/props", None, doing, until)
        tokens = self._ask(_Tokens, "/tokenize", {"content": _FORCING_TEXT}, doing, until).tokens
        self._forced = tokens[-1] if tokens else None
        completion = self._complete(tokens, doing, until, n_probs=0, cached=False)
        if _FORCING_TEXT not in completion.content:
            raise self._error(f"{doing}: the one token asked for came back as {completion.content!r}", _UNKNOWN_FORM)
        meta = models[0].meta
        return {
            "n_ctx": props.default_generation_settings.n_ctx,
            "slots": props.total_slots,
            "n_vocab": meta.n_vocab,
            "build_info": props.build_info,
            "model": {"parameters": meta.n_params, "embedding": meta.n_embd, "tensor_bytes": meta.size},
            "forced_token": self._forced,
        }

    def process_prefix(self, tokens: Sequence[int], *, doing: str, deadline_s: float) -> None:
        """Process `tokens` anew, as one prompt, and leave them in the cache."""
        # Anew: from the cache, the last token would be decoded alone, and a second repeat would differ from the first.
        completion = self._complete(tokens, doing, time.monotonic() + deadline_s, n_probs=0, cached=False)
        self._check_processed(completion.timings, cached=0, processed=len(tokens), doing=doing)

    def decode_row(
        self, tokens: Sequence[int], *, doing: str, deadline_s: float
    ) -> tuple[npt.NDArray[np.float32], int]:
        """The row after the last of `tokens` (log-probabilities by token id) and how many of them were processed for it.

        All but the last must be in the cache: a row that was not decoded as one token is refused.
        """
        until = time.monotonic() + deadline_s
        completion = self._complete(tokens, doing, until, n_probs=self._vocab, cached=True)
        self._check_processed(completion.timings, cached=len(tokens) - 1, processed=1, doing=doing)
        return self._row(completion.completion_probabilities, doing), completion.timings.prompt_n

    def _complete(self, tokens: Sequence[int], doing: str, until: float, *, n_probs: int, cached: bool) -> _Completion:
        body = {
            "prompt": list(tokens),
            "n_predict": 1,
            "n_probs": n_probs,
            # The distribution before all samplers; so it does not depend on the other settings here.
            "post_sampling_probs": False,
            "samplers": [],
            "temperature": 1.0,
            # The server leaves the probabilities out where the sampled token ends inside a character. So the token is
            # forced to a whole one, by a bias that is added after the probabilities are taken.
            "logit_bias": [] if self._forced is None else [[self._forced, _FORCING_BIAS]],
            "cache_prompt": cached,
            "id_slot": 0,
            "stream": False,
        }
        completion = self._ask(_Completion, "/completion", body, doing, until)
        if completion.model != self._model:
            raise self._wrong_model(doing, completion.model)
        return completion

    def _check_processed(self, timings: _Timings, *, cached: int, processed: int, doing: str) -> None:
        if (timings.cache_n, timings.prompt_n) != (cached, processed):
            raise self._error(
                f"{doing}: the server took {timings.cache_n} tokens from its cache and processed {timings.prompt_n}, "
                f"not {cached} and {processed}: this is no row of the decode path",
                "let nothing else use the server, and use a version that keeps the cache of a slot",
            )

    def _row(self, distributions: list[_Distribution], doing: str) -> npt.NDArray[np.float32]:
        if len(distributions) != 1:
            raise self._error(f"{doing}: {len(distributions)} distributions for one token", _UNKNOWN_FORM)
        entries = distributions[0].top_logprobs
        ids = np.fromiter((entry.id for entry in entries), dtype=np.int64, count=len(entries))
        values = np.fromiter((entry.logprob for entry in entries), dtype=np.float64, count=len(entries))
        self._check_ids(ids, doing)
        values[values <= _NO_PROBABILITY] = -np.inf
        # The server sums the probabilities in float32: this is the most by which their sum can be off for that reason.
        tolerance = self._vocab * float(np.finfo(np.float32).eps)
        mass = float(np.exp(values).sum()) if values.max() <= tolerance else np.inf
        if abs(mass - 1) > tolerance:
            raise self._error(f"{doing}: the probabilities sum to {mass:.6g}, not to 1", _UNKNOWN_FORM)
        row = np.empty(self._vocab, dtype="<f4")
        row[ids] = values
        return row

    def _check_ids(self, ids: npt.NDArray[np.int64], doing: str) -> None:
        outside = ids[(ids < 0) | (ids >= self._vocab)]
        if outside.size:
            raise self._error(
                f"{doing}: a probability of token {outside[0]}, the vocabulary has {self._vocab}", _UNKNOWN_FORM
            )
        times = np.bincount(ids, minlength=self._vocab)
        wrong = np.flatnonzero(times != 1)
        if wrong.size:
            raise self._error(
                f"{doing}: {ids.size} probabilities for {self._vocab} tokens; token {wrong[0]} has {times[wrong[0]]}",
                _UNKNOWN_FORM,
            )

    def _ask(self, kind: type[_Answer], path: str, body: dict[str, Any] | None, doing: str, until: float) -> _Answer:
        method = "GET" if body is None else "POST"
        try:
            status, content = self._exchange(method, path, body, doing, until)
        except httpx.TimeoutException as error:
            raise Late(f"{self._label}: no whole answer in time while {doing}", where=self._where(path)) from error
        except httpx.RequestError as error:
            raise BrokenOff(
                f"{self._label}: the connection broke off while {doing}: {error}",
                where=self._where(path),
                remedy="read the log of the engine, and run again",
            ) from error
        if status != httpx.codes.OK:
            raise self._error(
                f"{doing}: HTTP status {status}: {beginning(content, self.endpoint.key)}",
                "read the log of the engine",
                path,
            )
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as error:  # JSON, but not of the form that is expected
            raise self._error(f"{doing}: {error}: {beginning(content, self.endpoint.key)}", _ANOTHER, path) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._error(
                f"{doing}: the answer is no JSON: {beginning(content, self.endpoint.key)}", _ANOTHER, path
            ) from error

    def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None, doing: str, until: float
    ) -> tuple[int, bytes]:
        limit = _ANSWER_BYTES + self._vocab * _ENTRY_BYTES
        timeout = max(1e-3, until - time.monotonic())
        content = bytearray()
        with self._http.stream(method, path, json=body, timeout=timeout) as response:
            for block in response.iter_bytes():
                content += block
                if time.monotonic() > until:  # the timeout is for each block: a trickle never ends
                    raise httpx.ReadTimeout("the deadline has passed")
                if len(content) > limit:
                    raise self._error(f"{doing}: an answer of more than {limit} bytes", _ANOTHER, path)
        return response.status_code, bytes(content)

    def _wrong_model(self, doing: str, found: str) -> EngcmpError:
        return self._error(f"{doing}: the server serves the model {found!r}, not {self._model!r}", _ANOTHER)

    def _error(self, what: str, remedy: str, path: str = "") -> EngcmpError:
        return EngcmpError(f"{self._label}: {what}", where=self._where(path), remedy=remedy)

    def _where(self, path: str) -> str:
        return f"{self._address}{path}"


def beginning(content: bytes, key: str | None) -> str:
    """The first characters of an answer, in one line and without the key it was asked with."""
    text = " ".join(without_key(content, key)[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").split())
    return repr(text[:_SHOWN_CHARACTERS]) if text else "nothing"


def logged_settings(log: Path) -> dict[str, Any]:
    """The settings that the server does not state over HTTP, from its log, which is written by a thread of its own."""
    until = time.monotonic() + _LOG_WAIT_S
    while True:
        text = log.read_bytes()
        found = {name: pattern.search(text) for name, pattern in _LOGGED.items()}
        if all(found.values()) or time.monotonic() > until:
            break
        time.sleep(_LOG_POLL_S)
    unknown = {"missing": "neither the server's answers nor its log state it"}
    return {name: int(match[1]) if match else unknown for name, match in found.items()}
