"""The load client against the simulator, over real HTTP: every token and time of it is known (FAULTS 5, 6 and 7, PEERS section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asking import driven, kinds, plan_of

from engcmp_assets.kernel.throughput.plans import Wishes
from engcmp_assets.kernel.throughput.requests import RequestRecords
from engcmp_resources.load.streams import Deadlines
from tests.simulator.running import Simulator, running_simulator

CHAT = "/v1/chat/completions"
DIALECTS = ("vllm", "cuteafd", "llama-server", "sglang")
LATE_NS = 250e6  # a machine that is busy with other things reads late; it never reads early


@pytest.fixture(scope="module")
def simulators() -> Iterator[dict[str, Simulator]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_simulator(name)) for name in DIALECTS}


@pytest.fixture
def vllm(simulators: dict[str, Simulator]) -> Simulator:
    simulators["vllm"].script()
    return simulators["vllm"]


def measured(simulator: Simulator, **plan: Any) -> tuple[RequestRecords, dict[str, Any]]:
    """The records of one request, and the simulator's own of it."""
    _, (one,) = driven(simulator.url, plan_of(**plan))
    return one, simulator.last(CHAT)


def agrees(one: RequestRecords, truth: dict[str, Any]) -> None:
    """Every token and every time is that of the server, read a little later and never earlier."""
    sent = [event for event in truth["events"] if event["tokens"]]
    carrying = one.tokens > 0
    assert one.tokens[carrying].tolist() == [len(event["tokens"]) for event in sent]
    assert one.row["n_tokens"] == len(truth["tokens"])
    assert one.row["n_first_tokens"] == len(sent[0]["tokens"])
    for read_ns, event in zip(one.t_ns[carrying].tolist(), sent, strict=True):
        assert event["sent_ns"] <= read_ns < event["sent_ns"] + LATE_NS
    assert one.row["t0_ns"] <= truth["received_ns"]
    assert one.row["t0_ns"] + one.row["ttft_ns"] == one.t_ns[carrying][0]
    assert one.row["last_at_ns"] == one.t_ns[carrying][-1]


@pytest.mark.parametrize("sizes", [[1], [2], [5, 1, 3], [4], [12], [5, 4, 3, 2, 1]])
def test_tokens_and_times_are_exact_with_any_number_of_tokens_a_chunk(vllm: Simulator, sizes: list[int]) -> None:
    vllm.script({"name": "several_tokens_in_a_chunk", "tokens": sizes}, ttft_ms=20.0, itl_ms=5.0)
    one, truth = measured(vllm, tokens=25)
    assert (one.row["status"], one.row["counted_by"], one.row["flags"]) == ("ok", "ids", [])
    agrees(one, truth)
    assert one.row["usage_completion_tokens"] == 25
    assert one.row["usage_prompt_tokens"] == len(truth["prompt_ids"])


@pytest.mark.parametrize("sizes", [[1], [5, 1, 3]])
def test_without_ids_continuous_usage_counts_as_exactly(vllm: Simulator, sizes: list[int]) -> None:
    vllm.script("token_ids_missing", {"name": "several_tokens_in_a_chunk", "tokens": sizes}, itl_ms=3.0)
    one, truth = measured(vllm, tokens=25)
    assert (one.row["status"], one.row["counted_by"], one.row["flags"]) == ("ok", "usage", [])
    agrees(one, truth)


def test_with_text_alone_the_servers_own_count_is_n_and_the_first_chunk_is_not_known(
    simulators: dict[str, Simulator],
) -> None:
    simulator = simulators["cuteafd"]
    simulator.script({"name": "several_tokens_in_a_chunk", "tokens": [3]}, itl_ms=3.0)
    _, (one,) = driven(simulator.url, plan_of(tokens=24), wishes=Wishes(continuous=False))
    truth = simulator.last(CHAT)
    assert (one.row["status"], one.row["counted_by"], one.row["n_tokens"]) == ("ok", "text", 24)
    assert one.row["n_first_tokens"] is None
    assert one.row["flags"] == ["first token's chunk not counted"]
    assert int((one.tokens > 0).sum()) == sum(bool(event["tokens"]) for event in truth["events"])


def test_with_text_alone_and_no_usage_the_count_is_approximate(vllm: Simulator) -> None:
    vllm.script("usage_missing", "token_ids_missing")
    one, _ = measured(vllm)
    assert one.row["usage_completion_tokens"] is None
    assert {"approximate count", "usage missing"} <= set(one.row["flags"])
    assert one.row["counted_by"] == "text"


def test_a_role_chunk_long_before_the_first_token_stops_no_clock(vllm: Simulator) -> None:
    vllm.script("role_only_first_chunk", ttft_ms=120.0)
    one, truth = measured(vllm)
    agrees(one, truth)
    assert one.row["ttft_ns"] > 120e6
    assert one.row["t_first_role_ns"] - one.row["t0_ns"] < one.row["ttft_ns"] - 60e6
    assert kinds(one)[0] == "role"


