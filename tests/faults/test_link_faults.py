"""A server that hangs, and a link that falls silent, within a run: told in time, and the next run goes on where it was cut.

The servers are simulators over HTTP that run already (kind `external`); the link to one of them can be cut without a word.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from homes import assert_one_clear_line, unfinished
from ports import free_port
from served_pair import OURS, RIVAL, Servers, served_pair
from tiny import TINY

from engcmp_assets.kernel.tables import read_parquet
from engcmp_resources.journal import read_journal
from tests.simulator.running import Simulator

DEADLINE_S = 6.0
# A window takes a second or two, so that the cut comes within the second one.
SLOW = {"prefill_ms_per_token": 15.0}


class Link:
    """What lies between two machines, from `port` on to `to`. Silent, it takes and sends nothing, and nobody is told: a cable is out."""

    def __init__(self, port: int, to: int) -> None:
        self._to, self.silent = to, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.silent.is_set():
                    return  # what came is lost, and both ends stay open
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
        for one in self._open:
            one.close()


@pytest.fixture
def servers(tmp_path: Path, measured_home: Path) -> Iterator[Servers]:
    made = served_pair(tmp_path, measured_home, 2, f"request_deadline_s = {DEADLINE_S}\n")
    yield made
    made.stop()


def windows(servers: Servers) -> int:
    """How many windows the unfinished captures hold."""
    paths = servers.tiny.home.glob("scratch/capture-*/journal.jsonl")
    return sum(one["kind"] == "window" for path in paths for one in read_journal(path))


def run_and_cut(servers: Servers, cut: Callable[[], object]) -> tuple[float, str]:
    """Run both arms, and cut once the first window is whole: how long it went on, and what it said."""
    at = []

    def watch() -> None:
        while not windows(servers):
            time.sleep(0.01)
        at.append(time.monotonic())
        cut()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    done = servers.tiny.run("run", TINY)
    watcher.join(1)
    assert at, done.stderr[-3000:]
    assert_one_clear_line(
        done, OURS, "no whole answer in time", "the engine was not started by us and is left as it is"
    )
    return time.monotonic() - at[0], done.stderr


def assert_goes_on(servers: Servers, server: Simulator) -> None:
    """The next run asks for what is missing alone, and what it makes is proved."""
    whole = servers.lengths()[0]
    before = len(server.truth(path="/v1/completions"))
    done = servers.tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    asked = [len(one["prompt_ids"]) for one in server.truth(path="/v1/completions")[before:]]
    assert whole not in asked, "a window that was whole is not asked for again"
    table = read_parquet(servers.output(servers.receipt("captured_rows/pl", OURS), "capture.parquet"))
    starts = set(zip(table["window_id"], table["start"], strict=True))
    assert sorted(start for _, start in starts) == [1, 2], "each window was measured within one start"
    assert servers.pair()["state"] == "compared"
    proved = servers.tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout
    assert unfinished(servers.tiny.home) == []


def assert_told(servers: Servers, seconds: float) -> None:
    """The run ended in time, kept the window that was whole, and measured the other arm all the same."""
    assert DEADLINE_S - 1 < seconds < 60
    assert windows(servers) == 1 and servers.captured(OURS) == [] and servers.captured(RIVAL) != []
    (check,) = (one for one in servers.receipt("comparisons")["checks"] if one["name"] == "every_pair_compared")
    assert not check["passed"] and OURS in json.dumps(check["evidence"])


@pytest.mark.timeout(600)
def test_a_link_that_falls_silent_in_a_run_is_told_and_the_next_run_goes_on(servers: Servers) -> None:
    assert servers.lengths()[0] != servers.lengths()[1]
    behind = free_port()
    server = servers.start("ours", port=behind, timing=SLOW)
    servers.start("rival")
    link = Link(servers.ports["ours"], behind)
    try:
        seconds, _ = run_and_cut(servers, link.silent.set)
        assert_told(servers, seconds)
        still = servers.tiny.run("run", TINY, "--arm", OURS)
        assert_one_clear_line(still, OURS, "no whole answer in time")
        assert windows(servers) == 1
        link.silent.clear()
        assert_goes_on(servers, server)
    finally:
        link.close()


@pytest.mark.timeout(600)
def test_a_server_that_hangs_behind_a_good_health_in_a_run_is_told_and_the_next_run_goes_on(servers: Servers) -> None:
    server = servers.start("ours", timing=SLOW)
    servers.start("rival")
    seconds, _ = run_and_cut(servers, lambda: server.script("stuck_but_healthy", **SLOW))
    assert_told(servers, seconds)
    server.script()
    assert_goes_on(servers, server)
