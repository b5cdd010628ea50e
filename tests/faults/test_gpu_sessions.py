"""What becomes of a capture whose GPU is lost (FAULTS, section 10): what that start measured is void, and is measured again.

The engine is the real llama.cpp on the tiny study. The driver is a recording of a real GPU that lists the engines which really run
here; told to, it answers for the GPU as a driver does for one that fell off the bus.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chaos.running import Running
from gpu import driver_stand_in
from gpu.recording import FILE
from gpu.samples import played
from homes import Q8, quiet, unfinished, wait_until
from tiny import BASE_ARM, TINY, TinyStudy, copy_of, make_tiny

from engcmp_assets.captured_rows import watching
from engcmp_assets.captured_rows.journalled import Capture, open_capture
from engcmp_assets.captured_rows.session import capture_arm
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.tables import read_parquet
from engcmp_assets.kernel.work import Done, Session, output_blob
from engcmp_resources import gpus
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpu_locks import gpu_locks, leases
from engcmp_resources.gpus import NvmlRefusal
from engcmp_resources.store import Store
from engcmp_resources.telemetry import read_samples, sampling

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

ARM = ArmKey.parse(BASE_ARM)
BOTH = (BASE_ARM, Q8)
GPU_IS_LOST = 15
PERIOD_S = 0.1
LOST = "GPU 0 was lost during the capture"


def engines() -> list[int]:
    """The engines that this process has started."""
    label, found = f"ENGCMP_ARM={ARM}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                label in (folder / "environ").read_bytes().split(b"\0")
                and gpus.parent_of(int(folder.name)) == os.getpid()
            ):
                found.append(int(folder.name))
        except OSError:  # another user's, or it has just ended
            continue
    return found


class Driver:
    """NVML as it was recorded of an idle GPU, with the engines of this process in its list. All opened ones share `lost`."""

    lost = False

    def __init__(self) -> None:
        self._idle = played("idle")

    def read(self, function: str, *arguments: int) -> Any:
        if Driver.lost and function.startswith("nvmlDevice") and function != "nvmlDeviceGetCount":
            raise NvmlRefusal(function, GPU_IS_LOST)
        if function == "nvmlDeviceGetComputeRunningProcesses":
            return [{"pid": pid, "usedGpuMemory": 10**9} for pid in engines()]
        if function == "nvmlSystemGetProcessName":
            return "engine"
        return self._idle.read(function, *arguments)

    def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture(scope="module")
def prepared(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> TinyStudy:
    """The tiny study on one GPU, with all that comes before its capture: which this host, without a GPU, refuses."""
    tiny = make_tiny(tmp_path_factory.mktemp("gpu"), measured_home)
    path = tiny.folder / "protocol.toml"
    one, two = (f'[[arms]]\narm = "{arm}"\n' for arm in BOTH)
    text = path.read_text(encoding="utf-8").replace(one, one + two)
    path.write_text(f"{text}\n[gpus]\nuse = [0]\n", encoding="utf-8")
    assert tiny.run("freeze", TINY).returncode == 0
    done = tiny.run("run", TINY)
    if not isinstance(gpus.open_nvml(), gpus.NoValue):
        pytest.skip("this host has an NVIDIA GPU")
    assert done.returncode == 1 and "the study uses GPU 0, and there is no NVIDIA device" in done.stderr, done.stderr[
        -2000:
    ]
    assert not list(tiny.home.glob("heads/**/captured_rows")), "it was measured without its GPU"
    return tiny


@pytest.fixture
def session(prepared: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    tiny = copy_of(prepared, tmp_path)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(tiny.root / "protocol"))
    monkeypatch.setattr(gpus, "open_nvml", Driver)
    monkeypatch.setattr(watching, "sampling", functools.partial(sampling, open_driver=Driver, period_s=PERIOD_S))
    monkeypatch.setattr(watching, "_GIVEN_BACK_S", 0.0)
    yield Session(load_study(TINY), Store(tiny.home), "test", quiet)
    Driver.lost = False


def captured(session: Session) -> dict[str, Done]:
    return {done.receipt["artifact"]: done for done in capture_arm(session, ARM)}


def starts_of(session: Session, done: Mapping[str, Done]) -> list[dict[str, Any]]:
    blob = output_blob(done["engine_launch/scoring"].receipt, "starts.json")
    found: list[dict[str, Any]] = json.loads(session.store.path(blob).read_bytes())
    return found


def starts_of_rows(session: Session, done: Mapping[str, Done], path: str) -> set[int]:
    """The starts that measured the rows of a score path, of all panels."""
    found: set[int] = set()
    for name, one in done.items():
        if name.startswith("captured_rows/"):
            table = read_parquet(session.store.path(output_blob(one.receipt, "capture.parquet")))
            found |= {int(start) for start in table["start"][table["score_path"] == path]}
    return found


def seen_lost(capture: Capture, start: int) -> bool:
    """Whether a sample tells of the loss, and the one after it was begun."""
    shots = [
        one["gpus"] for one in read_samples(watching.telemetry_file(capture, start)) if one["phase"] == "capturing"
    ]
    return any(isinstance(shot, list) and shot[0]["lost"] for shot in shots[:-1])


def after_window(number: int, then: Callable[[Capture, int], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once this many windows are journalled, and never again."""
    real, left = Capture.add_window, [number]

    def add_window(self: Capture, launch: Any, start: int, one: Any, repeats: Sequence[Mapping[str, Any]]) -> None:
        real(self, launch, start, one, repeats)
        left[0] -= 1
        if left[0] == 0:
            then(self, start)

    monkeypatch.setattr(Capture, "add_window", add_window)


