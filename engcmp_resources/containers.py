"""Docker as this project uses it: local images by digest, and containers that carry our labels and do not outlive their run.

Nothing is pulled here: an image that is missing is an error that says how to get it. No shell is used: commands are lists.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from engcmp_resources.container_owners import is_dead, owner
from engcmp_resources.errors import EngcmpError
from engcmp_resources.locks import names_one_of
from engcmp_resources.secrecy import hidden_secret
from engcmp_resources.start_failures import remedy_for, why_no_docker

_SOCKET = Path("/var/run/docker.sock")
_CALL_TIMEOUT_S = 60
_GONE_WAIT_S = 30.0
_POLL_S = 0.1
_JOIN_S = 5.0
_LINE_BYTES = 1 << 16
_TAIL_BYTES = 1 << 16
_OWNER = "ENGCMP_OWNER"
_SIGILL_CODE = 128 + signal.SIGILL
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FAILURES = (DockerException, OSError)  # the second is what the library's HTTP raises


@dataclass(frozen=True, slots=True)
class Image:
    """A local image. `digest` is the one that was asked for: the image's own ID, or one of a registry's manifest."""

    id: str
    digest: str
    labels: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """For a launch's receipt."""
        return {"id": self.id, "digest": self.digest, "labels": dict(self.labels)}


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine, seen in the container at `target`."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What a container is to be. `image` is an image's ID; `labels` mark it as ours.

    `publish` maps ports of the container to ports of 127.0.0.1 (None: Docker takes a free one); with `network` "host" the command itself
    must bind 127.0.0.1. `gpus` are indices, or "all". `ulimits` are in the units of `ulimit`, -1 for none.
    """

    image: str
    command: Sequence[str]
    labels: Mapping[str, str]
    entrypoint: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    network: str = "bridge"
    publish: Mapping[int, int | None] = field(default_factory=dict)
    shm_bytes: int | None = None
    ipc: str | None = None
    ulimits: Mapping[str, int] = field(default_factory=dict)
    devices: Sequence[str] = ()
    gpus: Sequence[int] | str = ()
    user: str | None = None
    sealed: bool = False  # a read-only root, no capabilities, a /tmp of its own


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A container at one moment. `started_at` and `restart_count` tell whether it is the one that was started."""

    id: str
    started_at: str
    restart_count: int
    running: bool
    exit_code: int
    oom_killed: bool
    health: str | None

    def identity(self) -> dict[str, Any]:
        """What must not change while it is measured."""
        return {"id": self.id, "started_at": self.started_at, "restart_count": self.restart_count}

    def ending(self) -> str:
        """How it ended, in words."""
        if self.oom_killed:
            return f"was killed for want of memory (exit code {self.exit_code})"
        if self.exit_code == _SIGILL_CODE:
            return f"ended with exit code {self.exit_code}: this processor lacks an instruction that its program needs"
        return f"ended with exit code {self.exit_code}"


class Container:
    """A container, found or started. All methods raise EngcmpError where the Docker engine fails or the container is gone."""

    def __init__(self, found: Any) -> None:
        self._found = found

    @property
    def name(self) -> str:
        """Its name in the Docker engine."""
        return str(self._found.name)

    def state(self) -> ContainerState:
        """What the Docker engine says of it now."""
        facts = self._inspect()
        state = facts["State"]
        return ContainerState(
            id=facts["Id"],
            started_at=state["StartedAt"],
            restart_count=facts["RestartCount"],
            running=state["Running"] and not state.get("Restarting", False) and not state.get("Paused", False),
            exit_code=state["ExitCode"],
            oom_killed=state["OOMKilled"],
            health=(state.get("Health") or {}).get("Status"),
        )

    def image(self) -> str:
        """The ID of the image that it runs."""
        return str(self._inspect()["Image"])

    def environment(self) -> dict[str, str]:
        """The variables that its program sees: those of the image and those of the request."""
        pairs = (pair.partition("=") for pair in self._inspect()["Config"]["Env"] or [])
        return {name: value for name, _, value in pairs}

    def published(self, port: int) -> int | None:
        """The port of this machine that leads to the container's `port`, None where none does."""
        bound = (self._inspect()["NetworkSettings"]["Ports"] or {}).get(f"{port}/tcp")
        return int(bound[0]["HostPort"]) if bound else None

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that it printed, as the Docker engine keeps them: secrets in them are not replaced."""
        with _engine_errors(f"reading the log of container {self.name}"):
            return str(self._found.logs(tail=lines).decode(errors="replace"))

    def follow(self, log: Path, *, hidden: Sequence[str], on_line: Callable[[str], None]) -> LogFollower:
        """Copy all that it prints to `log` until it ends; see LogFollower."""
        return LogFollower(self._found, log, hidden, on_line)

    def remove(self) -> None:
        """End it and remove it with its own volumes, whatever interrupts; returns when it is gone. One that is gone is no error."""
        surely(self._remove)

    def _remove(self) -> None:
        with _engine_errors(f"removing container {self.name}"):
            _remove(self._found)

    def _inspect(self) -> dict[str, Any]:
        with _engine_errors(f"looking at container {self.name}"):
            self._found.reload()
        facts: dict[str, Any] = self._found.attrs
        return facts


class LogFollower:
    """A thread that copies a container's output to a file, line by line, with `hidden` words replaced by their hash."""

    def __init__(self, found: Any, log: Path, hidden: Sequence[str], on_line: Callable[[str], None]) -> None:
        self._found, self._log, self._on_line = found, log, on_line
        self._hidden = {word.encode(): hidden_secret(word).encode() for word in hidden if word}
        log.parent.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._follow, name="container log", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all that was printed is written; call it after the container's end."""
        self._thread.join(_JOIN_S)

    def _follow(self) -> None:
        rest = b""
        with self._log.open("ab", buffering=0) as file:
            try:
                for block in self._found.logs(stream=True, follow=True):
                    *lines, rest = (rest + block).split(b"\n")
                    if len(rest) > _LINE_BYTES:  # a line without an end must not fill memory
                        lines, rest = [*lines, rest], b""
                    for line in lines:
                        self._write(file, line)
            except _FAILURES as error:
                rest += f"\nengcmp: the log could not be followed further: {error}".encode()
            if rest:
                self._write(file, rest)

    def _write(self, file: Any, line: bytes) -> None:
        for word, shown in self._hidden.items():
            line = line.replace(word, shown)
        file.write(line + b"\n")
        self._on_line(line.decode(errors="replace"))


