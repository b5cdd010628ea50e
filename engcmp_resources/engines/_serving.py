"""A running server over the client of its API: what kinds that own a container and kinds that own nothing have in common."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from engcmp_resources.engines._api import ApiClient, BrokenOff, Late
from engcmp_resources.engines.servers import Capabilities, Endpoint, LightRows, RowsTaken, ScorePath
from engcmp_resources.errors import EngcmpError


class Watch(Protocol):
    """What is known of an engine beside its API."""

    def refuse_changed(self) -> None:
        """Raise EngcmpError where the engine is not the one that was started."""

    def explained(self, error: EngcmpError, doing: str) -> EngcmpError:
        """A late or broken answer, told as what happened to the engine; the engine is ended where it can be."""

    def log_tail(self) -> str:
        """The last 40 lines of its log."""


class Served:
    """See RunningServer."""

    def __init__(
        self,
        client: ApiClient,
        watch: Watch,
        *,
        url: str,
        facts: dict[str, Any],
        capabilities: Capabilities,
        request_deadline_s: float,
    ) -> None:
        self._client, self._watch, self._url = client, watch, url
        self._facts, self._capabilities, self._deadline_s = facts, capabilities, request_deadline_s

    @property
    def url(self) -> str:
        return self._url

    @property
    def endpoint(self) -> Endpoint:
        return replace(self._client.endpoint, url=self._url)

    @property
    def facts(self) -> dict[str, Any]:
        return self._facts

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def tokenize(self, text: str) -> list[int] | None:
        with self._explained("tokenizing"):
            return self._client.tokenize(text)

    def full_rows(
        self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path
    ) -> RowsTaken:
        with self._explained(f"taking rows of window {window_id}"):
            return self._client.full_rows(path, window_id, tokens, positions, out, deadline_s=self._deadline_s)

    def light_rows(self, path: ScorePath, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> LightRows:
        with self._explained(f"taking light rows of window {window_id}"):
            return self._client.light_rows(path, window_id, tokens, positions, deadline_s=self._deadline_s)

    def refuse_changed(self) -> None:
        self._watch.refuse_changed()

    def log_tail(self) -> str:
        return self._watch.log_tail()

    @contextmanager
    def _explained(self, doing: str) -> Generator[None, None, None]:
        self._watch.refuse_changed()  # its port may be another program's by now
        try:
            yield
        except (Late, BrokenOff) as error:
            raise self._watch.explained(error, doing) from error


def is_loading(error: EngcmpError) -> bool:
    """Whether an answer means that the engine is not up yet: no connection, or 503."""
    return isinstance(error, BrokenOff) or "HTTP status 503" in error.what


def compared_settings(label: str, requested: Mapping[str, int | None], found: Mapping[str, Any]) -> dict[str, Any]:
    """Each requested setting with what the engine resolved, `{"missing": reason}` where it does not state it.

    Raises EngcmpError naming each setting that was resolved differently.
    """
    unknown = {"missing": "the engine does not state it"}
    settings = {
        name: {"requested": asked, "resolved": found.get(name, unknown)}
        for name, asked in requested.items()
        if asked is not None
    }
    differing = [
        f"{name} requested {pair['requested']}, found {pair['resolved']}"
        for name, pair in settings.items()
        if pair["requested"] != pair["resolved"] and not isinstance(pair["resolved"], Mapping)
    ]
    if differing:
        raise EngcmpError(
            f"{label}: the engine resolved its settings differently: {'; '.join(differing)}",
            remedy="request what this version can do (it may round the context up), and keep `command` and settings in step",
        )
    return settings
