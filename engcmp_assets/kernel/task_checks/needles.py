"""Needles (MEASURES section 7): prompts of exactly n tokens that hide one value among decoys, and what a reply says of it.

A prompt is made of sentences whose token ids are stable, and counted as a whole, template included: an exact length is proved by encoding
the text again, never by adding up. The depth that is kept is the real one, in tokens. Filler and values come from the seed alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engcmp_assets.kernel.splitmix import indices
from engcmp_assets.kernel.task_checks.answers import Finish, Unfinished, hold, unfinished
from engcmp_assets.kernel.task_checks.needle_text import COLOURS, FILLER, PADDING, QUESTION, SENTENCE
from engcmp_resources.errors import EngcmpError

DIGITS = 10
_LEAST_DIGITS = 8
_TRIES = 64

Encode = Callable[[str], list[int]]
Render = Callable[[str], str]
Outcome = Literal["found", "absent", "decoy", "second_value", "empty"] | Unfinished

# A run of digits with what belongs to it as one number: 12345678.5 and 12,345,678 are other values than 12345678.
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class NeedlePrompt:
    """`text` is the rendered prompt, `tokens` its length. `depth_tokens` tokens lie before the needle's sentence."""

    text: str
    tokens: int
    depth_tokens: int
    value: str
    decoys: tuple[str, ...]


def make_prompt(
    *, encode: Encode, render: Render, tokens: int, depth: float, seed: int, decoys: int = 3
) -> NeedlePrompt:
    """A prompt of exactly `tokens` tokens with its needle at the sentence border nearest to `depth` (0 to 1) of it.

    `encode` gives the ids of a text, special tokens of a template as they are, nothing added; `render` puts a user's message into the chat
    template. Raises EngcmpError for a length that is too short or that this tokenizer cannot be brought to.
    """
    if not 0 <= depth <= 1 or decoys >= len(COLOURS):
        raise EngcmpError(f"depth {depth} or {decoys} decoys", remedy=f"depth 0 to 1, fewer than {len(COLOURS)} decoys")
    values, names = _values(decoys + 1, seed), _pick(COLOURS, decoys + 1, seed + 1)
    needle, *others = [SENTENCE.format(name=name, value=value) for name, value in zip(names, values, strict=True)]
    question = QUESTION.format(name=names[0])
    stable = [sentence for sentence in FILLER if _is_stable(encode, sentence)]
    pads = [word for word in PADDING if len(encode(word)) == 1]
    if not stable or not pads:
        raise EngcmpError("no sentence or word of the filler has stable tokens", remedy="use another tokenizer")
    lengths = {sentence: len(encode(sentence)) for sentence in (*stable, *others)}
    begin = len(encode(render("")))  # near enough: only the nearest border hangs on it

    def text_of(filler: Sequence[str], padding: int) -> str:
        sentences = list(filler)
        for place, decoy in zip(_spread(len(filler), decoys, seed + 2), others, strict=True):
            sentences.insert(place, decoy)
        sentences.insert(_border([lengths[sentence] for sentence in sentences], depth * tokens - begin), needle)
        return render("".join(sentences) + pads[0] * padding + question)

    filler = _filler(stable, lengths, tokens - len(encode(text_of((), 0))), seed + 3, tokens)
    padding = 0
    for _ in range(_TRIES):
        text = text_of(filler, padding)
        ids = encode(text)
        missing = tokens - len(ids)
        if missing == 0:
            before = encode(text[: _start(text, needle)])
            if ids[: len(before)] != before:
                break
            return NeedlePrompt(text, tokens, len(before), values[0], tuple(values[1:]))
        if padding + missing < 0:
            filler = filler[:-1]
        else:
            padding += missing
    raise EngcmpError(f"no prompt of exactly {tokens:,} tokens was found", remedy="choose another length or seed")


