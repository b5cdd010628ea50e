"""What surrounds an engine's life: the phases of its telemetry, its lease and labels, and which starts are void."""

from __future__ import annotations

import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu.samples import RECORDED, PlayedNvml, gpu_of, process, sample

from engcmp_assets.captured_rows import watching
from engcmp_assets.captured_rows.journalled import Capture, Launch, open_capture
from engcmp_assets.captured_rows.watching import (
    engine_held,
    judge_killed_starts,
    samples_of_starts,
    telemetry_file,
    watched,
)
from engcmp_assets.engine_launch.journalled import KILLED
from engcmp_assets.kernel.gpu_rules import GpuRules, judge
from engcmp_assets.kernel.panels import passes
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Session
from engcmp_resources import gpus
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpus import NoValue
from engcmp_resources.journal import Journal
from engcmp_resources.store import Store
from engcmp_resources.telemetry import read_samples, sampling

ARM = ArmKey.parse("q4_0/llamacpp@b11549")
RULES = GpuRules(use=(0,))
ENGINE = gpu_of("load", compute_processes=[process(7, ours=True)])
LOST = gpu_of("load", lost=True)
NO_GPU = NoValue("no NVIDIA device (nvmlInit: LIBRARY_NOT_FOUND)")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def home(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a capture reads of the measured home, by hard links."""
    target = tmp_path_factory.mktemp("watching") / "home"
    apart = shutil.ignore_patterns("scratch", "dagster", "views")
    shutil.copytree(measured_home, target, copy_function=os.link, ignore=apart)
    return target


@pytest.fixture
def capture(home: Path, study: Study, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """A capture that was not begun yet, on a host without a GPU, sampled quickly."""
    monkeypatch.setattr(gpus, "open_nvml", lambda: NO_GPU)
    monkeypatch.setattr(watching, "sampling", functools.partial(sampling, open_driver=lambda: NO_GPU, period_s=0.02))
    opened = open_capture(Session(study, Store(home), "run-7", said.append), ARM, remeasure=True)
    return replace(opened, journal=Journal(tmp_path / "journal.jsonl"))


def on_a_gpu(capture: Capture) -> Capture:
    """The capture as of a study that uses GPU 0."""
    study = capture.work.study
    other = replace(study)
    other.__dict__["protocol"] = study.protocol.model_copy(update={"gpus": RULES})
    return replace(capture, work=replace(capture.work, session=replace(capture.work.session, study=other)))


def journal(capture: Capture, start: int, launch: Launch, samples: Sequence[dict[str, Any]], *, ends: bool) -> None:
    """A start with one window, as a run leaves it: with its end, or killed."""
    telemetry_file(capture, start).write_text("".join(json.dumps(one) + "\n" for one in samples))
    capture.add_start(start, launch, {"load_ms": 1.0}, {})
    one = passes(capture.panels_of(launch))[0]
    taken = {"files": {}, "row_sha256": {str(row): "0" * 64 for row in one.positions}}
    capture.add_window(launch, start, one, [taken] * launch.repeats)
    if ends:
        capture.add_end(start, {"gpus": []})


def sampled_phase(capture: Capture, start: int) -> str | None:
    samples = read_samples(telemetry_file(capture, start))
    return samples[-1]["phase"] if samples else None


def test_a_start_has_its_telemetry_by_phase_and_its_end_without_a_gpu_too(capture: Capture) -> None:
    with engine_held(capture) as holding, watched(capture, 1, holding.held) as watch:
        capture.add_start(1, capture.launches[0], {}, watch.before)
        watch.ready({"load_ms": 1.0})
        _wait(lambda: sampled_phase(capture, 1) == "capturing")
        watch.stopping()
        _wait(lambda: sampled_phase(capture, 1) == "stopping")
    samples = samples_of_starts(capture)[1]
    phases = list(dict.fromkeys(one["phase"] for one in samples))
    assert phases[-2:] == ["capturing", "stopping"]
    (start,) = capture.starts()
    assert start["gpus_before"] == start["gpus_after"] == NO_GPU.as_json()
    assert "void" not in start


def test_the_lease_names_the_container_while_it_lives_and_the_labels_name_arm_lock_and_run(capture: Capture) -> None:
    with engine_held(capture) as holding:
        assert holding.labels == {"ENGCMP_ARM": str(ARM), "ENGCMP_LOCK": holding.held.label, "ENGCMP_RUN": "run-7"}
        lease = holding.held.paths[0].parent
        with watched(capture, 1, holding.held) as watch:
            watch.ready({"container": {"id": "c" * 64}})
            assert any("c" * 64 in path.read_text() for path in lease.glob("*lease*"))
        assert not any("c" * 64 in path.read_text() for path in lease.glob("*lease*"))
    assert list(lease.glob("*lease*")) == []


def test_what_a_dead_run_had_left_is_told(capture: Capture, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("remove_orphans", "remove_leftovers"):
        monkeypatch.setattr(watching, place, lambda *_, place=place: [f"removed by {place}"])
    with engine_held(capture):
        pass
    assert len([text for text in said if "removed by" in text]) == 2


def test_an_error_in_an_engine_s_life_comes_through_and_the_start_has_its_end(capture: Capture) -> None:
    with engine_held(capture) as holding, pytest.raises(ZeroDivisionError), watched(capture, 1, holding.held) as watch:
        capture.add_start(1, capture.launches[0], {}, watch.before)
        _ = 1 / 0
    assert [start["gpus_after"] for start in capture.starts()] == [NO_GPU.as_json()]


def test_a_start_without_telemetry_has_no_samples(capture: Capture) -> None:
    capture.add_start(1, capture.launches[0], {}, {})
    assert samples_of_starts(capture) == {1: []}


KEPT: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "on its GPU to the end": ([sample(0, ENGINE), sample(1, ENGINE)], True),
    "lost": ([sample(0, ENGINE), sample(1, LOST)], False),
    "left": ([sample(0, ENGINE), sample(1, gpu_of("idle"))], False),
    "lost before it was measured": ([sample(0, LOST, phase="starting"), sample(1, ENGINE)], True),
    "killed before a sample": ([], True),
}


@pytest.mark.parametrize("kind", KEPT)
def test_windows_of_a_killed_start_count_unless_its_telemetry_says_otherwise(
    capture: Capture, said: list[str], kind: str
) -> None:
    samples, counts = KEPT[kind]
    own, launch = on_a_gpu(capture), capture.launches[0]
    journal(own, 1, launch, samples, ends=False)
    missing = len(own.missing(launch))
    judge_killed_starts(own)
    assert len(own.missing(launch)) == (missing if counts else missing + 1)
    assert bool(own.windows()) is counts
    assert own.starts()[0]["gpus_after"] == KILLED
    assert ("void" in own.starts()[0]) is not counts
    assert any("whose run was killed, is void: " in text for text in said) is not counts
    entries = len(own.journal.entries)
    judge_killed_starts(own)
    assert len(own.journal.entries) == entries, "a start is void once"


def test_starts_that_have_ended_and_studies_without_a_gpu_are_left_alone(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(_capture: Capture) -> None:
        pytest.fail("it waited for a lock")

    monkeypatch.setattr(watching, "engine_held", held)
    journal(capture, 1, capture.launches[0], [sample(0, LOST)], ends=False)
    judge_killed_starts(capture)
    assert len(capture.windows()) == 1
    capture.add_end(1, {"gpus": []})
    judge_killed_starts(on_a_gpu(capture))
    assert len(capture.windows()) == 1


def test_an_engine_that_is_stopped_while_a_sample_is_taken_has_not_left_its_gpu(tmp_path: Path) -> None:
    """The list of processes is read a moment after the sample was begun: by then the engine may have ended in order."""
    running = True

    class Slow(PlayedNvml):
        def read(self, function: str, *arguments: int) -> Any:
            if function != "nvmlDeviceGetComputeRunningProcesses":
                return super().read(function, *arguments)
            if (tmp_path / "stop").exists():
                stop()
            return [{"pid": 1002, "usedGpuMemory": 10**9}] if running else []

    def stop() -> None:
        nonlocal running
        sampler.phase, running = "stopping", False

    journal_file = tmp_path / "t.jsonl"
    driver: Callable[[], Any] = lambda: Slow(RECORDED["frames"]["load"])
    with sampling(journal_file, ours=lambda _pid: True, open_driver=driver, period_s=0.02) as sampler:
        sampler.phase = "capturing"
        _wait(lambda: sum(one["phase"] == "capturing" for one in read_samples(journal_file)) >= 2)
        (tmp_path / "stop").touch()
        _wait(lambda: read_samples(journal_file)[-1]["phase"] == "stopping")
    assert not any(one.voids for one in judge(read_samples(journal_file), RULES))


def _wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_before_a_launch_gpus_are_refused_that_are_not_as_declared(capture: Capture) -> None:
    own = on_a_gpu(capture)
    with (
        engine_held(own) as holding,
        pytest.raises(EngcmpError, match="the study uses GPU 0, and there is no NVIDIA device") as told,
        watched(own, 1, holding.held),
    ):
        pytest.fail("it was started")
    assert told.value.where == f"start 1 of {ARM}"
    assert own.starts() == [] and not telemetry_file(own, 1).exists()
