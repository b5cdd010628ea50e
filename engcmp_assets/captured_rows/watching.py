"""What surrounds an engine's life: locks, what dead runs left, and a look at the GPUs before it, meanwhile and after."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engcmp_assets.engine_launch.journalled import KILLED
from engcmp_assets.kernel.gpu_rules import (
    CAPTURING,
    GpuFinding,
    GpuRules,
    check_after_stop,
    check_before_launch,
    judge,
    refuse,
)
from engcmp_assets.kernel.work import Work
from engcmp_resources import containers
from engcmp_resources.engines._leases import remove_leftovers
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpu_locks import Held, gpu_locks
from engcmp_resources.gpus import Owned, snapshot
from engcmp_resources.journal import Journal
from engcmp_resources.locks import remove_orphans
from engcmp_resources.telemetry import Sampler, read_samples, sampling

_LOCK_TIMEOUT_S = 12 * 3600.0
_STOPPING = "stopping"
_GIVEN_BACK_S, _LOOK_AGAIN_S = 15.0, 0.5


class Measuring(Protocol):
    """What is measured within an engine's life, as its journal knows it: see Capture."""

    @property
    def work(self) -> Work: ...

    @property
    def journal(self) -> Journal: ...

    def starts(self) -> list[dict[str, Any]]: ...

    def add_end(self, start: int, gpus_after: Mapping[str, Any]) -> None: ...

    def add_void(self, start: int, reasons: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class Holding:
    """The locks that a capture holds, and the labels that its engines carry."""

    held: Held
    labels: Mapping[str, str]


@contextmanager
def engine_held(capture: Measuring) -> Iterator[Holding]:
    """Hold the locks of the study's GPUs, or of this host's engines where it uses none; what dead runs left is removed first."""
    work = capture.work
    rules = work.study.protocol.gpus
    asked: dict[str, Any] = {"arm": str(work.arm), "run_id": work.session.run_id, "waiting": work.say}
    with gpu_locks(rules.use if rules else (), **asked, timeout_s=_LOCK_TIMEOUT_S) as held:
        for lease in held.stale:
            work.say(f"a dead run had left its lease: {lease}")
        left = [
            *remove_orphans(*held.paths),
            *containers.remove_orphans(*held.paths),
            *remove_leftovers(work.store.home / "scratch", *held.paths),
        ]
        for orphan in left:
            work.say(orphan)
        labels = {"ENGCMP_ARM": str(work.arm), "ENGCMP_LOCK": held.label, "ENGCMP_RUN": work.session.run_id}
        yield Holding(held, labels)


class Watch:
    """The telemetry of one start. Tell it when the engine is ready, and when its stop begins."""

    def __init__(self, sampler: Sampler, owned: Owned, held: Held, before: Mapping[str, Any]) -> None:
        self.before = before
        self._sampler, self._owned, self._held = sampler, owned, held

    def ready(self, facts: Mapping[str, Any]) -> None:
        """From here on the engine is measured; the processes of its container are its own."""
        container = facts.get("container")
        if isinstance(container, Mapping) and isinstance(container.get("id"), str):
            self._owned.containers.add(container["id"])
            self._held.update_lease(container=container["id"])
        self._sampler.phase = CAPTURING

    def stopping(self) -> None:
        """Nothing is measured any more."""
        self._sampler.phase = _STOPPING


@contextmanager
def watched(capture: Measuring, start: int, held: Held) -> Iterator[Watch]:
    """Watch one start of an engine: refuse GPUs that are not as declared, sample them each second, look again when it has ended.

    Raises EngcmpError before the start for a foreign process or another driver or power limit, and after the stop where a GPU was lost
    meanwhile: the windows of that start are then void, and are taken again.
    """
    rules = capture.work.study.protocol.gpus
    owned = Owned(roots={os.getpid()})
    before = _snapshot(owned)
    if rules is not None:
        refuse(check_before_launch(before, rules), where=f"start {start} of {capture.work.arm}")
    try:
        with sampling(telemetry_file(capture, start), ours=owned) as sampler:
            yield Watch(sampler, owned, held, before)
    finally:  # also where the engine died of what happened to its GPU
        held.update_lease(container=None)
        after = _after_stop(owned, before, rules)
        void = []
        # One that never got ready is no start: the next one has its number.
        if any(one["start"] == start for one in capture.starts()):
            capture.add_end(start, after)
            void = _void(capture, start, rules, [] if rules is None else check_after_stop(before, after, rules))
    for problem in sampler.problems:
        capture.work.say(f"telemetry of start {start}: {problem}")
    if void:
        raise EngcmpError(
            f"what start {start} of {capture.work.arm} measured is void: {'; '.join(void)}",
            remedy="see to the GPU, then run again: the windows of that start are taken again",
        )


def telemetry_file(capture: Measuring, start: int) -> Path:
    """The journal of a start's telemetry."""
    return capture.journal.path.with_name(f"telemetry-{start}.jsonl")


def samples_of_starts(capture: Measuring) -> dict[int, list[dict[str, Any]]]:
    """The telemetry of every start, by its number."""
    files = {entry["start"]: telemetry_file(capture, entry["start"]) for entry in capture.starts()}
    return {start: read_samples(file) if file.is_file() else [] for start, file in files.items()}


def judge_killed_starts(capture: Measuring) -> None:
    """Void the starts that a kill has left without an end, where their telemetry tells of a lost GPU: their windows are taken again."""
    rules = capture.work.study.protocol.gpus
    left = [one["start"] for one in capture.starts() if one["gpus_after"] == KILLED and "void" not in one]
    if rules is None or not left:
        return
    with engine_held(capture):  # one that still runs is judged by its own run
        for start in left:
            for reason in _void(capture, start, rules):
                capture.work.say(f"start {start}, whose run was killed, is void: {reason}")


def _void(capture: Measuring, start: int, rules: GpuRules | None, after_stop: Sequence[GpuFinding] = ()) -> list[str]:
    """Why nothing that the start measured counts, which is journalled; empty where it counts."""
    if rules is None:
        return []
    samples = read_samples(telemetry_file(capture, start))
    reasons = [one.explanation for one in (*judge(samples, rules), *after_stop) if one.voids]
    if reasons:
        capture.add_void(start, reasons)
    return reasons


def _after_stop(owned: Owned, before: Mapping[str, Any], rules: GpuRules | None) -> Mapping[str, Any]:
    """The GPUs after the stop; a driver may need seconds to give the memory back."""
    until = time.monotonic() + _GIVEN_BACK_S
    after = _snapshot(owned)
    while rules is not None and check_after_stop(before, after, rules) and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN_S)
        after = _snapshot(owned)
    return after


def _snapshot(owned: Owned) -> Mapping[str, Any]:
    return snapshot(owned).as_json()