def lose(capture: Capture, start: int) -> None:
    Driver.lost = True
    wait_until(lambda: seen_lost(capture, start))


def test_a_gpu_that_stays_measures_and_nothing_is_flagged(session: Session) -> None:
    done = captured(session)
    launch = done["engine_launch/scoring"].receipt
    assert launch["flags"] == []
    (samples,) = (one for one in launch["checks"] if one["name"] == "undisturbed")
    assert samples["passed"] and samples["evidence"]["samples"] > 0
    for start in starts_of(session, done):
        assert start["gpus_before"]["gpus"][0]["name"] == start["gpus_after"]["gpus"][0]["name"] == "NVIDIA H200"
        assert start["gpus_after"]["gpus"][0]["compute_processes"] == []
    telemetry = read_parquet(session.store.path(output_blob(launch, "telemetry.parquet")))
    seen = [json.loads(one) for one in telemetry["compute_processes"][telemetry["phase"] == "capturing"]]
    assert any(process["ours"] for listed in seen for process in listed), "the engine was never seen on its GPU"


def test_windows_measured_while_the_gpu_was_lost_are_void_and_are_taken_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_window(1, lose, monkeypatch)
    with pytest.raises(EngcmpError, match=rf"what start 1 of .* measured is void: {LOST}") as told:
        captured(session)
    assert "the windows of that start are taken again" in str(told.value.remedy)
    assert session.current("captured_rows/pa", ARM) is None
    Driver.lost = False
    capture = open_capture(session, ARM, remeasure=False)
    assert capture.windows() == [] and len(capture.missing(capture.launches[0])) == 2
    done = captured(session)
    first, *others = starts_of(session, done)
    assert first["void"] == [LOST, "GPU 0 is not there after the stop"]
    assert first["gpus_after"]["gpus"][0]["lost"] is True
    assert not any("void" in start for start in others)
    assert starts_of_rows(session, done, "prefill") == {2}
    launch = done["engine_launch/scoring"].receipt
    assert f"start 1 is void: {LOST}" in launch["flags"]
    assert [one["passed"] for one in launch["checks"] if one["name"] == "undisturbed"] == [False]


