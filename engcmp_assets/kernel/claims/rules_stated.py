"""Rules on what is printed beside a number: its interval and its unit are those that were measured (I1)."""

from __future__ import annotations

import math

from engcmp_assets.kernel.claims.facts import Facts, Look
from engcmp_assets.kernel.claims.records import Claim, Ends
from engcmp_assets.kernel.claims.rule import rule

_RELATIVE = 1e-3  # a claim may be rounded to four digits
_ABSOLUTE = 1e-12
_LEVEL, _LEFT = 6e-5, 0.15  # of a level, and of what it leaves: 99.97 % is not 99.99 %


def measured(facts: Facts) -> Look:
    """The look that was measured, an empty one where there is none."""
    return facts.look or Look()


def is_as_printed(stated: float, value: float) -> bool:
    """Whether a number that a claim states is the one that was measured, as far as it is printed."""
    return math.isclose(stated, value, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def _same_level(one: float, other: float) -> bool:
    """Whether two levels are one, printed as a percentage of four digits."""
    return abs(one - other) <= _LEVEL and math.isclose(1 - one, 1 - other, rel_tol=_LEFT)


def _same_ends(one: Ends, other: Ends) -> bool:
    """Whether two intervals are the same as far as they are printed; of a method's name only what stands before the first comma counts."""
    reach = max(abs(other.low), abs(other.high))  # an end near zero is printed as roughly as the other
    return (
        _same_level(one.level, other.level)
        and one.method.split(",", 1)[0] == other.method.split(",", 1)[0]
        and all(
            math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=_RELATIVE * reach + _ABSOLUTE)
            for a, b in ((one.low, other.low), (one.high, other.high))
        )
    )


def _with_measured_interval(claim: Claim, facts: Facts) -> Claim:
    look = measured(facts)
    return claim.changed(interval=look.interval or look.deciding)


@rule(
    "another-interval-than-measured",
    finding="I1",
    looks_at="interval: its ends, level and method",
    remedy="state the interval that the rows give",
    mend=_with_measured_interval,
)
def other_interval(claim: Claim, facts: Facts) -> str | None:
    """The interval stated is one of those measured, as far as it is printed."""
    known = [ends for ends in (measured(facts).interval, measured(facts).deciding) if ends is not None]
    if claim.interval is None or not known or any(_same_ends(claim.interval, ends) for ends in known):
        return None
    stated = claim.interval
    return (
        f"[{stated.low:.6g}, {stated.high:.6g}] at {stated.level:g} by {stated.method!r} is stated, and the rows give "
        f"[{known[0].low:.6g}, {known[0].high:.6g}] at {known[0].level:g} by {known[0].method!r}"
    )


@rule(
    "another-unit-than-measured",
    finding="I1",
    looks_at="unit of the estimate",
    remedy="state the measure's unit",
    mend=lambda claim, facts: claim.changed(unit=measured(facts).unit),
)
def other_unit(claim: Claim, facts: Facts) -> str | None:
    """The number stated is in the measure's unit."""
    unit = measured(facts).unit
    if not claim.unit or unit is None or claim.unit == unit:
        return None
    return f"the number is stated in {claim.unit}, and the measure is in {unit}"
