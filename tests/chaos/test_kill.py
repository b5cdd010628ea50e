"""SIGKILL at any moment: the next start continues, nothing half written or running is left, and the results are the same."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cut import (
    ANALYSIS,
    CAPTURED,
    RESULTS,
    A,
    B,
    Watch,
    captured,
    copy_of,
    engines_after,
    journals,
    lock_is_free,
    lose,
    lose_captures,
    row_files,
    windows_of,
)
from homes import STUDY, current_receipt, engcmp, kill, start_engcmp, verified
from moments import OF_COMMAND, SEED
from running import Running

from engcmp_resources.store import Store

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftover processes in /proc")

RUN = ("run", STUDY, "--arm", A, "--arm", B)
# A line that tells how far some work is, or that an engine is being started.
PROGRESS = re.compile(r"\d+/\d+ (rows|windows|pairs|bytes)|launch \d+/\d+")


@pytest.fixture
def cut_home(measured_home: Path, tmp_path: Path) -> Path:
    home = copy_of(measured_home, tmp_path / "home")
    assert lose_captures(home) > 50
    return home


def moments(draw: random.Random) -> Iterator[tuple[re.Pattern[str], float]]:
    """What is waited for, and how long then: the first word and at once for one in five, else into the work."""
    for _ in range(OF_COMMAND):
        at_once = draw.random() < 0.2
        yield (re.compile("."), 0.0) if at_once else (PROGRESS, draw.uniform(0.3, 4.0))


@pytest.mark.timeout(300 + 60 * OF_COMMAND)
def test_a_run_killed_at_any_moment_ends_in_the_same_results_and_captures_nothing_twice(
    cut_home: Path, measured_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began, completed = time.monotonic(), 0
    watch = Watch(cut_home)
    watch.skip_what_is_there()
    known: dict[str, list[tuple[int, str, int]]] = {}
    with capsys.disabled():
        print(f"\n[chaos: seed {SEED}, {OF_COMMAND} moments]")
    for number, (pattern, delay) in enumerate(moments(random.Random(SEED)), start=1):
        run = Running(cut_home, *RUN)
        if run.wait_for(pattern):
            time.sleep(delay)
        done = run.process.poll() is not None
        run.kill()
        if done:  # all was made before the moment came: the analysis is taken away again, so that the kills go on
            assert run.process.returncode == 0, run.rest()
            completed += 1
            lose(cut_home, ANALYSIS, A, B)
            lose(cut_home, RESULTS, None)
        where = f"moment {number}: {delay:.2f} s after {(run.lines or ['nothing'])[-1]!r}"
        assert engines_after(3) == [], where
        assert lock_is_free(), where
        assert watch.half_written() == [], where
        for name, entries in journals(cut_home).items():
            windows = windows_of(entries)
            assert windows[: len(known.get(name, []))] == known.get(name, []), where
            known[name] = windows
    seconds = time.monotonic() - began
    last = engcmp(*RUN, home=cut_home)
    assert last.returncode == 0, last.stderr
    assert_whole(cut_home, measured_home, known)
    with capsys.disabled():
        starts = {arm: len(set().union(*captured(cut_home, arm).values())) for arm in (A, B)}
        print(f"[chaos: {OF_COMMAND} kills in {seconds:.0f} s, {time.monotonic() - began:.0f} s in all; {completed} runs "
              f"came to their end; {sum(map(len, known.values()))} windows were journalled before a kill; starts: {starts}]")  # fmt: skip


def assert_whole(home: Path, untouched: Path, known: dict[str, list[tuple[int, str, int]]]) -> None:
    """Verified, equal to the untouched home, nothing left, each pair of one start, and no journalled window captured again."""
    result = verified(home)
    assert result.problems == () and result.not_made == verified(untouched).not_made
    assert journals(home) == {}
    leftovers = [path.name for path in (home / "scratch").glob("tmp-*")]
    assert leftovers == [], leftovers
    told = []
    for arm in (A, B):
        windows = captured(home, arm)
        assert all(len(starts) == 1 for starts in windows.values()), windows
        told.append({(launch, window, start) for (launch, window), (start,) in windows.items()})
        assert row_files(home, arm) == row_files(untouched, arm)
        figures = [figure["value"] for figure in current_receipt(home, "summaries", arm)["figures"]]
        assert figures == [figure["value"] for figure in current_receipt(untouched, "summaries", arm)["figures"]]
        for artifact in CAPTURED:
            assert current_receipt(home, artifact, arm)["measurement"] == 1, artifact
    for entries in known.values():
        assert len({entry[:2] for entry in entries}) == len(entries), "a window was captured twice"
        assert any(set(entries) <= one for one in told), "a journalled window was captured again"


def test_ctrl_c_ends_with_130_and_one_message_and_the_next_start_continues(cut_home: Path) -> None:
    run = Running(cut_home, "run", STUDY, "--arm", A)
    assert run.wait_for(re.compile("captured_rows.* rows"))
    while not any(map(windows_of, journals(cut_home).values())):
        time.sleep(0.05)
    run.process.send_signal(signal.SIGINT)
    text = run.rest()
    assert run.process.returncode == 130, text
    assert text.count("engcmp: ") == 1 and "engcmp: stopped; what is complete is kept" in text
    assert "Traceback" not in text
    assert engines_after(3) == [] and lock_is_free()
    (before,) = map(windows_of, journals(cut_home).values())
    done = engcmp("run", STUDY, "--arm", A, home=cut_home)
    assert done.returncode == 0, done.stderr
    after = {(launch, window, start) for (launch, window), (start,) in captured(cut_home, A).items()}
    assert set(before) <= after


@pytest.mark.timeout(300)
def test_a_kill_during_the_collection_of_files_leaves_a_sound_store_and_the_next_one_completes_it(
    cut_home: Path,
) -> None:
    store = Store(cut_home)
    blobs = [store.put_bytes(f"nobody needs {number}".encode(), "json") for number in range(1500)]
    del store
    draw, left = random.Random(SEED), len(blobs)
    cut_short = 0
    for _ in range(6):
        process = start_engcmp("gc", "--files", "--yes", home=cut_home)
        tombstones = len(list(cut_home.glob("tombstones/*.json")))
        while len(list(cut_home.glob("tombstones/*.json"))) == tombstones and process.poll() is None:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.01))
        kill(process)
        now = len([blob for blob in blobs if (cut_home / "store" / blob.sha256[:2] / f"{blob.sha256}.json").exists()])
        cut_short += 0 < now < left
        left = now
        assert not list(cut_home.glob("tombstones/*.json"))[-1].read_bytes().endswith(b",")
        if not left:
            break
    done = engcmp("gc", "--files", "--yes", home=cut_home)
    assert done.returncode == 0, done.stderr
    assert not [blob for blob in blobs if (cut_home / "store" / blob.sha256[:2] / f"{blob.sha256}.json").exists()]
    assert verified(cut_home).problems == ()
