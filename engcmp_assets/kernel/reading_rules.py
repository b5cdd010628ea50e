"""Reading rules: how a question of the study will be answered, declared before the data, and applied by machine.

A rule names its statistic, its baseline and its bound; one that leaves any of them open is refused (`rule_faults`). "Moves by more than the
interval" is none: it says neither which end of which interval is held against what, nor against which run. `apply_rule` gives the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from engcmp_assets.kernel.fields import Name, Strict
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_resources.errors import EngcmpError

_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
VerdictWord = Literal[
    "resolved", "baseline-dependent", "not resolved", "no floor", "within bar", "not shown within bar", "level", "faster", "slower",
    "bit-identical", "not comparable", "descriptive",
]  # fmt: skip
"""The closed list of MEASURES section 5: a rule may end in no other word. What it means here is the case's own sentence."""
_OF_PAIRS = ("kl_pair_full", "kl_pair_coarse", "kl_pair20", "rows_bit_identical")
MEAN = "mean of the runs"
"""The key of the figure against the mean of all runs of the baseline."""
VALUE = "value"
"""The key of a figure that is the candidate's alone."""


class Statistic(Strict):
    """What is looked at: a measure on a population, as a difference (candidate minus baseline), a ratio, or a value of the candidate.

    `pair` is a measure of two captures together, as an equality of rows. `gap_closed` is the share of the gap between the baseline and the
    candidate without its setting that the setting closes: the candidate's key ends in `+setting`, and the panel is named. `panel` is None
    for what is measured on no panel (speeds, replies). `population` is `all`, `block:B`, `bucket:8-16K`, `block:B,bucket:8-16K`, a
    cell, `each cell` (a verdict for each), or a length.
    """

    measure: _Words
    kind: Literal["difference", "ratio", "value", "pair", "gap_closed"]
    panel: str | None = None
    population: _Words
    candidate: _Words


class Baseline(Strict):
    """What it is held against: an arm, or a fixed value for a `value` statistic; and which of the arm's runs.

    `each run`: the case must hold against every one of them. `mean of the runs`: against their mean of each row. A list names runs.
    """

    arm: str | None = None
    value: Annotated[float, Field(allow_inf_nan=False)] | None = None
    runs: Literal["each run", "mean of the runs"] | list[str] | None = None


class Case(Strict):
    """A verdict and when it is given: a part of the figure, above or below (or at) a limit. `means` says it in words."""

    part: Literal["value", "interval low", "interval high"]
    relation: Literal["above", "below", "at least", "at most", "equals"]
    limit: Annotated[float, Field(allow_inf_nan=False)]
    verdict: VerdictWord
    means: _Words

    def holds(self, figure: Mapping[str, Any]) -> bool:
        """Whether it does for one figure, {"value", "interval": {"low", "high"}}. Raises KeyError where it lacks the part."""
        found = float(figure["value"] if self.part == "value" else figure["interval"][self.part.split()[1]])
        held: dict[str, bool] = {
            "above": found > self.limit,
            "below": found < self.limit,
            "at least": found >= self.limit,
            "at most": found <= self.limit,
            "equals": found == self.limit,
        }
        return held[self.relation]


class Otherwise(Strict):
    """The verdict where no case holds."""

    verdict: VerdictWord
    means: _Words


class ReadingRule(Strict):
    """One rule. The fields that make it a rule may be left out in the file, and are then refused by name.

    `cases` are looked at in order. `level` is that of the interval they speak of. `text` is the rule in words; it decides nothing.
    """

    id: Name
    question: _Words
    text: str | None = None
    statistic: Statistic | None = None
    baseline: Baseline | None = None
    level: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    cases: list[Case] = Field(default_factory=list)
    otherwise: Otherwise | None = None
    declared: Literal["before the data", "after the data"] = "before the data"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule says of the figures: the verdict, its sentence, and how each run of the baseline was read."""

    rule_id: str
    verdict: str
    means: str
    by_run: Mapping[str, str]


def rule_faults(rule: ReadingRule) -> Iterator[tuple[str, str, str]]:
    """Why this is no rule: (field, what is wrong, remedy). Nothing for one that can be applied by machine."""
    if rule.statistic is None:
        yield "statistic", "is not named: of which measure, panel and population it speaks", "write a table statistic"
    elif rule.statistic.measure not in MEASURES:
        yield (
            "statistic.measure",
            f"{rule.statistic.measure!r} is no measure",
            f"use one of {', '.join(MEASURES)}",
        )
    elif rule.statistic.kind not in (kinds := kinds_of(rule.statistic.measure)):
        yield (
            "statistic.kind",
            f"is {rule.statistic.kind!r}, which no figure of {rule.statistic.measure} is",
            f"use {' or '.join(kinds)}",
        )
    if rule.baseline is None or (rule.baseline.arm is None) == (rule.baseline.value is None):
        yield (
            "baseline",
            "is not named: an arm, or a value",
            "write a table baseline with `arm` and `runs`, or with `value`",
        )
    elif rule.baseline.arm is not None and not rule.baseline.runs:
        yield (
            "baseline.runs",
            "is not named: an answer may depend on the run",
            'write "each run", "mean of the runs", or a list',
        )
    if not rule.cases or rule.otherwise is None:
        yield (
            "bound",
            "is not named: which part of the figure decides, and beyond which limit; an interval has two ends and a width",
            "write `cases` (part, relation, limit, verdict) and `otherwise`",
        )
    if rule.level is None and any(case.part != "value" for case in rule.cases):
        yield "level", "is not named: at which level the interval is taken", "write level = 0.95"
    if rule.level is not None and rule.cases and all(case.part == "value" for case in rule.cases):
        yield (
            "level",
            "is named and no case speaks of an interval",
            "leave it out, or write a case on an end of the interval",
        )
    yield from _contradictions(rule)


def kinds_of(measure: str) -> tuple[str, ...]:
    """The kinds of statistic that a measure's figures are of: two captures together, speeds as ratios, rows as differences and shares."""
    if measure in _OF_PAIRS:
        return ("pair",)
    if measure in SPEED_IDS or measure in STARTUP_IDS:
        return ("ratio", "value")
    if measure in REPLY_IDS:
        return ("difference", "ratio", "value")
    return ("difference", "value", "gap_closed")


