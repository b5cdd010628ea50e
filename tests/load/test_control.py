"""What is asked of a server beside the streams: refusals, whether it is idle, and counters before and after."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext

import pytest
from asking import driven, plan_of
from raw_server import raw_server

from engcmp_assets.kernel.throughput.plans import CHAT, Wishes, request_body, short_request
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.control import Control, EngineState, difference, granted
from engcmp_resources.load.streams import Address
from engcmp_resources.secrecy import hidden_secret
from tests.simulator.running import running_simulator


def control(url: str, key: str | None = None) -> nullcontext[Control]:
    return nullcontext(Control(Address.parse(url), key))


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "cuteafd"])
def test_a_busy_engine_is_seen_and_an_idle_one_too(dialect: str) -> None:
    with running_simulator(dialect, timing={"ttft_ms": 1500.0}) as simulator, control(simulator.url) as asked:
        before = asked.state()
        assert (before.busy, before.why) == (0, None)
        thread = threading.Thread(target=driven, args=(simulator.url, plan_of()))
        thread.start()
        until = time.monotonic() + 10
        while not asked.state().busy:
            assert time.monotonic() < until
        after = asked.settled(10)
        thread.join()
    assert after.busy == 0
    assert difference(before, after)["generation_tokens"] == 12


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"running":9}',
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>5</html>\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\nvllm:num_requests_running x\n",
    ],
)
def test_metrics_that_are_missing_json_or_something_else_are_not_busy(answer: bytes) -> None:
    with raw_server([answer, "close"]) as server, control(server.url) as asked:
        state = asked.state()
    assert state.busy == 0
    assert state.why is not None


def test_metrics_of_a_server_that_is_gone_are_not_busy() -> None:
    with raw_server(["close"]) as server, control(server.url) as asked:
        assert asked.state().why is not None


def test_metrics_of_several_engines_behind_one_address_are_summed() -> None:
    text = b'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 1.0\nvllm:num_requests_waiting 4\n'
    with (
        raw_server([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text]) as server,
        control(server.url) as asked,
    ):
        assert asked.state().busy == 7


def test_metrics_of_llama_server_tell_what_it_processes_and_defers() -> None:
    text = b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 1\n"
    text += b"llamacpp:tokens_predicted_total 90\n"
    with (
        raw_server([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text]) as server,
        control(server.url) as asked,
    ):
        state = asked.state()
    assert (state.busy, state.values["generation_tokens"]) == (3, 90)


def test_drafts_are_counted_as_differences_over_a_cell() -> None:
    with running_simulator("vllm", drafts=3) as simulator, control(simulator.url) as asked:
        driven(simulator.url, plan_of(2, tokens=40))
        before = asked.state()
        _, records = driven(simulator.url, plan_of(3, tokens=40))
        found = difference(before, asked.settled(5))
        truth = simulator.truth(path=CHAT)[2:]
    drafted = [event["tokens"] for record in truth for event in [one for one in record["events"] if one["tokens"]][1:]]
    assert found["generation_tokens"] == sum(one.row["n_tokens"] for one in records)
    assert (found["draft_steps"], found["drafted"]) == (len(drafted), 3 * len(drafted))
    assert found["accepted"] == sum(len(tokens) - 1 for tokens in drafted) > 0
    assert found["cached_tokens"] == sum(record["cached_tokens"] for record in truth)


def test_counters_that_fell_or_a_new_process_start_are_a_restart_without_differences() -> None:
    old = EngineState({"generation_tokens": 90.0, "started_s": 5.0, "running": 0.0})
    assert difference(old, EngineState({"generation_tokens": 95.0, "started_s": 5.0, "running": 0.0})) == {
        "generation_tokens": 5,
        "restarts": 0,
    }
    assert difference(old, EngineState({"generation_tokens": 95.0, "started_s": 6.0})) == {"restarts": 1}
    assert difference(old, EngineState({"generation_tokens": 5.0})) == {"restarts": 1}
    assert difference(EngineState({}), old) == {}


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        ([], {"token_ids": True, "continuous": True, "usage": True}),
        (["return_token_ids"], {"token_ids": False, "continuous": True, "usage": True}),
        (["continuous_usage_stats"], {"token_ids": True, "continuous": False, "usage": True}),
        (["return_token_ids", "continuous_usage_stats"], {"token_ids": False, "continuous": False, "usage": True}),
        (["timings_per_token"], {"token_ids": True, "continuous": True, "usage": True}),
        (["stream_options"], {"token_ids": True, "continuous": False, "usage": False}),
        (["stream_options", "return_token_ids"], {"token_ids": False, "continuous": False, "usage": False}),
    ],
)
def test_what_a_400_refuses_is_dropped_and_the_rest_kept(refused: list[str], kept: dict[str, bool]) -> None:
    faults = [{"name": "refuses_fields", "fields": refused}] if refused else []
    with running_simulator("vllm", faults=faults) as simulator, control(simulator.url) as asked:

        def ask(wanted: Mapping[str, bool]) -> str | None:
            return asked.refusal(CHAT, request_body(plan_of(), short_request(CHAT, 0, 1), Wishes(**wanted)))

        taken, told = granted(ask)
    # What only llama-server knows goes with the first refusal.
    assert taken == kept | {"timings": not refused}
    assert set(told) == {name for name, given in taken.items() if not given}
    assert all("Extra inputs" in text for text in told.values())


def test_a_server_that_refuses_a_plain_request_is_an_error_with_its_words() -> None:
    with pytest.raises(EngcmpError, match="refuses a plain streamed request: temperature"):
        granted(lambda _: "temperature must be 1")


def test_nothing_that_answers_is_an_error_with_the_address() -> None:
    with control("http://127.0.0.1:9") as asked, pytest.raises(EngcmpError, match="nothing answers") as refused:
        asked.refusal(CHAT, b"{}")
    assert "127.0.0.1:9" in str(refused.value)


def test_the_key_is_sent_and_stands_in_no_error() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with raw_server([answer]) as server, control(server.url, "secret-7") as asked:
        asked.state()
        assert b"authorization: bearer secret-7" in server.requests[0].lower()
    with control("http://127.0.0.1:9", "secret-7") as asked, pytest.raises(EngcmpError) as refused:
        asked.refusal(CHAT, b"{}")
    assert "secret-7" not in str(refused.value)


def test_a_key_that_a_server_echoes_in_its_refusal_is_hidden() -> None:
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 21\r\n\r\nno such key: secret-7"
    with raw_server([answer]) as server, control(server.url, "secret-7") as asked:
        assert asked.refusal(CHAT, b"{}") == f"no such key: {hidden_secret('secret-7')}"


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    text = b"vllm:num_requests_running 2\n"
    with (
        raw_server([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text]) as server,
        control(server.url) as asked,
    ):
        assert asked.state().busy == 2
