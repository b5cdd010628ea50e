"""Rules on speeds and on what replies contain: bands, drafts, content labels, loops (findings U5, M1, M2)."""

from __future__ import annotations

import math

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim, Word
from engcmp_assets.kernel.claims.rule import rule
from engcmp_assets.kernel.measures import MEASURES

_REASONING = "reasoning about "
_PRINTED = 6e-3  # a band is printed to three digits


def _band(facts: Facts) -> tuple[float, float] | None:
    """The band that the repeats bear out; None where there is none."""
    return facts.speeds.band if facts.speeds else None


@rule(
    "another-band-than-measured",
    finding="M1",
    looks_at="the noise band that is stated; the one that the repeats bear out",
    remedy="state the band that the repeats bear out",
    mend=lambda claim, facts: claim.changed(band=_band(facts)),
)
def other_band(claim: Claim, facts: Facts) -> str | None:
    """The band beside a ratio is the one that was measured: a wider one makes any ratio level, a narrower one none."""
    band = _band(facts)
    if claim.band is None or facts.speeds is None:
        return None
    if band is not None and all(math.isclose(a, b, rel_tol=_PRINTED) for a, b in zip(claim.band, band, strict=True)):
        return None
    there = "no repeats bear out any" if band is None else f"the repeats bear out {band[0]:.3g} to {band[1]:.3g}"
    return f"a noise band of {claim.band[0]:.3g} to {claim.band[1]:.3g} is stated, and {there}"


@rule(
    "ratio-inside-the-band",
    finding="M1",
    looks_at="estimate of a ratio; the noise band of the drift repeats",
    remedy="say `level`",
    mend=lambda claim, facts: claim.changed(verdict="level", band=_band(facts)),
)
def inside_band(claim: Claim, facts: Facts) -> str | None:
    """A ratio inside the noise band is no difference."""
    band = _band(facts)
    if claim.states != "ratio" or band is None or claim.estimate is None or claim.verdict not in ("faster", "slower"):
        return None
    if not band[0] <= claim.estimate <= band[1]:
        return None
    return f"{claim.estimate:.3g} times is called {claim.verdict}, and the noise band is {band[0]:.3g} to {band[1]:.3g}"


@rule(
    "level-outside-the-band",
    finding="M1",
    looks_at="estimate of a ratio called level; the noise band",
    remedy="say on which side of the band it lies",
)
def outside_band(claim: Claim, facts: Facts) -> str | None:
    """Level is a word for ratios inside the band."""
    band = _band(facts)
    if claim.states != "ratio" or claim.verdict != "level" or band is None or claim.estimate is None:
        return None
    if band[0] <= claim.estimate <= band[1]:
        return None
    return f"{claim.estimate:.3g} times is called level, and the noise band is {band[0]:.3g} to {band[1]:.3g}"


def _right_word(claim: Claim) -> Word | None:
    """The word for the side on which a ratio lies; None where no side of the measure is better."""
    better = MEASURES[claim.measure].better if claim.measure in MEASURES else "neither"
    if claim.estimate is None or better == "neither":
        return None
    return "faster" if (claim.estimate > 1) == (better == "higher") else "slower"


@rule(
    "side-of-a-ratio",
    finding="M1",
    looks_at="verdict faster or slower; the ratio, and which way is better of its measure",
    remedy="name the side on which the ratio lies",
    mend=lambda claim, _: claim.changed(verdict=_right_word(claim) or "descriptive"),
)
def other_side(claim: Claim, facts: Facts) -> str | None:
    """More tokens a second is faster, more milliseconds slower."""
    del facts
    if (
        claim.verdict not in ("faster", "slower")
        or claim.measure not in MEASURES
        or claim.verdict == _right_word(claim)
    ):
        return None
    if claim.estimate is None:
        return f"`{claim.verdict}` is said, and no ratio is stated"
    return f"{claim.estimate:.3g} times of {claim.measure} is called {claim.verdict}, and {_side_said(claim)}"


def _side_said(claim: Claim) -> str:
    better = MEASURES[claim.measure].better
    return "no side of it is better" if better == "neither" else f"{better} is better"


