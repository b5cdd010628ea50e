"""What vLLM's HTTP server answers, as far as rows are concerned."""

from __future__ import annotations

from typing import Any

import msgspec


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Generated(msgspec.Struct):
    top_logprobs: list[dict[str, float | None]] | None = None


class Choice(msgspec.Struct):
    prompt_logprobs: list[msgspec.Raw] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: Generated | None = None


class Completion(msgspec.Struct):
    model: str
    choices: list[Choice]
    usage: Usage


class Value(msgspec.Struct):
    logprob: float | None  # null stands for NaN, which JSON cannot hold


class Models(msgspec.Struct):
    data: list[dict[str, Any]]


def has_usage(chunk: str) -> bool:
    """Whether a chunk of a stream tells the usage so far."""
    try:
        return isinstance(msgspec.json.decode(chunk).get("usage"), dict)
    except (msgspec.DecodeError, AttributeError):
        return False
