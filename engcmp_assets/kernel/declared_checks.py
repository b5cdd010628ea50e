"""Whether the tables that say what is known of a study (families, confounds, rules, labels, external panels) point at what exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from engcmp_assets.kernel.engine_tables import ServerEngine
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import population_parts
from engcmp_assets.kernel.reading_rules import Baseline, Statistic, rule_faults
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.study_tables import PublishedCheckpoint
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_resources.errors import EngcmpError

if TYPE_CHECKING:
    from engcmp_assets.kernel.protocol import ComparisonPlan, Protocol

Fault = tuple[str, str, str]
_MEND = "mend it"
_PART = {(False, False): "", (True, False): "block", (False, True): "bucket", (True, True): "block at bucket"}


def declared_faults(protocol: Protocol) -> Iterator[Fault]:
    """Every fault: (field of the protocol, what is wrong, remedy)."""
    yield from _checkpoints(protocol)
    yield from _arms(protocol)
    yield from _engines(protocol)
    yield from _pairs(protocol)
    yield from _rules(protocol)
    yield from _panels(protocol)


def _checkpoints(protocol: Protocol) -> Iterator[Fault]:
    for name, checkpoint in protocol.checkpoints.items():
        kind = "published" if isinstance(checkpoint, PublishedCheckpoint) else "made_from"
        source = getattr(checkpoint, kind)
        if source not in protocol.sources:
            yield f"checkpoints.{name}.{kind}", f"names {source!r}, which does not exist", (
                f"use one of {', '.join(sorted(protocol.sources)) or 'none'}"
            )  # fmt: skip
        if isinstance(checkpoint, PublishedCheckpoint):
            for index, parent in enumerate(checkpoint.derived_from):
                if parent not in protocol.checkpoints or parent == name:
                    yield (
                        f"checkpoints.{name}.derived_from.{index}",
                        f"names {parent!r}, which is no other checkpoint",
                        _MEND,
                    )
    for name, family in protocol.families.items():
        for index, one in enumerate(family.checkpoints):
            if one not in protocol.checkpoints:
                yield f"families.{name}.checkpoints.{index}", f"names {one!r}, which does not exist", _MEND


def _arms(protocol: Protocol) -> Iterator[Fault]:
    measured = {entry.arm for entry in protocol.arms}
    for index, other in enumerate(protocol.not_run):
        field = f"not_run.{index}.arm"
        try:
            arm = ArmKey.parse(other.arm)
        except EngcmpError as error:
            yield field, error.what, str(error.remedy)
            continue
        if other.arm in measured:
            yield (
                field,
                f"{other.arm!r} stands among the arms too",
                "an arm is measured or it is not: leave one of them out",
            )
        if arm.checkpoint not in protocol.checkpoints:
            yield field, f"names checkpoint {arm.checkpoint!r}, which does not exist", _MEND
        if arm.engine not in protocol.engines or arm.version not in protocol.engines[arm.engine].versions:
            yield field, f"names {arm.engine}@{arm.version}, which does not exist", _MEND
        else:
            yield from _setting(protocol, arm, field)
    for index, entry in enumerate(protocol.arms):
        yield from _setting(protocol, ArmKey.parse(entry.arm), f"arms.{index}.arm")
        known = {run for path, _ in protocol.capture.plans for run in protocol.capture.runs(path)}
        if unknown := sorted(set(entry.runs) - known):
            yield f"arms.{index}.runs", f"names run {unknown[0]}; there are {', '.join(sorted(known))}", _MEND
    labels = Counter(label for entry in protocol.arms for label in entry.runs.values())
    for label in sorted(label for label, count in labels.items() if count > 1):
        yield "arms", f"give the label {label!r} to two runs", "a label is of one run"
    doubled = Counter(one.arm for one in protocol.not_run)
    for name in sorted(name for name, count in doubled.items() if count > 1):
        yield "not_run", f"has {name!r} twice", "leave one of them out"


def _setting(protocol: Protocol, arm: ArmKey, field: str) -> Iterator[Fault]:
    """An arm's `+setting` must be declared: an undeclared one would be the engine as shipped under another name."""
    engine = protocol.engines[arm.engine]
    known = engine.for_settings if isinstance(engine, ServerEngine) else {}
    if arm.setting is not None and arm.setting not in known:
        yield field, f"has the setting {arm.setting!r}, which engine {arm.engine} does not declare", (
            f"declare it as engines.{arm.engine}.for_settings.{arm.setting}"
        )  # fmt: skip


def _engines(protocol: Protocol) -> Iterator[Fault]:
    for name, engine in protocol.engines.items():
        if isinstance(engine, ServerEngine):
            for one in sorted(set(engine.for_checkpoints) - set(protocol.checkpoints)):
                yield f"engines.{name}.for_checkpoints.{one}", "is of no checkpoint of the protocol", _MEND


def _pairs(protocol: Protocol) -> Iterator[Fault]:
    pairs = {pair.pair_id for pair in protocol.comparisons}
    for name, family in protocol.families.items():
        if family.control is not None and family.control not in pairs:
            yield f"families.{name}.control", f"names pair {family.control!r}, which does not exist", _MEND
    for plan in protocol.comparisons:
        if plan.closes is not None:
            yield from _closing(protocol, plan)
    ids = Counter(one.id for one in protocol.confounds)
    for name in sorted(name for name, count in ids.items() if count > 1):
        yield "confounds", f"have {name!r} twice", "leave one of them out"
    for confound in protocol.confounds:
        for pair in sorted(set(confound.pairs) - pairs):
            yield f"confounds.{confound.id}.pairs", f"names {pair!r}, which does not exist", _MEND


