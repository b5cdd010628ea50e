"""Everything that is measured within a serving engine's life: speed, then long replies, in one start where both are wanted."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.captured_rows.watching import (
    engine_held,
    judge_killed_starts,
    samples_of_starts,
    telemetry_file,
    watched,
)
from engcmp_assets.engine_launch.disturbances import disturbances
from engcmp_assets.engine_launch.served import Served, served
from engcmp_assets.engine_launch.serving import serving_made
from engcmp_assets.engine_launch.serving import step as launch_step
from engcmp_assets.kernel.names import EVENTS, REPLIES, SERVING
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, Step, answer_from_store, prepare, record
from engcmp_assets.long_replies.journalled import Replies, open_replies
from engcmp_assets.long_replies.stages import Running, run_stages
from engcmp_assets.long_replies.step import refuse_short_context, replies_made
from engcmp_assets.long_replies.step import step as replies_step
from engcmp_assets.throughput_events.session import Ready, measure_speed, speed_steps
from engcmp_resources.errors import EngcmpError


def serving_steps(study: Study) -> tuple[Step, ...]:
    """The launch, the speed's events and the long replies: the artifacts that are made within a serving engine's life, if any."""
    if study.protocol.long_replies is None:
        return speed_steps(study)
    return (*(speed_steps(study) or (launch_step(study),)), replies_step(study))


def measure_serving(
    session: Session,
    arm: ArmKey,
    *,
    artifacts: Sequence[str] | None = None,
    remeasure: bool = False,
    until_repeat: int | None = None,
    ready: Ready = lambda _facts: None,
) -> Iterator[Done]:
    """Yield those of `serving_steps` that are wanted (default: all), from the store or by running the arm's engine.

    Long replies follow the last repeat of the speed, within its start; before `until_repeat` has brought that there are none. Those of a
    second time have a start of their own, so that they tell what two launches of one build differ by.
    Raises EngcmpError as `measure_speed`, for a prompt that is not the frozen one, and for an engine that ends: replies that were made
    before stay and are not made again, those that were running are.
    """
    session.study.require_frozen()
    wanted = [step.artifact for step in serving_steps(session.study) if artifacts is None or step.artifact in artifacts]
    speed: dict[str, Any] = {"remeasure": remeasure, "until_repeat": until_repeat, "ready": ready}
    if session.study.protocol.long_replies is None:
        yield from measure_speed(session, arm, artifacts=wanted, **speed)
        return
    replies = _Wanted(session, arm, ready, remeasure=remeasure) if REPLIES in wanted else None
    has_launch = False
    if EVENTS in wanted:
        launched = [name for name in wanted if name != REPLIES]
        for done in measure_speed(session, arm, artifacts=launched, also=replies, **speed):
            has_launch = True
            yield done
        if until_repeat is not None and not has_launch:
            return  # this arm's next repeat has another turn
    if replies is not None:
        yield from replies.made(launch=SERVING in wanted and not has_launch)
    elif SERVING in wanted and not has_launch:
        yield _launch_in_store(session, arm)


class _Wanted:
    """The long replies of one call: made within the speed's last start, or in one of their own."""

    def __init__(self, session: Session, arm: ArmKey, ready: Ready, *, remeasure: bool) -> None:
        self._session, self._arm, self._ready, self._remeasure = session, arm, ready, remeasure
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._failure: EngcmpError | None = None
        self._shared: tuple[int, int] | None = None  # the start's number there and here
        self._answer = None if remeasure else answer_from_store_now(session, arm)
        self._replies: Replies | None = None
        if self._answer is None:
            self._replies = open_replies(session, arm, remeasure=remeasure)
            judge_killed_starts(self._replies)

    @property
    def missing(self) -> bool:
        """Whether any reply is still to be made."""
        return self._replies is not None and bool(self._replies.missing())

    def within(self, start: int, engine: Served, gpus_before: Mapping[str, Any]) -> None:
        """Make them in a start that has measured something else. What fails is told later: what was measured is recorded first."""
        if self._replies is None:
            return
        own = self._replies.next_start()
        telemetry_file(self._replies, own).touch()  # its samples are with the other measurement
        self._replies.add_start(own, 0, engine.facts, gpus_before)
        self._shared = (start, own)
        try:
            _run(self._replies, own, engine, again=False)
        except EngcmpError as error:
            self._failure = error

    def ended(self, starts: Sequence[Mapping[str, Any]]) -> None:
        """How the start that was shared has ended, of the starts as the other measurement's journal has them."""
        if self._replies is None or self._shared is None:
            return
        (theirs, own), self._shared = self._shared, None
        for one in starts:
            if one["start"] == theirs:
                self._replies.add_end(own, one["gpus_after"])
                if "void" in one:
                    self._replies.add_void(own, one["void"])

    def made(self, *, launch: bool) -> Iterator[Done]:
        """The artifact, and before it the launch where it is wanted. Raises EngcmpError for what failed."""
        if self._failure is not None:
            raise self._failure
        if self._answer is not None or self._replies is None:
            if launch:
                yield _launch_in_store(self._session, self._arm)
            if self._answer is not None:
                yield self._answer
            return
        replies = self._replies
        fresh = bool(replies.missing())
        for again in (False, True):
            if replies.missing(again=again):
                _own_start(replies, self._ready, again=again)
        telemetry = samples_of_starts(replies)
        work = prepare(self._session, launch_step(self._session.study), self._arm)
        launched = answer_from_store(work)
        # A launch is its specification: where it is there, the starts that made the replies are listed with the replies alone.
        if launched is None or (self._remeasure and fresh and launch):
            made = serving_made(replies.spec, replies.starts(), telemetry=telemetry, study=self._session.study)
            launched = record(replies.work, made, started_at=self._started_at)
        if launch:
            yield launched
        watched_here = [one for one in replies.starts() if telemetry[one["start"]]]
        seen = disturbances(watched_here, telemetry, self._session.study.protocol.gpus)
        own = prepare(self._session, replies_step(self._session.study), self._arm, remeasure=self._remeasure)
        result = replies_made(replies.asked, replies.entries(), replies.visits(), replies.starts(), disturbed=seen)
        yield record(own, result, started_at=self._started_at)
        self._session.store.drop_scratch(replies.scratch)


