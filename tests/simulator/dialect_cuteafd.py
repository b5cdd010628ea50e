"""CuteAFD's server: chats, counters, and the scoring endpoint that dumps rows."""

from __future__ import annotations

from typing import Any

from .chat import Reply, Style
from .engine import Asked, Engine
from .exchange import Exchange, Refusal
from .probe import Prober
from .server import Dialect

_KEEPALIVE_MS = 15_000.0


class CuteAfd(Dialect):
    """Routes, log lines and forms of `cuteafd serve-glmf`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.style = Style(
            "reasoning_content", "cuteafd", finish_apart=True, usage_unasked=True, role_chunk=False, extra_usage=True
        )
        self.prober = Prober(engine)
        self.routes = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/stats"): self._stats,
            ("POST", "/v1/chat/completions"): self._chat,
            ("GET", "/v1/bench/status"): self.prober.status,
            ("POST", "/v1/bench/probe"): self.prober.probe,
        }

    def needs_key(self, path: str) -> bool:
        return path.startswith("/v1/")

    def refuse_key(self, path: str) -> Refusal:
        if path.startswith("/v1/bench/"):
            return Refusal(403, "the benchmark interface needs the API key", kind="forbidden")
        return Refusal(401, "invalid API key", kind="invalid_api_key")

    def error(self, refusal: Refusal) -> Any:
        kind = "native_v41_error" if refusal.status == 500 else "invalid_request_error"
        return {"error": {"message": refusal.message, "type": kind, "code": refusal.kind}}

    def say_started(self, address: str) -> None:
        self.engine.say(f"INFO KV pool {self.options.kv_tokens} tokens")

    def say_ready(self, address: str) -> None:
        listen = address.removeprefix("http://")
        self.engine.say(f"INFO GLM 5.3 Flash API is ready listen={listen} model={self.options.model}")

    def _health(self, exchange: Exchange) -> None:
        if self.engine.is_loading():
            exchange.send_json({"status": "unavailable", "reason": "loading"}, 503)
        else:
            exchange.send_json({"status": "ok", "vision": False, "audio": False})

    def _models(self, exchange: Exchange) -> None:
        model = {
            "id": self.engine.model_name(exchange),
            "object": "model",
            "owned_by": "cuteafd",
            "capabilities": {"vision": False, "audio": False},
            "max_context_tokens": self.options.context,
            "max_output_tokens": self.options.max_output,
        }
        exchange.send_json({"object": "list", "data": [model]})

    def _stats(self, exchange: Exchange) -> None:
        engine = self.engine
        if exchange.fault("counters_reset"):
            engine.reset_counters()
        counts = engine.counts
        prefix = {"lookups": counts["cache_lookups"], "hits": counts["cache_found"], "hit_tokens": counts["cache_hits"]}
        answer = {
            "requests": sum(number for name, number in counts.items() if name.startswith("finished_")),
            "generated_tokens": counts["generation_tokens"],
            "active": engine.running,
            "prefilling": 0,
            "http_queue_len": engine.waiting,
            "draft_policy": "fixed" if self.options.drafts else "off",
            "prefix_cache": prefix,
            "verify": {"rows": counts["generation_tokens"], "by_bucket": {"steps": counts["steps"]}},
        }
        exchange.send_json(answer)

    def _chat(self, exchange: Exchange) -> None:
        body, engine = exchange.body(), self.engine
        if self.prober.is_busy:
            raise Refusal(503, "a benchmark is running", kind="benchmark_running", Retry_After="1")
        if body.get("model") != engine.model_name(exchange):
            raise Refusal(400, f"the model {body.get('model')!r} is not served", kind="model_not_found")
        exchange.keepalive_ms = _KEEPALIVE_MS
        with engine.admitted(exchange, queue_depth=self.options.queue_depth, wait_s=self.options.queue_wait_s):
            prompt = engine.encode_chat(exchange, body.get("messages"), thinking=wants_thinking(body))
            prompt = engine.take_prompt(exchange, prompt)
            found = engine.read_cache(exchange, prompt)
            engine.count(cache_lookups=1, cache_found=int(found > 0))
            before = engine.counts.copy()
            Reply(engine, exchange, asked_of(body, prompt, self.options.max_output), self.style, body, True).send()
            made = engine.counts - before
            engine.say(
                f"INFO request complete tokens={len(exchange.record['tokens'])} steps={made['steps']} "
                f"dflash={made['drafted']} dflash_ok={made['accepted']}"
            )


def wants_thinking(body: dict[str, Any]) -> bool:
    """Whether a chat thinks: the switches in the order in which the engine heeds them."""
    kind = (body.get("thinking") or {}).get("type")
    if kind is not None:
        return bool(kind != "disabled")
    for holder in (body, body.get("chat_template_kwargs") or {}):
        if holder.get("enable_thinking") is not None:
            return bool(holder["enable_thinking"])
    return bool(body.get("reasoning_effort") != "none")


def asked_of(body: dict[str, Any], prompt: list[int], most: int) -> Asked:
    """The generation of a chat; absent temperature is greedy, ignore_eos and min_tokens are not known."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or most
    temperature = float(body.get("temperature") or 0.0)
    return Asked(
        prompt,
        min(int(limit), most),
        temperature=0.0 if temperature < 1e-5 else temperature,
        top_p=float(body.get("top_p") or 1.0),
        top_k=max(0, int(body.get("top_k") or 0)),
        seed=body.get("seed"),
    )
