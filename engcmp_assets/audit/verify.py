"""`engcmp verify`: a whole run, offline, with no Dagster instance. Every hash, the chain to the frozen hash, every figure again.

What Dagster's event log says is held against the receipts; the receipts are the authority.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from engcmp_assets.audit.claims import claim_problems
from engcmp_assets.audit.event_claims import EventCounts, event_problems
from engcmp_assets.audit.private_texts import PrivateTexts, verified_texts
from engcmp_assets.audit.reached import Problem, Reached, Receipt, link_problems, reached_from_heads, shown
from engcmp_assets.audit.recompute import recompute, recomputed
from engcmp_assets.frozen_protocol.conformance import conformance_values, current_versions
from engcmp_assets.frozen_protocol.freezing import check_versions, frozen_differences
from engcmp_assets.kernel.progress import Progress, Say
from engcmp_assets.kernel.protocol import PROTOCOL_FILE
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Session
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import usable_cores
from engcmp_resources.places import FROZEN_FILE
from engcmp_resources.store import STUDY_WIDE, Blob, Place, Store
from engcmp_resources.threads import in_order

_PIECE_FILES = 64
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """What was checked, and every problem found. `events` is None where Dagster's log was not held against the receipts.

    `judged` is false where hashes, links or claims are wrong: figures and events, which rest on them, were then not looked at.
    """

    frozen_sha256: str
    receipts: int
    files: int
    bytes: int
    artifacts_recomputed: int
    figures: int
    problems: tuple[Problem, ...]
    not_made: tuple[str, ...]
    events: EventCounts | None = None
    judged: bool = True
    private: PrivateTexts | None = None


def verify(
    study: Study,
    store: Store,
    say: Say,
    clock_ns: Callable[[], int],
    *,
    with_events: bool = True,
    without: Collection[str] = (),
) -> Verification:
    """Check everything that the heads of `study` reach, and the study's older receipts. Problems name their file; nothing is changed.

    `without` names artifacts that are not looked at: an audit does not rest on an earlier one.
    Dagster's events are held against receipts only where those are sound, and only `with_events`.
    Raises EngcmpError only where there is nothing to verify.
    """
    protocol_problems = _protocol_problems(study)
    reached = reached_from_heads(store, study.folder.name)
    reached.leave_out(without)
    problems = [*protocol_problems, *reached.problems, *link_problems(store, reached)]
    if not (reached.heads or reached.history or problems):
        raise EngcmpError(
            f"no result of {study.folder.name} in this store", where=str(store.home),
            remedy=f"`engcmp run {study.folder.name}`",
        )  # fmt: skip
    files, size, bad_files = file_problems(store, reached, say, clock_ns)
    private, bad_texts = verified_texts(store, reached.needed())
    problems += [*bad_files, *bad_texts, *_view_problems(store, reached)]
    if not protocol_problems:  # claims can only be held against the protocol that was frozen
        problems += claim_problems(store, study, reached)
    recomputed, events = 0, None
    bad_events: list[Problem] = []
    judged = not problems
    if judged:  # a figure or an event of damaged evidence would only repeat the damage
        if with_events:
            events, bad_events = event_problems(study, store, reached, say, clock_ns)
        chosen = [item for item in reached.current() if _is_recomputed(study, item[0])]
        problems += _recompute_problems(Session(study, store, "verify", say), reached, chosen)
        recomputed = len(chosen)
    return Verification(
        frozen_sha256=str((study.frozen or {}).get("frozen_sha256", "")),
        receipts=len(reached.receipts) + len(reached.history),
        files=files,
        bytes=size,
        artifacts_recomputed=recomputed,
        figures=len({figure["figure_id"] for _, _, receipt in reached.current() for figure in receipt["figures"]}),
        problems=(*problems, *bad_events),
        not_made=tuple(_not_made(study, reached)) if not problems else (),
        events=events,
        judged=judged,
        private=private if private.here + private.absent else None,
    )


def _protocol_problems(study: Study) -> list[Problem]:
    if study.frozen is None:
        return [Problem(str(study.folder / FROZEN_FILE), "the study is not frozen")]
    found = [Problem(str(study.folder / name), what) for name, what in frozen_differences(study.files, study.frozen)]
    if found:
        return found
    try:
        check_versions(study.frozen, current_versions(), conformance_values(), where=str(study.folder))
    except EngcmpError as error:
        return [Problem(str(study.folder / FROZEN_FILE), str(error))]
    try:
        _ = study.protocol
    except EngcmpError as error:
        return [Problem(error.where or str(study.folder / PROTOCOL_FILE), error.what)]
    return []


def _recompute_problems(
    session: Session, reached: Reached, chosen: Iterable[tuple[Place, str, Receipt]]
) -> Iterator[Problem]:
    """In the order of the graph, so that the first problem told is the one that the others follow from."""
    sound: set[str] = set()
    order = recomputed(session.study)
    for place, sha256, receipt in sorted(chosen, key=lambda item: order.index(item[0].artifact)):
        # Arms that share a task and say the same of it are made again once.
        same = sha256_of([receipt[name] for name in ("task_key", "outputs", "figures", "checks", "flags")])
        if same in sound:
            continue
        owner = f"{place.artifact} of {receipt['arm'] or 'the study'}"
        name = shown(session.store, session.store.receipt_path(sha256))
        found = [Problem(name, f"{owner}: {text}") for text in recompute(session, reached, sha256)]
        if not found:
            sound.add(same)
        yield from found


def file_problems(
    store: Store, reached: Reached, say: Say, clock_ns: Callable[[], int]
) -> tuple[int, int, list[Problem]]:
    """Hash every file that a receipt names, once, on all cores. What no current result needs may be gone, but not changed."""
    needed = _blobs(reached.needed())
    others = _blobs([*reached.receipts.values(), *reached.history.values()]) - needed
    older = {blob for blob in others if store.lies_here(blob)}
    total = sum(blob.bytes for blob in needed | older)
    progress, done = Progress(say, "verify", "bytes", total, clock_ns), 0
    faults: dict[Blob, str] = {}
    # The largest first: one that is begun last would keep one core busy and the others waiting.
    pieces = _pieces(sorted(needed | older, key=lambda blob: (-blob.bytes, blob.sha256)))
    hashed = in_order(
        pieces, lambda blobs: [_fault(store, blob) for blob in blobs], usable_cores()
    )  # hashlib lets other threads run
    for piece, found in zip(pieces, hashed, strict=True):
        faults |= {blob: fault for blob, fault in zip(piece, found, strict=True) if fault is not None}
        done += sum(blob.bytes for blob in piece)
        progress.update(done, "hashing files")
    problems = []
    for blob in sorted(faults, key=lambda item: item.sha256):
        rest = "" if blob in needed else "; no current result needs it: restore it from a copy, or remove it"
        problems.append(Problem(shown(store, store.path(blob)), f"{faults[blob]}: {_owners(reached, blob)}{rest}"))
    return len(needed | older), total, problems


def _pieces(blobs: list[Blob]) -> list[list[Blob]]:
    """Cut into pieces of at most 64 files and, but for larger files, 16 MB: work for one thread between two reports of progress."""
    pieces: list[list[Blob]] = []
    size = 0
    for blob in blobs:
        if not pieces or len(pieces[-1]) == _PIECE_FILES or size + blob.bytes > _PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(blob)
        size += blob.bytes
    return pieces


def _blobs(receipts: Iterable[Receipt]) -> set[Blob]:
    return {
        Blob(output["sha256"], output["bytes"], output["suffix"])
        for receipt in receipts
        for output in receipt["outputs"]
    }


def _owners(reached: Reached, blob: Blob) -> str:
    """Which output of which artifact and arm a stored file is, of the current results where it belongs to one: files are named by hash."""
    current = [receipt for _, _, receipt in reached.current()]
    for receipts in (current, [*reached.receipts.values(), *reached.history.values()]):
        owners = [
            f"{output['name']} of {receipt['artifact']}, {'arm ' + receipt['arm'] if receipt['arm'] else 'study ' + receipt['study']}"
            for receipt in receipts
            for output in receipt["outputs"]
            if (output["sha256"], output["suffix"]) == (blob.sha256, blob.suffix)
        ]
        if owners:
            return owners[0] + (f", and {len(owners) - 1} more" if len(owners) > 1 else "")
    return "no receipt names it"


def _fault(store: Store, blob: Blob) -> str | None:
    if store.holds(blob):
        return None
    path = store.path(blob)
    if not os.path.lexists(path):
        return "file is missing"
    if path.is_symlink() or not path.is_file():
        return "is not an ordinary file"
    if not os.access(path, os.R_OK):
        return "file cannot be read"
    return "bytes do not have the hash of the file's name"


def _view_problems(store: Store, reached: Reached) -> list[Problem]:
    """A readable name must be a link to the file that the current receipt names."""
    problems = []
    for place, _, receipt in reached.current():
        for output in receipt["outputs"]:
            link = store.view_path(place, output["name"], output["suffix"])
            target = store.path(Blob(output["sha256"], output["bytes"], output["suffix"]))
            if not link.is_symlink() or os.path.realpath(link) != os.path.realpath(target):
                problems.append(Problem(shown(store, link), "is not a link to the file of the current receipt"))
    return problems


def _is_recomputed(study: Study, place: Place) -> bool:
    """Whether the artifact follows from others, and belongs to an arm that the protocol has."""
    folders = {STUDY_WIDE, *(arm.folder for arm in study.protocol.arm_keys)}
    return place.artifact in recomputed(study) and place.arm_folder in folders


def _not_made(study: Study, reached: Reached) -> list[str]:
    """Arms of the protocol and results that this store does not hold."""
    name = study.folder.name
    arms = [str(arm) for arm in study.protocol.arm_keys if Place(name, arm.folder, "summaries") not in reached.heads]
    wide = [entry for entry in ("comparisons", "publication") if Place(name, STUDY_WIDE, entry) not in reached.heads]
    return [*arms, *wide]
