"""The dialect of CuteAFD: forms as its sources have them, values as the model has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engcmp_resources.row_layouts.probe_dump import open_dump

from . import model as truth
from .model import Model, chat_prompt, log_softmax, tokenize
from .probe import fnv1a
from .running import Simulator, running_simulator
from .talking import MODEL, ask, chat, chat_stream, stream

PROMPT = tokenize("Rows of this text are scored.")
CHAT = "/v1/chat/completions"


def probe(simulator: Simulator, **spec: Any) -> Any:
    spec = {"prompt_ids": PROMPT, "score_from": 1, "cold": True, "no_speculation": True} | spec
    return ask(simulator, "/v1/bench/probe", {"body": {}, "spec": spec})


def by_hand(content: bytes) -> int:
    """FNV-1a, 64 bits, byte by byte."""
    state = 0xCBF29CE484222325
    for byte in content:
        state = ((state ^ byte) * 0x100000001B3) % (1 << 64)
    return state


def test_the_ready_line_names_address_and_model(cuteafd: Simulator) -> None:
    listen = cuteafd.url.removeprefix("http://")
    assert any(f"GLM 5.3 Flash API is ready listen={listen} model={MODEL}" in line for line in cuteafd.log)
    assert ask(cuteafd, "/health").json()["status"] == "ok"
    (model,) = ask(cuteafd, "/v1/models").json()["data"]
    assert (model["id"], model["max_context_tokens"], model["max_output_tokens"]) == (MODEL, 8192, 4096)


def test_a_stream_ends_with_a_finish_chunk_then_usage_then_done(cuteafd: Simulator) -> None:
    heard = chat_stream(cuteafd, max_tokens=10)
    assert heard.done
    assert "role" not in heard.deltas[0]
    assert heard.events[-1]["choices"] == []
    assert heard.events[-2]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    assert heard.usage["completion_tokens"] == 10
    assert heard.text("reasoning_content") == truth.detokenize(Model().greedy(chat_prompt([("user", "Hello.")]), 10))
    assert not heard.token_ids, "it knows no return_token_ids"


def test_without_the_option_usage_is_on_the_finish_chunk(cuteafd: Simulator) -> None:
    heard = chat_stream(cuteafd, max_tokens=4, stream_options=None)
    assert heard.events[-1]["choices"][0]["finish_reason"] == "length"
    assert heard.events[-1]["usage"]["completion_tokens"] == 4
    assert "usage" not in heard.events[0]


def test_silence_is_filled_with_comments() -> None:
    with running_simulator(
        "cuteafd", timing={"ttft_ms": 300.0}, faults=[{"name": "keepalive_comments", "every_ms": 20.0}]
    ) as one:
        heard = chat_stream(one, max_tokens=2)
        assert 1 <= len(heard.comments) <= 15
        assert heard.comments[0] == ": keepalive"


@pytest.mark.parametrize(
    ("switch", "thinks"),
    [
        ({}, True),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, False),
        ({"thinking": {"type": "adaptive"}, "enable_thinking": False}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
    ],
)
def test_thinking_is_switched_in_the_order_the_engine_heeds(
    cuteafd: Simulator, switch: dict[str, Any], thinks: bool
) -> None:
    chat(cuteafd, **switch)
    assert cuteafd.last(CHAT)["prompt_ids"] == chat_prompt([("user", "Hello.")], thinking=thinks)


def test_it_is_greedy_unless_told_and_knows_no_ignore_eos(cuteafd: Simulator) -> None:
    one, other = (chat(cuteafd, max_tokens=300, temperature=t, ignore_eos=True).json() for t in (None, 1e-6))
    assert one["choices"][0]["message"] == other["choices"][0]["message"]
    assert one["choices"][0]["finish_reason"] == "stop"


def test_another_model_and_a_prompt_that_is_too_long_are_refused(cuteafd: Simulator) -> None:
    assert chat(cuteafd, model="other").status_code == 400
    assert chat(cuteafd, "x" * 9000).status_code == 400


def test_a_key_is_asked_for_and_the_benchmark_answers_403(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    with running_simulator("cuteafd", api_key_file=key) as simulator:
        refused = chat(simulator)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert ask(simulator, "/v1/bench/status").status_code == 403
        assert ask(simulator, "/health").status_code == 200
        assert ask(simulator, "/v1/bench/status", headers={"Authorization": "Bearer secret"}).json()["auth"] is True
        assert ask(simulator, "/v1/models", headers={"x-api-key": "secret"}).status_code == 200


def test_a_full_queue_is_429_with_retry_after() -> None:
    with running_simulator("cuteafd", max_seqs=1, queue_depth=0, timing={"ttft_ms": 1500.0}) as simulator:
        first = threading.Thread(target=chat_stream, args=(simulator,))
        first.start()
        while ask(simulator, "/v1/stats").json()["active"] == 0:
            time.sleep(0.01)
        refused = chat(simulator)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        first.join()
        assert chat(simulator, max_tokens=1).status_code == 200


@pytest.mark.parametrize("path", ["decode", "prefill"])
def test_a_probe_dumps_the_rows_and_tells_their_hashes(cuteafd: Simulator, dump_root: Path, path: str) -> None:
    leaf = f"out-{path}-{time.monotonic_ns()}"
    answer = probe(cuteafd, score_path=path, dump_rows=leaf, top_k=3, want={"2": [9, 10]}).json()
    rows = log_softmax(Model().rows(PROMPT, range(len(PROMPT) - 1)))
    dump = open_dump(dump_root / leaf, f"{path}")
    assert dump.positions.tolist() == list(range(len(PROMPT) - 1))
    assert dump.block(0, len(rows)).tobytes() == rows.tobytes()
    told = answer["probe"]["rows"]
    assert [one["position"] for one in told] == list(range(1, len(PROMPT)))
    assert [one["argmax"] for one in told] == rows.argmax(axis=1).tolist()
    assert [int(one["hash"], 16) for one in told] == [by_hand(row.tobytes()) for row in rows]
    assert told[1]["wanted"] == [[9, float(rows[1][9])], [10, float(rows[1][10])]]
    assert told[0]["top"][0] == [int(rows[0].argmax()), float(rows[0].max())]
    assert all(one["finite"] for one in told)
    assert (answer["probe"]["score_path"], answer["probe"]["cold"], answer["probe"]["prompt_ids"]) == (
        path,
        True,
        PROMPT,
    )
    settings = {one["name"]: one["value"] for one in answer["server"]["settings"]}
    assert (settings["max_sequences"], settings["prefill_batch_tokens"]) == ("16", "2048")


def test_decoded_rows_may_be_made_to_differ_from_prefilled_ones() -> None:
    with running_simulator("cuteafd", decode_perturb=0.01) as simulator:
        decoded, prefilled = (
            probe(simulator, score_path=path).json()["probe"]["rows"] for path in ("decode", "prefill")
        )
        assert all(one["hash"] != other["hash"] for one, other in zip(decoded, prefilled, strict=True))
        again = probe(simulator, score_path="decode").json()["probe"]["rows"]
        assert [one["hash"] for one in again] == [one["hash"] for one in decoded]


def test_a_subset_of_positions_is_scored(cuteafd: Simulator) -> None:
    rows = probe(cuteafd, score_positions=[5, 3]).json()["probe"]["rows"]
    assert [one["position"] for one in rows] == [3, 5]
    assert cuteafd.last()["scored_rows"] == [2, 4]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"score_path": "both"}, "score_path 'both'"),
        ({"verify_rows": 65}, "verify_rows 65"),
        ({"score_from": 0}, "must be in 1.."),
        ({"score_positions": [len(PROMPT)]}, f"must be in 1..{len(PROMPT) - 1}"),
        ({"dump_rows": "../x"}, "no leaf name"),
        ({"dump_rows": "twice"}, "exists"),
    ],
)
def test_a_probe_that_cannot_be_is_refused(
    cuteafd: Simulator, dump_root: Path, spec: dict[str, Any], words: str
) -> None:
    (dump_root / "twice").mkdir(exist_ok=True)
    answer = probe(cuteafd, **spec)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_prefill_rows_need_their_setting() -> None:
    with running_simulator("cuteafd", full_prefill_logits=False) as simulator:
        assert ask(simulator, "/v1/bench/status").json()["full_prefill_logits"] is False
        assert probe(simulator, score_path="prefill").status_code == 400
        assert probe(simulator, score_path="decode").status_code == 200


@pytest.fixture
def busy(cuteafd: Simulator) -> Iterator[Simulator]:
    """While a probe of some 1,500 ms runs."""
    cuteafd.script(ttft_ms=1500.0)
    running = threading.Thread(target=probe, args=(cuteafd,))
    running.start()
    while not ask(cuteafd, "/v1/bench/status").json()["active"]:
        time.sleep(0.005)
    yield cuteafd
    running.join()


def test_a_probe_is_exclusive(busy: Simulator) -> None:
    refused = chat(busy)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "benchmark_running")
    assert refused.headers["Retry-After"] == "1"
    assert probe(busy).status_code == 409


def test_a_probe_without_scoring_generates(cuteafd: Simulator) -> None:
    answer = probe(cuteafd, score_from=None).json()
    assert answer["probe"]["generated"] == Model().greedy(PROMPT, 16)
    assert answer["timing"]["finish_reason"] == "length"


def test_hashes_of_many_rows_at_once_are_those_of_each() -> None:
    rows = np.arange(20, dtype=np.float32).reshape(4, 5)
    assert fnv1a(rows).tolist() == [by_hand(row.tobytes()) for row in rows]


def test_counts_and_log_lines_of_a_request() -> None:
    with running_simulator("cuteafd", drafts=3) as simulator:
        usage = chat_stream(simulator, max_tokens=30).usage
        stats = ask(simulator, "/v1/stats").json()
        assert (stats["requests"], stats["generated_tokens"]) == (1, usage["completion_tokens"])
        line = simulator.wait_for_line("request complete")
        fields = dict(part.split("=") for part in line.split() if "=" in part)
        steps = int(fields["steps"])
        assert int(fields["tokens"]) == usage["completion_tokens"]
        assert int(fields["dflash"]) == 3 * (steps - 1)
        assert 0 < int(fields["dflash_ok"]) < int(fields["dflash"])
        chat_stream(simulator, max_tokens=1)
        assert ask(simulator, "/v1/stats").json()["prefix_cache"]["hits"] == 1


def test_a_stream_that_fails_bears_an_error_and_no_done(cuteafd: Simulator) -> None:
    cuteafd.script("error_in_stream")
    heard = stream(cuteafd, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 9})
    assert heard.events[-1]["error"]["type"] == "native_v41_error"
    assert not heard.done
