"""What a scenario is: tools, the world behind them, and user turns, each with the calls and values that it asks for.

Every turn's answer is judged by values of one shape (codes such as `B-90417`, numbers of four digits or more), never by wording.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A code before a number: so the digits of a code are no number.
SHAPE = re.compile(r"(?<![\w-])(?:[A-Z]{1,3}-[0-9]{3,8}|[0-9]{4,})(?![\w-])", re.IGNORECASE)
_GROUPED = re.compile("(?<=[0-9])[,'\u2019\u00a0\u202f\u2009](?=[0-9]{3}(?![0-9]))")
_HYPHENS = {code: "-" for code in (*range(0x2010, 0x2015), 0x2212)}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of each argument; all are required but those with a `default`.

    `acts`: a call changes something in the world, so one too many is an error that no answer repairs.
    """

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    acts: bool = False

    def as_json(self) -> dict[str, Any]:
        """The tool as the chat API takes it."""
        schema = {
            "type": "object",
            "properties": {name: dict(one) for name, one in self.parameters.items()},
            "required": [name for name, one in self.parameters.items() if "default" not in one],
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


@dataclass(frozen=True, slots=True)
class Call:
    """A call with its arguments."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """What the world answers to a call: one result each time, the last one ever after."""

    call: Call
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message, the calls that it takes (in any order; a call listed twice is made twice), and the values of the answer."""

    user: str
    calls: tuple[Call, ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A conversation of several turns. `about` says what it tests."""

    scenario_id: str
    about: str
    tools: tuple[Tool, ...]
    world: tuple[Known, ...]
    turns: tuple[Turn, ...]

    def tool(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)


def values_in(text: str) -> set[str]:
    """The codes and numbers of a text, in capitals, digits ungrouped."""
    plain = _GROUPED.sub("", unicodedata.normalize("NFKC", text.translate(_HYPHENS)))
    return {found.upper() for found in SHAPE.findall(plain)}


def canonical(tool: Tool, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments as they are compared: text without regard to case and outer spaces, defaults filled in, numbers by value, lists as sets
    where the schema says uniqueItems. A number in quotes is no number, and true is not 1.
    """
    filled = {name: one["default"] for name, one in tool.parameters.items() if "default" in one} | dict(arguments)
    return tuple(sorted((name, _plain(value, tool.parameters.get(name, {}))) for name, value in filled.items()))


def _plain(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return ("text", " ".join(value.translate(_HYPHENS).casefold().split()))
    if isinstance(value, bool) or value is None:
        return ("constant", str(value))
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, list):
        parts = [_plain(one, {}) for one in value]
        return ("list", tuple(sorted(parts, key=repr) if schema.get("uniqueItems") else parts))
    return ("other", repr(value))
