"""vLLM's HTTP server: what it is asked, and what its answers must be to count as rows of a prompt.

Row r of a window is entry r + 1 of `prompt_logprobs`, whose first entry is null: the conversion is made here and nowhere else.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from engcmp_resources.engines import _proofs
from engcmp_resources.engines import _vllm_company as company
from engcmp_resources.engines._api import (
    NOT_STATED,
    OTHERS,
    PROBE_MESSAGES,
    PROBE_TEXTS,
    UNKNOWN_FORM,
    Floats,
    Http,
    check_window,
    refuse_unusable,
    rows_file,
    sorted_top,
    stream_data,
)
from engcmp_resources.engines._vllm_answers import Completion, Models, Value, has_usage
from engcmp_resources.engines._vllm_capture import WINDOW, PluginFiles, capture_name
from engcmp_resources.engines.servers import LIGHT_K, Capabilities, Endpoint, LightRows, RowsTaken, ScorePath
from engcmp_resources.errors import EngcmpError

NO_DECODE = (
    "this API decodes only tokens that it has chosen itself: given a prompt it computes all its rows in prefill, so no row of a "
    "window comes from the decode path"
)
_COMPLETIONS = "/v1/completions"
_NO_PROBABILITY = -9999.0  # what the server writes for the logarithm of 0
_FULL_ENTRY_BYTES = 160
_LIGHT_ENTRY_BYTES = 256
_MOST_BYTES = 4 << 30
_LADDER = (LIGHT_K, 5, 1)
_MASS_TOLERANCE = 1e-3
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STREAMED_TOKENS = 4


class VllmApi:
    """vLLM at `address`; see `ApiClient`. `captures` is where its capture plugin writes: full rows then come from there, each window
    read beside `beside` other requests.
    """

    def __init__(
        self,
        address: str,
        *,
        key: str | None,
        label: str,
        model: str,
        vocab: int,
        captures: Path | None = None,
        beside: int = 0,
    ) -> None:
        self._beside = beside
        self._http = Http(address, key=key, label=label)
        self._label, self._model, self._vocab = label, model, vocab
        self._plugin = None if captures is None else PluginFiles(captures, vocab)

    def close(self) -> None:
        self._http.close()

    @property
    def endpoint(self) -> Endpoint:
        return self._http.endpoint(self._model)

    def first_token(self, until: float) -> None:
        doing = "asking for a first token"
        names = [str(model.get("id")) for model in self._models(doing, until)]
        if self._model not in names:
            raise self._wrong_model(doing, ", ".join(names))
        tokens = _proofs.probe_tokens(None, self._vocab)[:4]
        answer = self._complete(tokens, doing, until)
        if answer.usage.completion_tokens != 1:
            raise self._http.error(f"{doing}: {answer.usage.completion_tokens} tokens came", UNKNOWN_FORM, _COMPLETIONS)

    def tokenize(self, text: str) -> list[int] | None:
        return self._tokenize(text, time.monotonic() + 60.0)

    def prove(self, until: float) -> tuple[Capabilities, dict[str, Any]]:
        doing, evidence = "proving what the server can do", dict[str, str]()
        stated: dict[str, Any] = {"/version": self._http.found("/version", None, doing, until)}
        stated["/v1/models"] = {"data": self._models(doing, until)}
        cache_info = self._cache_info(doing, until)
        if cache_info:
            stated["/metrics cache_config_info"] = cache_info
        evidence["metrics"] = "/metrics names vllm:cache_config_info" if cache_info else "no such line at /metrics"
        asked = {text: self._tokenize(text, until) for text in PROBE_TEXTS}
        tokenizer = {text: ids for text, ids in asked.items() if ids is not None}  # some refuse the empty text
        has_tokenizer = _proofs.probe_text() in tokenizer
        evidence["tokenizer"] = "POST /tokenize" if has_tokenizer else "no ids from POST /tokenize"
        tokens = _proofs.probe_tokens(tokenizer.get(_proofs.probe_text()), self._vocab)
        found, said = self._prove_prompt(tokens, doing, until)
        if self._plugin is not None:
            said["rows"] = self._prove_plugin(self._plugin, tokens, doing, until)
        echoed = self._complete(tokens[:4], doing, until).choices[0]
        cached = self._complete(tokens, doing, until).usage.prompt_tokens_details is not None
        evidence |= said | {
            "decode_logprobs": NO_DECODE,
            "token_ids": "return_token_ids gives those of prompt and reply"
            if echoed.token_ids
            else "return_token_ids: none",
            "cached_tokens": "usage.prompt_tokens_details"
            if cached
            else "not in usage: --enable-prompt-tokens-details is off",
        }
        continuous = self._streams_usage(tokens[:4], doing, until)
        evidence["continuous_usage"] = "usage on each chunk" if continuous else "not on each chunk"
        chat = {name: self._rendered(switch, doing, until) for name, switch in (("on", True), ("off", False))}
        switch = None not in chat.values() and chat["on"] != chat["off"]
        evidence["thinking_switch"] = (
            f"prompts of a chat with the switch on and off are {'not ' if switch else ''}the same"
        )
        proved = Capabilities(
            prompt_logprobs=found, rows=("prefill",) if found == "full" or self._plugin else (),
            token_ids=bool(echoed.token_ids),
            continuous_usage=continuous, cached_tokens=cached, metrics=bool(cache_info), tokenizer=has_tokenizer,
            thinking_switch=switch, evidence=evidence,
        )  # fmt: skip
        facts: dict[str, Any] = {"stated": stated, "kv_pool": self._kv_pool(stated, cache_info), "thinking": chat}
        facts["template"] = {"messages": list(PROBE_MESSAGES), "prompt": chat["on"]}
        if has_tokenizer:
            facts["tokenizer"] = tokenizer
        return proved, facts

    def light_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], *, deadline_s: float
    ) -> LightRows:
        self._check(path, window_id, tokens, positions)
        started = time.perf_counter()
        doing = f"scoring window {window_id}"
        answer = self._complete(tokens, doing, time.monotonic() + deadline_s, prompt_logprobs=LIGHT_K)
        rows = list(self._prompt_rows(answer, tokens, positions, LIGHT_K, window_id))
        seconds = time.perf_counter() - started
        top = [sorted_top(ids, values) for ids, values in rows]
        following = [values[ids == tokens[r + 1]][0] for (ids, values), r in zip(rows, positions, strict=True)]
        return LightRows(
            np.stack([ids[order] for (ids, _), order in zip(rows, top, strict=True)]),
            np.stack([values[order] for (_, values), order in zip(rows, top, strict=True)]),
            np.array(following), seconds, self._notes(answer),
        )  # fmt: skip

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
        self._check(path, window_id, tokens, positions)
        if self._plugin is not None:
            return self._captured(self._plugin, window_id, tokens, positions, out=out, deadline_s=deadline_s)
        if (needed := len(tokens) * self._vocab * _FULL_ENTRY_BYTES) > _MOST_BYTES:
            raise self._http.error(
                f"window {window_id}: its full rows as JSON take some {needed / 1e9:.0f} GB in one answer",
                "capture full rows by the plugin, choose a light panel, or shorter windows",
            )
        started = time.perf_counter()
        answer = self._complete(
            tokens, f"scoring window {window_id}", time.monotonic() + deadline_s, prompt_logprobs=-1
        )
        row = np.empty(self._vocab, dtype="<f4")
        with rows_file(out) as file:
            for (ids, values), position in zip(
                self._prompt_rows(answer, tokens, positions, self._vocab, window_id), positions, strict=True
            ):
                if ids.size != self._vocab:
                    raise self._bad_row(window_id, position, f"{ids.size} values for {self._vocab} tokens")
                row[ids] = values
                file.write(row.tobytes())
        return RowsTaken(len(positions), time.perf_counter() - started, self._notes(answer))

    def _captured(
        self,
        plugin: PluginFiles,
        window_id: str,
        tokens: Sequence[int],
        positions: Sequence[int],
        *,
        out: Path | None,
        deadline_s: float,
    ) -> RowsTaken:
        """The rows that the plugin wrote of one request, held against that request's own answer; without `out` only checked."""
        doing, until = f"capturing window {window_id}", time.monotonic() + deadline_s
        more = {"max_tokens": company.COMPANION_TOKENS, "min_tokens": company.COMPANION_TOKENS, "ignore_eos": True}
        other = self._body(_proofs.probe_tokens(None, self._vocab)[:4], **more)
        for _ in range(company.TURNS):
            started, name = time.perf_counter(), capture_name(window_id)
            asked = {"prompt_logprobs": 1, "vllm_xargs": {WINDOW: name}}
            with company.in_company(self._http, _COMPLETIONS, [other] * self._beside, doing, until):
                answer = self._complete(tokens, doing, until, **asked)
            rows = self._prompt_rows(answer, tokens, range(len(tokens) - 1), 1, window_id)
            said = [
                float(values[ids == following][0]) for (ids, values), following in zip(rows, tokens[1:], strict=True)
            ]
            notes = self._notes(answer) | plugin.take(name, tokens, said, positions, out)
            if company.all_in_company(notes, self._beside):
                return RowsTaken(len(positions), time.perf_counter() - started, notes)
        raise company.never_in_company(self._label, window_id, self._beside)

    def _prove_plugin(self, plugin: PluginFiles, tokens: list[int], doing: str, until: float) -> str:
        """How it was proved that the plugin gives the rows of an answer. Raises EngcmpError where it does not."""
        deadline_s = max(1e-3, until - time.monotonic())
        taken = self._captured(plugin, "probe", tokens, [0], out=None, deadline_s=deadline_s)
        apart = taken.notes["largest_difference_from_api_nats"]
        return f"the capture plugin wrote the {len(tokens) - 1} rows of a probe, {apart:.3g} nats from the API at most"

    def _models(self, doing: str, until: float) -> list[dict[str, Any]]:
        """What is served: without times, permissions and where the files lie."""
        models = self._http.ask(Models, "/v1/models", None, doing, until).data
        return [
            {name: model[name] for name in ("id", "max_model_len", "owned_by") if name in model} for model in models
        ]

    def _check(self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> None:
        if path != "prefill":
            raise self._http.error(f"window {window_id}: no rows of the path {path}: {NO_DECODE}", "score by prefill")
        check_window(self._label, window_id, tokens, positions, self._vocab, rows=len(tokens) - 1)

    def _complete(self, tokens: Sequence[int], doing: str, until: float, **asked: Any) -> Completion:
        """One token after `tokens`, whatever else is asked for. The prompt must have been taken as it was sent, and anew."""
        body = self._body(tokens, **asked)
        most = (1 << 22) + len(tokens) * _LIGHT_ENTRY_BYTES * (LIGHT_K + 1)
        if asked.get("prompt_logprobs") == -1:
            most = (1 << 22) + len(tokens) * self._vocab * _LIGHT_ENTRY_BYTES
        answer = self._http.ask(Completion, _COMPLETIONS, body, doing, until, most_bytes=most)
        self._check_answer(answer, tokens, doing)
        return answer

    def _body(self, tokens: Sequence[int], **asked: Any) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": [int(token) for token in tokens],
            "max_tokens": 1,
            # At temperature 1 without cuts, processed values are the raw ones; the checkpoint's own defaults are not.
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            # No seed: the sampled token is not used, and 0.32.0 for the CPU ends at a seeded prompt that takes several steps.
            "return_token_ids": True,
            # Its own salt: no request finds what another has left in the prefix cache.
            "cache_salt": secrets.token_hex(16),
        } | asked

    def _check_answer(self, answer: Completion, tokens: Sequence[int], doing: str) -> None:
        if answer.model != self._model:
            raise self._wrong_model(doing, answer.model)
        if len(answer.choices) != 1:
            raise self._http.error(f"{doing}: {len(answer.choices)} choices", UNKNOWN_FORM, _COMPLETIONS)
        echoed = answer.choices[0].prompt_token_ids
        if answer.usage.prompt_tokens != len(tokens) or (echoed is not None and echoed != list(tokens)):
            first = f", beginning with {echoed[:3]} for {list(tokens[:3])}" if echoed else ""
            raise self._http.error(
                f"{doing}: {len(tokens)} tokens were sent and the server took {answer.usage.prompt_tokens}{first}",
                "send ids, and let the server add none and cut none",
                _COMPLETIONS,
            )
        cached = answer.usage.prompt_tokens_details.cached_tokens if answer.usage.prompt_tokens_details else None
        if cached:
            raise self._http.error(
                f"{doing}: {cached} of {len(tokens)} tokens came from the prefix cache: such rows may be another request's",
                "start the server without prefix caching for captures", _COMPLETIONS,
            )  # fmt: skip

    def _prompt_rows(
        self, answer: Completion, tokens: Sequence[int], positions: Sequence[int], k: int, window_id: str
    ) -> Iterator[tuple[npt.NDArray[np.int64], Floats]]:
        """Ids and log-probabilities of each row, as they came. Raises EngcmpError for what is no row of this window."""
        entries = answer.choices[0].prompt_logprobs
        if entries is None:
            raise self._http.error(
                f"window {window_id}: the server gives no log-probabilities of the prompt", UNKNOWN_FORM, _COMPLETIONS
            )
        if len(entries) != len(tokens) or bytes(entries[0]).strip() != b"null":
            raise self._http.error(
                f"window {window_id}: {len(entries)} entries of prompt log-probabilities for {len(tokens)} tokens, "
                f"the first {'null' if bytes(entries[0]).strip() == b'null' else 'not null'}",
                "use a version that scores the whole prompt", _COMPLETIONS,
            )  # fmt: skip
        for position in positions:
            row = self._http.parsed(dict[int, Value], bytes(entries[position + 1]), f"row {position}", _COMPLETIONS)
            ids = np.fromiter(row, dtype=np.int64, count=len(row))
            values = np.array([np.nan if v.logprob is None else v.logprob for v in row.values()], dtype=np.float64)
            values[values <= _NO_PROBABILITY] = -np.inf
            self._check_row(window_id, position, ids, values, following=tokens[position + 1], k=k)
            yield ids, values

    def _check_row(
        self, window_id: str, position: int, ids: npt.NDArray[np.int64], values: Floats, *, following: int, k: int
    ) -> None:
        refuse_unusable(self._label, window_id, position, values, self._http.address)
        if ids.size not in (k, k + 1) or ids.min() < 0 or ids.max() >= self._vocab:
            raise self._bad_row(
                window_id, position, f"{ids.size} ids from {ids.min()} to {ids.max()}, {k} were asked for"
            )
        if following not in ids:
            raise self._bad_row(
                window_id, position, f"the window's next token {following} is not in it: is it shifted?"
            )
        mass = float(np.exp(values).sum())
        if mass > 1 + _MASS_TOLERANCE or (k == self._vocab and mass < 1 - _MASS_TOLERANCE):
            raise self._bad_row(window_id, position, f"its probabilities sum to {mass:.6g}")

    def _prove_prompt(self, tokens: list[int], doing: str, until: float) -> tuple[Any, dict[str, str]]:
        """How many log-probabilities a prompt's row has, and how it was proved."""
        refused, answer = "", None
        for k in _LADDER:
            status, headers, content = self._http.exchange(
                _COMPLETIONS, self._body(tokens, prompt_logprobs=k), doing, until
            )
            if status == httpx.codes.OK:
                answer = self._http.parsed(Completion, content, doing, _COMPLETIONS)
                break
            if status == httpx.codes.TOO_MANY_REQUESTS:
                self._http.refuse_status(status, headers, content, doing, _COMPLETIONS)
            refused = f" with status {status}; {content[:200].decode(errors='replace')}"
        if answer is None:
            return 0, {"prompt_logprobs": f"refused{refused}"}
        entries = answer.choices[0].prompt_logprobs
        if entries is None or len(entries) != len(tokens):
            count = "none" if entries is None else str(len(entries))
            return 0, {"prompt_logprobs": f"{count} for a prompt of {len(tokens)} tokens: they cannot be used"}
        self._check_answer(answer, tokens, doing)

        def score(ids: Sequence[int], temperature: float) -> Floats:
            one = self._complete(ids, doing, until, prompt_logprobs=k, temperature=temperature)
            rows = self._prompt_rows(one, ids, range(len(ids) - 1), k, "probe")
            return np.stack([np.sort(values)[::-1][:k] for _, values in rows])

        error = self._proof_error()
        shown = [
            f"{k} a row for a prompt of {len(tokens)} tokens",
            _proofs.refuse_stale(error, tokens, self._vocab, score),
            _proofs.refuse_processed(error, tokens, score),
            _proofs.refuse_shifted(error, tokens, score(tokens, _proofs.WARM), self._following(k, doing, until)),
        ]
        if self._gives_all(tokens[:2], doing, until):
            return "full", {"prompt_logprobs": "; ".join([f"all {self._vocab} values of a row", *shown[1:]])}
        return k, {"prompt_logprobs": "; ".join(shown), "rows": "more than the server's max_logprobs is refused"}

    def _proof_error(self) -> Callable[[str, str], EngcmpError]:
        return lambda what, remedy: self._http.error(f"the running server's {what}", remedy, _COMPLETIONS)

    def _following(self, k: int, doing: str, until: float) -> Callable[[Sequence[int]], Floats | None]:
        def ask(tokens: Sequence[int]) -> Floats | None:
            top = self._complete(tokens, doing, until, logprobs=k, return_tokens_as_token_ids=True).choices[0].logprobs
            if top is None or not top.top_logprobs:
                return None
            values = np.array([value for value in top.top_logprobs[0].values() if value is not None])
            return np.sort(values)[::-1][:k] if values.size >= k else None

        return ask

    def _gives_all(self, tokens: list[int], doing: str, until: float) -> bool:
        body, most = self._body(tokens, prompt_logprobs=-1), (1 << 22) + len(tokens) * self._vocab * _LIGHT_ENTRY_BYTES
        status, _, content = self._http.exchange(_COMPLETIONS, body, doing, until, most_bytes=most)
        if status != httpx.codes.OK:
            return False
        answer = self._http.parsed(Completion, content, doing, _COMPLETIONS)
        ((ids, _),) = self._prompt_rows(answer, tokens, [0], self._vocab, "probe")
        return ids.size == self._vocab

    def _tokenize(self, text: str, until: float) -> list[int] | None:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        answer = self._http.found("/tokenize", body, "tokenizing", until)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        return [int(token) for token in ids] if isinstance(ids, list) else None

    def _streams_usage(self, tokens: list[int], doing: str, until: float) -> bool:
        asked = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        body = self._body(tokens, max_tokens=_STREAMED_TOKENS, min_tokens=_STREAMED_TOKENS, **asked)
        status, _, content = self._http.exchange(_COMPLETIONS, body, doing, until)
        chunks = [text for text in stream_data(content) if text != "[DONE]"]
        return status == httpx.codes.OK and bool(chunks) and all(has_usage(text) for text in chunks)

    def _rendered(self, thinking: bool, doing: str, until: float) -> dict[str, Any] | None:
        """The prompt of a chat with thinking switched on or off: its ids and their number, or the number alone."""
        switch = {"chat_template_kwargs": {"enable_thinking": thinking}}
        body: dict[str, Any] = {"model": self._model, "messages": list(PROBE_MESSAGES)} | switch
        answer = self._http.found("/v1/chat/completions/render", body, doing, until)
        ids = answer.get("token_ids") or answer.get("prompt_token_ids") if isinstance(answer, dict) else None
        if isinstance(ids, list):
            return {"prompt_tokens": len(ids), "token_ids": ids, "how": "/v1/chat/completions/render"}
        answer = self._http.found(
            "/v1/chat/completions", body | {"max_tokens": 1, "return_token_ids": True}, doing, until
        )
        if not isinstance(answer, dict) or not isinstance(answer.get("usage"), dict):
            return None
        ids = answer.get("prompt_token_ids")
        return {"prompt_tokens": answer["usage"].get("prompt_tokens"), "token_ids": ids, "how": "/v1/chat/completions"}

    def _cache_info(self, doing: str, until: float) -> dict[str, str]:
        line = _CACHE_INFO.search(self._http.text("/metrics", doing, until) or "")
        return dict(_LABEL.findall(line[1])) if line else {}

    def _kv_pool(self, stated: Mapping[str, Any], info: Mapping[str, str]) -> dict[str, Any]:
        models = stated["/v1/models"]["data"]
        longest = next((m.get("max_model_len") for m in models if m.get("id") == self._model), None)
        pool: dict[str, Any] = {"max_model_len": longest}
        if info.get("kv_cache_size_tokens", "").isdigit():
            return pool | {
                "tokens": int(info["kv_cache_size_tokens"]),
                "how": "kv_cache_size_tokens of cache_config_info",
            }
        blocks, size = info.get("num_gpu_blocks", ""), info.get("block_size", "")
        if blocks.isdigit() and size.isdigit():
            return pool | {"tokens": int(blocks) * int(size), "how": "num_gpu_blocks x block_size of cache_config_info"}
        return pool | {"tokens": {"missing": "cache_config_info at /metrics does not state it; see the log"}}

    def _notes(self, answer: Completion) -> dict[str, Any]:
        details, unknown = answer.usage.prompt_tokens_details, {"missing": NOT_STATED}
        stated = details.cached_tokens if details else None
        return {
            "prompt_tokens": answer.usage.prompt_tokens,
            "cached_tokens": unknown if stated is None else stated,
            "chunk_lengths": unknown,
            "other_requests_in_step": unknown,
        }

    def _bad_row(self, window_id: str, position: int, what: str) -> EngcmpError:
        return self._http.error(f"window {window_id}, row {position}: {what}", UNKNOWN_FORM, _COMPLETIONS)

    def _wrong_model(self, doing: str, found: str) -> EngcmpError:
        return self._http.error(
            f"{doing}: the server serves the model {found!r}, not {self._model!r}",
            f"name the model as the server serves it, or end the other server; {OTHERS}",
        )
