"""Engines in containers: kind `docker` for any image by digest, and `llama-server`, `vllm`, `sglang` for the upstream images.

The image must be present; its digest is in the launch's identities. The container listens on 127.0.0.1, carries the launch's labels, is
never restarted, and is removed when the launch ends; what a killed process leaves is removed at the next start (`remove_orphans`).
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engcmp_resources import host_image
from engcmp_resources.containers import (
    Container,
    ContainerRequest,
    ContainerState,
    DockerHost,
    Image,
    LogFollower,
    tail_of,
)
from engcmp_resources.engines import _container_settings as settings_of
from engcmp_resources.engines._api import ApiClient, BrokenOff, Late
from engcmp_resources.engines._child import check_file
from engcmp_resources.engines._container_launch import (
    CapturingVllmSettings,
    Launch,
    client_of,
    has_plugin,
    key_file_of,
    plain_environment,
)
from engcmp_resources.engines._container_settings import (
    ContainerSettings,
    LlamaServerSettings,
    SglangSettings,
)
from engcmp_resources.engines._llamacpp_http import logged_settings
from engcmp_resources.engines._ports import LOOPBACK, free_port, refuse_taken
from engcmp_resources.engines._serving import Served, compared_settings, is_loading
from engcmp_resources.engines._vllm_capture import capture_folder, plugin_mounts, shown_plugin_mounts, wanted_of
from engcmp_resources.engines.servers import (
    Capabilities,
    LaunchPlace,
    Mode,
    RunningServer,
    ServerSpec,
    launch_settings,
    refuse_lacking,
    register_server,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.start_failures import kind_of, remedy_for

_POLL_S = 0.1
_DEATH_WAIT_S = 2.0
_START_LINES, _CAPTURE_LINES = 40, 4
_NO_CORE_FILES = {"core": 0}  # a core file of an engine is as large as its model
# What the engine's own log says of the settings that its API does not state.
_LOGGED = {"vllm": {"batch_tokens": re.compile(r"max_num_batched_tokens[=:]\s*(\d+)")}}


class StartFailed(EngcmpError):
    """A container that ended, or did not serve, before it was ready: it may be tried again."""


class _Watched:
    """The container of a launch and its log; see `_serving.Watch`."""

    def __init__(self, launch: Launch, container: Container) -> None:
        self._launch, self.container = launch, container
        self.ready_line = threading.Event()
        self.ready_line_at = 0.0
        self.started_as, self.environment = container.state(), container.environment()
        hidden = [*launch.secrets.values(), launch.key or ""]
        self._follower: LogFollower = container.follow(launch.place.log, hidden=hidden, on_line=self._see)

    def _see(self, line: str) -> None:
        pattern = self._launch.settings.ready_line
        if pattern is not None and not self.ready_line.is_set() and re.search(pattern, line):
            self.ready_line_at = time.monotonic()
            self.ready_line.set()

    def finish(self) -> None:
        """Wait for the rest of the log, after the container's end."""
        self._follower.finish()

    def refuse_changed(self) -> None:
        state = self._state()
        if state.identity() != self.started_as.identity():
            changed = [
                f"{name} was {before}, is {state.identity()[name]}"
                for name, before in self.started_as.identity().items()
                if state.identity()[name] != before
            ]
            raise self.error(
                f"the container was restarted: {'; '.join(changed)}; what was captured of this window is void",
                "let nothing else touch the container, and run again",
            )
        if not state.running:
            raise self.error(f"the container {state.ending()}")

    def explained(self, error: EngcmpError, doing: str) -> EngcmpError:
        said = error.what.removeprefix(f"{self._launch.label}: ")
        state, until = self._state(), time.monotonic() + _DEATH_WAIT_S
        while state.running and not isinstance(error, Late) and time.monotonic() < until:
            time.sleep(_POLL_S)  # a connection breaks off a moment before the container has ended
            state = self._state()
        if state.identity() != self.started_as.identity() or not state.running:
            ending = "was restarted" if state.running else state.ending()
            return self.error(f"the container {ending} while {doing}: {said}")
        if not isinstance(error, Late):
            return self.error(f"{doing}: {said}")
        self.container.remove()  # it answers no more: nothing may wait for it, and its memory is given back
        health = f", its health status is {state.health!r}" if state.health else ""
        return self.error(
            f"no answer in time while {doing}; it still ran{health}: it was stuck and has been removed",
            "run again; if it is only slow, raise the deadline",
        )

    def _state(self) -> ContainerState:
        try:
            return self.container.state()
        except EngcmpError as error:
            raise self.error(f"the container is gone: {error.what}") from error

    def log_tail(self) -> str:
        return tail_of(self._launch.place.log)

    def error(self, what: str, remedy: str | None = None) -> EngcmpError:
        """An error of this launch, with what is known to cause it and the last words of the log."""
        return EngcmpError(
            f"{self._launch.label}: {what}",
            where=f"log {self._launch.place.log}",
            remedy=(remedy or remedy_for(self.log_tail())) + _last_lines(self._launch.place, _CAPTURE_LINES),
        )


