"""A study as loaded from its folder: the protocol, the frozen files' bytes, and its frozen hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engcmp_assets.frozen_protocol.freezing import check_frozen
from engcmp_assets.kernel.protocol import PROTOCOL_FILE, Protocol, parse_panel, parse_protocol
from engcmp_assets.kernel.records import Panel
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import FROZEN_FILE, study_files, study_folder


@dataclass(frozen=True)
class Study:
    """A study's folder, read once. Its records are parsed when asked for."""

    folder: Path
    files: Mapping[str, bytes]
    frozen: Mapping[str, Any] | None

    @cached_property
    def protocol(self) -> Protocol:
        return parse_protocol(self.files[PROTOCOL_FILE], where=str(self.folder / PROTOCOL_FILE))

    @property
    def frozen_sha256(self) -> str:
        """The frozen hash. Raises EngcmpError where the study was never frozen."""
        if self.frozen is None:
            raise EngcmpError(
                f"study {self.folder.name} is not frozen", where=str(self.folder / FROZEN_FILE),
                remedy=f"`engcmp freeze {self.folder.name}`",
            )  # fmt: skip
        return str(self.frozen["frozen_sha256"])

    def require_frozen(self) -> None:
        """Raise EngcmpError, naming the file or measure, unless everything is as it was frozen."""
        _ = self.frozen_sha256
        check_frozen(self.files, self.frozen or {}, where=str(self.folder))

    def panel(self, name: str) -> Panel:
        """The named panel, from the frozen prompt set."""
        file = self.protocol.prompt_set.file
        if file not in self.files:
            raise EngcmpError(
                f"prompt set {file} is missing", where=str(self.folder), remedy=f"`engcmp freeze {self.folder.name}`"
            )
        return parse_panel(self.files[file], self.protocol, panel=name, where=str(self.folder / file))


def load_study(name: str) -> Study:
    """Read the folder of study `name`. Raises EngcmpError for an unknown study or a FROZEN.json that is not JSON."""
    folder = study_folder(name)
    path = folder / FROZEN_FILE
    frozen = None
    if path.is_file():
        try:
            frozen = json.loads(path.read_bytes())
        except ValueError as error:
            raise EngcmpError("FROZEN.json is not JSON", where=str(path), remedy="restore it from git") from error
    return Study(folder, study_files(folder), frozen)
