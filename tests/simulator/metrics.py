"""Prometheus text of the dialects that have it."""

from __future__ import annotations

from collections.abc import Sequence

from .engine import Engine
from .exchange import Exchange

_EDGES = (0.001, 0.01, 0.1, 1.0, 10.0)


def prometheus_of_vllm(engine: Engine, exchange: Exchange) -> str:
    """What vLLM's /metrics says."""
    counts = _counts(engine, exchange)
    labels = f'engine="0",model_name="{engine.model_name(exchange)}"'
    text = _Text("vllm", labels)
    text.gauge("num_requests_running", engine.running)
    text.gauge("num_requests_waiting", engine.waiting)
    text.gauge("kv_cache_usage_perc", 0.0)
    for name, key in (
        ("prompt_tokens", "prompt_tokens"),
        ("generation_tokens", "generation_tokens"),
        ("prefix_cache_queries", "cache_queries"),
        ("prefix_cache_hits", "cache_hits"),
        ("prompt_tokens_cached", "cache_hits"),
        ("num_preemptions", "preemptions"),
    ):
        text.counter(name, counts[key])
    for reason in ("stop", "length", "abort"):
        text.counter("request_success", counts[f"finished_{reason}"], f'finished_reason="{reason}"')
    if engine.options.drafts:
        text.counter("spec_decode_num_drafts", counts["drafts"])
        text.counter("spec_decode_num_draft_tokens", counts["drafted"])
        text.counter("spec_decode_num_accepted_tokens", counts["accepted"])
        for place in range(engine.options.drafts):
            text.counter("spec_decode_num_accepted_tokens_per_pos", counts[f"accepted_{place}"], f'position="{place}"')
    for name, key in (
        ("time_to_first_token_seconds", "ttft"),
        ("inter_token_latency_seconds", "itl"),
        ("e2e_request_latency_seconds", "e2e"),
    ):
        text.histogram(name, engine.seconds.get(key, []))
    options = engine.options
    config = {
        "block_size": 16,
        "enable_prefix_caching": True,
        "kv_cache_size_tokens": options.kv_tokens,
        "kv_cache_max_concurrency": round(options.kv_tokens / options.context, 4),
        "max_num_batched_tokens": engine.batch_tokens(exchange),
        "num_gpu_blocks": options.kv_tokens // 16,
    }
    text.gauge("cache_config_info", 1.0, ",".join(f'{name}="{value}"' for name, value in config.items()))
    return text.whole()


def prometheus_of_sglang(engine: Engine, exchange: Exchange) -> str:
    """What SGLang's /metrics says."""
    counts = _counts(engine, exchange)
    text = _Text("sglang", f'model_name="{engine.model_name(exchange)}"')
    text.gauge("num_running_reqs", engine.running)
    text.gauge("num_queue_reqs", engine.waiting)
    text.gauge("token_usage", 0.0)
    text.gauge("max_total_num_tokens", engine.options.kv_tokens)
    text.counter("prompt_tokens", counts["prompt_tokens"])
    text.counter("generation_tokens", counts["generation_tokens"])
    text.counter("cached_tokens", counts["cache_hits"])
    if engine.options.drafts and counts["drafts"]:
        text.gauge("spec_accept_length", 1 + counts["accepted"] / counts["drafts"])
        text.gauge("spec_accept_rate", counts["accepted"] / counts["drafted"])
        text.counter("spec_verify_calls", counts["drafts"])
    text.histogram("time_to_first_token_seconds", engine.seconds.get("ttft", []))
    text.histogram("e2e_request_latency_seconds", engine.seconds.get("e2e", []))
    return text.whole()


def _counts(engine: Engine, exchange: Exchange) -> dict[str, int]:
    if exchange.fault("counters_reset"):
        engine.reset_counters()
    return engine.counts


class _Text:
    """Lines of one exporter, with its prefix and common labels."""

    def __init__(self, prefix: str, labels: str) -> None:
        self._prefix, self._labels = prefix, labels
        self._lines: list[str] = []
        self._said: set[str] = set()

    def gauge(self, name: str, value: float, labels: str = "") -> None:
        self._line(name, name, "gauge", value, labels)

    def counter(self, name: str, value: int, labels: str = "") -> None:
        self._line(name, f"{name}_total", "counter", float(value), labels)
        self._line(f"{name}_created", f"{name}_created", "gauge", 1.0, labels)

    def histogram(self, name: str, values: Sequence[float]) -> None:
        for edge in _EDGES:
            self._line(name, f"{name}_bucket", "histogram", float(sum(v <= edge for v in values)), f'le="{edge}"')
        self._line(name, f"{name}_bucket", "histogram", float(len(values)), 'le="+Inf"')
        self._line(name, f"{name}_count", "histogram", float(len(values)), "")
        self._line(name, f"{name}_sum", "histogram", sum(values), "")

    def whole(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _line(self, family: str, name: str, kind: str, value: float, labels: str) -> None:
        if family not in self._said:
            self._said.add(family)
            self._lines.append(f"# HELP {self._prefix}:{family} of the simulator")
            self._lines.append(f"# TYPE {self._prefix}:{family} {kind}")
        both = ",".join(part for part in (self._labels, labels) if part)
        self._lines.append(f"{self._prefix}:{name}{{{both}}} {value}")
