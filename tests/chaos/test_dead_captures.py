"""Captures that no run goes on with: found, and removed only with nobody writing beside; those that a run goes on with are kept."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from homes import STUDY, Here

from engcmp_assets.audit.captures import dead_captures
from engcmp_assets.captured_rows.journalled import ABOUT, capture_names
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Session
from engcmp_assets.throughput_events.journalled import SCRATCH as SPEED
from engcmp_assets.throughput_events.journalled import speed_names
from engcmp_resources.journal import Journal
from engcmp_resources.store import Store

ARM = "q4_0/llamacpp@b11549"
WINDOW = {"kind": "window", "launch": 1, "start": 1, "window": "a", "path": "prefill", "panels": ["pa"]}
HELD = b"rows of a capture"
HOLD = """
import pathlib, sys, time
from engcmp_resources.store import Store
held = Store(pathlib.Path(sys.argv[1]))
print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


@pytest.fixture
def store(tmp_path: Path, measured_home: Path) -> Store:
    """A store of its own over the measured home's receipts, which are only read."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("heads", "receipts"):
        (home / name).symlink_to(measured_home / name)
    return Store(home)


def unfinished(store: Store, name: str, about: dict[str, str] | None = None, *, windows: int = 1) -> Path:
    """A capture's folder with so many windows, whose rows are in the store."""
    folder = store.scratch(f"capture-{name}")
    (folder / "engine-1.log").write_text("said\n")
    blob = store.put_bytes(HELD, "safetensors")
    files = {"pa": {"sha256": blob.sha256, "bytes": blob.bytes}}
    journal = Journal(folder / "journal.jsonl")
    journal.append({"kind": "start", "start": 1})
    for _ in range(windows):
        journal.append(WINDOW | {"repeats": [{"files": files, "row_sha256": {}}]})
    if about is not None:
        (folder / ABOUT).write_text(json.dumps(about))
    return folder


def found(store: Store) -> dict[str, str]:
    return {one.name.removeprefix("capture-"): one.why for one in dead_captures(store)}


def test_what_a_run_goes_on_with_is_kept_and_everything_else_is_told_with_its_reason(store: Store) -> None:
    ours = {"study": STUDY, "arm": ARM}
    session = Session(load_study(STUDY), store, "run-1", lambda _text: None)
    for name in capture_names(session, ArmKey.parse(ARM)):
        unfinished(store, name.removeprefix("capture-"), ours)
    unfinished(store, "refused", ours, windows=0)
    (store.scratch("capture-never-began") / "engine-1.log").write_text("said\n")
    unfinished(store, "whose", None)
    unfinished(store, "gone-study", ours | {"study": "no-such-study"})
    unfinished(store, "gone-arm", ours | {"arm": "q4_0/llamacpp@b1"})
    unfinished(store, "other-plan", ours)
    unfinished(store, "not-made-yet", {"study": "smollm2-docker", "arm": "q4_0/llamacpp-docker@b11549"})
    assert found(store) == {
        "refused": "it holds no window: nothing is lost with it",
        "never-began": "it holds no window: nothing is lost with it",
        "gone-study": "there is no study no-such-study",
        "gone-arm": f"study {STUDY} has no arm q4_0/llamacpp@b1",
        "other-plan": f"arm {ARM} of study {STUDY} asks for another capture now",
    }
    sizes = {one.name: (one.windows, one.bytes) for one in dead_captures(store)}
    assert sizes["capture-never-began"] == (0, 5) and sizes["capture-other-plan"][0] == 1


def test_unfinished_speeds_with_finished_cells_are_kept_while_a_run_would_go_on_with_them(
    store: Store, measured_home: Path
) -> None:
    session = Session(load_study(STUDY), store, "run-1", lambda _text: None)
    ours = {"study": STUDY, "arm": ARM}

    def speed(name: str, about: dict[str, str], *, cells: int) -> None:
        folder = store.scratch(name)
        (folder / ABOUT).write_text(json.dumps(about))
        for number in range(cells):
            (folder / "repeat-1" / "parts" / f"{number:04d}").mkdir(parents=True)

    names = speed_names(session, ArmKey.parse(ARM))
    assert len(names) == 2, "one that answers from the store what it can, and one that measures again"
    for name in names:
        speed(name, ours, cells=1)
    speed(f"{SPEED}empty", ours, cells=0)
    speed(f"{SPEED}other", ours, cells=3)
    speed(f"{SPEED}gone", ours | {"study": "no-such-study"}, cells=1)
    assert found(store) == {
        "speed-empty": "it holds no cell: nothing is lost with it",
        "speed-other": f"arm {ARM} of study {STUDY} asks for another capture now",
        "speed-gone": "there is no study no-such-study",
    }
    assert {one.name: (one.windows, one.unit) for one in dead_captures(store)}[f"{SPEED}other"] == (3, "cell")


def test_gc_lists_them_and_removes_them_only_when_nobody_writes(tmp_path: Path, here: Here) -> None:
    home = tmp_path / "home"
    store = Store(home)
    dead = unfinished(store, "dead", {"study": "no-such-study", "arm": ARM})
    whose = unfinished(store, "whose")
    (dead / "start-1").mkdir()
    blob = store.put_bytes(b"only in the dead one", "safetensors")
    Journal(dead / "journal.jsonl").append(
        WINDOW | {"repeats": [{"files": {"pa": {"sha256": blob.sha256, "bytes": blob.bytes}}, "row_sha256": {}}]}
    )
    rows, held = store.path(blob), store.put_bytes(HELD, "safetensors")
    del store
    dry = here("gc", "--files", home=home)
    assert "would remove scratch/capture-dead" in dry.stdout and "no study no-such-study" in dry.stdout
    assert "capture-whose" not in dry.stdout and f"would remove {rows.relative_to(home)}" in dry.stdout
    assert dead.is_dir() and rows.is_file()
    writer = subprocess.Popen([sys.executable, "-c", HOLD, str(home)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None and writer.stdout.readline()
        beside = here("gc", "--files", home=home)
        assert "unfinished captures were not looked at" in beside.stdout and "capture-dead" not in beside.stdout
        refused = here("gc", "--files", "--yes", home=home)
        assert refused.returncode == 1 and "another process is writing" in refused.stderr and dead.is_dir()
    finally:
        writer.kill()
        writer.wait()
    gc.collect()  # a store that the refusal has left open in this process counts as another writer
    done = here("gc", "--files", "--yes", home=home)
    assert done.returncode == 0 and "removed scratch/capture-dead" in done.stdout, done.stderr
    assert not dead.exists() and not rows.exists()
    assert whose.is_dir() and Store(home).holds(held), "what may be gone on with is kept with its rows"