def answer_from_store_now(session: Session, arm: ArmKey) -> Done | None:
    """The arm's long replies as the study asks for them now, where they are in the store; None too where the launch is still to be made."""
    if answer_from_store(prepare(session, launch_step(session.study), arm)) is None:
        return None
    return answer_from_store(prepare(session, replies_step(session.study), arm))


def _launch_in_store(session: Session, arm: ArmKey) -> Done:
    launched = answer_from_store(prepare(session, launch_step(session.study), arm))
    if launched is None:
        raise EngcmpError("a launch is made together with its measurements", remedy=f"choose {EVENTS} or {REPLIES} too")
    return launched


def _own_start(replies: Replies, ready: Ready, *, again: bool) -> None:
    """A start of the engine for the replies that are missing: those of a second time (`again`), or all others."""
    with engine_held(replies) as holding:
        start = replies.next_start()
        count = len(replies.missing(again=again))
        what = "long replies to make a second time" if again else "long replies to make"
        replies.work.say(f"{count} {what}: starting {replies.work.arm}, start {start}")
        with watched(replies, start, holding.held) as watch, served(replies, start, holding.labels) as engine:
            replies.add_start(start, 0, engine.facts, watch.before)
            watch.ready(engine.facts)
            ready(engine.facts)
            try:
                _run(replies, start, engine, again=again)
            finally:
                watch.stopping()


def _run(replies: Replies, start: int, engine: Served, *, again: bool) -> None:
    refuse_short_context(replies.work.study, replies.asked, engine.facts)
    running = Running(start, engine.endpoint, engine.facts, engine.labels, engine.log, engine.unchanged)
    run_stages(replies, running, again=again)
