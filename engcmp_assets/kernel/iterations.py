"""Iterations: what enters a frozen study later, as a file with a hash of its own. Nothing frozen changes.

An iteration adds sources, checkpoints, engines, engine versions, arms and comparisons; it redefines nothing.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from engcmp_assets.kernel.engine_tables import Engine, EngineVersion, ServerEngine
from engcmp_assets.kernel.fields import Name, Strict
from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol, check_references, field_error
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.source_tables import ListedSource, Source
from engcmp_assets.kernel.study_tables import AnyCheckpoint, ArmEntry
from engcmp_resources.canonical import sha256_bytes, sha256_of
from engcmp_resources.errors import EngcmpError

FOLDER = "iterations"
FROZEN_SUFFIX = ".frozen.json"
_FROZEN_SCHEMA = "engcmp.frozen-iteration/1"


class FoundRelease(Strict):
    """The release that an iteration was written for by the look for new versions: engine, tag, what it stood for, and where."""

    engine: Name
    tag: str
    digest: str
    place: str


class IterationFile(Strict):
    """`iterations/<name>.toml`, whole. `versions` adds versions to engines that the protocol has.

    `for_checkpoints` adds, to engines that the protocol has, what is laid upon their settings for a checkpoint, by engine and checkpoint.
    `measure` lets the sensor request the runs of its arms once it is frozen; `declined` says why it never will be.
    """

    schema_: Literal["engcmp.iteration/1"] = Field(alias="schema")
    because: str = Field(min_length=1)
    declined: str | None = Field(default=None, min_length=1)
    measure: bool = False
    release: FoundRelease | None = None
    sources: dict[str, Source] = Field(default_factory=dict)
    checkpoints: dict[str, AnyCheckpoint] = Field(default_factory=dict)
    engines: dict[str, Engine] = Field(default_factory=dict)
    versions: dict[str, dict[str, EngineVersion]] = Field(default_factory=dict)
    for_checkpoints: dict[str, dict[Name, dict[str, Any]]] = Field(default_factory=dict)
    arms: list[ArmEntry] = Field(default_factory=list)
    comparisons: list[ComparisonPlan] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Iteration:
    """A frozen iteration: its name, its hash, and what it adds."""

    name: str
    frozen_sha256: str
    adds: IterationFile

    @property
    def arm_keys(self) -> tuple[ArmKey, ...]:
        return tuple(ArmKey.parse(entry.arm) for entry in self.adds.arms)


def frozen_iteration(study: str, name: str, data: bytes, base_frozen_sha256: str) -> dict[str, Any]:
    """The content of `<name>.frozen.json`: the iteration's bytes by hash, and the frozen hash that it extends."""
    body = {
        "schema": _FROZEN_SCHEMA,
        "study": study,
        "iteration": name,
        "file_sha256": sha256_bytes(data),
        "base_frozen_sha256": base_frozen_sha256,
    }
    return body | {"frozen_sha256": sha256_of(body)}


def read_iteration(
    name: str, data: bytes, frozen: Mapping[str, Any], *, study: str, base_frozen_sha256: str, where: str
) -> Iteration:
    """An iteration held against its freeze.

    Raises EngcmpError for a file edited after its freeze, a damaged freeze, or one that extends another frozen hash.
    """
    base = frozen.get("base_frozen_sha256")
    as_frozen = frozen_iteration(str(frozen.get("study")), name, data, str(base)) | {
        "file_sha256": frozen.get("file_sha256")
    }
    body = {key: value for key, value in as_frozen.items() if key != "frozen_sha256"}
    if frozen != body | {"frozen_sha256": sha256_of(body)}:
        raise EngcmpError(
            f"{name}{FROZEN_SUFFIX} was changed after the freeze", where=where, remedy="restore it from git"
        )
    if sha256_bytes(data) != frozen["file_sha256"]:
        raise EngcmpError(
            f"iteration {name} was edited after its freeze", where=where, remedy="restore it, or add another iteration"
        )
    if (frozen.get("study"), base) != (study, base_frozen_sha256):
        raise EngcmpError(
            f"iteration {name} extends frozen hash {str(base)[:12]}, the study has {base_frozen_sha256[:12]}",
            where=where,
            remedy=f"look at it against the amended protocol, then `engcmp freeze {study} --iteration {name}`; or remove both its files",
        )
    return Iteration(name, str(frozen["frozen_sha256"]), parse_iteration(data, where=where))


