"""vLLM's server, and the fork's with --fork: prompt log-probabilities over HTTP, token ids in streams, Prometheus counters."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from . import model as truth
from .chat import Reply, Style
from .engine import Asked, Engine
from .exchange import Exchange, Refusal
from .metrics import prometheus_of_vllm
from .server import Dialect

_READY_OF_FORK = "GLM release startup warmup complete; container is ready."
_LOWEST = -9999.0  # what it writes for the logarithm of 0


class Vllm(Dialect):
    """Routes, log lines and forms of `vllm serve`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.version = self.options.version or ("0.1.dev20051+g487ecf187" if self.options.fork else "0.33.0")
        self.style = Style("reasoning", f"vllm-{self.version}", token_ids=True)
        self.routes = {
            ("GET", "/health"): self._health,
            ("GET", "/version"): lambda exchange: exchange.send_json({"version": self.version}),
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/server_info"): self._server_info,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/chat/completions/render"): self._render,
            ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
        }

    def say_started(self, address: str) -> None:
        options = self.options
        times = options.kv_tokens / options.context
        self.engine.say(
            f"INFO GPU KV cache size: {options.kv_tokens:,} tokens, "
            f"Maximum concurrency for {options.context:,} tokens per request: {times:.2f}x"
        )
        self.engine.say(f"INFO Chunked prefill is enabled with max_num_batched_tokens={self.engine.batch_tokens()}.")
        self.engine.say(f"INFO Starting vLLM server on {address}")

    def say_ready(self, address: str) -> None:
        self.engine.say("INFO:     Application startup complete.")
        if self.options.fork:
            timer = threading.Timer(self.options.warmup_ms / 1e3, self.engine.say, (_READY_OF_FORK,))
            timer.daemon = True
            timer.start()

    def _health(self, exchange: Exchange) -> None:
        loading = self.engine.is_loading()
        exchange.send(b"", "text/plain", 503 if loading else 200)

    def _models(self, exchange: Exchange) -> None:
        name, context = self.engine.model_name(exchange), self.options.context
        model = {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": name,
            "max_model_len": context,
        }
        exchange.send_json({"object": "list", "data": [model]})

    def _server_info(self, exchange: Exchange) -> None:
        config = {
            "model": self.options.model,
            "max_model_len": self.options.context,
            "max_num_seqs": self.options.max_seqs,
            "max_num_batched_tokens": self.engine.batch_tokens(exchange),
        }
        flag = "1" if self.engine.says_deterministic(exchange) else "0"
        exchange.send_json({"vllm_config": config, "vllm_env": {"VLLM_BATCH_INVARIANT": flag}})

    def _metrics(self, exchange: Exchange) -> None:
        exchange.send(prometheus_of_vllm(self.engine, exchange).encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, exchange: Exchange) -> None:
        body = exchange.body()
        if "messages" in body:
            ids = self._chat_ids(exchange, body)
        else:
            ids = self.engine.encode(exchange, str(body.get("prompt", "")), bos=body.get("add_special_tokens", True))
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self.options.context, "tokens": ids}
        if body.get("return_token_strs"):
            answer["token_strs"] = [truth.piece(token).decode(errors="replace") for token in ids]
        exchange.send_json(answer)

    def _detokenize(self, exchange: Exchange) -> None:
        exchange.send_json({"prompt": truth.detokenize(exchange.body().get("tokens", []), special=True)})

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        done = self.engine.running == 0
        if done:
            self.engine.cache.clear()
        exchange.send_json({"success": done})

    def _chat_ids(self, exchange: Exchange, body: dict[str, Any]) -> list[int]:
        thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking", True)
        return self.engine.encode_chat(exchange, body.get("messages"), thinking=bool(thinking))

    def _render(self, exchange: Exchange) -> None:
        ids = self._chat_ids(exchange, exchange.body())
        exchange.send_json({"token_ids": ids, "prompt": truth.detokenize(ids, special=True)})

    def _chat(self, exchange: Exchange) -> None:
        body = exchange.body()
        self._check(body, exchange)
        prompt = self._chat_ids(exchange, body)
        self._reply(exchange, body, prompt, chat=True)

    def _completions(self, exchange: Exchange) -> None:
        body = exchange.body()
        self._check(body, exchange)
        prompt = body.get("prompt", "")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) and len(prompt) == 1:
            prompt = prompt[0]
        if isinstance(prompt, str):
            prompt = self.engine.encode(exchange, prompt, bos=body.get("add_special_tokens", True))
        self._reply(exchange, body, prompt, chat=False)

    def _check(self, body: dict[str, Any], exchange: Exchange) -> None:
        wanted = body.get("model")
        if wanted is not None and wanted != self.engine.model_name(exchange):
            raise Refusal(404, f"The model `{wanted}` does not exist.", kind="NotFoundError")
        scores, most = body.get("prompt_logprobs"), self.options.max_logprobs
        if body.get("stream") and scores is not None:
            raise Refusal(400, "`prompt_logprobs` are not available when `stream=True`.")
        for name in ("prompt_logprobs", "logprobs", "top_logprobs"):
            count = body.get(name)
            if type(count) is int and most != -1 and (count > most or count == -1):
                raise Refusal(400, f"Requested {name} of {count}, which is greater than max allowed: {most}")
            if type(count) is int and count < -1:
                raise Refusal(400, f"`{name}` must be a non-negative value or -1.")

    def _reply(self, exchange: Exchange, body: dict[str, Any], prompt: list[int], *, chat: bool) -> None:
        engine, scores = self.engine, body.get("prompt_logprobs")
        with engine.admitted(exchange):
            prompt = engine.take_prompt(exchange, prompt)
            if not prompt:
                raise Refusal(400, "The prompt must contain at least one token.")
            reads_cache = scores is None or exchange.fault("logprobs_stale") is not None
            engine.read_cache(exchange, prompt, salt=str(body.get("cache_salt", "")), use=reads_cache)
            asked, top = _asked(body, prompt, chat=chat, context=self.options.context)
            if top == -1:
                top = self.options.vocab
            reply = Reply(engine, exchange, asked, self.style, body, chat, top=top)
            if body.get("echo") and not chat:
                self._echo(exchange, reply)
            if scores is not None:
                (reply.extra if chat else reply.choice_extra).update(
                    self._prompt_logprobs(exchange, prompt, scores, asked)
                )
            reply.send()

    def _echo(self, exchange: Exchange, reply: Reply) -> None:
        """Give the prompt back before the reply, with its log-probabilities if those were asked for."""
        if reply.body.get("stream"):
            raise Refusal(400, "echo of a stream is not simulated")
        prompt = list(reply.asked.prompt)
        reply.echo_only = reply.body.get("max_tokens") == 0
        if exchange.fault("prompt_logprobs_missing"):
            return
        if refused := exchange.fault("prompt_logprobs_refused"):
            raise Refusal(refused["status"], "echo with log-probabilities failed", kind="InternalServerError")
        rows = self.engine.score(exchange, prompt, range(len(prompt) - 1), temperature=reply.asked.temperature)
        reply.echo = list(zip(prompt, [None, *rows], strict=True))

    def _prompt_logprobs(self, exchange: Exchange, prompt: list[int], scores: int, asked: Asked) -> dict[str, Any]:
        if refused := exchange.fault("prompt_logprobs_refused"):
            raise Refusal(refused["status"], "prompt logprobs failed", kind="InternalServerError")
        if exchange.fault("prompt_logprobs_missing"):
            return {"prompt_logprobs": None}
        rows = self.engine.score(exchange, prompt, range(len(prompt) - 1), temperature=asked.temperature)
        count = self.options.vocab if scores == -1 else scores
        entries: list[Any] = [None]
        entries += [entry_of(row, token, count) for row, token in zip(rows, prompt[1:], strict=True)]
        short = exchange.fault("prompt_logprobs_short")
        return {"prompt_logprobs": entries[: -short["rows"]] if short else entries}


