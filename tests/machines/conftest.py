"""Fixtures of the tests on several machines: a real S3 server, and the tiny study measured with it.

They are a target of their own, `make test-machines`: their packages are extras, and Postgres and Redis are the system's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from ports import free_port
from tiny import TINY, TinyStudy, write_protocol

from engcmp_resources.object_store import ObjectStore

collect_ignore_glob = [] if os.environ.get("ENGCMP_TEST_MACHINES") else ["test_*.py"]
BUCKET, SECRET = "engcmp-results", "planted-secret-of-the-object-store"


@dataclass
class S3Server:
    """The S3 server of moto in a process of its own: what it holds is in its memory."""

    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "ENGCMP_OBJECT_STORE": f"s3://{BUCKET}/shared", "ENGCMP_OBJECT_STORE_ENDPOINT": self.url,
            "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": SECRET,
        }  # fmt: skip

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while True:
            try:
                httpx.put(f"{self.url}/{BUCKET}", timeout=5)
                return
            except httpx.TransportError:
                assert time.monotonic() < until and self.process.poll() is None, "the S3 server did not start"
                time.sleep(0.1)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def objects(self) -> ObjectStore:
        keys = {name: value for name, value in self.variables.items() if name.startswith("AWS_")}
        return ObjectStore(BUCKET, "shared", keys=keys, endpoint=self.url)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.signal(signal.SIGCONT)
    server.stop()


def tiny_study(root: Path) -> TinyStudy:
    """The tiny study, frozen, beside the weights and library of the tests' kept home; without one they are fetched."""
    kept = os.environ.get("ENGCMP_TEST_HOME")
    write_protocol(root)
    if kept and (Path(kept) / "store").is_dir():
        shutil.copytree(Path(kept) / "store", root / "home" / "store", copy_function=os.link)
    tiny = TinyStudy(root)
    succeeded(tiny.run("freeze", TINY, **with_index()))
    return tiny


def with_index() -> dict[str, str]:
    """The tiny study's commands ask no package index; these let them, as far as whoever runs the tests does."""
    return {"PIP_NO_INDEX": os.environ.get("PIP_NO_INDEX", "0"), "PIP_FIND_LINKS": ""}


def succeeded(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done


@pytest.fixture(scope="session")
def measured_with_s3(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> TinyStudy:
    """The tiny study, measured by the command, which put everything into the object store."""
    tiny = tiny_study(tmp_path_factory.mktemp("machines") / "first")
    succeeded(tiny.run("run", TINY, **s3.variables, **with_index()))
    return tiny


@dataclass(frozen=True)
class Machine:
    """Another machine: the same checkout and studies, an empty home, and the object store."""

    tiny: TinyStudy
    home: Path
    variables: Mapping[str, str]

    def run(self, *arguments: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return self.tiny.run(*arguments, **(dict(self.variables) | {"ENGCMP_HOME": str(self.home)} | changed))


@pytest.fixture
def fresh(s3: S3Server, measured_with_s3: TinyStudy, tmp_path: Path) -> Machine:
    return Machine(measured_with_s3, tmp_path / "home", s3.variables)
