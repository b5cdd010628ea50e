"""Replies with known lengths: log-normal, of prompts that differ, cut at a cap. As the simulation of the design."""

from __future__ import annotations

import math

import numpy as np

from engcmp_assets.kernel.reply_lengths.records import ReplyLength

PROMPT_SPREAD, REPLY_SPREAD, MEDIAN = 0.8, 0.35, 18_000


def drawn(
    rng: np.random.Generator, *, ratio: float, cap: int, prompts: int = 32, replies: int = 1
) -> tuple[list[ReplyLength], list[ReplyLength]]:
    """Baseline and candidate; the candidate's replies are `ratio` times as long."""
    arms: tuple[list[ReplyLength], list[ReplyLength]] = ([], [])
    for prompt in range(prompts):
        middle = math.log(MEDIAN) + rng.normal(0, PROMPT_SPREAD)
        for arm, times in zip(arms, (1.0, ratio), strict=True):
            for _ in range(replies):
                tokens = math.ceil(times * math.exp(middle + rng.normal(0, REPLY_SPREAD)))
                arm.append(ReplyLength(f"p{prompt:02}", min(tokens, cap), "finished" if tokens <= cap else "capped"))
    return arms


def capped_at(share: float, ratio: float) -> int:
    """The cap that cuts `share` of the replies of both arms together."""
    low, high = 1, 1 << 24
    spread = math.hypot(PROMPT_SPREAD, REPLY_SPREAD) * math.sqrt(2)
    while high - low > 1:
        cap = (low + high) // 2
        above = sum(math.erfc(math.log(cap / (times * MEDIAN)) / spread) / 2 for times in (1.0, ratio)) / 2
        low, high = (cap, high) if above > share else (low, cap)
    return high
