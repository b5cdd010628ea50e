"""The GPU faults that users of other tools have met (FAULTS, section 10): each must be seen, and never read as slowness.

The GPU is a recording of a real one; the tests change what it says as the reports describe.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gpu.recording import PlayedNvml
from gpu.samples import RECORDED, capture, gpu_of, process, sample, snapshot_of, with_second_gpu

from engcmp_assets.kernel.gpu_rules import GpuRules, check_after_stop, check_before_launch, foreign_bytes, judge
from engcmp_resources.gpus import NoValue
from engcmp_resources.telemetry import read_samples, sampling

BOTH = GpuRules(use=(0, 1))
ENGINE = 1002


def engine_on(index: int, **facts: Any) -> dict[str, Any]:
    ours = [process(ENGINE + index, ours=True)]
    return gpu_of("load", **{"index": index, "compute_processes": ours} | facts)


class FailingNvml(PlayedNvml):
    """Two GPUs; from the third reading on the driver answers for the second as it does for one that fell off the bus."""

    def __init__(self) -> None:
        super().__init__(with_second_gpu(RECORDED["frames"]["load"]).frame)
        self.frame["nvmlDeviceGetComputeRunningProcesses(1)"] = {"value": [{"pid": 1003, "usedGpuMemory": 10**9}]}
        self._readings = itertools.count(1)

    def read(self, function: str, *arguments: int) -> Any:
        if function == "nvmlDeviceGetCount" and next(self._readings) == 3:
            for name in [name for name in self.frame if name.startswith("nvmlDevice") and "(1" in name]:
                self.frame[name] = {"error": 15}  # NVML_ERROR_GPU_IS_LOST
        return super().read(function, *arguments)


def test_a_gpu_that_is_lost_in_a_capture_voids_it_and_is_not_read_as_slowness(tmp_path: Path) -> None:
    journal = tmp_path / "telemetry.jsonl"
    with sampling(journal, ours=lambda _pid: True, open_driver=FailingNvml, period_s=0.02) as sampler:
        sampler.phase = "capturing"
        while len(read_samples(journal)) < 8:
            time.sleep(0.01)
    assert sampler.problems == []
    samples = [one for one in read_samples(journal) if one["phase"] == "capturing"]
    voids = [finding for finding in judge(samples, BOTH) if finding.voids]
    assert [(finding.name, finding.evidence["gpu"]) for finding in voids] == [("gpu_lost", 1)]
    assert samples[-1]["gpus"][1]["temperature_c"] == {"missing": "nvmlDeviceGetTemperature: GPU_IS_LOST"}


def test_a_gpu_that_the_driver_stops_listing_voids_the_capture() -> None:
    findings = judge(capture(40, lambda n: [engine_on(0)] if n > 20 else [engine_on(0), engine_on(1)]), BOTH)
    assert [(one.name, one.voids) for one in findings if one.voids] == [("gpu_lost", True)]


def test_a_container_that_loses_its_gpu_leaves_it_to_the_host_and_the_capture_is_void() -> None:
    """After a reload of the service manager the container's calls fail, while the host's driver sees a healthy, idle GPU."""
    findings = judge(capture(40, lambda n: [engine_on(0), engine_on(1) if n < 25 else gpu_of("idle", index=1)]), BOTH)
    (finding,) = findings
    assert (finding.name, finding.voids, finding.evidence) == ("engine_left", True, {"gpu": 1, "samples_without": 15})


def test_a_sample_that_fails_does_not_void_what_goes_on() -> None:
    samples = capture(99, lambda _n: [engine_on(0), engine_on(1)])
    samples.insert(
        50, {"at": "", "t_ns": 0, "phase": "capturing", "failed": "NvmlRefusal: nvmlDeviceGetCount: TIMEOUT"}
    )
    samples.insert(60, sample(0) | {"gpus": {"missing": "nvmlDeviceGetCount: TIMEOUT"}})
    assert judge(samples, BOTH) == []


def test_a_driver_that_hangs_ends_neither_the_capture_nor_its_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(PlayedNvml):
        def read(self, function: str, *arguments: int) -> Any:
            asked.set()
            time.sleep(60)
            raise AssertionError("it was not to answer")

    asked = threading.Event()
    monkeypatch.setattr("engcmp_resources.telemetry._END_WAIT_S", 0.1)
    with sampling(tmp_path / "t.jsonl", open_driver=lambda: Hanging({}), period_s=0.01) as sampler:
        assert asked.wait(30)
    assert sampler.problems == ["the driver did not answer the last sample within 0.1 s"]


def test_too_little_free_memory_is_found_before_the_launch_and_names_both_figures() -> None:
    rules = GpuRules(use=(0,), free_bytes_at_least={0: 149 * 10**9})
    full = {**snapshot_of("idle"), "gpus": [gpu_of("drawn")]}
    assert (
        check_before_launch(full, GpuRules(use=(0,), allowance_bytes={0: 10**9}, free_bytes_at_least={0: 149 * 10**9}))
        == []
    )
    taken = gpu_of(
        "idle", memory_used_bytes=50 * 2**20 + 2 * 10**9, graphics_processes=[process(7, used_bytes=2 * 10**9)]
    )
    found = check_before_launch({**full, "gpus": [taken]}, rules.model_copy(update={"allowance_bytes": {0: 3 * 10**9}}))
    assert [one.name for one in found] == ["too_little_free"]
    assert "free memory of GPU 0 is 148.06 GB, the study needs 149.00 GB" in found[0].explanation


def test_a_co_tenant_that_takes_or_frees_memory_is_told_apart_from_the_engine() -> None:
    """A start or a stop must not be judged by what another program did meanwhile; both snapshots say what it held."""
    rules = GpuRules(use=(0,), allowance_bytes={0: 5 * 10**9})

    def shot(foreign: int, rest: int) -> dict[str, Any]:
        desktop = [process(7, used_bytes=foreign)] if foreign else []
        gpu = gpu_of("idle", graphics_processes=desktop, memory_used_bytes=foreign + rest)
        return {**snapshot_of("idle"), "gpus": [gpu]}

    assert check_after_stop(shot(10**9, 0), shot(4 * 10**9, 0), rules) == []
    assert check_after_stop(shot(4 * 10**9, 0), shot(0, 0), rules) == []
    (finding,) = check_after_stop(shot(4 * 10**9, 0), shot(10**9, 2 * 10**9), rules)
    assert finding.name == "memory_not_returned"
    assert finding.evidence == {
        "gpu": 0, "kept_bytes": 2 * 10**9, "foreign_bytes_before": 4 * 10**9, "foreign_bytes_after": 10**9,
    }  # fmt: skip
    assert foreign_bytes(shot(10**9, 0)["gpus"][0]) == 10**9


def test_a_host_without_a_gpu_is_recorded_as_such_and_its_processor_watched(tmp_path: Path) -> None:
    missing = NoValue("no NVIDIA device (nvmlInit: LIBRARY_NOT_FOUND)")
    with sampling(tmp_path / "t.jsonl", open_driver=lambda: missing, period_s=0.02):
        while len(read_samples(tmp_path / "t.jsonl")) < 3:
            time.sleep(0.01)
    samples = read_samples(tmp_path / "t.jsonl")
    assert {json.dumps(one["gpus"]) for one in samples} == {json.dumps({"missing": missing.reason})}
    assert all(one["host"]["load_1m"] >= 0 for one in samples)