def test_a_gpu_that_is_lost_after_the_last_sample_is_seen_after_the_stop(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = watching.Watch.stopping

    def stopping(self: watching.Watch) -> None:
        real(self)
        Driver.lost = True

    monkeypatch.setattr(watching.Watch, "stopping", stopping)
    with pytest.raises(EngcmpError, match=r"what start 1 of .* measured is void: GPU 0 is not there after the stop"):
        captured(session)
    assert open_capture(session, ARM, remeasure=False).windows() == []


class _Killed(BaseException):
    """Stands for a kill: what would run at an error does not."""


def test_what_a_killed_run_measured_on_a_lost_gpu_is_void_too(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_and_die(capture: Capture, start: int) -> None:
        lose(capture, start)
        raise _Killed

    with monkeypatch.context() as patch:
        after_window(1, lose_and_die, patch)
        patch.setattr(Capture, "add_end", lambda *_: None)
        patch.setattr(Capture, "add_void", lambda *_: None)
        with pytest.raises(_Killed):
            captured(session)
    Driver.lost = False
    left = open_capture(session, ARM, remeasure=False)
    assert len(left.windows()) == 1, "the kill left a window in the journal"
    assert "missing" in left.starts()[0]["gpus_after"] and "void" not in left.starts()[0]
    done = captured(session)
    assert starts_of(session, done)[0]["void"] == [LOST]
    assert starts_of_rows(session, done, "prefill") == {2}


def test_a_start_that_never_got_ready_leaves_nothing_at_the_one_that_follows(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is lost while the engine loads: the next start has the same number, and counts."""
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> bool:
            Driver.lost = True
            raise EngcmpError("the engine ended while loading", remedy="look at its log")

        patch.setattr("engcmp_assets.captured_rows.session._refuse_other_tokens", fail)
        with pytest.raises(EngcmpError, match="ended while loading"):
            captured(session)
    Driver.lost = False
    done = captured(session)
    starts = starts_of(session, done)
    assert [start["start"] for start in starts] == [1, 2]
    assert not any("void" in start for start in starts)
    assert done["engine_launch/scoring"].receipt["flags"] == []


def test_another_program_on_the_gpu_keeps_the_engine_from_starting(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(Driver):
        def read(self, function: str, *arguments: int) -> Any:
            if function == "nvmlDeviceGetComputeRunningProcesses":
                return [{"pid": 1, "usedGpuMemory": 2 * 10**9}]
            return super().read(function, *arguments)

    monkeypatch.setattr(gpus, "open_nvml", Shared)
    with pytest.raises(
        EngcmpError, match=r"the GPUs are not as the protocol asks: GPU 0 is used by process 1 \(engine\)"
    ):
        captured(session)
    assert engines() == [] and open_capture(session, ARM, remeasure=False).starts() == []


HOLD_GPU = """
import sys
from engcmp_resources.gpu_locks import gpu_locks
with gpu_locks([0], arm="K4/vllm@v1", run_id="first", waiting=print, timeout_s=0):
    print("held", flush=True)
    input()
"""


def test_of_two_runs_for_one_gpu_the_second_waits_says_for_whom_and_goes_on(session: Session) -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD_GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if f"waiting for the lock of GPU 0; process {first.pid}" in text:
            assert engines() == [], "nothing of the second runs while the first has the GPU"
            first.communicate("\n", timeout=30)

    try:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        done = captured(replace(session, say=say))
    finally:
        first.kill()
        first.wait()
    (waited,) = (text for text in said if "waiting for the lock of GPU 0" in text)
    assert "K4/vllm@v1" in waited and "run first" in waited
    assert starts_of_rows(session, done, "prefill") == {1}


@pytest.mark.timeout(900)
def test_of_two_whole_runs_that_are_started_at_once_never_both_have_the_gpu_and_both_complete(
    prepared: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes of the command in one home, each for another arm; their driver, too, lists the engines of both."""
    tiny, driver = copy_of(prepared, tmp_path / "both"), tmp_path / "driver"
    driver.mkdir()
    shutil.copy(driver_stand_in.__file__, driver / "pynvml.py")
    others = {"PYTHONPATH": driver, "ENGCMP_RECORDED_GPU": FILE, "ENGCMP_GPU_LOCK_DIR": tmp_path / "gpu-locks"}
    for name, value in (tiny.variables | others).items():
        monkeypatch.setenv(name, str(value))
    said, seen = list[str](), list[set[str]]()
    with gpu_locks([0], arm="-", run_id="the test", waiting=pytest.fail, timeout_s=0):  # until both are here
        runs = [Running(tiny.home, "run", TINY, "--arm", arm) for arm in BOTH]
        try:
            assert [run.wait_for(re.compile(rf"GPU 0; process {os.getpid()} ")) for run in runs] == [True, True]
            assert driver_stand_in.engines_on_the_gpu() == {}
        except BaseException:
            [run.kill() for run in runs]
            raise
    while any(run.process.poll() is None for run in runs):
        seen.append(set(driver_stand_in.engines_on_the_gpu().values()))
        time.sleep(0.05)
    said = [run.rest() for run in runs]
    assert [run.process.returncode for run in runs] == [0, 0], "\n".join(said)[-4000:]
    assert set.union(*seen) == set(BOTH) and max(map(len, seen)) == 1, "two engines were on one GPU"
    waited = [f"GPU 0; process {other.process.pid} " in text for text, other in zip(said, reversed(runs), strict=True)]
    assert waited.count(True) == 1, "the one that came second says for whom it waited"
    session = Session(load_study(TINY), Store(tiny.home), "test", quiet)
    for arm in map(ArmKey.parse, BOTH):
        launch = session.current("engine_launch/scoring", arm)
        assert launch is not None
        # Rows that are taken between two samples of the machine, one a second, are flagged as not watched, and rightly.
        assert [flag for flag in launch.receipt["flags"] if "no telemetry was taken" not in flag] == []
        for start in starts_of(session, {"engine_launch/scoring": launch}):
            assert start["gpus_before"]["gpus"][0]["compute_processes"] == []
    receipts = [json.loads(path.read_bytes()) for path in (tiny.home / "receipts").glob("*.json")]
    made = Counter((one["arm"], one["artifact"]) for one in receipts if one["arm"] is not None)
    assert set(made.values()) == {1} and {arm for arm, _ in made} == set(BOTH), "something was measured twice"
    assert leases() == [] and driver_stand_in.engines_on_the_gpu() == {} and unfinished(tiny.home) == []
    done = tiny.run("verify", TINY)
    assert done.returncode == 0, done.stdout + done.stderr
