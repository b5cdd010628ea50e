"""The speed session: an engine under its planned load, from the lock to the last cell.

It is resumable by cell: a finished cell is on disk before the next one starts, and one that a kill cut in two is measured again.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engcmp_assets.captured_rows.running import launch_place
from engcmp_assets.captured_rows.watching import Holding, engine_held, judge_killed_starts, samples_of_starts, watched
from engcmp_assets.engine_launch.serving import serving_made
from engcmp_assets.engine_launch.serving import step as launch_step
from engcmp_assets.kernel.engine_tables import ProcessEngine
from engcmp_assets.kernel.names import LIBRARY, SERVING, checkpoint_output
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, Step, answer_from_store, prepare, record
from engcmp_assets.throughput_events.journalled import Speed, open_speed
from engcmp_assets.throughput_events.plan import load_plan
from engcmp_assets.throughput_events.step import events_made, sessions_document
from engcmp_assets.throughput_events.step import step as events_step
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.canonical import parse_json, sha256_of
from engcmp_resources.engines.base import LaunchSpec, start_serving
from engcmp_resources.engines.servers import Endpoint, start_server
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address
from engcmp_resources.locks import host_lock

Ready = Callable[[Mapping[str, Any]], None]
_LONGEST_WAIT_S = 12 * 3600.0
_TOLD_EACH_S = 60.0


def speed_steps(study: Study) -> tuple[Step, ...]:
    """The launch and the events: the artifacts that are made within the engine's life; none in a study without a speed block."""
    return (launch_step(study), events_step(study)) if study.protocol.throughput else ()


def measure_speed(
    session: Session,
    arm: ArmKey,
    *,
    artifacts: Sequence[str] | None = None,
    remeasure: bool = False,
    until_repeat: int | None = None,
    ready: Ready = lambda _facts: None,
) -> Iterator[Done]:
    """Yield the launch and the events of `arm`, from the store or by running its engine.

    `artifacts` chooses among those of `speed_steps` (default: all). With `until_repeat` it stops after that repeat and yields nothing
    unless all are measured: so repeats of several arms can take turns. `ready` is told the facts of each start. Raises EngcmpError before
    anything is timed for a prompt that is not the frozen one, an engine that is busy and a client that does not keep up, and for an
    engine that fails; cells that were finished before stay and are not measured again.
    """
    session.study.require_frozen()
    wanted = [step for step in speed_steps(session.study) if artifacts is None or step.artifact in artifacts]
    if not remeasure and (answered := _answers(session, arm, wanted)) is not None:
        yield from answered
        return
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    speed = open_speed(session, arm, remeasure=remeasure)
    judge_killed_starts(speed)
    speed.drop_void()
    load_plan(speed.index, 1, speed.texts, model="-")  # what is refused is refused before an engine is started
    last = min(until_repeat or speed.plan.repeats, speed.plan.repeats)
    _measure(speed, [repeat for repeat in speed.missing() if repeat <= last], ready)
    if speed.missing():
        return
    yield from _recorded(session, arm, speed, wanted, remeasure=remeasure, started_at=started_at)
    if len(wanted) == len(speed_steps(session.study)):
        session.store.drop_scratch(speed.scratch)


def is_measured(session: Session, arm: ArmKey) -> bool:
    """Whether the arm's speed is in the store as the study asks for it now."""
    try:
        return _answers(session, arm, speed_steps(session.study)) is not None
    except EngcmpError:  # an input is still to be made
        return False


def _answers(session: Session, arm: ArmKey, wanted: Sequence[Step]) -> list[Done] | None:
    """All wanted artifacts from the store, or None where the engine has to run."""
    launch = answer_from_store(prepare(session, launch_step(session.study), arm))
    if launch is None:
        return None
    answered = []
    for step in wanted:
        done = launch if step.artifact == SERVING else answer_from_store(prepare(session, step, arm))
        if done is None:
            return None
        answered.append(done)
    return answered


def _recorded(
    session: Session, arm: ArmKey, speed: Speed, wanted: Sequence[Step], *, remeasure: bool, started_at: str
) -> Iterator[Done]:
    made = serving_made(speed.spec, speed.starts(), telemetry=samples_of_starts(speed), study=session.study)
    launch = record(speed.work, made, started_at=started_at)
    for step in wanted:
        if step.artifact == SERVING:
            yield launch
            continue
        whole = speed.whole()
        repeats = [whole[repeat] | {"document": _document(speed, repeat)} for repeat in sorted(whole)]
        work = prepare(session, step, arm, remeasure=remeasure)
        folders = [speed.folder(repeat) for repeat in sorted(whole)]
        yield record(work, events_made(speed.index, sessions_document(repeats), folders), started_at=started_at)


