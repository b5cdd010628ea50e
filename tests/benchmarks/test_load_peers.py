"""Other load clients state the same metrics as our events give; one that fails or counts wrongly is not measured."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench_load_peers import OURS, agreement, compare, run, usable
from peers import PEERS, Asked, Peer, Reported, furnish

_SIZE, _STREAMS, _SCHEDULE = (8, 12), 2, (400.0, 40.0)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    furnish(folder)
    return folder


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_what_a_client_states_is_what_our_events_give_under_its_name(peer: Peer, home: Path) -> None:
    if peer.installed() is None:
        pytest.skip(f"{peer.spec} is not installed: tests/benchmarks/bench_load_peers.py installs it")
    found = agreement(peer, _SIZE, _STREAMS, _SCHEDULE, home)
    assert found
    for name, (theirs, ours) in found.items():
        # A busy machine makes single times late; another definition would be off by the 400 ms to the first token.
        slack = 150 if "ttft" in name or "first" in name else 0
        assert theirs == pytest.approx(ours, rel=0.2, abs=slack), name


def other(text: str, tokens: int | None = 1) -> Peer:
    """A client that is a line of Python and states what it is told to."""

    def read(asked: Asked) -> Reported:
        return Reported(tokens, [1.0] * asked.replies, {})

    return replace(OURS, result="words.txt", command=lambda asked: ["-c", text], read=read)


def test_a_client_that_counts_other_tokens_than_were_sent_is_refused(home: Path) -> None:
    with pytest.raises(RuntimeError, match="it counts 1 tokens in 2 replies, sent were 10 in 2"):
        run(other("pass"), (2, 5), 1, ["--burst"], home)


def test_a_client_that_fails_is_refused_with_its_last_words(home: Path) -> None:
    with pytest.raises(RuntimeError, match=r"it ended with 1: .*no such luck"):
        run(other("raise SystemExit('no such luck')"), (2, 5), 1, ["--burst"], home)


def test_a_client_that_fails_once_is_run_once_more_and_one_that_fails_twice_is_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = iter([1, *[None] * 99])

    def read(asked: Asked) -> Reported:
        return Reported(next(counts), [1.0] * asked.replies, {})

    once = replace(OURS, spec="once==1", read=read)
    always = replace(other("raise SystemExit(1)"), spec="always==1")
    for name, size in (("_RATE", (3, 5)), ("_FEW", (2, 5)), ("_ERRORS", (2, 5))):
        monkeypatch.setattr(f"bench_load_peers.{name}", size)
    monkeypatch.setattr("bench_load_peers.usable", lambda _say: [once, always])
    assert list(compare(1, home)) == [OURS.name, "once 1"]
    said = capsys.readouterr().out
    assert "once 1 is run once more in turn 1" in said and "always 1 is left out from turn 1" in said


def test_our_command_counts_each_token_of_a_burst(home: Path) -> None:
    found = run(OURS, (4, 50), 2, ["--burst"], home)
    assert found.said.tokens == 200
    assert found.seconds > 0 and found.cpu_s > 0 and found.peak_mb > 20


def test_a_client_that_cannot_be_installed_is_left_out_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Peer):
        def python(self) -> Path:
            raise subprocess.CalledProcessError(1, "pip", stderr="no matching distribution")

    class Here(Peer):
        def python(self) -> Path:
            return Path(sys.executable)

    fields = (OURS.result, OURS.command, OURS.read)
    there = Here("there==1", *fields)
    monkeypatch.setattr("bench_load_peers.PEERS", (Refused("gone==1", *fields), there))
    said: list[str] = []
    assert usable(said.append) == [there]
    assert said == ["gone 1 is left out: it could not be installed: no matching distribution"]
