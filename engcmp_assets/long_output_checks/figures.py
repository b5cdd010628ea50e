"""The figures of an arm's replies from their verdicts alone: shares with their interval, medians under the cap, points with a floor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import REPLY_PANEL, figure_id
from engcmp_assets.kernel.records import ArmKey, Figure, Interval, Missing, plain
from engcmp_assets.kernel.replies.hits import ON_REPORTING_SEEDS
from engcmp_assets.kernel.replies.spans import Thresholds
from engcmp_assets.kernel.reply_lengths.medians import CappedMedian, capped_median
from engcmp_assets.kernel.reply_lengths.records import ReplyLength, reply_length, thinking_length
from engcmp_assets.kernel.reply_measures import PASSED_OF, SHARES
from engcmp_assets.kernel.reply_verdicts import ENDINGS, Verdict, population_of
from engcmp_assets.kernel.tool_calling.builtin import SUITE, VERSION
from engcmp_assets.kernel.tool_calling.grading import MAX_POINTS
from engcmp_assets.kernel.tool_calling.suite_runs import flips
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, Preset, population_mean, wilson

SCHEMA = "engcmp.long-output-checks/1"
ALL_KINDS = "all"
_CHECK_OF = {
    "code_passed": "code",
    "json_valid": "json",
    "json_valid_unfenced": "json",
    "math_right": "math",
    "needle_found": "needle",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """How figures are judged: the protocol's resampling and level."""

    preset: Preset
    level: float


@dataclass(frozen=True, slots=True)
class Group:
    """Replies of one block and stage, of one kind of content or of all, under one cap where they share one."""

    block: str
    stage: str
    kind: str
    verdicts: tuple[Verdict, ...]

    @property
    def population(self) -> str:
        return population_of(self.block, self.stage, self.kind)


def groups_of(verdicts: Sequence[Verdict]) -> list[Group]:
    """Every block, stage and kind in the order of the replies; a stage of several kinds also as a whole."""
    found: dict[tuple[str, str], dict[str, list[Verdict]]] = {}
    for one in verdicts:
        found.setdefault((one.block, one.stage), {}).setdefault(one.kind, []).append(one)
    groups = []
    for (block, stage), kinds in found.items():
        if len(kinds) > 1:
            groups.append(Group(block, stage, ALL_KINDS, tuple(one for own in kinds.values() for one in own)))
        groups += [Group(block, stage, kind, tuple(own)) for kind, own in kinds.items()]
    return groups


