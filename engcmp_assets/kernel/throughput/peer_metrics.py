"""TTFT, ITL, TPOT and end-to-end latency as three other clients define them, from our events alone (MEASURES section 6).

The definitions are those of `vllm bench serve` 0.32.0 (openai-chat), `guidellm` 0.8.1 and `aiperf` 0.13.0; names and units are theirs.
They differ: which event is the first, whether the first token is counted, and where a request ends. So none of these may stand in one
column with another, or with a figure of ours. What a client's own faults add (a comment that hides the rest of a stream) is not here.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.throughput.streams import stream_table

_MS, _S = 1e6, 1e9
_CHOICES = ("role", "reasoning", "answer", "tool_call", "empty", "finish")  # what an event with `choices` can be
_CONTENT = ("reasoning", "answer", "tool_call")
_NO_USAGE = "the server states no usage: the client would count tokens in another way"


def peer_metrics(events: pl.DataFrame, requests: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """By client and its own metric name: `{"mean", "median", "n", "unit"}` over the completed requests, or `{"missing": reason}`.

    Raises EngcmpError as stream_table does.
    """
    done = stream_table(events, requests).filter("ok")
    own = events.join(done.select("request_id"), on="request_id", how="semi")
    choices = _reads(own.filter(pl.col("kind").is_in(_CHOICES)), "choice")
    content = _reads(own.filter(pl.col("kind").is_in(_CONTENT)), "content")
    spoken = _reads(own.filter(pl.col("kind").is_in(["answer", "tool_call"])), "spoken")
    table = done
    for one in (choices, content, spoken):
        table = table.join(one, on="request_id", how="left", maintain_order="left")
    return {
        "vllm bench serve 0.32.0": _vllm(table, own),
        "guidellm 0.8.1": _guidellm(table),
        "aiperf 0.13.0": _aiperf(table, own),
    }


def _reads(events: pl.DataFrame, name: str) -> pl.DataFrame:
    by_request = events.group_by("request_id", maintain_order=True)
    return by_request.agg(pl.col("t_ns").first().alias(f"{name}_first"), pl.col("t_ns").last().alias(f"{name}_last"))


def _vllm(table: pl.DataFrame, events: pl.DataFrame) -> dict[str, Any]:
    """The first event with `choices` is the first token (the role event too); ITL is the gap between two such events, whatever they
    hold; TPOT = (E2EL - TTFT) / (usage.completion_tokens - 1); E2EL ends with the last event with `choices` (the finish event too).
    """
    t0, first, last = pl.col("t0_ns"), pl.col("choice_first"), pl.col("choice_last")
    n = pl.col("usage_completion_tokens")
    return {
        "ttft": _summary(table, (first - t0) / _MS, "ms"),
        "tpot": _summary(table, pl.when(n > 1).then((last - first) / (n - 1)) / _MS, "ms", needs_usage=True),
        "itl": _gaps(events.filter(pl.col("kind").is_in(_CHOICES)), "ms"),
        "e2el": _summary(table, (last - t0) / _MS, "ms"),
    }


def _guidellm(table: pl.DataFrame) -> dict[str, Any]:
    """A token event is one with reasoning, content or a tool call. ITL = (last - first) / (tokens - 1), one value a request; TPOT =
    (last - start) / tokens, so with the first token's time; the latency ends with the closing `[DONE]` (guidellm's own a little later, when
    its connection is free again: no event tells that). Tokens are those of `usage`.
    """
    t0, first, last = pl.col("t0_ns"), pl.col("content_first"), pl.col("content_last")
    n = pl.col("usage_completion_tokens")
    return {
        "time_to_first_token_ms": _summary(table, (first - t0) / _MS, "ms"),
        "time_to_first_output_token_ms": _summary(table, (pl.col("spoken_first") - t0) / _MS, "ms"),
        "inter_token_latency_ms": _summary(
            table, pl.when(n > 1).then((last - first) / (n - 1)) / _MS, "ms", needs_usage=True
        ),
        "time_per_output_token_ms": _summary(table, pl.when(n > 0).then((last - t0) / n) / _MS, "ms", needs_usage=True),
        "request_latency": _summary(table, (pl.col("done_at_ns") - t0) / _S, "s"),
    }


def _aiperf(table: pl.DataFrame, events: pl.DataFrame) -> dict[str, Any]:
    """A response is one with reasoning, content or a tool call. ITL = (request latency - TTFT) / (tokens - 1), as without
    `--per-chunk-usage`; the gap between two responses has its own name; the latency ends with the last response. It counts tokens with
    its own tokenizer: here they are the counted ones.
    """
    t0, first, last = pl.col("t0_ns"), pl.col("content_first"), pl.col("content_last")
    n = pl.col("n")
    return {
        "time_to_first_token": _summary(table, (first - t0) / _MS, "ms"),
        "time_to_first_output_token": _summary(table, (pl.col("spoken_first") - t0) / _MS, "ms"),
        "inter_token_latency": _summary(table, pl.when(n > 1).then((last - first) / (n - 1)) / _MS, "ms"),
        "inter_chunk_latency": _gaps(events.filter(pl.col("kind").is_in(_CONTENT)), "ms"),
        "request_latency": _summary(table, (last - t0) / _MS, "ms"),
    }


def _summary(table: pl.DataFrame, value: pl.Expr, unit: str, *, needs_usage: bool = False) -> dict[str, Any]:
    if needs_usage and table["usage_completion_tokens"].null_count():
        return Missing(_NO_USAGE).as_json()
    return _of(table.select(value.cast(pl.Float64)).to_series(), unit)


def _gaps(events: pl.DataFrame, unit: str) -> dict[str, Any]:
    return _of(events.select(pl.col("t_ns").diff().over("request_id") / _MS).to_series(), unit)


def _of(values: pl.Series, unit: str) -> dict[str, Any]:
    known = values.drop_nulls()
    if known.is_empty():
        return Missing("no completed request has such a value").as_json()
    found: dict[str, Any] = plain({"mean": known.mean(), "median": known.median(), "n": len(known), "unit": unit})
    return found
