"""The capture session: the engine lives here, between the lock and the last window, and nowhere else.

It is resumable by window: a window's repeats are journalled together, within one start, when all of them are in the store.
A kill costs at most one window; starting again continues where the journal ends.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from engcmp_assets.captured_rows.agreement import refuse_bad_values
from engcmp_assets.captured_rows.step import CAPTURE_VERSION, captured_made
from engcmp_assets.captured_rows.step import STEP as ROWS_STEP
from engcmp_assets.engine_launch.step import STEP as LAUNCH_STEP
from engcmp_assets.engine_launch.step import launch_made, launch_spec
from engcmp_assets.kernel.names import LAUNCH, LIBRARY, PANEL, ROWS, checkpoint_output
from engcmp_assets.kernel.progress import Progress
from engcmp_assets.kernel.protocol import PanelPlan
from engcmp_assets.kernel.records import ArmKey, Panel, Window
from engcmp_assets.kernel.work import Done, Session, Work, answer_from_store, prepare, record
from engcmp_resources.canonical import sha256_of
from engcmp_resources.engines.base import LaunchSpec, RunningEngine, start_engine
from engcmp_resources.errors import EngcmpError
from engcmp_resources.journal import Journal
from engcmp_resources.locks import engine_lock, remove_orphans
from engcmp_resources.row_files import RowFile, row_hashes, write_rows
from engcmp_resources.store import Blob, require_space

ARTIFACTS = (LAUNCH, ROWS)
_LOCK_TIMEOUT_S = 12 * 3600.0
Ready = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class _Capture:
    """What one session works with."""

    work: Work
    panel: Panel
    plan: PanelPlan
    spec: LaunchSpec
    journal: Journal
    ready: Ready

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.journal.entries if entry["kind"] == kind]

    def missing(self, launch: int) -> list[Window]:
        """The windows that this launch still lacks: not journalled, or their files are gone from the store."""
        store = self.work.store
        done = {
            entry["window"]
            for entry in self.entries("window")
            if entry["launch"] == launch
            and all(
                store.path(Blob(taken["sha256"], taken["bytes"], "safetensors")).is_file() for taken in entry["repeats"]
            )
        }
        return [window for window in self.panel.windows if window.window_id not in done]


def capture_arm(
    session: Session,
    arm: ArmKey,
    *,
    artifacts: Sequence[str] = ARTIFACTS,
    remeasure: bool = False,
    ready: Ready = lambda _facts: None,
) -> Iterator[Done]:
    """Yield the launch and the captured rows of `arm`, from the store or by running its engine.

    `artifacts` chooses among ARTIFACTS; `ready` is told the facts of each start as soon as the engine is ready.
    Raises EngcmpError for an engine that fails; what was captured before stays and is not captured again.
    """
    session.study.require_frozen()
    if not remeasure:
        answered = _answers(session, arm, artifacts)
        if answered is not None:
            yield from answered
            return
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    capture, scratch = _open_capture(session, arm, remeasure, ready)
    launches = range(1, capture.plan.launches + 1) if ROWS in artifacts else [1]
    needed = [launch for launch in launches if capture.missing(launch) or not capture.entries("start")]
    if needed:
        require_space(session.store.home, _bytes_needed(capture), f"capturing {arm}")
        with _engine_held(capture, arm) as environment:
            for launch in needed:
                _run_launch(capture, launch, environment, rows=ROWS in artifacts)
    done = record(
        capture.work,
        launch_made(capture.spec, capture.entries("start"), len(capture.panel.windows)),
        started_at=started_at,
    )
    if LAUNCH in artifacts:
        yield done
    if ROWS in artifacts:
        rows_work = prepare(session, ROWS_STEP, arm, remeasure=remeasure)
        made = captured_made(capture.panel, capture.entries("window"), capture.plan.score_path)
        yield record(rows_work, made, started_at=started_at)
        session.store.drop_scratch(scratch)


def _answers(session: Session, arm: ArmKey, artifacts: Sequence[str]) -> list[Done] | None:
    """Both artifacts from the store, or None where the engine has to run."""
    launch = answer_from_store(prepare(session, LAUNCH_STEP, arm))
    if launch is None:
        return None
    answered = [launch] if LAUNCH in artifacts else []
    if ROWS in artifacts:
        rows = answer_from_store(prepare(session, ROWS_STEP, arm))
        if rows is None:
            return None
        answered.append(rows)
    return answered


def _open_capture(session: Session, arm: ArmKey, remeasure: bool, ready: Ready) -> tuple[_Capture, str]:
    """Open the journal of this capture: keyed by what is asked for, and by how often it was measured before."""
    work = prepare(session, LAUNCH_STEP, arm, remeasure=remeasure)
    panel, plan = session.study.panel(PANEL), session.study.protocol.panels[PANEL]
    spec = launch_spec(work, panel)
    current = session.current(ROWS, arm)
    measured = current.receipt["measurement"] if current and remeasure else 0
    windows = [[window.tokens_sha256, list(window.positions)] for window in panel.windows]
    asked = [spec.as_json(), windows, plan.model_dump(), CAPTURE_VERSION, measured]
    scratch = f"capture-{sha256_of(asked)[:24]}"
    journal = Journal(session.store.scratch(scratch) / "journal.jsonl")
    return _Capture(work, panel, plan, spec, journal, ready), scratch


def _bytes_needed(capture: _Capture) -> int:
    """Row files of one pass, twice over: runs that agree share their files."""
    return 2 * capture.panel.rows * capture.panel.vocab * 4


@contextmanager
def _engine_held(capture: _Capture, arm: ArmKey) -> Iterator[Mapping[str, str]]:
    """Hold the engine lock; whatever a dead run left of its engine is removed before a start."""
    work = capture.work
    with engine_lock(arm=str(arm), run_id=work.session.run_id, waiting=work.say, timeout_s=_LOCK_TIMEOUT_S) as lock:
        for orphan in remove_orphans(lock):
            work.say(f"removed what a dead run had left: {orphan}")
        yield {"ENGCMP_ARM": str(arm), "ENGCMP_LOCK": str(lock), "ENGCMP_RUN": work.session.run_id}


def _run_launch(capture: _Capture, launch: int, environment: Mapping[str, str], *, rows: bool) -> None:
    """One start of the engine: prove it, then capture the windows that this launch still lacks."""
    work, arm = capture.work, capture.work.arm
    if arm is None:
        raise EngcmpError("a capture belongs to an arm", remedy="choose a partition")
    start = len(capture.entries("start")) + 1
    work.say(f"launch {launch}/{capture.plan.launches}: starting {arm.engine}@{arm.version}")
    with start_engine(
        work.study.protocol.engine_of(arm).kind,
        capture.spec,
        library=work.file("sources", LIBRARY),
        model=work.file("sources", checkpoint_output(arm)),
        log=capture.journal.path.with_name(f"engine-{start}.log"),
        environment=environment,
    ) as engine:
        _refuse_other_tokens(capture, engine)
        capture.journal.append({"kind": "start", "start": start, "launch": launch, "facts": engine.facts})
        capture.ready(engine.facts)
        if rows:
            _capture_windows(capture, engine, launch, start)


def _capture_windows(capture: _Capture, engine: RunningEngine, launch: int, start: int) -> None:
    repeats = capture.plan.repeats
    total = capture.plan.launches * repeats * capture.panel.rows
    sizes = {window.window_id: repeats * len(window.positions) for window in capture.panel.windows}
    already = sum(sizes[entry["window"]] for entry in capture.entries("window"))
    progress = Progress(
        capture.work.session.say, f"[{capture.work.arm}] {ROWS}", "rows", total, time.monotonic_ns, already
    )
    names = [window.window_id for window in capture.panel.windows]
    for window in capture.missing(launch):
        taken = []
        for repeat in range(1, repeats + 1):
            taken.append(_capture_window(capture, engine, window))
            place = f"launch {launch}/{capture.plan.launches}, window {window.window_id}"
            done = already + len(window.positions) * repeat
            progress.update(
                done, f"{place} ({names.index(window.window_id) + 1}/{len(names)}), repeat {repeat}/{repeats}"
            )
        capture.journal.append(
            {"kind": "window", "launch": launch, "start": start, "window": window.window_id, "repeats": taken}
        )
        already += sizes[window.window_id]


def _capture_window(capture: _Capture, engine: RunningEngine, window: Window) -> dict[str, Any]:
    """One window through the engine into the store: file hash, size, and the hash of each raw row."""
    store = capture.work.store
    raw, path = store.temporary(), store.temporary()
    try:
        engine.prefill_rows(window.window_id, window.tokens, window.positions, raw)
        logits = np.fromfile(raw, dtype="<f4")
        if logits.size != len(window.positions) * capture.panel.vocab:
            raise EngcmpError(
                f"window {window.window_id}: {logits.size} values, {len(window.positions)} rows of {capture.panel.vocab} were asked for",
                where=str(capture.work.arm), remedy="the engine is at fault: nothing of this window was kept",
            )  # fmt: skip
        logits = logits.reshape(len(window.positions), capture.panel.vocab)
        refuse_bad_values(logits, window_id=window.window_id, positions=window.positions, where=str(capture.work.arm))
        positions = np.asarray(window.positions, dtype=np.int32)
        write_rows(path, RowFile(window.window_id, window.tokens_sha256, positions, logits))
        blob = store.put_file(path, "safetensors")
        return {"sha256": blob.sha256, "bytes": blob.bytes, "row_sha256": row_hashes(logits)}
    finally:
        raw.unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _refuse_other_tokens(capture: _Capture, engine: RunningEngine) -> None:
    """The engine must read the texts as the frozen ids: an old or damaged vocabulary shows here and nowhere else."""
    folder = capture.work.study.protocol.prompt_set.texts
    for window in capture.panel.windows:
        text = capture.work.study.files[f"{folder}/{window.window_id}.txt"].decode("utf-8")
        if tuple(engine.tokenize(text)) != window.tokens:
            raise EngcmpError(
                f"window {window.window_id}: the engine reads the text as other token ids than the frozen ones",
                where=str(capture.work.arm), remedy="this checkpoint or engine version has another vocabulary: it cannot be compared",
            )  # fmt: skip
