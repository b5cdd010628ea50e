"""Locks for sets of GPUs: real processes of real users, really killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpu_locks import Lease, clean_up_locks, gpu_locks, leases, process_started, shared_folder
from engcmp_resources.locks import remove_orphans

ROOT = Path(__file__).parents[2]
ARM, RUN = "K4/vllm@v1", "run-1"
NOBODY = 65534
linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
Spawn = Callable[..., subprocess.Popen[str]]

HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from engcmp_resources.gpu_locks import gpu_locks
folder, gpus, user = Path(sys.argv[1]), [int(gpu) for gpu in sys.argv[2].split(",")], int(sys.argv[3])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
with gpu_locks(gpus, arm="K4/vllm@v0", run_id="run-0", waiting=lambda _: None, timeout_s=30, folder=folder) as held:
    held.update_lease(container="c" * 64)
    labels = {"ENGCMP_ARM": "K4/vllm@v0", "ENGCMP_LOCK": held.label, "ENGCMP_RUN": "run-0"}
    sleeper, quiet = [sys.executable, "-c", "import time; time.sleep(600)"], subprocess.DEVNULL
    engine = subprocess.Popen(sleeper, env=labels, start_new_session=True, stdout=quiet) if len(sys.argv) > 4 else None
    print(engine.pid if engine else 0, flush=True)
    input()
print("released", flush=True)
"""

TAKE_TURNS = """
import os, sys, time
from pathlib import Path
from engcmp_resources.gpu_locks import gpu_locks
folder, gpus = Path(sys.argv[1]), [int(gpu) for gpu in sys.argv[2].split(",")]
for _ in range(8):
    with gpu_locks(gpus, arm=sys.argv[2], run_id="r", waiting=lambda _: None, timeout_s=60, folder=folder):
        for gpu in gpus:
            os.close(os.open(folder.parent / f"busy-{gpu}", os.O_CREAT | os.O_EXCL))  # fails where another one has it
        time.sleep(0.01)
        for gpu in gpus:
            (folder.parent / f"busy-{gpu}").unlink()
"""


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, as the system's own is."""
    parent = Path(tempfile.mkdtemp(prefix="engcmp-locks-"))
    parent.chmod(0o755)
    yield parent / "engcmp"
    shutil.rmtree(parent)


def hold(
    spawn: Spawn, folder: Path, gpus: str, *, user: int = 0, engine: bool = False
) -> tuple[subprocess.Popen[str], int]:
    holder = spawn(HOLD, folder, gpus, user, *(["engine"] if engine else []))
    assert holder.stdout is not None
    line = holder.stdout.readline()
    assert line, "the holder failed"
    return holder, int(line)


def release(holder: subprocess.Popen[str]) -> None:
    assert holder.communicate("\n", timeout=30)[0] == "released\n"


def nobody(_: str) -> None:
    pytest.fail("there was no one to wait for")


def is_free(folder: Path, *gpus: int) -> bool:
    try:
        with gpu_locks(gpus, arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder):
            return True
    except EngcmpError:
        return False


def test_sets_that_overlap_exclude_each_other_and_others_do_not(spawn: Spawn, folder: Path) -> None:
    holder, _ = hold(spawn, folder, "0,1")
    assert [is_free(folder, *gpus) for gpus in ((0,), (1,), (1, 2), (0, 1))] == [False] * 4
    assert is_free(folder, 2) and is_free(folder, 2, 3)
    release(holder)
    assert is_free(folder, 0, 1, 2)


def test_takers_of_overlapping_sets_never_meet_and_never_block_each_other_for_ever(spawn: Spawn, folder: Path) -> None:
    takers = [spawn(TAKE_TURNS, folder, gpus) for gpus in ("0,1", "1,2", "2,0")]
    assert [taker.wait(90) for taker in takers] == [0, 0, 0]


