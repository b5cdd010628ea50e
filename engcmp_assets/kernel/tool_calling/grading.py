"""The grader of the built-in scenarios: pass 2, partial 1, fail 0, by calls and values alone (MEASURES section 7).

Every turn's calls must have been made with the right arguments, nothing may have been done that was not asked for, and an answer may hold
no code or number that neither the user nor the results of those calls gave (one made up after a failed tool is such), nor another one
in place of what was asked for. Partial: all that, but for a malformed or needless reading call on the way, or an answer that lacks a value.
So a model that is idle, errs or only talks earns no point.
A reply cut by its length is capped, and a server that refused or broke off is an error: both are missing, never 0.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.tool_calling.scenarios import Call, Scenario, Turn, canonical, values_in
from engcmp_assets.kernel.tool_calling.world import parsed

Outcome = Literal["pass", "partial", "fail", "capped", "error"]
POINTS: dict[Outcome, int] = {"pass": 2, "partial": 1, "fail": 0}
MAX_POINTS = 2
_DIGITS = re.compile("[0-9]{4,}")  # also of a date, which an answer may write in another order


@dataclass(frozen=True, slots=True)
class Grade:
    """A scenario's outcome with its reasons; `points` 0 to 2, Missing where the conversation was cut or broke off."""

    outcome: Outcome
    points: int | Missing
    reasons: tuple[str, ...]


def grade(scenario: Scenario, conversation: Mapping[str, Any]) -> Grade:
    """Grade a conversation as the runner records it: `{"turns": [{"steps": [{"content", "tool_calls": [{"name", "arguments"}],
    "finish_reason"}], "failure"}]}`. The same conversation has the same grade, always.
    """
    turns: Sequence[Mapping[str, Any]] = conversation["turns"]
    for number, turn in enumerate(turns, 1):
        if any(step["finish_reason"] == "length" for step in turn["steps"]):
            reason = f"turn {number}: cut by max_tokens"
            return Grade("capped", Missing(reason), (reason,))
        if turn["failure"] is not None:
            reason = f"turn {number}: {turn['failure']}"
            return Grade("error", Missing(reason), (reason,))
    faults, blemishes = [], []
    told, given = set[str](), set[str]()
    for number, wanted in enumerate(scenario.turns, 1):
        told |= values_in(wanted.user) | set(_DIGITS.findall(wanted.user))
        given |= _results(scenario, wanted)
        if number > len(turns):
            faults.append(f"turn {number}: the conversation ended before it")
            continue
        wrong, untidy = _turn(scenario, wanted, turns[number - 1]["steps"], told, given)
        faults += [f"turn {number}: {one}" for one in wrong]
        blemishes += [f"turn {number}: {one}" for one in untidy]
    outcome: Outcome = "fail" if faults else "partial" if blemishes else "pass"
    return Grade(outcome, POINTS[outcome], (*faults, *blemishes))


def _results(scenario: Scenario, wanted: Turn) -> set[str]:
    """The values that the calls of a turn give."""
    keys = {_key(scenario, call) for call in wanted.calls}
    results = [known.results for known in scenario.world if _key(scenario, known.call) in keys]
    return values_in(json.dumps(results))


def _turn(
    scenario: Scenario, wanted: Turn, steps: Sequence[Mapping[str, Any]], told: set[str], given: set[str]
) -> tuple[list[str], list[str]]:
    """What is wrong in a turn, and what is only untidy. `told` are the user's values, `given` those of the calls, so far."""
    wrong, untidy = _calls(scenario, wanted, [call for step in steps for call in step["tool_calls"]])
    if not steps or steps[-1]["tool_calls"]:
        return [*wrong, "no answer: it ended with calls"], untidy
    said = values_in(steps[-1]["content"] or "")
    wrong += [f"the answer says {value}, which nothing gave" for value in sorted(said - told - given)]
    lacking = [value for value in wanted.values if value not in said]
    instead = sorted(said - told - set(wanted.values))
    if lacking and instead:
        wrong.append(f"the answer says {', '.join(instead)} in place of {', '.join(lacking)}")
    elif lacking:
        untidy.append(f"the answer lacks {', '.join(lacking)}")
    return wrong, untidy


def _calls(scenario: Scenario, wanted: Turn, made: Sequence[Mapping[str, str]]) -> tuple[list[str], list[str]]:
    left = Counter(_key(scenario, call) for call in wanted.calls)
    wrong: list[str] = []
    untidy: list[str] = []
    for one in made:
        tool, arguments = scenario.tool(one["name"]), parsed(one["arguments"])
        if tool is None:
            untidy.append(f"called {one['name']}, which there is not")
        elif arguments is None:
            untidy.append(f"called {one['name']} with arguments that are no JSON object")
        elif left[key := (tool.name, canonical(tool, arguments))] > 0:
            left[key] -= 1
        else:
            (wrong if tool.acts else untidy).append(
                f"called {one['name']} with {one['arguments']}, which was not asked for"
            )
    wrong += [
        f"did not call {tool} with {dict(_readable(given))}" for (tool, given), times in left.items() if times > 0
    ]
    return wrong, untidy


def _key(scenario: Scenario, call: Call) -> tuple[str, tuple[Any, ...]]:
    tool = scenario.tool(call.tool)
    if tool is None:
        raise KeyError(f"{scenario.scenario_id} has no tool {call.tool}")
    return call.tool, canonical(tool, call.arguments)


def _readable(given: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(name, value[1]) for name, value in given]
