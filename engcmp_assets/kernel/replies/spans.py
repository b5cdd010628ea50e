"""The two spans of a reply, reasoning and answer, kept apart in tokens and characters; and the thresholds of every detector."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Kind = Literal["code", "json", "prose", "reasoning"]
SpanName = Literal["reasoning", "answer"]
KINDS: tuple[Kind, ...] = ("code", "json", "prose", "reasoning")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Of MEASURES section 7; those marked (*) are added here, each with what was measured on the labelled corpus."""

    period_tokens: int = 512
    period_copies: int = 8
    dropped_tokens: int = 8  # of a cut or re-tokenised end
    distinct_tokens: int = 3  # that a unit holds, white space and rules left out
    single_token_copies: int = 200
    least_period_tokens: int = (
        200  # (*) of a tail in structured text, or of a unit without a letter: nine equal numbers are no loop
    )
    long_period_copies: int = 3  # (*) above period_tokens: as many as self_repetition asks, for structured text too
    gram_tokens: int = 50
    tail_tokens: int = 4096
    earlier: int = 2  # occurrences before: once is a redraft
    self_repetition: float = 0.5
    least_grams: int = 200  # (*) of a share: a handful of n-grams is no share
    gram_words: int = 8
    gram_unspaced_tokens: int = 12  # in place of words, where text has no spaces
    novelty_words: int = 700
    novelty: float = 0.02
    templated_copies: int = 100  # (*) in an answer: it may count down from 99 in verses of one shape
    templated_tokens: int = 8192  # (*) in an answer, of copies that are long: such a song has 5,000
    structured_lines: float = 0.6
    compression_chars: int = 30_000
    early_stop_verdicts: int = 3
    early_stop_chars: int = 10_000


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Of a tokenizer, by token id [V]: `filler` is whether a token is only white space or rules (`----`, `| | |`), `letters` whether it
    holds a letter, `folded` the id that stands for it where every digit is a 0.
    """

    filler: npt.NDArray[np.bool_]
    letters: npt.NDArray[np.bool_]
    folded: Tokens


@dataclass(frozen=True, slots=True)
class Span:
    """One span: its text, the token ids [n] of it, and how places in the one are found in the other."""

    name: SpanName
    text: str
    tokens: Tokens
    token_at: Callable[[int], int]  # tokens before a character
    char_at: Callable[[int], int]  # characters before a token

    def before(self, token: int) -> Span:
        """The span as it was when only `token` tokens of it were there."""
        return Span(self.name, self.text[: self.char_at(token)], self.tokens[:token], self.token_at, self.char_at)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it was received: finish_reason as the API gave it, and both spans, empty ones too."""

    reply_id: str
    kind: Kind
    finish_reason: str | None
    reasoning: Span
    answer: Span

    @property
    def last(self) -> Span:
        """The span in which the reply ended."""
        return self.answer if self.answer.text or not self.reasoning.text else self.reasoning


_RULES = frozenset("-=_*|~#+─━│┃═║┌┐└┘├┤┬┴┼")
_DOTS = frozenset(".…·")
_DIGIT = re.compile(r"\d")  # exactly what str.isdecimal() is true of


def is_filler(token: str) -> bool:
    """Whether a token's text is white space or a rule: signs that lines and tables are drawn with, or a run of dots."""
    text = "".join(token.split())
    return set(text) <= _RULES or (len(text) > 1 and set(text) <= _DOTS) or text == "…"


def vocabulary(texts: list[str]) -> Vocabulary:
    """The vocabulary of tokens with these texts, the place of each being its id."""
    filler = np.array([is_filler(text) for text in texts], dtype=np.bool_)
    letters = np.array([any(map(str.isalpha, text)) for text in texts], dtype=np.bool_)
    folded: dict[str, int] = {}
    # Only tokens with a digit may stand for each other: two ids with one text are still two tokens.
    ids = [
        folded.setdefault(fold_digits(text), number) if has_digit(text) else number for number, text in enumerate(texts)
    ]
    return Vocabulary(filler, letters, np.array(ids, dtype=np.int32))


def has_digit(text: str) -> bool:
    """Whether any character is a decimal digit."""
    return _DIGIT.search(text) is not None


def fold_digits(text: str) -> str:
    """`text` with every decimal digit as 0."""
    return _DIGIT.sub("0", text)


def as_tokens(ids: Any) -> Tokens:
    """Token ids as an array [n]."""
    return cast(Tokens, np.asarray(ids, dtype=np.int32))
