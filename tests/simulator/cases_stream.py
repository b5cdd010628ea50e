"""What shows each fault of streams and answers: the same request without the fault, then with it."""

from __future__ import annotations

import itertools
import json
import socket
from typing import Any

import pytest

from . import model as truth
from .cases import Of, shows
from .model import Model, chat_prompt
from .talking import ask, chat, chat_body, chat_stream, stream

PROMPT = chat_prompt([("user", "Hello.")])
THOUGHT = Model().greedy(PROMPT, 12)


@shows("role_only_first_chunk")
def the_role_comes_at_once(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        simulator = of(dialect)
        simulator.script("role_only_first_chunk", ttft_ms=80.0)
        assert chat_stream(simulator, max_tokens=2).deltas[0] == {"role": "assistant", "content": ""}
        role, first = simulator.last()["events"][:2]
        assert (role["kind"], first["kind"]) == ("role", "tokens")
        assert first["sent_ns"] - role["sent_ns"] > 80e6
        simulator.script(ttft_ms=80.0)
        chat_stream(simulator, max_tokens=2)
        record = simulator.last()
        assert record["events"][0]["sent_ns"] - record["received_ns"] > 80e6, (
            "without it, nothing comes before the first token"
        )


@shows("empty_content")
def chunks_of_nothing(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "empty_content", "count": 2})
    heard = chat_stream(simulator, max_tokens=3)
    empty = [delta for delta in heard.deltas[1:] if delta == {"content": ""}]
    assert len(empty) == 6
    assert list(itertools.chain(*heard.token_ids)) == THOUGHT[:3]
    kinds = [event["kind"] for event in simulator.last()["events"]]
    assert kinds == ["role", *["empty", "empty", "tokens"] * 3, "usage", "done"]


@shows("keepalive_comments")
def comments_while_it_waits(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "keepalive_comments", "every_ms": 10.0, "text": "still here"}, ttft_ms=300.0)
    heard = chat_stream(simulator, max_tokens=2)
    assert 1 <= len(heard.comments) <= 30
    assert set(heard.comments) == {": still here"}
    assert heard.usage["completion_tokens"] == 2
    simulator.script(ttft_ms=50.0)
    assert not chat_stream(simulator, max_tokens=2).comments


@shows("several_tokens_in_a_chunk")
def chunks_of_the_sizes_that_were_asked_for(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "several_tokens_in_a_chunk", "tokens": [5, 1, 3]})
    heard = chat_stream(simulator, max_tokens=12)
    assert [len(ids) for ids in heard.token_ids] == [5, 1, 3, 3]
    assert list(itertools.chain(*heard.token_ids)) == THOUGHT
    simulator.script({"name": "several_tokens_in_a_chunk", "tokens": [100]})
    assert [len(ids) for ids in chat_stream(simulator, max_tokens=12).token_ids] == [12]


@shows("reasoning_field")
def the_thought_has_another_name(of: Of, _: Any) -> None:
    simulator = of("vllm")
    for field, names in (("reasoning_content", {"reasoning_content"}), ("both", {"reasoning", "reasoning_content"})):
        simulator.script({"name": "reasoning_field", "field": field})
        deltas = chat_stream(simulator, max_tokens=3).deltas[1:]
        assert [set(delta) for delta in deltas] == [names] * 3
    assert chat(simulator, max_tokens=3).json()["choices"][0]["message"]["reasoning_content"]


@shows("reasoning_in_content")
def the_thought_stays_in_the_answer(of: Of, _: Any) -> None:
    simulator = of("vllm")
    plain = chat_stream(simulator, max_tokens=60)
    simulator.script("reasoning_in_content")
    heard = chat_stream(simulator, max_tokens=60)
    assert heard.text("reasoning") == ""
    assert heard.text() == plain.text("reasoning") + "</think>" + plain.text()


