"""A declared pair of arms as long replies: how they ended, what they passed, how long they are, and whether they are the same.

Arms are paired by prompt, never by seed; only versions of one engine are also held against each other seed by seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.fixed_traces import EndLogProb, TracePosition, end_differences
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import REPLY_PANEL, figure_id
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import ArmKey, Interval, Missing, plain
from engcmp_assets.kernel.reply_comparison import (
    NamedTest,
    RepliesUnderCap,
    ReplyFacts,
    ReplyIdentity,
    compare_replies,
    reply_identity,
)
from engcmp_assets.kernel.reply_lengths.comparing import LengthComparison
from engcmp_assets.kernel.reply_lengths.paired import SignTest
from engcmp_assets.kernel.reply_measures import TEST_OF
from engcmp_assets.kernel.reply_plan import again_of
from engcmp_assets.kernel.reply_verdicts import Verdict, population_of
from engcmp_assets.kernel.tool_calling.suite_runs import SuiteComparison, compare_runs
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_resources.errors import EngcmpError

_REPLICATES = 1000  # of the censored fit, which is refitted for each
DESCRIPTIVE, RESOLVED, NOT_RESOLVED = "descriptive", "resolved", "not resolved"
_P = 0.05
_CHECKS = ("passed", "json_valid")
_COUNTED = Missing("counted, not estimated")
_OTHER_LAUNCH = Missing("replies are made a second time in another launch")
_SHARES = {
    "finished": "reply_finished",
    "capped": "reply_capped",
    "looped": "reply_looped",
    "recovered": "reply_recovered",
}
_PASSED = {"code": "code_passed", "json": "json_valid", "math": "math_right", "needle": "needle_found"}


@dataclass(frozen=True, slots=True)
class ArmSide:
    """An arm's judged replies, its runs of scenarios by stage, and what its frozen traces say of the end of thinking."""

    arm: ArmKey
    verdicts: Sequence[Verdict]
    runs: Mapping[str, Sequence[Mapping[str, Any]]]
    traces: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Judging:
    """How a pair is judged: resampling, level, and the tests (of reply_comparison.TESTS) that the protocol declares for it."""

    preset: Preset
    level: float
    declared: Collection[str] = ()


def replies_document(
    study: str, plan: ComparisonPlan, sides: tuple[ArmSide, ArmSide], judging: Judging
) -> dict[str, Any]:
    """The replies of a pair as SUMMARY.json holds them; `sides` is (candidate, baseline).

    `stages` one entry for each block and stage under one cap, `tools` one for each number of scenarios at once, `traces` by kind of
    position, `figures` what `engcmp trace` takes.
    """
    candidate, baseline = sides
    names = list(dict.fromkeys((one.block, one.stage) for one in (*baseline.verdicts, *candidate.verdicts)))
    stages = [_Stage(study, plan, sides, judging, name) for name in names if name[0] not in ("again", "tools", "trace")]
    return {
        "stages": [one.document() for one in stages],
        "tools": [_tools(name, candidate, baseline) for name in sorted({*candidate.runs, *baseline.runs})],
        "traces": _traces(candidate, baseline, judging),
        "figures": [figure for one in stages for figure in one.figures()],
    }


def facts_of(verdicts: Sequence[Verdict]) -> list[ReplyFacts]:
    """The replies as the comparison takes them: prompts by item, no text."""
    return [
        ReplyFacts(
            prompt_id=one.item, seed=one.seed, finish=one.finish, looped=one.looped == "yes",
            ended_in="reasoning" if one.ended_in == "reasoning" else "answer", tokens=one.n_tokens or 0,
            reasoning_tokens=one.reasoning_tokens or None, text_sha256=one.text_sha256 or "", ids_sha256=one.token_ids_sha256,
            prefix_digests=one.prefix_digests, passed=one.graded, json_valid=one.graded if one.check == "json" else _NO_JSON,
        )
        for one in verdicts
    ]  # fmt: skip


_NO_JSON = Missing("no check of JSON applies")