def _not_started(place: LaunchPlace, what: str) -> EngcmpError:
    remedy = remedy_for(f"{what}\n{tail_of(place.log)}")
    return kind_of(what, StartFailed)(
        f"{place.label}: {what}", where=f"log {place.log}", remedy=remedy + _last_lines(place, _START_LINES)
    )


def _last_lines(place: LaunchPlace, count: int) -> str:
    lines = "".join(f"\n    {line}" for line in tail_of(place.log, count).splitlines())
    return f". The last lines of its log:{lines}" if lines else ""


@contextmanager
def start_container(
    spec: ServerSpec, place: LaunchPlace, *, mode: Mode, start_deadline_s: float, request_deadline_s: float
) -> Generator[RunningServer, None, None]:
    """Start the image of `spec.identities["image"]`; see `servers.start_server`. Both modes are the same launch, but for the
    capture plugin of vLLM.

    A start that fails (the container ends, or serves no token in time) is tried again `retries` times, each said and logged. Settings,
    capabilities, images and ports that are wrong are not tried again.
    """
    settings = launch_settings(spec, place, ContainerSettings)
    deadline_s = min(start_deadline_s, settings.start_deadline_s or start_deadline_s)
    until = time.monotonic() + deadline_s
    for name in ("model", "library"):
        if name in place.files and place.files[name].is_file() and name in spec.identities:
            check_file(place.label, name, place.files[name], spec.identities[name])
    host = DockerHost()
    try:
        image = _image(host, spec, place.label)
        for attempt in range(settings.retries + 1):
            with ExitStack() as stack:
                try:
                    attempted = _attempt(
                        host, image, spec, place,
                        settings=settings, mode=mode, until=until, request_deadline_s=request_deadline_s,
                    )  # fmt: skip
                    served = stack.enter_context(attempted)
                except StartFailed as error:
                    if attempt == settings.retries or time.monotonic() > until:
                        raise
                    place.say(
                        f"start {attempt + 1} of at most {settings.retries + 1} failed: {error.what}; trying again"
                    )
                    continue
                yield served
                return
    finally:
        host.close()


register_server("docker", ContainerSettings)(start_container)
register_server("llama-server", LlamaServerSettings)(start_container)
register_server("vllm", CapturingVllmSettings)(start_container)
register_server("sglang", SglangSettings)(start_container)


