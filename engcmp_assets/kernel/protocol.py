"""A study's protocol as records: what protocol.toml and prompt_set.json may say, checked at the edge.

Pure: it takes the files' bytes. A new checkpoint, engine version, panel or study is data and passes through here unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from engcmp_assets.kernel.declared_checks import declared_faults
from engcmp_assets.kernel.engine_tables import Engine, EngineVersion, ProcessEngine, ServerEngine
from engcmp_assets.kernel.external_panels import ExternalPanel
from engcmp_assets.kernel.fields import Name, Owner, PanelName, ScorePath, Strict
from engcmp_assets.kernel.gpu_rules import GpuRules
from engcmp_assets.kernel.measures import (
    LIGHT_ROW_MEASURES,
    LIGHT_TOPK_ROW_MEASURES,
    MEASURES,
    ROW_MEASURES,
    TOPK_ROW_MEASURES,
    WITHOUT_REFERENCE,
)
from engcmp_assets.kernel.planning_tables import EngineRates
from engcmp_assets.kernel.protocol_parts import read_parts
from engcmp_assets.kernel.reading_rules import ReadingRule
from engcmp_assets.kernel.records import ArmKey, Role
from engcmp_assets.kernel.release_rules import ReleaseRule, rule_fault
from engcmp_assets.kernel.reply_tables import ReplyPlan, ReplyTest, reply_faults
from engcmp_assets.kernel.source_tables import ListedSource, RepositorySource, Source, WheelSource
from engcmp_assets.kernel.startup_tables import StartupPlan, startup_faults
from engcmp_assets.kernel.study_sources import with_listed
from engcmp_assets.kernel.study_tables import (
    AnyCheckpoint,
    ArmEntry,
    Confound,
    Deviation,
    DriftPlan,
    Family,
    Gap,
    NotRun,
    PromptSetFiles,
    Reference,
)
from engcmp_assets.kernel.throughput_tables import Band, ThroughputPlan, plan_faults
from engcmp_resources.errors import EngcmpError, first_fault

PROTOCOL_FILE = "protocol.toml"
_EXTERNAL = "external"  # the kind of engine that runs already
_Item = TypeVar("_Item")
_Need = Callable[[Mapping[str, Any], str, str], None]
_Once = Callable[[Sequence[str], str], None]
BY_BLOCK: tuple[Literal["block", "bucket", "block at bucket"], ...] = ("block",)


class PanelPlan(Strict):
    """Which rows a panel keeps of which windows, what is kept of a row, and the looks that are declared at it.

    `reference` says what the reference keeps of a row. `keep` says what is kept of an engine's: `rows` what its measures need of the whole
    vocabulary, `light` its 20 most probable tokens and the actual one, which any unmodified server can give. `external`: the windows and
    the reference's rows come from a source; then `rows` is `stated`, and so many of each window is `rows_per_window`. `by`: the parts of
    the rows that are looked at beside all: each kind of content, each context length, each kind at each length.
    """

    label: str
    reference: Literal["full", "topk", "none"]
    keep: Literal["rows", "light"] = "rows"
    top_k: int | None = Field(default=None, ge=1)
    rows: Literal["even", "consecutive", "stated"]
    rows_per_window: int = Field(ge=1)
    windows: list[str] | None = None
    roles: list[Role] = Field(min_length=1)
    measures: list[str] = Field(min_length=1)
    primary: list[str]
    pair_measures: list[str]
    external: ExternalPanel | None = Field(default=None, exclude=True)
    by: tuple[Literal["block", "bucket", "block at bucket"], ...] = Field(default=BY_BLOCK, exclude=True)

    @property
    def possible(self) -> tuple[str, ...]:
        """The measures of single rows that this reference and what is kept allow."""
        if self.reference == "none":
            return WITHOUT_REFERENCE
        if self.keep == "light":
            return LIGHT_ROW_MEASURES if self.reference == "full" else LIGHT_TOPK_ROW_MEASURES
        return ROW_MEASURES if self.reference == "full" else TOPK_ROW_MEASURES

    @property
    def possible_of_pairs(self) -> tuple[str, ...]:
        """The measures of two captures of a row that this reference and what is kept allow."""
        if self.keep == "light":
            return ("kl_pair20",)
        return ("kl_pair_coarse" if self.reference == "topk" else "kl_pair_full", "rows_bit_identical")

    @property
    def kl(self) -> str:
        """The panel's distance from the reference, or its NLL where it has none: the measure that tails and plots are of."""
        if self.reference == "none":
            return "nll"
        if self.keep == "light":
            return "kl_top20" if self.reference == "full" else "kl_pb20"
        return "kl_full" if self.reference == "full" else "kl_coarse"


