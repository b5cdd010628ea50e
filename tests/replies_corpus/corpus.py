"""The labelled corpus: every class, several lengths, from seeds of two disjoint sets. Every reply is cut by characters, as a cap cuts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from engcmp_assets.kernel.replies.spans import Kind
from replies_corpus.writing import (
    ADJECTIVES,
    NOUNS,
    chinese,
    function,
    legal,
    much,
    paragraph,
    records,
    sentence,
)

TUNING = tuple(range(6))  # thresholds were chosen on these
REPORTING = tuple(range(1000, 1005))  # and are reported on these
LENGTHS = (14_000, 30_000, 90_000)  # characters: 3,000 to 30,000 tokens and more


@dataclass(frozen=True, slots=True)
class Labelled:
    """A reply and what it is: `onset_char` of its last span is where a loop says something for the second time."""

    name: str
    kind: Kind
    reasoning: str
    answer: str
    finish_reason: str
    looped: bool
    onset_char: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What a class writes: its last span, and what stands in the span before; the cut comes later."""

    kind: Kind
    text: str
    reasoning: str = ""
    in_reasoning: bool = False
    onset_char: int | None = None


Write = Callable[[Random, int], Made]


def _before(chance: Random, chars: int) -> str:
    """Healthy reasoning, a tenth to a quarter of the reply."""
    return much(paragraph, chance, int(chars * chance.uniform(0.1, 0.25))) + "\n\n"


def _repeated(chance: Random, chars: int, unit: str, *, start: str | None = None, kind: Kind = "reasoning") -> Made:
    start = _before(chance, chars) if start is None else start
    copies = (chars - len(start)) // len(unit) + 2
    return Made(kind, start + unit * copies, in_reasoning=kind == "reasoning", onset_char=len(start) + len(unit))


def verbatim(chance: Random, chars: int) -> Made:
    unit = " ".join(sentence(chance) for _ in range(chance.randint(1, 8))) + chance.choice([" ", "\n", "\n\n"])
    return _repeated(chance, chars, unit, kind=chance.choice(["reasoning", "prose"]))


def wait(chance: Random, chars: int) -> Made:
    return _repeated(
        chance, chars, chance.choice(["Wait, no. ", "Wait, I should not. ", "Let me think again.\n", "Yes. No. But "])
    )


def verbatim_code(chance: Random, chars: int) -> Made:
    return _repeated(chance, chars, function(chance) + "\n", start=f"{sentence(chance)}\n\n```python\n", kind="code")


