"""SGLang's HTTP server: what its `/generate` is asked, and what its answers must be to count as rows of a prompt.

Entry i of the input's log-probabilities predicts token i, so row r of a window is entry r + 1; the first one is null. The conversion is
made here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from engcmp_resources.engines import _proofs
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
from engcmp_resources.engines._vllm_http import NO_DECODE
from engcmp_resources.engines.servers import LIGHT_K, Capabilities, Endpoint, LightRows, RowsTaken, ScorePath
from engcmp_resources.errors import EngcmpError

_GENERATE = "/generate"
_ENTRY_BYTES = 256
_MOST_BYTES = 4 << 30
_MASS_TOLERANCE = 1e-3
_Entry = tuple[float | None, int, str | None]


class _Meta(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int | None = None
    input_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    input_token_ids_logprobs: list[list[_Entry] | None] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None


class _Answer(msgspec.Struct):
    meta_info: _Meta
    output_ids: list[int] | None = None


class SglangApi:
    """SGLang at `address`; see `ApiClient`. Rows over the whole vocabulary come by naming every id of it."""

    def __init__(self, address: str, *, key: str | None, label: str, model: str, vocab: int) -> None:
        self._http = Http(address, key=key, label=label)
        self._label, self._model, self._vocab = label, model, vocab

    def close(self) -> None:
        self._http.close()

    @property
    def endpoint(self) -> Endpoint:
        return self._http.endpoint(self._model)

    def first_token(self, until: float) -> None:
        doing = "asking for a first token"
        models = self._http.ask(dict[str, Any], "/v1/models", None, doing, until).get("data") or []
        names = [str(model.get("id")) for model in models]
        if self._model not in names:
            raise self._http.error(
                f"{doing}: the server serves the model {', '.join(names)!r}, not {self._model!r}",
                f"name the model as the server serves it, or end the other server; {OTHERS}",
            )
        answer = self._generate(_proofs.probe_tokens(None, self._vocab)[:4], doing, until)
        if answer.meta_info.completion_tokens != 1:
            raise self._http.error(
                f"{doing}: {answer.meta_info.completion_tokens} tokens came", UNKNOWN_FORM, _GENERATE
            )

    def tokenize(self, text: str) -> list[int] | None:
        return self._tokenize(text, time.monotonic() + 60.0)

    def prove(self, until: float) -> tuple[Capabilities, dict[str, Any]]:
        doing, evidence = "proving what the server can do", dict[str, str]()
        routes = ("/v1/models", "/model_info", "/server_info")
        stated = {path: self._http.found(path, None, doing, until) for path in routes}
        metrics = "sglang:" in (self._http.text("/metrics", doing, until) or "")
        evidence["metrics"] = "sglang: counters at /metrics" if metrics else "none at /metrics: --enable-metrics is off"
        asked = {text: self._tokenize(text, until) for text in PROBE_TEXTS}
        tokenizer = {text: ids for text, ids in asked.items() if ids is not None}  # some refuse the empty text
        has_tokenizer = _proofs.probe_text() in tokenizer
        evidence["tokenizer"] = "POST /tokenize" if has_tokenizer else "no ids from POST /tokenize"
        tokens = _proofs.probe_tokens(tokenizer.get(_proofs.probe_text()), self._vocab)
        found, said = self._prove_prompt(tokens, doing, until)
        plain = self._generate(tokens[:4], doing, until)
        cached, named = plain.meta_info.cached_tokens is not None, plain.output_ids is not None
        evidence |= said | {
            "decode_logprobs": NO_DECODE,
            "token_ids": "output_ids" if named else "no output_ids in the answer",
            "cached_tokens": "meta_info.cached_tokens" if cached else "not in meta_info",
        }
        continuous = self._streams_counts(tokens[:4], doing, until)
        evidence["continuous_usage"] = "counts on each chunk" if continuous else "not on each chunk"
        chat = {name: self._rendered(switch, doing, until) for name, switch in (("on", True), ("off", False))}
        switch = None not in chat.values() and chat["on"] != chat["off"]
        evidence["thinking_switch"] = (
            f"prompts of a chat with the switch on and off are {'not ' if switch else ''}the same"
        )
        proved = Capabilities(
            prompt_logprobs=found, rows=("prefill",) if found == "full" else (), token_ids=named,
            continuous_usage=continuous, cached_tokens=cached, metrics=metrics, tokenizer=has_tokenizer,
            thinking_switch=switch, evidence=evidence,
        )  # fmt: skip
        facts: dict[str, Any] = {"stated": stated, "kv_pool": _kv_pool(stated["/server_info"]), "thinking": chat}
        facts["template"] = {"messages": list(PROBE_MESSAGES), "prompt": chat["on"]}
        if has_tokenizer:
            facts["tokenizer"] = tokenizer
        return proved, facts

    def light_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], *, deadline_s: float
    ) -> LightRows:
        self._check(path, window_id, tokens, positions)
        started, until = time.perf_counter(), time.monotonic() + deadline_s
        meta = self._scored(tokens, f"scoring window {window_id}", until, top_logprobs_num=LIGHT_K)
        found = [self._row(meta.input_top_logprobs, tokens, r, window_id, least=LIGHT_K) for r in positions]
        seconds = time.perf_counter() - started
        following = [self._following(meta, tokens, position, window_id) for position in positions]
        # The token itself stands beside the top, not in it: it may share the last place with a higher id.
        rows = [
            (np.append(ids, tokens[r + 1]), np.append(values, value)) if tokens[r + 1] not in ids else (ids, values)
            for (ids, values), value, r in zip(found, following, positions, strict=True)
        ]
        top = [sorted_top(ids, values) for ids, values in rows]
        return LightRows(
            np.stack([ids[order] for (ids, _), order in zip(rows, top, strict=True)]),
            np.stack([values[order] for (_, values), order in zip(rows, top, strict=True)]),
            np.array(following), seconds, _notes(meta),
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
        if (needed := len(tokens) * self._vocab * _ENTRY_BYTES) > _MOST_BYTES:
            raise self._http.error(
                f"window {window_id}: its full rows as JSON take up to {needed / 1e9:.0f} GB in one answer",
                "choose a light panel, or shorter windows",
            )
        started, until = time.perf_counter(), time.monotonic() + deadline_s
        every = list(range(self._vocab))
        meta = self._scored(tokens, f"scoring window {window_id}", until, token_ids_logprob=every)
        row = np.empty(self._vocab, dtype="<f4")
        with rows_file(out) as file:
            for position in positions:
                ids, values = self._row(meta.input_token_ids_logprobs, tokens, position, window_id, least=self._vocab)
                if np.unique(ids).size != self._vocab:
                    raise self._bad_row(window_id, position, f"{np.unique(ids).size} ids of {self._vocab}")
                row[ids] = values
                file.write(row.tobytes())
        return RowsTaken(len(positions), time.perf_counter() - started, _notes(meta))

    def _check(self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> None:
        if path != "prefill":
            raise self._http.error(f"window {window_id}: no rows of the path {path}: {NO_DECODE}", "score by prefill")
        check_window(self._label, window_id, tokens, positions, self._vocab, rows=len(tokens) - 1)

    def _body(self, tokens: Sequence[int], temperature: float = 1.0, **asked: Any) -> dict[str, Any]:
        sampling = {"max_new_tokens": 1, "temperature": temperature, "top_p": 1.0, "top_k": -1} | asked.pop(
            "sampling", {}
        )
        return {"input_ids": [int(token) for token in tokens], "sampling_params": sampling} | asked

    def _generate(self, tokens: Sequence[int], doing: str, until: float, **asked: Any) -> _Answer:
        width = self._vocab if "token_ids_logprob" in asked else LIGHT_K + 1
        most = (1 << 22) + len(tokens) * width * _ENTRY_BYTES
        answer = self._http.ask(_Answer, _GENERATE, self._body(tokens, **asked), doing, until, most_bytes=most)
        if answer.meta_info.prompt_tokens != len(tokens):
            raise self._http.error(
                f"{doing}: {len(tokens)} tokens were sent and the server took {answer.meta_info.prompt_tokens}",
                "send ids, and let the server add none and cut none", _GENERATE,
            )  # fmt: skip
        return answer

    def _scored(self, tokens: Sequence[int], doing: str, until: float, **asked: Any) -> _Meta:
        """A prompt scored from its first token on, anew and as it was sent."""
        meta = self._generate(tokens, doing, until, return_logprob=True, logprob_start_len=0, **asked).meta_info
        if meta.input_token_logprobs is None:
            raise self._http.error(
                f"{doing}: the server gives no log-probabilities of the prompt", UNKNOWN_FORM, _GENERATE
            )
        echoed = [token for _, token, _ in meta.input_token_logprobs]
        if echoed != list(tokens):
            raise self._http.error(
                f"{doing}: {len(echoed)} entries of prompt log-probabilities for {len(tokens)} tokens, the first ids "
                f"{echoed[:3]} for {list(tokens[:3])}",
                "use a version that scores the whole prompt as it was sent", _GENERATE,
            )  # fmt: skip
        if meta.cached_tokens:
            raise self._http.error(
                f"{doing}: {meta.cached_tokens} of {len(tokens)} tokens came from the prefix cache: such rows may be "
                "another request's",
                "start the server with --disable-radix-cache for captures", _GENERATE,
            )  # fmt: skip
        return meta

    def _row(
        self, entries: Sequence[list[_Entry] | None] | None, tokens: Sequence[int], position: int, window_id: str, *, least: int
    ) -> tuple[npt.NDArray[np.int64], Floats]:  # fmt: skip
        if entries is None or len(entries) != len(tokens):
            count = "none" if entries is None else f"{len(entries)}"
            raise self._bad_row(window_id, position, f"{count} entries for {len(tokens)} tokens")
        row = entries[position + 1] or []
        ids = np.array([token for _, token, _ in row], dtype=np.int64)
        values = np.array([np.nan if value is None else value for value, _, _ in row], dtype=np.float64)
        refuse_unusable(self._label, window_id, position, values, self._http.address)
        if ids.size != least or ids.min() < 0 or ids.max() >= self._vocab:
            raise self._bad_row(window_id, position, f"{ids.size} ids, {least} were asked for")
        mass = float(np.exp(values).sum())
        if mass > 1 + _MASS_TOLERANCE or (least == self._vocab and mass < 1 - _MASS_TOLERANCE):
            raise self._bad_row(window_id, position, f"its probabilities sum to {mass:.6g}")
        return ids, values

    def _following(self, meta: _Meta, tokens: Sequence[int], position: int, window_id: str) -> float:
        assert meta.input_token_logprobs is not None  # noqa: S101 - `_scored` gives none without
        value = meta.input_token_logprobs[position + 1][0]
        if value is None or np.isnan(value):
            raise self._bad_row(
                window_id, position, f"no log-probability of the window's next token {tokens[position + 1]}"
            )
        return value

    def _prove_prompt(self, tokens: list[int], doing: str, until: float) -> tuple[Any, dict[str, str]]:
        """How many log-probabilities a prompt's row has, and how it was proved."""
        asked = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": LIGHT_K}
        status, headers, content = self._http.exchange(_GENERATE, self._body(tokens, **asked), doing, until)
        if status == httpx.codes.TOO_MANY_REQUESTS:
            self._http.refuse_status(status, headers, content, doing, _GENERATE)
        if status != httpx.codes.OK:  # a dead server does not answer the requests after this one either
            return 0, {"prompt_logprobs": f"refused with status {status}; {content[:200].decode(errors='replace')}"}
        entries = self._http.parsed(_Answer, content, doing, _GENERATE).meta_info.input_top_logprobs
        if entries is None or len(entries) != len(tokens):
            count = "none" if entries is None else str(len(entries))
            return 0, {"prompt_logprobs": f"{count} for a prompt of {len(tokens)} tokens: they cannot be used"}

        def score(ids: Sequence[int], temperature: float) -> Floats:
            meta = self._scored(ids, doing, until, top_logprobs_num=LIGHT_K, temperature=temperature)
            rows = [self._row(meta.input_top_logprobs, ids, r, "probe", least=LIGHT_K) for r in range(len(ids) - 1)]
            return np.stack([np.sort(values)[::-1] for _, values in rows])

        error = self._proof_error()
        shown = [
            f"{LIGHT_K} a row for a prompt of {len(tokens)} tokens",
            _proofs.refuse_stale(error, tokens, self._vocab, score),
            _proofs.refuse_processed(error, tokens, score),
            _proofs.refuse_shifted(error, tokens, score(tokens, _proofs.WARM), self._after(doing, until)),
        ]
        if self._gives_all(tokens[:2], doing, until):
            return "full", {
                "prompt_logprobs": "; ".join([f"all {self._vocab} values of a row, by naming all ids", *shown[1:]])
            }
        return LIGHT_K, {"prompt_logprobs": "; ".join(shown), "rows": "naming all ids gives no whole rows"}

    def _proof_error(self) -> Callable[[str, str], EngcmpError]:
        return lambda what, remedy: self._http.error(f"the running server's {what}", remedy, _GENERATE)

    def _after(self, doing: str, until: float) -> Callable[[Sequence[int]], Floats | None]:
        def ask(tokens: Sequence[int]) -> Floats | None:
            asked = {"return_logprob": True, "top_logprobs_num": LIGHT_K}
            top = self._generate(tokens, doing, until, **asked).meta_info.output_top_logprobs
            values = np.array([value for value, _, _ in (top[0] if top else None) or [] if value is not None])
            return np.sort(values)[::-1][:LIGHT_K] if values.size >= LIGHT_K else None

        return ask

    def _gives_all(self, tokens: list[int], doing: str, until: float) -> bool:
        try:
            meta = self._scored(tokens, doing, until, token_ids_logprob=list(range(self._vocab)))
            ids, _ = self._row(meta.input_token_ids_logprobs, tokens, 0, "probe", least=self._vocab)
        except EngcmpError:
            return False
        return np.unique(ids).size == self._vocab

    def _tokenize(self, text: str, until: float) -> list[int] | None:
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        answer = self._http.found("/tokenize", body, "tokenizing", until)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        return [int(token) for token in ids] if isinstance(ids, list) else None

    def _streams_counts(self, tokens: list[int], doing: str, until: float) -> bool:
        body = self._body(tokens, stream=True, sampling={"max_new_tokens": 4, "ignore_eos": True})
        status, _, content = self._http.exchange(_GENERATE, body, doing, until)
        chunks = [text for text in stream_data(content) if text != "[DONE]"]
        return status == httpx.codes.OK and bool(chunks) and all('"completion_tokens"' in text for text in chunks)

    def _rendered(self, thinking: bool, doing: str, until: float) -> dict[str, Any] | None:
        """The number of tokens of a chat's prompt with thinking switched on or off."""
        switch = {"chat_template_kwargs": {"enable_thinking": thinking}}
        body: dict[str, Any] = {"model": self._model, "messages": list(PROBE_MESSAGES), "max_tokens": 1} | switch
        answer = self._http.found("/v1/chat/completions", body, doing, until)
        if not isinstance(answer, dict) or not isinstance(answer.get("usage"), dict):
            return None
        return {"prompt_tokens": answer["usage"].get("prompt_tokens"), "how": "/v1/chat/completions"}

    def _bad_row(self, window_id: str, position: int, what: str) -> EngcmpError:
        return self._http.error(f"window {window_id}, row {position}: {what}", UNKNOWN_FORM, _GENERATE)


def _kv_pool(info: Any) -> dict[str, Any]:
    """Tokens in the pool and the longest request, as /server_info states them."""
    stated = info if isinstance(info, Mapping) else {}
    inner = stated.get("internal_states")
    places = [stated, *[one for one in inner or [] if isinstance(one, Mapping)]]
    tokens = next(
        (one["max_total_num_tokens"] for one in places if isinstance(one.get("max_total_num_tokens"), int)), None
    )
    longest = next((one["context_length"] for one in places if one.get("context_length")), None)
    if tokens is None:
        return {"max_model_len": longest, "tokens": {"missing": "/server_info does not state max_total_num_tokens"}}
    return {"max_model_len": longest, "tokens": tokens, "how": "max_total_num_tokens of /server_info"}


def _notes(meta: _Meta) -> dict[str, Any]:
    unknown = {"missing": NOT_STATED}
    return {
        "prompt_tokens": meta.prompt_tokens,
        "cached_tokens": unknown if meta.cached_tokens is None else meta.cached_tokens,
        "chunk_lengths": unknown,
        "other_requests_in_step": unknown,
    }
