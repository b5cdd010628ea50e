"""The decoding of NVML's answers, from what a real driver returned, and from what others are documented to return."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recording import FILE
from samples import RECORDED, played, with_second_gpu

from engcmp_resources import host
from engcmp_resources.gpus import (
    NO_DEVICE,
    NoValue,
    NvmlRefusal,
    Owned,
    open_nvml,
    read_snapshot,
    reason_words,
    snapshot,
)

FUNCTIONS = sorted({name.partition("(")[0] for name in RECORDED["frames"]["idle"]})
LOST, NOT_SUPPORTED, NO_PERMISSION = {"error": 15}, {"error": 3}, {"error": 4}


def gpu_0(label: str, **changes: dict[str, object]):
    shot = read_snapshot(played(label, **changes))
    assert not isinstance(shot.gpus, NoValue)
    return shot.gpus[0]


def test_the_recording_says_what_it_is_and_holds_nothing_of_the_host() -> None:
    header = RECORDED["header"]
    assert header["gpu"] == "NVIDIA H200" and header["driver"] == "580.159.04" and header["date"]
    text = FILE.read_text(encoding="utf-8")
    assert set(re.findall(r"GPU-[0-9a-f-]+", text)) == {"GPU-00000000-0000-0000-0000-000000000000"}
    assert {int(pid) for pid in re.findall(r'"pid": (\d+)', text)} == {1001, 1002, 1003}
    assert set(re.findall(r'"(/[^"]*)"', text)) == {"/somewhere/program --of=somebody"}


def test_an_idle_gpu_is_read_as_recorded() -> None:
    gpu = gpu_0("idle")
    assert (gpu.index, gpu.lost, gpu.name, gpu.power_limit_w) == (0, False, "NVIDIA H200", 700.0)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (150754820096, 0, 644939776)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.power_w, gpu.temperature_c) == (1980, 3201, 86.409, 35)
    assert (gpu.throttle_reasons, gpu.compute_processes, gpu.graphics_processes) == ((), (), ())
    assert gpu_0("after").throttle_reasons == ("gpu_idle",)
    assert gpu.uuid == hashlib.sha256(b"engcmp gpu GPU-00000000-0000-0000-0000-000000000000").hexdigest()[:12]


def test_driver_and_cuda_versions_are_read() -> None:
    shot = read_snapshot(played("idle"))
    assert (shot.driver, shot.cuda_driver) == ("580.159.04", "13.0")


def test_processes_of_both_kinds_are_read_with_the_program_s_name_alone() -> None:
    (computes,), drawn = gpu_0("held").compute_processes, gpu_0("drawn")
    assert (computes.pid, computes.name, computes.used_bytes, computes.ours) == (1001, "program", 2690646016, False)
    assert computes.used_bytes >= RECORDED["header"]["held_bytes"]
    (draws,) = drawn.graphics_processes
    assert (draws.pid, draws.used_bytes, drawn.compute_processes) == (1003, 7495680, ())
    assert gpu_0("load").utilisation_percent == 100


def test_the_engine_s_own_process_is_known() -> None:
    shot = read_snapshot(played("held"), lambda pid: pid == 1001)
    assert shot.as_json()["gpus"][0]["compute_processes"][0]["ours"] is True


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_call_that_is_not_supported_is_a_reason_in_its_place_and_nothing_else_changes(function: str) -> None:
    whole, without = read_snapshot(played("held")).as_json(), read_snapshot(played("held", **{function: NOT_SUPPORTED}))
    left = without.as_json()
    if function == "nvmlDeviceGetCount":
        assert left["gpus"] == {"missing": "nvmlDeviceGetCount: NOT_SUPPORTED"}
        return
    differing = {
        name: left["gpus"][0][name] for name in left["gpus"][0] if left["gpus"][0][name] != whole["gpus"][0][name]
    }
    differing |= {name: left[name] for name in ("driver", "cuda_driver") if left[name] != whole[name]}
    fallbacks = {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"}
    asked = function not in RECORDED_BESIDE and function not in fallbacks
    assert bool(differing) == (asked or function == "nvmlDeviceGetMemoryInfo_v2"), differing
    if asked:
        assert all(value == {"missing": f"{function}: NOT_SUPPORTED"} for value in differing.values())


RECORDED_BESIDE = {
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetFanSpeed",
}  # fmt: skip


def test_an_older_driver_answers_by_the_older_names() -> None:
    old = {"nvmlDeviceGetMemoryInfo_v2": {"error": 13}, "nvmlDeviceGetCurrentClocksEventReasons": {"error": 13}}
    gpu = gpu_0("after", **old)
    assert gpu.throttle_reasons == ("gpu_idle",)
    assert gpu.memory_used_bytes == 644939776
    assert gpu.memory_reserved_bytes == NoValue("this driver does not tell reserved")


def test_memory_of_a_process_that_the_driver_does_not_tell_is_a_reason_and_a_name_that_it_may_not_see_too() -> None:
    hidden = {"value": [{"pid": 7, "usedGpuMemory": None}]}
    (one,) = gpu_0("held", nvmlDeviceGetComputeRunningProcesses=hidden).compute_processes
    assert one.used_bytes == NoValue("the driver does not tell the memory of this process")
    (other,) = gpu_0("held", nvmlSystemGetProcessName=NO_PERMISSION).compute_processes
    assert other.name == NoValue("nvmlSystemGetProcessName: NO_PERMISSION")


def test_a_gpu_that_is_lost_says_so_while_the_other_one_is_read() -> None:
    nvml = with_second_gpu(RECORDED["frames"]["load"])
    for name in list(nvml.frame):
        if name.startswith("nvmlDevice") and "(1" in name:
            nvml.frame[name] = LOST
    shot = read_snapshot(nvml)
    assert not isinstance(shot.gpus, NoValue)
    well, lost = shot.gpus
    assert (well.lost, lost.lost) == (False, True)
    assert lost.temperature_c == NoValue("nvmlDeviceGetTemperature: GPU_IS_LOST")
    assert lost.compute_processes == NoValue("nvmlDeviceGetComputeRunningProcesses: GPU_IS_LOST")


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (0x1, ("gpu_idle",)),
        (0x4 | 0x40, ("sw_power_cap", "hw_thermal_slowdown")),
        (0x8 | 0x20 | 0x80, ("hw_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")),
        (0x2 | 0x1000, ("applications_clocks_setting", "unknown_0x1000")),
    ],
)
def test_throttle_reasons_are_words(bits: int, words: tuple[str, ...]) -> None:
    assert reason_words(bits) == words


def test_the_words_are_those_of_the_library() -> None:
    import pynvml

    named = {name: value for name, value in vars(pynvml).items() if re.match("nvmlClocksEventReason[A-Z]", name)}
    for name, bit in named.items():
        if bit and bit & (bit - 1) == 0 and not name.endswith("UserDefinedClocks"):
            word = re.sub("(?<!^)(?=[A-Z])", "_", name.removeprefix("nvmlClocksEventReason")).lower()
            assert reason_words(bit) == (word,)


def test_a_refusal_names_the_function_and_the_driver_s_word() -> None:
    assert str(NvmlRefusal("nvmlInit", 12)) == "nvmlInit: LIBRARY_NOT_FOUND"
    assert str(NvmlRefusal("nvmlInit", 4711)) == "nvmlInit: error 4711"


def test_a_snapshot_is_plain_json() -> None:
    document = read_snapshot(played("held")).as_json()
    assert json.loads(json.dumps(document)) == document


def test_a_receipt_says_what_the_gpus_are_and_nothing_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = host.environment.__wrapped__
    monkeypatch.setattr(host, "snapshot", lambda: read_snapshot(played("load")))
    assert environment()["gpus"] == [
        {
            "index": 0, "name": "NVIDIA H200", "uuid": gpu_0("idle").uuid, "driver": "580.159.04", "cuda_driver": "13.0",
            "memory_total_bytes": 150754820096, "power_limit_w": 700.0, "default_power_limit_w": 700.0,
        }
    ]  # fmt: skip
    monkeypatch.setattr(host, "snapshot", lambda: NoValue("no NVIDIA device (why)"))
    assert environment()["gpus"] == {"missing": "no NVIDIA device (why)"}
    monkeypatch.setattr(host, "snapshot", lambda: read_snapshot(played("load", nvmlDeviceGetCount=NOT_SUPPORTED)))
    assert environment()["gpus"] == {"missing": "nvmlDeviceGetCount: NOT_SUPPORTED"}


@pytest.mark.skipif(not isinstance(open_nvml(), NoValue), reason="this host has an NVIDIA GPU")
def test_a_host_without_a_driver_has_a_reason() -> None:
    shot = snapshot()
    assert isinstance(shot, NoValue) and shot.reason.startswith(f"{NO_DEVICE} (nvmlInit: ")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_below_a_root_are_ours_also_after_they_have_ended() -> None:
    owned = Owned({os.getpid()})
    program = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        grandchild = int(child.stdout.readline())
        assert owned(grandchild) and owned(child.pid) and owned(os.getpid())
        assert not owned(os.getppid()) and not owned(1)
        assert not Owned({grandchild})(child.pid)
        child.stdin.close()
        child.wait(30)
    assert owned(grandchild)
    assert not Owned({os.getpid()})(grandchild)


@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="needs /proc")
def test_processes_of_a_container_are_ours_by_their_control_group() -> None:
    group = Path("/proc/self/cgroup").read_text().strip()
    owned = Owned()
    assert not owned(os.getpid())
    owned.containers.add(group)
    assert owned(os.getpid())
    assert not owned(1 << 30)
