"""Rules on whether the fields of a claim belong to what it states: its word, its measure, and the numbers that stand beside it."""

from __future__ import annotations

from engcmp_assets.kernel.claims.deciding import bound_of, unresolved, word_of
from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import ANY, Claim, States, Word
from engcmp_assets.kernel.claims.rule import rule
from engcmp_assets.kernel.claims.rules_stated import measured

APART = ("kl_pair_full", "kl_pair_coarse", "kl_pair20")
"""The measures of how far apart two captures are, in nats; 0 where they agree."""
IDENTICAL = "rows_bit_identical"
_READ_BETWEEN = (*APART, IDENTICAL)
_DIFFERENCE: tuple[Word, ...] = ("resolved", "baseline-dependent", "not resolved", "bit-identical")
_RATIO: tuple[Word, ...] = ("level", "faster", "slower")
_WORDS: dict[States, tuple[Word, ...]] = {
    "difference": _DIFFERENCE, "trend": _DIFFERENCE, "cause": _DIFFERENCE, "ablation": _DIFFERENCE, "quality": _DIFFERENCE,
    "ratio": _RATIO, "bar": ("within bar", "not shown within bar"), "identical rows": ("bit-identical",),
    "replies": ("resolved", "not resolved"),
}  # fmt: skip
"""The verdict words of each kind of statement, beside those that any may have; a kind that is not here is described."""
_ANY_KIND: tuple[Word, ...] = ("descriptive", "not comparable")


@rule(
    "word-of-another-kind",
    finding="M4",
    looks_at="verdict; what is stated",
    remedy="use a word of that kind of statement, or describe it",
    mend=lambda claim, _: claim.changed(verdict="descriptive", bound=None),
)
def foreign_word(claim: Claim, facts: Facts) -> str | None:
    """A bar's word is of bars, a speed's of speeds: `within bar` on a difference was decided by nothing."""
    del facts
    own = _WORDS.get(claim.states, ())
    if claim.states == "cause" and claim.population.cell is not None:
        own = _RATIO
    if claim.verdict in (*own, *_ANY_KIND):
        return None
    return f"`{claim.verdict}` is no verdict of what is stated ({claim.states})"


@rule(
    "measure-of-another-kind",
    finding="I1",
    looks_at="measure; whether a difference or a distance is stated",
    remedy="call a distance one, and give it no verdict",
    mend=lambda claim, _: (
        claim.changed(states="distance", verdict="descriptive", bound=None, cause=None)
        if claim.measure in _READ_BETWEEN
        else claim.changed(states="difference", verdict="descriptive", bound=None)
    ),
)
def foreign_measure(claim: Claim, facts: Facts) -> str | None:
    """A distance between two captures is never below zero, so that no interval of it resolves anything; a difference is no distance."""
    del facts
    subtracted = claim.states in ("difference", "trend", "ablation", "cause", "quality")
    if subtracted and claim.measure in _READ_BETWEEN:
        return f"a {claim.states} is stated by {claim.measure}, which is read between the two"
    alone = claim.baseline is None  # of one arm: its own distance from the reference
    if claim.states in ("distance", "identical rows") and not alone and claim.measure not in _READ_BETWEEN:
        return f"{claim.states} are stated by {claim.measure}, which each side has alone"
    return None


_NUMBERS = ("estimate", "interval", "bound", "clusters")


def _has(name: str, facts: Facts) -> bool:
    look = measured(facts)
    return {
        "estimate": look.estimate is not None,
        "interval": look.interval is not None or look.deciding is not None,
        "bound": bound_of(look) is not None,
        "clusters": look.clusters is not None,
    }[name]


def _without_numbers(claim: Claim, facts: Facts) -> Claim:
    left = claim.changed(**{name: None for name in _NUMBERS if not _has(name, facts)})
    return left.with_limit("value only") if claim.bound is not None and left.bound is None else left


@rule(
    "number-of-nothing-measured",
    finding="I1",
    looks_at="estimate, interval, bound and documents; whether there is such a number",
    remedy="leave the number out",
    mend=_without_numbers,
)
def nothing_behind(claim: Claim, facts: Facts) -> str | None:
    """A number stands only where one was measured: no interval of one's own beside a ratio, no bound of a figure without an interval."""
    if facts.look is None:
        return None
    stray = [name for name in _NUMBERS if getattr(claim, name) is not None and not _has(name, facts)]
    return f"{stray[0]} is stated, and none was measured of this" if stray else None


def _as_decided(claim: Claim, facts: Facts) -> Claim | None:
    look = measured(facts)
    word = word_of(look)
    if word is None:
        return None
    return unresolved(claim, look) if word == "not resolved" else claim.changed(verdict=word, bound=None)


@rule(
    "another-verdict-than-measured",
    finding="U3",
    looks_at="verdict not resolved or baseline-dependent; the interval that decides, and each run of the baseline",
    remedy="say what the interval says",
    mend=_as_decided,
)
def other_verdict(claim: Claim, facts: Facts) -> str | None:
    """What was resolved is not called unresolved, and what depends on no run is not laid at the run."""
    word = word_of(measured(facts))
    if claim.verdict not in ("not resolved", "baseline-dependent") or claim.states == "replies":
        return None
    return None if word in (None, claim.verdict) else f"`{claim.verdict}` is said, and the rows give `{word}`"


_BESIDE: dict[str, tuple[States, ...]] = {
    "counts": ("counts", "looks"), "level": ("looks",), "band": ("ratio", "cause"), "bar": ("bar",),
}  # fmt: skip


@rule(
    "beside-another-kind",
    finding="U1",
    looks_at="counts, level, band and bar; what is stated",
    remedy="state it as a claim of its own",
    mend=lambda claim, _: claim.changed(**dict.fromkeys(_strays(claim))),
)
def beside(claim: Claim, facts: Facts) -> str | None:
    """What no rule of this kind of statement looks at is not printed with it."""
    del facts
    strays = _strays(claim)
    return f"{strays[0]} is stated beside a claim of kind {claim.states}, which has none" if strays else None


def _strays(claim: Claim) -> list[str]:
    return [name for name, kinds in _BESIDE.items() if getattr(claim, name) is not None and claim.states not in kinds]


@rule(
    "rows-of-all-measures",
    finding="I1",
    looks_at="verdict resolved or bit-identical of all measures; each measure",
    remedy="name the measures",
)
def all_of_them(claim: Claim, facts: Facts) -> str | None:
    """What is said of all measures is so of each."""
    if claim.measure != ANY or claim.verdict != "resolved":
        return None
    open_ones = sorted(name for name, found in measured(facts).others.items() if not found)
    return f"all measures are called resolved, and {', '.join(open_ones)} are not" if open_ones else None
