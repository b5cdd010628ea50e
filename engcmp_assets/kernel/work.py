"""Work: binds a step (what an artifact is and how it is made) to the store, without Dagster.

`materialize` is the one way in which a receipt comes to be: it gathers the inputs' receipts, computes the task key, answers from
the store where that task was completed before, and otherwise makes, stores and records.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from engcmp_assets.kernel.blocks import WORDS, blocks_of_arm, is_asked
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.receipts import (
    SCHEMA,
    Column,
    Input,
    check_receipt,
    content_id,
    part_id,
    refuse_output_name,
    task_key,
)
from engcmp_assets.kernel.records import ArmKey, Check, Figure, plain
from engcmp_assets.kernel.study import Study
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import code_identity, environment
from engcmp_resources.locks import host_lock
from engcmp_resources.store import STUDY_WIDE, Blob, Place, Store
from engcmp_resources.views import drop_views

SEEN = "seen"
_LONGEST_WAIT_S = 12 * 3600.0
Scope = Literal["arm", "study", "every arm"]
Source = tuple[str, str | None]
"""An artifact and its arm; None for what belongs to the study."""
_SAME = ("study", "frozen_sha256", "iterations", "artifact", "arm", "task_key", "inputs")


@dataclass(frozen=True, slots=True)
class Use:
    """A dependence on another artifact: of the same arm, study-wide, or of every arm that has it.

    `outputs` names what the result depends on: None all of it, () nothing (the chain only), or a function of study and arm.
    """

    artifact: str
    scope: Scope = "arm"
    outputs: tuple[str, ...] | Callable[[Study, ArmKey], tuple[str, ...]] | None = None

    def names(self, study: Study, arm: ArmKey | None) -> tuple[str, ...] | None:
        """The outputs that `arm` depends on."""
        if callable(self.outputs):
            return self.outputs(study, arm) if arm else None
        return self.outputs


@dataclass(frozen=True, slots=True)
class Product:
    """An output that a step has made: a file in scratch, bytes, or a file that is already in the store."""

    name: str
    suffix: str
    content: bytes | Path | Blob
    role: Literal["data", "view"] = "data"
    rows: int | None = None
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """What a step returns: outputs, figures, checks, flags, and details that a reader should see."""

    products: Sequence[Product]
    figures: Sequence[Figure] = ()
    checks: Sequence[Check] = ()
    flags: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """A receipt that stands, its hash, and whether the work behind it was done before."""

    receipt: Mapping[str, Any]
    sha256: str
    answered_from_store: bool


@dataclass(frozen=True)
class Work:
    """What a step is given: the study, the arm, the inputs' receipts, the store, and a way to say how far it is.

    `records` are the inputs and `parameters` what else the task key holds, as they were then: what another process makes of them
    meanwhile changes nothing.
    """

    session: Session
    step: Step
    arm: ArmKey | None
    inputs: Mapping[tuple[str, str | None], Done]
    task_key: str
    remeasure: bool = False
    records: tuple[Input, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def study(self) -> Study:
        return self.session.study

    @property
    def store(self) -> Store:
        return self.session.store

    @property
    def label(self) -> str:
        return f"[{self.arm or self.study.protocol.study}] {self.step.artifact}"

    def say(self, text: str) -> None:
        self.session.say(f"{self.label}: {text}")

    def progress(self, unit: str, total: int, already: int = 0) -> Progress:
        return Progress(self.session.say, self.label, unit, total, time.monotonic_ns, already)

    def receipt(self, artifact: str, arm: ArmKey | None = None) -> Mapping[str, Any]:
        """The receipt of an input: of this arm or study-wide, or of the given arm."""
        return self.inputs[self._key(artifact, arm)].receipt

    def file(self, artifact: str, output: str, arm: ArmKey | None = None) -> Path:
        """The stored file of an input's output. Raises EngcmpError where it is not as its receipt says: nothing is made from that."""
        receipt = self.receipt(artifact, arm)
        blob = output_blob(receipt, output)
        if not self.store.holds(blob, self.store.recorded_status(receipt["task_key"], blob)):
            raise EngcmpError(
                f"{output} of {artifact} is missing or was changed after it was written", where=str(self.store.path(blob)),
                remedy=f"materialize {artifact} again, or `engcmp run {self.study.protocol.study}`: it is made anew",
            )  # fmt: skip
        return self.store.path(blob)

    def _key(self, artifact: str, arm: ArmKey | None) -> tuple[str, str | None]:
        wanted = str(arm or self.arm) if (arm or self.arm) else None
        return (artifact, wanted) if (artifact, wanted) in self.inputs else (artifact, None)