def test_empty_chunks_and_comments_count_nothing_and_lose_nothing(vllm: Simulator) -> None:
    vllm.script(
        {"name": "empty_content", "count": 2},
        {"name": "keepalive_comments", "every_ms": 10.0},
        ttft_ms=60.0,
        itl_ms=25.0,
    )
    one, truth = measured(vllm, tokens=6)
    assert (one.row["status"], one.row["flags"]) == ("ok", [])
    agrees(one, truth)
    heard = kinds(one)
    assert heard.count("empty") == 12
    assert heard.count("comment") == sum(event["kind"] == "comment" for event in truth["events"]) > 0
    assert len(heard) == len(truth["events"])


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "both"])
def test_reasoning_counts_once_under_either_name(vllm: Simulator, field: str) -> None:
    vllm.script({"name": "reasoning_field", "field": field}, itl_ms=3.0)
    one, truth = measured(vllm, tokens=60)
    agrees(one, truth)
    assert one.row["reasoning_tokens"] == truth["usage_sent"]["completion_tokens_details"]["reasoning_tokens"]
    assert {"reasoning", "answer"} <= set(kinds(one))
    answers = one.t_ns[[kind == "answer" for kind in kinds(one)]]
    assert one.row["ttfa_ns"] == answers[0] - one.row["t0_ns"] >= one.row["ttft_ns"]


def test_reasoning_alone_has_a_first_token_and_no_first_answer(vllm: Simulator) -> None:
    one, _ = measured(vllm, tokens=3)
    assert one.row["ttft_ns"] > 0
    assert one.row["ttfa_ns"] is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_text_and_count_as_it_sent(simulators: dict[str, Simulator], dialect: str) -> None:
    simulator = simulators[dialect]
    simulator.script(itl_ms=2.0)
    one, truth = measured(simulator, tokens=20)
    assert (one.row["status"], one.row["finish_reason"]) == ("ok", truth["finish_reason"])
    assert one.row["n_tokens"] == len(truth["tokens"])


def test_completions_of_text_and_of_token_ids(vllm: Simulator) -> None:
    for prompt in ({"prompt": "Hello."}, {"token_ids": [5, 6, 7]}):
        _, (one,) = driven(vllm.url, plan_of(request=prompt))
        truth = vllm.last("/v1/completions")
        assert one.row["status"] == "ok"
        agrees(one, truth)
        if "token_ids" in prompt:
            assert truth["prompt_ids"] == [5, 6, 7]


# usage


def test_usage_that_differs_from_the_ids_is_flagged_and_the_ids_are_kept(vllm: Simulator) -> None:
    vllm.script({"name": "usage_wrong", "completion": -3, "prompt": 2})
    _, (one,) = driven(vllm.url, plan_of(request={"expected_prompt_tokens": 9}))
    assert (one.row["n_tokens"], one.row["usage_completion_tokens"]) == (12, 9)
    assert {"counts differ", "prompt tokens differ"} <= set(one.row["flags"])


def test_a_count_above_max_tokens_is_impossible(vllm: Simulator) -> None:
    vllm.script({"name": "usage_wrong", "completion": 9})
    assert "impossible count" in measured(vllm)[0].row["flags"]
    vllm.script({"name": "max_tokens_ignored", "more": 3})
    one, truth = measured(vllm)
    assert one.row["n_tokens"] == len(truth["tokens"]) == 15
    assert one.row["flags"] == ["impossible count"]


def test_reasoning_tokens_stated_as_0_and_not_stated_are_two_things(vllm: Simulator) -> None:
    vllm.script("usage_no_reasoning")
    one, _ = measured(vllm)
    assert (one.row["reasoning_tokens"], one.row["flags"]) == (0, ["reasoning stated as 0"])
    vllm.script({"name": "usage_no_reasoning", "absent": True})
    one, _ = measured(vllm)
    assert (one.row["reasoning_tokens"], one.row["flags"]) == (None, [])


def test_cached_tokens_that_are_not_stated_are_absent_not_0(vllm: Simulator) -> None:
    one, truth = measured(vllm)
    assert one.row["cached_tokens"] == truth["cached_tokens"]
    vllm.script({"name": "cache_hidden", "absent": True})
    assert measured(vllm)[0].row["cached_tokens"] is None


def test_usage_that_is_null_in_every_chunk_is_no_usage(vllm: Simulator) -> None:
    vllm.script("usage_null")
    one, truth = measured(vllm)
    agrees(one, truth)
    assert (one.row["status"], one.row["usage_completion_tokens"], one.row["flags"]) == ("ok", None, ["usage missing"])


def test_a_reply_of_spaces_is_counted_by_its_ids_not_by_its_look(vllm: Simulator) -> None:
    vllm.script("reply_text")
    plan = {"tokens": 100, "sampling": {"chat_template_kwargs": {"enable_thinking": False}}}
    one, truth = measured(vllm, **plan)
    assert one.row["n_tokens"] == len(truth["tokens"]) == len("  \n \n\n  ") + 1
    assert one.row["characters"] == len("  \n \n\n  ")
    agrees(one, truth)


