"""What a protocol may say of an engine in a container, and how its words become a command, an environment and mounts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from engcmp_resources.containers import Mount
from engcmp_resources.engines._api import ApiName
from engcmp_resources.engines.servers import DeclaredCapabilities, LaunchPlace, Settings
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret

OWN_CODE = "engcmp"  # the name under which this package's own files can be mounted
_KEY_TARGET = "/run/engcmp/key"
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_LABEL_PREFIX = "ENGCMP_"


class MountSettings(Settings):
    """One mount: a file of the launch by its name, or a path of this machine (relative: below the study's folder)."""

    file: str | None = None
    path: str | None = None
    target: str = Field(pattern=r"^/")
    read_only: bool = True

    @model_validator(mode="after")
    def _one_source(self) -> MountSettings:
        if (self.file is None) == (self.path is None):
            raise ValueError("a mount names either `file` or `path`")
        return self


class ContainerSettings(Settings):
    """The settings of kind `docker`: any image, by the API that it speaks.

    `command`, `entrypoint` and `env` may hold `{host}` and `{port}` (where to listen), `{alias}` (under which name to serve the model),
    `{key_file}`, `{python}` (in the image engcmp/host), the names of mounted files (`{model}`, `{library}`: their targets) and the
    settings `{threads}`, `{context_tokens}`, `{batch_tokens}`, `{micro_batch_tokens}`. These four are requested too: what the engine
    states of them must agree. `secrets` maps variables of the container to variables of this process. `capabilities` are what must be
    proved: names of `servers.Capabilities`.
    """

    api: ApiName
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)
    key_env: str | None = Field(default=None, pattern=_VARIABLE)
    served_model: str | None = None
    mounts: tuple[MountSettings, ...] = ()
    network: str = "bridge"
    port: int | None = Field(default=None, ge=1, le=65535)
    container_port: int = Field(default=8000, ge=1, le=65535)
    shm_bytes: int | None = Field(default=None, ge=1)
    ipc: str | None = None
    ulimits: dict[str, int] = Field(default_factory=dict)
    devices: tuple[str, ...] = ()
    gpus: bool = False
    user: str | None = None
    ready_line: str | None = None
    ready_health: bool = False
    retries: int = Field(default=0, ge=0, le=5)
    start_deadline_s: float | None = Field(default=None, gt=0)
    context_tokens: int | None = Field(default=None, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)
    capabilities: DeclaredCapabilities = Field(default_factory=dict)

    @field_validator("ready_line")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return value

    @field_validator("env", "secrets")
    @classmethod
    def _are_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch(_VARIABLE, name) or name.startswith(_LABEL_PREFIX):
                raise ValueError(f"{name!r} cannot be set")
        return value

    def check_place(self, label: str, identities: Mapping[str, str]) -> None:
        """A Docker engine with the image, and a value for each secret; see `Settings.check_place`."""
        super().check_place(label, identities)
        secrets_of(self, label)

    def requested(self) -> dict[str, int | None]:
        """The settings that are held against what the engine states."""
        return {
            "context_tokens": self.context_tokens,
            "batch_tokens": self.batch_tokens,
            "micro_batch_tokens": self.micro_batch_tokens,
            "threads": self.threads,
        }


class LlamaServerSettings(ContainerSettings):
    """Kind `llama-server`: an image of llama.cpp's server."""

    api: Literal["llama-server"] = "llama-server"
    container_port: int = Field(default=8080, ge=1, le=65535)
    ready_line: str | None = "server is listening on"


class VllmSettings(ContainerSettings):
    """Kind `vllm`: an image of vLLM's OpenAI server."""

    api: Literal["vllm"] = "vllm"
    container_port: int = Field(default=8000, ge=1, le=65535)
    ready_line: str | None = "Application startup complete"


class SglangSettings(ContainerSettings):
    """Kind `sglang`: an image of SGLang's server."""

    api: Literal["sglang"] = "sglang"
    container_port: int = Field(default=30000, ge=1, le=65535)
    ready_line: str | None = "The server is fired up and ready to roll!"