class CapturePlan(Strict):
    """One score path: the panels that are captured on it, and how often."""

    panels: list[str]
    launches: int = Field(ge=1)
    repeats: int = Field(ge=1)


class Capture(Strict):
    """The score paths of the study, one or both. Every panel is captured on one at least."""

    prefill: CapturePlan | None = None
    decode: CapturePlan | None = None

    @property
    def plans(self) -> tuple[tuple[ScorePath, CapturePlan], ...]:
        """The paths that are captured, prefill first: so are their launches numbered."""
        both: tuple[tuple[ScorePath, CapturePlan | None], ...] = (("prefill", self.prefill), ("decode", self.decode))
        return tuple((path, plan) for path, plan in both if plan is not None)

    def main_path(self, panel: str) -> ScorePath:
        """The score path that a panel's figures are of: prefill, or decode where the panel has no other."""
        return "prefill" if self.prefill and panel in self.prefill.panels else "decode"

    def plan_of(self, path: ScorePath) -> CapturePlan | None:
        return self.prefill if path == "prefill" else self.decode

    @property
    def decode_panels(self) -> tuple[str, ...]:
        return tuple(self.decode.panels) if self.decode else ()

    def runs(self, path: ScorePath) -> tuple[str, ...]:
        """The runs of a score path, as launch.repeat; decode launches are numbered after the prefill ones."""
        plan, first = self.plan_of(path), 1
        if plan is None:
            return ()
        if path == "decode" and self.prefill:
            first += self.prefill.launches
        return tuple(
            f"{first + launch}.{repeat}" for launch in range(plan.launches) for repeat in range(1, plan.repeats + 1)
        )


class Statistics(Strict):
    """How figures are judged: resampling, and the clusters that are resampled."""

    preset: Literal["panel"]
    replicates: int = Field(ge=100)
    seed: int = Field(ge=0, lt=2**64)
    level: float = Field(gt=0.5, lt=1)
    cluster: Literal["document"]


class ComparisonPlan(Strict):
    """One declared pair: difference = candidate - baseline."""

    pair_id: Name
    label: str
    candidate: str
    baseline: str
    candidate_path: ScorePath = "prefill"
    baseline_path: ScorePath = "prefill"
    band: Band | None = Field(default=None, exclude=True)
    """The noise band of this pair's speeds, where it is another than the study's."""
    reply_tests: tuple[ReplyTest, ...] = Field(default=(), exclude=True)
    """The tests of long replies that are declared for this pair; every other one is descriptive."""

    closes: Name | None = Field(default=None, exclude=True)
    """The pair whose gap the candidate's setting is to close: this pair's baseline is that one's candidate, without the setting."""

    @property
    def compares_paths(self) -> bool:
        return self.candidate_path != self.baseline_path


