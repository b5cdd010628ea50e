"""Other clients' metrics from the same events, by their own definitions: recomputed here event by event, as their code walks a stream."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from speed_cells import MS, Stream, cells, tables

from engcmp_assets.kernel.throughput.peer_metrics import peer_metrics

VLLM, GUIDELLM, AIPERF = "vllm bench serve 0.32.0", "guidellm 0.8.1", "aiperf 0.13.0"


def walked(streams: list[Stream]) -> dict[str, dict[str, list[float]]]:
    """Every value of every metric, from a walk over each stream's events."""
    vllm: dict[str, list[float]] = {name: [] for name in ("ttft", "tpot", "itl", "e2el")}
    guide: dict[str, list[float]] = {
        name: [] for name in ("time_to_first_token_ms", "time_to_first_output_token_ms", "inter_token_latency_ms",
                              "time_per_output_token_ms", "request_latency")
    }  # fmt: skip
    perf: dict[str, list[float]] = {
        name: [] for name in ("time_to_first_token", "time_to_first_output_token", "inter_token_latency",
                              "inter_chunk_latency", "request_latency")
    }  # fmt: skip
    for one in streams:
        n = sum(count for _, _, count in one.tokens)
        first = recent = None
        content: list[int] = []
        spoken = None
        for t, kind, _ in one.events:
            if kind in ("role", "reasoning", "answer", "tool_call", "empty", "finish"):
                if first is None:
                    first = t
                else:
                    vllm["itl"].append((t - recent) / MS)
                recent = t
            if kind in ("reasoning", "answer", "tool_call"):
                content.append(t)
            if kind in ("answer", "tool_call") and spoken is None:
                spoken = t
        assert first is not None and recent is not None
        end = one.events[-1][0]
        vllm["ttft"].append((first - one.t0) / MS)
        vllm["e2el"].append((recent - one.t0) / MS)
        guide["time_to_first_token_ms"].append((content[0] - one.t0) / MS)
        guide["time_per_output_token_ms"].append((content[-1] - one.t0) / n / MS)
        guide["request_latency"].append((end - one.t0) / 1e9)
        perf["time_to_first_token"].append((content[0] - one.t0) / MS)
        perf["request_latency"].append((content[-1] - one.t0) / MS)
        perf["inter_chunk_latency"] += [(b - a) / MS for a, b in itertools.pairwise(content)]
        if spoken is not None:
            guide["time_to_first_output_token_ms"].append((spoken - one.t0) / MS)
            perf["time_to_first_output_token"].append((spoken - one.t0) / MS)
        if n > 1:
            vllm["tpot"].append((recent - first) / (n - 1) / MS)
            guide["inter_token_latency_ms"].append((content[-1] - content[0]) / (n - 1) / MS)
            perf["inter_token_latency"].append((content[-1] - content[0]) / (n - 1) / MS)
    return {VLLM: vllm, GUIDELLM: guide, AIPERF: perf}


@settings(max_examples=100, deadline=None)
@given(cells())
def test_each_metric_is_what_a_walk_over_the_stream_gives(streams: list[Stream]) -> None:
    found, expected = peer_metrics(*tables(streams)), walked(streams)
    assert {peer: set(metrics) for peer, metrics in found.items()} == {peer: set(own) for peer, own in expected.items()}
    for peer, metrics in expected.items():
        for name, values in metrics.items():
            own = found[peer][name]
            if not values:
                assert set(own) == {"missing"}, (peer, name)
                continue
            assert own["n"] == len(values), (peer, name)
            assert own["mean"] == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-12), (peer, name)
            assert own["median"] == pytest.approx(statistics.median(values), rel=1e-9, abs=1e-12), (peer, name)


def chat() -> Stream:
    """A role event at 1 ms, reasoning at 60 ms, an answer of 3 and 2 tokens at 70 and 90 ms, the finish at 100 ms, the end at 101."""
    at = [(1, "role", 0), (30, "comment", 0), (60, "reasoning", 1), (70, "answer", 3), (90, "answer", 2), (100, "finish", 0),
          (100, "usage", 0), (101, "done", 0)]  # fmt: skip
    return Stream("a", 0, tuple((t * MS, kind, count) for t, kind, count in at))


def value(found: dict[str, dict[str, Any]], peer: str, name: str) -> float:
    return float(found[peer][name]["mean"])


def test_the_same_reply_reads_differently_to_each_client_and_why() -> None:
    found = peer_metrics(*tables([chat()]))
    assert value(found, VLLM, "ttft") == 1  # the role event
    assert value(found, GUIDELLM, "time_to_first_token_ms") == value(found, AIPERF, "time_to_first_token") == 60
    assert value(found, VLLM, "e2el") == 100  # the finish event
    assert value(found, AIPERF, "request_latency") == 90  # the last content
    assert value(found, GUIDELLM, "request_latency") == 0.101  # [DONE], in seconds
    assert value(found, VLLM, "tpot") == pytest.approx(99 / 5)
    assert value(found, GUIDELLM, "inter_token_latency_ms") == value(found, AIPERF, "inter_token_latency") == 30 / 5
    assert value(found, GUIDELLM, "time_per_output_token_ms") == 90 / 6  # with the first token's time
    assert found[VLLM]["itl"]["n"] == 4 and value(found, VLLM, "itl") == pytest.approx(99 / 4)  # events, not tokens
    assert found[AIPERF]["inter_chunk_latency"]["n"] == 2
    assert value(found, AIPERF, "time_to_first_output_token") == 70


def test_without_usage_what_needs_it_is_missing_and_the_rest_is_not() -> None:
    found = peer_metrics(*tables([replace(chat(), extra={"usage_completion_tokens": None})]))
    for peer, name in ((VLLM, "tpot"), (GUIDELLM, "inter_token_latency_ms"), (GUIDELLM, "time_per_output_token_ms")):
        assert "no usage" in found[peer][name]["missing"]
    assert value(found, VLLM, "ttft") == 1 and value(found, AIPERF, "inter_token_latency") == 6


def test_a_failed_request_has_no_part_in_any_metric() -> None:
    broken = replace(chat(), name="b", extra={"status": "incomplete", "cause": "cut_clean"})
    assert peer_metrics(*tables([chat(), broken])) == peer_metrics(*tables([chat()]))
    nothing = peer_metrics(*tables([broken]))
    assert all(set(metric) == {"missing"} for metrics in nothing.values() for metric in metrics.values())
