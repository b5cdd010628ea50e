"""The tables `[engines.NAME]` of a protocol: an engine's kind, its settings, and its versions with the sources that hold them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from engcmp_assets.kernel.fields import Name, Strict
from engcmp_assets.kernel.protocol_parts import merged
from engcmp_assets.kernel.records import ArmKey


class EngineVersion(Strict):
    """One version of an engine and the source that holds it; `files` are further sources, by the role that they have in the launch.

    An engine of kind `external` has no source: it runs already. `settings` are laid upon those of a server.
    """

    source: str | None = None
    files: dict[Name, str] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)


class EngineSetting(Strict):
    """A declared setting of a server, the `+setting` of an arm: what is laid upon its settings.

    `basis` says who states these settings; `also_changes` what they change beside what they are meant to: the reports name it.
    """

    label: str
    settings: dict[str, Any]
    basis: str = Field(min_length=1)
    also_changes: list[str] = Field(default_factory=list)


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
    """An engine that is a server: its kind and the settings that this kind takes (its own file says which).

    What an arm is started with: `settings`, and laid upon them those of its version, of its checkpoint and of its own setting.
    """

    kind: str
    label: str
    settings: dict[str, Any]
    versions: dict[str, EngineVersion]
    for_checkpoints: dict[Name, dict[str, Any]] = Field(default_factory=dict, exclude=True)
    for_settings: dict[Name, EngineSetting] = Field(default_factory=dict, exclude=True)

    def for_arm(self, arm: ArmKey) -> ServerEngine:
        """The engine with the settings of `arm`, whose version and setting it has."""
        settings = merged(self.settings, self.versions[arm.version].settings if arm.version in self.versions else {})
        settings = merged(settings, self.for_checkpoints.get(arm.checkpoint, {}))
        if arm.setting is not None:
            settings = merged(settings, self.for_settings[arm.setting].settings)
        return self.model_copy(update={"settings": settings, "for_checkpoints": {}, "for_settings": {}})


def _engine_kind(value: Any) -> str:
    """Which kind of engine a table is, so that an error speaks of the fields of that kind only."""
    fields = set(value) if isinstance(value, dict) else set(getattr(value, "model_fields_set", ()))
    return "kind:server" if "settings" in fields else "kind:process"


Engine = Annotated[
    Annotated[ProcessEngine, Tag("kind:process")] | Annotated[ServerEngine, Tag("kind:server")],
    Discriminator(_engine_kind),
]
