"""What a look's own numbers decide: the verdict of a difference, and the largest effect that its interval leaves open."""

from __future__ import annotations

import math

from engcmp_assets.kernel.claims.facts import Look
from engcmp_assets.kernel.claims.records import Claim, Ends, Word
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS

SIGN_FLIP_P = 0.05
_NO_WIDTH = 1e-12  # relative: an interval narrower than this is rounding


def without_zero(ends: Ends | None) -> bool:
    """Whether an interval excludes zero."""
    return ends is not None and (ends.low > 0 or ends.high < 0)


def bound_of(look: Look) -> float | None:
    """The largest effect that the interval does not exclude; None without an interval, and for one without a width.

    Where a family's own interval cannot be given (too few replicates), the narrower one of the look alone bounds nothing.
    """
    ends = look.bounding
    if ends is None or math.isclose(ends.low, ends.high, rel_tol=_NO_WIDTH):
        return None
    return max(abs(ends.low), abs(ends.high))


def unresolved(claim: Claim, look: Look) -> Claim:
    """The claim as not resolved, with the bound that its interval gives."""
    bound = bound_of(look)
    softer = claim.changed(verdict="not resolved", interval=look.bounding, bound=bound)
    return softer if bound is not None else softer.with_limit("value only")


def word_of(look: Look) -> Word | None:
    """The verdict that the look's numbers give a difference; None where they are too few to tell."""
    ends, few = look.deciding, look.clusters is not None and look.clusters < BOOTSTRAP_CLUSTERS
    copies = look.independent is not None and look.clusters is not None and look.independent < look.clusters
    if ends is None or copies or (few and look.sign_flip_p is None):
        return None
    shown = not few or (look.sign_flip_p is not None and look.sign_flip_p < SIGN_FLIP_P)
    one_side = [
        one.stands and (look.estimate is None or one.value is None or one.value * look.estimate > 0)
        for one in look.against
    ]
    if without_zero(ends) and shown and all(one_side):
        return "resolved"
    return "baseline-dependent" if any(one.stands for one in look.against) else "not resolved"
