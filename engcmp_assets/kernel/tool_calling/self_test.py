"""The self-test of the grader, run before it grades: planted conversations whose grades are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS
from engcmp_assets.kernel.tool_calling.grading import grade
from engcmp_assets.kernel.tool_calling.scenarios import Call, Scenario
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError


def step(content: str | None = None, calls: Iterable[tuple[str, str]] = (), finish: str = "stop") -> dict[str, Any]:
    """One assistant message as the runner records it; `calls` are names and arguments as sent."""
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"content": content, "tool_calls": made, "finish_reason": finish}


def conversation(turns: Iterable[Sequence[Mapping[str, Any]]], failure: str | None = None) -> dict[str, Any]:
    """Turns of steps as the runner records them; `failure` is of the last turn."""
    told: list[dict[str, Any]] = [{"steps": list(steps), "failure": None} for steps in turns]
    if told:
        told[-1]["failure"] = failure
    return {"turns": told}


def sent(call: Call) -> tuple[str, str]:
    """A call as a model sends it: name and arguments as text."""
    return call.tool, canonical_bytes(dict(call.arguments)).decode()


def reference(scenario: Scenario) -> list[list[dict[str, Any]]]:
    """The turns of a conversation in which all is done right: each call in a step of its own, then the values."""
    return [
        [
            *(step(calls=[sent(call)], finish="tool_calls") for call in turn.calls),
            step(f"Here: {', '.join(turn.values)}."),
        ]
        for turn in scenario.turns
    ]


def check_grader() -> None:
    """Raises EngcmpError where the grader does not give a planted conversation its grade: nothing may be graded then."""
    for scenario in SCENARIOS:
        right = reference(scenario)
        planted = {
            "the reference": (conversation(right), "pass"),
            "an idle model": (conversation([[step("")]] * len(right)), "fail"),
            "text without calls": (conversation([[turn[-1]] for turn in right]), "fail"),
            "an invented code": (conversation([*right[:-1], [*right[-1][:-1], step("It is QQ-11111.")]]), "fail"),
            "a refused request": (conversation([[]], "HTTP 400"), "error"),
            "a cut reply": (conversation([*right[:-1], [step("It is", finish="length")]]), "capped"),
        }
        for what, (told, wanted) in planted.items():
            found = grade(scenario, told)
            if found.outcome != wanted:
                raise EngcmpError(
                    f"scenario {scenario.scenario_id}: {what} is graded {found.outcome}, not {wanted}: {found.reasons}",
                    remedy="the grader is broken: report it; nothing was graded",
                )