def entry_of(row: truth.Row, token: int, count: int) -> dict[str, Any]:
    """The `count` most likely tokens of a row and the actual one, by id, each with log-probability and rank."""
    falling = -row
    ids = truth.likeliest(row, count).tolist()
    above = np.searchsorted(falling[ids], falling[ids], side="left").tolist()  # how many are more likely
    if token not in set(ids):
        more = ~np.isnan(row) if np.isnan(row[token]) else falling < falling[token]
        ids, above = [token, *ids], [int(np.count_nonzero(more)), *above]
    values = np.maximum(row[ids], np.float32(_LOWEST)).tolist()  # NaN stays NaN
    return {
        str(one): {"logprob": value, "rank": rank + 1, "decoded_token": truth.piece(one).decode(errors="replace")}
        for one, value, rank in zip(ids, values, above, strict=True)
    }


def _asked(body: dict[str, Any], prompt: list[int], *, chat: bool, context: int) -> tuple[Asked, int | None]:
    """The generation that a request asks for, and how many log-probabilities of each token."""
    most = body.get("max_completion_tokens") if chat else None
    most = body.get("max_tokens") if most is None else most
    if most is None:
        most = context - len(prompt) if chat else 16
    if body.get("echo") and most == 0:
        most = 1  # as the engine does: it generates a token that is not sent
    if len(prompt) + most > context:
        raise Refusal(
            400, f"the context is {context} tokens; {len(prompt)} in the prompt and {most} of the reply are more"
        )
    top = (body.get("top_logprobs") or 0) if chat and body.get("logprobs") else None if chat else body.get("logprobs")
    asked = Asked(
        prompt,
        most,
        temperature=float(_or(body.get("temperature"), 1.0)),
        top_p=float(_or(body.get("top_p"), 1.0)),
        top_k=int(_or(body.get("top_k"), 0)),
        seed=body.get("seed"),
        ignore_eos=bool(body.get("ignore_eos")),
        min_tokens=int(_or(body.get("min_tokens"), 0)),
        bias={int(token): float(value) for token, value in (body.get("logit_bias") or {}).items()},
        wants_rows=top is not None,
    )
    return asked, top


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
