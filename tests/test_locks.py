"""The engine lock and the removal of orphans, with real processes that are really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from engcmp_resources.errors import EngcmpError
from engcmp_resources.locks import engine_lock, host_lock, remove_orphans

ROOT = Path(__file__).parents[1]
ARM, RUN = "q4_0/llamacpp@b11549", "run-1"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
Spawn = Callable[..., subprocess.Popen[str]]

HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from engcmp_resources.locks import engine_lock
with engine_lock(arm="q8_0/llamacpp@b1", run_id="run-0", waiting=print, timeout_s=5, folder=Path(sys.argv[1])) as lock:
    labels = {"ENGCMP_ARM": "q8_0/llamacpp@b1", "ENGCMP_LOCK": str(lock), "ENGCMP_RUN": "run-0"}
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    engine = subprocess.Popen(sleeper, env=labels, start_new_session=True)
    print(engine.pid, flush=True)
    time.sleep(600)
"""

TAKE_TURNS = """
import sys, time
from pathlib import Path
from engcmp_resources.locks import engine_lock
for _ in range(3):
    with engine_lock(arm=sys.argv[2], run_id="r", waiting=lambda _: None, timeout_s=30, folder=Path(sys.argv[1])):
        for word in ("in", "out"):
            with Path(sys.argv[1], "diary").open("a") as diary:
                diary.write(f"{word} {sys.argv[2]}\\n")
            time.sleep(0.05)
"""

REMOVE = """
import sys
from pathlib import Path
from engcmp_resources.locks import remove_orphans
print(len(remove_orphans(Path(sys.argv[1]))))
"""


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts Python programs; all are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | (environment or {})
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "locks"
    place.mkdir(mode=0o700)
    return place


def hold(spawn: Spawn, folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A process that holds the lock, and the pid of the engine that it started."""
    holder = spawn(HOLD, str(folder))
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def kill(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()


def nobody(_: str) -> None:
    pytest.fail("there was no one to wait for")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_lock_of_a_killed_process_is_free_again_though_its_engine_lives(spawn: Spawn, folder: Path) -> None:
    holder, engine = hold(spawn, folder)
    kill(holder)
    try:
        with engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder):
            os.kill(engine, 0)
    finally:
        os.kill(engine, signal.SIGKILL)


def test_takers_exclude_each_other(spawn: Spawn, folder: Path) -> None:
    takers = [spawn(TAKE_TURNS, str(folder), name) for name in ("a", "b", "c")]
    assert [taker.wait(60) for taker in takers] == [0, 0, 0]
    lines = (folder / "diary").read_text().splitlines()
    assert len(lines) == 18
    for entry, exit_ in zip(lines[::2], lines[1::2], strict=True):
        assert (entry.split()[0], exit_.split()[0]) == ("in", "out")
        assert entry.split()[1] == exit_.split()[1]


def test_two_holders_in_one_process_exclude_each_other_too(folder: Path) -> None:
    with (
        engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder),
        pytest.raises(EngcmpError, match=f"process {os.getpid()} "),
        engine_lock(arm=ARM, run_id=RUN, waiting=print, timeout_s=0, folder=folder),
    ):
        pytest.fail("both hold it")


@linux_only
def test_waiting_says_who_holds_the_lock_and_ends_in_an_error(spawn: Spawn, folder: Path) -> None:
    holder, engine = hold(spawn, folder)
    said: list[str] = []
    began = time.monotonic()
    with (
        pytest.raises(EngcmpError, match=rf"not free within 0\.5 s; process {holder.pid} \(arm q8_0/llamacpp@b1, run"),
        engine_lock(arm=ARM, run_id=RUN, waiting=said.append, timeout_s=0.5, folder=folder),
    ):
        pytest.fail("both hold it")
    assert 0.5 <= time.monotonic() - began < 60
    assert said == [
        f"waiting for the engine lock; process {holder.pid} (arm q8_0/llamacpp@b1, run run-0) holds it",
    ]
    kill(holder)
    os.kill(engine, signal.SIGKILL)


def test_a_taker_goes_on_when_the_holder_dies(spawn: Spawn, folder: Path) -> None:
    holder, engine = hold(spawn, folder)
    with engine_lock(arm=ARM, run_id=RUN, waiting=lambda _: kill(holder), timeout_s=20, folder=folder) as lock:
        assert f'"pid": {os.getpid()}' in lock.read_text()
    assert lock.read_text() == ""
    os.kill(engine, signal.SIGKILL)


@linux_only
def test_the_engine_of_a_killed_holder_is_removed_under_the_lock(spawn: Spawn, folder: Path) -> None:
    holder, engine = hold(spawn, folder)
    kill(holder)
    with engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as lock:
        (sentence,) = remove_orphans(lock)
        assert not is_alive(engine)
        assert f"process {engine} " in sentence
        assert "arm q8_0/llamacpp@b1, run run-0" in sentence
        assert remove_orphans(lock) == []


@linux_only
def test_processes_of_an_engine_that_hide_their_labels_go_with_the_one_that_leads_their_session(
    spawn: Spawn, folder: Path
) -> None:
    """vLLM's engine core and workers write a title over their variables, and outlive the server that started them."""
    hidden = "import os, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(600)"
    leader = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {hidden!r}], env={{}}); time.sleep(600)"
    )
    sleeper = '[sys.executable, "-c", "import time; time.sleep(600)"]'
    assert sleeper in HOLD
    holder = spawn(HOLD.replace(sleeper, f"[sys.executable, '-c', {leader!r}]"), str(folder))
    assert holder.stdout is not None
    engine, core = sorted(int(holder.stdout.readline()) for _ in range(2))
    kill(holder)
    with engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as lock:
        (sentence,) = remove_orphans(lock)
        assert f"process {engine} " in sentence
        assert not is_alive(engine)
        assert not is_alive(core)


