"""The speed session: an engine under its planned load, from the lock to the last cell.

It is resumable by cell: a finished cell is on disk before the next one starts, and one that a kill cut in two is measured again.
"""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from engcmp_assets.captured_rows.refusals import refusal_kept, refuse_unfit
from engcmp_assets.captured_rows.watching import Holding, engine_held, judge_killed_starts, samples_of_starts, watched
from engcmp_assets.engine_launch.served import Served, served
from engcmp_assets.engine_launch.serving import serving_made
from engcmp_assets.engine_launch.serving import step as launch_step
from engcmp_assets.kernel.names import SERVING
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, Step, answer_from_store, prepare, record
from engcmp_assets.throughput_events.journalled import Speed, open_speed
from engcmp_assets.throughput_events.plan import load_plan
from engcmp_assets.throughput_events.prompt_form import PromptForm, own_tokenizer, prompt_form
from engcmp_assets.throughput_events.startup import memory_now, prefix_plan, probe, start_record, write_document
from engcmp_assets.throughput_events.step import events_made, sessions_document
from engcmp_assets.throughput_events.step import step as events_step
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.canonical import parse_json, sha256_of
from engcmp_resources.engines.base import LaunchSpec
from engcmp_resources.engines.servers import checked_settings
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address
from engcmp_resources.locks import host_lock

Ready = Callable[[Mapping[str, Any]], None]
_LONGEST_WAIT_S = 12 * 3600.0
_TOLD_EACH_S = 60.0


class Also(Protocol):
    """What else is measured in the last start of a speed, once that is whole."""

    @property
    def missing(self) -> bool:
        """Whether anything of it is still to be measured."""

    def within(self, start: int, engine: Served, gpus_before: Mapping[str, Any]) -> None:
        """Measure it in this start; what fails is kept for later."""

    def ended(self, starts: Sequence[Mapping[str, Any]]) -> None:
        """The starts as they are known once this one has ended."""


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
    also: Also | None = None,
) -> Iterator[Done]:
    """Yield the launch and the events of `arm`, from the store or by running its engine.

    `artifacts` chooses among those of `speed_steps` (default: all). With `until_repeat` it stops after that repeat and yields nothing
    unless all are measured: so repeats of several arms can take turns. `ready` is told the facts of each start; `also` goes on in the
    last one. Raises EngcmpError before
    anything is timed for a prompt that is not the frozen one, an engine that is busy and a client that does not keep up, and for an
    engine that fails; cells that were finished before stay and are not measured again.
    """
    session.study.require_frozen()
    wanted = [step for step in speed_steps(session.study) if artifacts is None or step.artifact in artifacts]
    if not remeasure:
        if (answered := _answers(session, arm, wanted)) is not None:
            yield from answered
            return
        refuse_unfit(session, arm)
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    with refusal_kept(session, arm, of=SERVING):
        speed = open_speed(session, arm, remeasure=remeasure)
        judge_killed_starts(speed)
        speed.drop_void()
        load_plan(speed.index, 1, speed.texts, model="-")  # what is refused is refused before an engine is started
        prefix_plan(speed.index, speed.texts, 1, model="-")
        if speed.lacks_startup():
            _measure_startup(speed, ready)
        last = min(until_repeat or speed.plan.repeats, speed.plan.repeats)
        _measure(speed, [repeat for repeat in speed.missing() if repeat <= last], ready, also)
    if speed.missing() or speed.lacks_startup():
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
        startup = speed.startup_folder if speed.startup else None
        made = events_made(speed.index, sessions_document(repeats), folders, startup=startup)
        yield record(work, made, started_at=started_at)


def _document(speed: Speed, repeat: int) -> dict[str, Any]:
    path = speed.folder(repeat) / "cells.json"
    found: dict[str, Any] = parse_json(
        path.read_bytes(), what="the cells", where=str(path), remedy="measure the arm again"
    )
    return found


def _measure(speed: Speed, repeats: Sequence[int], ready: Ready, also: Also | None) -> None:
    """Measure these repeats: each in a start of its own, or all of them in one."""
    groups = [[repeat] for repeat in repeats] if speed.plan.start_each_repeat else [list(repeats)] if repeats else []
    for group in groups:
        _wait_for_turn(speed, group[0])
        try:
            with engine_held(speed) as holding:
                _run_start(speed, group, holding, ready, also)
        finally:
            if also is not None:
                also.ended(speed.starts())


def _run_start(speed: Speed, repeats: Sequence[int], holding: Holding, ready: Ready, also: Also | None) -> None:
    """One start of the engine: prove it, then measure the cells that these repeats still lack."""
    work, arm, start = speed.work, speed.work.arm, len(speed.starts()) + 1
    work.say(f"repeat {repeats[0]} of {speed.plan.repeats}: starting {arm}, start {start}")
    with watched(speed, start, holding.held) as watch, served(speed, start, holding.labels) as serving:
        _refuse_short_context(speed, serving)
        speed.add_start(start, repeats[0], serving.facts, watch.before)
        watch.ready(serving.facts)
        ready(serving.facts)
        try:
            for number, repeat in enumerate(repeats):
                if number:
                    _wait_for_turn(speed, repeat)
                _measure_repeat(speed, repeat, start, serving)
            if also is not None and also.missing and not speed.missing():
                also.within(start, serving, watch.before)
        finally:
            watch.stopping()


