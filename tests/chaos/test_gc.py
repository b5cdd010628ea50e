"""`engcmp gc`: finds what a dead run left, leaves a living one alone, and collects only what nothing reaches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from cut import A, captured, copy_of, engines, journals, lock_path, lose_captures, row_files, windows_of
from homes import (
    Q8,
    STUDY,
    assert_one_clear_line,
    change,
    current_receipt,
    engcmp,
    everything,
    flipped,
    head_file,
    verified,
)
from running import Running

from engcmp_assets.audit.collect import remove, unreached
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.graph import POOL
from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.store import Store

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")

CAPTURING = re.compile(r"captured_rows: launch 1/\d+, prefill, window")
UNNEEDED = b"what an earlier study left"


@pytest.fixture(autouse=True)
def _no_gpu_locks_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGCMP_GPU_LOCK_DIR", str(tmp_path / "gpu-locks"))


@pytest.fixture
def cut_home(measured_home: Path, tmp_path: Path) -> Path:
    home = copy_of(measured_home, tmp_path / "home")
    lose_captures(home)
    return home


def runs_of(home: Path) -> list[dg.DagsterRun]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGCMP_HOME", str(home))
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        with open_instance() as instance:
            return list(instance.get_runs())


def pool(home: Path, *, claim_for: str | None = None) -> set[str]:
    """The runs that hold a slot of the engine's pool."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGCMP_HOME", str(home))
        patch.setenv("DAGSTER_HOME", str(home / "dagster"))
        with open_instance() as instance:
            if claim_for is not None:
                claimed = instance.event_log_storage.claim_concurrency_slot(POOL, claim_for, "smollm2_cpu__scoring")
                assert claimed.is_claimed
            return {slot.run_id for slot in instance.event_log_storage.get_concurrency_info(POOL).claimed_slots}


@pytest.fixture
def orphan() -> Iterator[subprocess.Popen[bytes]]:
    """A process with the labels of an engine whose lock nobody holds."""
    labels = {"ENGCMP_LOCK": str(lock_path()), "ENGCMP_ARM": A, "ENGCMP_RUN": "a dead run"}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | labels)
    yield process
    process.kill()
    process.wait()


def test_what_a_killed_run_left_is_ended_freed_and_removed(cut_home: Path, orphan: subprocess.Popen[bytes]) -> None:
    run = Running(cut_home, "run", STUDY, "--arm", A)
    assert run.wait_for(CAPTURING)
    assert orphan.poll() == -9  # a run, too, removes what a dead one left before it starts its engine
    run.kill()
    (dead,) = [run for run in runs_of(cut_home) if run.status == dg.DagsterRunStatus.STARTED]
    assert pool(cut_home, claim_for=dead.run_id) == {dead.run_id}
    temporaries = {path.name for path in (cut_home / "scratch").glob("tmp-*") if path.is_dir()}
    assert temporaries
    before = journals(cut_home)
    labels = {"ENGCMP_LOCK": str(lock_path()), "ENGCMP_ARM": A, "ENGCMP_RUN": dead.run_id}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=os.environ | labels)

    done = engcmp("gc", home=cut_home)
    assert done.returncode == 0, done.stderr
    assert left.wait(timeout=60) == -9
    assert f"removed an engine left by a dead run: process {left.pid}" in done.stdout
    assert f"reported as ended: run {dead.run_id}" in done.stdout
    assert all(f"removed temporary scratch/{name}" in done.stdout for name in temporaries)
    assert [run.status for run in runs_of(cut_home)] == [dg.DagsterRunStatus.FAILURE]
    assert pool(cut_home) == set()
    assert list((cut_home / "scratch").glob("tmp-*")) == []
    assert journals(cut_home) == before
    assert engcmp("gc", home=cut_home).stdout == "no run has left anything\n"