@linux_only
def test_processes_without_all_labels_of_this_lock_are_left_alone(spawn: Spawn, tmp_path: Path) -> None:
    sleeper = "print(0, flush=True); import time; time.sleep(600)"
    labels = {"ENGCMP_ARM": ARM, "ENGCMP_RUN": RUN, "ENGCMP_LOCK": str(tmp_path / "engine.lock")}
    others = [
        spawn(sleeper, environment=labels | {"ENGCMP_LOCK": str(tmp_path / "other.lock")}),
        spawn(sleeper, environment={"ENGCMP_LOCK": labels["ENGCMP_LOCK"]}),
    ]
    for process in others:
        assert process.stdout is not None
        process.stdout.readline()
    assert remove_orphans(tmp_path / "engine.lock") == []
    assert [process.poll() for process in others] == [None, None]


@linux_only
def test_a_program_that_carries_the_labels_itself_is_spared(spawn: Spawn, tmp_path: Path) -> None:
    lock = str(tmp_path / "engine.lock")
    remover = spawn(REMOVE, lock, environment={"ENGCMP_ARM": ARM, "ENGCMP_RUN": RUN, "ENGCMP_LOCK": lock})
    assert remover.communicate(timeout=30)[0] == "0\n"
    assert remover.returncode == 0


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGCMP_LOCK_DIR", str(tmp_path / "mine"))
    with engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0) as lock:
        assert lock == (tmp_path / "mine" / "engine.lock").resolve()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_by_default_the_folder_is_this_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ENGCMP_LOCK_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0) as lock:
        assert lock == (tmp_path / f"engcmp-{os.geteuid()}" / "engine.lock").resolve()


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    shared.mkdir()
    shared.chmod(0o777)
    link.symlink_to(tmp_path)
    for folder in (shared, link):
        with (
            pytest.raises(EngcmpError, match="link, another user's, or writable for others"),
            engine_lock(arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder),
        ):
            pytest.fail("it was taken")


# ---------------------------------------------------------------- the host, for what is timed


def host(folder: Path, said: list[str], *, alone: bool, timeout_s: float = 0) -> AbstractContextManager[None]:
    return host_lock(alone=alone, who="arm k4, timed", waiting=said.append, timeout_s=timeout_s, folder=folder)


def test_analyses_share_the_host_and_a_timed_measurement_waits_for_them(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    busy = pytest.raises(EngcmpError, match="this machine was not free within 0 s; an analysis holds it")
    with host(folder, [], alone=False), host(folder, [], alone=False), busy:
        host(folder, [], alone=True).__enter__()
    with host(folder, [], alone=True):
        pass


def test_an_analysis_waits_for_a_timed_measurement_and_is_told_for_which(tmp_path: Path) -> None:
    folder, said = tmp_path / "locks", list[str]()
    with host(folder, [], alone=True), pytest.raises(EngcmpError, match=r"process \d+ \(arm k4, timed\) holds it"):
        host(folder, said, alone=False, timeout_s=0.5).__enter__()
    assert said and "arm k4, timed" in said[0]
    with host(folder, [], alone=False), host(folder, [], alone=False):
        pass
