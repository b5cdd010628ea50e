"""Scripts: what they may say, where and how often their faults happen."""

from __future__ import annotations

from typing import Any

import pytest

from .faults import BadScript, Faults, Timing, parse_script
from .running import Simulator, running_simulator
from .talking import ask, chat, chat_stream

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([], "an object with `faults` and `timing`"),
        ({"fault": []}, "an object with `faults` and `timing`"),
        ({"faults": [{"name": "fire"}]}, "no fault of this name: .*fire"),
        ({"faults": ["stall"]}, "no fault of this name"),
        ({"faults": [{"name": "stall", "sec": 1}]}, "stall takes no 'sec', only ms"),
        ({"faults": [{"name": "bos_double", "ms": 1}]}, "bos_double takes no 'ms', only at and times"),
        ({"faults": [{"name": "stall", "at": {"tokens": 1}}]}, "no 'tokens' in `at`, only method, path"),
        ({"timing": {"ttft": 1}}, "timing 'ttft': there is ttft_ms, itl_ms"),
    ],
)
def test_a_script_that_names_what_does_not_exist_is_refused(script: Any, words: str) -> None:
    with pytest.raises(BadScript, match=words):
        parse_script(script)


def test_a_fault_happens_where_and_as_often_as_the_script_says() -> None:
    entry = {"name": "stall", "at": {"token": {"from": 2}, "path": ["/a", "/b"]}, "times": 1, "ms": 5}
    faults = Faults({"faults": [entry], "timing": {"itl_ms": 3.0}})
    assert faults.timing == Timing(itl_ms=3.0)
    had: list[Any] = []
    assert faults.find("stall", {"token": 1, "path": "/a"}, had) is None
    assert faults.find("stall", {"token": 2, "path": "/c"}, had) is None
    assert faults.find("stall", {"path": "/a"}, had) is None
    assert faults.find("html", {"token": 2, "path": "/a"}, had) is None
    assert faults.find("stall", {"token": 2, "path": "/b"}, had) == {"name": "stall", "ms": 5}
    assert faults.find("stall", {"token": 3, "path": "/b"}, had) == {"name": "stall", "ms": 5}, (
        "the same request has it still"
    )
    assert faults.find("stall", {"token": 3, "path": "/b"}, []) is None, "another one has not"


def test_a_path_in_at_takes_the_place_of_the_default_method() -> None:
    (entry,), _ = parse_script({"faults": [{"name": "html", "at": {"path": "/health"}}]})
    assert entry.at == {"path": "/health"}
    (entry,), _ = parse_script({"faults": [{"name": "html"}]})
    assert entry.at == {"method": "POST"}


def test_a_running_simulator_takes_another_script_and_refuses_a_wrong_one(vllm: Simulator) -> None:
    vllm.script({"name": "usage_missing", "times": 2})
    assert [chat_stream(vllm, max_tokens=1).usage is None for _ in range(3)] == [True, True, False]
    vllm.script("usage_missing")
    with pytest.raises(ValueError, match="no fault of this name"):
        vllm.script("fire")
    assert chat_stream(vllm, max_tokens=1).usage is None, "the script before is still in force"
    vllm.script()
    assert chat_stream(vllm, max_tokens=1).usage is not None


def test_requests_are_numbered_for_at(vllm: Simulator) -> None:
    chat(vllm, max_tokens=1)
    number = vllm.last(CHAT)["request"]
    vllm.script(
        {"name": "http_error", "at": {"path": CHAT}, "times": 0},
        {"name": "stall", "ms": 1, "at": {"request": number + 2, "token": 0}},
    )
    for _ in range(3):
        chat(vllm, max_tokens=1)
    assert [record["faults"] for record in vllm.truth(path=CHAT)[-3:]] == [[], ["stall"], []]


def test_the_truth_of_every_request_is_kept_and_control_has_no_faults(vllm: Simulator) -> None:
    vllm.script({"name": "html", "at": {"path": "/__sim__/truth"}})
    ask(vllm, "/nowhere")
    record = vllm.last()
    assert (record["path"], record["status"], record["ended"]) == ("/nowhere", 404, "whole")
    assert "stall" in ask(vllm, "/__sim__/faults").json()
    assert ask(vllm, "/__sim__/other").status_code == 404
    assert ask(vllm, "/__sim__/log").json()["lines"] == vllm.log


def test_it_does_not_outlive_whoever_started_it() -> None:
    with running_simulator("vllm") as simulator:
        assert simulator.process.stdin is not None
        simulator.process.stdin.close()
        assert simulator.process.wait(10) == 0