def refuse_vague(rule: ReadingRule, *, where: str) -> None:
    """Raise EngcmpError with the first fault of a rule."""
    for field, what, remedy in rule_faults(rule):
        raise EngcmpError(f"reading rule {rule.id}: {field} {what}", where=where, remedy=remedy)


def apply_rule(rule: ReadingRule, figures: Mapping[str, Mapping[str, Any]]) -> Reading:
    """The verdict of a rule. `figures` are by run of the baseline, or `mean of the runs`, or `value`: each has `value` and `interval`.

    Where the runs are read differently the verdict is `baseline-dependent`; where a figure is missing it is `not comparable`, with its
    reason. Raises EngcmpError for a vague rule and for figures of other runs than the rule names.
    """
    refuse_vague(rule, where="reading rules")
    baseline = rule.baseline
    if baseline is None or rule.otherwise is None:
        raise EngcmpError(f"reading rule {rule.id} has no baseline", remedy="this is a fault of engcmp: report it")
    _refuse_other_runs(rule, baseline, figures)
    read: dict[str, Case | Otherwise | str] = {
        run: _read(rule, rule.otherwise, figure) for run, figure in figures.items()
    }
    missing = {run: found for run, found in read.items() if isinstance(found, str)}
    told = {run: found if isinstance(found, str) else found.verdict for run, found in read.items()}
    if missing:
        run, why = next(iter(missing.items()))
        return Reading(rule.id, "not comparable", f"against {run}: {why}", told)
    cases = [found for found in read.values() if not isinstance(found, str)]
    if any(found != cases[0] for found in cases):
        by_run = "; ".join(f"{run}: {verdict}" for run, verdict in told.items())
        return Reading(rule.id, "baseline-dependent", f"the runs of the baseline are read differently: {by_run}", told)
    return Reading(rule.id, cases[0].verdict, cases[0].means, told)


def _read(rule: ReadingRule, otherwise: Otherwise, figure: Mapping[str, Any]) -> Case | Otherwise | str:
    """The case that holds, or why none can be told."""
    value, interval = figure.get("value"), figure.get("interval")
    if value is None or isinstance(value, Mapping):
        return str((value or {}).get("missing") or "no value")
    if any(case.part != "value" for case in rule.cases):
        if not isinstance(interval, Mapping) or "low" not in interval:
            return str((interval or {}).get("missing") or "no interval")
        if interval.get("level", rule.level) != rule.level:
            return f"its interval is of level {interval['level']:g}, the rule speaks of {rule.level:g}"
    return next((case for case in rule.cases if case.holds(figure)), otherwise)


def _refuse_other_runs(rule: ReadingRule, baseline: Baseline, figures: Mapping[str, Any]) -> None:
    named: set[str] | None = None
    if baseline.value is not None:
        named = {VALUE}
    elif baseline.runs == MEAN:
        named = {MEAN}
    elif isinstance(baseline.runs, list):
        named = set(baseline.runs)
    if not figures or (named is not None and set(figures) != named):
        raise EngcmpError(
            f"reading rule {rule.id} is given figures of {', '.join(sorted(figures)) or 'nothing'}", where="reading rules",
            remedy=f"give it those of {', '.join(sorted(named)) if named else 'each run of ' + str(baseline.arm)}",
        )  # fmt: skip


def _contradictions(rule: ReadingRule) -> Iterator[tuple[str, str, str]]:
    statistic, baseline = rule.statistic, rule.baseline
    if statistic is None or baseline is None:
        return
    if statistic.kind == "value" and baseline.arm is not None:
        yield (
            "baseline.arm",
            "stands with a statistic of kind value, which is the candidate's alone",
            "write a value, or another kind",
        )
    if statistic.kind != "value" and baseline.value is not None:
        yield "baseline.value", f"stands with a statistic of kind {statistic.kind}, which needs an arm", "name the arm"
    if statistic.kind == "gap_closed" and "+" not in statistic.candidate:
        yield (
            "statistic.candidate",
            "has no setting, whose share of a gap could be told",
            "name CHECKPOINT/ENGINE@VERSION+SETTING",
        )
    if statistic.kind == "gap_closed" and statistic.panel is None:
        yield "statistic.panel", "is not named: a gap is one of rows", "name the panel"
    if baseline.arm is not None and baseline.arm == statistic.candidate:
        yield "baseline.arm", "is the candidate itself", "name another arm"
    if isinstance(baseline.runs, list) and len(set(baseline.runs)) != len(baseline.runs):
        yield "baseline.runs", "names a run twice", "leave one of them out"
