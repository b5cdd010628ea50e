"""The disk becomes full, or the results read-only, while a run captures: told in one line, and the next run goes on where it was cut.

The engines are simulators over HTTP that run already. It needs the right to mount.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from homes import assert_one_clear_line, engcmp, start_engcmp, unfinished, wait_until
from served_pair import OURS, Servers, served_pair
from tiny import TINY, TinyStudy

from engcmp_assets.kernel.tables import read_parquet
from engcmp_resources.canonical import sha256_file
from engcmp_resources.journal import read_journal

MOUNT, UMOUNT = "/usr/bin/mount", "/usr/bin/umount"
SLOW = {"prefill_ms_per_token": 15.0}


def mount(*arguments: str) -> None:
    """Mount it, or skip the test where this user may not."""
    done = subprocess.run([MOUNT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


@pytest.fixture
def mounted(tmp_path: Path, measured_home: Path) -> Iterator[Servers]:
    """The study of two servers, whose home is a mount of 64 MiB above the inputs."""
    servers = served_pair(tmp_path, measured_home, 2)
    below, disk = tmp_path / "below", tmp_path / "disk"
    servers.tiny.home.rename(below)
    for folder in (servers.tiny.home, disk):
        folder.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk))
        for name in ("upper", "work"):
            (disk / name).mkdir()
        layers = f"lowerdir={below},upperdir={disk}/upper,workdir={disk}/work"
        mount("-t", "overlay", "overlay", "-o", layers, str(servers.tiny.home))
        yield servers
    finally:
        servers.stop()
        for folder in (servers.tiny.home / "dagster", servers.tiny.home, disk):
            if folder.is_mount():
                subprocess.run([UMOUNT, str(folder)], check=True)


def windows(tiny: TinyStudy) -> int:
    """How many windows the unfinished capture holds."""
    paths = tiny.home.glob("scratch/capture-*/journal.jsonl")
    return sum(one["kind"] == "window" for path in paths for one in read_journal(path))


def cut(servers: Servers, how: Callable[[], object]) -> subprocess.CompletedProcess[str]:
    """Run an arm, and do that once the first of its two windows is whole."""
    run = start_engcmp("run", TINY, "--arm", OURS, home=servers.tiny.home, **servers.tiny.variables)
    try:
        wait_until(lambda: windows(servers.tiny) == 1 or run.poll() is not None, timeout_s=180)
        how()
        output, errors = run.communicate(timeout=120)
    finally:
        run.kill()
        run.wait()
    return subprocess.CompletedProcess(run.args, run.returncode, output, errors)


def outside(servers: Servers, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which holds no file of the mount when it has ended."""
    return engcmp(*arguments, home=servers.tiny.home, **servers.tiny.variables)


def assert_goes_on(servers: Servers) -> None:
    assert windows(servers.tiny) == 1 and servers.captured(OURS) == []
    for path in (servers.tiny.home / "store").rglob("*.*"):
        assert sha256_file(path) == path.name.partition(".")[0]
    done = outside(servers, "run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    table = read_parquet(servers.output(servers.receipt("captured_rows/pl", OURS), "capture.parquet"))
    starts = set(zip(table["window_id"], table["start"], strict=True))
    assert sorted(start for _, start in starts) == [1, 2], "what was whole is not measured again"
    proved = outside(servers, "verify", TINY)
    assert proved.returncode == 0, proved.stdout
    assert unfinished(servers.tiny.home) == []


@pytest.mark.timeout(600)
def test_a_disk_that_becomes_full_in_a_capture_is_told_and_the_next_run_goes_on(mounted: Servers) -> None:
    servers, filler = mounted, mounted.tiny.home / "filler"
    servers.start("ours", timing=SLOW)
    servers.start("rival")

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    assert shutil.disk_usage(servers.tiny.home).free < size

    done = cut(servers, fill)
    assert_one_clear_line(done, "the disk is full", "free space and start again")
    filler.unlink()
    assert_goes_on(servers)


@pytest.mark.timeout(600)
def test_results_that_become_read_only_in_a_capture_are_told_and_the_next_run_goes_on(mounted: Servers) -> None:
    """As a file system does that found an error in itself. Dagster's own log lies elsewhere: it has a file open all the time."""
    servers, home, log = mounted, mounted.tiny.home, mounted.tiny.root / "log"
    servers.start("ours", timing=SLOW)
    servers.start("rival")
    for folder in (log, home / "dagster"):
        folder.mkdir()
    mount("--bind", str(log), str(home / "dagster"))

    def read_only() -> None:
        # Above the same folder, since the run's own locks are open for writing in the mount below.
        mount("--rbind", str(home), str(home))
        mount("-o", "remount,ro,bind", str(home))

    done = cut(servers, read_only)
    assert_one_clear_line(done, "ead-only", str(home))
    subprocess.run([UMOUNT, "--recursive", str(home)], check=True)
    assert_goes_on(servers)