def _target(speed: Speed, start: int, serving: Served, form: PromptForm) -> Target:
    return Target(
        Address.parse(serving.endpoint.url),
        serving.endpoint.key,
        warm_up=speed.plan.warmup,
        named=sha256_of(speed.spec.as_json()),
        note={"start": start, **form.note},
        unchanged=serving.unchanged,
        strict=True,
        tokenizer=own_tokenizer(speed),
    )


def _measure_repeat(speed: Speed, repeat: int, start: int, serving: Served) -> None:
    work = speed.work
    form = prompt_form(speed, serving)
    plan = load_plan(speed.index, repeat, speed.texts, model=serving.endpoint.model, chats=form.chats)
    target = _target(speed, start, serving, form)
    with host_lock(alone=True, who=f"arm {work.arm}, timed", waiting=work.say, timeout_s=_LONGEST_WAIT_S):
        began_at_s, began = speed.now_s(), time.monotonic()
        measure_plan(
            plan, target, speed.folder(repeat), calibrated=True, say=lambda text: work.say(f"repeat {repeat}: {text}")
        )
        speed.add_repeat(repeat, began_at_s, time.monotonic() - began)


def _measure_startup(speed: Speed, ready: Ready) -> None:
    """The declared starts, each timed with the machine to itself; the last one is asked what the study declares beside its load.

    All in one go: what was measured before a kill is measured again, since what a prompt finds in a cache is one engine's.
    """
    work, plan = speed.work, speed.startup
    if plan is None:
        return
    shutil.rmtree(speed.startup_folder, ignore_errors=True)
    speed.startup_folder.mkdir(parents=True)
    can_be_cold = _clears_caches(speed)
    states = [state for state in plan.states if state == "warm" or can_be_cold]
    document: dict[str, Any] = {"starts": []}
    if plan.cold_starts and not can_be_cold:
        document["no_cold_start"] = "the engine's kind declares no cache that it can clear"
    for number, state in enumerate(states, 1):
        with engine_held(speed) as holding:
            start = len(speed.starts()) + 1
            work.say(f"start-up {number} of {len(states)}: starting {work.arm} {state}, start {start}")
            with watched(speed, start, holding.held) as watch, ExitStack() as stack:
                # No analysis runs meanwhile: it would be read as the engine's.
                who = f"arm {work.arm}, its start timed"
                stack.enter_context(host_lock(alone=True, who=who, waiting=work.say, timeout_s=_LONGEST_WAIT_S))
                serving = stack.enter_context(served(speed, start, holding.labels, cold=state == "cold"))
                _refuse_short_context(speed, serving)
                speed.add_start(start, 0, serving.facts, watch.before)
                watch.ready(serving.facts)
                ready(serving.facts)
                document["starts"].append(start_record(start, state, serving.facts))
                if number == len(states):
                    document |= _probed(speed, start, serving, holding.labels)
                watch.stopping()
    write_document(speed.startup_folder, document)


def _clears_caches(speed: Speed) -> bool:
    spec = speed.spec.launch
    return isinstance(spec, LaunchSpec) or checked_settings(spec.kind, spec.settings, where="protocol").clears_caches


def _probed(speed: Speed, start: int, serving: Served, labels: Mapping[str, str]) -> dict[str, Any]:
    """What the last start is asked, and what it states and holds before and after."""
    work, plan, facts = speed.work, speed.startup, serving.facts
    unstated = {"missing": "the engine does not state it"}
    found: dict[str, Any] = {
        "kv_pool": facts.get("kv_pool") or unstated,
        "thinking_stated": facts.get("thinking") or unstated,
        "memory": {"ready": memory_now(labels, facts)},
    }
    if plan is not None and (plan.prefix or plan.thinking):
        model, form = serving.endpoint.model, prompt_form(speed, serving)

        def say(text: str) -> None:
            work.say(f"start-up: {text}")

        target = _target(speed, start, serving, form)
        found |= probe(
            speed.startup_folder, plan, speed.index, speed.texts, target, model=model, say=say, chats=form.chats
        )
        found["memory"]["after"] = memory_now(labels, facts)
    return found


def _wait_for_turn(speed: Speed, repeat: int) -> None:
    """Wait until the declared least time lies between this repeat and the one before it."""
    before = speed.whole().get(repeat - 1)
    if before is None:
        return
    least_s = speed.plan.seconds_between_repeats
    # Never longer than what is asked for: after a restart the clock may have been set back.
    until = time.monotonic() + min(least_s, before["ended_at_s"] + least_s - speed.now_s())
    while (left := until - time.monotonic()) > 0:
        speed.work.say(f"repeat {repeat} begins in {left:.0f} s: the protocol wants that long between repeats")
        time.sleep(min(left, _TOLD_EACH_S))


def _refuse_short_context(speed: Speed, serving: Served) -> None:
    context = serving.facts.get("n_ctx")
    if isinstance(context, int) and context < speed.plan.longest:
        raise EngcmpError(
            f"{speed.work.arm}: the longest request of the plan takes {speed.plan.longest} tokens, the engine has a context of {context}",
            remedy="shorten prompts or output in [throughput], or start the engine with a longer context; nothing was measured",
        )