def _closing(protocol: Protocol, pair: ComparisonPlan) -> Iterator[Fault]:
    """A gap is closed by a setting of its own candidate, read on the same score path."""
    field, gap = f"comparisons.{pair.pair_id}.closes", protocol.gap_of(pair)
    if gap is None or gap is pair:
        yield field, f"names pair {pair.closes!r}, which is no other pair", _MEND
        return
    if gap.candidate != pair.baseline:
        yield (
            field,
            f"names a pair of {gap.candidate}, and the setting is held against {pair.baseline}",
            "name the pair of that arm",
        )
    candidate, baseline = ArmKey.parse(pair.candidate), ArmKey.parse(pair.baseline)
    if candidate.without_setting() != baseline.without_setting() or candidate.setting is None:
        yield field, "stands with arms that differ in more than a setting of the candidate", _MEND
    if pair.compares_paths or gap.compares_paths or pair.baseline_path != gap.candidate_path:
        yield field, "needs one score path on all sides", _MEND


def _rules(protocol: Protocol) -> Iterator[Fault]:
    arms = {entry.arm: entry for entry in protocol.arms}
    ids = Counter(rule.id for rule in protocol.reading_rules)
    for name in sorted(name for name, count in ids.items() if count > 1):
        yield "reading_rules", f"have {name!r} twice", "leave one of them out"
    for rule in protocol.reading_rules:
        field = f"reading_rules.{rule.id}"
        for part, what, remedy in rule_faults(rule):
            yield f"{field}.{part}", what, remedy
        if rule.statistic is None or rule.baseline is None:
            continue
        for part, arm in (("statistic.candidate", rule.statistic.candidate), ("baseline.arm", rule.baseline.arm)):
            if arm is not None and arm not in arms:
                yield f"{field}.{part}", f"names {arm!r}, which is no arm", _MEND
        yield from _statistic(protocol, rule.statistic, rule.baseline, f"{field}.statistic")
        runs = rule.baseline.runs
        if isinstance(runs, list) and rule.baseline.arm in arms:
            for run in sorted(set(runs) - set(arms[rule.baseline.arm].runs.values())):
                yield (
                    f"{field}.baseline.runs",
                    f"names {run!r}, which is no label of a run of {rule.baseline.arm}",
                    _MEND,
                )


def _statistic(protocol: Protocol, statistic: Statistic, baseline: Baseline, field: str) -> Iterator[Fault]:
    """Whether the study makes the figure that a rule speaks of: its measure, population and pair must be declared."""
    name, plan = statistic.measure, protocol.panels.get(statistic.panel or "")
    if statistic.panel is not None and plan is None:
        yield f"{field}.panel", f"names {statistic.panel!r}, which does not exist", _MEND
    elif plan is not None:
        declared = plan.pair_measures if statistic.kind == "pair" else plan.measures
        if name not in declared:
            yield f"{field}.measure", f"is {name!r}, which panel {statistic.panel} does not declare", (
                f"use one of {', '.join(declared)}"
            )  # fmt: skip
        parts = population_parts(statistic.population)
        kind = None if parts is None else _PART[(parts[0] is not None, parts[1] is not None)]
        if kind is None or (kind and kind not in plan.by):
            yield f"{field}.population", f"is {statistic.population!r}, at which panel {statistic.panel} declares no look", (
                f"use all, or a part by {', '.join(plan.by)}"
            )  # fmt: skip
    else:
        blocks = {
            "throughput": (SPEED_IDS, protocol.throughput), "startup": (STARTUP_IDS, protocol.startup),
            "long_replies": (REPLY_IDS, protocol.long_replies),
        }  # fmt: skip
        block = next((one for one, (ids, _) in blocks.items() if name in ids), None)
        if block is None and name in MEASURES:
            yield f"{field}.panel", f"is not named, and {name} is read on the rows of a panel", "name the panel"
        elif block is not None and blocks[block][1] is None:
            yield (
                f"{field}.measure",
                f"is {name!r}, and the study has no table {block}",
                "add the table, or leave the rule out",
            )
    pairs = {(pair.candidate, pair.baseline) for pair in protocol.comparisons}
    compared = statistic.kind in ("difference", "ratio", "pair") and baseline.arm is not None
    if compared and (statistic.candidate, baseline.arm) not in pairs:
        yield f"{field}.candidate", f"is {statistic.candidate!r}, and no pair of it and {baseline.arm} is declared", (
            "declare it under [[comparisons]]"
        )  # fmt: skip


def _panels(protocol: Protocol) -> Iterator[Fault]:
    tokenizer = protocol.prompt_set.tokenizer
    if tokenizer is not None and tokenizer not in protocol.sources:
        yield "prompt_set.tokenizer", f"names {tokenizer!r}, which does not exist", _MEND
    for name, plan in protocol.panels.items():
        field = f"panels.{name}"
        if (plan.rows == "stated") != (plan.external is not None):
            yield f"{field}.rows", "is `stated` with a table external, and only there", _MEND
        if plan.reference == "none" and plan.keep == "light":
            yield (
                f"{field}.keep",
                "is light, and the panel has no reference: engines are compared by whole rows",
                "keep rows",
            )
        if plan.external is None:
            continue
        if plan.external.source not in protocol.sources:
            yield f"{field}.external.source", f"names {plan.external.source!r}, which does not exist", _MEND
        layouts = {"full": "teacher", "topk": "topk", "none": "tokens"}
        if plan.external.layout != layouts[plan.reference]:
            yield f"{field}.external.layout", f"does not give a reference of kind {plan.reference}", (
                f"write {layouts[plan.reference]}, or another reference"
            )  # fmt: skip
        if plan.external.windows_file is not None and plan.external.layout != "topk":
            yield f"{field}.external.windows_file", "is of a fidelity set, whose rows are of layout topk", _MEND
