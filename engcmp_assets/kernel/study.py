"""A study as loaded from its folder: the protocol, the frozen files' bytes, and its frozen hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from engcmp_assets.frozen_protocol.freezing import check_frozen
from engcmp_assets.kernel.iterations import FOLDER, FROZEN_SUFFIX, Iteration, extended, read_iteration
from engcmp_assets.kernel.prompt_files import is_laid_out, parse_panel
from engcmp_assets.kernel.protocol import PROTOCOL_FILE, Protocol, parse_protocol
from engcmp_assets.kernel.records import Panel
from engcmp_assets.kernel.source_tables import ListedSource
from engcmp_assets.kernel.waiting import without_panels
from engcmp_resources.canonical import parse_canonical
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import FROZEN_FILE, iteration_files, read_bytes, study_files, study_folder


@dataclass(frozen=True)
class Study:
    """A study's folder, read once. Its records are parsed when asked for. `frozen` is None where it was never frozen."""

    folder: Path
    files: Mapping[str, bytes]
    frozen: Mapping[str, Any] | None
    iteration_files: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def protocol(self) -> Protocol:
        """The frozen protocol with what its frozen iterations add, without the panels that wait for their windows.

        Raises EngcmpError that names the field at fault.
        """
        return without_panels(extended(self.base, self.iterations, where=str(self.folder)), self.waiting)

    @cached_property
    def waiting(self) -> dict[str, str]:
        """The panels from outside whose windows were not here when the others were laid out, each with the reason.

        A study of which no panel is laid out has none: it is what it declares, and nothing of a panel can be measured yet.
        """
        base, data = self.base, self.files.get(self.base.prompt_set.file, b"")
        there = {name for name, plan in base.panels.items() if not plan.external or is_laid_out(data, name)}
        return {name: _why_waiting(base, name) for name in base.panels if name not in there} if there and data else {}

    @cached_property
    def iterations(self) -> tuple[Iteration, ...]:
        """The frozen iterations, in the order of their names; one without a freeze is a candidate and adds nothing yet.

        Raises EngcmpError for one that was edited after its freeze, or that extends another frozen hash.
        """
        found = []
        for name in self.iteration_names:
            frozen = self.iteration_files.get(f"{name}{FROZEN_SUFFIX}")
            if frozen is not None:
                where = str(self.folder / FOLDER / f"{name}.toml")
                document = parse_canonical(
                    frozen, what=f"{name}{FROZEN_SUFFIX}", where=where, remedy="restore it from git"
                )
                data = self.iteration_files.get(f"{name}.toml")
                if data is None:
                    raise EngcmpError(
                        f"iteration {name} is frozen and missing", where=where, remedy="restore it from git"
                    )
                found.append(
                    read_iteration(
                        name, data, document, study=self.folder.name, base_frozen_sha256=self.frozen_sha256, where=where
                    )
                )
        return tuple(found)

    @property
    def iteration_names(self) -> tuple[str, ...]:
        """All iterations, frozen or not, by name."""
        found = set()
        for suffix in (".toml", FROZEN_SUFFIX):
            found |= {name.removesuffix(suffix) for name in self.iteration_files if name.endswith(suffix)}
        return tuple(sorted(found))

    @cached_property
    def base(self) -> Protocol:
        """The frozen protocol alone. Raises EngcmpError that names the field at fault."""
        where = str(self.folder / PROTOCOL_FILE)
        protocol = parse_protocol(self.files[PROTOCOL_FILE], where=where, files=self.files)
        if protocol.study != self.folder.name:
            # Results lie under the study's name: two folders of one name would take each other's places.
            raise EngcmpError(
                f"protocol field study is {protocol.study!r} in the folder {self.folder.name}", where=where,
                remedy="give the folder and the study the same name",
            )  # fmt: skip
        return protocol

    @property
    def frozen_sha256(self) -> str:
        """The frozen hash. Raises EngcmpError where the study was never frozen, or its FROZEN.json is damaged."""
        where, name = str(self.folder / FROZEN_FILE), self.folder.name
        if self.frozen is None:
            raise EngcmpError(f"study {name} is not frozen", where=where, remedy=f"`engcmp freeze {name}`")
        if "frozen_sha256" not in self.frozen:
            raise EngcmpError("FROZEN.json was changed after the freeze", where=where, remedy="restore it from git")
        return str(self.frozen["frozen_sha256"])

    def require_frozen(self) -> None:
        """Raise EngcmpError, naming the file or measure, unless everything is as it was frozen."""
        _ = self.frozen_sha256
        check_frozen(self.files, self.frozen or {}, where=str(self.folder))

    def panel(self, name: str) -> Panel:
        """The named panel, from the frozen prompt set."""
        file = self.base.prompt_set.file
        external = self.base.panel_plan(name).external
        if external is not None and not is_laid_out(self.files.get(file, b""), name):
            raise EngcmpError(
                f"panel {name} is published with source {external.source}, and its windows are not part of the study yet",
                where=str(self.folder),
                remedy=f"`engcmp fetch {self.folder.name}`, then `engcmp freeze {self.folder.name}` (or amend) lays out what has tokens; "
                "`engcmp panel` lays it out for `engcmp score`",
            )
        if file not in self.files:
            raise EngcmpError(
                f"prompt set {file} is missing", where=str(self.folder), remedy=f"`engcmp freeze {self.folder.name}`"
            )
        return parse_panel(self.files[file], self.base, panel=name, where=str(self.folder / file))


def _why_waiting(base: Protocol, panel: str) -> str:
    plan = base.panels[panel].external
    if plan is None:
        return "it has no windows"
    source = base.sources[plan.source]
    if isinstance(source, ListedSource) and source.why is not None:
        return f"of source {source.listed} {source.why}"
    return f"source {plan.source} was not here when the study was frozen"


def load_study(name: str) -> Study:
    """Read the folder of study `name`. Raises EngcmpError for an unknown study.

    A FROZEN.json whose bytes are not as `engcmp freeze` writes them is taken as empty, which every check against it refuses.
    """
    folder = study_folder(name)
    path = folder / FROZEN_FILE
    frozen: Mapping[str, Any] | None = None
    if path.exists() or path.is_symlink():
        try:
            frozen = parse_canonical(read_bytes(path), what=FROZEN_FILE, where=str(path), remedy="restore it from git")
        except EngcmpError:
            frozen = {}
    return Study(folder, study_files(folder), frozen, iteration_files(folder))
