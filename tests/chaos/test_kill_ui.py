"""SIGKILL while the UI measures two arms: of a run's worker, the daemon, the webserver or the engine, at seeded moments of its life.

After each the UI is started again where it is gone, and what is not complete is launched again. In the end the results are those of a
run that nobody disturbed, nothing captured is lost or captured twice, and nothing that was running or half written is left.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import dagster as dg
import pytest
from cut import Watch, journals, lock_is_free, windows_of
from docker_engine import docker_engine  # noqa: F401 - a fixture
from homes import unfinished
from kill_places import JOB, Place, child_place, contained_place, served_place
from moments import PLACES, SEED, VICTIMS, victims_in
from tiny import TINY
from ui_process import Ui, forget, processes_of, running_ui, wait_for

from engcmp_assets.lost_runs import _worker
from engcmp_resources.gpu_locks import leases

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftover processes in /proc")

MAKERS = {"child": child_place, "served": served_place, "contained": contained_place}
# What is waited for before the kill: the launch of the runs, an engine, a window that is captured.
STAGES = ("launched", "engine", "window")
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
Known = dict[str, list[tuple[int, str, int]]]


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path: Path, measured_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Place]]:
    if request.param == "contained":
        request.getfixturevalue("docker_engine")
    with MAKERS[request.param](tmp_path, measured_home) as made:
        for name, value in made.tiny.variables.items():
            monkeypatch.setenv(name, value)
        yield request.param, made


@dataclass
class Killed:
    """The UI and its runs, one of whose processes is killed now and then."""

    place: Place
    stack: ExitStack
    ui: Ui = field(init=False)
    runs: dict[str, str] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    kept: int = 0

    def __post_init__(self) -> None:
        self.ui = self.stack.enter_context(running_ui(self.place.tiny.home))
        self.watch = Watch(self.place.tiny.home)
        self.watch.skip_what_is_there()

    def launch(self) -> None:
        """A run for each arm that is not complete and has none in progress; where all are complete, they are measured anew."""
        self.place.revive()
        if all(map(self.place.is_done, self.place.arms)):
            wait_for(lambda: not self.in_progress(), 60)
            self.hold_known()
            for arm in self.place.arms:
                forget(self.place.tiny.home, arm, self.place.made(arm), study=TINY)
        for arm in self.place.arms:
            run = self.runs.get(arm)
            if not self.place.is_done(arm) and (run is None or self.ui.status(run) in ENDED):
                self.runs[arm] = self.ui.launch(JOB, arm)

    def in_progress(self) -> list[str]:
        return [run for run in self.runs.values() if self.ui.status(run) not in ENDED]

    def worker(self) -> int | None:
        """The process of a run that is being executed."""
        home = self.place.tiny.home / "dagster"
        with dg.DagsterInstance.from_config(str(home)) as instance:
            for run in self.in_progress():
                worker = _worker(instance, run)
                if worker is not None and Path(f"/proc/{worker[0]}").exists():
                    return worker[0]
        return None

    def reached(self, stage: str) -> bool:
        if stage == "launched":
            return True
        if stage == "engine":
            return bool(self.place.running())
        return any(map(windows_of, journals(self.place.tiny.home).values()))

    def kill(self, victim: str, stage: str, delay: float) -> bool:
        """Whether there was someone to kill when the moment came."""
        wait_for(lambda: self.reached(stage) or not self.in_progress(), 120)
        time.sleep(delay)
        self.place.running()  # the names of containers, while they are there
        if victim == "engine":
            return self.place.kill_one()
        if victim == "run worker":
            wait_for(lambda: self.worker() is not None or not self.in_progress(), 60)
            pid = self.worker()
        else:
            tool = {"daemon": "dagster-daemon", "webserver": "dagster-webserver"}[victim]
            (pid,) = (int(one.split()[0]) for one in processes_of(self.place.tiny.home) if f"/{tool} " in one)
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    def recover(self, victim: str, where: str) -> None:
        """Start the UI again where it is gone, and wait until what was killed is known to have ended."""
        if victim in ("daemon", "webserver"):
            self.ui.shell.wait(timeout=30)
            assert self.ui.shell.returncode == 1, where
            assert self.ui.log.read_text().count("engcmp: ") == 1, where
            assert processes_of(self.place.tiny.home) == [], where
            assert self.place.is_done(self.place.arms[0]) or lock_is_free(), where
            self.hold(where)
            self.ui = self.stack.enter_context(running_ui(self.place.tiny.home))
        else:
            self.hold(where)

    def hold(self, where: str) -> None:
        """Nothing is half written, and what was captured before is in the journals as it was."""
        assert self.watch.half_written() == [], where
        for name, entries in journals(self.place.tiny.home).items():
            windows = windows_of(entries)
            assert windows[: len(self.known.get(name, []))] == self.known.get(name, []), where
            self.known[name] = windows

    def settle(self) -> None:
        """Launch again until both arms are complete."""
        until = time.monotonic() + 300
        while not all(map(self.place.is_done, self.place.arms)) or self.in_progress():
            assert time.monotonic() < until, {arm: self.ui.status(run) for arm, run in self.runs.items()}
            if not all(map(self.place.is_done, self.place.arms)):
                self.launch()
            time.sleep(0.5)

    def hold_known(self) -> None:
        """Every window that was in a journal is in the results, of the start that captured it, once."""
        told = [self.place.captured(arm) for arm in self.place.arms]
        for entries in self.known.values():
            assert len({entry[:2] for entry in entries}) == len(entries), "a window was captured twice"
            assert any(set(entries) <= one for one in told), "a journalled window was captured again"
        self.kept += sum(map(len, self.known.values()))
        self.known.clear()


@pytest.mark.timeout(1800)
def test_whatever_is_killed_under_the_ui_a_restart_completes_the_run_and_nothing_is_lost_doubled_or_left(
    place: tuple[str, Place], capsys: pytest.CaptureFixture[str]
) -> None:
    name, made = place
    draw, began = random.Random(f"{SEED} {name}"), time.monotonic()
    undisturbed = made.tiny.run("run", TINY)
    assert undisturbed.returncode == 0, undisturbed.stderr[-3000:]
    rows, figures = [made.rows(arm) for arm in made.arms], [made.figures(arm) for arm in made.arms]
    for arm in made.arms:
        forget(made.tiny.home, arm, made.made(arm), study=TINY)
    told, hit = [], set()
    with ExitStack() as stack:
        killed = Killed(made, stack)
        for number, victim in enumerate(victims_in(name), start=1):
            stage = "engine" if victim == "engine" else draw.choice(STAGES)
            delay = draw.uniform(0, 2.0)
            where = f"seed {SEED}, {name}, moment {number}: {victim}, {delay:.2f} s after {stage}"
            while True:
                killed.launch()
                if killed.kill(victim, stage, delay):
                    break
            hit.add(victim)
            killed.recover(victim, where)
            told.append(f"{victim} {delay:.1f} s after {stage}")
        assert hit == set(VICTIMS), "each kind of victim was there and was killed"
        made.revive()
        killed.settle()
        killed.hold_known()
        killed.ui.stop()
        assert processes_of(made.tiny.home) == []
    last = made.tiny.run("run", TINY)
    assert last.returncode == 0, last.stderr[-3000:]
    proved = made.tiny.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout
    assert [made.rows(arm) for arm in made.arms] == rows and [made.figures(arm) for arm in made.arms] == figures
    assert made.ours_left() == [] and lock_is_free() and not any(alive for _, alive in leases())
    assert leases() == [] and journals(made.tiny.home) == {}
    assert unfinished(made.tiny.home) == []
    with capsys.disabled():
        print(f"\n[chaos in {name}: seed {SEED}; {'; '.join(told)}; {killed.kept} windows were journalled before a kill; "
              f"{time.monotonic() - began:.0f} s]")  # fmt: skip
