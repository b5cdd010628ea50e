"""What tests of launcher kinds share: a git repository of a stand-in launcher, and launches of it. No tests."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost
from engcmp_resources.engines._launcher_source import fetch_launcher
from engcmp_resources.engines._leases import LEASE
from engcmp_resources.engines.servers import LaunchPlace, Mode, RunningServer, ServerSpec, start_server
from tests.simulator.container import mounts
from tests.simulator.running import CHECKOUT, script_of

LAUNCHERS = Path(__file__).resolve().parent
ARM, VOCAB, MODEL = "k4/engine@v3.0.1", 512, "sim/model"
TAG = "v3.0.1"


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    ]
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder: Path, files: Mapping[str, str], of: Path | None = None) -> str:
    """A repository in `folder` with the files of `of` and these, all in one tagged commit, which is returned."""
    if of is None:
        folder.mkdir()
    else:
        shutil.copytree(of, folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=all")
    git(folder, "tag", TAG)
    return git(folder, "rev-parse", f"{TAG}^{{commit}}")


class Launcher:
    """Launches of one stand-in with the simulator in its container; a test changes settings, identities and faults."""

    def __init__(self, kind: str, dialect: str, stand_in: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.kind, self.folder, self.settings = kind, folder, dict(settings)
        self.scratch, self.log, self.lock = folder / "scratch", folder / "engine.log", folder / "engine.lock"
        self.faults = folder / "script.json"
        self.script()
        volumes = [f"-v={source}:{how['bind']}:{how['mode']}" for source, how in mounts().items()]
        inside = [
            "-e=OPENBLAS_NUM_THREADS=1",
            "-e=PYTHONDONTWRITEBYTECODE=1",
            f"-w={CHECKOUT}",
            f"-v={self.faults}:{self.faults}:ro",
        ]
        command = [sys.executable, "-m", "tests.simulator", "--dialect", dialect, "--vocab", str(VOCAB)]
        words = {"SIM_DOCKER_ARGUMENTS": [*volumes, *inside], "SIM_COMMAND": [*command, "--script", str(self.faults)]}
        text = "".join(f"{name}={shlex.quote(shlex.join(values))}\n" for name, values in words.items())
        self.repository = folder / "repository"
        self.commit = repository(self.repository, {"simulator.env": text}, LAUNCHERS / stand_in)
        self.tar = fetch_launcher(f"file://{self.repository}", self.commit, folder)
        self.said: list[str] = []

    def script(self, *faults: Any, **timing: float) -> None:
        """The simulator's faults from its start."""
        self.faults.write_text(json.dumps(script_of(faults, timing)))

    def __call__(
        self, *, mode: Mode = "scoring", identities: Mapping[str, str] | None = None, start_deadline_s: float = 60,
        request_deadline_s: float = 20, **settings: Any,
    ) -> AbstractContextManager[RunningServer]:  # fmt: skip
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        found = {"image": host_image.IMAGE_ID, "commit": self.commit} | dict(identities or {})
        spec = ServerSpec(self.kind, "engine", TAG, found, VOCAB, self.settings | settings)
        labels = {"ENGCMP_ARM": ARM, "ENGCMP_LOCK": str(self.lock), "ENGCMP_RUN": "run-1"}
        place = LaunchPlace(
            self.scratch, self.log, labels, {"launcher": self.tar}, study=self.folder, say=self.said.append
        )
        return start_server(
            spec, place, mode=mode, start_deadline_s=start_deadline_s, request_deadline_s=request_deadline_s
        )

    def assert_nothing_is_left(self, name: str) -> None:
        """No container, no key, no lease, no dump."""
        host = DockerHost()
        assert host.find(name) is None
        host.close()
        assert not list(self.folder.rglob("api-key*"))
        assert not list(self.folder.rglob(LEASE))
        assert not list(self.scratch.glob("dumps/*"))


def docker(*arguments: str) -> str:
    command = ["docker", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def tokens(count: int) -> list[int]:
    return [10 + (7 * index) % 490 for index in range(count)]


def words_in(text: str, words: Sequence[str]) -> list[str]:
    """Which of these stand in the text."""
    return [word for word in words if word and word in text]
