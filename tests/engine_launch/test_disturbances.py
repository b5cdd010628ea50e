"""What disturbed an engine: judged on its telemetry, flagged in its launch, and judged again from the stored table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpu.samples import capture, gpu_of, process, sample, snapshot_of

from engcmp_assets.engine_launch.disturbances import (
    START_TELEMETRY_COLUMNS,
    disturbances,
    samples_by_start,
    telemetry_of_starts,
)
from engcmp_assets.engine_launch.step import launch_made
from engcmp_assets.kernel.gpu_rules import GpuRules
from engcmp_assets.kernel.records import Check
from engcmp_assets.kernel.tables import parquet_bytes, parquet_columns
from engcmp_assets.kernel.work import Made
from engcmp_resources.engines.base import LaunchSpec

RULES = GpuRules(use=(0,))
ENGINE = gpu_of("load", compute_processes=[process(7, ours=True)], memory_used_bytes=10**9)
JOINED = gpu_of("load", compute_processes=[process(7, ours=True), process(8, name="other")])
HOT = gpu_of("load", compute_processes=[process(7, ours=True)], throttle_reasons=["hw_thermal_slowdown"])
SPEC = LaunchSpec("e", "v1", "0" * 64, "1" * 64, 1, 8, 8, 8, 16)
NO_GPU = {"missing": "no NVIDIA device (why)"}


def start(number: int, **others: Any) -> dict[str, Any]:
    shot = snapshot_of("idle")
    seen = {
        "gpus_before": shot,
        "gpus_after": shot,
        "path": "prefill",
        "launch": 1,
        "facts": {"load_ms": 5.0, "n_ctx": 8},
    }
    return {"start": number} | seen | others


QUIET = capture(5, lambda _n: [ENGINE])


def test_a_capture_that_nothing_disturbed_has_no_sentence() -> None:
    assert disturbances([start(1), start(2)], {1: QUIET, 2: QUIET}, RULES) == []


def test_each_start_is_judged_on_its_own_samples() -> None:
    found = disturbances(
        [start(1), start(2)], {1: QUIET, 2: capture(5, lambda n: [JOINED if n == 3 else ENGINE])}, RULES
    )
    assert found == ["start 2: GPU 0 was also used by process 8 (other) during the capture"]


def test_throttling_and_memory_that_was_kept_are_told() -> None:
    kept = snapshot_of("idle")
    kept["gpus"][0]["memory_used_bytes"] += 10**9
    found = disturbances([start(1, gpus_after=kept)], {1: capture(4, lambda n: [HOT if n else ENGINE])}, RULES)
    assert found == [
        "start 1: GPU 0 throttled in 75.0% of the samples, allowed are 1.0%",
        "start 1: 1.00 GB of GPU 0 were not given back after the stop",
    ]


def test_a_void_start_says_why_beside_those_that_count() -> None:
    lost = capture(3, lambda n: [gpu_of("load", lost=n == 2)])
    found = disturbances([start(1, void=["GPU 0 was lost during the capture"]), start(2)], {1: lost, 2: QUIET}, RULES)
    assert found[0] == "start 1 is void: GPU 0 was lost during the capture"
    assert all(one.startswith("start 1") for one in found)


def test_a_start_without_samples_or_without_an_end_does_not_pass_as_undisturbed() -> None:
    killed = start(1, gpus_after={"missing": "the run was killed before the engine's stop"})
    assert disturbances([killed], {}, RULES) == [
        "start 1: no telemetry was taken while the engine captured",
        "start 1: whether the memory was given back is not known: a snapshot is missing",
    ]


def test_a_study_without_gpus_is_not_judged_but_a_void_start_is_told() -> None:
    bare = start(1, gpus_before=NO_GPU, gpus_after=NO_GPU)
    assert disturbances([bare], {1: [sample(0) | {"gpus": NO_GPU}]}, None) == []
    assert disturbances([bare | {"void": ["why"]}], {}, None) == ["start 1 is void: why"]


MIXED = {
    "two starts": {1: QUIET, 2: capture(2, lambda _n: [ENGINE, gpu_of("idle", index=1)])},
    "one without samples": {1: [], 3: QUIET},
    "without a device": {1: [sample(0) | {"gpus": NO_GPU}, sample(1) | {"gpus": NO_GPU}]},
    "a failed sample": {2: [sample(0, ENGINE), {"at": "x", "t_ns": 1, "phase": "capturing", "failed": "no"}]},
    "a lost GPU": {1: [sample(0, gpu_of("load", lost=True, temperature_c={"missing": "GPU_IS_LOST"}))], 2: QUIET},
    "eleven starts": {number: capture(1, lambda _n: [ENGINE]) for number in range(1, 12)},
    "none": {},
}


@pytest.mark.parametrize("kind", MIXED)
def test_the_table_of_all_starts_gives_back_the_samples_of_each(kind: str) -> None:
    telemetry = MIXED[kind]
    table = telemetry_of_starts(telemetry)
    assert list(table) == [column.name for column in START_TELEMETRY_COLUMNS]
    again = samples_by_start(parquet_columns(parquet_bytes(START_TELEMETRY_COLUMNS, table)))
    there = {number: samples for number, samples in telemetry.items() if samples}
    assert json.dumps(again, sort_keys=True) == json.dumps(there, sort_keys=True)  # types too


def test_a_judgement_is_the_same_from_the_stored_table() -> None:
    telemetry = {1: QUIET, 2: capture(9, lambda n: [JOINED if n > 6 else HOT])}
    starts = [start(1), start(2)]
    table = parquet_columns(parquet_bytes(START_TELEMETRY_COLUMNS, telemetry_of_starts(telemetry)))
    found = disturbances(starts, telemetry, RULES)
    assert len(found) == 2
    assert disturbances(starts, samples_by_start(table), RULES) == found


def made(telemetry: dict[int, Any], rules: GpuRules | None, **others: Any) -> Made:
    return launch_made(SPEC, [start(1, **others)], 2, telemetry=telemetry, rules=rules)


def undisturbed(one: Made) -> Check:
    return next(check for check in one.checks if check.name == "undisturbed")


def test_a_disturbance_is_a_flag_of_the_launch_and_fails_its_check() -> None:
    disturbed = made({1: capture(3, lambda _n: [JOINED])}, RULES)
    assert list(disturbed.flags) == ["start 1: GPU 0 was also used by process 8 (other) during the capture"]
    assert not undisturbed(disturbed).passed and disturbed.flags[0] in undisturbed(disturbed).explanation
    good = made({1: QUIET}, RULES)
    assert list(good.flags) == [] and undisturbed(good).passed
    assert undisturbed(good).evidence == {"samples": len(QUIET)}


def test_a_launch_without_declared_gpus_says_that_it_was_not_judged() -> None:
    one = made({1: capture(3, lambda _n: [JOINED])}, None)
    assert list(one.flags) == []
    assert "The study declares no GPUs" in undisturbed(one).explanation
