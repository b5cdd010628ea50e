"""The dialect of vLLM: forms as the real server has them, values as the model has them."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest

from . import model as truth
from .model import Model, chat_prompt, log_softmax, tokenize
from .running import READY, Simulator, running_simulator
from .talking import MODEL, ask, chat, chat_body, chat_stream, counters, rows_of, score, stream

PROMPT = tokenize("The model reads this text.")


def test_the_log_says_what_the_engine_has_and_when_it_is_ready(vllm: Simulator) -> None:
    lines = vllm.log
    assert any(
        "GPU KV cache size: 65,536 tokens, Maximum concurrency for 8,192 tokens per request: 8.00x" in one
        for one in lines
    )
    assert any(one.endswith(READY["vllm"]) for one in lines)
    assert ask(vllm, "/health").content == b""
    assert ask(vllm, "/version").json() == {"version": "0.33.0"}
    (model,) = ask(vllm, "/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL, 8192)


def test_tokenize_and_back(vllm: Simulator) -> None:
    answer = ask(vllm, "/tokenize", {"prompt": "Caf\u00e9", "return_token_strs": True}).json()
    assert answer["tokens"] == [truth.BOS, *tokenize("Caf\u00e9")]
    assert (answer["count"], answer["max_model_len"], len(answer["token_strs"])) == (6, 8192, 6)
    bare = ask(vllm, "/tokenize", {"prompt": "Caf\u00e9", "add_special_tokens": False}).json()["tokens"]
    assert ask(vllm, "/detokenize", {"tokens": bare}).json() == {"prompt": "Caf\u00e9"}


def test_a_rendered_chat_is_what_a_chat_runs(vllm: Simulator) -> None:
    body = chat_body("Hello <think>", chat_template_kwargs={"enable_thinking": False})
    ids = ask(vllm, "/v1/chat/completions/render", body).json()["token_ids"]
    assert ids == chat_prompt([("user", "Hello <think>")], thinking=False)
    assert ask(vllm, "/tokenize", body).json()["tokens"] == ids
    assert ask(vllm, "/v1/chat/completions", body | {"return_token_ids": True}).json()["prompt_token_ids"] == ids
    assert vllm.last()["prompt_ids"] == ids


@pytest.mark.parametrize("count", [0, 1, 5, -1])
def test_prompt_log_probabilities_are_the_models(vllm: Simulator, count: int) -> None:
    entries = score(vllm, PROMPT, prompt_logprobs=count)
    rows = log_softmax(Model().rows(PROMPT, range(len(PROMPT) - 1)))
    assert entries[0] is None
    assert len(entries) == len(PROMPT)
    for entry, row, token in zip(entries[1:], rows, PROMPT[1:], strict=True):
        best = np.argsort(-row, kind="stable")[: 512 if count == -1 else count].tolist()
        assert {int(one) for one in entry} == {*best, token}
        for one, said in entry.items():
            assert said["logprob"] == float(row[int(one)])
            assert said["rank"] == int((row > row[int(one)]).sum()) + 1
            assert said["decoded_token"] == truth.piece(int(one)).decode(errors="replace")
    assert vllm.last()["scored_rows"] == list(range(len(PROMPT) - 1))


def test_scoring_does_not_read_the_prefix_cache_but_fills_it(vllm: Simulator) -> None:
    salt = {"cache_salt": "scoring"}
    long = PROMPT * 3
    score(vllm, long, **salt)
    score(vllm, long, **salt)
    assert vllm.last()["cached_tokens"] == 0
    answer = ask(vllm, "/v1/completions", {"prompt": long, "max_tokens": 1} | salt).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(long) - 1) // 16 * 16
    assert ask(vllm, "/reset_prefix_cache", {}).json() == {"success": True}
    answer = ask(vllm, "/v1/completions", {"prompt": long, "max_tokens": 1} | salt).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"prompt_logprobs": 1, "stream": True}, 400, "not available when `stream=True`"),
        ({"prompt_logprobs": -2}, 400, "non-negative value or -1"),
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"prompt": []}, 400, "at least one token"),
        ({"prompt": [512]}, 400, "outside the vocabulary of 512"),
        ({"prompt": [9] * 8192}, 400, "8192 tokens, the context 8192"),
        ({"max_tokens": 8192}, 400, "the context is 8192 tokens"),
        ({"max_tokens": 0}, 400, "at least 1"),
        ({"n": 2}, 400, "n must be 1"),
    ],
)
def test_what_cannot_be_done_is_refused(vllm: Simulator, changes: dict[str, Any], status: int, words: str) -> None:
    answer = ask(vllm, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1} | changes)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["code"] == status


def test_more_log_probabilities_than_the_cap_are_refused() -> None:
    with running_simulator("vllm") as simulator:
        for name, count in (("prompt_logprobs", 21), ("logprobs", 21), ("prompt_logprobs", -1)):
            answer = ask(simulator, "/v1/completions", {"prompt": PROMPT, "max_tokens": 1, name: count})
            assert answer.status_code == 400
            assert f"Requested {name} of {count}, which is greater than max allowed: 20" in answer.text
        assert score(simulator, PROMPT, prompt_logprobs=20)[1]


def test_a_stream_has_a_role_chunk_then_tokens_then_usage_then_done(vllm: Simulator) -> None:
    heard = chat_stream(vllm, max_tokens=60, stream_options={"include_usage": True, "continuous_usage_stats": True})
    prompt = chat_prompt([("user", "Hello.")])
    reply = Model().greedy(prompt, 60)
    reply = reply[: reply.index(truth.IM_END) + 1] if truth.IM_END in reply else reply
    assert (heard.status, heard.done, heard.broken) == (200, True, False)
    assert heard.deltas[0] == {"role": "assistant", "content": ""}
    assert heard.events[0]["prompt_token_ids"] == prompt
    assert list(itertools.chain(*heard.token_ids)) == reply
    ends = [event["choices"][0]["finish_reason"] for event in heard.events if event["choices"]]
    assert ends[-1] == ("stop" if reply[-1] == truth.IM_END else "length")
    assert set(ends[:-1]) == {None}
    assert heard.events[-1]["choices"] == []
    assert ["prompt_tokens_details" in event["usage"] for event in heard.events] == [False] * (len(reply) + 1) + [True]
    told = [event["usage"]["completion_tokens"] for event in heard.events]
    assert told == [0, *range(1, len(reply) + 1), len(reply)]
    assert heard.lines[-2:] == ["data: [DONE]", ""]


def test_thought_and_answer_come_apart_and_read_as_the_tokens_do(vllm: Simulator) -> None:
    heard = chat_stream(vllm, "Count.", max_tokens=300)
    ids = list(itertools.chain(*heard.token_ids))
    at = ids.index(truth.END_THINK)
    assert heard.text("reasoning") == truth.detokenize(ids[:at])
    assert heard.text("content") == truth.detokenize(ids[at + 1 :])
    assert heard.usage["completion_tokens_details"]["reasoning_tokens"] == at + 1
    whole = chat(vllm, "Count.", max_tokens=300).json()["choices"][0]["message"]
    assert (whole["reasoning"], whole["content"]) == (heard.text("reasoning"), heard.text("content"))


def test_without_ids_a_control_token_gives_no_chunk(vllm: Simulator) -> None:
    heard = chat_stream(vllm, "Count.", max_tokens=300, return_token_ids=False)
    assert not heard.token_ids
    bearing = [event for event in vllm.last()["events"] if event["tokens"]]
    behind = [event["tokens"] for event in bearing if truth.END_THINK in event["tokens"]]
    assert len(behind[0]) > 1, "the end of the thought went out with the next token"
    assert sum(len(event["tokens"]) for event in bearing) == heard.usage["completion_tokens"]


def test_characters_of_several_tokens_come_whole(vllm: Simulator) -> None:
    vllm.script({"name": "reply_text", "text": "</think>\u65e5\u672c \U0001f600!"})
    heard = chat_stream(vllm, max_tokens=40)
    assert heard.text() == "\u65e5\u672c \U0001f600!"
    assert "\ufffd" not in heard.text()
    assert heard.usage["completion_tokens"] == 1 + 3 + 3 + 1 + 4 + 1 + 1


def test_completions_stream_ids_and_log_probabilities(vllm: Simulator) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 6,
        "temperature": 0,
        "logprobs": 3,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    heard = stream(vllm, "/v1/completions", body)
    reply = Model().greedy(PROMPT, 6)
    assert list(itertools.chain(*heard.token_ids)) == reply
    assert heard.events[0]["choices"][0]["prompt_token_ids"] == PROMPT
    said = [event["choices"][0]["logprobs"]["token_logprobs"][0] for event in heard.events]
    rows = log_softmax(Model().rows([*PROMPT, *reply], range(len(PROMPT) - 1, len(PROMPT) + 5)))
    assert said == [float(row[token]) for row, token in zip(rows, reply, strict=True)]
    assert [len(event["choices"][0]["logprobs"]["top_logprobs"][0]) for event in heard.events] == [3] * 6


@pytest.mark.parametrize("count", [0, 3])
def test_an_echo_scores_the_prompt_too(vllm: Simulator, count: int) -> None:
    body = {"prompt": PROMPT, "max_tokens": count, "echo": True, "logprobs": 1, "temperature": 0}
    answer = ask(vllm, "/v1/completions", body).json()
    said = answer["choices"][0]["logprobs"]
    reply = Model().greedy(PROMPT, count)
    rows = log_softmax(Model().rows([*PROMPT, *reply], range(len(PROMPT) + count - 1)))
    assert said["token_logprobs"] == [None] + [
        float(row[one]) for row, one in zip(rows, [*PROMPT, *reply][1:], strict=True)
    ]
    assert said["top_logprobs"][0] is None
    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["text"] == truth.detokenize([*PROMPT, *reply])


def test_a_chat_gives_log_probabilities_of_its_tokens(vllm: Simulator) -> None:
    answer = chat(vllm, logprobs=True, top_logprobs=2, max_tokens=3, return_token_ids=True).json()
    content = answer["choices"][0]["logprobs"]["content"]
    prompt = answer["prompt_token_ids"]
    row = log_softmax(Model().logits(prompt))
    assert content[0]["logprob"] == float(row.max())
    assert [len(one["top_logprobs"]) for one in content] == [2, 2, 2]


def test_min_tokens_ignore_eos_and_seed(vllm: Simulator) -> None:
    ends_soon = {"prompt": PROMPT, "max_tokens": 400, "temperature": 0}
    natural = ask(vllm, "/v1/completions", ends_soon).json()["usage"]["completion_tokens"]
    assert natural < 400
    longer = ask(vllm, "/v1/completions", ends_soon | {"min_tokens": natural + 5}).json()["usage"]["completion_tokens"]
    assert longer > natural + 5
    forced = ask(vllm, "/v1/completions", ends_soon | {"ignore_eos": True}).json()
    assert (forced["usage"]["completion_tokens"], forced["choices"][0]["finish_reason"]) == (400, "length")
    sampled = [
        ask(vllm, "/v1/completions", {"prompt": PROMPT, "max_tokens": 40, "temperature": 1.5, "seed": seed}).json()
        for seed in (1, 1, 2)
    ]
    texts = [one["choices"][0]["text"] for one in sampled]
    assert texts[0] == texts[1] != texts[2]


def test_the_truth_has_each_token_before_the_client_has(vllm: Simulator) -> None:
    vllm.script(ttft_ms=30.0, itl_ms=5.0)
    heard = chat_stream(vllm, max_tokens=8)
    record = vllm.last("/v1/chat/completions")
    assert [token["id"] for token in record["tokens"]] == list(itertools.chain(*heard.token_ids))
    bearing = [event for event in record["events"] if event["kind"] in ("role", "tokens", "usage")]
    assert len(bearing) == len(heard.times_ns)
    for event, received_ns in zip(bearing, heard.times_ns, strict=True):
        assert event["sent_ns"] <= received_ns
    sent = [token["sent_ns"] for token in record["tokens"]]
    for index, sent_ns in enumerate(sent):
        assert sent_ns - record["received_ns"] >= (30 + 5 * index) * 1e6
    assert record["received_ns"] < time.monotonic_ns()


def test_speculation_puts_several_tokens_in_a_chunk_and_counts_them() -> None:
    with running_simulator("vllm", drafts=3) as simulator:
        heard = chat_stream(simulator, max_tokens=60)
        sizes = [len(ids) for ids in heard.token_ids]
        assert set(sizes) >= {1, 2, 3, 4}
        reply = Model().greedy(chat_prompt([("user", "Hello.")]), 60)
        assert list(itertools.chain(*heard.token_ids)) == reply[: sum(sizes)]
        counts = counters(simulator)
        assert counts["vllm:spec_decode_num_drafts_total"] == len(sizes) - 1
        assert counts["vllm:spec_decode_num_draft_tokens_total"] == 3 * (len(sizes) - 1)
        assert counts["vllm:spec_decode_num_accepted_tokens_total"] == sum(sizes[1:]) - (len(sizes) - 1)
        assert counts["vllm:spec_decode_num_accepted_tokens_per_pos_total"] == sum(sizes[1:]) - (len(sizes) - 1)


def test_counters_count_what_was_sent(vllm: Simulator) -> None:
    before = counters(vllm)
    answer = chat(vllm, "counted", max_tokens=7, ignore_eos=True, cache_salt="counted").json()
    after = counters(vllm)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown["vllm:prompt_tokens_total"] == answer["usage"]["prompt_tokens"]
    assert grown["vllm:generation_tokens_total"] == 7
    assert grown["vllm:request_success_total"] == 1
    assert grown["vllm:time_to_first_token_seconds_count"] == 1
    assert grown["vllm:inter_token_latency_seconds_count"] == 6
    assert grown["vllm:prefix_cache_queries_total"] == answer["usage"]["prompt_tokens"]
    assert 'kv_cache_size_tokens="65536"' in ask(vllm, "/metrics").text


def test_the_fork_is_healthy_before_it_has_warmed_up() -> None:
    with running_simulator("vllm", fork=True, warmup_ms=600) as simulator:
        assert ask(simulator, "/health").status_code == 200
        assert not any("container is ready" in line for line in simulator.log)
        simulator.wait_for_line("GLM release startup warmup complete; container is ready.")
        assert ask(simulator, "/version").json() == {"version": "0.1.dev20051+g487ecf187"}


def test_a_key_is_asked_for_under_v1_alone(tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    with running_simulator("vllm", api_key_file=key) as simulator:
        assert ask(simulator, "/health").status_code == 200
        assert ask(simulator, "/v1/models").status_code == 401
        assert ask(simulator, "/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_perturbed_engine_is_another_version() -> None:
    with running_simulator("vllm", max_logprobs=-1, perturb=0.01, version="0.34.0") as simulator:
        rows = np.array(rows_of(score(simulator, PROMPT), 512))
        ours = log_softmax(Model().rows(PROMPT, range(len(PROMPT) - 1)))
        kl = float((np.exp(ours.astype(np.float64)) * (ours - rows)).sum(axis=1).mean())
        assert 1e-6 < kl < 1e-3
        assert math.isclose(float(np.exp(rows).sum(axis=1).mean()), 1.0, abs_tol=1e-5)
