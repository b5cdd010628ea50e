"""Kind `external`: an engine that already runs at an address. It is never started or stopped by this project."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from engcmp_resources.engines._api import ApiClient, ApiName, make_client
from engcmp_resources.engines._serving import Served, compared_settings
from engcmp_resources.engines.servers import (
    REQUEST_DEADLINE_S,
    DeclaredCapabilities,
    LaunchPlace,
    Mode,
    RunningServer,
    ServerSpec,
    Settings,
    launch_settings,
    refuse_lacking,
    register_server,
)
from engcmp_resources.errors import EngcmpError
from engcmp_resources.secrecy import hidden_secret

_NOT_OURS = "not started by us"
_PORTS = {"http": 80, "https": 443}
_CONNECT_S = 5.0
# As many requests as these may take their whole time while it is proved what a server can do.
_PROVING = 10


class ExternalSettings(Settings):
    """Where the engine runs (`url`), what it speaks, and the name under which it serves the model.

    `api_key_env` is the variable of this process that holds its key. An address of another machine needs `remote = true`.
    `context_tokens` must be what the engine states; `capabilities` are what must be proved. `request_deadline_s` is how long it may be
    silent in one request, at most 900: after that the link or the engine is taken to hang.
    """

    url: str
    api: ApiName
    model: str
    api_key_env: str | None = None
    remote: bool = False
    context_tokens: int | None = Field(default=None, ge=1)
    request_deadline_s: float | None = Field(default=None, gt=0, le=REQUEST_DEADLINE_S)
    capabilities: DeclaredCapabilities = Field(default_factory=dict)

    @field_validator("url")
    @classmethod
    def _is_plain(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("an address is http://HOST:PORT or https://HOST:PORT")
        if parts.username or parts.password:
            raise ValueError("no user and password in the address: name the key's variable as api_key_env")
        return value.rstrip("/")

    def check_place(self, label: str, identities: Mapping[str, str]) -> None:
        """Somebody must listen there; see `Settings.check_place`."""
        del identities  # what it runs is its own word
        _refuse_remote(self, label)
        _key(self, label)
        parts = urlsplit(self.url)
        try:
            socket.create_connection((parts.hostname or "", parts.port or _PORTS[parts.scheme]), _CONNECT_S).close()
        except OSError as error:
            raise EngcmpError(
                f"{label}: nothing answers at {self.url}: {error}",
                remedy="start the engine there, or correct the address",
            ) from error


class _Found:
    """An engine that belongs to somebody else; see `_serving.Watch`."""

    def __init__(self, client: ApiClient, label: str, url: str, deadline_s: float) -> None:
        self._client, self._label, self._url, self._deadline_s = client, label, url, deadline_s

    def refuse_changed(self) -> None:
        """It has no start time that could be seen from here: what can be held is that it still serves the model."""
        self.refuse_silent(time.monotonic() + self._deadline_s)

    def refuse_silent(self, until: float) -> None:
        """Raise EngcmpError where it gives no token of the right model."""
        try:
            self._client.first_token(until)
        except EngcmpError as error:
            raise self.explained(error, "asking for a token of the model") from error

    def explained(self, error: EngcmpError, doing: str) -> EngcmpError:
        return EngcmpError(
            f"{self._label}: {doing}: {error.what.removeprefix(f'{self._label}: ')}; the engine was {_NOT_OURS} and is left as it is",
            where=self._url,
            remedy="look at it where it runs, and run again",
        )

    def log_tail(self) -> str:
        return f"no log: the engine at {self._url} was {_NOT_OURS}"


@register_server("external", ExternalSettings)
@contextmanager
def find_external(
    spec: ServerSpec, place: LaunchPlace, *, mode: Mode, start_deadline_s: float, request_deadline_s: float
) -> Generator[RunningServer, None, None]:
    """Find the engine at `url`; see `servers.start_server`. Its identity is what it states. Leaving the context leaves it running."""
    settings = launch_settings(spec, place, ExternalSettings)
    _refuse_remote(settings, place.label)
    key = _key(settings, place.label)
    client = make_client(settings.api, settings.url, key=key, label=place.label, model=settings.model, vocab=spec.vocab)
    if settings.request_deadline_s is not None:
        request_deadline_s = min(request_deadline_s, settings.request_deadline_s)
        start_deadline_s = min(start_deadline_s, _PROVING * request_deadline_s)
    with closing(client):
        until = time.monotonic() + start_deadline_s
        found = _Found(client, place.label, settings.url, request_deadline_s)
        found.refuse_silent(min(until, time.monotonic() + request_deadline_s))  # it runs already: nothing is waited for
        capabilities, stated = client.prove(until)
        refuse_lacking(place.label, settings.capabilities, capabilities)
        facts: dict[str, Any] = {
            "engine": spec.engine,
            "version": spec.version,
            "kind": spec.kind,
            "identities": dict(spec.identities),
            "started": _NOT_OURS,
            "url": settings.url,
            "environment": {} if key is None else {"api_key": hidden_secret(key)},
            **stated,
            "settings": compared_settings(
                place.label, {"context_tokens": settings.context_tokens}, {"context_tokens": stated["n_ctx"]} if "n_ctx" in stated else {}
            ),
            "capabilities": capabilities.as_json(),
        }  # fmt: skip
        yield Served(
            client,
            found,
            url=settings.url,
            facts=facts,
            capabilities=capabilities,
            request_deadline_s=request_deadline_s,
        )


def _refuse_remote(settings: ExternalSettings, label: str) -> None:
    host = urlsplit(settings.url).hostname or ""
    try:
        near = ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        near = host == "localhost"
    if not near and not settings.remote:
        raise EngcmpError(
            f"{label}: {host} is not this machine", where=settings.url,
            remedy="write remote = true in its settings, if prompts may leave this machine",
        )  # fmt: skip


def _key(settings: ExternalSettings, label: str) -> str | None:
    if settings.api_key_env is None:
        return None
    value = os.environ.get(settings.api_key_env)
    if not value:
        raise EngcmpError(
            f"{label}: the variable {settings.api_key_env} is not set", remedy="set it to the engine's key"
        )
    return value
