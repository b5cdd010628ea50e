"""`engcmp ui` as a process: one on a home, a clear word where it cannot start, and nothing left of it when it ends."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from homes import Q4, assert_one_clear_line, engcmp, engine_processes
from ports import LOOPBACK, listening
from ui_process import Ui, forget, home_without_dagster, processes_of, running_ui, wait_for

JOB = "smollm2_cpu_arm"
CAPTURED = [
    "engine_launch/scoring",
    "captured_rows/pa",
    "captured_rows/pb",
    "captured_rows/pd",
    "scores",
    "tails",
    "summaries",
]


def test_a_port_that_is_taken_is_named_with_another_one(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = engcmp("ui", "--port", port, home=tmp_path / "home")
    assert_one_clear_line(done, f"port {port}", "in use", "engcmp ui --port")


@pytest.fixture
def uncaptured(measured_home: Path, tmp_path: Path) -> Iterator[Ui]:
    """The UI on results whose q4_0 arm was never measured."""
    home = home_without_dagster(measured_home, tmp_path / "home")
    forget(home, Q4, CAPTURED)
    with running_ui(home) as ui:
        yield ui


def journalled(home: Path) -> list[str]:
    """The windows that an unfinished capture has completed; a line that is being written does not count."""
    texts = [path.read_text(encoding="utf-8") for path in home.glob("scratch/capture-*/journal.jsonl")]
    entries = [json.loads(line)["entry"] for text in texts for line in text.split("\n")[:-1]]
    return [f"{entry['launch']}/{entry['window']}" for entry in entries if entry["kind"] == "window"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for leftover processes in /proc")
@pytest.mark.timeout(300)
def test_a_capture_that_is_cancelled_or_cut_off_leaves_no_process_and_the_next_one_continues(uncaptured: Ui) -> None:
    ui = uncaptured
    first = ui.launch(JOB, Q4)
    wait_for(lambda: bool(journalled(ui.home)), 120, lambda: ui.status(first))
    ui.terminate(first)
    wait_for(lambda: ui.status(first) == "CANCELED", 30, lambda: ui.status(first))
    wait_for(lambda: not engines_of(first), 10)
    kept = journalled(ui.home)

    second = ui.launch(JOB, Q4)
    wait_for(lambda: len(journalled(ui.home)) > len(kept), 120, lambda: ui.status(second))
    assert engines_of(second)
    refused = engcmp("ui", "--port", "65535", home=ui.home)
    assert_one_clear_line(refused, "already have a UI", ui.url, "--read-only")

    seconds = ui.stop()
    assert seconds < 10
    assert processes_of(ui.home) == [] and engines_of(second) == []
    assert ui.shell.returncode == 0
    assert "The UI is closed" in ui.log.read_text()
    windows = journalled(ui.home)
    assert windows[: len(kept)] == kept
    assert len(set(windows)) == len(windows), "a window was captured twice"


def engines_of(run_id: str) -> list[int]:
    """Engine processes that carry the run's label."""
    label = f"ENGCMP_RUN={run_id}".encode()
    found = []
    for pid in engine_processes(Q4):
        try:
            if label in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.timeout(180)
def test_an_auditor_s_ui_starts_nothing_listens_on_loopback_and_runs_beside_another(
    measured_home: Path, tmp_path: Path
) -> None:
    home = home_without_dagster(measured_home, tmp_path / "home")
    with running_ui(home, "--read-only") as ui:
        answer = ui.graphql(
            "mutation($p: ReportRunlessAssetEventsParams!) { reportRunlessAssetEvents(eventParams: $p) { __typename } }",
            p={
                "eventType": "ASSET_MATERIALIZATION",
                "assetKey": {"path": ["smollm2_cpu", "scores"]},
                "partitionKeys": [Q4],
            },
        )
        assert answer["reportRunlessAssetEvents"]["__typename"] == "UnauthorizedError"
        processes = processes_of(home)
        assert not any("dagster-daemon" in process for process in processes)
        at = set[tuple[str, int]]().union(*(listening(int(process.split(" ", 1)[0])) for process in processes))
        assert int(ui.url.rsplit(":", 1)[1]) in {port for _, port in at}
        assert {address for address, _ in at} == {LOOPBACK}, "others can reach the UI, which has no login"
