"""The GPU layer on a real NVIDIA GPU: a foreign program is seen, load is measured, and memory comes back. Needs one GPU that is free."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from ctypes.util import find_library
from pathlib import Path

import pytest
from recording import HELD_BYTES, drawing, holding

from engcmp_assets.kernel.gpu_rules import GpuRules, check_after_stop, check_before_launch, judge, refuse
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpus import DriverNvml, NoValue, Owned, open_nvml, snapshot
from engcmp_resources.telemetry import read_samples, sampling

RULES = GpuRules(use=(0,))
LOAD_S = 12


@pytest.fixture(autouse=True)
def _free_gpu() -> Iterator[None]:
    nvml = open_nvml()
    if isinstance(nvml, NoValue):
        pytest.skip(nvml.reason)
    assert isinstance(nvml, DriverNvml)
    nvml.close()
    shot = snapshot()
    assert not isinstance(shot, NoValue)
    busy = check_before_launch(shot.as_json(), RULES)
    if busy:
        pytest.skip(busy[0].explanation)
    yield


def test_a_foreign_program_keeps_an_engine_from_starting() -> None:
    with holding() as foreign:
        shot = snapshot()
        assert not isinstance(shot, NoValue)
        assert shot.driver and shot.cuda_driver
        assert not isinstance(shot.gpus, NoValue)
        gpu = shot.gpus[0]
        assert gpu.lost is False
        listed = gpu.compute_processes
        assert not isinstance(listed, NoValue)
        (finding, *others) = check_before_launch(shot.as_json(), RULES)
        assert others == []
        if (
            listed
        ):  # a driver beneath a virtual machine or container may hide processes; their memory shows all the same
            assert [process.pid for process in listed] == [foreign.pid]
            assert not isinstance(listed[0].used_bytes, NoValue) and listed[0].used_bytes >= HELD_BYTES
            assert finding.name == "foreign_compute"
        else:
            assert finding.name == "unseen_memory"
        with pytest.raises(EngcmpError, match="not as the protocol asks"):
            refuse([finding], where="here")
        other = RULES.model_copy(update={"driver": "1.2.3", "power_limit_w": {0: 1.0}})
        names = {one.name for one in check_before_launch(shot.as_json(), other)}
        assert {"driver", "power_limit"} <= names


def test_a_capture_under_load_is_watched_and_one_that_another_program_joined_is_flagged(tmp_path: Path) -> None:
    before = snapshot()
    owned = Owned({os.getpid()})
    journal = tmp_path / "telemetry.jsonl"
    with sampling(journal, ours=owned) as sampler:
        with holding(HELD_BYTES, "--load"):
            sampler.phase = "capturing"
            time.sleep(LOAD_S)
            sampler.phase = "stopping"
        time.sleep(2.5)
    assert sampler.problems == []
    samples = read_samples(journal)
    capturing = [sample["gpus"][0] for sample in samples if sample["phase"] == "capturing"]
    assert len(capturing) >= LOAD_S - 1
    assert any(gpu["utilisation_percent"] > 50 for gpu in capturing)
    assert all(gpu["memory_used_bytes"] >= HELD_BYTES for gpu in capturing)
    assert max(gpu["power_w"] for gpu in capturing) > 0 and all(gpu["temperature_c"] > 0 for gpu in capturing)
    assert [finding for finding in judge(samples, RULES) if finding.name in ("joined", "gpu_lost", "engine_left")] == []
    after = snapshot(owned)
    assert not isinstance(before, NoValue) and not isinstance(after, NoValue)
    assert check_after_stop(before.as_json(), after.as_json(), RULES) == []

    stranger = Owned({1 << 30})
    with holding(), sampling(tmp_path / "joined.jsonl", ours=stranger, period_s=0.2) as sampler:
        sampler.phase = "capturing"
        time.sleep(1)
    names = {finding.name for finding in judge(read_samples(tmp_path / "joined.jsonl"), RULES)}
    assert "joined" in names


@pytest.mark.skipif(not (find_library("EGL") and find_library("OpenGL")), reason="needs libEGL and libOpenGL")
def test_a_foreign_program_that_draws_is_seen() -> None:
    with drawing() as foreign:
        shot = snapshot()
        assert not isinstance(shot, NoValue) and not isinstance(shot.gpus, NoValue)
        listed = shot.gpus[0].graphics_processes
        assert not isinstance(listed, NoValue)
        assert [one.pid for one in listed] == [foreign.pid]
        assert [one.name for one in check_before_launch(shot.as_json(), RULES)] == ["foreign_graphics"]
        allowing = RULES.model_copy(update={"allowance_bytes": {0: 2_100_000_000}})
        assert check_before_launch(shot.as_json(), allowing) == []