class Protocol(Strict):
    """protocol.toml, whole."""

    schema_: Literal["engcmp.protocol/1"] = Field(alias="schema")
    study: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    question: str
    owners: list[Owner]
    sources: dict[str, Source]
    reference: Reference
    checkpoints: dict[str, AnyCheckpoint]
    engines: dict[str, Engine]
    arms: list[ArmEntry] = Field(min_length=1)
    prompt_set: PromptSetFiles
    panels: dict[PanelName, PanelPlan] = Field(min_length=1)
    capture: Capture
    statistics: Statistics
    comparisons: list[ComparisonPlan]
    throughput: ThroughputPlan | None = None
    startup: StartupPlan | None = None
    long_replies: ReplyPlan | None = None
    releases: dict[Name, ReleaseRule] = Field(default_factory=dict)
    drift: DriftPlan | None = None
    gpus: GpuRules | None = None
    rates: dict[Name, EngineRates] = Field(default_factory=dict)
    families: dict[Name, Family] = Field(default_factory=dict)
    not_run: list[NotRun] = Field(default_factory=list)
    confounds: list[Confound] = Field(default_factory=list)
    reading_rules: list[ReadingRule] = Field(default_factory=list)
    gaps: list[Gap] = Field(default_factory=list)
    deviations: list[Deviation] = Field(default_factory=list)
    limits: dict[str, str]

    @property
    def arm_keys(self) -> tuple[ArmKey, ...]:
        return tuple(ArmKey.parse(entry.arm) for entry in self.arms)

    @property
    def asset_prefix(self) -> str:
        """The study as an asset key segment: `smollm2_cpu`."""
        return self.study.replace("-", "_")

    @property
    def only_outside(self) -> bool:
        """Whether all panels come from outside: then the study needs no text of its own for them."""
        return all(plan.external for plan in self.panels.values())

    def panels_of(self, pair: ComparisonPlan) -> tuple[str, ...]:
        """The panels on which a pair is compared: those of the decode path where it has a part in it, else the others."""
        decoded = set(self.capture.decode_panels)
        on_decode = "decode" in (pair.candidate_path, pair.baseline_path)
        return tuple(name for name in self.panels if (name in decoded) == on_decode)

    def engine_of(self, arm: ArmKey) -> ProcessEngine | ServerEngine:
        """The engine of `arm`, with the arm's settings. Raises EngcmpError for an engine key the protocol does not have."""
        engine = entry_of(self.engines, arm.engine, "engine", self.study)
        return engine.for_arm(arm) if isinstance(engine, ServerEngine) else engine

    def version_of(self, arm: ArmKey) -> EngineVersion:
        """The engine version of `arm`. Raises EngcmpError for a version the protocol does not have."""
        return entry_of(self.engine_of(arm).versions, arm.version, f"version of engine {arm.engine}", self.study)

    def gap_of(self, pair: ComparisonPlan) -> ComparisonPlan | None:
        """The pair whose gap is to be closed by the setting in which the arms of `pair` differ, where that is declared."""
        return next((one for one in self.comparisons if one.pair_id == pair.closes), None)

    def band_of(self, pair: ComparisonPlan) -> Band | None:
        """The noise band that was declared for a pair's speeds: its own, or the study's."""
        return pair.band or (self.throughput.band if self.throughput else None)

    def checkpoint_of(self, arm: ArmKey) -> AnyCheckpoint:
        """The checkpoint of `arm`. Raises EngcmpError for a checkpoint key the protocol does not have."""
        return entry_of(self.checkpoints, arm.checkpoint, "checkpoint", self.study)

    def roles_of(self, arm: ArmKey) -> dict[str, str]:
        """The sources of `arm`'s engine version by their role in the launch: library, launcher, image, and those under `files`."""
        version = self.version_of(arm)
        if version.source is None:
            return dict(version.files)
        entry = entry_of(self.sources, version.source, "source", self.study)
        role = (
            "library"
            if isinstance(entry, WheelSource)
            else "launcher"
            if isinstance(entry, RepositorySource) or (isinstance(entry, ListedSource) and entry.kind == "git")
            else "image"
        )
        return {role: version.source} | dict(version.files)

    def wheels_of(self, source: str) -> WheelSource:
        """A source that is wheels. Raises EngcmpError for another kind."""
        entry = entry_of(self.sources, source, "source", self.study)
        if not isinstance(entry, WheelSource):
            raise EngcmpError(
                f"source {source} is no wheel, and this place takes nothing else", where=f"study {self.study}",
                remedy="pin a wheel",
            )  # fmt: skip
        return entry

    def panel_plan(self, panel: str) -> PanelPlan:
        """How `panel` is captured. Raises EngcmpError for a panel the protocol does not have."""
        return entry_of(self.panels, panel, "panel", self.study)

    def require_arm(self, text: str) -> ArmKey:
        """The protocol's arm that `text` names. Raises EngcmpError naming the part that is unknown and the known arms."""
        arm = ArmKey.parse(text)
        self.checkpoint_of(arm)
        self.version_of(arm)
        if arm not in self.arm_keys:
            known = ", ".join(str(key) for key in self.arm_keys)
            raise EngcmpError(f"study {self.study} has no arm {text}", remedy=f"its arms are {known}")
        return arm


