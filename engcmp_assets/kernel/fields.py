"""The types that fields of protocol files have, checked where a file is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# What Dagster takes as an owner; any other would keep the whole code location from loading.
Owner = Annotated[str, Field(pattern=r"^(team:\S.*|[^@\s]+@[^@\s]+\.[^@\s]+)$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# A panel's name is part of an artifact's name.
PanelName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
PlatformKey = Literal["any", "linux-x86_64", "linux-aarch64", "macos-arm64"]
ScorePath = Literal["prefill", "decode"]


class Strict(BaseModel):
    """A record of a protocol file: unknown fields are refused, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)