def _document(speed: Speed, repeat: int) -> dict[str, Any]:
    path = speed.folder(repeat) / "cells.json"
    found: dict[str, Any] = parse_json(
        path.read_bytes(), what="the cells", where=str(path), remedy="measure the arm again"
    )
    return found


def _measure(speed: Speed, repeats: Sequence[int], ready: Ready) -> None:
    """Measure these repeats: each in a start of its own, or all of them in one."""
    groups = [[repeat] for repeat in repeats] if speed.plan.start_each_repeat else [list(repeats)] if repeats else []
    for group in groups:
        _wait_for_turn(speed, group[0])
        with engine_held(speed) as holding:
            _run_start(speed, group, holding, ready)


def _run_start(speed: Speed, repeats: Sequence[int], holding: Holding, ready: Ready) -> None:
    """One start of the engine: prove it, then measure the cells that these repeats still lack."""
    work, arm, start = speed.work, speed.work.arm, len(speed.starts()) + 1
    work.say(f"repeat {repeats[0]} of {speed.plan.repeats}: starting {arm}, start {start}")
    with watched(speed, start, holding.held) as watch, _serving(speed, start, holding.labels) as serving:
        _refuse_short_context(speed, serving)
        speed.add_start(start, repeats[0], serving.facts, watch.before)
        watch.ready(serving.facts)
        ready(serving.facts)
        try:
            for number, repeat in enumerate(repeats):
                if number:
                    _wait_for_turn(speed, repeat)
                _measure_repeat(speed, repeat, start, serving)
        finally:
            watch.stopping()


def _measure_repeat(speed: Speed, repeat: int, start: int, serving: _Serving) -> None:
    work = speed.work
    plan = load_plan(speed.index, repeat, speed.texts, model=serving.endpoint.model)
    target = Target(
        Address.parse(serving.endpoint.url),
        serving.endpoint.key,
        warm_up=speed.plan.warmup,
        named=sha256_of(speed.spec.as_json()),
        note={"start": start},
        unchanged=serving.unchanged,
        strict=True,
    )
    with host_lock(alone=True, who=f"arm {work.arm}, timed", waiting=work.say, timeout_s=_LONGEST_WAIT_S):
        began_at_s = time.time()
        measure_plan(
            plan, target, speed.folder(repeat), calibrated=True, say=lambda text: work.say(f"repeat {repeat}: {text}")
        )
        speed.add_repeat(repeat, began_at_s, time.time())


def _wait_for_turn(speed: Speed, repeat: int) -> None:
    """Wait until the declared least time lies between this repeat and the one before it."""
    before = speed.whole().get(repeat - 1)
    if before is None:
        return
    until = before["ended_at_s"] + speed.plan.seconds_between_repeats
    while (left := until - time.time()) > 0:
        speed.work.say(f"repeat {repeat} begins in {left:.0f} s: the protocol wants that long between repeats")
        time.sleep(min(left, _TOLD_EACH_S))


@dataclass(frozen=True, slots=True)
class _Serving:
    """A running engine that takes the load; `unchanged` raises where it is not the one that was started."""

    endpoint: Endpoint
    facts: Mapping[str, Any]
    unchanged: Callable[[], None]


@contextmanager
def _serving(speed: Speed, start: int, labels: Mapping[str, str]) -> Iterator[_Serving]:
    """Start the arm's engine for its load, whatever its kind; it ends with the context."""
    work, spec = speed.work, speed.spec.launch
    arm = work.arm
    if arm is None:
        raise EngcmpError("a launch belongs to an arm", remedy="choose a partition")
    log = speed.journal.path.with_name(f"engine-{start}.log")
    if not isinstance(spec, LaunchSpec):
        with (
            launch_place(work, arm, log.with_name(f"start-{start}"), labels=labels, log=log) as place,
            start_server(spec, place, mode="serving") as server,
        ):
            yield _Serving(server.endpoint, server.facts, server.refuse_changed)
        return
    engine = work.study.protocol.engine_of(arm)
    if not isinstance(engine, ProcessEngine):
        raise EngcmpError(f"{arm}: a server engine with the specification of a process", remedy="report this fault")
    library, model = work.file("sources", LIBRARY), work.file("sources", checkpoint_output(arm))
    with start_serving(
        engine.kind, spec, slots=speed.spec.slots, library=library, model=model, log=log, environment=labels
    ) as process:
        yield _Serving(process.endpoint, process.facts, process.refuse_ended)


def _refuse_short_context(speed: Speed, serving: _Serving) -> None:
    context = serving.facts.get("n_ctx")
    if isinstance(context, int) and context < speed.plan.longest:
        raise EngcmpError(
            f"{speed.work.arm}: the longest request of the plan takes {speed.plan.longest} tokens, the engine has a context of {context}",
            remedy="shorten prompts or output in [throughput], or start the engine with a longer context; nothing was measured",
        )
