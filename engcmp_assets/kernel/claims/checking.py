"""A claim held against the facts by every rule: what is refused, what is rewritten, and the sound claim that is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engcmp_assets.kernel.claims import (
    rules_causes,
    rules_counts,
    rules_kinds,
    rules_looks,
    rules_public,
    rules_replies,
    rules_speed,
    rules_stated,
)
from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.claims.rule import Rule

_MODULES = (
    rules_kinds, rules_causes, rules_looks, rules_stated, rules_speed, rules_replies, rules_counts, rules_public,
)  # fmt: skip
RULES: dict[str, Rule] = {
    one.rule_id: one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)
}
"""Every rule by its id."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a claim: by which rule, and whether it is refused or can be rewritten."""

    claim_id: str
    rule_id: str
    finding: str
    action: Literal["refuse", "rewrite"]
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.claim_id}: {self.what} ({self.rule_id}, {self.finding}); {self.remedy}"


def check_claim(claim: Claim, facts: Facts) -> list[Finding]:
    """Every way in which the claim goes further than the facts, in the order of the rules; empty for a sound one."""
    found = []
    for one in RULES.values():
        what = one.find(claim, facts)
        if what is not None:
            mended = one.mend(claim, facts) if one.mend else None
            action: Literal["refuse", "rewrite"] = "refuse" if mended is None else "rewrite"
            found.append(Finding(claim.claim_id, one.rule_id, one.finding, action, what, one.remedy))
    return found


def narrowed(claim: Claim, facts: Facts) -> Claim | None:
    """The claim as far as the facts carry it: itself where it is sound, rewritten where rules can, None where one refuses it."""
    current = claim
    for _ in RULES:
        broken = next((one for one in RULES.values() if one.find(current, facts) is not None), None)
        if broken is None:
            return current
        mended = broken.mend(current, facts) if broken.mend else None
        if mended is None:
            return None
        current = mended
    return current if not check_claim(current, facts) else None


Outcome = Literal["accepted", "rewritten", "refused"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, every way in which it says more than the facts, and the claim that is left: itself, a narrower one, or none."""

    claim: Claim
    findings: tuple[Finding, ...]
    left: Claim | None

    @property
    def outcome(self) -> Outcome:
        """`accepted` as it is stated, `rewritten` to what the facts carry, or `refused`."""
        if not self.findings:
            return "accepted"
        return "refused" if self.left is None else "rewritten"


def judge(claim: Claim, facts: Facts) -> Judged:
    """The claim held against the facts by every rule."""
    found = tuple(check_claim(claim, facts))
    return Judged(claim, found, narrowed(claim, facts) if found else claim)