@dataclass(frozen=True, slots=True)
class _Told:
    """A figure of a pair: its value, its interval, what to say of it, its test, and how many replies it is of."""

    value: float | Missing
    interval: Interval | Missing
    words: str
    replies: int
    test: NamedTest | None = None
    sides: tuple[Any, Any] = (None, None)
    sensitivity: Any = None
    floor: Any = None


@dataclass(frozen=True, slots=True)
class _Compared:
    """A stage of both arms, compared, and the check that its replies have."""

    under_cap: RepliesUnderCap
    same: ReplyIdentity | Missing
    repeated: tuple[ReplyIdentity | Missing, ReplyIdentity | Missing]
    """Of the same build twice, candidate and baseline: the floor of `same`."""
    check: str | None

    @property
    def tests(self) -> dict[str, NamedTest]:
        """Of the checks' tests only that of the check that the replies have."""
        own = {"json": "json_valid"}.get(self.check or "", "passed") if self.check else None
        return {one.name: one for one in self.under_cap.tests if one.name not in _CHECKS or one.name == own}

    @property
    def same_build(self) -> dict[str, Any]:
        """What each side reads when the same build makes the replies twice."""
        return {side: plain(one) if isinstance(one, Missing) else _identity(one) for side, one in self._sides}

    @property
    def floor(self) -> dict[str, Any]:
        """The floor of `same` as floors stand beside figures: of the build that repeats fewer of its own."""
        least = self._least
        across = plain(least) if isinstance(least, Missing) else {"value": least, "interval": plain(_COUNTED)}
        return {"within_launch": plain(_OTHER_LAUNCH), "across_launches": across}

    @property
    def told_of_repeats(self) -> _Told:
        """The floor as a figure of its own."""
        words = "; ".join(f"{side} {one.reason if isinstance(one, Missing) else one}" for side, one in self._sides)
        replies = sum(one.compared for one in self.repeated if not isinstance(one, Missing))
        shares = [plain(one if isinstance(one, Missing) else _share(one)) for one in self.repeated]
        return _Told(self._least, _COUNTED, words, replies, sides=(shares[0], shares[1]))

    @property
    def _least(self) -> float | Missing:
        shares = [one if isinstance(one, Missing) else _share(one) for one in self.repeated]
        known = [one for one in shares if not isinstance(one, Missing)]
        lacking = [one for one in shares if isinstance(one, Missing)]
        return lacking[0] if lacking else min(known)

    @property
    def _sides(self) -> Iterator[tuple[str, ReplyIdentity | Missing]]:
        return zip(("candidate", "baseline"), self.repeated, strict=True)


