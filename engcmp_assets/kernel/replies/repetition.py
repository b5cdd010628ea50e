"""`self_repetition` and `restated` (MEASURES section 7): n-grams that were said before, in the span itself or in the reasoning.

An n-gram is known by a 64-bit hash: among 131,072 of them two different ones are taken for one with a probability of 5e-10.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.replies.spans import Thresholds, Tokens

Words64 = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_JOIN = np.uint64(0xD6E8FEB86659FD93)


def mixed(values: Words64) -> Words64:
    """SplitMix64's finish of each value: every bit depends on all."""
    z = values + _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return np.asarray(z ^ (z >> np.uint64(31)))


def gram_hashes(ids: npt.NDArray[np.integer], length: int) -> Words64:
    """A hash of each of the n - length + 1 n-grams of ids [n], by the place where it begins: joined from halves, O(n log length)."""
    count = max(0, len(ids) - length + 1)
    power, size, at = mixed(ids.astype(np.uint64)), 1, 0
    whole = np.zeros(count, dtype=np.uint64)
    while length:
        if length & 1:
            whole = mixed(whole * _JOIN + power[at : at + count])
            at += size
        length >>= 1
        if length:
            power = mixed(power[:-size] * _JOIN + power[size:]) if len(power) > size else power[:0]
            size *= 2
    return whole


def earlier_counts(hashes: Words64) -> Counts:
    """How often each value stood before, [n]."""
    order = np.argsort(hashes, kind="stable")
    ordered, places = hashes[order], np.arange(len(hashes))
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(hashes)]
    counts = np.empty(len(hashes), dtype=np.int64)
    counts[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return counts


def moving_share(flags: npt.NDArray[np.bool_], window: int) -> npt.NDArray[np.float64]:
    """Share of True in each whole window; [n - window + 1], the last one being the tail's. Empty for fewer flags."""
    if len(flags) < window:
        return np.empty(0)
    sums = np.concatenate([[0], np.cumsum(flags)])
    return np.asarray((sums[window:] - sums[:-window]) / window)


@dataclass(frozen=True, slots=True)
class Repetition:
    """Of the span's n-grams, by where they begin: `counts` earlier occurrences; and the share in the tail that had two or more."""

    counts: Counts
    share: float | Missing
    grams: int

    def looped(self, thresholds: Thresholds) -> bool:
        """Whether the tail says what was said twice before."""
        told = not isinstance(self.share, Missing) and self.share >= thresholds.self_repetition
        return told and self.grams >= thresholds.least_grams


def tail_grams(thresholds: Thresholds) -> int:
    """The n-grams that lie within the final 4,096 tokens."""
    return thresholds.tail_tokens - thresholds.gram_tokens + 1


def self_repetition(tokens: Tokens, thresholds: Thresholds) -> Repetition:
    """Of a span's token ids [n]. The share is Missing where the span is shorter than one n-gram."""
    counts = earlier_counts(gram_hashes(tokens, thresholds.gram_tokens))
    tail = counts[-tail_grams(thresholds) :]
    share = float((tail >= thresholds.earlier).mean()) if tail.size else _too_short(thresholds)
    return Repetition(counts, share, len(tail))


def restated(answer: Tokens, reasoning: Tokens, thresholds: Thresholds) -> float | Missing:
    """Share of the n-grams of the answer's final 4,096 tokens that stand in the reasoning; Missing where there is no n-gram."""
    own = gram_hashes(answer[-thresholds.tail_tokens :], thresholds.gram_tokens)
    if not own.size:
        return _too_short(thresholds)
    return float(np.isin(own, gram_hashes(reasoning, thresholds.gram_tokens)).mean())


def _too_short(thresholds: Thresholds) -> Missing:
    return Missing(f"the span is shorter than {thresholds.gram_tokens} tokens")