def parse_iteration(data: bytes, *, where: str) -> IterationFile:
    """An iteration's bytes. Raises EngcmpError that names the field for anything unknown, missing or of the wrong type."""
    try:
        return IterationFile.model_validate(tomllib.loads(data.decode("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngcmpError(
            f"iteration is not valid TOML: {error}", where=where, remedy="mend the line it names"
        ) from error
    except ValidationError as error:
        raise field_error("iteration field", error, where, "mend that field") from error


def extended(protocol: Protocol, iterations: Sequence[Iteration], *, where: str) -> Protocol:
    """The protocol with everything that the iterations add, in the order of their names.

    Raises EngcmpError for a key that exists already and for one that points nowhere.
    """
    whole = protocol
    for iteration in iterations:
        whole = _with(whole, iteration, where=f"{where}/{FOLDER}/{iteration.name}.toml")
    return whole


def _with(protocol: Protocol, iteration: Iteration, *, where: str) -> Protocol:
    adds = iteration.adds
    for kind, old, new in (
        ("source", protocol.sources, adds.sources),
        ("checkpoint", protocol.checkpoints, adds.checkpoints),
        ("engine", protocol.engines, adds.engines),
    ):
        _refuse_doubles(kind, set(old), set(new), where)
    if listed := sorted(name for name, source in adds.sources.items() if isinstance(source, ListedSource)):
        raise EngcmpError(
            f"source {listed[0]!r} is listed", where=where,
            remedy="SOURCES.json is of the frozen protocol: write the pin into the iteration itself",
        )  # fmt: skip
    engines = dict(protocol.engines) | adds.engines
    for name, versions in adds.versions.items():
        if name not in engines:
            raise EngcmpError(
                f"no engine {name!r} to add versions to", where=where, remedy=f"use one of {', '.join(engines)}"
            )
        _refuse_doubles(f"version of {name}", set(engines[name].versions), set(versions), where)
        engines[name] = engines[name].model_copy(update={"versions": engines[name].versions | versions})
    for name, settings in adds.for_checkpoints.items():
        engines[name] = _served_too(engines.get(name), name, settings, list(engines), where=where)
    _refuse_doubles("arm", {e.arm for e in protocol.arms}, {e.arm for e in adds.arms}, where)
    _refuse_doubles("pair", {p.pair_id for p in protocol.comparisons}, {p.pair_id for p in adds.comparisons}, where)
    whole = protocol.model_copy(
        update={
            "sources": protocol.sources | adds.sources,
            "checkpoints": protocol.checkpoints | adds.checkpoints,
            "engines": engines,
            "arms": [*protocol.arms, *adds.arms],
            "comparisons": [*protocol.comparisons, *adds.comparisons],
        }
    )
    check_references(whole, where)
    return whole


def _served_too(
    engine: Engine | None, name: str, settings: Mapping[str, dict[str, Any]], known: Sequence[str], *, where: str
) -> Engine:
    """The engine with settings for further checkpoints. Raises EngcmpError for one that is no server, or has them already."""
    if not isinstance(engine, ServerEngine):
        what = (
            f"no engine {name!r}"
            if engine is None
            else f"engine {name!r} runs in a child process, which takes no settings"
        )
        raise EngcmpError(
            f"{what} to add for_checkpoints to", where=where, remedy=f"use a server of {', '.join(known)}"
        )
    _refuse_doubles(f"settings of {name} for checkpoint", set(engine.for_checkpoints), set(settings), where)
    return engine.model_copy(update={"for_checkpoints": engine.for_checkpoints | dict(settings)})


def _refuse_doubles(kind: str, old: set[str], new: set[str], where: str) -> None:
    if doubled := sorted(old & new):
        raise EngcmpError(
            f"{kind} {doubled[0]!r} exists already",
            where=where,
            remedy="an iteration adds and never redefines: choose another key",
        )
