"""Tasks that are drawn or written here rather than read from files: lists of records as JSON, and arithmetic problems from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from engcmp_assets.kernel.splitmix import indices
from engcmp_assets.kernel.task_checks.math_check import INSTRUCTION

_DRAWN = 4  # numbers of each problem
RECORDS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1},
            "name": {"type": "string", "minLength": 1},
            "city": {"type": "string", "minLength": 1},
            "joined": {"type": "string", "format": "date"},
            "active": {"type": "boolean"},
        },
        "required": ["id", "name", "city", "joined", "active"],
        "additionalProperties": False,
    },
}
"""The schema of every list of records."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An arithmetic problem and its exact answer."""

    text: str
    answer: Fraction


def records_prompt(records: int) -> str:
    """What is asked for a list of so many records."""
    return (
        f"Write a JSON array of exactly {records} objects and nothing else: no code fence, no comment. Each object has the keys "
        '"id" (an integer, counting up from 1), "name" (a person\'s name), "city" (a city), "joined" (a date as YYYY-MM-DD) and '
        '"active" (true or false).'
    )


def problems(count: int, seed: int) -> tuple[Problem, ...]:
    """The first `count` problems of a seed, of four forms in turn."""
    drawn = [int(number) for number in indices(90, count * _DRAWN, seed)]
    found = []
    for index in range(count):
        numbers = [10 + number for number in drawn[index * _DRAWN : (index + 1) * _DRAWN]]
        text, answer = _FORMS[index % len(_FORMS)](*numbers)
        found.append(Problem(f"{text}\n\n{INSTRUCTION}", answer))
    return tuple(found)


def _takings(loaves: int, euros: int, rolls: int, cents: int) -> tuple[str, Fraction]:
    text = f"A baker sells {loaves} loaves at {euros} euros each and {rolls} rolls at {cents} cents each. How many euros does he take in?"
    return text, Fraction(loaves * euros) + Fraction(rolls * cents, 100)


def _tank(litres: int, more: int, leak: int, tenfold: int) -> tuple[str, Fraction]:
    text = (
        f"A tank of {litres * tenfold} litres is empty. A pump fills in {leak + more} litres a minute, and a leak lets out {leak} litres "
        "a minute. After how many minutes is the tank full?"
    )
    return text, Fraction(litres * tenfold, more)


def _recipe(people: int, grams: int, guests: int, spare: int) -> tuple[str, Fraction]:
    text = (
        f"A recipe for {people} people needs {grams} grams of flour. A cook makes it for {guests} people and keeps {spare} grams of flour "
        "as a reserve. How many grams of flour does she need in all?"
    )
    return text, Fraction(grams * guests, people) + spare


def _train(first: int, second: int, hours: int, behind: int) -> tuple[str, Fraction]:
    text = (
        f"A train goes {first} kilometres in each of the first {hours} hours and {second} in each of the next {hours}. Another one is "
        f"{behind} kilometres behind it at the end. How many kilometres has the second one gone?"
    )
    return text, Fraction((first + second) * hours - behind)


_FORMS: tuple[Callable[[int, int, int, int], tuple[str, Fraction]], ...] = (_takings, _tank, _recipe, _train)
