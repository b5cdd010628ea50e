"""Rules on what was measured: the number itself, its interval, floor and documents, and which rows it is of (I1, U1, U3, U4)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from engcmp_assets.kernel.claims.contents import dominant_block
from engcmp_assets.kernel.claims.deciding import SIGN_FLIP_P, bound_of, unresolved, without_zero
from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import ANY, BOOTSTRAP, Claim, ClaimedFloor
from engcmp_assets.kernel.claims.rule import rule
from engcmp_assets.kernel.claims.rules_stated import is_as_printed, measured
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, INTERVAL_CLUSTERS


def _is_difference(claim: Claim) -> bool:
    return claim.states in ("difference", "trend", "ablation", "cause")


def _is_of_repeats(claim: Claim, facts: Facts) -> bool:
    """Whether the claim was narrowed to the documents that were repeated, and states what was measured on them."""
    again = facts.repeats
    if claim.floor is None or again is None or again.estimate_on_them is None or claim.estimate is None:
        return False
    same = set(claim.floor.documents) == set(again.documents) and claim.clusters == len(again.documents)
    return same and is_as_printed(claim.estimate, again.estimate_on_them)


def _as_measured(claim: Claim, facts: Facts) -> Claim:
    look = measured(facts)
    return claim.changed(estimate=look.estimate, clusters=look.clusters if claim.clusters is not None else None)


@rule(
    "another-number-than-measured",
    finding="I1",
    looks_at="estimate and number of documents",
    remedy="state what the rows give",
    mend=_as_measured,
)
def other_number(claim: Claim, facts: Facts) -> str | None:
    """The number stated is the number measured, as far as it is printed."""
    look = measured(facts)
    if _is_of_repeats(claim, facts):
        return None
    if claim.estimate is not None and look.estimate is not None and not is_as_printed(claim.estimate, look.estimate):
        return f"{claim.estimate:.6g} is stated, and the rows give {look.estimate:.6g}"
    if (
        claim.clusters is not None
        and look.clusters is not None
        and claim.clusters not in (look.clusters, look.independent)
    ):
        return f"{claim.clusters} documents are stated, and {look.clusters} have a row"
    return None


@rule(
    "rows-that-are-not-identical",
    finding="I1",
    looks_at="verdict bit-identical; share of rows that are equal",
    remedy="state the share of rows that are equal",
)
def not_identical(claim: Claim, facts: Facts) -> str | None:
    """Bit-identical means every row."""
    if claim.verdict != "bit-identical":
        return None
    share = measured(facts).rows_equal
    if share is None and facts.look is not None and facts.look.estimate != 0:  # equal rows leave no difference
        return "rows are called bit-identical, and no row was held against another"
    if share is not None and share < 1:
        return f"rows are called bit-identical, and {100 * share:.4g} % of them are equal"
    if _is_difference(claim) and claim.estimate not in (None, 0.0):
        return f"rows are called bit-identical, and their measures differ by {claim.estimate:.4g}"
    return None


@rule(
    "interval-that-holds-zero",
    finding="U3",
    looks_at="verdict resolved; the interval that decides, and under 8 documents the exact test",
    remedy="say `not resolved`, with the effect that is excluded",
    mend=lambda claim, facts: unresolved(claim, measured(facts)),
)
def holds_zero(claim: Claim, facts: Facts) -> str | None:
    """A difference is resolved where the interval that decides excludes zero."""
    look = measured(facts)
    if claim.verdict != "resolved" or not _is_difference(claim) or claim.measure == ANY:
        return None
    if look.deciding is None and look.interval is not None and not look.primary:
        return "a difference is called resolved, and no interval at the level of its family could be given"
    ends = look.deciding or claim.interval
    if ends is None:
        return "a difference is called resolved without an interval"
    if not without_zero(ends):
        return f"a difference is called resolved, and [{ends.low:.4g}, {ends.high:.4g}] holds zero"
    few = look.clusters is not None and look.clusters < BOOTSTRAP_CLUSTERS
    if few and look.sign_flip_p is not None and look.sign_flip_p >= SIGN_FLIP_P:
        return f"a difference of {look.clusters} documents is called resolved at an exact p of {look.sign_flip_p:.3g}"
    return None


@rule(
    "one-run-of-the-baseline",
    finding="I1",
    looks_at="verdict resolved; the difference against each single run of the baseline",
    remedy="say `baseline-dependent`",
    mend=lambda claim, _: claim.changed(verdict="baseline-dependent"),
)
def one_run(claim: Claim, facts: Facts) -> str | None:
    """A difference is resolved only where it is so against every run of the baseline, on one side."""
    look = measured(facts)
    if claim.verdict != "resolved" or not _is_difference(claim) or not look.against:
        return None
    side = claim.estimate if claim.estimate is not None else look.estimate
    others = [
        one.run for one in look.against
        if not one.stands or (side is not None and one.value is not None and one.value * side <= 0)
    ]  # fmt: skip
    return f"a difference is called resolved, and against run {', '.join(others)} it is not" if others else None


@rule(
    "shift-of-a-mean-as-the-floor",
    finding="I1",
    looks_at="the floor's statistic",
    remedy="give what the same measure reads per row between runs",
    mend=lambda claim, facts: claim.changed(
        floor=ClaimedFloor(value=facts.repeats.per_row, documents=facts.repeats.documents)
    ) if facts.repeats and facts.repeats.per_row is not None else None,
)  # fmt: skip
def shift_of_mean(claim: Claim, facts: Facts) -> str | None:
    """By how much a mean moved between two runs is not how far apart their rows are."""
    del facts
    if claim.floor is None or claim.floor.statistic != "shift of a mean":
        return None
    return "the floor beside it is the shift of a mean between two runs, not what differs per row"


def _on_shared(claim: Claim, facts: Facts) -> Claim | None:
    again = facts.repeats
    if again is None or again.per_row is None or again.estimate_on_them is None or not again.documents:
        return None
    return claim.changed(
        estimate=again.estimate_on_them, clusters=len(again.documents), interval=None, verdict="descriptive",
        floor=ClaimedFloor(value=again.per_row, documents=again.documents),
    )  # fmt: skip


@rule(
    "floor-of-other-documents",
    finding="U3",
    looks_at="the floor's documents beside those of the estimate",
    remedy="set both on the documents that were repeated",
    mend=_on_shared,
)
def other_documents(claim: Claim, facts: Facts) -> str | None:
    """A difference and its floor are of the same documents."""
    documents = measured(facts).documents
    if claim.floor is None or not isinstance(documents, tuple):
        return None
    own = claim.floor.documents or (facts.repeats.documents if facts.repeats else ())
    if not own or set(own) == set(documents) or _is_of_repeats(claim, facts):
        return None
    return f"the floor is of {len(own)} documents, and the figure of {len(documents)}"


@rule(
    "another-floor-than-measured",
    finding="I1",
    looks_at="the floor's value; what the same measure reads between runs",
    remedy="give the floor that the repeats show",
    mend=lambda claim, facts: claim.changed(
        floor=ClaimedFloor(value=facts.repeats.per_row, documents=facts.repeats.documents)
        if facts.repeats and facts.repeats.per_row is not None else None
    ),
)  # fmt: skip
def other_floor(claim: Claim, facts: Facts) -> str | None:
    """The floor stated is one that was measured."""
    if claim.floor is None or claim.floor.statistic != "per row" or facts.repeats is None:
        return None
    known = [one for one in (facts.repeats.per_row, *facts.repeats.others) if one is not None]
    if any(is_as_printed(claim.floor.value, one) for one in known):
        return None
    return f"a floor of {claim.floor.value:.4g} is stated, and {f'repeats read {known[0]:.4g}' if known else 'no repeat was captured'}"


@rule(
    "no-word-of-a-missing-floor",
    finding="I1",
    looks_at="the floor, and the limit `no floor`",
    remedy="capture a repeat, or say that there is no floor",
    mend=lambda claim, _: claim.with_limit("no floor"),
)
def floor_unsaid(claim: Claim, facts: Facts) -> str | None:
    """A comparison without a measured floor says so."""
    if facts.repeats is None or facts.repeats.per_row is not None or not _is_difference(claim):
        return None
    if claim.floor is not None or "no floor" in claim.limits:
        return None
    return "no repeat was captured, and nothing says that there is no floor"


def _no_bootstrap(claim: Claim, facts: Facts) -> Claim:
    look = measured(facts)
    ends = look.bounding
    count = claim.clusters if claim.clusters is not None else look.clusters or 0
    if ends is not None and not ends.method.startswith(BOOTSTRAP) and count >= INTERVAL_CLUSTERS:
        resolved = without_zero(ends) and look.sign_flip_p is not None and look.sign_flip_p < SIGN_FLIP_P
        better = claim.changed(interval=ends)
        return better if claim.verdict != "resolved" or resolved else unresolved(better, look)
    plain = claim.changed(interval=None, bound=None).with_limit("value only")
    return plain.changed(verdict="not resolved") if claim.verdict == "resolved" else plain


@rule(
    "bootstrap-of-few-documents",
    finding="U3",
    looks_at="the interval's method; the number of documents",
    remedy="give the t-interval of the documents' means and the exact test; under 3 documents values alone",
    mend=_no_bootstrap,
)
def few_documents(claim: Claim, facts: Facts) -> str | None:
    """Under 8 documents a percentile bootstrap has too few different resamples; under 3 there is no interval at all."""
    count = claim.clusters if claim.clusters is not None else measured(facts).clusters
    if claim.interval is None or count is None:
        return None
    if count < INTERVAL_CLUSTERS:
        return f"an interval is given from {count} documents"
    if count < BOOTSTRAP_CLUSTERS and claim.interval.method.startswith(BOOTSTRAP):
        return f"the interval resamples {count} documents, of which there are {math.comb(2 * count - 1, count)} different resamples"
    return None


@rule(
    "near-copies-counted-apart",
    finding="U4",
    looks_at="number of documents; texts that share most of their tokens",
    remedy="count near-copies as one document",
    mend=lambda claim, facts: claim.changed(
        clusters=measured(facts).independent, interval=None, verdict="descriptive"
    ).with_limit("value only"),
)
def near_copies(claim: Claim, facts: Facts) -> str | None:
    """Windows of one text are one document."""
    look = measured(facts)
    if look.independent is None or look.clusters is None or look.independent >= look.clusters:
        return None
    if claim.interval is None and (claim.clusters is None or claim.clusters <= look.independent):
        return None
    return f"{look.clusters} documents are counted, and near-copies leave {look.independent}"


@rule(
    "one-document-carries-it",
    finding="U3",
    looks_at="verdict resolved; the difference without each document",
    remedy="name the document that carries it",
    mend=lambda claim, _: claim.with_limit("one document carries it"),
)
def carried(claim: Claim, facts: Facts) -> str | None:
    """A result that one document carries is told with that document."""
    look = measured(facts)
    if claim.verdict != "resolved" or look.carried_by is None or "one document carries it" in claim.limits:
        return None
    return f"without document {look.carried_by} half of it or less is left"


@rule(
    "no-bound",
    finding="U3",
    looks_at="verdict not resolved; the bound",
    remedy="state the largest effect that is excluded",
    mend=lambda claim, facts: (
        claim.changed(bound=bound_of(measured(facts)))
        if bound_of(measured(facts)) is not None
        else claim.with_limit("value only")
    ),
)
def no_bound(claim: Claim, facts: Facts) -> str | None:
    """That nothing was resolved is a result only with the effect that is excluded."""
    tested = claim.states == "replies"  # by an exact test, which bounds nothing
    excused = "value only" in claim.limits and (tested or bound_of(measured(facts)) is None)
    if claim.verdict != "not resolved" or claim.bound is not None or excused:
        return None
    return "a difference is not resolved, and no bound says how large it may be"


@rule(
    "bound-below-the-interval",
    finding="U3",
    looks_at="the bound, whatever the verdict; the interval that decides",
    remedy="state the larger end of the interval",
    mend=lambda claim, facts: claim.changed(bound=bound_of(measured(facts))),
)
def bound_too_small(claim: Claim, facts: Facts) -> str | None:
    """The bound is not below what the interval that decides still allows."""
    bound = bound_of(measured(facts))
    if claim.bound is None or bound is None:
        return None
    if claim.bound >= bound or is_as_printed(claim.bound, bound):
        return None
    return f"more than {claim.bound:.4g} is called excluded, and the interval reaches {bound:.4g}"


def _as_block(claim: Claim, facts: Facts) -> Claim | None:
    """The same look as one at the block; what was said of context is not said of it."""
    bucket = claim.population.bucket
    block = dominant_block(facts.contents.rows, bucket) if facts.contents and bucket else None
    if block is None or claim.states == "trend":
        return None
    cause = None if claim.cause and claim.cause.factor == "context length" else claim.cause
    return claim.changed(population=claim.population.model_copy(update={"bucket": None, "block": block}), cause=cause)


@rule(
    "bucket-of-one-block",
    finding="U1",
    looks_at="the bucket; rows by bucket and block",
    remedy="name the block instead of the context",
    mend=_as_block,
)
def bucket_of_one_block(claim: Claim, facts: Facts) -> str | None:
    """A bucket that holds one kind of content says nothing about the length of context."""
    if facts.contents is None or claim.population.block is not None:
        return None
    buckets = [claim.population.bucket] if claim.population.bucket else []
    if claim.states == "trend" and not buckets:
        buckets = list(facts.contents.rows)
    for bucket in buckets:
        block = dominant_block(facts.contents.rows, bucket)
        if block is not None:
            return f"bucket {bucket} is made of block {block}: a bucket's figure is that block's"
    return None


@rule(
    "trend-within-no-block",
    finding="U1",
    looks_at="trend or context length as the cause; what context adds within one block",
    remedy="say what was read at each length, and no trend",
)
def no_trend(claim: Claim, facts: Facts) -> str | None:
    """Growth with context is shown within a block that has every length, by an interval on the difference's own side of zero."""
    said = claim.states == "trend" or (claim.cause is not None and claim.cause.factor == "context length")
    if not said:
        return None
    within: Mapping[str, tuple[float, float] | None] = facts.contents.within if facts.contents else {}
    block = claim.population.block
    chosen = {name: ends for name, ends in within.items() if block in (None, name)}
    if not chosen:
        return "a trend with context is stated, and no block has rows at several lengths"
    side = claim.estimate if claim.estimate is not None else measured(facts).estimate or 1.0
    flat = [name for name, ends in chosen.items() if ends is None or min(ends[0] * side, ends[1] * side) <= 0]
    return f"a trend with context is stated, and block {', '.join(flat)} does not show it" if flat else None


