"""Where a run of two arms is killed: engines that are child processes, servers that run already, and containers. No tests."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from cut import engines
from docker.errors import APIError, NotFound
from served_pair import NAMES, OURS, RIVAL, Servers, served_pair
from server_study import LIGHT_ARMS, server_study
from tiny import BASE_ARM, TINY, TinyStudy, make_tiny

from engcmp_assets.kernel.tables import read_parquet
from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost
from engcmp_resources.engines._leases import LEASE
from tests.simulator.running import Simulator

JOB = "smollm2_tiny_arm"
MADE = ("engine_launch", "captured_rows", "scores", "tails", "summaries")


@dataclass
class Place:
    """The tiny study of two arms, frozen. Its engines are child processes of a run (Linux)."""

    tiny: TinyStudy
    arms: tuple[str, str]

    def running(self) -> list[Any]:
        """The engines that there are now."""
        return list(engines())

    def kill_one(self) -> bool:
        """SIGKILL to an engine; whether there was one."""
        for pid in engines():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def ours_left(self) -> list[Any]:
        """Engines of ours that are there now: none may outlive its run."""
        return self.running()

    def revive(self) -> None:
        """What is nobody's child here is started again by who runs it."""

    def receipt(self, artifact: str, arm: str) -> dict[str, Any]:
        head = json.loads((self.folder(arm) / f"{artifact}.json").read_bytes())
        found: dict[str, Any] = json.loads(
            (self.tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes()
        )
        return found

    def folder(self, arm: str) -> Path:
        return self.tiny.home / "heads" / TINY / arm.replace("/", "~")

    def is_done(self, arm: str) -> bool:
        return (self.folder(arm) / "summaries.json").exists()

    def made(self, arm: str) -> list[str]:
        """The artifacts of an arm from its launch on."""
        names = (
            path.relative_to(self.folder(arm)).with_suffix("").as_posix() for path in self.folder(arm).rglob("*.json")
        )
        return [name for name in names if name.startswith(MADE)]

    def rows(self, arm: str) -> dict[str, str]:
        """Hash of each captured row file."""
        return {
            f"{name}/{output['name']}": output["sha256"]
            for name in self.made(arm)
            if name.startswith("captured_rows/")
            for output in self.receipt(name, arm)["outputs"]
            if output["name"].startswith("rows/")
        }

    def figures(self, arm: str) -> list[Any]:
        return [figure["value"] for figure in self.receipt("summaries", arm)["figures"]]

    def captured(self, arm: str) -> set[tuple[int, str, int]]:
        """Launch, window and start of everything that is captured of an arm."""
        found: set[tuple[int, str, int]] = set()
        for name in (name for name in self.made(arm) if name.startswith("captured_rows/")):
            (output,) = (one for one in self.receipt(name, arm)["outputs"] if one["name"] == "capture.parquet")
            table = read_parquet(
                self.tiny.home / "store" / output["sha256"][:2] / f"{output['sha256']}.{output['suffix']}"
            )
            found |= set(zip(*(table[key].tolist() for key in ("launch", "window_id", "start")), strict=True))
        return found


@dataclass
class Served(Place):
    """Its engines are simulators that run already: a kill ends a server, and whoever runs it starts it again."""

    servers: Servers | None = None
    up: dict[str, Simulator] = field(default_factory=dict)

    def running(self) -> list[Any]:
        return [one for one in self.up.values() if one.ended is None]

    def kill_one(self) -> bool:
        """The server that is being asked: the one of the arm that lacks its rows."""
        for name, arm in zip(NAMES, self.arms, strict=True):
            if not self.is_done(arm) and self.up[name].ended is None:
                self.up[name].process.kill()
                self.up[name].process.wait(10)
                return True
        return False

    def ours_left(self) -> list[Any]:
        return list(engines())

    def revive(self) -> None:
        assert self.servers is not None
        for name in NAMES:
            if name not in self.up or self.up[name].ended is not None:
                self.up[name] = self.servers.start(name, timing={"prefill_ms_per_token": 8.0})


@dataclass
class Contained(Place):
    """Its engines are containers, which launchers start: the leases in the home name them."""

    seen: set[str] = field(default_factory=set)

    def running(self) -> list[Any]:
        found = []
        for lease in (self.tiny.home / "scratch").rglob(LEASE):
            with suppress(OSError, ValueError):
                name = str(json.loads(lease.read_text(encoding="utf-8"))["name"])
                self.seen.add(name)
                with suppress(NotFound):
                    container = docker.from_env().containers.get(name)
                    if container.status == "running":
                        found.append(container)
        return found

    def kill_one(self) -> bool:
        for container in self.running():
            with suppress(NotFound, APIError):
                container.kill("SIGKILL")
                return True
        return False

    def ours_left(self) -> list[Any]:
        self.running()
        present = {one.name for one in docker.from_env().containers.list(all=True, ignore_removed=True)}
        return sorted(self.seen & present)


@contextmanager
def child_place(root: Path, measured_home: Path) -> Iterator[Place]:
    """Real llama.cpp at two precisions."""
    tiny, other = make_tiny(root / "study", measured_home), "q8_0/llamacpp@b11549"
    path = tiny.folder / "protocol.toml"
    text, arm = path.read_text(encoding="utf-8"), f'[[arms]]\narm = "{BASE_ARM}"\n'
    assert text.count(arm) == 1
    path.write_text(text.replace(arm, f'{arm}[[arms]]\narm = "{other}"\n'), encoding="utf-8")
    done = tiny.run("freeze", TINY)
    assert done.returncode == 0, done.stderr
    yield Place(tiny, (BASE_ARM, other))


@contextmanager
def served_place(root: Path, measured_home: Path) -> Iterator[Served]:
    servers = served_pair(root, measured_home, 2)
    place = Served(servers.tiny, (OURS, RIVAL), servers)
    try:
        place.revive()
        yield place
    finally:
        servers.stop()


@contextmanager
def contained_place(root: Path, measured_home: Path) -> Iterator[Contained]:
    host = DockerHost()
    host_image.ensure(host)
    host.close()
    first, second = LIGHT_ARMS
    yield Contained(server_study(root, measured_home, light=True), (first, second))