@shows("usage_missing")
def there_is_no_usage(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        simulator = of(dialect)
        assert chat_stream(simulator).usage
        simulator.script("usage_missing")
        assert chat_stream(simulator).usage is None
        assert chat_stream(simulator, stream_options=None).usage is None
        assert "usage" not in chat(simulator).json()


@shows("usage_wrong")
def usage_counts_wrong(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "usage_wrong", "completion": 9, "prompt": -2})
    heard = chat_stream(simulator, max_tokens=4)
    assert heard.usage["completion_tokens"] == 13
    assert heard.usage["prompt_tokens"] == len(PROMPT) - 2
    assert sum(map(len, heard.token_ids)) == 4
    record = simulator.last()
    assert (len(record["tokens"]), record["usage_sent"]["completion_tokens"]) == (4, 13)
    sglang = of("sglang")
    sglang.script({"name": "usage_wrong", "completion": 1})
    answer = ask(sglang, "/generate", {"input_ids": [9], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}})
    assert answer.json()["meta_info"]["completion_tokens"] == 3


@shows("usage_null")
def usage_is_null(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("usage_null")
    heard = chat_stream(simulator, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert {event["usage"] for event in heard.events} == {None}
    assert heard.done


@shows("usage_no_reasoning")
def usage_says_nothing_was_thought(of: Of, _: Any) -> None:
    simulator = of("vllm")
    assert chat_stream(simulator, max_tokens=4).usage["completion_tokens_details"] == {"reasoning_tokens": 4}
    simulator.script("usage_no_reasoning")
    assert chat_stream(simulator, max_tokens=4).usage["completion_tokens_details"] == {"reasoning_tokens": 0}
    simulator.script({"name": "usage_no_reasoning", "absent": True})
    assert "completion_tokens_details" not in chat_stream(simulator, max_tokens=4).usage


@shows("token_ids_missing")
def ids_that_were_asked_for_do_not_come(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("token_ids_missing")
    heard = chat_stream(simulator, max_tokens=4)
    assert not heard.token_ids
    assert "prompt_token_ids" not in heard.events[0]
    assert [token["id"] for token in simulator.last()["tokens"]] == THOUGHT[:4]
    sglang = of("sglang")
    sglang.script("token_ids_missing")
    assert "output_ids" not in ask(sglang, "/generate", {"input_ids": [9]}).json()


@shows("finish_missing")
def there_is_no_finish_reason(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        simulator = of(dialect)
        simulator.script("finish_missing")
        heard = chat_stream(simulator, max_tokens=4)
        assert {event["choices"][0]["finish_reason"] for event in heard.events if event["choices"]} == {None}
        assert heard.done
        assert chat(simulator, max_tokens=4).json()["choices"][0]["finish_reason"] is None
        assert simulator.last()["finish_reason"] == "length"


@shows("done_missing")
def there_is_no_done(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd", "sglang", "llama-server"):
        simulator = of(dialect)
        assert chat_stream(simulator).done
        simulator.script("done_missing")
        heard = chat_stream(simulator)
        assert (heard.done, heard.broken, heard.usage is not None) == (False, False, True)


@shows("error_in_stream")
def an_error_inside_a_good_stream(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "error_in_stream", "at": {"token": 2}})
    heard = chat_stream(simulator)
    assert (heard.status, heard.done) == (200, False)
    assert sum(map(len, heard.token_ids)) == 2
    assert "error" in heard.events[-1]
    simulator.script({"name": "error_in_stream", "event": True})
    heard = chat_stream(simulator)
    assert "event: error" in heard.lines
    assert sum(map(len, heard.token_ids)) == 3
    assert chat(simulator).status_code == 200, "only streams have it"


@shows("error_in_stream")
def an_error_before_done(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "error_in_stream", "done": True})
    heard = chat_stream(simulator)
    assert "error" in heard.events[-1]
    assert heard.done


@shows("stream_ends")
def a_stream_that_ends_early(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        simulator = of(dialect)
        simulator.script({"name": "stream_ends", "at": {"token": 4}})
        heard = chat_stream(simulator)
        assert (heard.status, heard.done, heard.broken, heard.usage) == (200, False, False, None)
        assert len(simulator.last()["tokens"]) == 4
        assert simulator.last()["ended"] == "whole"


@shows("refuses_fields")
def a_field_that_is_not_known(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "refuses_fields", "fields": ["continuous_usage_stats", "return_token_ids"]})
    assert chat(simulator, return_token_ids=True).status_code == 400
    assert chat(simulator, stream=True, stream_options={"continuous_usage_stats": True}).status_code == 400
    assert chat(simulator).status_code == 200


@shows("html")
def a_page_instead_of_json(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("html")
    answer = chat(simulator)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html")
    assert answer.text.startswith("<!DOCTYPE html>")
    assert ask(simulator, "/v1/models").json()["data"]
    simulator.script({"name": "html", "at": {"path": "/v1/models"}})
    assert ask(simulator, "/v1/models").text.startswith("<!DOCTYPE html>")
    assert chat(simulator).json()["choices"]


@shows("json_cut")
def half_a_body(of: Of, _: Any) -> None:
    simulator = of("cuteafd")
    simulator.script("json_cut")
    answer = chat(simulator)
    assert (answer.status_code, answer.headers["Content-Length"]) == (200, str(len(answer.content)))
    with pytest.raises(json.JSONDecodeError):
        answer.json()


@shows("http_429")
def too_many_requests(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd", "llama-server", "sglang"):
        simulator = of(dialect)
        simulator.script({"name": "http_429", "times": 1, "retry_after_s": 7})
        refused = chat(simulator)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")
        assert chat(simulator).status_code == 200, "it was to happen once"


@shows("http_error")
def an_error_status(of: Of, _: Any) -> None:
    forms = {"vllm": "error", "cuteafd": "error", "llama-server": "error", "sglang": "object"}
    for dialect, key in forms.items():
        simulator = of(dialect)
        simulator.script({"name": "http_error", "status": 502, "message": "no upstream"})
        answer = chat(simulator)
        assert answer.status_code == 502
        assert key in answer.json()
        assert "no upstream" in answer.text


@shows("connection_cut")
def the_connection_breaks(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "connection_cut", "at": {"token": 4}})
    heard = chat_stream(simulator)
    assert (heard.broken, heard.done) == (True, False)
    assert sum(map(len, heard.token_ids)) == 4
    assert simulator.last()["ended"] == "cut"


@shows("connection_reset")
def the_connection_is_reset(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "connection_reset", "at": {"token": 4}}, itl_ms=20.0)
    with socket.create_connection(simulator.url.removeprefix("http://").split(":"), timeout=20) as client:
        body = json.dumps(chat_body(stream=True)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: simulator\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        with pytest.raises(ConnectionResetError):
            while client.recv(65536):
                pass
    assert simulator.last()["ended"] == "cut"


@shows("stall")
def silence_before_a_token(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "stall", "ms": 150.0, "at": {"token": 2}})
    heard = chat_stream(simulator, max_tokens=4)
    assert heard.done
    sent = [token["sent_ns"] for token in simulator.last()["tokens"]]
    assert sent[2] - sent[1] > 150e6
    simulator.script({"name": "stall"})
    heard = chat_stream(simulator, give_up_s=0.3)
    assert heard.broken
    assert sum(map(len, heard.token_ids)) == 3
    assert simulator.last()["ended"] == "client gone"


@shows("reply_text")
def a_reply_that_was_written_before(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("reply_text")
    heard = chat_stream(simulator, max_tokens=100, chat_template_kwargs={"enable_thinking": False})
    assert heard.text() == "  \n \n\n  "
    assert heard.usage["completion_tokens"] == len("  \n \n\n  ") + 1
    simulator.script({"name": "reply_text", "text": "hm</think>yes"})
    heard = chat_stream(simulator, max_tokens=100)
    assert (heard.text("reasoning"), heard.text()) == ("hm", "yes")


@shows("max_tokens_ignored")
def more_tokens_than_were_asked_for(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "max_tokens_ignored", "more": 3})
    assert list(itertools.chain(*chat_stream(simulator, max_tokens=6).token_ids)) == THOUGHT[:9]


@shows("ignore_eos_not_honoured")
def an_end_that_was_to_be_ignored(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "ignore_eos_not_honoured", "at": {"token": 5}})
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "return_token_ids": True}
    heard = stream(simulator, "/v1/completions", body | {"ignore_eos": True})
    ids = list(itertools.chain(*heard.token_ids))
    assert ids == [*THOUGHT[:5], truth.IM_END]
    assert heard.events[-1]["choices"][0]["finish_reason"] == "stop"
    heard = stream(simulator, "/v1/completions", body)
    assert list(itertools.chain(*heard.token_ids))[:12] == THOUGHT, "without ignore_eos nothing changes"
