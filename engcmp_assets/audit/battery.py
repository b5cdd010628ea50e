"""The whole audit of a study, from row files and receipts alone: prove, look for faults, hold every claim against the evidence."""

from __future__ import annotations

from collections.abc import Callable

from engcmp_assets.audit.finders import FINDERS
from engcmp_assets.audit.found import Checked, Found, Report, outcome_of
from engcmp_assets.audit.gathered import Gathered, gather
from engcmp_assets.audit.pair_claims import RULE_IDS, claims_read
from engcmp_assets.audit.reached import reached_from_heads
from engcmp_assets.audit.reply_claims import replies_checked
from engcmp_assets.audit.rule_readings import readings
from engcmp_assets.audit.verify import Verification, verify
from engcmp_assets.kernel.names import AUDIT
from engcmp_assets.kernel.progress import Say
from engcmp_assets.kernel.study import Study
from engcmp_resources.store import Store

_PROOF, _CLAIMS, _READINGS = "proof", "claims", "reading rules"


def audit(study: Study, store: Store, say: Say, clock_ns: Callable[[], int]) -> Report:
    """Everything that is found wrong with `study`, and what was looked at. Nothing is written.

    Raises EngcmpError where there is no result to audit.
    """
    proof = verify(study, store, say, clock_ns, with_events=False, without=(AUDIT,))
    problems = tuple(Found(_PROOF, "corrected", one.file, one.what, _again(study)) for one in proof.problems)
    reached = reached_from_heads(store, study.folder.name)
    checks = [_proved(proof, problems)]
    if problems and not proof.judged:  # what rests on damaged evidence would only repeat the damage
        return Report(study.folder.name, proof.frozen_sha256, tuple(checks), problems, (), (), {})
    say("audit: looking for faults in row files and receipts")
    found = gather(study, store, reached)
    faults: list[Found] = []
    for finder in FINDERS:
        own = list(finder.find(found))
        faults += own
        count, things = finder.things(found)
        outcome = outcome_of(own) if own or count else "not looked at"
        checks.append(Checked(finder.check, finder.asks, finder.how, f"{count} {things}", outcome))
    if study.protocol.long_replies is not None:
        checks.append(replies_checked(found, proof.private, problems))
    say("audit: holding each claim against the evidence")
    claims = tuple(claims_read(found))
    worst = {one.outcome for one in claims}
    checks.append(
        Checked(
            _CLAIMS, "Does any figure, count or note say more than its evidence carries?",
            f"{len(RULE_IDS)} rules on each claim's fields", f"{len(claims)} figures, counts and notes of pairs",
            "corrected" if "corrected" in worst else "narrowed" if "narrowed" in worst else "holds",
        )
    )  # fmt: skip
    read = tuple(readings(found))
    checks.append(_rules_checked(found, len(read)))
    return Report(study.folder.name, proof.frozen_sha256, tuple(checks), (*problems, *faults), claims, read, {})


def _proved(proof: Verification, problems: tuple[Found, ...]) -> Checked:
    return Checked(
        _PROOF, "Do the bytes have their hashes, and do the rows give every figure again?",
        "every file hashed, every chain followed to the frozen hash, every artifact made again by its own step",
        f"{proof.files} files, {proof.receipts} receipts, {proof.artifacts_recomputed} artifacts, {proof.figures} figures",
        outcome_of(problems),
    )  # fmt: skip


def _rules_checked(found: Gathered, applied: int) -> Checked:
    declared = len(found.study.protocol.reading_rules)
    return Checked(
        _READINGS, "What do the declared reading rules say?", "each rule applied by machine to the study's own figures",
        f"{applied} of {declared} rules" if declared else "the protocol declares none",
        "holds" if declared else "not looked at",
    )  # fmt: skip


def _again(study: Study) -> str:
    return f"restore it from a copy, or `engcmp run {study.folder.name}`"