@rule(
    "verdict-without-a-band",
    finding="M1",
    looks_at="verdict of a ratio; drift repeats",
    remedy="repeat both arms, or describe the ratio",
    mend=lambda claim, _: claim.changed(verdict="descriptive"),
)
def no_band(claim: Claim, facts: Facts) -> str | None:
    """Without repeats of both arms there is no band, and so no verdict on a ratio."""
    if claim.states != "ratio" or claim.verdict not in ("level", "faster", "slower") or facts.speeds is None:
        return None
    return (
        f"a ratio is called {claim.verdict}, and no repeats bear out a noise band"
        if facts.speeds.band is None
        else None
    )


@rule(
    "speed-without-telemetry",
    finding="M1",
    looks_at="speed; samples of clocks, power and processes during the run",
    remedy="say that nothing was sampled meanwhile",
    mend=lambda claim, _: claim.with_limit("no telemetry"),
)
def no_telemetry(claim: Claim, facts: Facts) -> str | None:
    """A speed that nobody watched is told as such."""
    if claim.states != "ratio" or facts.speeds is None or facts.speeds.telemetry is not False:
        return None
    return None if "no telemetry" in claim.limits else "no sample of the machine was taken during the run"


@rule(
    "drafts-without-acceptance",
    finding="M2",
    looks_at="draft policy as the cause; acceptance counters of both engines",
    remedy="record accepted and drafted tokens of both, or give no cause",
    mend=lambda claim, _: claim.changed(cause=None, states="ratio" if claim.states == "cause" else claim.states),
)
def no_acceptance(claim: Claim, facts: Facts) -> str | None:
    """Drafting is the cause of a speed only where both engines' acceptance was recorded."""
    if claim.cause is None or claim.cause.factor != "draft policy":
        return None
    known = facts.speeds.acceptance if facts.speeds else None
    return None if known else "draft policy is the cause, and acceptance was not recorded on both sides"


@rule(
    "content-that-was-not-written",
    finding="M2",
    looks_at="what the requests are said to make the model write; share of replies that left the reasoning",
    remedy="call it reasoning about that content",
    mend=lambda claim, _: claim.changed(content=f"{_REASONING}{claim.content}"),
)
def not_written(claim: Claim, facts: Facts) -> str | None:
    """A cell in which no reply left the reasoning is of reasoning, whatever its prompts ask for."""
    if claim.content is None or claim.content.startswith(_REASONING) or claim.content == "reasoning":
        return None
    if facts.speeds is None or facts.speeds.answers is None or facts.speeds.answers > 0:
        return None
    return f"the content is called {claim.content}, and no reply left its reasoning"


@rule(
    "content-of-another-cell",
    finding="M2",
    looks_at="what the requests are said to make the model write; what the cell's prompts ask for",
    remedy="name the cell's own content",
    mend=lambda claim, facts: claim.changed(content=facts.speeds.kind if facts.speeds else None),
)
def other_content(claim: Claim, facts: Facts) -> str | None:
    """A cell is called after its own prompts."""
    kind = facts.speeds.kind if facts.speeds else None
    if claim.content is None or kind is None or claim.content in (kind, f"{_REASONING}{kind}", "reasoning"):
        return None
    return f"the content is called {claim.content}, and the cell's prompts ask for {kind}"


@rule(
    "restated-text-counted-as-a-loop",
    finding="U5",
    looks_at="number of loops; replies that repeat themselves within one span",
    remedy="count replies that repeat themselves within the span in which they ended",
    mend=lambda claim, facts: claim.changed(estimate=float(facts.replies.self_repeating)) if facts.replies else None,
)
def restated(claim: Claim, facts: Facts) -> str | None:
    """An answer that says again what the reasoning drafted is no loop."""
    if claim.states != "loops" or facts.replies is None or claim.estimate is None:
        return None
    real = facts.replies.self_repeating
    if claim.estimate == real:
        return None
    if claim.estimate < real:
        return f"{claim.estimate:g} loops are counted, and {real} replies repeat themselves"
    return f"{claim.estimate:.0f} loops are counted, and {real} replies repeat themselves; the others restate what was drafted before"