def test_a_run_that_measures_keeps_its_engine_its_journal_and_its_files(cut_home: Path, measured_home: Path) -> None:
    run = Running(cut_home, "run", STUDY, "--arm", A)
    assert run.wait_for(CAPTURING)
    before = journals(cut_home)
    temporaries = {path.name for path in (cut_home / "scratch").glob("tmp-*")}
    assert before and engines() and temporaries
    listed = engcmp("gc", "--files", home=cut_home)
    assert listed.returncode == 0 and "engine processes and containers were not looked at" in listed.stdout, (
        listed.stdout
    )
    assert "reported as ended" not in listed.stdout
    assert_one_clear_line(
        engcmp("gc", "--files", "--yes", home=cut_home), "another process is writing", "wait for the run"
    )
    after = journals(cut_home)
    assert all(after[name][: len(entries)] == entries for name, entries in before.items())
    assert temporaries <= {path.name for path in (cut_home / "scratch").glob("tmp-*")}
    text = run.rest()
    assert run.process.returncode == 0, text
    assert row_files(cut_home, A) == row_files(measured_home, A)
    launches = {launch for launch, _ in captured(cut_home, A)}
    assert set().union(*captured(cut_home, A).values()) == set(range(1, len(launches) + 1)), (
        "an engine was started twice"
    )
    assert [run.status for run in runs_of(cut_home)] == [dg.DagsterRunStatus.SUCCESS] * 2


@pytest.mark.timeout(300)
def test_files_are_collected_after_a_dry_run_and_what_was_measured_still_answers(home_copy: Path) -> None:
    store = Store(home_copy)
    with store.alone():
        remove(store, unreached(store), removed_at="before the test")  # the measured home may have a history of its own
    tombstones = home_copy / "tombstones"
    earlier = set(tombstones.iterdir())  # they stay: the event log tells of what they name
    blob = store.put_bytes(UNNEEDED, "json")
    old = current_receipt(home_copy, "summaries", Q8) | {"finished_at": "2026-01-01T00:00:00.000+00:00"}
    name = sha256_bytes(canonical_bytes(old))
    (home_copy / "receipts" / f"{name}.json").write_bytes(canonical_bytes(old))
    (home_copy / "store" / "ab").mkdir(exist_ok=True)
    (home_copy / "store" / "ab" / "notes.txt").write_text("a user's own")
    path = store.path(blob)
    del store
    before = {
        key: value for key, value in everything(home_copy).items() if key.startswith(("store", "receipts", "heads"))
    }
    dry = engcmp("gc", "--files", home=home_copy)
    assert dry.returncode == 0, dry.stderr
    assert f"would remove {path.relative_to(home_copy)} (26 bytes)\nwould remove receipts/{name}.json\n" in dry.stdout
    assert "1 files, 0.0 MB, 1 receipts; nothing was removed, add --yes" in dry.stdout
    assert before == {k: v for k, v in everything(home_copy).items() if k in before}
    assert set(tombstones.iterdir()) == earlier

    done = engcmp("gc", "--files", "--yes", home=home_copy)
    assert done.returncode == 0, done.stderr
    gone = set(before) - set(everything(home_copy))
    assert gone == {str(path.relative_to(home_copy)), f"receipts/{name}.json"} | (
        {str(path.parent.relative_to(home_copy))} if not path.parent.exists() else set()
    )
    (tombstone,) = set(tombstones.iterdir()) - earlier
    assert f"tombstone tombstones/{tombstone.name}" in done.stdout
    told = json.loads(tombstone.read_bytes())
    assert sha256_bytes(tombstone.read_bytes()) == tombstone.stem
    assert told["files"] == [{"sha256": blob.sha256, "bytes": 26, "suffix": "json"}] and told["receipts"] == [name]
    assert verified(home_copy).problems == ()
    again = engcmp("demo", home=home_copy)
    assert again.returncode == 0 and " 0 artifacts made, " in again.stderr, again.stderr