class DockerHost:
    """The Docker engine that DOCKER_HOST names, else the system's. Raises EngcmpError where none answers."""

    def __init__(self) -> None:
        try:
            self._client = docker.from_env(timeout=_CALL_TIMEOUT_S)
            self._client.ping()
        except _FAILURES as error:
            what, remedy = why_no_docker(str(error))
            where = os.environ.get("DOCKER_HOST") or str(_SOCKET)
            raise EngcmpError(f"no Docker engine answers: {what}", where=where, remedy=remedy) from error

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def is_rootless(self) -> bool:
        """Whether it runs without root: then root in a container is this user, and no other user of it is."""
        with _engine_errors("asking how the Docker engine runs"):
            return any("rootless" in option for option in self._client.info().get("SecurityOptions") or [])

    def require_image(self, wanted: str) -> Image:
        """The local image `[NAME@]sha256:DIGEST`, found by its own ID or by the digest that a registry gave it. Never pulls.

        Raises EngcmpError for a name without digest, an image that is not there, and a name that stands for another image here.
        """
        name, _, digest = wanted.rpartition("@")
        if not _DIGEST.fullmatch(digest):
            raise EngcmpError(
                f"image {wanted!r} is not named by a digest", remedy="write [NAME@]sha256:DIGEST (64 digits)"
            )
        with _engine_errors(f"looking for image {wanted}"):
            for found in self._candidates(name, digest):
                if digest == found.id or digest in _digests(found):
                    return Image(found.id, digest, dict(found.labels))
            other = self._named(name) if name else None
        if other is not None:
            shown = ", ".join([other.id, *_digests(other)])
            raise EngcmpError(
                f"image {name} is here as {shown}, the launch names {digest}",
                remedy=f"get that one (docker pull {wanted}), or correct the digest in the protocol",
            )
        raise EngcmpError(
            f"image {wanted} is not present", remedy=f"get it first: docker pull {wanted if name else 'NAME@' + digest}"
        )

    def load_image(self, tar: bytes) -> None:
        """Load an image from a tar as `docker save` writes it."""
        with _engine_errors("loading an image"):
            self._client.images.load(tar)

    @contextmanager
    def running(self, request: ContainerRequest) -> Generator[Container, None, None]:
        """A started container; it is removed on leaving the context, also by an exception or Ctrl-C."""
        name = f"engcmp-{secrets.token_hex(8)}"  # chosen here, so that one whose creation was interrupted is found
        try:
            with _engine_errors(f"creating a container of image {request.image}"):
                made = self._client.containers.create(**self._arguments(request, name))
            with _engine_errors("starting the container"):
                made.start()
            yield Container(made)
        finally:
            surely(lambda: self._remove_named(name))

    def _remove_named(self, name: str) -> None:
        left = self.find(name)
        if left is not None:
            left.remove()

    def find(self, name: str) -> Container | None:
        """The container of this name or ID, None where there is none."""
        with _engine_errors(f"looking for container {name}"):
            try:
                return Container(self._client.containers.get(name))
            except NotFound:
                return None

    def remove_orphans(self, *locks: Path) -> list[str]:
        """Remove the containers of dead runs; a sentence for each. Call it with `locks` just taken.

        These are the ones labelled with one of the locks, which only its holder may have, and those whose owner's process is dead.
        """
        with _engine_errors("looking for containers of dead runs"):
            ours = self._client.containers.list(all=True, ignore_removed=True, filters={"label": "ENGCMP_RUN"})
        sentences = []
        for found in ours:
            labels = found.labels
            dead = is_dead(labels.get(_OWNER, ""), running=found.status == "running")
            if dead or names_one_of(labels.get("ENGCMP_LOCK", ""), locks):
                Container(found).remove()
                arm, run = labels.get("ENGCMP_ARM", "unknown"), labels["ENGCMP_RUN"]
                sentences.append(f"removed a container left by a dead run: {found.name} of arm {arm}, run {run}")
        return sentences

    def _candidates(self, name: str, digest: str) -> list[Any]:
        """Images that may be the wanted one: a registry's digest is only found with its name, or by looking at all."""
        found = [self._named(reference) for reference in (digest, f"{_untagged(name)}@{digest}" if name else "")]
        return [image for image in found if image is not None] + ([] if name else self._client.images.list())

    def _named(self, reference: str) -> Any:
        try:
            return self._client.images.get(reference) if reference else None
        except (ImageNotFound, NotFound):
            return None

    def _arguments(self, request: ContainerRequest, name: str) -> dict[str, Any]:
        host = request.network == "host"
        gpus = request.gpus
        asked = {"count": -1} if gpus == "all" else {"device_ids": [str(index) for index in gpus]}
        ulimits = [docker.types.Ulimit(name=kind, soft=most, hard=most) for kind, most in request.ulimits.items()]
        arguments: dict[str, Any] = {
            "image": request.image,
            "name": name,
            "entrypoint": None if request.entrypoint is None else list(request.entrypoint),
            "command": list(request.command),
            "environment": dict(request.environment),
            "labels": dict(request.labels) | {_OWNER: owner()},
            "mounts": [docker.types.Mount(m.target, str(m.source), "bind", m.read_only) for m in request.mounts],
            "network_mode": request.network,
            "ports": {} if host else {f"{inner}/tcp": ("127.0.0.1", outer) for inner, outer in request.publish.items()},
            "shm_size": request.shm_bytes,
            "ipc_mode": request.ipc,
            "ulimits": ulimits or None,
            "devices": list(request.devices) or None,
            "device_requests": [docker.types.DeviceRequest(capabilities=[["gpu"]], **asked)] if gpus else None,
            "restart_policy": {"Name": "no"},
            "use_config_proxy": False,  # the environment is what the request says, without the user's proxy
            "user": request.user,
        }
        if request.sealed:
            arguments |= {
                "read_only": True,
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "tmpfs": {"/tmp": ""},  # noqa: S108 - inside the container
            }
        return {key: value for key, value in arguments.items() if value is not None}


