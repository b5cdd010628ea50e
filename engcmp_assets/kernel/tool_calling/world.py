"""The world behind a scenario's tools: it answers each call from a table, the same way every time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from engcmp_assets.kernel.tool_calling.scenarios import Scenario, canonical

NOTHING = {"error": "nothing is known under these arguments"}


class World:
    """One conversation's world; it counts what it was asked. Make a new one for each conversation."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._asked: Counter[Any] = Counter()

    def respond(self, name: str, arguments: str) -> str:
        """The result of a call as JSON text. Whatever cannot be carried out is an `error` that says why, and changes nothing."""
        return json.dumps(self._result(name, arguments))

    def _result(self, name: str, arguments: str) -> Any:
        tool = self._scenario.tool(name)
        if tool is None:
            return {"error": f"there is no tool {name!r}"}
        given = parsed(arguments)
        if given is None:
            return {"error": "the arguments are not a JSON object"}
        key = (name, canonical(tool, given))
        for known in self._scenario.world:
            if (known.call.tool, canonical(tool, known.call.arguments)) == key:
                self._asked[key] += 1
                return known.results[min(self._asked[key], len(known.results)) - 1]
        return NOTHING


def parsed(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None where they are no JSON object, have a name twice, or hold NaN or Infinity. Nothing is repaired."""
    try:
        found = json.loads(arguments, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _refuse(name: str) -> Any:
    raise ValueError(name)
