"""Rules on what a claim gives as the reason, and on whether both sides were given the same (findings I1, I2, U2, U4, M3)."""

from __future__ import annotations

from collections.abc import Sequence

from engcmp_assets.kernel.claims.facts import Facts
from engcmp_assets.kernel.claims.records import Cause, Claim, Factor
from engcmp_assets.kernel.claims.rule import rule

WILD_NATS = 1.0
"""An arm that is this far from itself on the rows in question cannot show whose error they are."""


def _names(claim: Claim, *factors: Factor) -> bool:
    return claim.cause is not None and claim.cause.factor in factors


def _with_chunk(claim: Claim, facts: Facts) -> Claim | None:
    chunk = facts.requests.differs_from_chunk if facts.requests else None
    if chunk is None or chunk <= 1:
        return None
    return claim.changed(cause=Cause(factor="prefill chunk", name=str(chunk)))


@rule(
    "batching-of-captures-that-ran-alone",
    finding="I1",
    looks_at="cause; other requests in the engine's steps",
    remedy="say where the variation begins, or give no cause",
    mend=_with_chunk,
)
def batching_alone(claim: Claim, facts: Facts) -> str | None:
    """Batching as the cause needs requests that shared a step."""
    if not _names(claim, "batching"):
        return None
    shared = facts.requests.shared_steps if facts.requests else None
    if shared is None:
        return "batching is the cause, and whether requests shared a step was not recorded"
    return "batching is the cause, and every request ran alone" if shared == 0 else None


@rule(
    "chunk-where-repeats-agree",
    finding="I1",
    looks_at="cause; the prefill chunk at which repeats begin to differ",
    remedy="name the chunk that the rows show, or give no cause",
    mend=_with_chunk,
)
def chunk_shown(claim: Claim, facts: Facts) -> str | None:
    """A prefill chunk as the cause needs repeats that are equal before that chunk and differ from it on."""
    if not _names(claim, "prefill chunk") or claim.cause is None:
        return None
    chunk = facts.requests.differs_from_chunk if facts.requests else None
    if chunk is None:
        return "a prefill chunk is the cause, and no chunk lengths of two runs were recorded"
    if chunk <= 1:
        return "a prefill chunk is the cause, and repeats do not begin to differ at a later chunk"
    if claim.cause.name not in (None, str(chunk)):
        return f"chunk {claim.cause.name} is the cause, and repeats begin to differ at chunk {chunk}"
    return None


@rule(
    "inputs-that-differ",
    finding="I2",
    looks_at="identical inputs; token digests, nonces and counted prompt tokens",
    remedy="say what differs, and leave `identical` out",
)
def inputs_differ(claim: Claim, facts: Facts) -> str | None:
    """Identical inputs are the same tokens, nonces included, as both engines count them."""
    if claim.states != "identical inputs":
        return None
    given = facts.inputs
    if given is None or given.same_tokens is None:
        return "inputs are said to be identical, and no digest of both sides was recorded"
    if not given.same_tokens:
        return "inputs are said to be identical, and the token digests differ"
    if given.same_nonces is False:
        return "inputs are said to be identical, and the nonces differ"
    if given.counted is not None and given.counted[0] != given.counted[1]:
        return f"inputs are said to be identical, and the engines counted {given.counted[0]} and {given.counted[1]} prompt tokens"
    return None


@rule(
    "engines-paired-by-seed",
    finding="I2",
    looks_at="pairing; whether both arms are one engine",
    remedy="pair by prompt",
    mend=lambda claim, _: claim.changed(paired_by="prompt"),
)
def paired_by_seed(claim: Claim, facts: Facts) -> str | None:
    """One seed gives two samplers different draws: only versions of one engine may be paired by it."""
    if claim.paired_by != "seed" or (facts.inputs and facts.inputs.same_engine):
        return None
    return "replies of two engines are paired by their seeds, which pair nothing"


@rule(
    "ablation-of-several-settings",
    finding="U2",
    looks_at="ablation or setting as the cause; settings in which the launches differ",
    remedy="run the two settings apart, or give the difference to both together",
    mend=lambda claim, facts: claim.changed(
        states="difference", cause=None,
        confounds=tuple(dict.fromkeys((*claim.confounds, *(facts.launches.settings if facts.launches else ())))),
    ) if facts.launches else None,
)  # fmt: skip
def ablation(claim: Claim, facts: Facts) -> str | None:
    """What one setting does is shown by launches that differ in that one setting alone."""
    if claim.states != "ablation" and not _names(claim, "setting"):
        return None
    if facts.launches is None:
        return "one setting is the cause, and the launches' settings are not at hand"
    return _not_shown_alone(facts.launches.settings, claim.cause)