@contextmanager
def _attempt(
    host: DockerHost,
    image: Image,
    spec: ServerSpec,
    place: LaunchPlace,
    *,
    settings: ContainerSettings,
    mode: Mode,
    until: float,
    request_deadline_s: float,
) -> Generator[RunningServer, None, None]:
    launch = _resolved(spec, place, settings, image, mode)
    began = time.monotonic()
    watched: _Watched | None = None
    try:
        with key_file_of(launch) as key_file, _running(host, launch, key_file) as container, ExitStack() as stack:
            watched = _Watched(launch, container)
            url = _url(launch, watched)
            client = client_of(launch, url)
            stack.callback(client.close)
            first_token_at = _get_ready(launch, watched, client, until)
            capabilities, stated = _proved(watched, client, until)
            loaded = launch.captures is not None or not has_plugin(settings)
            refuse_lacking(launch.label, wanted_of(settings.capabilities, loaded=loaded), capabilities)
            facts = _facts(launch, watched) | stated | {"capabilities": capabilities.as_json()}
            facts["settings"] = compared_settings(
                launch.label, settings.requested(), _resolved_by_engine(launch, stated)
            )
            facts["ready"] = _ready(launch, watched, began, first_token_at)
            facts["load_ms"] = facts["ready"]["first_token_ms"]
            watched.refuse_changed()
            yield Served(
                client, watched, url=url, facts=facts, capabilities=capabilities, request_deadline_s=request_deadline_s
            )
    finally:
        if watched is not None:
            watched.finish()


def _image(host: DockerHost, spec: ServerSpec, label: str) -> Image:
    wanted = spec.identities.get("image")
    if wanted is None:
        raise EngcmpError(f"{label}: the launch names no image", remedy="name a source with an image in the protocol")
    with _named(label):
        return (
            host_image.ensure(host)
            if host_image.is_host_image(wanted.rpartition("@")[2])
            else host.require_image(wanted)
        )


@contextmanager
def _named(label: str) -> Generator[None, None, None]:
    """Errors of the Docker engine, told of this launch."""
    try:
        yield
    except EngcmpError as error:
        raise EngcmpError(f"{label}: {error.what}", where=error.where, remedy=error.remedy) from error


def _resolved(spec: ServerSpec, place: LaunchPlace, settings: ContainerSettings, image: Image, mode: Mode) -> Launch:
    on_host = settings.network == "host"
    port = settings.port or (free_port() if on_host else None)
    if port is not None:
        refuse_taken(port, place.label)
    alias = settings.served_model or spec.identities.get("model", spec.engine)
    python = host_image.python() if host_image.is_host_image(image.id) else None
    words = settings_of.words_of(
        settings,
        alias,
        LOOPBACK if on_host else "0.0.0.0",  # noqa: S104 - inside the container: outside it is published on 127.0.0.1
        port if on_host and port is not None else settings.container_port,
        python,
    )
    keyed = settings.key_env is not None or settings_of.wants_key_file(settings)
    key = secrets.token_urlsafe(32) if keyed else None
    secret = settings_of.secrets_of(settings, place.label)
    captures = capture_folder(place.scratch) if has_plugin(settings) and mode == "scoring" else None
    return Launch(spec, place, settings, image, words, key, secret, port, captures)


@contextmanager
def _running(host: DockerHost, launch: Launch, key_file: Path | None) -> Generator[Container, None, None]:
    settings, label = launch.settings, launch.label
    on_host, bare = settings.network == "host", host_image.is_host_image(launch.image.id)
    mounts = settings_of.mounts_of(settings, launch.place) + (host_image.mounts() if bare else [])
    mounts += plugin_mounts(launch.captures) if launch.captures is not None else []
    secret = dict(launch.secrets)
    if settings.key_env is not None and launch.key is not None:
        secret[settings.key_env] = launch.key
    entrypoint = settings.entrypoint
    request = ContainerRequest(
        image=launch.image.id,
        command=[launch.words.resolved(word, label) for word in settings.command],
        entrypoint=None if entrypoint is None else [launch.words.resolved(word, label) for word in entrypoint],
        environment=plain_environment(launch) | secret | dict(launch.place.labels),
        labels=launch.place.labels,
        mounts=mounts + ([] if key_file is None else [settings_of.key_mount(key_file)]),
        network=settings.network,
        publish={} if on_host else {settings.container_port: launch.host_port},
        shm_bytes=settings.shm_bytes,
        ipc=settings.ipc,
        ulimits=_NO_CORE_FILES | settings.ulimits,
        devices=settings.devices,
        gpus=launch.place.gpus if settings.gpus else (),
        user=settings.user or (f"{os.getuid()}:{os.getgid()}" if bare and not host.is_rootless() else None),
        sealed=bare,
    )
    with ExitStack() as stack:
        with _named(label):
            container = stack.enter_context(host.running(request))
        yield container


