"""Exact paired tests by prompt (MEASURES section 7): McNemar, and the sign test on decided pairs. Both are valid under a shared cap."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_lengths.records import PairedLengths, PromptPair


@dataclass(frozen=True, slots=True)
class SignTest:
    """Prompts on which the candidate reads more, on which the baseline does, and on which neither (`undecided`).

    `p` is two-sided, exact and binomial over the decided prompts; Missing where none is decided.
    """

    candidate_more: int
    baseline_more: int
    undecided: int
    p: float | Missing

    @property
    def decided(self) -> int:
        return self.candidate_more + self.baseline_more


def sign_test(signs: Iterable[int]) -> SignTest:
    """The exact two-sided sign test of one sign (1, 0, -1) for each prompt. On two outcomes it is McNemar's exact test."""
    counted = list(signs)
    more, less = counted.count(1), counted.count(-1)
    undecided = len(counted) - more - less
    if more + less == 0:
        return SignTest(more, less, undecided, Missing("no prompt is decided"))
    return SignTest(more, less, undecided, float(scipy.stats.binomtest(more, more + less, 0.5).pvalue))


def mcnemar_capped(lengths: PairedLengths) -> SignTest:
    """McNemar's exact test on capped or not: the prompts of which more of the candidate's replies were capped, against fewer."""
    return sign_test(_sign(_capped(pair.candidate) - _capped(pair.baseline)) for pair in lengths.pairs)


def longer_on_decided(lengths: PairedLengths) -> SignTest:
    """The exact sign test on which arm's reply is longer: a capped reply is longer than a finished one, two capped ones are undecided.

    With several replies to a prompt, each of one arm is held against each of the other, and their majority is the prompt's sign.
    """
    return sign_test(_longer(pair) for pair in lengths.pairs)


def _longer(pair: PromptPair) -> int:
    baseline, candidate = np.asarray(pair.baseline)[:, None], np.asarray(pair.candidate)[None, :]
    return _sign(int((candidate > baseline).sum()) - int((candidate < baseline).sum()))


def _capped(lengths: tuple[float, ...]) -> int:
    return sum(map(math.isinf, lengths))


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)
