"""Whether a reply gives the right number (MEASURES section 7): one declared answer line, an own small grammar, exact fractions.

The grammar: an optional sign, then an integer, a fraction `a/b` or a decimal, of ASCII digits only, 50 digits at most. No percent, no
thousands marks, no exponent, no words. Nothing of a reply is ever evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from engcmp_assets.kernel.task_checks.answers import Finish, Unfinished, hold, unfinished

MOST_DIGITS = 50
INSTRUCTION = (
    "End with one line `ANSWER: <number>`: an integer, a fraction such as 3/4, or a decimal, and nothing else."
)

Outcome = Literal["right", "wrong", "empty", "no_answer", "malformed", "several_answers"] | Unfinished
_MARKS = "*_`"  # emphasis, which says nothing of the number
_BEGIN = "ANSWER:"
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+|/[0-9]+)?")


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """`given` are the values of the answer lines that are numbers, each once, in order."""

    outcome: Outcome
    given: tuple[Fraction, ...]


def parse_number(text: str) -> Fraction | None:
    """The value of a number of the grammar, None for anything else, a zero denominator and more than 50 digits included."""
    if sum(sign.isdigit() for sign in text) > MOST_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def check_math(reply: str, finish: Finish, right: Fraction) -> MathVerdict:
    """The verdict on an answer span. Several answer lines must all give one value; different answers are `several_answers`: wrong."""
    ended = unfinished(finish)
    if ended is not None:
        return MathVerdict(ended, ())
    if not reply.strip():
        return MathVerdict("empty", ())
    values = [parse_number(line) for line in _answer_lines(reply)]
    given = tuple(dict.fromkeys(value for value in values if value is not None))
    if not values:
        return MathVerdict("no_answer", ())
    if len(given) > 1:
        return MathVerdict("several_answers", given)
    if None in values:
        return MathVerdict("malformed", given)
    return MathVerdict("right" if given == (right,) else "wrong", given)


def _answer_lines(reply: str) -> list[str]:
    """What follows ANSWER: on each line that begins with it, emphasis left out."""
    bare = (line.strip(" \t\r").strip(_MARKS) for line in reply.split("\n"))
    return [line.removeprefix(_BEGIN).strip(f" \t{_MARKS}") for line in bare if line.startswith(_BEGIN)]


def self_test() -> None:
    """Planted replies with their known outcomes. Raises EngcmpError where one differs: then nothing may be graded."""
    cases = {
        "so\nANSWER: 42": "right",
        "ANSWER: 84/2\nas said:\n**ANSWER: 42.0**": "right",
        "ANSWER: 41\nno, wait\nANSWER: 42": "several_answers",
        "ANSWER: 41, no wait 42": "malformed",
        "ANSWER: 42 %": "malformed",
        "ANSWER: 42/0": "malformed",
        "ANSWER: __import__('os').getpid()": "malformed",
        "ANSWER: " + "4" * 51: "malformed",
        "the answer is 42": "no_answer",
        "ANSWER: 43": "wrong",
        "": "empty",
    }
    hold(
        "math", [(repr(text), check_math(text, "finished", Fraction(42)).outcome, want) for text, want in cases.items()]
    )
    powers = Fraction(1, 2**99), Fraction(1, 2**98)
    hold("math", [("1/2^99 beside 1/2^98", check_math(f"ANSWER: {powers[0]}", "finished", powers[1]).outcome, "wrong")])
    hold("math", [("a cut reply", check_math("ANSWER: 41", "capped", Fraction(42)).outcome, "capped")])