def parse_protocol(data: bytes, *, where: str, files: Mapping[str, bytes] | None = None) -> Protocol:
    """protocol.toml's bytes as a Protocol; `files` are those of the study's folder, of which it may include some.

    Raises EngcmpError that names the field for anything unknown, missing, of the wrong type, or a key that points nowhere.
    """
    raw = read_parts(data, files or {}, where=where)
    try:
        protocol = Protocol.model_validate(raw)
        protocol = protocol.model_copy(update={"sources": with_listed(protocol.sources, files or {}, where=where)})
    except ValidationError as error:
        raise field_error("protocol field", error, where, "mend that field") from error
    check_references(protocol, where)
    return protocol


def field_error(what: str, error: ValidationError, where: str, remedy: str) -> EngcmpError:
    """An error that names the first field at fault by its path."""
    place, words = first_fault(error.errors())
    field = ".".join(str(part) for part in place if not str(part).startswith("kind:")) or "(the whole)"
    return EngcmpError(f"{what} {field}: {words}", where=where, remedy=remedy)


def entry_of(table: Mapping[str, _Item], key: str, what: str, study: str) -> _Item:
    """The entry of a protocol's table. Raises EngcmpError that lists the keys there are."""
    if key not in table:
        raise EngcmpError(f"study {study} has no {what} {key!r}", remedy=f"it has {', '.join(sorted(table)) or 'none'}")
    return table[key]


def check_references(protocol: Protocol, where: str) -> None:
    """Raise EngcmpError, naming the field, for a key that names an entry which does not exist, and for one that stands twice."""

    def need(table: Mapping[str, Any], key: str, field: str) -> None:
        if key not in table:
            raise EngcmpError(
                f"protocol field {field} names {key!r}, which does not exist",
                where=where,
                remedy=f"use one of {', '.join(sorted(table)) or 'none'}",
            )

    def once(names: Sequence[str], field: str) -> None:
        if doubled := sorted(name for name, count in Counter(names).items() if count > 1):
            raise EngcmpError(
                f"protocol field {field} has {doubled[0]!r} twice", where=where, remedy="leave one of them out"
            )

    need(protocol.sources, protocol.reference.weights, "reference.weights")
    for name, engine in protocol.engines.items():
        for version, entry in engine.versions.items():
            field = f"engines.{name}.versions.{version}"
            if entry.source is None and engine.kind != _EXTERNAL:
                raise EngcmpError(
                    f"protocol field {field}.source: Field required",
                    where=where,
                    remedy="name the source that holds this version",
                )
            if entry.source is not None:
                need(protocol.sources, entry.source, f"{field}.source")
            for role, source in entry.files.items():
                need(protocol.sources, source, f"{field}.files.{role}")
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
        _check_paths(protocol, pair, where)
    for name, rule in protocol.releases.items():
        need(protocol.engines, name, "releases")
        _check_rule(protocol, name, rule, where, need)
    for name in protocol.rates:
        need(protocol.engines, name, "rates")
    for index, text in enumerate(protocol.drift.arms if protocol.drift else ()):
        need(arms, text, f"drift.arms.{index}")
    _check_serving(protocol, where)
    once([entry.arm for entry in protocol.arms], "arms")
    once([pair.pair_id for pair in protocol.comparisons], "comparisons")
    _check_panels(protocol, where, need, once)
    for field, what, remedy in declared_faults(protocol):
        raise EngcmpError(f"protocol field {field} {what}", where=where, remedy=remedy)


