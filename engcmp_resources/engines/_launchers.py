"""What the kinds that start an engine through its own launcher have in common: environment, key, watch, ready, leases, the end.

A launcher starts a container of its own making, which carries none of our labels: see `_leases` for what ends it after a kill.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.containers import (
    Container,
    ContainerState,
    DockerHost,
    Image,
    LogFollower,
    tail_of,
)
from engcmp_resources.disk import disk_errors
from engcmp_resources.engines._api import ApiClient, BrokenOff, Late
from engcmp_resources.engines._child import check_file
from engcmp_resources.engines._launcher_source import (
    apply_patch,
    end_group,
    fetch_launcher,
    unpack_launcher,
)
from engcmp_resources.engines._leases import KEY_FOLDER, remove_lease, write_lease
from engcmp_resources.engines._serving import is_loading
from engcmp_resources.engines.servers import Capabilities, LaunchPlace, ServerSpec
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret
from engcmp_resources.start_failures import kind_of, remedy_for

__all__ = [
    "LOOPBACK", "Launch", "Launched", "config_text", "fetch_launcher", "first_token", "free_port", "key_file",
    "launcher_environment", "local_image", "named", "new_key", "prepare", "proved", "started",
]  # fmt: skip
LOOPBACK = "127.0.0.1"
_NEVER = "0001-"  # how Docker writes the time of what has not been yet
_POLL_S = 0.1
_DEATH_WAIT_S = 3.0
_VALUE = re.compile(r"[A-Za-z0-9._:/@,+=~{}-]+")
_CONFIG_KEY = re.compile(r"[A-Z_0-9]+")
# What a launcher needs to find docker, its images, checkpoints and caches. No token or key of the user.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "HF_HOME", "HF_HUB_CACHE",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One launch through a launcher: its unpacked files in `folder`, the container's `name`, the `key` that is hidden everywhere."""

    spec: ServerSpec
    place: LaunchPlace
    folder: Path
    name: str
    image: Image
    url: str
    key: str | None
    ready_line: str

    def hidden(self, text: str) -> str:
        """`text` without the key and without the paths of this launch."""
        shown = text.replace(self.key, hidden_secret(self.key)) if self.key else text
        return shown.replace(str(self.folder), "{launcher}").replace(str(self.place.scratch), "{scratch}")

    def error(self, what: str, remedy: str | None = None) -> EngcmpError:
        """An error of this launch, with what is known to cause it and the last 40 lines of the log."""
        tail = tail_of(self.place.log)
        lines = "".join(f"\n    {line}" for line in tail.splitlines())
        last = f". The last lines of its log:{lines}" if lines else ""
        return kind_of(what)(
            f"{self.place.label}: {what}",
            where=f"log {self.place.log}",
            remedy=(remedy or remedy_for(f"{what}\n{tail}")) + last,
        )


def config_text(values: Mapping[str, str | int]) -> str:
    """A launcher's config file, sorted lines `KEY=VALUE`, that all of its parsers read alike.

    Raises EngcmpError for a key other than `[A-Z_0-9]+` and a value that is empty or has quotes, spaces or comment signs.
    """
    lines = []
    for key, value in sorted(values.items()):
        if _CONFIG_KEY.fullmatch(key) is None or isinstance(value, bool) or _VALUE.fullmatch(str(value)) is None:
            raise EngcmpError(
                f"config of the launcher: {key!r} = {value!r}",
                remedy="write KEY = VALUE with capital letters, digits and _ in the key; no quotes, spaces or # in the value; on or off, "
                "not true or false; leave out a key that has no value",
            )
        lines.append(f"{key}={value}\n")
    return "".join(lines)