def verbatim_chinese(chance: Random, chars: int) -> Made:
    unit = "".join(chinese(chance) for _ in range(chance.randint(1, 6)))
    return _repeated(chance, chars, unit, start=much(chinese, chance, chars // 8, join=""))


def long_period(chance: Random, chars: int) -> Made:
    """A unit of 2,500 characters or more; 3 to 5 copies and a part of one."""
    start = _before(chance, chars)
    rest = chars - len(start)
    unit = much(paragraph, chance, max(2500, int(rest / chance.uniform(3.4, 5.4)))) + "\n\n"
    return _repeated(chance, chars, unit, start=start, kind=chance.choice(["reasoning", "prose"]))


def long_period_code(chance: Random, chars: int) -> Made:
    unit = much(function, chance, max(2600, chars // 5), join="\n") + "\n"
    return _repeated(chance, chars, unit, start="```python\n", kind="code")


def shuffled(chance: Random, chars: int) -> Made:
    start, pool = _before(chance, chars), [sentence(chance) for _ in range(chance.randint(6, 20))]
    said = len(start) + sum(len(one) + 1 for one in pool)
    return Made(
        "reasoning",
        start + much(lambda _: chance.choice(pool), chance, chars, join=" "),
        in_reasoning=True,
        onset_char=said,
    )


def shuffled_chinese(chance: Random, chars: int) -> Made:
    pool = [chinese(chance) for _ in range(chance.randint(6, 16))]
    start = much(chinese, chance, chars // 8, join="")
    said = len(start) + sum(map(len, pool))
    return Made(
        "reasoning",
        start + much(lambda _: chance.choice(pool), chance, chars, join=""),
        in_reasoning=True,
        onset_char=said,
    )


def phrases(chance: Random, chars: int) -> Made:
    """Short phrases in ever new order, nothing but a space between them."""
    pool = [
        " ".join(chance.choice(NOUNS + ADJECTIVES) for _ in range(chance.randint(4, 9)))
        for _ in range(chance.randint(4, 9))
    ]
    start = _before(chance, chars)
    said = len(start) + sum(len(one) + 1 for one in pool)
    return Made("prose", start + much(lambda _: chance.choice(pool), chance, chars, join=" "), onset_char=said)


def templated(chance: Random, chars: int) -> Made:
    noun, other, step = chance.choice(NOUNS), chance.choice(ADJECTIVES), chance.randint(1, 9)
    shapes = (
        "Let me try {n}. The {noun} for {n} is {n} * {step} = {v}, and {v} is not the {other} one. So it must be larger. ",
        "Check k = {n}: {v} mod {step} leaves {r}, which is not what the {noun} needs, so we go on with the {other} case. ",
        "If the {noun} is {n}, then the {other} sum becomes {v}. That does not work.\n",
    )
    shape, start = chance.choice(shapes), _before(chance, chars)
    first = chance.randrange(2, 500)
    lines = [
        shape.format(n=n, noun=noun, other=other, step=step, v=n * step, r=n % step)
        for n in range(first, first + chars // 40)
    ]
    in_reasoning = chance.random() < 0.7
    text = start + "".join(lines)
    return Made(
        "reasoning" if in_reasoning else "prose", text, in_reasoning=in_reasoning, onset_char=len(start) + len(lines[0])
    )


def single_token(chance: Random, chars: int) -> Made:
    unit = chance.choice([" the", " 0", "!", " na", "\n", "的", " I", ","])
    start = _before(chance, chars) + "so"
    return _repeated(chance, chars, unit, start=start, kind=chance.choice(["reasoning", "prose"]))


def json_string(chance: Random, chars: int) -> Made:
    """An answer in JSON that does not come out of one of its strings."""
    start = records(chance, 12, "indented")[:-2] + ',\n  {\n    "id": 13,\n    "note": "'
    pool = [sentence(chance) for _ in range(chance.randint(1, 9))]
    if chance.random() < 0.5:
        return _repeated(chance, chars, " ".join(pool) + chance.choice([" ", "\\n"]), start=start, kind="json")
    text = much(lambda _: chance.choice(pool), chance, chars, join=" ")
    return Made("json", start + text, onset_char=len(start) + sum(len(one) + 1 for one in pool))


def json_records_repeated(chance: Random, chars: int) -> Made:
    unit = ",\n  " + json.dumps({"id": chance.randrange(999), "name": chance.choice(NOUNS), "note": sentence(chance)})
    return _repeated(chance, chars, unit, start=records(chance, 20, "indented")[:-2], kind="json")


def prose(chance: Random, chars: int) -> Made:
    return Made("prose", much(paragraph, chance, chars))


def reasoning(chance: Random, chars: int) -> Made:
    return Made("reasoning", much(paragraph, chance, chars), in_reasoning=True)


def chinese_prose(chance: Random, chars: int) -> Made:
    return Made("prose", much(chinese, chance, chars, join=""), in_reasoning=chance.random() < 0.5)


def code_restated(chance: Random, chars: int) -> Made:
    """Drafted in the reasoning, restated in the answer."""
    code = much(function, chance, chars, join="\n\n")
    fenced = chance.random() < 0.5
    return Made(
        "code",
        f"```python\n{code}" if fenced else code,
        f"{paragraph(chance)}\n\n```python\n{code}\n```\n{paragraph(chance)}",
    )


def code_redrafted(chance: Random, chars: int) -> Made:
    """Drafted and redrafted within the reasoning, in a fence or not; the cap cuts the redraft."""
    code = much(function, chance, int(chars * chance.uniform(0.4, 0.55)), join="\n\n")
    begin, end = chance.choice([("```python\n", "\n```"), ("", "")])
    drafts = [f"{paragraph(chance)}\n\n{begin}{code}{end}" for _ in range(2)]
    return Made("code", "\n\n".join(drafts), in_reasoning=True)


def prose_redrafted(chance: Random, chars: int) -> Made:
    text = much(paragraph, chance, int(chars * chance.uniform(0.4, 0.55)))
    return Made("prose", "\n\n".join(f"{paragraph(chance)}\n\n{text}" for _ in range(2)), in_reasoning=True)


def code_redrafted_twice(chance: Random, chars: int) -> Made:
    """Three drafts, each with a remark before it and some lines changed."""
    parts = [function(chance) for _ in range(max(3, int(chars * 0.34 / 450)))]
    drafts = []
    for _ in range(3):
        parts = [function(chance) if chance.random() < 0.1 else part for part in parts]
        drafts.append(f"{paragraph(chance)}\n\n```python\n" + "\n\n".join(parts) + "\n```")
    return Made("code", "\n\n".join(drafts), in_reasoning=True)


def long_records(chance: Random, chars: int) -> Made:
    """Records of over 100 tokens that differ in an id, as JSON or as lines of text."""
    body = {noun: sentence(chance) for noun in chance.sample(NOUNS, 8)}
    count = chars // 400 + 2
    if chance.random() < 0.5:
        return Made("json", json.dumps([{"id": number} | body for number in range(count)], indent=2))
    lines = "\n".join(f"  {name}: {text}" for name, text in body.items())
    return Made("code", "```yaml\n" + "\n".join(f"- id: {number}\n{lines}" for number in range(count)))


def json_array(shape: str) -> Write:
    """1,030 records: as many as the length shows of them."""

    def write(chance: Random, chars: int) -> Made:
        return Made("json", records(chance, 1030, shape))

    return write


def named_values(chance: Random, chars: int) -> Made:
    """Records of over 100 tokens, a name and a value on each line, no marks between them, that differ in an id."""
    body = "\n".join(f"{noun}: {sentence(chance)}" for noun in chance.sample(NOUNS, 9))
    return Made("prose", "\n\n".join(f"record: {number}\n{body}" for number in range(chars // 400 + 2)))


def equal_numbers(chance: Random, chars: int) -> Made:
    """A matrix in JSON in which most numbers are equal."""
    rows = [[chance.choice([0.0, 0.0, 0.0, 0.0, 1.5]) for _ in range(24)] for _ in range(chars // 100)]
    return Made("json", json.dumps({"matrix": rows}))


def table(chance: Random, chars: int) -> Made:
    lines = [
        f"| {number} | {chance.choice(NOUNS)} | {chance.choice(ADJECTIVES)} | {chance.randrange(9999)} | yes |"
        for number in range(chars // 40)
    ]
    return Made("prose", "| id | name | state | amount | ok |\n|---|---|---|---|---|\n" + "\n".join(lines))


def csv(chance: Random, chars: int) -> Made:
    lines = [
        f"{number},2026-11-{number % 28 + 1:02d},sensor-{number % 5},{chance.randrange(999)},ok"
        for number in range(chars // 28)
    ]
    return Made(chance.choice(["prose", "code"]), "id,date,sensor,value,state\n" + "\n".join(lines))


def times_table(chance: Random, chars: int) -> Made:
    return Made("prose", "\n".join(f"{a} x {b} = {a * b}" for a in range(1, 60) for b in range(1, 60)))


def switch(chance: Random, chars: int) -> Made:
    """In a fence or not, names of their own or with the number in them; drafted in the reasoning or given as the answer."""
    own = chance.random() < 0.5
    cases = "".join(
        f"    case {number}:\n      return {chance.choice(NOUNS) if own else 'state'}_{number};\n"
        for number in range(chars // 34)
    )
    fence = chance.choice(["```c\n", ""])
    text = f"{fence}const char *name(int code) {{\n  switch (code) {{\n{cases}"
    return Made("code", text, in_reasoning=chance.random() < 0.5)


def refrain(chance: Random, chars: int) -> Made:
    lines = [
        f"And the {chance.choice(ADJECTIVES)} {chance.choice(NOUNS)} {chance.choice(['sings', 'falls', 'turns'])},"
        for _ in range(4)
    ]

    def verse(_: Random) -> str:
        return "\n".join([*(sentence(chance) for _ in range(4)), "", *lines])

    return Made("prose", much(verse, chance, chars))


def bottles(chance: Random, chars: int) -> Made:
    """A song that counts down from 99: all of its verses, or as many as the length shows."""
    thing, place = chance.choice(NOUNS), chance.choice(NOUNS)
    return Made("prose", "\n\n".join(
        f"{number} {thing}s of beer on the {place},\n{number} {thing}s of beer.\nTake one down and pass it around,\n"
        f"{number - 1} {thing}s of beer on the {place}."
        for number in range(99, 0, -1)
    ))  # fmt: skip


def listed(chance: Random, chars: int) -> Made:
    count = iter(range(1, chars))
    return Made(
        "prose",
        much(
            lambda _: f"{next(count)}. **{chance.choice(NOUNS).title()}**: {sentence(chance)}", chance, chars, join="\n"
        ),
    )


def markup(chance: Random, chars: int) -> Made:
    """XML, SQL or JSON Lines: a long record on each line, much of it the same."""
    noun, note = chance.choice(NOUNS), sentence(chance)
    shape = chance.choice([
        '<{noun} id="{n}" state="open" kind="plain"><note>{note}</note><owner>{who}</owner></{noun}>',
        "INSERT INTO {noun}s (id, state, note, owner) VALUES ({n}, 'open', '{note}', '{who}');",
        '{{"id": {n}, "type": "{noun}", "state": "open", "note": "{note}", "owner": "{who}"}}',
    ])  # fmt: skip
    lines = [shape.format(noun=noun, n=n, note=note, who=chance.choice(NOUNS)) for n in range(chars // 90)]
    return Made(chance.choice(["prose", "code"]), "\n".join(lines), in_reasoning=chance.random() < 0.3)


def licence(chance: Random, chars: int) -> Made:
    return Made("prose", much(legal, chance, chars))


def cases(chance: Random, chars: int) -> Made:
    """Reasoning that goes through twenty cases of one shape, again and again of another one."""

    def run(_: Random) -> str:
        shape = f"the {chance.choice(NOUNS)} {chance.choice(VERBS_OF_CASES)} {chance.choice(NOUNS)}"
        each = "".join(f"Case {number}: {shape}, which gives {chance.randrange(999)}.\n" for number in range(1, 21))
        return f"{paragraph(chance)}\n\n{each}"

    return Made("reasoning", much(run, chance, chars), in_reasoning=True)


VERBS_OF_CASES = ("divides", "meets", "exceeds", "joins", "precedes")
_LEFT = ("verbatim", "verbatim_code", "long_period", "shuffled", "phrases")  # loops that a finished reply came out of
LOOPS: tuple[Write, ...] = (
    verbatim, wait, verbatim_code, verbatim_chinese, long_period, long_period_code, shuffled, shuffled_chinese, phrases, templated,
    single_token, json_string, json_records_repeated,
)  # fmt: skip
_ARRAYS = {f"json_{shape}": json_array(shape) for shape in ("indented", "compact", "templated", "constant")}
HEALTHY: dict[str, Write] = {
    write.__name__: write
    for write in (
        prose, reasoning, chinese_prose, code_restated, code_redrafted, prose_redrafted, code_redrafted_twice, long_records, named_values,
        equal_numbers, table, csv, times_table, switch, refrain, bottles, listed, markup, licence, cases,
    )
} | _ARRAYS  # fmt: skip


def corpus(seeds: tuple[int, ...], lengths: tuple[int, ...] = LENGTHS) -> Iterator[Labelled]:
    """Every class of each seed in each length, capped; healthy text also as finished replies."""
    for seed in seeds:
        for chars in lengths:
            for write in LOOPS:
                yield _labelled(write.__name__, write, seed, chars, "length", looped=True)
                if write.__name__ in _LEFT:
                    yield _left(_labelled(write.__name__, write, seed, chars, "length", looped=True), Random(seed))
            for name, write in HEALTHY.items():
                yield _labelled(name, write, seed, chars, "length", looped=False)
                if chars < max(lengths):
                    yield _labelled(name, write, seed, chars, "stop", looped=False)


def _left(loop: Labelled, chance: Random) -> Labelled:
    """The loop in the reasoning of a reply that went on and finished."""
    after = "\n```\n\n" * loop.reasoning.count("```") + much(paragraph, chance, 4000)
    reasoning = f"{loop.reasoning or loop.answer}\n\n{after}"
    name = loop.name.replace("/length", "/stop")
    return Labelled(name, loop.kind, reasoning, much(paragraph, chance, 1500), "stop", True, loop.onset_char)


def _labelled(name: str, write: Write, seed: int, chars: int, finish: str, *, looped: bool) -> Labelled:
    chance = Random(f"{name} {seed} {chars}")
    made = write(chance, chars)
    cut = min(len(made.text), chars - chance.randrange(chars // 50))
    text = made.text[:cut]
    spans = (text, "") if made.in_reasoning and finish == "length" else (made.reasoning, text)
    if made.in_reasoning and finish == "stop":
        spans = (text, paragraph(chance))
    return Labelled(f"{name}/{seed}/{chars}/{finish}", made.kind, *spans, finish, looped, made.onset_char)
