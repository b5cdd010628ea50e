"""Prose, Chinese prose, code and records from a seeded generator, as much of it as is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

_LINES = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").splitlines()
_WORDS = {line.split()[0]: line.split()[1:] for line in _LINES}
NOUNS, VERBS, ADJECTIVES, LINKS = (_WORDS[name] for name in ("NOUNS", "VERBS", "ADJECTIVES", "LINKS"))
CHINESE, CHINESE_VERBS, CHINESE_LINKS = (_WORDS[name] for name in ("CHINESE", "CHINESE_VERBS", "CHINESE_LINKS"))

OPENERS = (
    "However, ", "Wait, ", "So ", "Then ", "Now ", "In that case ", "Actually, ", "Hmm, ", "On the other hand, ", "Let me see: ", "Still, ",
    "For example, ", "To be sure, ", "Next, ", "", "", "", "", "", "",
)  # fmt: skip


def sentence(chance: Random) -> str:
    def phrase() -> str:
        return f"the {chance.choice(ADJECTIVES)} {chance.choice(NOUNS)}"

    text = f"{phrase()} {chance.choice(VERBS)} {phrase()}"
    if chance.random() < 0.6:
        text += f" {chance.choice(LINKS)} {phrase()} {chance.choice(VERBS)} {chance.choice(NOUNS)} {chance.randrange(2, 9999)}"
    opener = chance.choice(OPENERS)
    text = opener + (text if opener else text.capitalize())
    return text + chance.choice("...?.;.!").replace(";", ".")


def paragraph(chance: Random) -> str:
    return " ".join(sentence(chance) for _ in range(chance.randint(3, 9)))


def chinese(chance: Random) -> str:
    clauses = [
        chance.choice(CHINESE_LINKS) * (chance.random() < 0.4)
        + chance.choice(CHINESE) + chance.choice(CHINESE_VERBS) + chance.choice(CHINESE) + "的" + chance.choice(CHINESE)
        for _ in range(chance.randint(1, 4))
    ]  # fmt: skip
    return "\N{FULLWIDTH COMMA}".join(clauses) + "。"


def legal(chance: Random) -> str:
    """A clause as licences have them: set phrases, in ever new company."""
    return (
        f"Subject to the terms and conditions of this License, each {chance.choice(NOUNS)} hereby grants to You a "
        f"{chance.choice(ADJECTIVES)}, worldwide, non-exclusive, no-charge licence to {chance.choice(VERBS).rstrip('s')} the "
        f"{chance.choice(NOUNS)} and the {chance.choice(ADJECTIVES)} {chance.choice(NOUNS)}, provided that the above copyright notice "
        f"and this permission notice appear in every {chance.choice(NOUNS)}. THE {chance.choice(NOUNS).upper()} IS PROVIDED \"AS IS\", "
        f"WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF {chance.choice(NOUNS).upper()}."
    )  # fmt: skip


def function(chance: Random) -> str:
    name, one, two = (chance.choice(NOUNS) for _ in range(3))
    lines = [
        f"def {chance.choice(VERBS)}_{name}({one}, {two}_{chance.randrange(99)}=None):",
        f'    """{sentence(chance)}"""',
    ]
    for _ in range(chance.randint(3, 9)):
        left, right = chance.choice(NOUNS), chance.choice(NOUNS)
        shapes = (
            f"    {left} = {one}.{chance.choice(VERBS)}({right!r}, {chance.randrange(999)})",
            f'    if {left} > {chance.randrange(99)}:\n        raise ValueError(f"{{{left}}} {chance.choice(VERBS)} {right}")',
            f"    for {left} in range({chance.randrange(99)}):\n        {right}.append({left} * {chance.randrange(9)})",
            f"    {left}[{right!r}] = {two}_{chance.randrange(99)} or {chance.randrange(999)}",
        )
        lines.append(chance.choice(shapes))
    return "\n".join([*lines, f"    return {chance.choice(NOUNS)}", ""])


def much(write: Callable[[Random], str], chance: Random, chars: int, *, join: str = "\n\n") -> str:
    """At least `chars` characters of it."""
    parts: list[str] = []
    size = 0
    while size < chars:
        parts.append(write(chance))
        size += len(parts[-1]) + len(join)
    return join.join(parts)


def records(chance: Random, count: int, shape: str) -> str:
    """A JSON array of records: `indented` and `compact` ones of many values, `templated` ones, and ones `constant` but for an id."""

    def varied() -> Iterator[dict[str, object]]:
        for number in range(1, count + 1):
            yield {
                "id": number, "name": f"{chance.choice(ADJECTIVES)} {chance.choice(NOUNS)}", "price": chance.randrange(99999) / 100,
                "tags": chance.sample(NOUNS, chance.randint(0, 3)), "active": chance.random() < 0.5,
                "parent": chance.choice([None, number // 2]),
            }  # fmt: skip

    def templated() -> Iterator[dict[str, object]]:
        for number in range(1, count + 1):
            yield {
                "id": number,
                "name": f"user_{number}",
                "email": f"user{number}@example.org",
                "score": number * 7 % 100,
            }

    def constant() -> Iterator[dict[str, object]]:
        for number in range(1, count + 1):
            yield {
                "id": number,
                "type": "sensor",
                "unit": "celsius",
                "status": "ok",
                "site": {"country": "NL", "zone": "north"},
            }

    made = {"indented": varied, "compact": varied, "templated": templated, "constant": constant}[shape]()
    return json.dumps(
        list(made), indent=None if shape == "compact" else 2, separators=(",", ":") if shape == "compact" else None
    )
