"""`engcmp run` ended at any moment: no engine stays, nothing that was captured is captured again, and the next run completes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from homes import (
    Q4,
    STUDY,
    assert_one_clear_line,
    current_receipt,
    engcmp,
    engine_processes,
    forget_capture,
    journal_entries,
    output_file,
    start_engcmp,
    wait_until,
)

from engcmp_assets.kernel.tables import read_parquet

KILLS = int(os.environ.get("ENGCMP_TEST_KILLS", "2"))  # more of them for those who look for a fault
WINDOWS, LAUNCHES = 12, 2
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engine processes are found through /proc")


def windows_done(home: Path) -> list[tuple[int, str, int]]:
    """Launch, window and start of every captured window."""
    return [(e["launch"], e["window"], e["start"]) for e in journal_entries(home) if e["kind"] == "window"]


def start_run(home: Path) -> subprocess.Popen[str]:
    return start_engcmp("run", STUDY, "--arm", Q4, home=home)


def alive_until(process: subprocess.Popen[str], home: Path, windows: int) -> None:
    """Wait until so many windows are captured and an engine runs."""

    def there() -> bool:
        assert process.poll() is None, process.communicate()[1][-3000:]
        return len(windows_done(home)) >= windows and bool(engine_processes(Q4))

    wait_until(there)


def assert_no_engine_is_left() -> None:
    """The kernel ends an engine with its parent, whatever ended that; it needs a moment."""
    wait_until(lambda: not engine_processes(Q4), timeout_s=10)


def kill_the_engine_while_it_loads(home: Path) -> None:
    """The run must say so in one line, with the log and the likely cause, and lose nothing."""
    process = start_run(home)
    wait_until(lambda: bool(engine_processes(Q4)) or process.poll() is not None)
    for pid in engine_processes(Q4):
        os.kill(pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    assert_one_clear_line(done, f"arm {Q4}: the engine died of SIGKILL while loading", "log ", "out of memory")
    assert windows_done(home) == []


def test_a_run_killed_again_and_again_completes_without_capturing_a_window_twice(home_copy: Path) -> None:
    forget_capture(home_copy, Q4)
    kill_the_engine_while_it_loads(home_copy)
    draw = random.Random(20261129)
    seen: list[tuple[int, str, int]] = []
    for number in range(KILLS):
        process = start_run(home_copy)
        alive_until(process, home_copy, len(seen) + (0 if number == 0 else 1))  # the first while it loads
        time.sleep(draw.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        assert_no_engine_is_left()
        done = windows_done(home_copy)
        assert done[: len(seen)] == seen
        seen = done
    assert 0 < len(seen) < WINDOWS * LAUNCHES
    done = engcmp("run", STUDY, "--arm", Q4, home=home_copy)
    assert done.returncode == 0, done.stderr
    assert_no_engine_is_left()
    rows = read_parquet(output_file(home_copy, current_receipt(home_copy, "captured_rows/pa", Q4), "capture.parquet"))
    measured = {
        (int(launch), str(window), int(start))
        for launch, window, start in zip(rows["launch"], rows["window_id"], rows["start"], strict=True)
    }
    assert len(measured) == WINDOWS * LAUNCHES
    assert set(seen) <= measured  # by the very start that captured them before the kill
    assert len(rows["run"]) == 4 * 384
    assert not list((home_copy / "scratch").glob("capture-*"))
    assert not list((home_copy / "scratch").glob("tmp-*"))
    verified = engcmp("verify", STUDY, home=home_copy)
    assert verified.returncode == 0, verified.stdout


def test_ctrl_c_ends_the_engine_and_the_run_with_a_word_and_keeps_what_is_complete(home_copy: Path) -> None:
    forget_capture(home_copy, Q4)
    process = start_run(home_copy)
    alive_until(process, home_copy, 2)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in output + errors
    assert errors.splitlines()[-1] == "engcmp: stopped; what is complete is kept, start again to continue"
    assert_no_engine_is_left()
    assert len(windows_done(home_copy)) >= 2
