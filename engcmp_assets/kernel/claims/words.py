"""A claim as one plain sentence, made from its fields and nothing else, so that it can say no more than they do."""

from __future__ import annotations

from collections.abc import Iterator

from engcmp_assets.kernel.claims.records import ANY, Claim, Ends
from engcmp_assets.kernel.plots import format_number

_KINDS = {
    "difference": "the difference", "distance": "the distance", "ratio": "the ratio", "trend": "growth with context",
    "identical inputs": "identical inputs", "identical rows": "the same rows, bit for bit", "cause": "the difference and its cause",
    "ablation": "what one setting alone does", "loops": "replies that ended in a loop", "bar": "the bar",
    "quality": "the quality of answers",
    "counts": "how many cells have which verdict", "looks": "looks that share one error rate", "replies": "long replies",
}  # fmt: skip


def claim_sentence(claim: Claim) -> str:
    """Who, by what, on which rows: the number with what stands beside it, the verdict, and what the claim says against itself."""
    sides = claim.candidate if claim.baseline is None else f"{claim.candidate} beside {claim.baseline}"
    measure = "all measures" if claim.measure == ANY else claim.measure
    parts = [f"{sides}: {_KINDS[claim.states]} by {measure}, {', '.join(_population(claim)) or 'all rows'}"]
    if (number := _number(claim)) is not None:
        parts.append(number)
    if claim.counts is not None:
        parts.append(", ".join(f"{count} {word}" for word, count in claim.counts.items()))
    if claim.level is not None:
        parts.append(f"each judged at {100 * claim.level:.4g} %")
    if claim.floor is not None:
        parts.append(f"floor {format_number(claim.floor.value)} ({claim.floor.statistic})")
    if claim.band is not None:
        parts.append(f"noise band {claim.band[0]:.3g} to {claim.band[1]:.3g}")
    parts.append(
        f"`{claim.verdict}`" + (f", more than {format_number(claim.bound)} excluded" if claim.bound is not None else "")
    )
    if claim.cause is not None:
        parts.append(f"because of {claim.cause.factor}{f' {claim.cause.name}' if claim.cause.name else ''}")
    if claim.confounds:
        parts.append(f"the launches also differ in {', '.join(claim.confounds)}")
    if claim.text:
        parts.append(f"text: {claim.text}")
    parts += claim.limits
    return "; ".join(parts)


def _population(claim: Claim) -> Iterator[str]:
    for name, value in claim.population:
        if value is not None:
            yield f"{name} {value}"
    if claim.content is not None:
        yield f"content: {claim.content}"
    if claim.score_path is not None:
        yield f"{claim.score_path} path"


def _number(claim: Claim) -> str | None:
    if claim.estimate is None:
        return None
    ends = f" {_interval(claim.interval)}" if claim.interval else ""
    documents = f", {claim.clusters} documents" if claim.clusters else ""
    unit = f" {claim.unit}" if claim.unit else ""
    return f"{format_number(claim.estimate)}{unit}{ends}{documents}"


def _interval(ends: Ends) -> str:
    method = ends.method.split(",", 1)[0]
    return f"[{format_number(ends.low)}, {format_number(ends.high)}] ({100 * ends.level:.4g} %, {method})"
