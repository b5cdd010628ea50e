"""What the rules of a protocol allow, before a launch, during a capture and after the stop."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError
from samples import capture, gpu_of, process, sample, snapshot_of

from engcmp_assets.kernel.gpu_rules import (
    GpuFinding,
    GpuRules,
    ThrottleWord,
    check_after_stop,
    check_before_launch,
    foreign_bytes,
    foreign_processes,
    judge,
    refuse,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpus import reason_words

RULES = GpuRules(use=(0,))
DESKTOP = GpuRules(use=(0,), allowance_bytes={0: 2_100_000_000})
NOT_TOLD = {"missing": "nvmlDeviceGetX: NOT_SUPPORTED"}
ENGINE = 1001


def names(findings: list[GpuFinding]) -> list[str]:
    return [finding.name for finding in findings]


def shot(**facts: Any) -> dict[str, Any]:
    """The idle host, with `facts` of its GPU changed."""
    return {**snapshot_of("idle"), "gpus": [gpu_of("idle", **facts)]}


def test_the_table_is_read_as_toml_gives_it() -> None:
    table = {
        "use": [0, 1], "driver": "580.159.04", "power_limit_w": {"0": 600, "1": 600.0},
        "allowance_bytes": {"1": 2_100_000_000}, "throttled_share_at_most": 0.01,
    }  # fmt: skip
    rules = GpuRules.model_validate(table)
    assert rules.use == (0, 1) and rules.allowance_bytes == {1: 2_100_000_000}
    assert rules.power_limit_w == {0: 600.0, 1: 600.0}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"use": []}, "at least 1"),
        ({"use": [0, 0]}, "names a GPU twice"),
        ({"use": [-1]}, "greater than or equal to 0"),
        ({"use": [0], "allowance_bytes": {"1": 5}}, "allowance_bytes names GPU 1"),
        ({"use": [0], "power_limit_w": {"0": 0}}, "greater than 0"),
        ({"use": [0], "throttled_share_at_most": 2}, "less than or equal to 1"),
        ({"use": [0], "power": 600}, "Extra inputs"),
        ({"use": [0], "throttle_words": ["thermal"]}, "Input should be 'gpu_idle'"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        GpuRules.model_validate(table)


def test_the_words_of_the_rules_are_those_of_the_telemetry() -> None:
    assert get_args(ThrottleWord) == reason_words(0x7FF)


def test_an_idle_gpu_passes() -> None:
    whole = GpuRules(use=(0,), driver="580.159.04", power_limit_w={0: 700.0}, free_bytes_at_least={0: 140 * 10**9})
    assert check_before_launch(snapshot_of("idle"), whole) == []


def test_without_a_device_there_is_one_finding_with_the_reason() -> None:
    (finding,) = check_before_launch(
        {"missing": "no NVIDIA device (nvmlInit: LIBRARY_NOT_FOUND)"}, GpuRules(use=(0, 1))
    )
    assert finding.explanation == "the study uses GPU 0, 1, and there is no NVIDIA device (nvmlInit: LIBRARY_NOT_FOUND)"
    assert names(check_before_launch({**snapshot_of("idle"), "gpus": NOT_TOLD}, RULES)) == ["no_device"]


@pytest.mark.parametrize("told", ["575.51.03", NOT_TOLD])
def test_another_driver_than_declared_is_found(told: Any) -> None:
    findings = check_before_launch({**snapshot_of("idle"), "driver": told}, GpuRules(use=(0,), driver="580.159.04"))
    assert names(findings) == ["driver"] and "declares 580.159.04" in findings[0].explanation


@pytest.mark.parametrize(("told", "found"), [(700.0, []), (699.0, ["power_limit"]), (NOT_TOLD, ["power_limit"])])
def test_another_power_limit_than_declared_is_found(told: Any, found: list[str]) -> None:
    rules = GpuRules(use=(0,), power_limit_w={0: 700.0})
    assert names(check_before_launch(shot(power_limit_w=told), rules)) == found


def test_a_gpu_that_is_not_there_or_lost_is_found() -> None:
    assert names(check_before_launch(snapshot_of("idle"), GpuRules(use=(0, 1)))) == ["gpu_absent"]
    assert names(check_before_launch(shot(lost=True), RULES)) == ["gpu_absent"]


def test_a_foreign_program_that_computes_is_never_within_an_allowance() -> None:
    for rules in (RULES, GpuRules(use=(0,), allowance_bytes={0: 10**12})):
        (finding,) = check_before_launch(snapshot_of("held"), rules)
        assert finding.explanation == "GPU 0 is used by process 1001 (program)"
        assert finding.evidence["processes"][0]["kinds"] == ["compute"]
    assert check_before_launch(snapshot_of("held", ours=[ENGINE]), RULES) == []


def test_a_program_that_draws_is_allowed_up_to_the_allowance() -> None:
    assert names(check_before_launch(snapshot_of("drawn"), RULES)) == ["foreign_graphics"]
    assert check_before_launch(snapshot_of("drawn"), DESKTOP) == []
    for held, found in ((2_100_000_000, []), (2_100_000_001, ["foreign_graphics"])):
        desktop = shot(graphics_processes=[process(7, used_bytes=held)], memory_used_bytes=held)
        assert names(check_before_launch(desktop, DESKTOP)) == found


def test_programs_that_draw_share_one_allowance() -> None:
    two = [process(7, used_bytes=1_500_000_000, name="Xorg"), process(8, used_bytes=700_000_000, name="shell")]
    (finding,) = check_before_launch(shot(graphics_processes=two, memory_used_bytes=2_200_000_000), DESKTOP)
    assert finding.explanation == "process 7 (Xorg), process 8 (shell) hold 2.20 GB of GPU 0, allowed are 2.10 GB"


def test_a_compositor_that_also_computes_counts_as_drawing_and_once() -> None:
    both = process(7, used_bytes=10**9)
    gpu = gpu_of("idle", compute_processes=[both], graphics_processes=[both], memory_used_bytes=10**9)
    assert [one["kinds"] for one in foreign_processes(gpu)] == [["compute", "graphics"]]
    assert foreign_bytes(gpu) == 10**9
    assert check_before_launch({**snapshot_of("idle"), "gpus": [gpu]}, DESKTOP) == []


def test_where_the_driver_does_not_tell_what_a_program_holds_all_that_is_in_use_counts() -> None:
    hidden, mine = process(7, used_bytes=NOT_TOLD), process(9, used_bytes=4 * 10**9, ours=True)
    facts = {"graphics_processes": [hidden], "compute_processes": [mine], "memory_used_bytes": 5 * 10**9}
    assert foreign_bytes(gpu_of("idle", **facts)) == 10**9
    assert check_before_launch(shot(**facts), DESKTOP) == []
    assert names(check_before_launch(shot(**facts | {"memory_used_bytes": 7 * 10**9}), DESKTOP)) == ["foreign_graphics"]
    unknown = facts | {"memory_used_bytes": NOT_TOLD}
    assert names(check_before_launch(shot(**unknown), DESKTOP)) == ["foreign_graphics", "memory_not_known"]


def test_processes_that_the_driver_does_not_list_are_no_proof_that_there_are_none() -> None:
    assert names(check_before_launch(shot(graphics_processes=NOT_TOLD), RULES)) == ["processes_not_known"]
    assert names(check_before_launch(shot(compute_processes=NOT_TOLD), RULES)) == ["processes_not_known"]


def test_memory_in_use_by_no_process_that_can_be_seen_is_found() -> None:
    assert names(check_before_launch(shot(memory_used_bytes=3 * 10**9), RULES)) == ["unseen_memory"]
    assert check_before_launch(shot(memory_used_bytes=64 * 2**20), RULES) == []
    assert check_before_launch(shot(memory_used_bytes=2 * 10**9), DESKTOP) == []
    desktop = {"graphics_processes": [process(7, used_bytes=2 * 10**9)]}
    assert names(check_before_launch(shot(memory_used_bytes=3 * 10**9, **desktop), DESKTOP)) == ["unseen_memory"]


def test_a_refusal_says_all_that_is_wrong_in_one_line() -> None:
    refuse([], where="arm")
    findings = check_before_launch({**snapshot_of("held"), "driver": "1.0"}, GpuRules(use=(0,), driver="2.0"))
    with pytest.raises(EngcmpError) as raised:
        refuse(findings, where="K4/vllm@v1")
    assert "the driver is 1.0, the protocol declares 2.0; GPU 0 is used by process 1001 (program)" in str(raised.value)
    assert "K4/vllm@v1" in str(raised.value) and "\n" not in str(raised.value)


def engine(number: int, **facts: Any) -> dict[str, Any]:
    return gpu_of("load", **{"compute_processes": [process(ENGINE, ours=True)]} | facts)


def test_a_quiet_capture_has_no_findings() -> None:
    assert judge(capture(100, lambda n: [engine(n)]), RULES) == []


@pytest.mark.parametrize(("throttled", "found"), [(1, []), (2, ["throttled"])])
def test_throttling_beyond_the_share_is_flagged_with_its_reasons(throttled: int, found: list[str]) -> None:
    samples = capture(100, lambda n: [engine(n, throttle_reasons=["hw_thermal_slowdown"] if n < throttled else [])])
    findings = judge(samples, RULES)
    assert names(findings) == found and not any(finding.voids for finding in findings)
    if found:
        assert findings[0].evidence == {"gpu": 0, "share": 0.02, "samples": 100, "reasons": {"hw_thermal_slowdown": 2}}


def test_the_power_limit_s_cap_counts_only_where_the_protocol_says_so() -> None:
    samples = capture(10, lambda n: [engine(n, throttle_reasons=["sw_power_cap"])])
    assert judge(samples, RULES) == []
    assert names(judge(samples, RULES.model_copy(update={"throttle_words": ("sw_power_cap",)}))) == ["throttled"]


def test_throttling_that_cannot_be_read_is_not_taken_for_none() -> None:
    samples = capture(10, lambda n: [engine(n, throttle_reasons=NOT_TOLD)])
    assert names(judge(samples, RULES)) == ["throttling_not_known", "not_watched"]


def test_a_program_that_joins_is_flagged_even_for_one_sample() -> None:
    other = process(77, name="trainer")
    samples = capture(
        50, lambda n: [engine(n, compute_processes=[process(ENGINE, ours=True), *([other] if n == 30 else [])])]
    )
    (finding,) = judge(samples, DESKTOP)
    assert finding.name == "joined" and not finding.voids
    assert finding.explanation == "GPU 0 was also used by process 77 (trainer) during the capture"


def test_a_desktop_that_was_there_before_or_stays_within_the_allowance_has_not_joined() -> None:
    old, new = process(7, used_bytes=10**9), process(8, used_bytes=5 * 10**8)
    assert judge(capture(20, lambda n: [engine(n, graphics_processes=[old, *([new] if n > 5 else [])])]), DESKTOP) == []
    large = process(8, used_bytes=2 * 10**9)
    findings = judge(capture(20, lambda n: [engine(n, graphics_processes=[old, *([large] if n > 5 else [])])]), DESKTOP)
    assert names(findings) == ["joined"] and [one["pid"] for one in findings[0].evidence["processes"]] == [8]


def test_samples_outside_the_capture_do_not_count() -> None:
    start = [sample(n, gpu_of("idle", compute_processes=[process(77)]), phase="starting") for n in range(5)]
    stop = [sample(n, gpu_of("idle"), phase="stopping") for n in range(5)]
    assert judge([*start, *capture(20, lambda n: [engine(n)]), *stop], RULES) == []
    assert names(judge([*start, *stop], RULES)) == ["not_watched"]


def test_samples_that_failed_are_counted() -> None:
    failed = {"at": "", "t_ns": 0, "phase": "capturing", "failed": "OSError: no"}
    assert judge([*capture(99, lambda n: [engine(n)]), failed], RULES) == []
    (finding,) = judge([*capture(80, lambda n: [engine(n)]), *[failed] * 20], RULES)
    assert (finding.name, finding.evidence) == ("not_watched", {"gpu": 0, "samples": 100, "lacking": 20})


def test_memory_that_comes_back_is_in_order() -> None:
    assert check_after_stop(snapshot_of("idle"), snapshot_of("after"), RULES) == []


def test_memory_that_is_not_given_back_is_found() -> None:
    (finding,) = check_after_stop(shot(), shot(memory_used_bytes=10**9), RULES)
    assert finding.explanation == "1.00 GB of GPU 0 were not given back after the stop"
    assert names(check_after_stop(shot(), shot(memory_used_bytes=NOT_TOLD), RULES)) == ["memory_not_known"]
    assert names(check_after_stop(NOT_TOLD, shot(), RULES)) == ["memory_not_known"]


def test_an_engine_process_that_is_still_there_after_the_stop_is_found() -> None:
    after = shot(compute_processes=[process(ENGINE, ours=True, used_bytes=10**9)], memory_used_bytes=10**9)
    assert names(check_after_stop(shot(), after, RULES)) == ["engine_still_there", "memory_not_returned"]