def launcher_environment(place: LaunchPlace, more: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a launcher: an allow-list of this process's own, the labels, and `more`."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if place.hub is not None:
        passed.pop("HF_HUB_CACHE", None)
        passed["HF_HOME"] = str(place.hub)
    return passed | dict(place.labels) | dict(more)


def prepare(spec: ServerSpec, place: LaunchPlace, patch: str | None, patch_sha256: str | None) -> Path:
    """Unpack the launcher's files of `place.files["launcher"]` and patch them; the folder. Raises EngcmpError as its parts do."""
    tar, commit = place.files.get("launcher"), spec.identities.get("commit")
    if tar is None or commit is None:
        raise EngcmpError(
            f"{place.label}: the launch has no {'file launcher' if tar is None else 'commit of its launcher'}",
            remedy="name the launcher's repository and commit as a source in the protocol",
        )
    folder = place.scratch / "launcher"
    if "launcher" in spec.identities:
        check_file(place.label, "launcher", tar, spec.identities["launcher"])
    with named(place):
        unpack_launcher(tar, commit, folder)
        if patch is not None:
            path = Path(patch).expanduser()
            path = path if path.is_absolute() or place.study is None else place.study / path
            apply_patch(folder, path, patch_sha256 or "")
    return folder


@contextmanager
def named(place: LaunchPlace) -> Generator[None, None, None]:
    """Errors of what serves a launch, told of this launch."""
    try:
        yield
    except EngcmpError as error:
        raise EngcmpError(f"{place.label}: {error.what}", where=error.where, remedy=error.remedy) from error


def local_image(host: DockerHost, spec: ServerSpec, place: LaunchPlace) -> Image:
    """The image of the launch, by its digest. Raises EngcmpError where it is not here."""
    wanted = spec.identities.get("image")
    if wanted is None:
        raise EngcmpError(
            f"{place.label}: the launch names no image", remedy="name a source with an image in the protocol"
        )
    with named(place):
        return host.require_image(wanted)


@contextmanager
def key_file(place: LaunchPlace, key: str) -> Generator[Path, None, None]:
    """The file of the API key: in a folder of its own that only this user can enter, and gone when the launch ends."""
    folder = place.scratch / KEY_FOLDER
    path = folder / "api-key"
    mask = os.umask(0o077)
    try:
        with disk_errors(folder):
            folder.mkdir(mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    finally:
        os.umask(mask)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(key)
        yield path
    finally:
        for left in [*folder.iterdir()]:  # the launcher puts a file of its own beside it
            left.unlink(missing_ok=True)
        folder.rmdir()


def new_key() -> str:
    """A key of printable characters without spaces."""
    return secrets.token_urlsafe(32)


def free_port(wanted: int | None, place: LaunchPlace) -> int:
    """A free port of 127.0.0.1, or `wanted`. Raises EngcmpError where that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted or 0))
        except OSError as error:
            raise EngcmpError(
                f"{place.label}: port {wanted} of {LOOPBACK} is taken",
                remedy="end what listens there, or name another, or none",
            ) from error
        return int(probe.getsockname()[1])


class Launched:
    """The container that a launcher started, and its log; see `_serving.Watch`."""

    def __init__(self, launch: Launch, container: Container) -> None:
        self._launch, self.container = launch, container
        self.ready_line_at: float | None = None
        self.started_as = container.state()
        hidden = [launch.key] if launch.key else []
        self._follower: LogFollower = container.follow(launch.place.log, hidden=hidden, on_line=self._see)

    def _see(self, line: str) -> None:
        if self.ready_line_at is None and re.search(self._launch.ready_line, line):
            self.ready_line_at = time.monotonic()

    def finish(self) -> None:
        """Wait for the rest of the log, after the container's end."""
        self._follower.finish()

    def refuse_changed(self) -> None:
        state = self._state()
        before, now = self.started_as.identity(), state.identity()
        if changed := [f"{name} was {before[name]}, is {now[name]}" for name in before if before[name] != now[name]]:
            raise self._launch.error(
                f"the container was restarted: {'; '.join(changed)}; what was captured of this window is void",
                "find out why it ended, and run again: its launcher restarts it silently",
            )
        if not state.running:
            raise self._launch.error(f"the container {state.ending()}")

    def explained(self, error: EngcmpError, doing: str) -> EngcmpError:
        until = time.monotonic() + (0.0 if isinstance(error, Late) else _DEATH_WAIT_S)
        state = self._state()
        while state.running and state.identity() == self.started_as.identity() and time.monotonic() < until:
            time.sleep(_POLL_S)  # a connection breaks a moment before its container has ended
            state = self._state()
        if not state.running or state.identity() != self.started_as.identity():
            ending = "was restarted" if state.running else state.ending()
            return self._launch.error(f"the container {ending} while {doing}: {error.what}")
        if not isinstance(error, Late):
            return self._launch.error(f"the container still runs after {doing} failed: {error.what}")
        self.container.remove()  # it answers no more: nothing may wait for it, and its memory is given back
        return self._launch.error(
            f"no answer in time while {doing}; it still ran: it was stuck and has been removed",
            "run again; if it is only slow, raise the deadline",
        )

    def log_tail(self) -> str:
        return tail_of(self._launch.place.log)

    def _state(self) -> ContainerState:
        try:
            return self.container.state()
        except EngcmpError as error:
            raise self._launch.error(f"the container is gone: {error.what}", "run again") from error


@contextmanager
def started(
    host: DockerHost, launch: Launch, command: Sequence[str], environment: Mapping[str, str], *, until: float,
    stop: Callable[[], None] | None = None,
) -> Generator[Launched, None, None]:  # fmt: skip
    """Run the launcher until it has ended well and its container has said that it is ready; on leaving, nothing of it is left.

    `stop` is called before the container is removed. Raises EngcmpError for a name that is in use, a launcher that fails or takes too
    long, a container that ends, and one of another image than was named.
    """
    if host.find(launch.name) is not None:
        raise EngcmpError(
            f"{launch.place.label}: there is a container {launch.name} already",
            remedy="it is another launch's: wait for its end, or remove it (docker rm -f), or name another instance",
        )
    write_lease(launch.place.scratch, launch.name, launch.place.labels)
    launched: Launched | None = None
    output = launch.place.scratch / "launcher-output.txt"
    launch.place.log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                list(command), cwd=launch.folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            launched = _wait(host, launch, process, until, output)
        finally:
            end_group(process)
        if launched.container.image() != launch.image.id:
            raise launch.error(
                f"the launcher started image {launched.container.image()}, the launch names {launch.image.id}",
                "let the launcher start the image of the protocol",
            )
        yield launched
    finally:
        with ExitStack() as stack:
            stack.callback(remove_lease, launch.place.scratch)
            stack.callback(_end, host, launch.name, launched)
            if stop is not None and host.find(launch.name) is not None:
                stop()


def _wait(host: DockerHost, launch: Launch, process: subprocess.Popen[bytes], until: float, output: Path) -> Launched:
    launched: Launched | None = None
    said, missing = 0, "its launcher has started no container"
    while time.monotonic() <= until:
        code = process.poll()
        said = _copy_output(launch, output, said)
        if code not in (None, 0):
            raise launch.error(f"the launcher ended with exit code {code}")
        if launched is None and (container := host.find(launch.name)) is not None and _has_started(container):
            launched = Launched(launch, container)
        if launched is not None:
            state = launched.container.state()
            if not state.running or state.identity() != launched.started_as.identity():
                if not state.running:
                    launched.finish()
                raise launch.error(f"the container {state.ending()} before it was ready")
            if launched.ready_line_at is not None and code == 0:
                return launched
            missing = "its launcher has not ended" if code is None else f"no line {launch.ready_line!r} in its log"
        elif code == 0:
            raise launch.error(f"the launcher ended, and there is no container {launch.name}")
        time.sleep(_POLL_S)
    raise launch.error(f"not ready within its deadline: {missing}")


def _has_started(container: Container) -> bool:
    """Whether it ever ran: `docker run` creates a container a moment before it starts it."""
    try:
        return not container.state().started_at.startswith(_NEVER)
    except EngcmpError:  # one of that name that has just been removed
        return False


def first_token(launch: Launch, launched: Launched, client: ApiClient, until: float) -> float:
    """Wait for the first token; its time by the monotonic clock. Raises EngcmpError where none comes before `until`."""
    missing = "no request was answered"
    while time.monotonic() <= until:
        launched.refuse_changed()
        try:
            client.first_token(until)
        except Late as error:
            missing = error.what
            break
        except EngcmpError as error:
            if not is_loading(error):
                raise
            missing = error.what
        else:
            return time.monotonic()
        time.sleep(_POLL_S)
    raise launch.error(f"it says that it is ready, but gives no token: {missing}")


def proved(launched: Launched, client: ApiClient, until: float) -> tuple[Capabilities, dict[str, Any]]:
    """What the client proves; an engine that dies or is stuck meanwhile is told as that."""
    try:
        return client.prove(until)
    except (Late, BrokenOff) as error:
        raise launched.explained(error, "proving what the server can do") from error


def _end(host: DockerHost, name: str, launched: Launched | None) -> None:
    container = host.find(name)
    if container is not None:
        container.remove()
    if launched is not None:
        launched.finish()


def _copy_output(launch: Launch, output: Path, already: int) -> int:
    """Copy what the launcher has printed since to the log; how many bytes that makes in all."""
    with output.open("rb") as file:
        file.seek(already)
        new = file.read()
    if new:
        with launch.place.log.open("ab") as log:
            log.write(launch.hidden(new.decode(errors="replace")).encode())
    return already + len(new)