@dataclass(frozen=True, slots=True)
class Step:
    """An artifact: what it is (for the catalog), what it depends on, and how it is made.

    `version` is the declared version of the analysis or capture: raise it when a result changes, not when code does.
    `seen` is given the inputs that there are, and tells what else of this place the result says: kept under SEEN among the
    parameters of its receipt, where there is any.
    """

    artifact: str
    title: str
    description: str
    group: str
    kinds: tuple[str, ...]
    version: str
    uses: tuple[Use, ...]
    per_arm: bool
    parameters: Callable[[Study, ArmKey | None], Mapping[str, Any]]
    make: Callable[[Work], Made]
    measures: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    seen: Callable[[Session, Collection[Source]], Mapping[str, Any]] | None = None

    def versions(self) -> dict[str, Any]:
        return {"step": self.version, "measures": {name: MEASURES[name].version for name in self.measures}}

    @property
    def code_version(self) -> str:
        """Dagster's code version: the step's and its measures' versions, never a file hash."""
        return "+".join([self.version, *(f"{name}:{MEASURES[name].version}" for name in self.measures)])


@dataclass(frozen=True)
class Session:
    """One run's hold on a study and a store."""

    study: Study
    store: Store
    run_id: str
    say: Say

    def current(self, artifact: str, arm: ArmKey | None) -> Done | None:
        """The artifact's current receipt, or None where it was never made; damaged evidence counts as none, and that is said."""
        try:
            return self.sound(artifact, arm)
        except EngcmpError as error:
            self.say(f"[{arm or self.study.protocol.study}] {artifact}: {error.what} ({error.where}); it is made anew")
            return None

    def sound(self, artifact: str, arm: ArmKey | None) -> Done | None:
        """As `current`, for what something else is to be made from: raises EngcmpError where head or receipt is damaged."""
        place = self.place(artifact, arm)
        sha256 = self.store.head(place.study, place.arm_folder, place.artifact)
        if sha256 is None:
            return None
        return Done(sound_receipt(self.store, sha256), sha256, answered_from_store=True)

    def place(self, artifact: str, arm: ArmKey | None) -> Place:
        return Place(self.study.protocol.study, arm.folder if arm else STUDY_WIDE, artifact)


def materialize(session: Session, step: Step, arm: ArmKey | None, *, remeasure: bool = False) -> Done:
    """Make `step`'s artifact for `arm` (None: study-wide), or answer from the store.

    Raises EngcmpError where an input is missing, the protocol differs from its freeze, or the step refuses.
    """
    session.study.require_frozen()
    work = prepare(session, step, arm, remeasure=remeasure)
    answered = None if remeasure else answer_from_store(work)
    if answered is not None:
        return answered
    started_at = _now()
    # A measurement of speed has the machine for itself meanwhile.
    with host_lock(alone=False, who=work.label, waiting=work.say, timeout_s=_LONGEST_WAIT_S):
        made = step.make(work)
    return record(work, made, started_at=started_at)


def prepare(session: Session, step: Step, arm: ArmKey | None, *, remeasure: bool = False) -> Work:
    """Gather the inputs of `step` and its task key.

    Raises EngcmpError naming the input that is missing, and for an artifact of a block that the protocol does not want of the arm.
    """
    if arm is not None and not is_asked(session.study.protocol, arm, step.artifact):
        own = [WORDS[block] for block in blocks_of_arm(session.study.protocol, arm)]
        raise EngcmpError(
            f"{step.artifact} is not asked of {arm}: the protocol wants {' and '.join(own) or 'nothing'} only",
            where="protocol field arms.blocks",
            remedy=f"`engcmp run {session.study.protocol.study} --arm {arm}` makes what is asked; in the UI, choose those assets",
        )
    session.store.settle(session.place(step.artifact, arm))
    inputs, records = _gather(session, step, arm)
    seen = step.seen(session, inputs) if step.seen else {}
    parameters = plain(dict(step.parameters(session.study, arm)) | ({SEEN: seen} if seen else {}))
    key = task_key(step.artifact, parameters, records, step.versions())
    return Work(session, step, arm, inputs, key, remeasure, tuple(records), parameters)