def _check_serving(protocol: Protocol, where: str) -> None:
    engines, load, startup = list(protocol.engines.items()), protocol.throughput, protocol.startup
    faults = [
        *(plan_faults(load, engines) if load else ()), *(startup_faults(startup, load, engines) if startup else ()),
        *(reply_faults(protocol.long_replies, engines) if protocol.long_replies else ()),
    ]  # fmt: skip
    for field, what, remedy in faults:
        raise EngcmpError(f"protocol field {field} {what}", where=where, remedy=remedy)


def _check_paths(protocol: Protocol, pair: ComparisonPlan, where: str) -> None:
    if (pair.candidate, pair.candidate_path) == (pair.baseline, pair.baseline_path):
        raise EngcmpError(
            f"protocol field comparisons.{pair.pair_id}.baseline is the candidate itself",
            where=where, remedy="name another arm or score path",
        )  # fmt: skip
    if not protocol.panels_of(pair):
        field = "baseline_path" if pair.baseline_path == "decode" else "candidate_path"
        raise EngcmpError(
            f"protocol field comparisons.{pair.pair_id}.{field}: no panel is captured for it",
            where=where, remedy="mend it, or capture.decode.panels",
        )  # fmt: skip


def _check_rule(protocol: Protocol, engine: str, rule: ReleaseRule, where: str, need: _Need) -> None:
    for name in rule.checkpoints:
        need(protocol.checkpoints, name, f"releases.{engine}.checkpoints")
    for version in rule.baselines:
        need(protocol.engines[engine].versions, version, f"releases.{engine}.baselines")
    fault = rule_fault(rule)
    if fault is not None:
        raise EngcmpError(f"protocol field releases.{engine}.{fault[0]} {fault[1]}", where=where, remedy="mend it")


def _check_panels(protocol: Protocol, where: str, need: _Need, once: _Once) -> None:
    for name, plan in protocol.panels.items():
        for kind in ("measures", "primary", "pair_measures"):
            possible = plan.possible_of_pairs if kind == "pair_measures" else plan.possible
            for measure in getattr(plan, kind):
                need(MEASURES, measure, f"panels.{name}.{kind}")
                need(dict.fromkeys(possible), measure, f"panels.{name}.{kind}")
            once(getattr(plan, kind), f"panels.{name}.{kind}")
        once(plan.windows or [], f"panels.{name}.windows")
        once(plan.by, f"panels.{name}.by")
        for measure in plan.primary:
            need(dict.fromkeys(plan.measures), measure, f"panels.{name}.primary")
        if (plan.reference == "topk") != (plan.top_k is not None):
            raise EngcmpError(
                f"protocol field panels.{name}.top_k must stand with reference = topk, and only there",
                where=where,
                remedy="mend it",
            )
    captured: set[str] = set()
    for path, paths_plan in protocol.capture.plans:
        for name in paths_plan.panels:
            need(protocol.panels, name, f"capture.{path}.panels")
        once(paths_plan.panels, f"capture.{path}.panels")
        captured |= set(paths_plan.panels)
    if missing := sorted(set(protocol.panels) - captured):
        raise EngcmpError(
            f"protocol field capture.{'prefill' if protocol.capture.prefill else 'decode'}.panels lacks {missing[0]!r}",
            where=where,
            remedy="every panel is captured on one score path at least",
        )