class _Stage:
    """One block and stage of a pair."""

    def __init__(
        self, study: str, plan: ComparisonPlan, sides: tuple[ArmSide, ArmSide], judging: Judging, name: tuple[str, str]
    ) -> None:
        self._study, self._plan = study, plan
        self.block, self.stage = name
        self.population = population_of(self.block, self.stage, self.block)
        own = [[one for one in side.verdicts if (one.block, one.stage) == name] for side in sides]
        self.caps = sorted({one.cap_tokens for side in own for one in side})
        self.found = self._compare(sides, own, judging)

    def _compare(
        self, sides: tuple[ArmSide, ArmSide], own: Sequence[Sequence[Verdict]], judging: Judging
    ) -> _Compared | Missing:
        for side, replies in zip(sides, own, strict=True):
            if not replies:
                return Missing(f"{side.arm} has no such reply")
        if len(self.caps) != 1:
            return Missing("the replies do not share one cap")
        candidate, baseline = (facts_of(replies) for replies in own)
        few = Preset(min(_REPLICATES, judging.preset.replicates), judging.preset.seed)
        check = next((one.check for replies in own for one in replies if one.check), None)
        try:
            found = compare_replies(baseline, candidate, self.caps[0], declared=judging.declared, preset=few)
            same = reply_identity(sides[1].arm, sides[0].arm, baseline, candidate)
            return _Compared(found, same, (self._repeated(sides[0]), self._repeated(sides[1])), check)
        except EngcmpError as error:
            return Missing(error.what)

    def _repeated(self, side: ArmSide) -> ReplyIdentity | Missing:
        """The replies that the arm made a second time under their seeds, beside those of its first time."""
        again = facts_of([one for one in side.verdicts if (one.block, one.stage) == ("again", again_of(self.stage))])
        if self.block != "long" or not again:
            return Missing(f"{side.arm} made no reply of this stage a second time under its seed")
        both = {(one.prompt_id, one.seed) for one in again}
        own = [one for one in side.verdicts if (one.block, one.stage) == (self.block, self.stage)]
        first = [one for one in facts_of(own) if (one.prompt_id, one.seed) in both]
        return reply_identity(side.arm, side.arm, first, again)

    def document(self) -> dict[str, Any]:
        """The stage as the pages show it."""
        head: dict[str, Any] = {
            "population": self.population,
            "block": self.block,
            "stage": self.stage,
            "caps": self.caps,
        }
        if isinstance(self.found, Missing):
            return {**head, **plain(self.found)}
        own, same = self.found.under_cap, self.found.same
        thinking = own.thinking
        document: dict[str, Any] = {
            "check": self.found.check, "candidate": plain(own.candidate), "baseline": plain(own.baseline),
            "tests": [{"name": one.name, "standing": one.standing, **plain(one.test)} for one in self.found.tests.values()],
            "ungraded_prompts": own.ungraded_pairs["passed"], "lengths": _lengths(own.lengths),
            "thinking": plain(thinking) if isinstance(thinking, Missing) else _lengths(thinking),
            "identity": plain(same) if isinstance(same, Missing) else _identity(same) | {"same_build": self.found.same_build},
        }  # fmt: skip
        return head | document

    def figures(self) -> Iterator[dict[str, Any]]:
        """Differences of shares, ratios of lengths, and identity."""
        if isinstance(self.found, Missing):
            return
        own, tests = self.found.under_cap, self.found.tests
        arms = (own.candidate, own.baseline)
        for word, measure in _SHARES.items():
            counts = [(side.endings.get(word, 0), side.replies - side.endings.get("error", 0)) for side in arms]
            yield self._figure(measure, _difference(counts, tests.get(TEST_OF.get(measure, ""))))
        if self.found.check in _PASSED:
            counts = [(side.passed, side.passed_graded) for side in arms]
            yield self._figure(
                _PASSED[self.found.check], _difference(counts, tests.get("passed", tests.get("json_valid")))
            )
        yield self._figure("length_ratio", _ratio(own.lengths, tests.get("longer")))
        if not isinstance(own.thinking, Missing):
            yield self._figure("thinking_ratio", _ratio(own.thinking, tests.get("thinks_longer")))
        same = self.found.same
        if not isinstance(same, Missing):
            told = _Told(_share(same), _COUNTED, str(same), same.compared, floor=self.found.floor)
            yield self._figure("reply_identical", told)
            yield self._figure("reply_repeated", self.found.told_of_repeats)

    def _figure(self, measure: str, told: _Told) -> dict[str, Any]:
        definition, plan = MEASURES[measure], self._plan
        verdict, said = _verdict(told.test)
        return {
            "figure_id": figure_id(f"{self._study}/pair/{plan.pair_id}", REPLY_PANEL, self.population, measure),
            "label": f"{plan.label}, {self.population}: {definition.title}, candidate beside baseline",
            "measure": measure, "measure_version": definition.version, "unit": definition.unit, "panel": REPLY_PANEL,
            "population": self.population, "arms": f"{plan.candidate} / {plan.baseline}", "value": plain(told.value),
            "interval": plain(told.interval), "candidate_value": told.sides[0], "baseline_value": told.sides[1],
            "verdict": verdict, "sentence": "; ".join(one for one in (told.words, said) if one), "primary": False,
            "floor": told.floor, "sensitivity": told.sensitivity, "rows": told.replies,
            "clusters": told.test.test.decided + told.test.test.undecided if told.test else 0,
        }  # fmt: skip


def _share(found: ReplyIdentity) -> float | Missing:
    return found.identical / found.compared if found.compared else Missing("no reply has a partner")


def _identity(found: ReplyIdentity) -> dict[str, Any]:
    document: dict[str, Any] = plain(found)
    return document | {"sentence": str(found)}


