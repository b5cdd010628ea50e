"""What shows each fault of starts, health, counters, settings, prompts and the cache."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import Any

import httpx
import pytest

from . import model as truth
from .cases import Of, shows
from .model import chat_prompt, tokenize
from .running import CHECKOUT, READY, NotStarted, Simulator, command_of, running_simulator
from .talking import MODEL, ask, chat, chat_stream, counters, score

CHAT = "/v1/chat/completions"
LONG = tokenize("A prompt of some length, so that the cache has blocks to hold. " * 2)


@shows("stuck_but_healthy")
def no_token_ever_comes(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        simulator = of(dialect)
        simulator.script("stuck_but_healthy")
        heard = chat_stream(simulator, give_up_s=0.3)
        assert (heard.status, heard.broken, heard.events) == (200, True, [])
        assert ask(simulator, "/health").status_code == 200
        assert simulator.last(CHAT)["ended"] == "client gone"


@shows("dead_behind_health")
def all_but_health_fails(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd", "llama-server", "sglang"):
        simulator = of(dialect)
        simulator.script("dead_behind_health")
        assert ask(simulator, "/health").status_code == 200
        answer = chat(simulator)
        assert answer.status_code == 500
        assert "EngineDeadError" in answer.text


@shows("gpu_lost")
def a_cuda_error_in_the_middle(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "gpu_lost", "at": {"token": 2}})
    heard = chat_stream(simulator)
    assert "CUDA error" in heard.events[-1]["error"]["message"]
    assert sum(map(len, heard.token_ids)) == 2
    answer = chat(simulator)
    assert (answer.status_code, "CUDA error" in answer.text) == (500, True)
    assert ask(simulator, "/health").status_code == 200
    assert any("CUDA error" in line for line in simulator.log)


@shows("dies_at_token")
def the_process_dies_in_a_reply(_: Of, __: Any) -> None:
    with running_simulator("vllm", faults=[{"name": "dies_at_token", "code": 9, "at": {"token": 2}}]) as simulator:
        heard = chat_stream(simulator)
        assert heard.broken
        assert sum(map(len, heard.token_ids)) == 2
        assert simulator.process.wait(10) == 9
        assert simulator.wait_for_line("engine core died")


@shows("dies_in_row")
def the_process_dies_while_it_scores(_: Of, __: Any) -> None:
    asked: dict[str, Any] = {
        "vllm": ("/v1/completions", {"prompt": LONG, "max_tokens": 1, "prompt_logprobs": 1}),
        "cuteafd": ("/v1/bench/probe", {"spec": {"prompt_ids": LONG, "score_from": 1}}),
        "llama-server": ("/completion", {"prompt": LONG[:6], "n_predict": 1, "n_probs": 9}),
        "sglang": ("/generate", {"input_ids": LONG, "return_logprob": True, "logprob_start_len": 0}),
    }
    for dialect, (path, body) in asked.items():
        with running_simulator(dialect, faults=[{"name": "dies_in_row", "at": {"row": 5}}]) as simulator:
            with pytest.raises(httpx.RemoteProtocolError):
                ask(simulator, path, body)
            assert simulator.process.wait(10) == 3


@shows("slow_start")
def connections_are_refused_at_first(_: Of, __: Any) -> None:
    with running_simulator("vllm", faults=[{"name": "slow_start", "ms": 1500.0}], wait_ready=False) as simulator:
        with pytest.raises(httpx.ConnectError):
            ask(simulator, "/health")
        simulator.wait_for_line("Application startup complete.")
        assert ask(simulator, "/health").status_code == 200


@shows("health_503_while_loading")
def health_is_503_at_first(_: Of, __: Any) -> None:
    for dialect in ("vllm", "cuteafd", "llama-server", "sglang"):
        faults: list[Any] = [{"name": "health_503_while_loading", "ms": 1e9}]
        with running_simulator(dialect, faults=faults, wait_ready=False) as simulator:
            wait_until_it_listens(simulator)
            assert ask(simulator, "/health").status_code == 503
            assert not any(READY[dialect] in line for line in simulator.log)
            simulator.script({"name": "health_503_while_loading", "ms": 1.0})
            assert ask(simulator, "/health").status_code == 200
            simulator.wait_for_line(READY[dialect])


@shows("health_200_while_warming")
def replies_wait_behind_a_good_health(_: Of, __: Any) -> None:
    with running_simulator("vllm", faults=[{"name": "health_200_while_warming", "ms": 900.0}]) as simulator:
        assert ask(simulator, "/health").status_code == 200
        chat(simulator, max_tokens=1)
        listening_ns = ask(simulator, "/__sim__/truth").json()["listening_ns"]
        assert simulator.last(CHAT)["tokens"][0]["sent_ns"] - listening_ns >= 900e6


@shows("port_taken")
def it_ends_because_the_address_is_in_use(_: Of, __: Any) -> None:
    with (
        pytest.raises(NotStarted, match=r"ended with 1: .*address already in use"),
        running_simulator("vllm", faults=["port_taken"]),
    ):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            command_of("vllm", port=port), cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 1
        assert f"address already in use: 127.0.0.1:{port}" in done.stdout


@shows("no_free_memory")
def it_ends_for_want_of_memory(_: Of, __: Any) -> None:
    for fault, words in (
        ("no_free_memory", "Free memory on device"),
        ({"name": "no_free_memory", "changed": True}, "other processes"),
    ):
        with pytest.raises(NotStarted, match=f"ended with 1: .*{words}"), running_simulator("vllm", faults=[fault]):
            pass


@shows("ignores_stop")
def it_does_not_end_when_told(_: Of, __: Any) -> None:
    with running_simulator("vllm") as simulator:
        assert simulator.stop() == 0
    with running_simulator("vllm", faults=["ignores_stop"]) as simulator:
        assert simulator.stop() == -9


@shows("counters_reset")
def counters_begin_again(of: Of, _: Any) -> None:
    for dialect, name in (("vllm", "vllm:generation_tokens_total"), ("sglang", "sglang:generation_tokens_total")):
        simulator = of(dialect)
        chat(simulator)
        before = counters(simulator)[name]
        simulator.script({"name": "counters_reset", "times": 1})
        assert (before > 0, counters(simulator)[name]) == (True, 0)
        chat(simulator, max_tokens=2)
        assert counters(simulator)[name] == 2
    simulator = of("cuteafd")
    chat(simulator)
    assert ask(simulator, "/v1/stats").json()["generated_tokens"] > 0
    simulator.script("counters_reset")
    assert ask(simulator, "/v1/stats").json()["generated_tokens"] == 0


@shows("model_name_wrong")
def another_model_is_served(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd", "llama-server", "sglang"):
        simulator = of(dialect)
        simulator.script("model_name_wrong")
        assert ask(simulator, "/v1/models").json()["data"][0]["id"] == "another/model"
        assert chat(simulator, model="another/model").json()["model"] == "another/model"
    assert chat(of("vllm"), model=MODEL).status_code == 200


@shows("settings_cut")
def the_batch_is_smaller_than_asked_for(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd", "llama-server", "sglang"):
        simulator = of(dialect)
        assert batch_of(simulator) == 2048
        simulator.script("settings_cut")
        assert batch_of(simulator) == 540
    with running_simulator("vllm", faults=["settings_cut"]) as simulator:
        assert any("max_num_batched_tokens=540" in line for line in simulator.log)


def batch_of(simulator: Simulator) -> int:
    """The batch that a server says it resolved to, each in its own place."""
    if simulator.dialect == "cuteafd":
        answer = ask(simulator, "/v1/bench/probe", {"spec": {"prompt_ids": [9, 9], "score_from": 1}}).json()
        settings = {one["name"]: one["value"] for one in answer["server"]["settings"]}
        return int(settings["prefill_batch_tokens"])
    if simulator.dialect == "vllm":
        return int(ask(simulator, "/server_info").json()["vllm_config"]["max_num_batched_tokens"])
    if simulator.dialect == "sglang":
        return int(ask(simulator, "/server_info").json()["max_prefill_tokens"])
    return int(ask(simulator, "/props").json()["n_batch"])


@shows("determinism_flag_ignored")
def a_promise_is_resolved_to_off(_: Of, __: Any) -> None:
    with running_simulator("vllm", deterministic=True) as simulator:
        assert ask(simulator, "/server_info").json()["vllm_env"] == {"VLLM_BATCH_INVARIANT": "1"}
        simulator.script("determinism_flag_ignored")
        assert ask(simulator, "/server_info").json()["vllm_env"] == {"VLLM_BATCH_INVARIANT": "0"}


@shows("control_strings_parsed")
def names_of_control_tokens_become_tokens(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd"):
        simulator = of(dialect)
        chat(simulator, "say <think>")
        plain = simulator.last(CHAT)["prompt_ids"]
        assert plain == chat_prompt([("user", "say <think>")])
        simulator.script("control_strings_parsed")
        chat(simulator, "say <think>")
        assert simulator.last(CHAT)["prompt_ids"] == chat_prompt([("user", "say <think>")], parse_special=True)
        assert len(plain) - len(simulator.last(CHAT)["prompt_ids"]) == len("<think>") - 1


@shows("bos_double")
def two_bos(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("bos_double")
    assert ask(simulator, "/tokenize", {"prompt": "a"}).json()["tokens"] == [truth.BOS, truth.BOS, *tokenize("a")]
    chat(simulator)
    assert simulator.last(CHAT)["prompt_ids"][:3] == [truth.BOS, truth.BOS, truth.IM_START]


@shows("bos_missing")
def no_bos(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("bos_missing")
    assert ask(simulator, "/tokenize", {"prompt": "a"}).json()["tokens"] == tokenize("a")
    chat(simulator)
    assert simulator.last(CHAT)["prompt_ids"][0] == truth.IM_START


@shows("tokenizer_other")
def text_has_other_tokens(of: Of, _: Any) -> None:
    for dialect, field in (("vllm", "prompt"), ("sglang", "prompt"), ("llama-server", "content")):
        simulator = of(dialect)
        plain = ask(simulator, "/tokenize", {field: "some text"}).json()["tokens"]
        simulator.script("tokenizer_other")
        other = ask(simulator, "/tokenize", {field: "some text"}).json()["tokens"]
        assert truth.detokenize(other).endswith(b"some text".hex())
        assert len(other) - len(plain) in (8, 9)


@shows("prompt_truncated")
def the_beginning_of_the_prompt_is_lost(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script({"name": "prompt_truncated", "tokens": 5})
    assert chat(simulator).json()["usage"]["prompt_tokens"] == 5
    assert simulator.last(CHAT)["prompt_ids"] == chat_prompt([("user", "Hello.")])[-5:]


@shows("empty_prompt")
def a_prompt_of_one_token_is_none(of: Of, _: Any) -> None:
    simulator = of("vllm")
    body = {"prompt": [9], "max_tokens": 1}
    assert ask(simulator, "/v1/completions", body).status_code == 200
    simulator.script("empty_prompt")
    assert "at least one token" in ask(simulator, "/v1/completions", body).text
    assert ask(simulator, "/v1/completions", body | {"prompt": [9, 9]}).status_code == 200


@shows("thinking_switch_ignored")
def it_thinks_all_the_same(of: Of, _: Any) -> None:
    for dialect in ("vllm", "cuteafd", "llama-server", "sglang"):
        simulator = of(dialect)
        off: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
        name = "reasoning" if dialect == "vllm" else "reasoning_content"
        assert name not in chat(simulator, **off).json()["choices"][0]["message"]
        simulator.script("thinking_switch_ignored")
        assert chat(simulator, **off).json()["choices"][0]["message"][name]


def completion(simulator: Simulator, salt: str) -> Any:
    body = {"prompt": LONG, "max_tokens": 1, "cache_salt": salt}
    return ask(simulator, "/v1/completions", body).json()["usage"].get("prompt_tokens_details")


@shows("cache_hidden")
def what_came_from_the_cache_is_not_told(of: Of, _: Any) -> None:
    simulator = of("vllm")
    assert completion(simulator, "hidden") == {"cached_tokens": 0}
    held = completion(simulator, "hidden")["cached_tokens"]
    assert held > 0
    simulator.script("cache_hidden", prefill_ms_per_token=20.0)
    assert completion(simulator, "hidden") == {"cached_tokens": 0}
    record = simulator.last()
    assert record["cached_tokens"] == held
    assert record["tokens"][0]["sent_ns"] - record["received_ns"] < 20e6 * len(LONG), "it was as fast as a hit is"
    simulator.script({"name": "cache_hidden", "absent": True})
    assert completion(simulator, "hidden") is None


@shows("cache_always_hits")
def a_new_prompt_comes_from_the_cache(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("cache_always_hits")
    assert completion(simulator, "never seen") == {"cached_tokens": len(LONG) - 1}
    llama = of("llama-server")
    llama.script("cache_always_hits")
    assert ask(llama, "/completion", {"prompt": LONG, "n_predict": 1}).json()["timings"]["prompt_n"] == 1


@shows("prompt_logprobs_refused")
def scoring_is_refused(of: Of, _: Any) -> None:
    asked: dict[str, Any] = {
        "vllm": ("/v1/completions", {"prompt": LONG, "max_tokens": 1, "prompt_logprobs": 1}),
        "cuteafd": ("/v1/bench/probe", {"spec": {"prompt_ids": LONG, "score_from": 1}}),
        "llama-server": ("/completion", {"prompt": LONG, "n_predict": 1, "n_probs": 9}),
        "sglang": ("/generate", {"input_ids": LONG, "return_logprob": True, "logprob_start_len": 0}),
    }
    for dialect, (path, body) in asked.items():
        simulator = of(dialect)
        assert ask(simulator, path, body).status_code == 200
        simulator.script({"name": "prompt_logprobs_refused", "status": 501})
        assert ask(simulator, path, body).status_code == 501


@shows("prompt_logprobs_missing")
def there_are_no_log_probabilities(of: Of, _: Any) -> None:
    simulator = of("vllm")
    simulator.script("prompt_logprobs_missing")
    assert score(simulator, LONG) is None
    body = {"prompt": LONG, "max_tokens": 1, "echo": True, "logprobs": 1}
    echoed = ask(simulator, "/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert len(echoed) == 1, "only the reply is scored"
    simulator = of("cuteafd")
    simulator.script("prompt_logprobs_missing")
    answer = ask(simulator, "/v1/bench/probe", {"spec": {"prompt_ids": LONG, "score_from": 1}}).json()
    assert answer["probe"]["rows"] == []
    simulator = of("sglang")
    simulator.script("prompt_logprobs_missing")
    body = {"input_ids": LONG, "return_logprob": True, "logprob_start_len": 0}
    assert "input_token_logprobs" not in ask(simulator, "/generate", body).json()["meta_info"]
    simulator = of("llama-server")
    simulator.script("prompt_logprobs_missing")
    answer = ask(simulator, "/completion", {"prompt": LONG, "n_predict": 1, "n_probs": 9}).json()
    assert answer["completion_probabilities"] == []


def wait_until_it_listens(simulator: Simulator) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            ask(simulator, "/health")
        except httpx.ConnectError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError("it does not listen")
