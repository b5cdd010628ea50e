"""Control groups hold their limits as files, and nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_groups import own_groups

from engcmp_resources.sandbox import bubblewrap, cgroups
from engcmp_resources.sandbox.records import MIB, BrokenSandboxError, Limits, NoSandboxError

LIMITS = Limits(memory_bytes=64 * MIB, processes=9, cpus=2)


@pytest.fixture
def made_by() -> Iterator[str]:
    try:
        yield cgroups.kind()
    except NoSandboxError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI control groups must be there: {error}")
        pytest.skip(str(error))


def test_a_group_has_its_limits_and_ends_what_is_in_it(made_by: str) -> None:
    if made_by == "systemd":
        pytest.skip("systemd holds the limits itself")
    with cgroups.group(made_by, LIMITS) as group:
        read = {
            path.name: path.read_text().strip()
            for folder in own_groups()
            for path in folder.iterdir()
            if path.name in NAMES
        }
        assert read["pids.max"] == "9"
        assert read.get("cpu.cfs_quota_us", read.get("cpu.max", "").split()[:1]) in ("200000", ["200000"])
        assert str(64 * MIB) in [read.get(name) for name in MEMORY]
        joined = ":".join(map(str, group.join))
        command = [sys.executable, "-c", bubblewrap._JOINING.read_text(), joined, "65533", sys_sleep(), "99"]
        with subprocess.Popen(command) as process:
            until = time.monotonic() + 30
            while b"sleep" not in Path(f"/proc/{process.pid}/comm").read_bytes() and time.monotonic() < until:
                time.sleep(0.02)
            assert Path(f"/proc/{process.pid}/status").read_text().partition("Uid:")[2].split()[0] == "65533"
            for folder in own_groups():
                cgroups._remove(folder)
            assert process.wait(30) == -9
    assert own_groups() == []


MEMORY = ("memory.limit_in_bytes", "memory.max")
NAMES = (*MEMORY, "pids.max", "cpu.cfs_quota_us", "cpu.max")


def sys_sleep() -> str:
    return next(path for path in ("/usr/bin/sleep", "/bin/sleep") if Path(path).exists())


def test_groups_of_dead_callers_are_swept(made_by: str) -> None:
    if made_by == "systemd":
        pytest.skip("systemd removes them itself")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = [base / f"engcmp-sandbox-{gone.pid}-00000000" for base in cgroups._bases(made_by)]
    for folder in left:
        folder.mkdir()
    with cgroups.group(made_by, LIMITS):
        assert not any(folder.exists() for folder in left)
        with cgroups.group(made_by, LIMITS):  # another one of a living caller stays
            assert len(own_groups()) == 2 * len(left)


def test_a_limit_that_the_system_refuses_is_a_broken_sandbox_and_leaves_nothing(made_by: str) -> None:
    if made_by == "systemd":
        pytest.skip("systemd refuses when the command starts")
    with (
        pytest.raises(BrokenSandboxError, match=r"no control group: .*Invalid argument"),
        cgroups.group(made_by, Limits(processes=-7)),
    ):
        pytest.fail("it was made")
    assert own_groups() == []


def test_the_files_of_version_2_have_the_same_limits() -> None:
    settings = cgroups._settings("v2", [Path("/none")], LIMITS)
    assert {path.name: value for path, value in settings} == {
        "memory.max": str(64 * MIB),
        "pids.max": "9",
        "cpu.max": "200000 100000",
    }


def test_without_root_systemd_makes_the_group_or_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_234_567)
    with pytest.raises(NoSandboxError, match="no control group can be made for total memory and processes"):
        cgroups.kind()
    with cgroups.group("systemd", LIMITS) as group:
        assert group.join == ()
        assert group.prefix[:3] == ("systemd-run", "--user", "--scope")
        assert {"MemoryMax=67108864", "MemorySwapMax=0", "TasksMax=9", "CPUQuota=200%"} <= set(group.prefix)
        assert group.prefix[-1] == "--"
