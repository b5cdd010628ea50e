"""Start-up, KV pool, repeated prompts and the thinking switch, with what was not measured said beside them."""

from __future__ import annotations

import json

import pytest

from engcmp_assets.kernel.throughput.startup import (
    PrefixRequest,
    Start,
    kv_pools,
    prefix_repeats,
    ready_times,
    thinking_switch,
)
from engcmp_resources.errors import EngcmpError

JIT = ("compile cache",)


def test_ready_times_are_medians_by_state_with_their_caches_named() -> None:
    slow = [Start(700, "cold", JIT), Start(690, "cold", JIT), Start(698, "cold", JIT), Start(349, "warm", JIT)]
    fast = [Start(100, "cold", JIT), Start(50, "warm", JIT)]
    found = ready_times(fast, slow)
    assert found["baseline"]["cold_s"] == 698 and found["baseline"]["cold_starts"] == 3
    assert found["baseline"]["cold_caches"] == ["compile cache"]
    assert found["baseline"]["cold_to_warm"] == 2 and found["candidate"]["cold_to_warm"] == 2
    assert found["cold_ratio"] == pytest.approx(100 / 698) and found["warm_ratio"] == pytest.approx(50 / 349)
    assert found["labels"] == []
    assert json.loads(json.dumps(found)) == found


def test_a_state_that_was_not_measured_is_missing_and_unnamed_or_unlike_caches_are_said() -> None:
    found = ready_times([Start(90, "warm", ())], [Start(349, "warm", JIT)])
    assert found["cold_ratio"] == {"missing": "no cold start was measured"}
    assert found["candidate"]["cold_to_warm"] == {"missing": "no cold start was measured"}
    assert found["labels"] == [
        "candidate, warm: no cache is named, so what the start could reuse is not known",
        "warm: the two arms' caches are not the same",
    ]
    with pytest.raises(EngcmpError, match="warm starts of the candidate differ in their caches"):
        ready_times([Start(90, "warm", ()), Start(91, "warm", JIT)], [])


def test_a_ratio_of_pools_carries_both_maximum_lengths() -> None:
    found = kv_pools(
        {"tokens": 1_931_264, "max_model_len": 262_144, "how": "log"}, {"tokens": 1_377_179, "max_model_len": 1_048_576}
    )
    assert found["ratio"] == pytest.approx(1.4023, abs=1e-4)
    assert found["candidate"] == {"tokens": 1_931_264, "max_model_len": 262_144, "how": "log"}
    assert found["labels"] == ["maximum lengths differ: 262,144 on the candidate, 1,048,576 on the baseline"]


def test_a_pool_that_is_not_stated_has_no_ratio() -> None:
    found = kv_pools({"tokens": {"missing": "see the log"}, "max_model_len": None}, {"tokens": 10, "max_model_len": 4})
    assert found["ratio"] == {"missing": "candidate: see the log"}
    assert found["labels"] == ["the candidate does not state its maximum length"]


def repeats(*cached: int | None) -> list[PrefixRequest]:
    return [
        PrefixRequest(8192, number, 2_000_000_000 if number == 0 else 20_000_000, one)
        for number, one in enumerate(cached)
    ]


def test_a_prompt_that_is_repeated_shows_what_was_cached_at_each_length() -> None:
    both = prefix_repeats([*repeats(0, 8192, 8192), PrefixRequest(1024, 0, 500, 0)])
    assert [one["prompt_tokens"] for one in both] == [1024, 8192]
    assert both[0]["reuse"] == {"missing": "the prompt was not repeated"}
    long = both[1]
    assert long["cold_ttft_ms"] == 2000 and long["reuse"] == "reused" and long["labels"] == []
    assert long["repeats"][0] == {
        "repeat": 1, "ttft_ms": 20, "share_of_cold": 0.01, "cached_tokens": 8192, "cached_share": 1,
    }  # fmt: skip


def test_a_fast_repeat_without_cached_tokens_stated_proves_no_reuse() -> None:
    assert prefix_repeats(repeats(None, None))[0]["reuse"] == {"missing": "the engine does not state cached tokens"}
    assert prefix_repeats(repeats(0, 0))[0]["reuse"] == "not reused"
    assert prefix_repeats(repeats(4096, 8192))[0]["labels"] == ["the first sending was not cold"]
    with pytest.raises(EngcmpError, match=r"8192 tokens: repeats \[1\]"):
        prefix_repeats(repeats(0, 8192)[1:])


def test_a_switch_is_judged_by_the_reply_and_else_by_the_prompt() -> None:
    same, other = {"prompt_tokens": 147}, {"prompt_tokens": 149}
    assert thinking_switch(same, same)["switch"] == "ignored by the template"
    assert thinking_switch(same, other)["switch"] == "changes the prompt"
    assert thinking_switch(same | {"reasoning_tokens": 90}, other | {"reasoning_tokens": 0})["switch"] == "honoured"
    assert (
        thinking_switch(same | {"reasoning_tokens": 90}, other | {"reasoning_tokens": 80})["switch"] == "not honoured"
    )
    assert "missing" in thinking_switch({"reasoning_tokens": 0}, {"reasoning_tokens": 0})["switch"]
    assert "missing" in thinking_switch(None, same)["switch"]
    assert thinking_switch({"token_ids": [1, 2]}, {"token_ids": [1, 3]}) == {
        "on": {},
        "off": {},
        "switch": "changes the prompt",
    }
