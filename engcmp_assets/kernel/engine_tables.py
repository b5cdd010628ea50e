"""The tables `[engines.NAME]` of a protocol: an engine's kind, its settings, and its versions with the sources that hold them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from engcmp_assets.kernel.fields import Name, Strict


class EngineVersion(Strict):
    """One version of an engine and the source that holds it; `files` are further sources, by the role that they have in the launch.

    An engine of kind `external` has no source: it runs already.
    """

    source: str | None = None
    files: dict[Name, str] = Field(default_factory=dict)


class ProcessEngine(Strict):
    """An engine in a child process: its kind (a file in engcmp_resources/engines/) and its launch settings."""

    kind: str
    label: str
    threads: int = Field(ge=1)
    context_tokens: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    micro_batch_tokens: int = Field(ge=1)
    versions: dict[str, EngineVersion]


class ServerEngine(Strict):
    """An engine that is a server: its kind and the settings that this kind takes (its own file says which)."""

    kind: str
    label: str
    settings: dict[str, Any]
    versions: dict[str, EngineVersion]


def _engine_kind(value: Any) -> str:
    """Which kind of engine a table is, so that an error speaks of the fields of that kind only."""
    fields = set(value) if isinstance(value, dict) else set(getattr(value, "model_fields_set", ()))
    return "kind:server" if "settings" in fields else "kind:process"


Engine = Annotated[
    Annotated[ProcessEngine, Tag("kind:process")] | Annotated[ServerEngine, Tag("kind:server")],
    Discriminator(_engine_kind),
]
