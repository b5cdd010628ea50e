"""Both kinds of sandbox, for real, and what an attack may not leave behind. In CI neither may be missing."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import docker
import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from own_groups import own_groups

from engcmp_resources.container_owners import is_dead
from engcmp_resources.sandbox.bubblewrap import BubblewrapSandbox
from engcmp_resources.sandbox.docker_sandbox import DockerSandbox
from engcmp_resources.sandbox.finding import LocalSandbox
from engcmp_resources.sandbox.records import NoSandboxError

KINDS = ("docker", "bubblewrap")


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> LocalSandbox:
    if sys.platform != "linux":
        pytest.skip("sandboxes run this host's own Python: Linux only")
    if request.param == "docker":
        request.getfixturevalue("docker_engine")
        return DockerSandbox()
    try:
        return BubblewrapSandbox()
    except NoSandboxError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI bubblewrap must be there: {error}")
        pytest.skip(str(error))


@dataclass
class Marked:
    """A word that attacks put into their program and their files, so that what is left of them can be found on this machine."""

    kind: str
    word: str = field(default_factory=lambda: f"attack{secrets.token_hex(8)}")

    def program(self, text: str) -> str:
        return f"# {self.word}\nMARK = {self.word!r}\n{text}"

    def left(self) -> dict[str, list[str]]:
        """What carries the word: processes by their command line, files in the shared temporary folders; and our own remains."""
        word = self.word.encode()
        processes = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if word in _read(path)]
        files = [str(path) for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob(f"*{self.word}*")]
        groups = [str(path) for path in own_groups()]
        containers, mounts = _docker_remains() if self.kind == "docker" else ([], [])
        return {"processes": processes, "files": files, "groups": groups, "containers": containers, "mounts": mounts}

    def wait_until_nothing_is_left(self, seconds: float = 20) -> dict[str, list[str]]:
        until = time.monotonic() + seconds
        while any(self.left().values()) and time.monotonic() < until:
            time.sleep(0.1)
        return {what: found for what, found in self.left().items() if found}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _docker_remains() -> tuple[list[str], list[str]]:
    """Containers and mounts that are left; those of a living process beside this one (tests in several processes) are its own matter."""
    client = docker.from_env()
    found = client.containers.list(all=True, ignore_removed=True, filters={"name": "engcmp-sandbox-"})
    others = [one for one in found if _of_a_living_other(one.labels.get("ENGCMP_OWNER", ""))]
    root = client.info()["DockerRootDir"]
    client.close()
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line for line in lines if f" {root}/containers/" in line and not any(one.id in line for one in others)]
    return [one.name for one in found if one not in others], mounts


def _of_a_living_other(label: str) -> bool:
    """Whether a container belongs to a process that lives and is neither this one nor started by it."""
    parts = label.split()
    if len(parts) != 4 or is_dead(label, running=True):
        return False
    pid = int(parts[2])
    while pid > 1 and pid != os.getpid():
        status = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        pid = int(status[1]) if len(status) > 1 else 0
    return pid != os.getpid()


@pytest.fixture
def marked(sandbox: LocalSandbox) -> Iterator[Marked]:
    mark = Marked(sandbox.name)
    yield mark
    assert mark.wait_until_nothing_is_left() == {}
