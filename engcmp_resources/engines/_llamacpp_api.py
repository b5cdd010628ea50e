"""llama-server as an `ApiClient`: rows of the decode path, one token after the other, as `llamacpp_server` takes them."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from engcmp_resources.engines._api import (
    PROBE_MESSAGES,
    PROBE_TEXTS,
    Http,
    check_window,
    light_of,
    refuse_unusable,
    rows_file,
)
from engcmp_resources.engines._llamacpp_http import BrokenOff, CompletionClient, Late
from engcmp_resources.engines.servers import Capabilities, Endpoint, LightRows, RowsTaken, ScorePath
from engcmp_resources.errors import EngcmpError

_PROVING = "proving what the server can do"
_PROOF_TOKENS = 3  # two that precede, one that is decoded alone
_TOKENIZE_S = 60.0


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Prompt(msgspec.Struct, frozen=True):
    prompt: str


class LlamaServerApi:
    """The server at `address`; see ApiClient. A deadline is for each request: a row is one request."""

    def __init__(self, address: str, *, key: str, label: str, model: str, vocab: int) -> None:
        self._label, self._vocab, self._address, self._model = label, vocab, address, model
        self._client = CompletionClient(address, key=key, label=label, model=model, vocab=vocab)
        self._http = Http(address, key=key, label=label)
        self._stated: dict[str, Any] = {}

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._http.close()

    @property
    def endpoint(self) -> Endpoint:
        return self._http.endpoint(self._model)

    def first_token(self, until: float) -> None:
        """Complete one token of the right model; raises EngcmpError, BrokenOff and Late as CompletionClient."""
        self._stated = self._client.get_ready(until - time.monotonic())

    def prove(self, until: float) -> tuple[Capabilities, dict[str, Any]]:
        """What it can do and what it states; the proof of full rows is a row that was decoded."""
        self.first_token(until)
        if self._stated["n_vocab"] != self._vocab:
            raise EngcmpError(
                f"{self._label}: rows have {self._vocab} values, the server's vocabulary {self._stated['n_vocab']}",
                where=self._address, remedy="serve the checkpoint that the protocol names",
            )  # fmt: skip
        full, how = self._proved_row(until)
        metrics = self._http.text("/metrics", _PROVING, until)
        prompts = {mode: self._prompt(mode == "on", until) for mode in ("on", "off")}
        capabilities = Capabilities(
            decode_logprobs="full" if full else 0,
            rows=("decode",) if full else (),
            token_ids=True,
            cached_tokens=True,
            metrics=metrics is not None,
            tokenizer=True,
            thinking_switch=prompts["on"] != prompts["off"],
            evidence={
                "prompt_logprobs": "the API gives none",
                "decode_logprobs": how,
                "rows": how,
                "token_ids": "a prompt of token ids was completed",
                "continuous_usage": "the API has no such option",
                "cached_tokens": "timings.cache_n of each answer",
                "metrics": "GET /metrics" if metrics is not None else "no answer from GET /metrics",
                "tokenizer": "POST /tokenize",
                "thinking_switch": "POST /apply-template with enable_thinking true and false",
            },
        )
        stated = {path: self._http.found(path, None, _PROVING, until) for path in ("/props", "/v1/models")}
        facts = {"stated": stated, "n_ctx": self._stated["n_ctx"], "kv_pool": self._kv_pool()}
        facts |= {"tokenizer": {text: self._tokens(text, until) for text in PROBE_TEXTS}}
        facts |= {"template": {"messages": list(PROBE_MESSAGES), "prompt": prompts["on"]}, "thinking": prompts}
        return capabilities, facts | {
            key: self._stated[key] for key in ("slots", "build_info", "model", "forced_token")
        }

    def tokenize(self, text: str) -> list[int] | None:
        """Token ids of `text`: markers of special tokens are read as such, none is added."""
        return self._tokens(text, time.monotonic() + _TOKENIZE_S)

    def full_rows(
        self,
        path: ScorePath,
        window_id: str,
        tokens: Sequence[int],
        positions: Sequence[int],
        out: Path,
        *,
        deadline_s: float,
    ) -> RowsTaken:
        """Log-probabilities as the server printed them, by token id: MEASURES section 1 normalises them."""
        clock = _Clock()
        with rows_file(out) as file:
            for _, row in self._decoded(path, window_id, tokens, positions, deadline_s=deadline_s, clock=clock):
                file.write(row.tobytes())
        return RowsTaken(len(positions), clock.seconds, clock.notes())

    def light_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], *, deadline_s: float
    ) -> LightRows:
        """Top 20 and actual token of the full rows that `full_rows` would write."""
        if positions and max(positions) + 1 >= len(tokens):
            raise EngcmpError(
                f"{self._label}: window {window_id}: row {max(positions)} has no next token in {len(tokens)} tokens",
                remedy="correct the window or its rows in the protocol",
            )
        clock, taken = _Clock(), []
        for position, row in self._decoded(path, window_id, tokens, positions, deadline_s=deadline_s, clock=clock):
            taken.append(light_of(row[None], np.array([tokens[position + 1]])))
        ids, values, actual = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        return LightRows(ids, values, actual, clock.seconds, clock.notes())

    def _decoded(
        self,
        path: ScorePath,
        window_id: str,
        tokens: Sequence[int],
        positions: Sequence[int],
        *,
        deadline_s: float,
        clock: _Clock,
    ) -> Generator[tuple[int, npt.NDArray[np.float32]], None, None]:
        """The rows in order. What precedes a row that does not follow the one before is processed anew."""
        self._check(path, window_id, tokens, positions)
        ids, previous = [int(token) for token in tokens], None
        for position in positions:
            if previous is None or position != previous + 1:
                doing = f"processing what precedes row {position} of window {window_id}"
                self._client.process_prefix(ids[:position], doing=doing, deadline_s=deadline_s)
            doing, started = f"decoding row {position} of window {window_id}", time.perf_counter()
            row, processed = self._client.decode_row(ids[: position + 1], doing=doing, deadline_s=deadline_s)
            clock.add(time.perf_counter() - started, processed)
            refuse_unusable(self._label, window_id, position, row, self._address)
            yield position, row
            previous = position

    def _check(self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> None:
        if path != "decode":
            raise EngcmpError(
                f"{self._label}: window {window_id}: llama-server gives no rows of the {path} path",
                where=self._address, remedy="ask for the decode path in the protocol, or use the kind llamacpp for prefill",
            )  # fmt: skip
        check_window(self._label, window_id, tokens, positions, self._vocab, rows=len(tokens))
        what = None
        if min(positions) < 1:
            what = "row 0 has no token before it that could be cached"
        elif max(positions) + 1 >= self._stated["n_ctx"]:  # the server wants room for the token that it samples
            what = f"row {max(positions)} takes {max(positions) + 2} tokens, the context holds {self._stated['n_ctx']}"
        if what is not None:
            raise EngcmpError(
                f"{self._label}: window {window_id}: {what}",
                remedy="correct the window or its decoded rows, or the context of the launch, in the protocol",
            )

    def _proved_row(self, until: float) -> tuple[bool, str]:
        token = self._stated["forced_token"] or 0
        try:
            self._client.process_prefix(
                [token] * (_PROOF_TOKENS - 1), doing=_PROVING, deadline_s=until - time.monotonic()
            )
            self._client.decode_row([token] * _PROOF_TOKENS, doing=_PROVING, deadline_s=until - time.monotonic())
        except (Late, BrokenOff):
            raise
        except EngcmpError as error:
            return False, error.what
        return True, f"a row of {self._vocab} log-probabilities was decoded as one token"

    def _prompt(self, thinking: bool, until: float) -> str | None:
        body = {"messages": list(PROBE_MESSAGES), "chat_template_kwargs": {"enable_thinking": thinking}}
        status, _, content = self._http.exchange("/apply-template", body, _PROVING, until)
        if status != httpx.codes.OK:  # a version without the route, or a model without a template
            return None
        return self._http.parsed(_Prompt, content, _PROVING, "/apply-template").prompt

    def _tokens(self, text: str, until: float) -> list[int]:
        body = {"content": text, "add_special": False, "parse_special": True}
        return list(self._http.ask(_Tokens, "/tokenize", body, "tokenizing", until).tokens)

    def _kv_pool(self) -> dict[str, Any]:
        tokens = self._stated["n_ctx"] * self._stated["slots"]
        return {
            "tokens": tokens,
            "how": "context of a slot times slots, GET /props",
            "max_model_len": self._stated["n_ctx"],
        }


class _Clock:
    """The seconds in requests for rows, and how many prompt tokens each processed."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._processed: list[int] = []

    def add(self, seconds: float, processed: int) -> None:
        self.seconds += seconds
        self._processed.append(processed)

    def notes(self) -> dict[str, Any]:
        return {
            "prompt_tokens_processed": self._processed,
            "requests_in_step": {"missing": "the server has one slot, and does not state it"},
        }