@dataclass(frozen=True, slots=True)
class Words:
    """What the placeholders stand for at one launch. `hidden` are those whose value is this machine's and stays out of receipts."""

    values: Mapping[str, str]
    hidden: tuple[str, ...] = ()

    def resolved(self, text: str, label: str) -> str:
        """`text` with its placeholders replaced. Raises EngcmpError for one that has no value at this launch."""
        return self._replaced(text, label, self.values)

    def shown(self, text: str, label: str) -> str:
        """As `resolved`, for a receipt."""
        return self._replaced(text, label, dict(self.values) | {name: f"{{{name}}}" for name in self.hidden})

    def _replaced(self, text: str, label: str, values: Mapping[str, str]) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in values:
                raise EngcmpError(
                    f"{label}: {match[0]} of {text!r} has no value at this launch",
                    remedy=f"it can be {', '.join(f'{{{name}}}' for name in sorted(values))}; or mount the file, or add the setting",
                )
            return values[match[1]]

        return _PLACEHOLDER.sub(value, text)


def words_of(settings: ContainerSettings, alias: str, host: str, port: int, python: str | None) -> Words:
    """The placeholders that have a value at this launch."""
    values = {name: str(value) for name, value in settings.requested().items() if value is not None}
    values |= {mount.file: mount.target for mount in settings.mounts if mount.file is not None}
    values |= {"alias": alias, "host": host, "port": str(port), "key_file": _KEY_TARGET}
    return Words(values | ({} if python is None else {"python": python}), hidden=("python",) if python else ())


def wants_key_file(settings: ContainerSettings) -> bool:
    """Whether the engine is given its API key in a file."""
    return any(
        "{key_file}" in text for text in (*settings.command, *(settings.entrypoint or ()), *settings.env.values())
    )


def key_mount(file: Path) -> Mount:
    """The mount of the file that holds the API key."""
    return Mount(file, _KEY_TARGET)


def mounts_of(settings: ContainerSettings, place: LaunchPlace) -> list[Mount]:
    """The mounts of the protocol, each from a file that is there. Raises EngcmpError for one that is not."""
    found = []
    for mount in settings.mounts:
        source = _source(mount, place)
        if not source.exists():
            raise EngcmpError(
                f"{place.label}: there is nothing to mount at {mount.target}", where=str(source),
                remedy="fetch or make it again, or correct the mount in the protocol",
            )  # fmt: skip
        found.append(Mount(source.absolute(), mount.target, mount.read_only))
    return found


def shown_mounts(settings: ContainerSettings, identities: Mapping[str, str]) -> list[dict[str, Any]]:
    """The mounts as a receipt names them: without paths of this machine other than those of the protocol itself."""
    shown = []
    for mount in settings.mounts:
        entry: dict[str, Any] = {"target": mount.target, "read_only": mount.read_only}
        entry |= {"path": mount.path} if mount.file is None else {"file": mount.file}
        shown.append(entry | ({"sha256": identities[mount.file]} if mount.file and mount.file in identities else {}))
    return shown


def secrets_of(settings: ContainerSettings, label: str) -> dict[str, str]:
    """The values of the secrets, from this process's own environment. Raises EngcmpError for one that is not set."""
    for ours in settings.secrets.values():
        if not os.environ.get(ours):
            raise EngcmpError(
                f"{label}: the variable {ours} is not set", remedy="set it to the secret that the engine needs"
            )
    return {theirs: os.environ[ours] for theirs, ours in settings.secrets.items()}


def shown_environment(plain: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The environment as a receipt names it: each secret by the beginning of its SHA-256."""
    return dict(plain) | {name: hidden_secret(value) for name, value in secrets.items()}


def _source(mount: MountSettings, place: LaunchPlace) -> Path:
    if mount.path is not None:
        path = Path(mount.path).expanduser()
        return path if path.is_absolute() or place.study is None else place.study / path
    if mount.file == OWN_CODE:
        return Path(__file__).resolve().parents[1]
    if mount.file is None or mount.file not in place.files:
        raise EngcmpError(
            f"{place.label}: no file {mount.file!r} belongs to this launch",
            remedy=f"mount one of {', '.join(sorted([*place.files, OWN_CODE]))}, or name its source in the protocol",
        )
    return place.files[mount.file]
