"""`exact_period` (MEASURES section 7): whether a text ends in copies of one unit, to the token.

That the last L tokens have period m is that two stretches of L - m tokens, m apart, are equal. Hashes of prefixes answer it for every m
at once; what they find is held against the tokens, so the answer is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.replies.repetition import mixed
from engcmp_assets.kernel.replies.spans import Thresholds, Tokens, Vocabulary

Words64 = npt.NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15  # odd, so that every power of it can be divided by


@dataclass(frozen=True, slots=True)
class Period:
    """A tail of period `tokens` after `dropped` final tokens; `onset` is the first token of the second copy, `copies` counts whole ones."""

    tokens: int
    dropped: int
    onset: int
    copies: int


class PeriodFinder:
    """Finds the periods of a span's tails. Made in O(n) of its n token ids; each tail then costs O(n / 3) machine words."""

    def __init__(self, tokens: Tokens, vocabulary: Vocabulary, thresholds: Thresholds) -> None:
        self._tokens, self._vocabulary, self._thresholds = tokens, vocabulary, thresholds
        self._powers = np.full(len(tokens) + 1, _BASE, dtype=np.uint64)
        self._powers[0] = 1
        np.cumprod(self._powers, out=self._powers)
        self._hashes = np.zeros(len(tokens) + 1, dtype=np.uint64)
        np.cumsum(mixed(tokens.astype(np.uint64)) * self._powers[:-1], out=self._hashes[1:])

    def at_end(self, least: int = 0) -> Period | None:
        """The smallest period of the whole, 0 to 8 final tokens dropped; the fewest of these where several give it.

        At least `least` tokens must have it.
        """
        found: Period | None = None
        for dropped in range(min(self._thresholds.dropped_tokens, len(self._tokens)) + 1):
            end = len(self._tokens) - dropped
            tokens = self._period(end, least)
            if tokens is not None and (found is None or tokens < found.tokens):
                onset = self._start(end, tokens) + tokens
                found = Period(tokens, dropped, onset, (end - onset) // tokens + 1)
        return found

    def ends(self, step: int) -> list[int]:
        """Which of the places `step`, 2 `step` ... end a text of period_tokens or less, as in `at_end`, nothing dropped."""
        places = range(step, len(self._tokens) + 1, step)
        return [end for end in places if self._smallest(end, self._short(end)) is not None]

    def _period(self, end: int, least: int) -> int | None:
        periods, lengths = self._short(end)
        found = self._smallest(end, (periods, np.maximum(lengths, least)))
        return self._smallest(end, self._long(end)) if found is None else found

    def _short(self, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Periods up to 512 and how many tokens must have them."""
        limits = self._thresholds
        periods = np.arange(1, min(limits.period_tokens, end // limits.period_copies) + 1)
        lengths = periods * limits.period_copies
        lengths[:1] = limits.single_token_copies
        return periods, lengths

    def _long(self, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        limits = self._thresholds
        periods = np.arange(limits.period_tokens + 1, end // limits.long_period_copies + 1)
        return periods, np.maximum(periods * limits.long_period_copies, limits.period_tokens * limits.period_copies)

    def _smallest(self, end: int, tried: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]) -> int | None:
        periods, lengths = (side[tried[1] <= end] for side in tried)
        hashes, begin = self._hashes, end - lengths
        first = (hashes[end - periods] - hashes[begin]) * self._powers[periods]
        likely = np.flatnonzero(first == hashes[end] - hashes[begin + periods])
        poor: list[int] = []
        for period, length in zip(periods[likely].tolist(), lengths[likely].tolist(), strict=True):
            if any(period % one == 0 for one in poor):
                continue  # the same few tokens again
            tail = self._tokens[end - length : end]
            if not np.array_equal(tail[period:], tail[:-period]):
                continue
            if period == 1 or self._rich(tail[-period:], end - self._start(end, period)):
                return int(period)
            poor.append(period)
        return None

    def _rich(self, unit: Tokens, length: int) -> bool:
        """Whether a unit tells enough to be a loop in `length` tokens."""
        limits = self._thresholds
        told = len(np.unique(unit[~self._vocabulary.filler[unit]]))
        if told == 1:  # one token, with a space or a line feed between
            return length >= len(unit) * limits.single_token_copies
        worded = length >= limits.least_period_tokens or bool(self._vocabulary.letters[unit].any())
        return worded and told >= limits.distinct_tokens

    def _start(self, end: int, period: int) -> int:
        """Where the stretch that ends at `end` and has `period` begins."""
        tokens = self._tokens[:end]
        other = np.flatnonzero(tokens[period:] != tokens[:-period])
        return int(other[-1]) + 1 if other.size else 0


def exact_period(tokens: Tokens, vocabulary: Vocabulary, thresholds: Thresholds) -> Period | None:
    """The period of the tail of token ids [n], or None. A single token must stand 200 times, a unit of 2 to 512 tokens 8 times; longer
    units fill 4,096 tokens in 3 copies or more.
    """
    return PeriodFinder(tokens, vocabulary, thresholds).at_end()