def _not_shown_alone(settings: Sequence[str], cause: Cause | None) -> str | None:
    """Why launches that differ in these settings do not show what the one named does; None where they do."""
    name = cause.name if cause is not None and cause.factor == "setting" else None
    if not settings:
        return "one setting is the cause, and the launches differ in none that was asked for"
    if len(settings) > 1:
        return f"one setting is the cause, and the launches differ in {len(settings)}: {', '.join(settings)}"
    if name is None:
        return f"what one setting does is stated, and it is not named: {settings[0]}"
    return None if name == settings[0] else f"setting {name} is the cause, and the launches differ in {settings[0]}"


@rule(
    "cause-that-is-not-named",
    finding="U2",
    looks_at="whether a claim of a cause names one",
    remedy="name the cause, or state the difference alone",
    mend=lambda claim, _: claim.changed(states="difference" if claim.population.cell is None else "ratio"),
)
def unnamed_cause(claim: Claim, facts: Facts) -> str | None:
    """A claim of a cause says which."""
    del facts
    return "a cause is stated, and none is named" if claim.states == "cause" and claim.cause is None else None


@rule(
    "content-as-the-cause",
    finding="U1",
    looks_at="content as the cause",
    remedy="say what was read on each content, and give no cause",
    mend=lambda claim, _: claim.changed(cause=None, states="difference" if claim.states == "cause" else claim.states),
)
def content_cause(claim: Claim, facts: Facts) -> str | None:
    """Blocks differ in length and documents too: no measurement here holds one content against another with all else equal."""
    del facts
    return "content is the cause, and nothing held contents apart from all else" if _names(claim, "content") else None


@rule(
    "differences-left-out",
    finding="M3",
    looks_at="confounds; what differs between the launches and the protocol does not declare",
    remedy="list what else differs",
    mend=lambda claim, facts: claim.changed(
        confounds=tuple(dict.fromkeys((*claim.confounds, *(facts.launches.undeclared if facts.launches else ()))))
    ),
)
def left_out(claim: Claim, facts: Facts) -> str | None:
    """A difference between two launches is told with everything else in which they differ."""
    if facts.launches is None or claim.states in ("identical inputs", "identical rows"):
        return None
    missing = [name for name in facts.launches.undeclared if name not in claim.confounds]
    return f"the launches also differ in {', '.join(missing)}, which is not said" if missing else None


@rule(
    "one-cause-of-several",
    finding="U2",
    looks_at="cause; what else differs between the launches",
    remedy="give no cause, or take away the others by launches that differ in one thing",
    mend=lambda claim, _: claim.changed(cause=None, states="difference"),
)
def one_of_several(claim: Claim, facts: Facts) -> str | None:
    """An engine or its setting is not the cause while other things differ too: several suffice to explain it."""
    if not _names(claim, "setting", "candidate", "baseline") or facts.launches is None:
        return None
    others = facts.launches.undeclared
    if not others:
        return None
    return f"one cause is given, and the launches also differ in {', '.join(others)}"


@rule(
    "wild-rows-laid-at-one-side",
    finding="U3",
    looks_at="cause; documents of which a repeat was captured",
    remedy="capture the document again on both sides, or give it to neither",
    mend=lambda claim, _: claim.changed(cause=None),
)
def no_repeat_of_it(claim: Claim, facts: Facts) -> str | None:
    """A document whose rows are far apart is one arm's doing only where a repeat of that document says so."""
    if not _names(claim, "candidate", "baseline") or facts.look is None or facts.look.carried_by is None:
        return None
    if facts.repeated_documents is None or facts.look.carried_by in facts.repeated_documents:
        return None
    return f"document {facts.look.carried_by} is laid at one side, and no repeat of it was captured"


@rule(
    "reference-blamed-for-fragile-rows",
    finding="U4",
    looks_at="reference as the cause; how far an arm is from itself on the same rows",
    remedy="say that the rows move by nats under any arithmetic",
    mend=lambda claim, _: claim.changed(cause=None),
)
def fragile_rows(claim: Claim, facts: Facts) -> str | None:
    """Rows of two arms show nothing about the reference; least of all where an arm differs from itself by nats."""
    if not _names(claim, "reference"):
        return None
    if facts.wild_with_itself is None:
        return "the reference is the cause, and no arm was held against itself on these rows"
    if facts.wild_with_itself < WILD_NATS:
        return "the reference is the cause, and no second reference was held against it"
    return f"the reference is the cause, and an arm is {facts.wild_with_itself:.3g} nats from itself on these rows"
