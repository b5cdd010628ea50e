"""Kind `external`: an engine that runs already, here a simulator. It is found, asked, and left as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from simulated import MODEL, VOCAB, tokens, truth

from engcmp_resources.engines.servers import LaunchPlace, RunningServer, ServerSpec, start_server
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret
from tests.simulator.running import Simulator, running_simulator

IDS = tokens(12)


def found(
    folder: Path, *, start_deadline_s: float = 20, request_deadline_s: float = 20, **settings: Any
) -> AbstractContextManager[RunningServer]:
    spec = ServerSpec("external", "theirs", "v1", {}, VOCAB, {"api": "llama-server", "model": MODEL} | settings)
    place = LaunchPlace(folder, folder / "log", {"ENGCMP_ARM": "k4/theirs@v1"}, {})
    return start_server(spec, place, start_deadline_s=start_deadline_s, request_deadline_s=request_deadline_s)


@pytest.fixture
def theirs() -> Iterator[Simulator]:
    with running_simulator("llama-server", model=MODEL, vocab=VOCAB) as simulator:
        yield simulator


def test_it_gives_rows_and_is_left_running(theirs: Simulator, tmp_path: Path) -> None:
    with found(tmp_path, url=theirs.url, capabilities={"rows": ["decode"]}, context_tokens=8192) as running:
        running.refuse_changed()
        running.full_rows("decode", "w", IDS, [3, 4], tmp_path / "rows")
        assert running.tokenize("a") is not None
        assert running.url == theirs.url
        facts = running.facts
        assert "not started by us" in running.log_tail()
    rows = np.fromfile(tmp_path / "rows", dtype="<f4").reshape(2, VOCAB)
    assert np.array_equal(rows, truth(IDS, [3, 4]))
    assert facts["started"] == "not started by us"
    assert facts["stated"]["/v1/models"]["data"][0]["id"] == MODEL
    assert facts["settings"] == {"context_tokens": {"requested": 8192, "resolved": 8192}}
    assert "container" not in facts
    assert theirs.ended is None
    assert httpx.get(f"{theirs.url}/health", trust_env=False).status_code == 200


def test_its_key_is_in_the_receipt_by_its_hash_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sk-planted")
    monkeypatch.setenv("THEIR_KEY", "sk-planted")
    with running_simulator("llama-server", model=MODEL, vocab=VOCAB, api_key_file=key_file) as simulator:
        with found(tmp_path, url=simulator.url, api_key_env="THEIR_KEY") as running:
            text = json.dumps(running.facts)
        monkeypatch.setenv("THEIR_KEY", "sk-another")
        with pytest.raises(EngcmpError, match="401"), found(tmp_path, url=simulator.url, api_key_env="THEIR_KEY"):
            pytest.fail("it was taken")
    assert hidden_secret("sk-planted") in text
    assert "sk-planted" not in text
    monkeypatch.delenv("THEIR_KEY")
    with (
        pytest.raises(EngcmpError, match="the variable THEIR_KEY is not set"),
        found(tmp_path, url="http://127.0.0.1:9", api_key_env="THEIR_KEY"),
    ):
        pytest.fail("it was taken")


@pytest.mark.parametrize("host", ["192.0.2.1", "engine.example", "[2001:db8::1]"])
def test_another_machine_is_asked_only_where_the_protocol_says_so(tmp_path: Path, host: str) -> None:
    with (
        pytest.raises(EngcmpError, match=r"is not this machine .*write remote = true"),
        found(tmp_path, url=f"http://{host}:8000"),
    ):
        pytest.fail("it was asked")


@pytest.mark.parametrize("url", ["http://localhost:9", "http://127.0.0.1:9", "http://[::1]:9"])
def test_this_machine_needs_no_leave_and_nothing_there_is_told(tmp_path: Path, url: str) -> None:
    with pytest.raises(EngcmpError, match="not started by us and is left as it is"), found(tmp_path, url=url):
        pytest.fail("nothing runs there")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://u:p@127.0.0.1", "http://127.0.0.1/?key=1"]
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(EngcmpError, match="settings of an engine of kind external: url"), found(tmp_path, url=url):
        pytest.fail("it was asked")


@pytest.mark.parametrize(
    ("fault", "what", "deadline_s"),
    [
        ("stuck_but_healthy", "no whole answer in time", 1),
        ("dead_behind_health", "HTTP status 500", 30),  # which is not waited for
        ("model_name_wrong", "another/model", 30),
    ],
)
def test_one_that_only_looks_alive_is_not_taken(
    theirs: Simulator, tmp_path: Path, fault: str, what: str, deadline_s: float
) -> None:
    theirs.script(fault)
    with pytest.raises(EngcmpError, match=what), found(tmp_path, url=theirs.url, start_deadline_s=deadline_s):
        pytest.fail("it was taken")
    assert theirs.ended is None


def test_one_that_gets_stuck_is_told_and_left(theirs: Simulator, tmp_path: Path) -> None:
    with found(tmp_path, url=theirs.url, request_deadline_s=1) as running:
        # It still answers the question before, so that only the rows are late.
        theirs.script({"name": "stall", "at": {"token": 0, "prompt_tokens": {"from": 3}}})
        with pytest.raises(EngcmpError, match=r"taking rows of window w: .*no whole answer in time"):
            running.full_rows("decode", "w", IDS, [3], tmp_path / "rows")
    assert theirs.ended is None
    assert not (tmp_path / "rows").exists()


def test_what_it_lacks_or_resolved_differently_is_refused(theirs: Simulator, tmp_path: Path) -> None:
    with (
        pytest.raises(EngcmpError, match="lacks what is declared of it: prompt_logprobs"),
        found(tmp_path, url=theirs.url, capabilities={"prompt_logprobs": 20}),
    ):
        pytest.fail("it was taken")
    with (
        pytest.raises(EngcmpError, match="context_tokens requested 512, found 8192"),
        found(tmp_path, url=theirs.url, context_tokens=512),
    ):
        pytest.fail("it was taken")
