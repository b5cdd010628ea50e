"""Rules on how a result is put: bars, provenance of texts, score paths (M4 to M6), and what public tools were found to do."""

from __future__ import annotations

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Claim, Limit
from engcmp_assets.kernel.claims.rule import rule
from engcmp_assets.kernel.reply_measures import PASSED_OF

FULL = ("kl_full", "kl_pair_full")
TRUNCATED = ("kl_coarse", "kl_top20", "kl_pb20", "kl_pair20", "kl_pair_coarse")
_OF_ANSWERS = tuple(PASSED_OF.values())
MOST_HOURS = 24.0
"""Captures further apart than this are no pair without a control that ran between them."""
_PATH_LIMIT: dict[str, Limit] = {"prefill": "prefill path only", "decode": "decode path only"}


def _kind(measure: str) -> str:
    return "full" if measure in FULL else measure if measure in TRUNCATED else "other"


@rule(
    "absolute-bar-without-the-paired-one",
    finding="M4",
    looks_at="the bar; the panel's paired bar",
    remedy="give the paired bar's verdict",
    mend=lambda claim, facts: claim.changed(bar="paired", verdict=facts.paired_bar) if facts.paired_bar else None,
)
def absolute_alone(claim: Claim, facts: Facts) -> str | None:
    """Where a panel has a paired bar, a comparison is read against that."""
    if claim.states != "bar" or claim.bar != "absolute" or claim.baseline is None:
        return None
    return "a comparison is read against the absolute bar alone, and the paired one is not given"


@rule(
    "another-verdict-than-the-bar-gives",
    finding="M4",
    looks_at="verdict of the paired bar",
    remedy="give the verdict that its bounds give",
    mend=lambda claim, facts: claim.changed(verdict=facts.paired_bar),
)
def other_bar(claim: Claim, facts: Facts) -> str | None:
    """The paired bar's own bounds decide."""
    if claim.states != "bar" or claim.bar != "paired" or facts.paired_bar in (None, claim.verdict):
        return None
    return f"the paired bar is said to read `{claim.verdict}`, and its bounds give `{facts.paired_bar}`"


@rule(
    "bar-of-one-engine-used-across-two",
    finding="M4",
    looks_at="the bar; whether both arms are one engine",
    remedy="say that it is used by analogy",
    mend=lambda claim, _: claim.with_limit("by analogy"),
)
def by_analogy(claim: Claim, facts: Facts) -> str | None:
    """The bar is defined for changes within one engine."""
    if claim.states != "bar" or "by analogy" in claim.limits or facts.inputs is None:
        return None
    return "a bar for changes within one engine is used across two" if facts.inputs.same_engine is False else None


@rule(
    "text-of-unsaid-provenance",
    finding="M5",
    looks_at="what the claim says of the text's origin; the panel's record of it",
    remedy="say which model, engine and recipe wrote the text",
    mend=lambda claim, facts: (
        claim.changed(text=facts.texts.provenance) if facts.texts and facts.texts.provenance else None
    ),
)
def provenance(claim: Claim, facts: Facts) -> str | None:
    """A figure on generated text says who generated it."""
    texts = facts.texts
    generated = claim.population.role == "generated" or (texts is not None and texts.greedy is not None)
    if generated and not claim.text:
        return "the text was generated, and nothing says by what"
    return None


@rule(
    "sharpness-read-as-quality",
    finding="U2",
    looks_at="measure nll; whether the text was generated at temperature 0",
    remedy="say that this measure rewards sharpness on such text",
    mend=lambda claim, _: claim.with_limit("rewards sharpness"),
)
def sharpness(claim: Claim, facts: Facts) -> str | None:
    """On greedily generated text the surprise at the next token rewards a sharper distribution, right or wrong."""
    if claim.measure not in ("nll", "nll_minus_reference") or "rewards sharpness" in claim.limits:
        return None
    return (
        "the text was generated at temperature 0, where nll rewards sharpness"
        if facts.texts and facts.texts.greedy
        else None
    )


def _one_path(claim: Claim, facts: Facts) -> Claim | None:
    paths = facts.scored_paths or ()
    if len(paths) != 1 or paths[0] not in _PATH_LIMIT:
        return None
    narrower = claim.changed(score_path=paths[0])
    return narrower.with_limit(_PATH_LIMIT[paths[0]])


@rule(
    "path-that-was-not-scored",
    finding="M6",
    looks_at="the score path; the paths that were captured",
    remedy="name the path that was scored, and say that the other was not",
    mend=_one_path,
)
def other_path(claim: Claim, facts: Facts) -> str | None:
    """A figure of one score path says nothing of the other."""
    paths = facts.scored_paths
    if paths is None or claim.states in ("ratio", "loops"):
        return None
    if claim.score_path is None and len(paths) < len(_PATH_LIMIT):
        return f"no score path is named, and only {', '.join(paths) or 'none'} was scored"
    return (
        f"the {claim.score_path} path is named, and was not scored"
        if claim.score_path and claim.score_path not in paths
        else None
    )


@rule(
    "colour-by-sign-alone",
    finding="public",
    looks_at="how the sign is shown; interval or band",
    remedy="colour by verdict, or show the number",
    mend=lambda claim, _: claim.changed(shown_as="number"),
)
def sign_colour(claim: Claim, facts: Facts) -> str | None:
    """A colour for better or worse needs a verdict that says so."""
    del facts
    if claim.shown_as != "sign colour" or claim.verdict in ("resolved", "faster", "slower"):
        return None
    return f"better or worse is shown by colour, and the verdict is `{claim.verdict}`"


