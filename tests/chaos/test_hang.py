"""An engine of ours that hangs within a whole run, as a child process and in a container behind a good /health.

It is told in time and ended, the other arm is measured, and the next run goes on from what was whole.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cut import journals, lock_is_free, windows_of
from docker_engine import docker_engine  # noqa: F401 - a fixture
from homes import assert_one_clear_line, unfinished
from kill_places import Place, child_place, contained_place
from launching import misbehave, says_it_is_well
from tiny import TINY

from engcmp_resources.engines._child import Child
from engcmp_resources.engines._serving import Served
from engcmp_resources.engines._vllm_http import VllmApi
from engcmp_resources.gpu_locks import leases

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftover processes in /proc")

DEADLINE_S = 6.0


def is_due(home: Path, at: list[float]) -> bool:
    """Whether an engine is to hang now: once, when a window is whole."""
    due = not at and any(map(windows_of, journals(home).values()))
    if due:
        at.append(time.monotonic())
    return due


@contextmanager
def child_that_stops(home: Path, at: list[float]) -> Iterator[None]:
    """The window after the first whole one finds the child process stopped, by the deadline of this test."""
    ask = Child.ask

    def asked(self: Child, request: dict[str, Any], *, doing: str, deadline_s: float) -> dict[str, Any]:
        if doing.startswith("decoding window"):
            deadline_s = DEADLINE_S
            if is_due(home, at):
                os.kill(self.process.pid, signal.SIGSTOP)
        return ask(self, request, doing=doing, deadline_s=deadline_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "ask", asked)
        yield


@contextmanager
def container_that_hangs(home: Path, at: list[float]) -> Iterator[None]:
    """The window after the first whole one finds the container stuck, and well by its /health."""
    with pytest.MonkeyPatch.context() as patch:
        for take in (Served.full_rows, Served.light_rows):
            patch.setattr(Served, take.__name__, _stuck_when_due(take, home, at))
        yield


def _stuck_when_due(take: Callable[..., Any], home: Path, at: list[float]) -> Callable[..., Any]:
    def taken(self: Served, *arguments: Any) -> Any:
        # The simulated CuteAFD dumps rows without a token's step, which is where it would be stuck.
        if not isinstance(self._client, VllmApi):
            return take(self, *arguments)
        self._deadline_s = DEADLINE_S
        if is_due(home, at):
            misbehave(self, "stuck_but_healthy")
            assert says_it_is_well(self)
        return take(self, *arguments)

    return taken


@pytest.fixture
def contained(docker_engine: None, tmp_path: Path, measured_home: Path) -> Iterator[Place]:
    with contained_place(tmp_path, measured_home) as made:
        yield made


@pytest.fixture
def child(tmp_path: Path, measured_home: Path) -> Iterator[Place]:
    with child_place(tmp_path, measured_home) as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("where", "hanging", "said"),
    [
        ("child", child_that_stops, f"no answer within {DEADLINE_S:g} s"),
        ("contained", container_that_hangs, "it was stuck and has been removed"),
    ],
)
def test_an_engine_that_hangs_in_a_run_is_told_and_ended_and_the_next_run_goes_on(
    where: str, hanging: Callable[[Path, list[float]], Any], said: str, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    place: Place = request.getfixturevalue(where)
    for name, value in place.tiny.variables.items():
        monkeypatch.setenv(name, value)
    other, first = place.arms if where == "contained" else place.arms[::-1]
    at: list[float] = []
    with hanging(place.tiny.home, at):
        done = place.tiny.run("run", TINY)
    ended = time.monotonic()
    assert_one_clear_line(done, first, said)
    assert DEADLINE_S - 1 < ended - at[0] < 300, "far below the deadline that a window has"
    assert place.is_done(other) and not place.is_done(first)
    (kept,) = map(windows_of, journals(place.tiny.home).values())
    assert len(kept) == 1
    assert place.ours_left() == [] and lock_is_free() and leases() == []
    again = place.tiny.run("run", TINY)
    assert again.returncode == 0, again.stderr[-3000:]
    assert place.is_done(first) and set(kept) <= place.captured(first), "the window that was whole is not taken again"
    proved = place.tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout
    assert journals(place.tiny.home) == {} and unfinished(place.tiny.home) == []
    assert place.ours_left() == [] and lock_is_free()
