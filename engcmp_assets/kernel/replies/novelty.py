"""`novelty8` and `novelty8_digits` (MEASURES section 7): how much of what is said at the end was not said before in the span."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.repetition import Counts, earlier_counts, gram_hashes, moving_share
from engcmp_assets.kernel.replies.spans import Span, Thresholds, Vocabulary, fold_digits

_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s")
_RARE = 0.1
_TAIL_CHARS = 16_000
_LEAST_SPACES = (
    0.05  # of all characters: English prose has 0.17, code with short lines 0.3, Chinese with English names below 0.03
)


@dataclass(frozen=True, slots=True)
class Novelty:
    """Of a span's units, words or (where it has no spaces) tokens: how often each n-gram stood before, as it is and with digits as 0.

    `share` is of the n-grams of the last 700 units that are new to the span; Missing where there is none.
    """

    by_word: bool
    length: int  # of an n-gram, in units
    counts: Counts
    folded_counts: Counts
    share: float | Missing
    folded_share: float | Missing


def novelty(span: Span, vocabulary: Vocabulary, thresholds: Thresholds) -> Novelty:
    """Novelty of a span of n tokens, O(n log n) for one sort of its n-grams."""
    by_word = has_spaces(span.text)
    units, folded = _word_ids(span.text) if by_word else (span.tokens, vocabulary.folded[span.tokens])
    length = thresholds.gram_words if by_word else thresholds.gram_unspaced_tokens
    counts, folded_counts = (earlier_counts(gram_hashes(ids, length)) for ids in (units, folded))
    tails = [side[-thresholds.novelty_words :] == 0 for side in (counts, folded_counts)]
    none = Missing(f"the span is shorter than {length} {'words' if by_word else 'tokens'}")
    shares = [float(tail.mean()) if tail.size else none for tail in tails]
    return Novelty(by_word, length, counts, folded_counts, shares[0], shares[1])


def has_spaces(text: str) -> bool:
    """Whether the end of a text is written with spaces between its words."""
    tail = text[-_TAIL_CHARS:]
    return len(_SPACE.findall(tail)) >= _LEAST_SPACES * len(tail)


def _word_ids(text: str) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]:
    known: dict[str, int] = {}
    ids = np.array([known.setdefault(word, len(known)) for word in _WORD.findall(text)], dtype=np.int64)
    alike: dict[str, int] = {}
    folded = np.array([alike.setdefault(fold_digits(word), len(alike)) for word in known], dtype=np.int64)
    return ids, folded[ids]


def unsaid(counts: Counts, length: int, earlier: int) -> npt.NDArray[np.bool_]:
    """Which units [n + length - 1] lie in no n-gram that stood `earlier` times before.

    A phrase that is said again is not new because another one stood before it the last time, though the n-grams over the border are.
    """
    edges = np.zeros(len(counts) + length, dtype=np.int64)
    said = counts >= earlier
    edges[: len(counts)] += said
    edges[length:] -= said
    return np.asarray(np.cumsum(edges)[:-1] == 0) if len(counts) else np.empty(0, dtype=np.bool_)


def falls_to_the_end(counts: Counts, length: int, thresholds: Thresholds) -> bool:
    """Whether under 2 % of the last 700 units are new, and half of them were said twice before: once is a redraft."""
    tail = unsaid(counts, length, 1)[-thresholds.novelty_words :]
    twice = unsaid(counts, length, thresholds.earlier)[-thresholds.novelty_words :]
    if len(tail) < thresholds.novelty_words:
        return False
    return bool(tail.mean() < thresholds.novelty and twice.mean() <= 1 - thresholds.self_repetition)


def copies(counts: Counts, thresholds: Thresholds) -> int:
    """How often nearly all of the last 700 n-grams stood before: 9 of 10 as often, or more often."""
    return int(np.quantile(counts[-thresholds.novelty_words :], _RARE, method="lower"))


def onset_unit(counts: Counts, length: int, thresholds: Thresholds) -> int:
    """The unit from which the windowed novelty has fallen below 2 % and never recovers."""
    shares = moving_share(unsaid(counts, length, 1), thresholds.novelty_words)
    high = np.flatnonzero(shares >= thresholds.novelty)
    # The window that began at the last high place held just enough new units: they were its first ones.
    return int(high[-1]) + math.ceil(thresholds.novelty * thresholds.novelty_words) if high.size else 0


def lowest_end(counts: Counts, length: int, thresholds: Thresholds) -> int | None:
    """How many units there were when the window with the fewest new ones was complete; None where none was below 2 %."""
    shares = moving_share(unsaid(counts, length, 1), thresholds.novelty_words)
    if not shares.size or shares.min() >= thresholds.novelty:
        return None
    return len(shares) - 1 - int(shares[::-1].argmin()) + thresholds.novelty_words


def token_of_unit(span: Span, found: Novelty, unit: int) -> int:
    """The token at which a word begins, or the unit itself where units are tokens."""
    if not found.by_word:
        return unit
    word = next(itertools.islice(_WORD.finditer(span.text), unit, None), None)
    return span.token_at(len(span.text) if word is None else word.start())