@rule(
    "quality-from-kl-alone",
    finding="public",
    looks_at="what is stated; whether the measure is one of answers that were checked",
    remedy="say how far the rows are apart, and nothing of quality",
    mend=lambda claim, _: claim.changed(states="difference"),
)
def quality(claim: Claim, facts: Facts) -> str | None:
    """A distance from a reference is no quality: near the baseline it does not order answers."""
    del facts
    if claim.states != "quality" or claim.measure in _OF_ANSWERS:
        return None
    return f"quality is stated from {claim.measure} alone"


@rule(
    "truncated-beside-full",
    finding="public",
    looks_at="the measures of both sides",
    remedy="read both sides by one measure",
)
def truncated(claim: Claim, facts: Facts) -> str | None:
    """A truncated KL is another measure than the full one, and never set beside it."""
    del facts
    other = claim.baseline_measure
    if other is None or other == claim.measure:
        return None
    kinds = {_kind(claim.measure), _kind(other)}
    return (
        f"{claim.measure} is set beside {other}, another measure"
        if kinds != {"other"} or claim.measure != other
        else None
    )


@rule(
    "stale-baseline",
    finding="public",
    looks_at="when and under which freeze both sides were measured; a control between",
    remedy="measure the baseline again, or a control on the day of the candidate",
    mend=lambda claim, facts: (
        claim.with_limit("no control between captures") if facts.ages and facts.ages.same_freeze is not False else None
    ),
)
def stale(claim: Claim, facts: Facts) -> str | None:
    """A baseline from another day, machine or freeze is no pair without a control."""
    ages = facts.ages
    if ages is None or claim.baseline is None:
        return None
    if ages.same_freeze is False:
        return "the baseline was measured under another frozen hash"
    if ages.control or "no control between captures" in claim.limits:
        return None
    if ages.same_machine is False:
        return "the two sides were measured on two machines, without a control"
    if ages.hours_apart is not None and ages.hours_apart > MOST_HOURS:
        return f"the two sides were measured {ages.hours_apart:.0f} hours apart, without a control"
    return None


@rule(
    "evidence-that-is-not-there",
    finding="public",
    looks_at="receipts and row files that the claim cites",
    remedy="cite the receipt and the rows that it rests on",
)
def no_evidence(claim: Claim, facts: Facts) -> str | None:
    """Every figure has its receipt."""
    if facts.known is None:
        return None
    cited = (*claim.evidence.receipts, *claim.evidence.row_files)
    if not cited:
        return "no receipt and no row file is cited"
    absent = [name for name in cited if name not in facts.known]
    return f"{absent[0][:12]} is cited, and there is no such receipt or row file" if absent else None


@rule(
    "evidence-of-other-arms",
    finding="public",
    looks_at="receipts and row files that the claim cites; whose they are",
    remedy="cite the receipts and rows of the claim's own arms",
)
def evidence_of_others(claim: Claim, facts: Facts) -> str | None:
    """What a claim cites is of the arms that it compares, or of the whole study."""
    for name in (*claim.evidence.receipts, *claim.evidence.row_files):
        owners = facts.owners.get(name, ())
        if owners and not {claim.candidate, claim.baseline} & set(owners):
            return f"{name[:12]} is cited, and it is of {' and '.join(owners)}"
    return None


@rule(
    "nothing-measured-of-it",
    finding="public",
    looks_at="arms, measure and population; what was measured",
    remedy="claim what was measured, or measure it",
)
def nothing_measured(claim: Claim, facts: Facts) -> str | None:
    """A claim is of arms that were compared, by a measure that was read, on rows or cells that there are; or says that they were not."""
    said = (
        claim.verdict == "not comparable" and claim.estimate is None and claim.interval is None and claim.bound is None
    )
    return None if said and facts.not_comparable else facts.unmeasured


@rule(
    "compared-and-called-not-comparable",
    finding="public",
    looks_at="verdict not comparable; whether there is a figure",
    remedy="describe the figure that there is",
    mend=lambda claim, _: claim.changed(verdict="descriptive"),
)
def was_compared(claim: Claim, facts: Facts) -> str | None:
    """What was compared is not called otherwise."""
    there = facts.look is not None and facts.look.estimate is not None
    return (
        f"`not comparable` is said, and {claim.measure} was compared"
        if claim.verdict == "not comparable" and there
        else None
    )


@rule(
    "evidence-of-one-side-alone",
    finding="public",
    looks_at="receipts and row files that the claim cites; of which arms they hold what was measured",
    remedy="cite the rows, scores, cells or replies of each arm, or the comparison",
)
def one_side(claim: Claim, facts: Facts) -> str | None:
    """A comparison rests on what was measured of both sides, not on their sources and not on one alone."""
    cited = (*claim.evidence.receipts, *claim.evidence.row_files)
    if not facts.measured_of or not cited:
        return None
    held = {arm for name in cited for arm in facts.measured_of.get(name, ())}
    lacking = [arm for arm in (claim.candidate, claim.baseline) if arm is not None and arm not in held]
    return f"nothing is cited that was measured of {lacking[0]}" if lacking else None
