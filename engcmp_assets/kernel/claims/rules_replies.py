"""Rules on long replies of two arms: tests that were declared, and lengths under a cap (MEASURES section 7)."""

from __future__ import annotations

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim
from engcmp_assets.kernel.claims.rule import rule
from engcmp_assets.kernel.reply_lengths.censored_fit import CAPPED_LIMIT

REPLY_P = 0.05
_RATIOS = ("length_ratio", "thinking_ratio")


@rule(
    "replies-judged-by-no-declared-test",
    finding="U1",
    looks_at="verdict on replies; the tests that the protocol declares for the pair",
    remedy="describe them, or declare the test before the next run",
    mend=lambda claim, _: claim.changed(verdict="descriptive", bound=None),
)
def undeclared_test(claim: Claim, facts: Facts) -> str | None:
    """Replies have a verdict only by an exact test that was declared before the run."""
    if claim.states != "replies" or claim.verdict == "descriptive" or facts.replied is None or facts.replied.declared:
        return None
    return f"replies are called `{claim.verdict}`, and no test of them was declared"


@rule(
    "replies-resolved-without-their-test",
    finding="U3",
    looks_at="verdict resolved on replies; the exact p by prompt",
    remedy="say `not resolved`",
    mend=lambda claim, _: claim.changed(verdict="not resolved").with_limit("value only"),
)
def not_shown(claim: Claim, facts: Facts) -> str | None:
    """A declared test resolves where its exact p is below 0.05."""
    if claim.states != "replies" or claim.verdict != "resolved" or facts.replied is None:
        return None
    p = facts.replied.p
    if p is not None and p < REPLY_P:
        return None
    return "replies are called resolved, " + ("and their test has no p" if p is None else f"at an exact p of {p:.3g}")


@rule(
    "ratio-of-replies-that-were-cut",
    finding="public",
    looks_at="ratio of lengths; the share of replies that ran into the cap",
    remedy="withhold the ratio, and say how many were cut",
)
def cut_ratio(claim: Claim, facts: Facts) -> str | None:
    """Where many replies are cut, a ratio of lengths rests on tails that nobody saw."""
    if claim.measure not in _RATIOS or claim.estimate is None or facts.replied is None:
        return None
    capped = facts.replied.capped
    if capped is None or capped <= CAPPED_LIMIT:
        return None
    return f"a ratio of lengths is stated, and {capped:.0%} of one arm's replies ran into the cap"