def check_needle(answer: str, finish: Finish, prompt_value: str, decoys: Sequence[str]) -> Outcome:
    """What an answer span (never the reasoning) says: `found` only where the value stands there as a word and no other long number does.

    A number of 8 or more digits that is not the value is a second value; one of the decoys is named as such. Both are wrong.
    """
    ended = unfinished(finish)
    if ended is not None:
        return ended
    if not answer.strip():
        return "empty"
    numbers = {match[0] for match in _NUMBER.finditer(answer) if sum(map(str.isdigit, match[0])) >= _LEAST_DIGITS}
    if numbers & set(decoys):
        return "decoy"
    if prompt_value not in numbers:
        return "absent" if not numbers else "second_value"
    if numbers != {prompt_value}:
        return "second_value"
    whole = re.compile(rf"(?<![\w+-]){prompt_value}(?!\w)")
    return "found" if len(whole.findall(answer)) == answer.count(prompt_value) else "second_value"


def _values(count: int, seed: int) -> list[str]:
    """Distinct values of random digits; the first digit is not 0, so that none can be written shorter."""
    values: list[str] = []
    drawn = iter(indices(9 * 10 ** (DIGITS - 1), count * 4, seed).tolist())
    while len(values) < count:
        value = str(10 ** (DIGITS - 1) + next(drawn))
        if value not in values:
            values.append(value)
    return values


def _pick(words: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` distinct words."""
    rest = list(words)
    drawn = indices(2**32, count, seed).tolist()
    return [rest.pop(number % len(rest)) for number in drawn]


def _spread(below: int, count: int, seed: int) -> list[int]:
    return [int(place) for place in indices(below + 1, count, seed)] if count else []


def _start(text: str, needle: str) -> int:
    """Where the needle begins; a template may cut the space before it off at the very beginning of a message."""
    found = text.find(needle)
    return found if found >= 0 else text.index(needle.lstrip())


def _border(lengths: Sequence[int], wanted: float) -> int:
    """The number of sentences before the border that is nearest to `wanted` tokens."""
    borders = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])
    return int(np.argmin(np.abs(borders - wanted)))


def _filler(stable: Sequence[str], lengths: Mapping[str, int], tokens: int, seed: int, asked: int) -> list[str]:
    """Sentences of at most `tokens` tokens together."""
    if tokens < 0:
        raise EngcmpError(
            f"{asked:,} tokens do not hold the template, the needle and the question",
            remedy=f"ask for {asked - tokens:,}",
        )
    order = indices(len(stable), tokens // min(lengths[sentence] for sentence in stable) + 1, seed).tolist()
    chosen, used = [], 0
    for number in order:
        used += lengths[stable[number]]
        if used > tokens:
            break
        chosen.append(stable[number])
    return chosen


def _is_stable(encode: Encode, sentence: str) -> bool:
    """Whether a sentence has the same tokens between two others as alone, so that lengths add up."""
    return encode(sentence * 2) == encode(sentence) * 2


def self_test() -> None:
    """Planted answers with their known outcomes. Raises EngcmpError where one differs: then nothing may be graded."""
    value, decoy = "4821937560", "9035127746"
    cases = {
        f"The code is {value}.": "found",
        f"**{value}**, yes, {value}": "found",
        f"{value} or {decoy}": "decoy",
        f"{value}, or 4821937561": "second_value",
        f"1{value}": "second_value",
        f"{value}5": "second_value",
        f"{value}.5": "second_value",
        f"x{value}": "second_value",
        f"-{value}": "second_value",
        "4,821,937,560": "second_value",
        "I cannot find it, in 42 lines.": "absent",
        " ": "empty",
    }
    hold("needle", [(text, check_needle(text, "finished", value, [decoy]), want) for text, want in cases.items()])
    hold("needle", [("a cut reply", check_needle("The", "capped", value, [decoy]), "capped")])
    made = make_prompt(encode=_letters, render=lambda message: f"<{message}>", tokens=2_000, depth=0.5, seed=7)
    planted = made.text.index(made.value)
    hold("needle", [("the length of a prompt", len(_letters(made.text)), 2_000)])
    hold("needle", [("the needle before its depth", made.value in made.text[: made.depth_tokens], False)])
    hold("needle", [("the needle at its depth", planted - made.depth_tokens < 100, True)])  # noqa: PLR2004 - its sentence


def _letters(text: str) -> list[int]:
    """A tokenizer whose tokens are letters, for the self-test."""
    return [ord(letter) for letter in text]
