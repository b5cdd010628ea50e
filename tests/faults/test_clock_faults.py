"""The wall clock is set while a study runs: nothing waits for it, ends by it, is ordered wrongly, or is taken for longer than it was."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from homes import start_engcmp
from ports import free_port
from served_tables import MODEL, VOCAB
from set_clock import SettableClock
from speedy import SERVED, receipt, served_study, stored
from tiny import TINY, TinyStudy

from engcmp_assets import automation, lost_runs
from engcmp_assets.beats import TASK_TAG, heard_of
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.kernel.silent_runs import SILENT_S
from tests.simulator.running import running_simulator

HOUR_S, DAY_S = 3600.0, 86_400.0
LEAST_S = 12  # between repeats: time enough to set the clock and to look for lost runs


@pytest.fixture
def served(tmp_path: Path, measured_home: Path) -> Iterator[TinyStudy]:
    port = free_port()
    tiny = served_study(tmp_path / "study", measured_home, port, repeats=2, seconds=LEAST_S, each=True)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    known = tmp_path / "known.json"
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    known.write_text(json.dumps(texts), encoding="utf-8")
    with running_simulator("vllm", port=port, model=MODEL, vocab=VOCAB, known_texts=known):
        yield tiny


def said_until(run: subprocess.Popen[str], part: str) -> str:
    """The line of the run that holds `part`."""
    assert run.stderr is not None
    heard = []
    for line in run.stderr:
        heard.append(line)
        if part in line:
            return line
    raise AssertionError(f"{part!r} was never said: {''.join(heard)[-3000:]}")


@pytest.mark.timeout(600)
def test_a_clock_that_is_set_in_a_run_changes_neither_its_course_nor_what_it_proves(
    served: TinyStudy, tmp_path: Path
) -> None:
    """An hour behind at the start; put right, then ten days ahead, then a day behind, in one run."""
    clock = SettableClock(tmp_path / "clock")
    clock.set(-HOUR_S)
    began = time.monotonic()
    run = start_engcmp("run", TINY, home=served.home, **served.variables, **clock.variables)
    try:
        said_until(run, "captured_rows")
        clock.set(10 * DAY_S)
        said_until(run, "repeat 1 of 2: starting")
        clock.set(-HOUR_S)
        wait = said_until(run, "repeat 2 begins in")
        clock.set(0)
        told = served.run("reap")
        assert told.stdout == "every run in progress has its worker\n", told.stdout + told.stderr
        clock.set(-DAY_S)
        _, rest = run.communicate(timeout=120)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, rest[-3000:]
    assert time.monotonic() - began < 240 and float(wait.partition(" begins in ")[2].split()[0]) <= LEAST_S
    cells = json.loads(stored(served, receipt(served, "throughput_cells", SERVED), "cells.json").read_bytes())
    apart = cells["repeats"][0]["started_at_s"] - cells["started_at_s"]
    assert LEAST_S <= apart < 120, "as long as it was, whatever the clock said"
    proved = served.run("verify", TINY)
    assert proved.returncode == 0, proved.stdout
    variables = served.variables | {"ENGCMP_HOME": str(served.home)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        with open_instance() as instance:
            assert {run.status for run in instance.get_runs()} == {dg.DagsterRunStatus.SUCCESS}


def test_a_clock_that_is_set_forward_silences_no_run_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))

    @dg.job
    def nothing() -> None: ...

    with open_instance() as instance:
        run = instance.create_run_for_job(nothing, tags={TASK_TAG: "a task"})
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "nothing"), run.run_id)
        context = dg.build_sensor_context(instance=instance)
        sensor = lost_runs.lost_runs_sensor()
        sensor(context)
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + DAY_S)
        sensor(context)
        after = instance.get_run_by_id(run.run_id)
        assert after is not None and after.status == dg.DagsterRunStatus.STARTED
        since = heard_of(context.cursor)[run.run_id].since_s
        monkeypatch.setattr(time, "monotonic", lambda: since + SILENT_S)
        sensor(context)
        after = instance.get_run_by_id(run.run_id)
        assert after is not None and after.status == dg.DagsterRunStatus.FAILURE, (
            "one that is silent is ended all the same"
        )


STARTING = """
import os, sys, time
import dagster as dg
from dagster._core.events import EngineEventData
from engcmp_assets.lost_runs import tell_process

with dg.DagsterInstance.get() as instance:
    run = instance.get_run_by_id(sys.argv[1])
    instance.report_engine_event("Started", run, EngineEventData({"pid": dg.MetadataValue.text(str(os.getpid()))}))
    print("said", flush=True)
    sys.stdin.readline()
    tell_process(instance, run)
    print("told", flush=True)
    sys.stdin.readline()
"""


def test_a_clock_that_is_set_forward_while_a_run_starts_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour, before its process is known and between that and its first step; killed at either place, it is ended all the same."""
    monkeypatch.setenv("ENGCMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home" / "dagster"))

    @dg.job
    def nothing() -> None: ...

    with open_instance() as instance:
        run = instance.create_run_for_job(nothing)
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "nothing"), run.run_id)
        ahead, later = Ahead(monkeypatch), time.monotonic() + 121
        ahead.set(HOUR_S)
        assert lost_runs.end_lost_runs(instance) == [], "it has not told its process yet"
        ahead.set(0)
        worker = subprocess.Popen(
            [sys.executable, "-c", STARTING, run.run_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            assert worker.stdout.readline() == "said\n"
            ahead.set(HOUR_S)
            assert lost_runs.end_lost_runs(instance) == [], "its process lives, whatever its start seems to be"
            worker.stdin.write("\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "told\n"
            monkeypatch.setattr(time, "monotonic", lambda: later)
            assert lost_runs.end_lost_runs(instance) == []
        finally:
            worker.kill()
            worker.wait()
        assert lost_runs.end_lost_runs(instance) == [run.run_id]


class Ahead:
    """The wall clock of this process, and the boot time that /proc gives, so much ahead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._s, self._time, self._started = 0.0, time.time, lost_runs._started_at
        monkeypatch.setattr(time, "time", lambda: self._time() + self._s)
        monkeypatch.setattr(lost_runs, "_started_at", self._started_later)

    def set(self, seconds: float) -> None:
        self._s = seconds

    def _started_later(self, pid: int) -> float | None:
        started = self._started(pid)
        return None if started is None else started + self._s


def test_a_wait_that_a_server_asked_for_ends_at_once_where_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true, cursor = time.time, {"asked_at": time.time(), "wait_s": 120.0}
    assert 119 < automation.still_to_wait_s(cursor) <= 120
    for ahead in (-DAY_S, 121.0):
        monkeypatch.setattr(time, "time", lambda ahead=ahead: true() + ahead)
        assert automation.still_to_wait_s(cursor) <= 0
    assert automation.still_to_wait_s(dict[str, Any]()) <= 0