def _get_ready(launch: Launch, watched: _Watched, client: ApiClient, until: float) -> float:
    """Wait for the ready line, the health status and the first token; the time of the last, by the monotonic clock."""
    settings, missing = launch.settings, "nothing"
    while time.monotonic() <= until:
        state = watched.container.state()
        if not state.running:
            watched.finish()
            raise _not_started(launch.place, f"the container {state.ending()} before it was ready")
        if settings.ready_line is not None and not watched.ready_line.is_set():
            missing = f"no line {settings.ready_line!r} in its log"
        elif settings.ready_health and state.health != "healthy":
            missing = f"its health status is {state.health or 'not defined'!r}"
        else:
            try:
                client.first_token(until)
            except Late as error:
                missing = f"it runs and says that it is ready, but gives no token: {error.what}"
                break
            except EngcmpError as error:
                if not is_loading(error):
                    raise
                missing = error.what
            else:
                return time.monotonic()
        time.sleep(_POLL_S)
    raise _not_started(launch.place, f"not ready within its deadline: {missing}")


def _proved(watched: _Watched, client: ApiClient, until: float) -> tuple[Capabilities, dict[str, Any]]:
    try:
        return client.prove(until)
    except (Late, BrokenOff) as error:
        raise watched.explained(error, "proving what it can do") from error


def _url(launch: Launch, watched: _Watched) -> str:
    port = launch.host_port
    if launch.settings.network != "host":
        port = watched.container.published(launch.settings.container_port)
    if port is None:
        watched.finish()
        raise _not_started(launch.place, "no port of the container is published: it has ended at once")
    return f"http://{LOOPBACK}:{port}"


def _facts(launch: Launch, watched: _Watched) -> dict[str, Any]:
    spec, settings, label = launch.spec, launch.settings, launch.label
    secret = dict(launch.secrets) | ({settings.key_env: launch.key} if settings.key_env and launch.key else {})
    seen = {name: value for name, value in watched.environment.items() if name not in launch.place.labels}
    ours = plain_environment(launch, shown=True)
    words = [*(settings.entrypoint or ()), *settings.command]
    return {
        "engine": spec.engine,
        "version": spec.version,
        "kind": spec.kind,
        "identities": dict(spec.identities),
        "image": launch.image.as_json(),
        "command": [launch.words.shown(word, label) for word in words],
        "environment": settings_of.shown_environment(seen | ours, secret),
        "mounts": settings_of.shown_mounts(settings, spec.identities)
        + ([] if launch.captures is None else shown_plugin_mounts()),
        "container": watched.started_as.identity(),
        "network": settings.network,
    }


def _ready(launch: Launch, watched: _Watched, began: float, first_token_at: float) -> dict[str, Any]:
    """Both clocks of MEASURES section 8: from the launch command to the first token, and to the engine's own ready line."""
    found: Any = {"missing": "the kind names no ready line"}
    if launch.settings.ready_line is not None:
        found = round((watched.ready_line_at - began) * 1000)
    return {"first_token_ms": round((first_token_at - began) * 1000), "ready_line_ms": found}


def _resolved_by_engine(launch: Launch, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The requested settings as the engine states them, in its answers or in its log."""
    found: dict[str, Any] = {"context_tokens": stated["n_ctx"]} if "n_ctx" in stated else {}
    if launch.settings.api == "llama-server":
        logged = logged_settings(launch.place.log)
        return found | {
            "batch_tokens": logged["n_batch"],
            "micro_batch_tokens": logged["n_ubatch"],
            "threads": logged["n_threads"],
        }
    text = launch.place.log.read_text(encoding="utf-8", errors="replace")
    matches = {name: pattern.search(text) for name, pattern in _LOGGED.get(launch.settings.api, {}).items()}
    return found | {name: int(match[1]) for name, match in matches.items() if match}