def checks_document(
    verdicts: Sequence[Verdict], figures: Sequence[Figure], unfit: Mapping[str, Missing], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """checks.json: every group with its endings and figures, what the detectors are worth, what could not be graded and why.

    `facts` are the self-tests that ran, the sandbox and the tokenizer's proof, as the build found them.
    """
    by_population: dict[str, list[dict[str, Any]]] = {}
    for one in figures:
        by_population.setdefault(one.population, []).append(one.as_json())
    return {
        "schema": SCHEMA,
        **facts,
        "thresholds": asdict(Thresholds()),
        "detectors_on_the_labelled_corpus": plain(ON_REPORTING_SEEDS),
        "missing": {name: one.reason for name, one in sorted(unfit.items())},
        "groups": [_group(group, by_population.get(group.population, [])) for group in groups_of(verdicts)],
    }


def _group(group: Group, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted = Counter(one.ending for one in group.verdicts)
    return {
        "population": group.population, "block": group.block, "stage": group.stage, "kind": group.kind,
        "caps": sorted({one.cap_tokens for one in group.verdicts}), "replies": len(group.verdicts),
        "endings": {name: counted[name] for name in ENDINGS if counted[name]},
        "capped_in": dict(sorted(Counter(one.ended_in for one in group.verdicts if one.finish == "capped").items())),
        "detectors": dict(sorted(Counter(one.detector for one in group.verdicts if one.detector).items())),
        "too_short_to_judge": sum(one.judged == "no" and one.finish in ("capped", "stopped_early") for one in group.verdicts),
        "not_graded": dict(sorted(Counter(one.reason or "" for one in group.verdicts if one.check and one.passed is None).items())),
        "with_control_tokens": sum(bool(one.control_tokens) for one in group.verdicts),
        "figures": list(figures),
    }  # fmt: skip


def reply_figures(
    study: str, arm: ArmKey, verdicts: Sequence[Verdict], unfit: Mapping[str, Missing], judged: Judged
) -> list[Figure]:
    """Every figure of every group. `unfit` are the checks that may not grade: their figures are Missing with that reason."""
    figures: list[Figure] = []
    for group in groups_of(verdicts):
        make = _Maker(study, arm, group, judged)
        if group.block != "tools":
            figures += [make.ending(name) for name in SHARES]
            figures.append(make.length("reply_tokens", _whole))
            if any(one.reasoning_tokens for one in group.verdicts):
                figures.append(make.length("thinking_tokens", _thinking))
        checks = {one.check for one in group.verdicts if one.check}
        for check in sorted(checks & set(PASSED_OF)):
            figures.append(make.passed(PASSED_OF[check], unfit.get(check), lambda one: one.passed == "yes"))
            if check == "json":
                figures.append(make.passed("json_valid_unfenced", unfit.get(check), _unfenced))
        if "tools" in checks:
            figures.append(make.points(unfit.get("tools")))
    return figures


@dataclass(frozen=True, slots=True)
class _Told:
    """A figure's value with its interval, and what it was counted from."""

    value: float | Missing
    interval: Interval | Missing
    replies: int
    prompts: int


class _Maker:
    def __init__(self, study: str, arm: ArmKey, group: Group, judged: Judged) -> None:
        self._study, self._arm, self._group, self._judged = study, arm, group, judged

    def ending(self, measure: str) -> Figure:
        """The share of one ending among the replies that did not fail."""
        word = measure.removeprefix("reply_")
        kept = [one for one in self._group.verdicts if one.ending != "error"]
        return self._share(
            measure,
            [(one, one.ending == word) for one in kept],
            "no reply came to an end",
            failed=len(self._group.verdicts) - len(kept),
        )

    def passed(self, measure: str, unfit: Missing | None, right: Callable[[Verdict], bool]) -> Figure:
        """The share of the graded replies that are right."""
        own = [one for one in self._group.verdicts if one.check == _CHECK_OF[measure]]
        graded = [one for one in own if one.passed is not None]
        if unfit is not None:
            return self._figure(measure, _Told(unfit, unfit, 0, 0), {"not_graded": len(own)})
        return self._share(
            measure, [(one, right(one)) for one in graded], "no reply was graded", not_graded=len(own) - len(graded)
        )

    def _share(self, measure: str, told: Sequence[tuple[Verdict, bool]], none: str, **more: int) -> Figure:
        count, items = sum(yes for _, yes in told), [one.item for one, _ in told]
        details = {"count": count, "of": len(told)} | more
        if not told:
            return self._figure(measure, _Told(Missing(none), Missing(none), 0, 0), details)
        interval: Interval | Missing = wilson(count, len(told), level=self._judged.level)
        clusters = len(set(items))
        if clusters < len(items) and clusters >= BOOTSTRAP_CLUSTERS:
            # Several replies to one prompt are no independent trials.
            interval = population_mean(
                [float(yes) for _, yes in told],
                items,
                preset=self._judged.preset,
                level=self._judged.level,
                kind="proportion",
            ).interval
        elif clusters < len(items):
            interval = Missing(
                f"{len(items)} replies to {clusters} prompts are no independent trials; resampling needs {BOOTSTRAP_CLUSTERS} prompts"
            )
        return self._figure(measure, _Told(count / len(told), interval, len(told), clusters), details)

    def length(self, measure: str, of: Callable[[Verdict], ReplyLength | None]) -> Figure:
        """The median under the cap."""
        lengths = [one for one in map(of, self._group.verdicts) if one is not None]
        caps = {one.cap_tokens for one in self._group.verdicts}
        found = capped_median(lengths, level=self._judged.level)
        if len(caps) > 1:
            why = Missing("the replies do not share one cap")
            found = CappedMedian(why, why, found.replies, found.capped, found.left_out)
        items = {one.prompt_id for one in lengths}
        details = {"capped": found.capped, "left_out": dict(found.left_out)}
        interval = found.interval
        if len(items) < len(lengths) and isinstance(interval, Interval):
            interval = Missing(f"{len(lengths)} replies to {len(items)} prompts are not independent")
        return self._figure(measure, _Told(found.value, interval, found.replies, len(items)), details)

    def points(self, unfit: Missing | None) -> Figure:
        """Points of the scenarios, over all repeats, with flips between repeats as the floor."""
        own = [one for one in self._group.verdicts if one.check == "tools"]
        graded = [one for one in own if one.score is not None]
        runs = scenario_runs(own)
        floor = flips(runs) if runs else Missing("no scenario was held")
        details = {
            "points": sum(int(one.score or 0) for one in graded), "max_points": MAX_POINTS * len(graded),
            "not_graded": len(own) - len(graded),
            "suite": SUITE, "version": VERSION, "scenarios": sorted({one.item for one in own}), "repeats": len(runs), "flips": plain(floor),
        }  # fmt: skip
        why = Missing("points are told of their maximum; flips between repeats are their floor")
        value: float | Missing = float(details["points"]) if graded else Missing("no scenario was graded")
        if unfit is not None:
            value = why = unfit
        return self._figure("tool_points", _Told(value, why, len(graded), len({one.item for one in graded})), details)

    def _figure(self, measure: str, told: _Told, details: Mapping[str, Any]) -> Figure:
        definition, population = MEASURES[measure], self._group.population
        return Figure(
            figure_id=figure_id(f"{self._study}/{self._arm}", REPLY_PANEL, population, measure),
            label=f"{self._arm}, {population}: {definition.title}",
            measure=measure, measure_version=definition.version, unit=definition.unit, panel=REPLY_PANEL, population=population,
            value=told.value, interval=told.interval, rows=told.replies, clusters=told.prompts, details={"arm": str(self._arm), **details},
        )  # fmt: skip


def scenario_runs(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """The repeats of the scenarios as runs of the suite; only those that hold every scenario."""
    own = [one for one in verdicts if one.check == "tools"]
    every, repeats = {one.item for one in own}, sorted({one.repeat for one in own})
    runs = []
    for repeat in repeats:
        held = {one.item: one for one in own if one.repeat == repeat}
        if set(held) == every:
            scenarios = [
                {
                    "scenario_id": name, "outcome": one.outcome,
                    "points": None if one.score is None else int(one.score), "turn_ms": [] if one.turn_ms is None else [one.turn_ms],
                }
                for name, one in sorted(held.items())
            ]  # fmt: skip
            runs.append(
                {
                    "suite": SUITE,
                    "version": VERSION,
                    "settings": {"cap_tokens": min(one.cap_tokens for one in held.values())},
                    "scenarios": scenarios,
                }
            )
    return runs


def _whole(one: Verdict) -> ReplyLength | None:
    if one.n_tokens is None:
        return None
    return reply_length(one.item, one.n_tokens, one.finish, looped=one.looped == "yes")


def _thinking(one: Verdict) -> ReplyLength | None:
    """None for a reply without thinking, as where it was turned off."""
    if not one.reasoning_tokens:
        return None
    ended_in: Any = one.ended_in
    return thinking_length(one.item, one.reasoning_tokens, one.finish, looped=one.looped == "yes", ended_in=ended_in)


def _unfenced(one: Verdict) -> bool:
    return "unfenced=yes" in (one.detail or "")
