"""SGLang's server: /generate with the log-probabilities of the prompt, health that generates, Prometheus counters."""

from __future__ import annotations

import time
from typing import Any

from .chat import Reply, Style, TextParts
from .engine import Asked, Engine
from .exchange import Exchange, Refusal
from .metrics import prometheus_of_sglang
from .model import Row, likeliest
from .server import Dialect

_OPEN = frozenset({"/health", "/ready", "/metrics"})


class SgLang(Dialect):
    """Routes, log lines and forms of `sglang.launch_server`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.version = self.options.version or "0.5.23"
        self.style = Style("reasoning_content", "sglang", finish_apart=True, token_ids=False)
        self.routes = {
            ("GET", "/health"): self._health,
            ("GET", "/health_generate"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/server_info"): self._server_info,
            ("GET", "/model_info"): self._model_info,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/tokenize"): self._tokenize,
            ("POST", "/generate"): self._generate,
            ("POST", "/flush_cache"): self._flush_cache,
            ("POST", "/v1/chat/completions"): self._chat,
        }

    def needs_key(self, path: str) -> bool:
        return path not in _OPEN

    def error(self, refusal: Refusal) -> Any:
        return {
            "object": "error",
            "message": refusal.message,
            "type": refusal.kind,
            "param": None,
            "code": refusal.status,
        }

    def say_started(self, address: str) -> None:
        options = self.options
        self.engine.say(
            f"max_total_num_tokens={options.kv_tokens}, chunked_prefill_size={options.chunk}, "
            f"max_prefill_tokens={self.engine.batch_tokens()}, "
            f"max_running_requests={options.max_seqs}, context_len={options.context}"
        )

    def say_ready(self, address: str) -> None:
        self.engine.say("The server is fired up and ready to roll!")

    def _health(self, exchange: Exchange) -> None:
        if self.engine.is_loading():
            exchange.send(b"", "text/plain", 503)
            return
        if not self.engine.running:
            self.engine.count(prompt_tokens=1, generation_tokens=1)  # this health check generates
        exchange.send(b"", "text/plain")

    def _ready(self, exchange: Exchange) -> None:
        exchange.send(b"", "text/plain", 503 if self.engine.is_loading() else 200)

    def _server_info(self, exchange: Exchange) -> None:
        options = self.options
        answer = {
            "model_path": options.model,
            "served_model_name": self.engine.model_name(exchange),
            "context_length": options.context,
            "max_running_requests": options.max_seqs,
            "chunked_prefill_size": options.chunk,
            "max_prefill_tokens": self.engine.batch_tokens(exchange),
            "max_total_num_tokens": options.kv_tokens,
            "enable_deterministic_inference": self.engine.says_deterministic(exchange),
            "version": self.version,
            "internal_states": [{"effective_max_running_requests_per_dp": options.max_seqs}],
        }
        exchange.send_json(answer)

    def _model_info(self, exchange: Exchange) -> None:
        name = self.engine.model_name(exchange)
        exchange.send_json(
            {"model_path": name, "tokenizer_path": name, "is_generation": True, "weight_version": "default"}
        )

    def _models(self, exchange: Exchange) -> None:
        name = self.engine.model_name(exchange)
        model = {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "sglang",
            "max_model_len": self.options.context,
        }
        exchange.send_json({"object": "list", "data": [model]})

    def _metrics(self, exchange: Exchange) -> None:
        exchange.send(prometheus_of_sglang(self.engine, exchange).encode(), "text/plain; version=0.0.4")

    def _tokenize(self, exchange: Exchange) -> None:
        body = exchange.body()
        if "messages" in body:
            ids = self.engine.encode_chat(exchange, body["messages"], thinking=True)
        else:
            bos = body.get("add_special_tokens", True)
            ids = self.engine.encode(exchange, str(body.get("prompt", "")), bos=bool(bos))
        exchange.send_json({"tokens": ids, "count": len(ids), "max_model_len": self.options.context})

    def _flush_cache(self, exchange: Exchange) -> None:
        if self.engine.running:
            raise Refusal(400, "requests are running")
        self.engine.cache.clear()
        exchange.send(b"Cache flushed.\n", "text/plain")

    def _chat(self, exchange: Exchange) -> None:
        body, engine = exchange.body(), self.engine
        thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        with engine.admitted(exchange):
            prompt = engine.encode_chat(exchange, body.get("messages"), thinking=bool(thinking))
            prompt = engine.take_prompt(exchange, prompt)
            engine.read_cache(exchange, prompt)
            most = body.get("max_completion_tokens") or body.get("max_tokens") or self.options.context - len(prompt)
            asked = _asked(prompt, {**body, "max_new_tokens": most}, wants_rows=False)
            Reply(engine, exchange, asked, self.style, body, True).send()

    def _generate(self, exchange: Exchange) -> None:
        body, engine = exchange.body(), self.engine
        ids = body.get("input_ids")
        if ids is None:
            ids = engine.encode(exchange, str(body.get("text", "")))
        wants = bool(body.get("return_logprob"))
        first = int(body.get("logprob_start_len", -1)) if wants else -1
        with engine.admitted(exchange):
            prompt = engine.take_prompt(exchange, ids)
            if not prompt:
                raise Refusal(400, "the prompt has no tokens")
            asked = _asked(prompt, body.get("sampling_params") or {}, wants_rows=wants)
            scores = 0 <= first < len(prompt)
            engine.read_cache(exchange, prompt, use=not scores or exchange.fault("logprobs_stale") is not None)
            meta = {"id": str(exchange.record["request"]), "prompt_tokens": len(prompt), "weight_version": "default"}
            if scores:
                meta |= self._input_logprobs(exchange, body, prompt, first, asked)
            elif wants:
                meta |= {"input_token_logprobs": [], "input_top_logprobs": [], "input_token_ids_logprobs": []}
            self._send(exchange, body, asked, meta)

    def _input_logprobs(
        self, exchange: Exchange, body: dict[str, Any], prompt: list[int], first: int, asked: Asked
    ) -> dict[str, Any]:
        """The three lists of a prompt from token `first` on; the first entry of each is null."""
        if refused := exchange.fault("prompt_logprobs_refused"):
            raise Refusal(refused["status"], "out of memory", kind="InternalServerError")
        if exchange.fault("prompt_logprobs_missing"):
            return {}
        rows = self.engine.score(exchange, prompt, range(first, len(prompt) - 1), temperature=asked.temperature)
        if short := exchange.fault("prompt_logprobs_short"):
            rows = rows[: -short["rows"]]
        pairs = list(zip(rows, prompt[first + 1 :], strict=False))
        return {
            "input_token_logprobs": [[None, prompt[first], None], *(_triple(token, row) for row, token in pairs)],
            "input_top_logprobs": [None, *(_best(row, int(body.get("top_logprobs_num", 0))) for row in rows)],
            "input_token_ids_logprobs": [None, *(_of_ids(row, body.get("token_ids_logprob")) for row in rows)],
        }

    def _send(self, exchange: Exchange, body: dict[str, Any], asked: Asked, meta: dict[str, Any]) -> None:
        tokens: list[int] = []
        rows: list[Row] = []
        parts, text, streams = TextParts(thinking=False), "", bool(body.get("stream"))
        if streams:
            exchange.start_stream()
        for step in self.engine.steps(exchange, asked):
            text += parts.read(step.tokens, last=step.finish is not None).get("content", "")
            tokens, rows = tokens + step.tokens, rows + step.rows
            exchange.hold(step.tokens)
            if streams:
                answer = self._answer(
                    exchange, body, meta=meta, text=text, tokens=tokens, rows=rows, finish=step.finish
                )
                exchange.event(answer, "tokens")
        if not streams:
            finish = exchange.record["finish_reason"]
            exchange.send_json(
                self._answer(exchange, body, meta=meta, text=text, tokens=tokens, rows=rows, finish=finish)
            )
            return
        if not exchange.fault("done_missing"):
            exchange.event("[DONE]", "done")
        exchange.end_stream()

    def _answer(
        self,
        exchange: Exchange,
        body: dict[str, Any],
        *,
        meta: dict[str, Any],
        text: str,
        tokens: list[int],
        rows: list[Row],
        finish: str | None,
    ) -> dict[str, Any]:
        reasons = {"length": {"type": "length", "length": len(tokens)}, "stop": {"type": "stop", "matched": tokens[-1]}}
        wrong = exchange.fault("usage_wrong") or {"completion": 0, "prompt": 0}
        told = meta | {
            "finish_reason": None if exchange.fault("finish_missing") else reasons.get(finish or ""),
            "prompt_tokens": meta["prompt_tokens"] + wrong["prompt"],
            "completion_tokens": len(tokens) + wrong["completion"],
            "cached_tokens": self.engine.told_cached(exchange),
            "e2e_latency": (time.monotonic_ns() - exchange.record["received_ns"]) / 1e9,
        }
        if rows:
            told["output_token_logprobs"] = [_triple(token, row) for token, row in zip(tokens, rows, strict=True)]
            told["output_top_logprobs"] = [_best(row, int(body.get("top_logprobs_num", 0))) for row in rows]
            told["output_token_ids_logprobs"] = [_of_ids(row, body.get("token_ids_logprob")) for row in rows]
        ids = {} if exchange.fault("token_ids_missing") else {"output_ids": list(tokens)}
        return {"text": text, **ids, "meta_info": told}


def _asked(prompt: list[int], body: dict[str, Any], *, wants_rows: bool) -> Asked:
    temperature = body.get("temperature")
    return Asked(
        prompt,
        int(body.get("max_new_tokens") or 128),
        temperature=1.0 if temperature is None else float(temperature),
        top_p=float(body.get("top_p") or 1.0),
        top_k=max(0, int(body.get("top_k") or 0)),
        seed=body.get("sampling_seed", body.get("seed")),
        ignore_eos=bool(body.get("ignore_eos")),
        min_tokens=int(body.get("min_new_tokens") or body.get("min_tokens") or 0),
        wants_rows=wants_rows,
    )


def _triple(token: int, row: Row) -> list[Any]:
    return [float(row[token]), token, None]


def _best(row: Row, count: int) -> list[list[Any]] | None:
    return [_triple(token, row) for token in likeliest(row, count).tolist()] if count else None


def _of_ids(row: Row, ids: Any) -> list[list[Any]] | None:
    return [_triple(int(token), row) for token in ids] if ids else None