def test_rows_that_an_unfinished_capture_holds_and_an_interrupted_commit_are_kept(cut_home: Path) -> None:
    run = Running(cut_home, "run", STUDY, "--arm", A)
    assert run.wait_for(CAPTURING)
    while sum(map(len, map(windows_of, journals(cut_home).values()))) < 3:
        assert run.process.poll() is None
    run.kill()
    (entries,) = journals(cut_home).values()
    held = {
        file["sha256"]
        for one in entries
        if one["kind"] == "window"
        for taken in one["repeats"]
        for file in taken["files"].values()
    }
    other = "q8_0/llamacpp@b10809"  # not one of the two that the capture is of
    head = head_file(cut_home, "summaries", other)
    interrupted = json.loads(head.read_bytes())["receipt_sha256"]
    intent = cut_home / "scratch" / "intents" / f"{STUDY}~{other.replace('/', '~')}~summaries.json"
    intent.parent.mkdir(exist_ok=True)
    place = {"study": STUDY, "arm_folder": other.replace("/", "~"), "artifact": "summaries"}
    intent.write_bytes(canonical_bytes({**place, "receipt_sha256": interrupted, "completes": True}))
    head.unlink()
    files = {path.name for path in (cut_home / "store").glob("*/*")}
    done = engcmp("gc", "--files", "--yes", home=cut_home)
    assert done.returncode == 0, done.stderr
    assert held <= {path.name.partition(".")[0] for path in (cut_home / "store").glob("*/*")}
    assert (cut_home / "receipts" / f"{interrupted}.json").exists()
    outputs = {
        output["sha256"]
        for output in json.loads((cut_home / "receipts" / f"{interrupted}.json").read_bytes())["outputs"]
    }
    lost = files - {path.name for path in (cut_home / "store").glob("*/*")}
    assert not outputs & {name.partition(".")[0] for name in lost}


@pytest.mark.parametrize("what", ["head", "receipt", "file"])
def test_nothing_is_collected_from_a_damaged_store(home_copy: Path, what: str) -> None:
    head = head_file(home_copy, "scores", Q8)
    receipt = home_copy / "receipts" / f"{json.loads(head.read_bytes())['receipt_sha256']}.json"
    if what == "file":
        output = json.loads(receipt.read_bytes())["outputs"][0]
        (home_copy / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}").unlink()
    else:
        change(head if what == "head" else receipt, flipped(40))
    before = everything(home_copy / "store") | everything(home_copy / "receipts")
    for flags in (["--files"], ["--files", "--yes"]):
        assert_one_clear_line(
            engcmp("gc", *flags, home=home_copy),
            "nothing is collected from a damaged store",
            f"`engcmp verify {STUDY}`",
        )
    assert everything(home_copy / "store") | everything(home_copy / "receipts") == before


def test_yes_without_files_is_a_wrong_usage(tmp_path: Path) -> None:
    done = engcmp("gc", "--yes", home=tmp_path / "home")
    assert done.returncode == 2 and "--yes goes with --files" in done.stderr


HOLD_GPU = """
import sys
from engcmp_resources.gpu_locks import gpu_locks
with gpu_locks([int(sys.argv[1])], arm="K4/vllm@v1", run_id=sys.argv[2], waiting=print, timeout_s=0) as held:
    held.update_lease(container="c" * 64)
    print("held", flush=True)
    input()
"""


def test_gpus_of_a_dead_run_are_freed_and_those_of_a_living_one_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGCMP_GPU_LOCK_DIR", str(tmp_path / "locks"))
    holders = []
    for gpu, run in (("0", "dead"), ("1", "living")):
        command = [sys.executable, "-c", HOLD_GPU, gpu, run]
        holders.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stdout = holders[-1].stdout
        assert stdout is not None and stdout.readline() == b"held\n"
    dead, living = holders
    try:
        dead.kill()
        dead.wait()
        done = engcmp("gc", home=tmp_path / "home")
        assert done.returncode == 0, done.stderr
        removed, held = done.stdout.splitlines()
        assert removed.startswith(
            f"removed the lease of a dead run: GPU 0, process {dead.pid} of user {os.geteuid()} (arm K4/"
        )
        assert f"container {'c' * 64}" in removed
        assert held.startswith(f"held: GPU 1, by process {living.pid} of user ") and "run living" in held
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
