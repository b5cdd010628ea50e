"""A Docker engine for tests: the one that answers, else one that is started here, with a socket and a data folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engcmp_resources.containers import DockerHost
from engcmp_resources.errors import EngcmpError

_START_S = 60.0
# What works inside a container too: no rules of the firewall, no bridge, no file system of layers.
FLAGS = ("--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs")


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[None]:
    """DOCKER_HOST leads to a Docker engine. Without one the tests are skipped, and in CI they fail: there it must be."""
    with _answering() as reason:
        if reason is not None and os.environ.get("CI") == "true":
            pytest.fail(f"in CI a Docker engine must answer: {reason}")
        if reason is not None:
            pytest.skip(reason)
        yield


@contextmanager
def _answering() -> Iterator[str | None]:
    """None while an engine answers, else why none does."""
    refused = _refusal()
    if refused is None:
        yield None
    elif shutil.which("dockerd") is None:
        yield f"{refused}; and dockerd is not installed"
    elif os.geteuid() != 0:
        yield f"{refused}; and only root can start dockerd"
    else:
        with _started() as reason:
            yield reason


def _refusal() -> str | None:
    try:
        DockerHost().close()
    except EngcmpError as error:
        return str(error)
    return None


@contextmanager
def _started() -> Iterator[str | None]:
    # A short path: that of a socket has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="engcmp-dockerd-", dir="/tmp"))
    address, log = f"unix://{folder}/docker.sock", folder / "log"
    command = ["dockerd", *FLAGS, "--host", address, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    with log.open("wb") as output, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", address)
        process = subprocess.Popen(
            [*command, "--pidfile", f"{folder}/pid"], stdout=output, stderr=output, start_new_session=True
        )
        try:
            until = time.monotonic() + _START_S
            while _refusal() is not None and process.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            reason = _refusal()
            yield None if reason is None else f"{reason}; dockerd says: {log.read_text()[-500:]}"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for mounted in (folder / "exec" / "netns").glob("*"):  # dockerd leaves its mount of the host's network
                subprocess.run(["umount", str(mounted)], check=False)
            shutil.rmtree(folder, ignore_errors=True)
