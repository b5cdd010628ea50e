"""What current receipts claim, held against the frozen protocol: chain, inputs, parameters, versions, pins, and that none is newer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engcmp_assets.audit.reached import Problem, Reached, Receipt, folder_of, leads_to_frozen, place_of, shown
from engcmp_assets.kernel.names import WEIGHTS, engine_file
from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.records import ArmKey, plain
from engcmp_assets.kernel.source_tables import WheelSource
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import SEEN, Step, arms_of, resting_on
from engcmp_assets.sources.step import checkpoints_for
from engcmp_assets.steps import steps_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import Place, Store

_AGAIN = "run the study again"


def claim_problems(store: Store, study: Study, reached: Reached) -> Iterator[Problem]:
    """Everything that is wrong with what the current receipts of `study` claim. Their links must have been checked before."""
    arms = {str(arm): arm for arm in study.protocol.arm_keys}
    yield from _head_problems(store, study, reached)
    for place, sha256, receipt in reached.current():
        if place_of(receipt) != place:
            continue  # said of the head already
        name = shown(store, store.receipt_path(sha256))
        if receipt["arm"] is not None and receipt["arm"] not in arms:
            continue  # of an earlier freeze, which had this arm
        arm = arms.get(receipt["arm"] or "")
        yield from (Problem(name, f"{receipt['artifact']} {what}") for what in _faults(study, reached, receipt, arm))


def _head_problems(store: Store, study: Study, reached: Reached) -> Iterator[Problem]:
    """Under the current freeze, an artifact that has receipts has a head, and the head points to the newest."""
    frozen = study.frozen_sha256
    newest: dict[Place, Receipt] = {}
    for receipt in (*reached.history.values(), *reached.receipts.values()):
        place = place_of(receipt)
        later = place not in newest or receipt["finished_at"] > newest[place]["finished_at"]
        if receipt["frozen_sha256"] == frozen and receipt["study"] == study.folder.name and later:
            newest[place] = receipt
    unreadable = {problem.file for problem in reached.problems}
    for place, receipt in newest.items():
        head, current = shown(store, store.head_path(place)), reached.of(place)
        made = f"made at {receipt['finished_at']}"
        if place not in reached.heads and head not in unreadable:
            yield Problem(head, f"head is missing, though the artifact was {made}; {_AGAIN}")
        if current is None or place_of(current) != place or current["frozen_sha256"] != frozen:
            continue  # that is said elsewhere
        if current["finished_at"] < receipt["finished_at"]:
            yield Problem(head, f"points to an older receipt than the one {made}; {_AGAIN}")


def _faults(study: Study, reached: Reached, receipt: Receipt, arm: ArmKey | None) -> Iterator[str]:
    if receipt["frozen_sha256"] != study.frozen_sha256:
        yield f"was made under another frozen hash than that of the protocol; {_AGAIN}"
        return
    if not leads_to_frozen(reached, receipt):
        yield f"does not lead to the frozen protocol through inputs of the same frozen hash; {_AGAIN}"
        return
    step = next((step for step in steps_of(study) if step.artifact == receipt["artifact"]), None)
    if step is None or step.per_arm != (arm is not None):
        yield "is no artifact of this engcmp; use the version that wrote it"
        return
    if receipt["iterations"] != resting_on(study, step, arm):
        yield f"rests on other iterations than the study has; {_AGAIN}"
        return
    if receipt["versions"] != step.versions():
        yield f"was made by other versions of its step or measures; use that engcmp, or {_AGAIN}"
        return
    yield from _input_faults(study, reached, receipt, step, arm)
    if receipt["artifact"] == "sources":
        yield from _pin_faults(study, receipt, arm)
    elif _of_protocol(receipt, step) != plain(dict(step.parameters(study, arm))):
        yield f"has other parameters than the protocol gives; {_AGAIN}"


def _of_protocol(receipt: Receipt, step: Step) -> dict[str, Any]:
    """The parameters without what the step saw of its place, which only that place could tell."""
    return {name: value for name, value in receipt["parameters"].items() if step.seen is None or name != SEEN}


def _input_faults(study: Study, reached: Reached, receipt: Receipt, step: Step, arm: ArmKey | None) -> Iterator[str]:
    """The inputs are those that the step declares, as it uses them, and are not older than today's."""
    name = study.folder.name
    expected: dict[tuple[str, str | None], Any] = {}
    for use in step.uses:
        for source_arm in arms_of(study, use, arm):
            place = Place(name, folder_of(str(source_arm) if source_arm else None), use.artifact)
            if use.scope != "every arm" or place in reached.heads:
                names = use.names(study, source_arm)
                expected[(use.artifact, str(source_arm) if source_arm else None)] = (
                    None if names is None else list(names)
                )
    found = {(item["artifact"], item["arm"]): item["uses"] for item in receipt["inputs"]}
    for key in sorted(
        {key for key in expected.keys() | found.keys() if expected.get(key, "") != found.get(key, "")}, key=str
    ):
        yield f"does not take in {key[0]} of {key[1] or 'the study'} as its step declares; {_AGAIN}"
    for item in receipt["inputs"]:
        current = reached.of(Place(name, folder_of(item["arm"]), item["artifact"]))
        if current and _part_of(current, item) != item["part_id"]:
            yield f"is older than its input {item['artifact']} of {item['arm'] or 'the study'}; {_AGAIN}"


def _part_of(current: Receipt, item: Receipt) -> str | None:
    """The part of today's receipt that the input uses; None where it no longer has such an output."""
    try:
        return part_id(current, item["uses"])
    except EngcmpError:
        return None


def _pin_faults(study: Study, receipt: Receipt, arm: ArmKey | None) -> Iterator[str]:
    """Sources are what the protocol pins, for the platform that it was measured on, which need not be this one."""
    protocol = study.protocol
    if arm is None:
        return
    pins = {f"{name}.gguf": entry.sha256 for name, entry in checkpoints_for(study, arm).items()}
    allowed: dict[str, set[str]] = {name: {sha256} for name, sha256 in pins.items()}
    files = {engine_file(role): source for role, source in protocol.roles_of(arm).items()}
    for output, source in {WEIGHTS: protocol.reference.weights, **files}.items():
        entry = protocol.sources[source]
        if isinstance(
            entry, WheelSource
        ):  # an image is no output, and an archive of a commit has no pinned hash: see `sources`
            allowed[output] = {wheel.member_sha256 for wheel in entry.wheels.values()}
    found = {output["name"]: output["sha256"] for output in receipt["outputs"]}
    for name, hashes in sorted(allowed.items()):
        if found.get(name) not in hashes:
            yield f"has {name} as {str(found.get(name))[:12]}, which the protocol does not pin; {_AGAIN}"
