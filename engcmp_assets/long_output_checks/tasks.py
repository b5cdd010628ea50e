"""What each check says of a reply, in codes: nothing of a reply's text leaves this module (MEASURES section 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.task_checks.answers import Finish
from engcmp_assets.kernel.task_checks.code_tasks import CodeTask
from engcmp_assets.kernel.task_checks.code_verdicts import Run, check_code
from engcmp_assets.kernel.task_checks.json_check import check_json
from engcmp_assets.kernel.task_checks.json_schemas import Schema
from engcmp_assets.kernel.task_checks.math_check import check_math
from engcmp_assets.kernel.task_checks.needles import check_needle
from engcmp_assets.kernel.tool_calling.grading import MAX_POINTS, grade
from engcmp_assets.kernel.tool_calling.scenarios import Scenario

CHECKS = ("code", "json", "math", "needle", "tools")
_ENDED: Finish = "finished"  # so a check is asked only of those; recovered and empty replies ended by themselves too
_UNFINISHED = ("capped", "stopped_early", "error")
_WHY = {
    "capped": "the reply was capped",
    "stopped_early": "the reply was stopped early",
    "error": "the reply broke off or failed",
}


@dataclass(frozen=True, slots=True)
class JsonTask:
    """What a JSON answer must be: `records` items of the list at JSON Pointer `at`, of this schema."""

    schema: Schema | None
    records: int | None
    at: str = ""


@dataclass(frozen=True, slots=True)
class NeedleTask:
    """The value that was hidden, and those beside it."""

    value: str
    decoys: tuple[str, ...]


Task = CodeTask | JsonTask | Fraction | NeedleTask | Scenario


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """A check's word on a reply. `passed` is Missing where it says nothing; `detail` counts in codes, `points` are of tools alone."""

    check: str
    outcome: str
    passed: bool | Missing
    score: float | Missing
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades replies. `unfit` are the checks that may not grade, each with its reason: no sandbox, or a failed self-test."""

    run: Run | None
    unfit: Mapping[str, Missing] = field(default_factory=dict)

    def verdict(self, task: Task, answer: str, finish: str, turns: Sequence[Mapping[str, Any]] | None) -> TaskVerdict:
        """The verdict on an answer span (never the reasoning), or on a conversation's turns where the task is a scenario.

        A `recovered` reply has finished. One that was cut is Missing, never wrong.
        """
        check = check_of(task)
        if check in self.unfit:
            return TaskVerdict(check, "not_graded", self.unfit[check], self.unfit[check])
        if isinstance(task, Scenario):
            return _tools(task, finish, turns)
        if finish in _UNFINISHED:
            why = Missing(_WHY[finish])
            return TaskVerdict(check, finish, why, why)
        return self._code(task, answer) if isinstance(task, CodeTask) else _answer(task, check, answer)

    def _code(self, task: CodeTask, answer: str) -> TaskVerdict:
        if self.run is None:
            why = Missing("no sandbox")
            return TaskVerdict("code", "not_graded", why, why)
        found = check_code(answer, _ENDED, task, self.run)
        if found.outcome == "harness_broken":
            why = Missing("the harness broke")
            return TaskVerdict("code", found.outcome, why, why)
        counts = ";".join(f"{name}={count}" for name, count in sorted(Counter(found.tests).items()))
        share = found.tests.count("passed") / len(task.tests)
        return TaskVerdict("code", found.outcome, found.outcome == "passed", share, counts)


def _answer(task: JsonTask | NeedleTask | Fraction, check: str, answer: str) -> TaskVerdict:
    if isinstance(task, JsonTask):
        data = answer.encode("utf-8", "surrogatepass")
        found = check_json(data, _ENDED, schema=task.schema, records=task.records, at=task.at)
        counted = "none" if found.records is None else found.records
        detail = f"records={counted};unfenced={'yes' if found.unfenced else 'no'}"
        return _plain(check, found.outcome, found.outcome == "valid", detail)
    if isinstance(task, NeedleTask):
        said = check_needle(answer, _ENDED, task.value, task.decoys)
        return _plain(check, said, said == "found", "")
    given = check_math(answer, _ENDED, task)
    return _plain(check, given.outcome, given.outcome == "right", f"values={len(given.given)}")


def check_of(task: Task) -> str:
    """The name of the check that a task is graded by."""
    if isinstance(task, Fraction):
        return "math"
    kinds = {CodeTask: "code", JsonTask: "json", NeedleTask: "needle", Scenario: "tools"}
    return kinds[type(task)]


def _tools(scenario: Scenario, finish: str, turns: Sequence[Mapping[str, Any]] | None) -> TaskVerdict:
    if turns is None:
        why = Missing(_WHY["error"] if finish == "error" else "no conversation was kept")
        return TaskVerdict("tools", "error", why, why)
    found = grade(scenario, {"turns": turns})
    if isinstance(found.points, Missing):  # its own reason may quote what a server said
        why = Missing(_WHY["capped" if found.outcome == "capped" else "error"])
        return TaskVerdict("tools", found.outcome, why, why)
    return TaskVerdict(
        "tools", found.outcome, found.points == MAX_POINTS, float(found.points), f"remarks={len(found.reasons)}"
    )


def _plain(check: str, outcome: str, passed: bool, detail: str) -> TaskVerdict:
    return TaskVerdict(check, outcome, passed, float(passed), detail)
