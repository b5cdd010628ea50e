"""What an audit finds: each check with what it looked at and how, each fault, and each published claim as far as it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["holds", "narrowed", "corrected"]
"""`narrowed`: it holds of less than what is said, or with a word beside it. `corrected`: it does not hold."""


@dataclass(frozen=True, slots=True)
class Found:
    """A fault: which check found it, in what, and what to do."""

    check: str
    outcome: Literal["narrowed", "corrected"]
    about: str
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Checked:
    """One check: what it asks, how it was looked at, how many things it was looked at in, and what came out."""

    check: str
    asks: str
    how: str
    looked_at: str
    outcome: Outcome | Literal["not looked at"]


@dataclass(frozen=True, slots=True)
class ClaimRead:
    """A published figure, count or note as a claim: which rules found what in it, and the verdict that is left, if any."""

    claim_id: str
    outcome: Outcome
    verdict: str
    left: str | None
    rules: tuple[str, ...]
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookRead:
    """A reading rule at one of several looks, as a cell of the speed block."""

    look: str
    verdict: str
    means: str


@dataclass(frozen=True, slots=True)
class RuleRead:
    """A reading rule of the protocol, applied: its verdict and the sentence that it declared for it.

    A rule of several looks has each in `looks`; where they are read differently, `verdict` counts them.
    """

    rule_id: str
    verdict: str
    means: str
    looks: tuple[LookRead, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that an audit says of a study; `confined` is filled in by the process that ran it."""

    study: str
    frozen_sha256: str
    checks: tuple[Checked, ...]
    found: tuple[Found, ...]
    claims: tuple[ClaimRead, ...]
    readings: tuple[RuleRead, ...]
    confined: dict[str, str]


def outcome_of(found: Sequence[Found]) -> Outcome:
    """The worst of what was found."""
    outcomes = {one.outcome for one in found}
    return "corrected" if "corrected" in outcomes else "narrowed" if outcomes else "holds"
