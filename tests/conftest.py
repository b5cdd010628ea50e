"""Fixtures that are real: the pinned weights and library, and one measured home that tests copy.

Nothing here stands in for hardware. The home is measured once a session by the command itself; ENGCMP_TEST_HOME names a folder
in which it is kept between sessions, for those who run the tests often.
"""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from once import made_once
from time_parts import NEEDS_DOCKER, TimeParts

from engcmp_assets.kernel.study import Study, load_study
from engcmp_resources.store import Store

CHECKOUT = Path(__file__).resolve().parent.parent
STUDY = "smollm2-cpu"
# Tests that take times, drive a browser or a Docker engine, kill at moments, or look at what other processes of the machine leave.
ALONE = (
    *(
        "benchmarks/test_load_peers",
        "chaos/",
        "commands/test_throughput",
        "dagster/test_alert_of",
        "dagster/test_browser",
        "docker/",
        "vllm/",
    ),
    *(
        "engines/test_vllm_process",
        "gpu/test_gpu_locks",
        "gpu/test_real_gpu",
        "load/",
        "test_locks",
        "throughput_events/",
    ),
)


def run_engcmp(
    *arguments: str, home: Path, timeout_s: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it: a process of its own."""
    command = [sys.executable, "-m", "engcmp_assets.commands", *arguments]
    settings = os.environ | {"ENGCMP_HOME": str(home)} | environment
    return subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=CHECKOUT
    )


def pytest_configure(config: pytest.Config) -> None:
    # How long an example takes is the machine's affair; all else is as hypothesis has it, in CI too.
    settings.register_profile("any machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    config.pluginmanager.register(TimeParts(config))
    config.addinivalue_line("markers", "alone: needs the machine for itself; all others may run several at a time")
    config.addinivalue_line("markers", f"{NEEDS_DOCKER}: starts containers; its time is counted as Docker's")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(CHECKOUT / "tests").as_posix()
        if place.startswith(ALONE) or "docker_engine" in getattr(item, "fixturenames", ()):
            item.add_marker("alone")
        if "docker_engine" in getattr(item, "fixturenames", ()):
            item.add_marker(NEEDS_DOCKER)


def pytest_collection_finish() -> None:
    # What is loaded and collected stays: no later look for garbage walks it, 0.2 s each.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_results_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that forgets to name a home must not write into the user's own results, nor wait for the user's engine lock."""
    apart = tmp_path_factory.mktemp("apart")
    monkeypatch.setenv("ENGCMP_HOME", str(apart / "home"))
    locks = apart / "locks"
    locks.mkdir(mode=0o700)
    monkeypatch.setenv("ENGCMP_LOCK_DIR", str(locks))
    monkeypatch.setenv("ENGCMP_GPU_LOCK_DIR", str(apart / "gpu-locks"))


@pytest.fixture(scope="session")
def measured_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which `engcmp demo` has measured the study. Read it; change only copies (`home_copy`)."""
    kept = os.environ.get("ENGCMP_TEST_HOME")

    def measure(folder: Path) -> None:
        done = run_engcmp("demo", home=Path(kept) if kept else folder, timeout_s=900)
        assert done.returncode == 0, done.stderr[-4000:]

    folder = made_once(tmp_path_factory, "measured", measure)
    return Path(kept) if kept else folder


@pytest.fixture
def home_copy(measured_home: Path, tmp_path: Path) -> Iterator[Path]:
    """The measured home, copied by hard links: replace files in it, never write into them."""
    target = tmp_path / "copy"
    # Unfinished work belongs to the processes that do it; a database is copied with what its side files hold.
    apart = shutil.ignore_patterns("scratch", "*.db-shm", "*.db-wal", "*.db-journal")
    shutil.copytree(measured_home, target, symlinks=True, copy_function=_link, ignore=apart)
    yield target
    shutil.rmtree(target)


def _link(source: str, target: str) -> str:
    if source.endswith(".db"):
        _copy_database(source, target)
    elif "/dagster/" in source:
        shutil.copy2(source, target)  # written in place
    else:
        os.link(source, target)
    return target


def _copy_database(source: str, target: str) -> None:
    """The event log as it is at one moment, also while a process of another test session writes it."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


@pytest.fixture(scope="session")
def study() -> Study:
    return load_study(STUDY)


@pytest.fixture(scope="session")
def stored_file(measured_home: Path) -> Callable[[str], Path]:
    """The stored file of an output of `sources`, by name."""
    store = Store(measured_home)
    sha256 = store.head(STUDY, "q4_0~llamacpp@b11549", "sources")
    assert sha256 is not None
    outputs = {output["name"]: output for output in store.read_receipt(sha256)["outputs"]}

    def find(name: str) -> Path:
        output = outputs[name]
        return measured_home / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}"

    return find


@pytest.fixture(scope="session")
def smollm2_weights(stored_file: Callable[[str], Path]) -> Path:
    """SmolLM2-135M-Instruct as published: GGUF, Q4_1."""
    return stored_file("weights.gguf")


@pytest.fixture(scope="session")
def q4_0_model(stored_file: Callable[[str], Path]) -> Path:
    return stored_file("q4_0.gguf")


@pytest.fixture(scope="session")
def llamacpp_library(stored_file: Callable[[str], Path]) -> Path:
    return stored_file("engine-library")
