"""The conformance vector of the speed and start-up measures: two batches of two fixed streams, three fixed starts."""

from __future__ import annotations

from typing import Any

import polars as pl

from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.throughput.cells import cell_figures
from engcmp_assets.kernel.throughput.startup_documents import startup_figures, startup_summary

_MS = 1_000_000
_PROMPT, _REPLY, _REASONED = 64, 12, 2
_ENGINE = {"accepted": 30, "drafted": 48, "draft_steps": 16, "cached_tokens": 0, "preemptions": 0, "restarts": 0}


def speed_values() -> dict[str, float]:
    """The value of each speed measure that the vector has, by name: `speed ttft_median_ms` at one and `speed2 ...` at two at a time."""
    found: dict[str, float] = {}
    for name, width in (("speed", 1), ("speed2", 2)):
        events, requests = _tables(width)
        cell = cell_figures(
            events, requests, {"cell_id": "cell", "kind": "code", "concurrency": width, "engine": _ENGINE}
        )
        found |= {
            f"{name} {measure}": float(one["value"])
            for measure, one in sorted(cell["figures"].items())
            if "value" in one
        }
    return found


def startup_values() -> dict[str, float]:
    """The value of each start-up measure that the vector has, by name: `startup cold ready_s`."""
    cache = {"cache": "page cache of the model file", "cleared": True}
    line = {"missing": "the engine has no ready line of its own"}
    starts = [
        {
            "start": n,
            "state": state,
            "ready_s": 1.25 * n,
            "ready_line_s": line,
            "caches": [cache] if state == "cold" else [],
        }
        for n, state in enumerate(("cold", "warm", "warm"), 1)
    ]
    memory = {"host": {"resident_bytes": 3 << 20}, "gpus": {"used_bytes": 5 << 20}}
    cells = [
        {"cell_id": f"prefix-64/{n}", "complete": True, "failures": [], "engine": {"cached_tokens": 32 * n}}
        for n in (0, 1)
    ]
    rows = [
        {
            "cell_id": f"prefix-64/{n}", "expected_prompt_tokens": 64, "repeat": n, "ttft_ns": (40 - 30 * n) * _MS, "cached_tokens": None,
        }
        for n in (0, 1)
    ]  # fmt: skip
    pool = {"tokens": 4096, "how": "stated", "max_model_len": 2048}
    kept = {"starts": starts, "kv_pool": pool, "memory": {"ready": memory}, "prefix": cells}
    summary = startup_summary(kept, pl.DataFrame(), pl.DataFrame(rows, schema_overrides={"cached_tokens": pl.Int64}))
    figures = startup_figures("study", ArmKey.parse("a/b@c"), summary)
    return {f"startup {one.population} {one.measure}": one.value for one in figures if isinstance(one.value, float)}


def _tables(width: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Streams of 3 tokens at first and then one or two tokens an event, at times from an integer formula."""
    events: list[dict[str, Any]] = []
    requests = []
    for number in range(4):
        name, t0 = f"r{number}", (1 + 400 * (number // width) + 5 * (number % width)) * _MS
        at, left, token = t0 + (40 + 7 * number) * _MS, _REPLY, 0
        stamps = []
        while left:
            tokens = min(left, 3 if not token else 1 + token % 2)
            events.append(
                {
                    "request_id": name,
                    "t_ns": at,
                    "kind": "reasoning" if token < _REASONED else "answer",
                    "tokens": tokens,
                }
            )
            stamps.append(at)
            left, token, at = left - tokens, token + 1, at + (9 + (number * 3 + token) % 4) * _MS
        answered = [one["t_ns"] for one in events if one["request_id"] == name and one["kind"] == "answer"]
        requests.append(
            {
                "request_id": name, "cell_id": "cell", "t0_ns": t0, "scheduled_at_ns": t0 - _MS, "ttft_ns": stamps[0] - t0,
                "ttfa_ns": answered[0] - t0, "last_at_ns": stamps[-1], "done_at_ns": stamps[-1] + _MS, "n_tokens": _REPLY,
                "n_first_tokens": 3, "usage_completion_tokens": _REPLY, "usage_prompt_tokens": _PROMPT, "cached_tokens": 0,
                "finish_reason": "length", "status": "ok", "cause": None, "flags": [], "batch": number // width, "characters": 40 + number,
            }
        )  # fmt: skip
    return pl.DataFrame(events), pl.DataFrame(requests)
