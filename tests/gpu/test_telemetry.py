"""The sampler and its journal, on the real host and on a recorded GPU, and the table that is made of its samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from samples import capture, gpu_of, played, process, sample

from engcmp_assets.kernel.gpu_rules import GpuRules, judge
from engcmp_assets.kernel.tables import parquet_bytes, parquet_columns
from engcmp_assets.kernel.telemetry_table import TELEMETRY_COLUMNS, samples_of, telemetry_table
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpus import NoValue, NvmlLike
from engcmp_resources.telemetry import read_samples, sampling

ROOT = Path(__file__).parents[2]
linux_only = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc/stat")
NO_GPU = NoValue("no NVIDIA device (nvmlInit: LIBRARY_NOT_FOUND)")

SAMPLE = """
import sys, time
from pathlib import Path
from engcmp_resources.telemetry import sampling
with sampling(Path(sys.argv[1]), period_s=0.02):
    print("ready", flush=True)
    time.sleep(600)
"""


def wait_for(journal: Path, count: int) -> list[dict[str, Any]]:
    end = time.monotonic() + 30
    while len(samples := read_samples(journal)) < count:
        assert time.monotonic() < end
        time.sleep(0.01)
    return samples


@linux_only
def test_a_busy_process_is_seen_in_the_processor_s_share(tmp_path: Path) -> None:
    journal = tmp_path / "t.jsonl"
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        with sampling(journal, open_driver=lambda: NO_GPU, period_s=0.2):
            samples = wait_for(journal, 5)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    shares = [one["host"]["cpu_percent"] for one in samples[1:]]
    assert all(0 <= share <= 100 for share in shares)
    assert max(shares) > 80
    host = samples[-1]["host"]
    assert 0 < host["memory_available_bytes"] < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host["load_1m"] >= 0


def test_samples_have_the_phase_of_their_time_and_follow_the_clock(tmp_path: Path) -> None:
    journal = tmp_path / "t.jsonl"
    with sampling(journal, open_driver=lambda: played("load"), period_s=0.05) as sampler:
        wait_for(journal, 2)
        sampler.phase = "capturing"
        wait_for(journal, 5)
        sampler.phase = "stopping"
        wait_for(journal, 7)
    samples = read_samples(journal)
    assert list(dict.fromkeys(one["phase"] for one in samples)) == ["starting", "capturing", "stopping"]
    times = [one["t_ns"] for one in samples]
    assert times == sorted(times) and samples[0]["at"].endswith("+00:00")
    assert samples[3]["gpus"][0]["compute_processes"] == [process(1002, used_bytes=2690646016)]


def test_after_a_sample_that_took_long_the_next_ones_do_not_follow_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[float] = []

    def monotonic() -> float:
        read.append(time.monotonic())
        return read[-1]

    clock = SimpleNamespace(monotonic=monotonic, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("engcmp_resources.telemetry.time", clock)

    class Slow:
        def __init__(self) -> None:
            self.calls = 0

        def read(self, function: str, *arguments: int) -> Any:
            if function == "nvmlDeviceGetCount":
                self.calls += 1
                time.sleep(0.55 if self.calls == 2 else 0)
            return played("idle").read(function, *arguments)

    journal = tmp_path / "t.jsonl"
    with sampling(journal, open_driver=Slow, period_s=0.1):
        samples = wait_for(journal, 5)
    times = [one["t_ns"] / 1e9 for one in samples]
    assert times[2] - times[1] >= 0.5
    # On the grid of the start: never two samples for one moment that was due.
    # A busy machine takes a sample late, but none before its moment; what it reads first is the start.
    ticks = [int((at - read[0]) / 0.1 + 0.001) for at in times]
    assert len(set(ticks)) == len(ticks)


def test_a_sample_that_fails_is_a_reason_and_the_next_one_is_taken(tmp_path: Path) -> None:
    class Failing:
        def __init__(self) -> None:
            self.calls = 0

        def read(self, function: str, *arguments: int) -> Any:
            self.calls += function == "nvmlDeviceGetCount"
            if self.calls == 2:
                raise RuntimeError("a fault of the library")
            return played("idle").read(function, *arguments)

    journal = tmp_path / "t.jsonl"
    with sampling(journal, open_driver=Failing, period_s=0.02) as sampler:
        samples = wait_for(journal, 4)
    assert [one.get("failed") for one in samples[:4]] == [None, "RuntimeError: a fault of the library", None, None]
    assert sampler.problems == []


def test_a_library_that_cannot_be_opened_is_a_reason(tmp_path: Path) -> None:
    def opened() -> NvmlLike:
        raise RuntimeError("not today")

    journal = tmp_path / "t.jsonl"
    with sampling(journal, open_driver=opened, period_s=0.02) as sampler:
        (first, *_) = wait_for(journal, 1)
    assert first["gpus"] == {"missing": "NVML could not be opened: not today"}
    assert sampler.problems == ["NVML could not be opened: not today"]


def test_an_error_of_the_capture_comes_through_and_the_sampler_ends(tmp_path: Path) -> None:
    journal = tmp_path / "t.jsonl"
    with pytest.raises(ZeroDivisionError), sampling(journal, open_driver=lambda: NO_GPU, period_s=0.01):
        wait_for(journal, 1)
        _ = 1 / 0
    count = len(read_samples(journal))
    time.sleep(0.1)
    assert len(read_samples(journal)) == count


def test_a_full_disk_does_not_reach_the_capture_and_the_line_it_cut_short_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, written = os.write, 0

    def write(descriptor: int, data: bytes) -> int:
        nonlocal written
        written += 1
        return whole(descriptor, data[:10]) if written == 3 else whole(descriptor, data)

    journal = tmp_path / "t.jsonl"
    monkeypatch.setattr("engcmp_resources.telemetry.os.write", write)
    with sampling(journal, open_driver=lambda: NO_GPU, period_s=0.02) as sampler:
        wait_for(journal, 4)
    (problem,) = sampler.problems
    assert "No space left" in problem
    assert len(read_samples(journal)) == written - 1


def test_a_journal_that_cannot_be_made_is_an_error_before_the_capture(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="cannot write there"), sampling(tmp_path / "none" / "t.jsonl"):
        pytest.fail("it went on")


def test_a_kill_leaves_the_samples_and_a_second_start_goes_on_behind_them(tmp_path: Path) -> None:
    journal = tmp_path / "t.jsonl"
    with subprocess.Popen([sys.executable, "-c", SAMPLE, str(journal)], cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        wait_for(journal, 3)
        child.send_signal(signal.SIGKILL)
    kept = read_samples(journal)
    assert len(kept) >= 3
    with journal.open("ab") as file:
        file.write(b'{"at":"2026-11-29T12:0')  # as a kill leaves it
    with sampling(journal, open_driver=lambda: NO_GPU, period_s=0.01):
        wait_for(journal, len(kept) + 2)
    after = read_samples(journal)
    assert after[: len(kept)] == kept and len(after) >= len(kept) + 2
    assert b'{"at":"2026-11-29T12:0' in journal.read_bytes().splitlines(), "the cut line took another along"


def through_parquet(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return samples_of(parquet_columns(parquet_bytes(TELEMETRY_COLUMNS, telemetry_table(samples))))


MIXED: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "gpus": lambda: capture(3, lambda _n: [gpu_of("load"), gpu_of("drawn", index=1)]),
    "one lost": lambda: capture(
        2, lambda n: [gpu_of("load", lost=n == 1, temperature_c={"missing": "X: GPU_IS_LOST"})]
    ),
    "no device": lambda: [sample(0) | {"gpus": NO_GPU.as_json()}, sample(1) | {"gpus": NO_GPU.as_json()}],
    "driver that lists none": lambda: [sample(0), sample(1, gpu_of("idle"))],
    "a failed one": lambda: [sample(0, gpu_of("held")), {"at": "x", "t_ns": 1, "phase": "starting", "failed": "no"}],
    "a process whose memory is not told": lambda: [
        sample(0, gpu_of("idle", graphics_processes=[process(7, used_bytes={"missing": "not told"})]))
    ],
    "none": list,
}


@pytest.mark.parametrize("kind", MIXED)
def test_the_table_holds_the_samples_without_loss(kind: str) -> None:
    samples = MIXED[kind]()
    assert json.dumps(through_parquet(samples), sort_keys=True) == json.dumps(samples, sort_keys=True)  # types too


def test_a_judgement_can_be_made_again_from_the_stored_file() -> None:
    samples = capture(50, lambda n: [gpu_of("load", throttle_reasons=["hw_slowdown"] * (n > 40), lost=n == 49)])
    rules = GpuRules(use=(0,))
    found = judge(samples, rules)
    assert [one.name for one in found] == ["gpu_lost", "throttled", "joined"]
    assert judge(through_parquet(samples), rules) == found


def test_every_column_has_a_row_for_each_sample_and_gpu() -> None:
    table = telemetry_table(capture(3, lambda _n: [gpu_of("load"), gpu_of("idle", index=1)]))
    assert {len(column) for column in table.values()} == {6}
    assert table["index"] == [0, 1] * 3 and table["sample"] == [0, 0, 1, 1, 2, 2]
    assert table["power_w"][:2] == [595.054, 86.409]
    assert list(table) == [column.name for column in TELEMETRY_COLUMNS]