def test_an_end_before_max_tokens_is_flagged_where_ignore_eos_was_asked(vllm: Simulator) -> None:
    vllm.script("ignore_eos_not_honoured")
    one, _ = measured(vllm, tokens=30, sampling={"ignore_eos": True})
    assert (one.row["finish_reason"], one.row["n_tokens"]) == ("stop", 4)
    assert one.row["flags"] == ["shorter than asked"]


# broken streams


@pytest.mark.parametrize(
    ("fault", "status", "cause"),
    [
        ("done_missing", "incomplete", "no_done"),
        ("stream_ends", "incomplete", "cut_clean"),
        ({"name": "error_in_stream", "done": True}, "failed", "error_event"),
        ({"name": "error_in_stream", "event": True}, "failed", "error_event"),
        ("gpu_lost", "failed", "error_event"),
        ("connection_cut", "incomplete", "cut_in_body"),
        ("connection_reset", "incomplete", "reset"),
        ("stall", "incomplete", "stalled"),
        ("stuck_but_healthy", "failed", "stalled"),
        ("html", "failed", "html"),
        ("dead_behind_health", "failed", "http_500"),
        ({"name": "http_error", "status": 502}, "failed", "http_502"),
        ("http_429", "failed", "http_429"),
    ],
)
def test_each_broken_stream_is_told_apart(vllm: Simulator, fault: Any, status: str, cause: str) -> None:
    vllm.script(fault, itl_ms=10.0)
    _, (one,) = driven(vllm.url, plan_of(), deadlines=Deadlines(first_byte_s=5, between_s=0.5, whole_s=20))
    assert (one.row["status"], one.row["cause"]) == (status, cause)
    if status == "incomplete":
        assert one.row["n_tokens"] > 0


def test_a_stuck_engine_that_sends_comments_ends_at_the_deadline_of_the_whole(vllm: Simulator) -> None:
    vllm.script("stuck_but_healthy", {"name": "keepalive_comments", "every_ms": 20.0})
    _, (one,) = driven(vllm.url, plan_of(), deadlines=Deadlines(between_s=5, whole_s=0.6))
    assert (one.row["status"], one.row["cause"]) == ("failed", "whole_deadline")
    assert set(kinds(one)) == {"comment"}


def test_a_missing_finish_reason_is_flagged_and_the_reply_is_whole(vllm: Simulator) -> None:
    vllm.script("finish_missing")
    one, _ = measured(vllm)
    assert (one.row["status"], one.row["finish_reason"], one.row["flags"]) == ("ok", None, ["no finish reason"])


def test_an_engine_that_dies_under_a_request_fails_this_one_and_those_after() -> None:
    with running_simulator("vllm", faults=[{"name": "dies_at_token", "at": {"token": 3, "request": 1}}]) as simulator:
        _, records = driven(simulator.url, plan_of(4))
    assert [one.row["status"] for one in records] == ["ok", "incomplete", "failed", "failed"]
    assert records[1].row["cause"] in ("cut_in_body", "reset")
    assert {one.row["cause"] for one in records[2:]} <= {"connection_refused", "no_answer"}


# 429


def test_a_429_is_sent_again_after_the_time_it_states_and_counted(vllm: Simulator) -> None:
    vllm.script({"name": "http_429", "times": 1, "retry_after_s": 1})
    _, (one,) = driven(vllm.url, plan_of(), retries_429=2)
    assert (one.row["status"], one.row["retries"], one.row["flags"]) == ("ok", 1, ["refused with 429 before"])
    assert one.row["t0_ns"] - one.row["scheduled_at_ns"] > 1e9, (
        "the wait is the client's: it counts from the scheduled time"
    )
    agrees(one, vllm.last(CHAT))


def test_retries_of_a_429_have_an_end_and_nothing_else_is_sent_again(vllm: Simulator) -> None:
    vllm.script({"name": "http_429", "retry_after_s": 0})
    before = len(vllm.truth(path=CHAT))
    _, (one,) = driven(vllm.url, plan_of(), retries_429=2)
    assert (one.row["status"], one.row["cause"], one.row["retries"]) == ("failed", "http_429", 2)
    assert len(vllm.truth(path=CHAT)) - before == 3
    for fault in ("connection_cut", {"name": "http_error", "status": 503}, "error_in_stream"):
        vllm.script(fault)
        before = len(vllm.truth(path=CHAT))
        driven(vllm.url, plan_of(), retries_429=2)
        assert len(vllm.truth(path=CHAT)) - before == 1


def test_what_is_not_asked_for_is_not_sent(vllm: Simulator) -> None:
    _, (one,) = driven(vllm.url, plan_of(), wishes=Wishes(token_ids=False, usage=False))
    assert (one.row["counted_by"], one.row["usage_completion_tokens"]) == ("text", None)