def record(work: Work, made: Made, *, started_at: str) -> Done:
    """Store what was made, write the receipt, move the head, and point the views at the outputs."""
    store = work.store
    outputs, blobs = [], []
    for product in made.products:
        refuse_output_name(product.name, artifact=work.step.artifact)  # before anything of it is stored
    for product in made.products:
        blob = _store(store, product)
        blobs.append(blob)
        outputs.append(
            {
                "name": product.name, "sha256": blob.sha256, "bytes": blob.bytes, "suffix": blob.suffix,
                "role": product.role, "rows": product.rows, "columns": plain(product.columns),
            }
        )  # fmt: skip
    earlier = work.session.current(work.step.artifact, work.arm)
    again = earlier is not None and earlier.receipt["task_key"] == work.task_key
    receipt = base_of(work) | {
        "content_id": content_id(work.task_key, outputs),
        "outputs": outputs,
        "started_at": started_at,
        "finished_at": _finished_after(earlier),
        "figures": plain(list(made.figures)),
        "checks": plain(list(made.checks)),
        "flags": sorted(made.flags),
        "details": plain(dict(made.details)),
        "answered_by": None,
        "measurement": (earlier.receipt["measurement"] + 1) if again and earlier else 1,
    }
    return _commit(work, receipt, completes=blobs)


def sound_receipt(store: Store, sha256: str) -> dict[str, Any]:
    """A stored receipt, whose bytes have its hash and whose contents are a receipt's. Raises EngcmpError for anything else."""
    receipt = store.read_receipt(sha256)
    check_receipt(receipt, where=store.receipt_name(sha256))
    return receipt


def output_blob(receipt: Mapping[str, Any], name: str) -> Blob:
    """The store's file of a receipt's output. Raises EngcmpError for a name that it does not have."""
    for output in receipt["outputs"]:
        if output["name"] == name:
            return Blob(output["sha256"], output["bytes"], output["suffix"])
    raise EngcmpError(f"artifact {receipt['artifact']} has no output {name!r}", remedy="materialize it again")


def sound_file(store: Store, receipt: Mapping[str, Any], name: str, *, trust_index: bool = False) -> Path:
    """The stored file of a receipt's output, its bytes hashed once in a process. Raises EngcmpError where they do not fit its name.

    With `trust_index` a file is taken as sound that has not been touched since its task was completed, as the index says.
    """
    blob = output_blob(receipt, name)
    untouched = trust_index and store.is_untouched(receipt["task_key"], blob)
    if not untouched and not store.holds(blob):
        raise EngcmpError(
            f"{name} of {receipt['artifact']} is missing or was changed after it was written", where=str(store.path(blob)),
            remedy=f"`engcmp verify {receipt['study']}` names all that is wrong; `engcmp run {receipt['study']}` makes it anew",
        )  # fmt: skip
    return store.path(blob)


def answer_from_store(work: Work) -> Done | None:
    """The receipt of work that was done before, or None.

    The head stands if it says exactly this; otherwise a receipt is added, so that each arm has its own evidence.
    """
    store = work.store
    previous_sha256 = store.completed_task(work.task_key)
    if previous_sha256 is None:
        return None
    try:
        previous = sound_receipt(store, previous_sha256)
    except EngcmpError:
        return None  # of another version of engcmp, or forged: no evidence of this task
    base = base_of(work)
    current = work.session.current(work.step.artifact, work.arm)
    stands = current is not None and previous_sha256 in (current.sha256, current.receipt["answered_by"])
    if current is not None and stands and says_the_same(current.receipt, base):
        _point_views(work, current.receipt)
        store.share(work.session.place(work.step.artifact, work.arm))  # a lost connection may have kept it here
        return current
    kept = ("content_id", "outputs", "figures", "checks", "flags", "details", "measurement")
    now = _finished_after(current)
    receipt = base | {name: previous[name] for name in kept}
    receipt |= {"started_at": now, "finished_at": now, "answered_by": previous_sha256}
    return replace(_commit(work, receipt, completes=None), answered_from_store=True)