def _difference(counts: Sequence[tuple[int, int]], test: NamedTest | None) -> _Told:
    """The difference of two shares; how sure it is stands in the exact test by prompt, not in an interval."""
    (more, of), (fewer, of_base) = counts
    value: float | Missing = more / of - fewer / of_base if of and of_base else Missing("no reply of one arm counts")
    words, why = (
        f"{more} of {of}, baseline {fewer} of {of_base}",
        Missing("the exact test by prompt says how sure it is"),
    )
    sides = tuple(plain(count / all_ if all_ else Missing("no reply counts")) for count, all_ in counts)
    return _Told(value, why, words, of + of_base, test, (sides[0], sides[1]))


def _ratio(lengths: LengthComparison, test: NamedTest | None) -> _Told:
    """The ratio of the main count, and beside it what the sensitivity gives."""
    own = lengths.main.ratio
    words = f"{own.prompts} prompts, capped {own.candidate_capped:.0%} and {own.baseline_capped:.0%} of the baseline's"
    return _Told(
        own.ratio, own.interval, words, 2 * own.prompts, test, sensitivity=plain(lengths.sensitivity.ratio.ratio)
    )


def _lengths(found: LengthComparison) -> dict[str, Any]:
    """Without the lengths themselves, which verdicts.parquet of each arm has."""
    document = {}
    for name, one in (("main", found.main), ("sensitivity", found.sensitivity)):
        document[name] = {
            "prompts": len(one.lengths.pairs), "left_out": plain(dict(one.lengths.left_out)), "surplus": one.lengths.surplus,
            "prompts_left_out": list(one.lengths.prompts_left_out), "capped": plain(one.capped), "longer": plain(one.longer),
            "ratio": plain(one.ratio), "under_cap": plain(one.under_cap),
        }  # fmt: skip
    return document


def _verdict(test: NamedTest | None) -> tuple[str, str]:
    """Descriptive unless the test was declared before the run; then resolved where its exact p says so."""
    if test is None:
        return DESCRIPTIVE, ""
    found: SignTest = test.test
    p = found.p.reason if isinstance(found.p, Missing) else f"exact p = {found.p:.3g}"
    said = f"by prompt {found.candidate_more} more, {found.baseline_more} fewer, {found.undecided} equal: {p}"
    if test.standing != "declared":
        return DESCRIPTIVE, said
    return RESOLVED if not isinstance(found.p, Missing) and found.p < _P else NOT_RESOLVED, said


def _tools(stage: str, candidate: ArmSide, baseline: ArmSide) -> dict[str, Any]:
    """Scenarios at one number at once: points, flips between repeats as the floor, exact tests, time of a message."""
    runs = baseline.runs.get(stage, ()), candidate.runs.get(stage, ())
    try:
        found: SuiteComparison = compare_runs(*runs)
    except EngcmpError as error:
        return {"stage": stage, "missing": error.what}
    return {
        "stage": stage,
        "standing": DESCRIPTIVE,
        **plain(found),
        "sentences": [[str(one) for one in side] for side in (found.candidate, found.baseline)],
    }


def _traces(candidate: ArmSide, baseline: ArmSide, judging: Judging) -> Any:
    """How likely the end of thinking is at the same places of the same frozen traces."""
    if not candidate.traces and not baseline.traces:
        return None
    second, first = _positions(candidate), _positions(baseline)
    if isinstance(first, Missing) or isinstance(second, Missing):
        return plain(first if isinstance(first, Missing) else second)
    try:
        return [plain(one) for one in end_differences(first, second, preset=judging.preset, level=judging.level)]
    except EngcmpError as error:
        return {"missing": error.what}


def _positions(side: ArmSide) -> dict[TracePosition, EndLogProb] | Missing:
    lacking = [one["end"]["missing"] for one in side.traces if "missing" in one["end"]]
    if lacking or not side.traces:
        return Missing(f"{side.arm}: {lacking[0] if lacking else 'no trace was continued'}")
    return {
        TracePosition(one["trace_id"], one["row"], one["kind"]): EndLogProb(one["end"]["log_prob"], one["end"]["bound"])
        for one in side.traces
    }
