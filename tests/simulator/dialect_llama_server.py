"""llama.cpp's server: /completion with the distribution of each token, slots that keep their tokens, timings."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from . import model as truth
from .chat import Reply, Style, TextParts
from .engine import Asked, Engine
from .exchange import Exchange, Refusal
from .model import Row, shared_prefix
from .server import Dialect

_OPEN = frozenset({"/health", "/v1/health", "/models", "/v1/models", "/"})
_NO_PROBABILITY = float(np.finfo(np.float32).min)  # what it writes for the logarithm of 0


class LlamaServer(Dialect):
    """Routes, log lines and forms of `llama-server`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.build = self.options.version or "b11549-simulated"
        self.style = Style("reasoning_content", self.build, finish_apart=True)
        self._slots: list[list[int]] = [[] for _ in range(self.options.max_seqs)]
        self.routes = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/health"): self._health,
            ("GET", "/props"): self._props,
            ("GET", "/v1/models"): self._models,
            ("GET", "/models"): self._models,
            ("GET", "/slots"): lambda exchange: exchange.send_json([{"id": one} for one in range(len(self._slots))]),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/completion"): self._completion,
            ("POST", "/v1/chat/completions"): self._chat,
        }

    def needs_key(self, path: str) -> bool:
        return path not in _OPEN

    def error(self, refusal: Refusal) -> Any:
        kind = {401: "authentication_error", 503: "unavailable_error"}.get(refusal.status, "invalid_request_error")
        kind = "server_error" if refusal.status == 500 else kind
        return {"error": {"code": refusal.status, "message": refusal.message, "type": kind}}

    def refuse_key(self, path: str) -> Refusal:
        return Refusal(401, "Invalid API Key")

    def say_started(self, address: str) -> None:
        batch = self.engine.batch_tokens()
        self.engine.say(f"llama_context: n_ctx = {self.options.context}")
        self.engine.say(f"llama_context: n_batch = {batch}")

    def say_ready(self, address: str) -> None:
        self.engine.say("main: model loaded")
        self.engine.say(f"main: server is listening on {address} - starting the main loop")

    def _refuse_while_loading(self) -> None:
        if self.engine.is_loading():
            raise Refusal(503, "Loading model")

    def _health(self, exchange: Exchange) -> None:
        self._refuse_while_loading()
        exchange.send_json({"status": "ok"})

    def _props(self, exchange: Exchange) -> None:
        self._refuse_while_loading()
        settings = {"n_ctx": self.options.context, "params": {"n_predict": -1, "temperature": 0.8}}
        answer = {
            "default_generation_settings": settings,
            "total_slots": len(self._slots),
            "model_alias": self.engine.model_name(exchange),
            "model_path": "/models/simulated.gguf",
            "chat_template": "{{ messages }}",
            "n_batch": self.engine.batch_tokens(exchange),
            "build_info": self.build,
        }
        exchange.send_json(answer)

    def _models(self, exchange: Exchange) -> None:
        meta = {
            "vocab_type": 2,
            "n_vocab": self.options.vocab,
            "n_ctx_train": self.options.context,
            "n_embd": 64,
            "n_params": self.options.vocab * 64,
            "size": self.options.vocab * 256,
        }
        name = self.engine.model_name(exchange)
        model = {"id": name, "object": "model", "created": 0, "owned_by": "llamacpp", "meta": meta}
        exchange.send_json({"object": "list", "data": [model]})

    def _tokenize(self, exchange: Exchange) -> None:
        body = exchange.body()
        special = bool(body.get("parse_special", True))
        text, bos = str(body.get("content", "")), bool(body.get("add_special", False))
        exchange.send_json({"tokens": self.engine.encode(exchange, text, parse_special=special, bos=bos)})

    def _detokenize(self, exchange: Exchange) -> None:
        exchange.send_json({"content": truth.detokenize(exchange.body().get("tokens", []), special=True)})

    def _completion(self, exchange: Exchange) -> None:
        body, engine = exchange.body(), self.engine
        self._refuse_while_loading()
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            prompt = engine.encode(exchange, prompt, parse_special=True)
        if not isinstance(prompt, list) or not prompt:
            raise Refusal(400, '"prompt" is missing or empty')
        with engine.admitted(exchange):
            prompt = engine.take_prompt(exchange, prompt)
            self._fill_slot(exchange, body, prompt)
            asked = self._asked(body, prompt)
            if body.get("stream"):
                self._stream(exchange, body, asked)
            else:
                self._whole(exchange, body, asked)

    def _fill_slot(self, exchange: Exchange, body: dict[str, Any], prompt: list[int]) -> None:
        engine, slot = self.engine, max(0, int(body.get("id_slot", -1))) % len(self._slots)
        held = self._slots[slot] if body.get("cache_prompt", True) else []
        cached = max(0, min(shared_prefix(held, prompt), len(prompt) - 1))  # one token is always processed
        if exchange.fault("cache_always_hits"):
            cached = max(0, len(prompt) - 1)
        self._slots[slot] = list(prompt)
        exchange.record["cached_tokens"] = cached
        engine.count(prompt_tokens=len(prompt), cache_hits=cached)

    def _asked(self, body: dict[str, Any], prompt: list[int]) -> Asked:
        most, room = int(body.get("n_predict", -1)), self.options.context - len(prompt)
        return Asked(
            prompt,
            room if most < 0 else min(most, room),
            temperature=float(body.get("temperature", 0.8)),
            top_k=int(body.get("top_k", 40)),
            top_p=float(body.get("top_p", 0.95)),
            seed=body.get("seed"),
            ignore_eos=bool(body.get("ignore_eos")),
            bias={int(token): float(value) for token, value in body.get("logit_bias") or []},
            wants_rows=int(body.get("n_probs", 0)) > 0,
        )

    def _whole(self, exchange: Exchange, body: dict[str, Any], asked: Asked) -> None:
        tokens: list[int] = []
        probabilities: list[dict[str, Any]] = []
        parts, text = TextParts(thinking=False), ""
        for step in self.engine.steps(exchange, asked):
            text += parts.read(step.tokens, last=step.finish is not None).get("content", "")
            probabilities += self._distributions(exchange, body, asked, tokens, step.tokens)
            tokens += step.tokens
        answer = {"index": 0, "content": text, "tokens": tokens if body.get("return_tokens") else [], "stop": True}
        answer |= self._last_fields(exchange, body, len(tokens))
        if asked.wants_rows:
            answer["completion_probabilities"] = probabilities
        exchange.hold(tokens)
        exchange.send_json(answer)

    def _stream(self, exchange: Exchange, body: dict[str, Any], asked: Asked) -> None:
        parts = TextParts(thinking=False)
        before: list[int] = []
        exchange.start_stream()
        for step in self.engine.steps(exchange, asked):
            text = parts.read(step.tokens, last=step.finish is not None).get("content", "")
            chunk: dict[str, Any] = {"index": 0, "content": text, "tokens": step.tokens, "stop": False}
            if asked.wants_rows:
                chunk["completion_probabilities"] = self._distributions(exchange, body, asked, before, step.tokens)
            exchange.event(chunk, "tokens", step.tokens)
            before += step.tokens
        last = {"index": 0, "content": "", "tokens": [], "stop": True, **self._last_fields(exchange, body, len(before))}
        exchange.event(last, "finish")
        exchange.end_stream()

    def _distributions(
        self, exchange: Exchange, body: dict[str, Any], asked: Asked, before: list[int], tokens: list[int]
    ) -> list[dict[str, Any]]:
        """The distribution that each of these tokens was taken from, before all samplers, most likely first."""
        if not asked.wants_rows or exchange.fault("prompt_logprobs_missing"):
            return []
        if refused := exchange.fault("prompt_logprobs_refused"):
            raise Refusal(refused["status"], "no probabilities")
        whole = [*asked.prompt, *before, *tokens]
        first = len(asked.prompt) + len(before) - 1
        rows = self.engine.score(
            exchange, whole, range(first, first + len(tokens)), temperature=asked.temperature, decoded=True
        )
        count = int(body["n_probs"])
        return [_distribution(row, token, count) for row, token in zip(rows, tokens, strict=True)]

    def _last_fields(self, exchange: Exchange, body: dict[str, Any], count: int) -> dict[str, Any]:
        record, cached = exchange.record, self.engine.told_cached(exchange)
        prompt = len(record["prompt_ids"])
        fresh = prompt - cached
        spent_ms = max((time.monotonic_ns() - record["received_ns"]) / 1e6, 1e-3)
        timings = {
            "cache_n": cached,
            "prompt_n": fresh,
            "prompt_ms": spent_ms,
            "prompt_per_token_ms": spent_ms / max(fresh, 1),
            "prompt_per_second": 1e3 * fresh / spent_ms,
            "predicted_n": count,
            "predicted_ms": spent_ms,
            "predicted_per_token_ms": spent_ms / max(count, 1),
            "predicted_per_second": 1e3 * count / spent_ms,
        }
        return {
            "id_slot": max(0, int(body.get("id_slot", -1))),
            "model": self.engine.model_name(exchange),
            "tokens_predicted": count,
            "tokens_evaluated": prompt,
            "generation_settings": {"n_predict": body.get("n_predict", -1), "n_ctx": self.options.context},
            "truncated": False,
            "stop_type": {"stop": "eos", "length": "limit"}.get(record["finish_reason"], "none"),
            "stopping_word": "",
            "tokens_cached": prompt + count - 1,
            "timings": timings,
        }

    def _chat(self, exchange: Exchange) -> None:
        body, engine = exchange.body(), self.engine
        self._refuse_while_loading()
        thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        with engine.admitted(exchange):
            prompt = engine.encode_chat(exchange, body.get("messages"), thinking=bool(thinking))
            prompt = engine.take_prompt(exchange, prompt)
            self._fill_slot(exchange, body, prompt)
            most = body.get("max_tokens") or body.get("n_predict", -1)
            asked = self._asked({**body, "n_predict": most, "logit_bias": None}, prompt)
            Reply(engine, exchange, asked, self.style, body, True).send()


def _distribution(row: Row, token: int, count: int) -> dict[str, Any]:
    best = truth.likeliest(row, count).tolist()
    return _named(token, row) | {"top_logprobs": [_named(one, row) for one in best]}


def _named(token: int, row: Row) -> dict[str, Any]:
    content, value = truth.piece(token), float(row[token])
    named: dict[str, Any] = {"id": token, "token": content.decode(errors="replace"), "bytes": list(content)}
    return named | {"logprob": _NO_PROBABILITY if value == -np.inf else value}