@rule(
    "none-in-one-measure-said-of-all",
    finding="U1",
    looks_at="the measure `any`; other measures on the same rows",
    remedy="name the measure",
)
def said_of_all(claim: Claim, facts: Facts) -> str | None:
    """That nothing differs is said of the measures that do not differ."""
    if claim.measure != ANY or claim.states == "looks":
        return None
    resolved = sorted(name for name, found in measured(facts).others.items() if found)
    if not resolved:
        return None if measured(facts).others else "all measures are spoken of, and none is named"
    return f"all measures are spoken of, and {', '.join(resolved)} differ" if claim.verdict != "resolved" else None


def _descriptive(claim: Claim, facts: Facts) -> Claim:
    del facts
    return claim.changed(verdict="descriptive", headline=False).with_limit("looked at after the data")


@rule(
    "look-chosen-after-the-data",
    finding="U1",
    looks_at="headline and verdict; the looks that the protocol declares",
    remedy="describe it, and say that it was looked at after the data",
    mend=_descriptive,
)
def chosen_after(claim: Claim, facts: Facts) -> str | None:
    """A look that was not declared has no verdict, and is no headline."""
    look = facts.look
    if look is None or look.declared:
        return None
    if "looked at after the data" in claim.limits and claim.verdict == "descriptive" and not claim.headline:
        return None
    return "the look was not declared before the data"