def test_sets_are_taken_in_one_order_however_they_are_named(folder: Path) -> None:
    with gpu_locks((3, 1, 3), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as held:
        assert [path.name for path in held.paths] == ["gpu-1.lock", "gpu-3.lock"]
        assert held.label == f"{folder}/gpu-1.lock:{folder}/gpu-3.lock"


@linux_only
def test_a_killed_holder_frees_its_gpus_and_its_leases_are_found_with_the_container(spawn: Spawn, folder: Path) -> None:
    holder, _ = hold(spawn, folder, "0,1")
    assert [(lease.what, stale, lease.is_alive) for lease, stale in leases(folder)] == [
        ("GPU 0", False, True), ("GPU 1", False, True),
    ]  # fmt: skip
    holder.kill()
    holder.wait()
    assert [(lease.what, stale, lease.is_alive) for lease, stale in leases(folder)] == [
        ("GPU 0", True, False), ("GPU 1", True, False),
    ]  # fmt: skip
    with gpu_locks((1, 2), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as held:
        (stale,) = held.stale
        assert (stale.what, stale.pid, stale.run, stale.container) == ("GPU 1", holder.pid, "run-0", "c" * 64)
        assert str(stale).startswith(
            f"process {holder.pid} of user {os.geteuid()} (arm K4/vllm@v0, run run-0, since 20"
        )
    assert [lease.what for lease, _ in leases(folder)] == ["GPU 0"]
    (sentence,) = clean_up_locks(folder)
    assert sentence.startswith(f"removed the lease of a dead run: GPU 0, process {holder.pid} of user ")
    assert sentence.endswith(f", container {'c' * 64})")
    assert leases(folder) == [] and clean_up_locks(folder) == []


@linux_only
def test_waiting_names_the_holder_and_ends_in_an_error(spawn: Spawn, folder: Path) -> None:
    holder, _ = hold(spawn, folder, "1")
    said: list[str] = []
    began = time.monotonic()
    with (
        pytest.raises(EngcmpError, match=rf"the lock of GPU 1 was not free within 0\.\d+ s; process {holder.pid} of"),
        gpu_locks((0, 1), arm=ARM, run_id=RUN, waiting=said.append, timeout_s=0.5, folder=folder),
    ):
        pytest.fail("both hold it")
    assert 0.5 <= time.monotonic() - began < 60
    assert len(said) == 1 and said[0].startswith(f"waiting for the lock of GPU 1; process {holder.pid} of user ")
    assert is_free(folder, 0), "the lock that was taken before the wait was not given back"
    assert leases(folder)[0][0].what == "GPU 1" and len(leases(folder)) == 1


def test_the_time_to_wait_is_for_the_whole_set(spawn: Spawn, folder: Path) -> None:
    first, _ = hold(spawn, folder, "0")
    hold(spawn, folder, "1")

    def waiting(_: str) -> None:
        if first.poll() is None:
            time.sleep(0.5)
            first.kill()
            first.wait()

    with (
        pytest.raises(EngcmpError, match=r"the lock of GPU 1 was not free within [0-2]\.\d+ s"),
        gpu_locks((0, 1), arm=ARM, run_id=RUN, waiting=waiting, timeout_s=3, folder=folder),
    ):
        pytest.fail("both hold it")


def test_a_taker_goes_on_when_the_holder_dies(spawn: Spawn, folder: Path) -> None:
    holder, _ = hold(spawn, folder, "0")
    with gpu_locks((0,), arm=ARM, run_id=RUN, waiting=lambda _: holder.kill(), timeout_s=30, folder=folder) as held:
        assert [lease.pid for lease, _ in leases(folder)] == [os.getpid()]
        assert [lease.pid for lease in held.stale] == [holder.pid]
    assert leases(folder) == []


def test_a_lease_is_written_whole_and_says_who_since_when_and_which_container(folder: Path) -> None:
    with gpu_locks((0,), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as held:
        (path,) = folder.glob("*.lease-*")
        assert path.name == f"gpu-0.lease-{os.geteuid()}"
        assert path.stat().st_mode & 0o777 == held.paths[0].stat().st_mode & 0o777 == 0o644, (
            "others cannot read who holds it"
        )
        first = json.loads(path.read_bytes())
        assert {**first, "since": "", "started": 0} == {
            "arm": ARM, "run": RUN, "pid": os.getpid(), "user": os.geteuid(), "container": None, "since": "", "started": 0,
        }  # fmt: skip
        assert first["since"].endswith("+00:00") and first["started"] == process_started(os.getpid())
        held.update_lease(container="abc")
        assert json.loads(path.read_bytes()) == {**first, "container": "abc"}
    assert sorted(path.name for path in folder.iterdir()) == ["gpu-0.lock"]


@linux_only
def test_a_process_that_got_the_number_of_the_holder_is_not_taken_for_it(folder: Path) -> None:
    lease = Lease(folder / "gpu-0.lock", os.getpid(), process_started(os.getpid()), os.geteuid(), ARM, RUN, "", None)
    assert lease.is_alive
    later = Lease(lease.lock, lease.pid, (lease.started or 0) - 1, lease.user, ARM, RUN, "", None)
    assert not later.is_alive
    assert process_started(1 << 30) is None


def test_what_is_no_lease_is_not_taken_for_one(folder: Path) -> None:
    shared_folder(folder)
    user = os.geteuid()
    good = {"pid": 1, "started": 1, "user": 5, "arm": "\x1b[2Ja", "run": "r" * 999, "since": "s", "container": None}
    (folder / f"gpu-0.lease-{user}").write_text(json.dumps(good))
    (folder / f"gpu-1.lease-{user}").write_text("{")
    (folder / f"gpu-2.lease-{user}").write_text("[1]")
    (folder / f"gpu-3.lease-{user + 1}").write_text(json.dumps(good))  # of a user who did not write it
    (folder / f"gpu-4.lease-{user}").symlink_to(folder / f"gpu-0.lease-{user}")
    os.mkfifo(folder / f"gpu-5.lease-{user}")
    ((lease, stale),) = leases(folder)
    assert (lease.what, lease.user, stale) == ("GPU 0", user, True)
    assert (lease.arm, len(lease.run)) == ("?[2Ja", 200)


def test_links_and_other_files_in_place_of_a_lock_are_refused(folder: Path, tmp_path: Path) -> None:
    shared_folder(folder)
    (tmp_path / "elsewhere").touch()
    (folder / "gpu-0.lock").symlink_to(tmp_path / "elsewhere")
    (folder / "gpu-1.lock").mkdir()
    for gpu in (0, 1):
        with (
            pytest.raises(
                EngcmpError, match=rf"gpu-{gpu}\.lock is a link or no file|lock of GPU {gpu} cannot be opened"
            ),
            gpu_locks((gpu,), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder),
        ):
            pytest.fail("it was taken")


def test_the_folder_is_one_in_which_nobody_can_remove_another_s_lock(folder: Path, tmp_path: Path) -> None:
    assert shared_folder(folder) == folder and folder.stat().st_mode & 0o7777 == 0o1777
    assert shared_folder(folder) == folder
    loose, link = tmp_path / "loose", tmp_path / "link"
    loose.mkdir()
    loose.chmod(0o777)
    link.symlink_to(folder)
    for place in (loose, link):
        with pytest.raises(EngcmpError, match="is a link, or others can remove the locks"):
            shared_folder(place)
    with pytest.raises(EngcmpError, match="no folder for the GPU locks"):
        shared_folder(tmp_path / "none" / "engcmp")


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("ENGCMP_GPU_LOCK_DIR", str(folder))
    with gpu_locks((0,), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0) as held:
        assert held.paths == (folder / "gpu-0.lock",)
        assert [lease.what for lease, _ in leases()] == ["GPU 0"]


def test_a_lock_whose_file_was_removed_while_it_was_waited_for_is_not_held_by_two(spawn: Spawn, folder: Path) -> None:
    holder, _ = hold(spawn, folder, "0")
    taken: list[bool] = []

    def waiting(_: str) -> None:
        (folder / "gpu-0.lock").unlink(missing_ok=True)  # as someone who tidies up may do
        holder.kill()

    with gpu_locks((0,), arm=ARM, run_id=RUN, waiting=waiting, timeout_s=30, folder=folder):
        taken.append(is_free(folder, 0))
    assert taken == [False]


def test_the_empty_set_is_the_engine_lock_of_the_processor(tmp_path: Path) -> None:
    private = tmp_path / "mine"
    with gpu_locks((), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=private) as held:
        assert held.paths == (private.resolve() / "engine.lock",)
        assert held.label == str(held.paths[0])
        held.update_lease(container="abc")
        assert [(lease.what, lease.container, stale) for lease, stale in leases(private)] == [
            ("the engine lock", "abc", False)
        ]
        assert not is_free(private)
    assert leases(private) == [] and is_free(private)


@linux_only
def test_the_engine_of_a_dead_holder_is_removed_by_whoever_takes_one_of_its_gpus(spawn: Spawn, folder: Path) -> None:
    holder, engine = hold(spawn, folder, "0,1", engine=True)
    holder.kill()
    holder.wait()
    try:
        with gpu_locks((2,), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as held:
            assert remove_orphans(*held.paths) == []
        with gpu_locks((1, 2), arm=ARM, run_id=RUN, waiting=nobody, timeout_s=0, folder=folder) as held:
            (sentence,) = remove_orphans(*held.paths)
        assert f"process {engine} " in sentence and "run run-0" in sentence
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine, signal.SIGKILL)


@linux_only
def test_a_clean_up_ends_the_engines_of_dead_holders_and_leaves_a_living_one_alone(spawn: Spawn, folder: Path) -> None:
    living, kept = hold(spawn, folder, "0", engine=True)
    dead, left = hold(spawn, folder, "1,2", engine=True)
    dead.kill()
    dead.wait()
    try:
        removed, *others = clean_up_locks(folder)
        assert removed.startswith(f"removed an engine left by a dead run: process {left} ")
        assert [sentence.split(",")[0] for sentence in others] == [
            "removed the lease of a dead run: GPU 1", "removed the lease of a dead run: GPU 2",
        ]  # fmt: skip
        os.kill(kept, 0)
        assert [(lease.what, lease.pid) for lease, _ in leases(folder)] == [("GPU 0", living.pid)]
    finally:
        for engine in (kept, left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGKILL)


@root_only
@linux_only
@pytest.mark.parametrize("first", [0, NOBODY])
def test_users_exclude_each_other_whoever_came_first(spawn: Spawn, folder: Path, first: int) -> None:
    if first:
        folder.parent.chmod(0o1777)
    holder, _ = hold(spawn, folder, "0,1", user=first)
    second = NOBODY - 1 if first else NOBODY
    other = spawn(HOLD, folder, "1,2", second)
    time.sleep(1.5)
    assert other.poll() is None and [lease.what for lease, _ in leases(folder)] == ["GPU 0", "GPU 1"]
    holder.kill()
    holder.wait()
    assert other.stdout is not None and other.stdout.readline() == "0\n"
    found = {(lease.what, lease.user, stale) for lease, stale in leases(folder)}
    assert {("GPU 1", second, False), ("GPU 2", second, False), ("GPU 0", first, True)} <= found
    release(other)


@root_only
@linux_only
def test_what_another_user_left_is_told_and_removed_by_whoever_may(spawn: Spawn, folder: Path) -> None:
    folder.parent.chmod(0o1777)
    holder, _ = hold(spawn, folder, "0", user=NOBODY)
    holder.kill()
    holder.wait()
    third, _ = hold(spawn, folder, "0", user=NOBODY - 1)
    assert (folder / f"gpu-0.lease-{NOBODY}").exists(), "a user removed what is another's"
    release(third)
    (sentence,) = clean_up_locks(folder)
    assert sentence.startswith("removed the lease") and f"of user {NOBODY} " in sentence
    assert leases(folder) == []