def says_the_same(receipt: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    """Whether a receipt is of the same place, freeze, iterations, task and inputs as another would be."""
    return all(receipt[name] == base[name] for name in _SAME)


def base_of(work: Work) -> dict[str, Any]:
    """What a receipt of this work says before it is done: enough to tell whether the current one still says it."""
    step, study = work.step, work.study
    return {
        "schema": SCHEMA,
        "study": study.protocol.study,
        "frozen_sha256": study.frozen_sha256,
        "iterations": resting_on(study, step, work.arm),
        "artifact": step.artifact,
        "arm": str(work.arm) if work.arm else None,
        "task_key": work.task_key,
        "parameters": work.parameters,
        "versions": step.versions(),
        "inputs": plain(work.records),
        "code": code_identity(),
        "environment": environment(),
        "run_id": work.session.run_id,
    }


def _gather(session: Session, step: Step, arm: ArmKey | None) -> tuple[dict[tuple[str, str | None], Done], list[Input]]:
    inputs: dict[tuple[str, str | None], Done] = {}
    records: list[Input] = []
    for use in step.uses:
        for source_arm in arms_of(session.study, use, arm):
            done = session.sound(use.artifact, source_arm)
            # What was made under another freeze is no result of this one, even where the next materialization will give the same.
            of_another = done is not None and done.receipt["frozen_sha256"] != session.study.frozen_sha256
            if done is None or of_another:
                if use.scope == "every arm":
                    continue  # an arm that was not captured is `not comparable`, with its reason, in the result
                lacks = "was made under another frozen hash" if of_another else "was not made yet"
                raise EngcmpError(
                    f"{step.artifact} of {arm or session.study.protocol.study} needs {use.artifact}, which {lacks}",
                    remedy=f"materialize {use.artifact} first, or `engcmp run {session.study.protocol.study}`",
                )
            name = str(source_arm) if source_arm else None
            inputs[(use.artifact, name)] = done
            names = use.names(session.study, source_arm)
            part = part_id(done.receipt, names)
            records.append(Input(use.artifact, name, done.sha256, done.receipt["content_id"], names, part))
    return inputs, records


def resting_on(study: Study, step: Step, arm: ArmKey | None) -> list[dict[str, str]]:
    """The iterations that an artifact rests on: the one that adds its arm, or all of them where it is of every arm."""
    of_all = any(use.scope == "every arm" for use in step.uses)
    found = [one for one in study.iterations if of_all or (arm is not None and arm in one.arm_keys)]
    return [{"name": one.name, "frozen_sha256": one.frozen_sha256} for one in found]


def arms_of(study: Study, use: Use, arm: ArmKey | None) -> tuple[ArmKey | None, ...]:
    """The arms whose artifact a `use` of `arm` takes in, of those of which the protocol asks for it; None for what belongs to the study."""
    if use.scope == "study":
        return (None,)
    found = study.protocol.arm_keys if use.scope == "every arm" else (arm,)
    return tuple(one for one in found if one is None or is_asked(study.protocol, one, use.artifact))


def _store(store: Store, product: Product) -> Blob:
    if isinstance(product.content, Blob):
        if not store.holds(product.content):
            raise EngcmpError(
                f"{product.name} is missing or was changed since it was stored", where=str(store.path(product.content)),
                remedy="start again: it is made anew",
            )  # fmt: skip
        return product.content
    if isinstance(product.content, bytes):
        return store.put_bytes(product.content, product.suffix)
    return store.put_file(product.content, product.suffix)


def _commit(work: Work, receipt: Mapping[str, Any], *, completes: Sequence[Blob] | None) -> Done:
    try:  # nothing is recorded that reading it again would refuse
        check_receipt(json.loads(canonical_bytes(receipt)), where="the record that was about to be written")
    except EngcmpError as error:
        raise EngcmpError(error.what, where=work.label, remedy="nothing was recorded; report this fault") from error
    sha256 = work.store.commit(work.session.place(work.step.artifact, work.arm), receipt, completes=completes)
    _point_views(work, receipt)
    return Done(receipt, sha256, answered_from_store=False)


def _point_views(work: Work, receipt: Mapping[str, Any]) -> None:
    place, views = work.session.place(work.step.artifact, work.arm), dict[Path, Blob]()
    for output in receipt["outputs"]:
        link = work.store.view_path(place, output["name"], output["suffix"])
        views[link] = Blob(output["sha256"], output["bytes"], output["suffix"])
    for link, blob in views.items():
        work.store.view(link, blob)
    drop_views(work.store, place, keep=views)


def _finished_after(earlier: Done | None) -> str:
    """Now, or just after the receipt that is succeeded where the clock was set back: `verify` tells the newest by this time."""
    now = datetime.datetime.now(datetime.UTC)
    if earlier is not None:
        before = datetime.datetime.fromisoformat(earlier.receipt["finished_at"])
        now = max(now, before + datetime.timedelta(milliseconds=1))
    return now.isoformat(timespec="milliseconds")


def _now() -> str:
    return _finished_after(None)