@rule(
    "headline-of-a-secondary-look",
    finding="U1",
    looks_at="headline; whether the look was declared primary, and the level at which it was judged",
    remedy="judge it at the level of its family",
    mend=lambda claim, facts: claim.changed(interval=measured(facts).deciding),
)
def secondary_headline(claim: Claim, facts: Facts) -> str | None:
    """A look that is not primary stands at the level of its family."""
    look = facts.look
    if look is None or look.primary or look.deciding is None or claim.interval is None or claim.verdict != "resolved":
        return None
    if claim.interval.level >= look.deciding.level or is_as_printed(claim.interval.level, look.deciding.level):
        return None
    return f"a look that is not primary is judged at {claim.interval.level:.4g}, and its family wants {look.deciding.level:.4g}"


@rule(
    "roles-pooled",
    finding="U4",
    looks_at="the role; roles that the headline may pool",
    remedy="name the role, or leave the others out",
)
def roles_pooled(claim: Claim, facts: Facts) -> str | None:
    """Rows of a role that the protocol does not name for headlines are not pooled with the others."""
    if facts.texts is None or claim.population.role is not None or not facts.texts.headline_roles:
        return None
    others = sorted(name for name in facts.texts.roles if name not in facts.texts.headline_roles)
    return (
        f"rows of role {', '.join(others)} are pooled with those of {', '.join(facts.texts.headline_roles)}"
        if others
        else None
    )
