"""The plain geometric mean of length ratios: only ever told as "under the cap" (MEASURES section 7).

It takes a capped reply for one of exactly the cap, so it lies towards 1, and its spread shrinks with it: with half of the replies
capped, a true 1.30 reads 1.13 and looks precise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_lengths.records import PairedLengths


@dataclass(frozen=True, slots=True)
class UnderCap:
    """Candidate / baseline of the lengths cut at the cap: the geometric mean over prompts; it has no interval, for that would mislead."""

    ratio: float | Missing
    label: str


def under_the_cap(lengths: PairedLengths) -> UnderCap:
    """The geometric mean, over prompts, of the ratio of geometric mean lengths, each length cut at the cap."""
    label = f"under the cap of {lengths.cap} tokens"
    if not lengths.pairs:
        return UnderCap(Missing("no prompt has a usable reply of both arms"), label)
    logs = [
        float(
            np.mean(np.log(np.minimum(pair.candidate, lengths.cap)))
            - np.mean(np.log(np.minimum(pair.baseline, lengths.cap)))
        )
        for pair in lengths.pairs
    ]
    return UnderCap(math.exp(math.fsum(logs) / len(logs)), label)
