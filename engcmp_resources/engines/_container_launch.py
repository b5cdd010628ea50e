"""One launch of an engine in a container, resolved for this machine: its words, key, variables, and the client of its API."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.containers import Image
from engcmp_resources.engines import _container_settings as settings_of
from engcmp_resources.engines._api import ApiClient, make_client
from engcmp_resources.engines._container_settings import ContainerSettings, VllmSettings, Words
from engcmp_resources.engines._vllm_capture import in_container
from engcmp_resources.engines._vllm_http import VllmApi
from engcmp_resources.engines.servers import LaunchPlace, ServerSpec


class CapturingVllmSettings(VllmSettings):
    """Kind `vllm`. `plugin`: scoring launches with the capture plugin, which full rows at speed need (see `_vllm_capture`)."""

    plugin: bool = False


def has_plugin(settings: ContainerSettings) -> bool:
    """Whether a launch with these settings captures rows by the plugin."""
    return isinstance(settings, CapturingVllmSettings) and settings.plugin


@dataclass(frozen=True, slots=True)
class Launch:
    """What is asked for, resolved for this machine."""

    spec: ServerSpec
    place: LaunchPlace
    settings: ContainerSettings
    image: Image
    words: Words
    key: str | None
    secrets: Mapping[str, str]
    host_port: int | None
    captures: Path | None

    @property
    def label(self) -> str:
        return self.place.label

    @property
    def model(self) -> str:
        return self.words.values["alias"]


@contextmanager
def key_file_of(launch: Launch) -> Generator[Path | None, None, None]:
    """The API key in a file that only this user can read, for as long as the launch lasts."""
    if launch.key is None or not settings_of.wants_key_file(launch.settings):
        yield None
        return
    path = launch.place.scratch / f"key-{secrets.token_hex(4)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(launch.key)
        yield path
    finally:
        path.unlink(missing_ok=True)


def client_of(launch: Launch, url: str) -> ApiClient:
    """The client of the engine at `url`."""
    asked: dict[str, Any] = {
        "key": launch.key,
        "label": launch.label,
        "model": launch.model,
        "vocab": launch.spec.vocab,
    }
    if launch.captures is not None:
        return VllmApi(url, **asked, captures=launch.captures)
    return make_client(launch.settings.api, url, **asked)


def plain_environment(launch: Launch, *, shown: bool = False) -> dict[str, str]:
    """The container's variables without secrets and labels; `shown`: as a receipt has them."""
    words = launch.words.shown if shown else launch.words.resolved
    plain = {name: words(value, launch.label) for name, value in launch.settings.env.items()}
    return plain if launch.captures is None else in_container(plain)
