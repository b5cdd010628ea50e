"""What a rule is: an id, where it comes from, what it looks at, and one function that finds what the evidence does not carry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim

Find = Callable[[Claim, Facts], str | None]
Mend = Callable[[Claim, Facts], Claim | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its id, the review's finding (or `public` fault) that it comes from, the fields that it looks at, and what to do.

    `find` gives what is wrong, or None. `mend` gives the claim that the evidence carries, or None where there is none.
    """

    rule_id: str
    finding: str
    looks_at: str
    remedy: str
    find: Find
    mend: Mend | None = None


def rule(rule_id: str, *, finding: str, looks_at: str, remedy: str, mend: Mend | None = None) -> Callable[[Find], Rule]:
    """Make the function below it a rule."""
    return lambda find: Rule(rule_id, finding, looks_at, remedy, find, mend)
