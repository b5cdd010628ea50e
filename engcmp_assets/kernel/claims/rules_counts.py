"""Rules on claims that count: how many cells have which verdict, and how many looks share an error rate (findings M1 and U1)."""

from __future__ import annotations

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.claims.rule import rule

LOOKS = "looks"
_ROUNDED = 1.05  # a level may be printed to two digits of what it leaves


@rule(
    "cells-counted-otherwise",
    finding="M1",
    looks_at="counts by verdict; each cell's ratio and the noise band",
    remedy="count every cell by the verdict that the band gives",
    mend=lambda claim, facts: claim.changed(counts=dict(facts.cells.verdicts)) if facts.cells else None,
)
def counted_otherwise(claim: Claim, facts: Facts) -> str | None:
    """A count of cells is of all of them, each by the verdict that its ratio has within the band."""
    if claim.states != "counts" or facts.cells is None:
        return None
    stated = {word: count for word, count in (claim.counts or {}).items() if count}
    found = {word: count for word, count in facts.cells.verdicts.items() if count}
    if stated == found:
        return None
    return f"{_told(stated)} are counted, and the cells give {_told(found)}"


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"


def _as_taken(claim: Claim, facts: Facts) -> Claim | None:
    family = facts.family
    if family is None or family.looks < 1:
        return None
    counts = {**(claim.counts or {}), LOOKS: family.looks}
    return claim.changed(counts=counts, level=_level(family.looks, family.level))


def _level(looks: int, level: float) -> float:
    return 1 - (1 - level) / looks


@rule(
    "error-rate-of-fewer-looks",
    finding="U1",
    looks_at="number of looks that share an error rate, and the level of each; the looks that were taken",
    remedy="count every look that is not primary, and judge each at its share of the error rate",
    mend=_as_taken,
)
def fewer_looks(claim: Claim, facts: Facts) -> str | None:
    """All looks that were taken share the error rate, and each is judged at the level that leaves it."""
    family = facts.family
    if claim.states != "looks" or family is None or claim.counts is None:
        return None
    stated = claim.counts.get(LOOKS, 0)
    if stated < family.looks:
        return f"{stated} looks are said to share an error rate, and {family.looks} were taken"
    wanted = _level(stated, family.level)
    if claim.level is not None and 1 - claim.level > _ROUNDED * (1 - wanted):
        return (
            f"each of {stated} looks is judged at {claim.level:.6g}, and its share of the error rate wants {wanted:.6g}"
        )
    return None
