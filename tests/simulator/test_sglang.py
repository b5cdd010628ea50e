"""The dialect of SGLang: forms as its package has them, values as the model has them."""

from __future__ import annotations

import numpy as np
import pytest

from .model import Model, chat_prompt, log_softmax, tokenize
from .running import READY, Simulator
from .talking import ask, chat, chat_stream, counters, stream

PROMPT = tokenize("Scored by generate.")
GREEDY = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}


def test_ready_and_what_it_says_of_itself(sglang: Simulator) -> None:
    assert any(READY["sglang"] in line for line in sglang.log)
    assert any("max_total_num_tokens=65536" in line for line in sglang.log)
    assert ask(sglang, "/ready").status_code == 200
    info = ask(sglang, "/server_info").json()
    assert (info["version"], info["max_running_requests"], info["context_length"]) == ("0.5.23", 16, 8192)
    assert ask(sglang, "/model_info").json()["is_generation"] is True
    assert ask(sglang, "/tokenize", {"prompt": "ab", "add_special_tokens": False}).json()["tokens"] == tokenize("ab")


def test_asking_for_health_generates_and_asking_whether_it_is_ready_does_not(sglang: Simulator) -> None:
    before = counters(sglang)["sglang:generation_tokens_total"]
    ask(sglang, "/ready")
    assert counters(sglang)["sglang:generation_tokens_total"] == before
    ask(sglang, "/health")
    assert counters(sglang)["sglang:generation_tokens_total"] == before + 1


@pytest.mark.parametrize("first", [0, 7])
def test_log_probabilities_of_the_prompt_from_a_token_on(sglang: Simulator, first: int) -> None:
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": first, "top_logprobs_num": 2}
    answer = ask(sglang, "/generate", body | {"token_ids_logprob": [9, 300], "sampling_params": GREEDY}).json()
    meta = answer["meta_info"]
    rows = log_softmax(Model().rows(PROMPT, range(first, len(PROMPT) - 1)))
    assert meta["input_token_logprobs"][0] == [None, PROMPT[first], None]
    assert meta["input_top_logprobs"][0] is None
    assert meta["input_token_ids_logprobs"][0] is None
    assert len(meta["input_token_logprobs"]) == len(PROMPT) - first
    for index, row in enumerate(rows):
        token = PROMPT[first + index + 1]
        assert meta["input_token_logprobs"][index + 1] == [float(row[token]), token, None]
        best = np.argsort(-row, kind="stable")[:2].tolist()
        assert meta["input_top_logprobs"][index + 1] == [[float(row[one]), one, None] for one in best]
        assert meta["input_token_ids_logprobs"][index + 1] == [[float(row[one]), one, None] for one in (9, 300)]
    reply = Model().greedy(PROMPT, 3)
    assert answer["output_ids"] == reply
    assert [one[1] for one in meta["output_token_logprobs"]] == reply
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (len(PROMPT), 3, 0)


def test_without_a_start_only_the_reply_is_scored(sglang: Simulator) -> None:
    answer = ask(sglang, "/generate", {"input_ids": PROMPT, "return_logprob": True, "sampling_params": GREEDY}).json()
    assert answer["meta_info"]["input_token_logprobs"] == []
    assert len(answer["meta_info"]["output_token_logprobs"]) == 3


def test_a_stream_repeats_the_whole_text_with_each_event(sglang: Simulator) -> None:
    heard = stream(sglang, "/generate", {"input_ids": PROMPT, "sampling_params": GREEDY})
    reply = Model().greedy(PROMPT, 3)
    assert [event["output_ids"] for event in heard.events] == [reply[:1], reply[:2], reply]
    assert [event["meta_info"]["completion_tokens"] for event in heard.events] == [1, 2, 3]
    assert heard.done


def test_the_cache_is_read_and_flushed(sglang: Simulator) -> None:
    ask(sglang, "/flush_cache", {})
    body = {"input_ids": PROMPT * 4, "sampling_params": GREEDY}
    cached = [ask(sglang, "/generate", body).json()["meta_info"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 4 * len(PROMPT) // 16 * 16]
    assert ask(sglang, "/flush_cache", {}).status_code == 200
    assert ask(sglang, "/generate", body).json()["meta_info"]["cached_tokens"] == 0


def test_chats(sglang: Simulator) -> None:
    heard = chat_stream(sglang, max_tokens=5)
    assert heard.done
    assert "reasoning_content" in heard.deltas[1]
    assert heard.usage["prompt_tokens"] == len(chat_prompt([("user", "Hello.")]))
    assert chat(sglang, max_tokens=5).json()["usage"]["completion_tokens"] == 5


def test_errors_have_its_form(sglang: Simulator) -> None:
    answer = ask(sglang, "/generate", {"input_ids": [99_999]})
    assert answer.status_code == 400
    assert (answer.json()["object"], answer.json()["code"]) == ("error", 400)
