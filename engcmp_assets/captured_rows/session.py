"""The capture session: the engine lives here, between the lock and the last window, and nowhere else.

It is resumable by window: a window's repeats are journalled together, within one start, when all of them are in the store.
A kill costs at most one window; starting again continues where the journal ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.captured_rows.journalled import Capture, Launch, open_capture
from engcmp_assets.captured_rows.refusals import refusal_kept, refuse_unfit
from engcmp_assets.captured_rows.rows import take_window
from engcmp_assets.captured_rows.running import Running, started
from engcmp_assets.captured_rows.step import captured_made, kept_of, rows_step
from engcmp_assets.captured_rows.watching import Holding, engine_held, judge_killed_starts, samples_of_starts, watched
from engcmp_assets.engine_launch.step import launch_made
from engcmp_assets.engine_launch.step import step as launch_step
from engcmp_assets.kernel.names import LAUNCH, captured_rows
from engcmp_assets.kernel.panels import passes
from engcmp_assets.kernel.progress import Progress
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Done, Session, Step, answer_from_store, prepare, record
from engcmp_resources.engines.servers import ServerSpec
from engcmp_resources.errors import EngcmpError
from engcmp_resources.store import require_space

Ready = Callable[[Mapping[str, Any]], None]


def capture_steps(study: Study) -> tuple[Step, ...]:
    """The launch and one step for each panel: the artifacts that are made within the engine's life."""
    panels = study.protocol.panels
    return (launch_step(study), *(rows_step(name, kept_of(plan)) for name, plan in panels.items()))


def capture_arm(
    session: Session,
    arm: ArmKey,
    *,
    artifacts: Sequence[str] | None = None,
    remeasure: bool = False,
    ready: Ready = lambda _facts: None,
) -> Iterator[Done]:
    """Yield the launch and the captured rows of `arm`, from the store or by running its engine.

    `artifacts` chooses among those of `capture_steps` (default: all); `ready` is told the facts of each start as soon as the
    engine is ready. Raises EngcmpError for an engine that fails; what was captured before stays and is not captured again.
    """
    session.study.require_frozen()
    steps = capture_steps(session.study)
    wanted = [step for step in steps if artifacts is None or step.artifact in artifacts]
    if not remeasure:
        answered = _answers(session, arm, wanted)
        if answered is not None:
            yield from answered
            if len(wanted) == len(steps):  # a kill just before the journal was dropped has left it
                session.store.drop_scratch(open_capture(session, arm, remeasure=False).scratch)
            return
        refuse_unfit(session, arm)
    with refusal_kept(session, arm):
        capture = open_capture(session, arm, remeasure=remeasure)
        judge_killed_starts(capture)
        _measure(capture, arm, _launches_for(capture, wanted), ready)
    made = launch_made(
        capture.spec,
        capture.starts(),
        len(capture.texts),
        telemetry=samples_of_starts(capture),
        rules=session.study.protocol.gpus,
    )
    launch = record(capture.work, made, started_at=capture.began_at)
    for step in wanted:
        if step.artifact == LAUNCH:
            yield launch
            continue
        panel = next(panel for panel in capture.panels if captured_rows(panel.panel) == step.artifact)
        work = prepare(session, step, arm, remeasure=remeasure)
        yield record(work, captured_made(panel, capture.windows()), started_at=capture.began_at)
    if len(wanted) == len(steps):
        session.store.drop_scratch(capture.scratch)


def _answers(session: Session, arm: ArmKey, wanted: Sequence[Step]) -> list[Done] | None:
    """All wanted artifacts from the store, or None where the engine has to run."""
    launch = answer_from_store(prepare(session, launch_step(session.study), arm))
    if launch is None:
        return None
    answered = []
    for step in wanted:
        done = launch if step.artifact == LAUNCH else answer_from_store(prepare(session, step, arm))
        if done is None:
            return None
        answered.append(done)
    return answered


def _launches_for(capture: Capture, wanted: Sequence[Step]) -> list[Launch]:
    """The launches that still have to run: those with a window that a wanted panel lacks, or the first to prove the engine."""
    names = {step.artifact for step in wanted}
    panels = {panel.panel for panel in capture.panels if captured_rows(panel.panel) in names}
    needed = [launch for launch in capture.launches if set(launch.panels) & panels and capture.missing(launch)]
    return needed or ([] if capture.starts() else [capture.launches[0]])


def _measure(capture: Capture, arm: ArmKey, launches: Sequence[Launch], ready: Ready) -> None:
    if not launches:
        return
    with engine_held(capture) as holding:
        for launch in launches:
            _run_launch(capture, arm, launch, holding, ready)


def _run_launch(capture: Capture, arm: ArmKey, launch: Launch, holding: Holding, ready: Ready) -> None:
    """One start of the engine: prove it, then capture the windows that this launch still lacks."""
    work = capture.work
    require_space(work.store.home, capture.bytes_needed(launch), f"capturing {arm}, launch {launch.number}")
    start = len(capture.starts()) + 1
    work.say(f"launch {launch.number}/{len(capture.launches)}, {launch.path}: starting {arm.engine}@{arm.version}")
    with (
        watched(capture, start, holding.held) as watch,
        started(capture, arm, launch, start, holding.labels) as running,
    ):
        probed = _refuse_other_tokens(capture, running)
        facts = dict(running.facts)
        if isinstance(capture.spec, ServerSpec):
            facts["tokenizer_probed"] = probed
        capture.add_start(start, launch, facts, watch.before)
        watch.ready(facts)
        ready(facts)
        try:
            _capture_windows(capture, running, launch, start)
        finally:
            watch.stopping()


def _capture_windows(capture: Capture, running: Running, launch: Launch, start: int) -> None:
    total, already = capture.rows_total(), capture.rows_done()
    label = f"[{capture.work.arm}] captured_rows"
    progress = Progress(capture.work.session.say, label, "rows", total, time.monotonic_ns, already)
    missing = capture.missing(launch)
    names = [one.window_id for one in passes(capture.panels_of(launch))]
    for one in missing:
        taken: list[dict[str, Any]] = []
        for repeat in range(1, launch.repeats + 1):
            place = f"launch {launch.number}/{len(capture.launches)}, {launch.path}, window {one.window_id}"
            running.unchanged()
            taken.append(take_window(capture, running, launch, one, taken))
            running.unchanged()  # what was measured around a restart is void: the window is not journalled
            already += len(one.positions)
            progress.update(
                already, f"{place} ({names.index(one.window_id) + 1}/{len(names)}), repeat {repeat}/{launch.repeats}"
            )
        capture.add_window(launch, start, one, taken)


def _refuse_other_tokens(capture: Capture, running: Running) -> bool:
    """The engine must read the texts as the frozen ids: an old or damaged vocabulary shows here and nowhere else.

    False where the engine has no tokenizer to ask: it is given ids, and reads no text.
    """
    if running.tokenize is None:
        return False
    for window_id, (text, tokens) in capture.texts.items():
        if tuple(running.tokenize(text) or ()) != tokens:
            raise EngcmpError(
                f"window {window_id}: the engine reads the text as other token ids than the frozen ones",
                where=str(capture.work.arm), remedy="this checkpoint or engine version has another vocabulary: it cannot be compared",
            )  # fmt: skip
    return True