def remove_orphans(*locks: Path) -> list[str]:
    """As `DockerHost.remove_orphans`, at the start of a session and in a clean-up. Without a Docker engine nothing is left of it."""
    if "DOCKER_HOST" not in os.environ and not _SOCKET.exists():
        return []
    try:
        host = DockerHost()
    except EngcmpError:  # whoever needs one is told so at the launch
        return []
    try:
        return host.remove_orphans(*locks)
    finally:
        host.close()


def surely(action: Callable[[], None]) -> None:
    """Do `action`, which may be done twice, to its end: Ctrl-C begins it again, and is raised when it is done."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            action()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def tail_of(log: Path, lines: int = 40) -> str:
    """The last lines of a log file, empty where there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def _digests(found: Any) -> list[str]:
    return [entry.rpartition("@")[2] for entry in found.attrs.get("RepoDigests") or []]


def _untagged(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def _remove(found: Any) -> None:
    until = time.monotonic() + _GONE_WAIT_S
    while True:
        try:
            found.remove(force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != 409:  # noqa: PLR2004 - it is being removed already
                raise
        with suppress(NotFound):
            found.reload()
            if time.monotonic() > until:
                raise DockerException(f"it is still there after {_GONE_WAIT_S:g} s")
            time.sleep(_POLL_S)
            continue
        return


@contextmanager
def _engine_errors(doing: str) -> Generator[None, None, None]:
    try:
        yield
    except NotFound as error:
        raise EngcmpError(f"{doing}: it is gone: {error.explanation or error}", remedy="run again") from error
    except _FAILURES as error:
        text = getattr(error, "explanation", None) or error
        raise EngcmpError(f"{doing}: the Docker engine says: {text}", remedy=remedy_for(str(text))) from error
