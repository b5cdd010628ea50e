"""Runs on other machines. Each says every few seconds that it lives, in the instance's storage; one that falls silent is ended.

Dagster's own check asks Celery, which does not know of a worker that was killed, and would wait for hours.
"""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping

import dagster as dg
from sqlalchemy.exc import SQLAlchemyError

from engcmp_assets.kernel.silent_runs import Heard, look

BEAT_S = 5.0
QUEUE_TAG, TASK_TAG = "dagster-celery/queue", "dagster-celery/task_id"
_IN_PROGRESS = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


@contextlib.contextmanager
def beating(run_id: str) -> Iterator[None]:
    """Say that the run lives, from a thread of this process, until the block ends: whatever ends the process ends the beats."""
    done = threading.Event()
    thread = threading.Thread(target=_beat, args=(run_id, done), daemon=True, name="engcmp-beat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(BEAT_S)


def end_silent_runs(
    instance: dg.DagsterInstance, earlier: Mapping[str, Heard], at_s: float
) -> tuple[dict[str, Heard], list[str]]:
    """Report every run on another machine that has fallen silent as failed (as canceled, if that was asked for).

    Returns what is to be remembered until the next look, and the runs that were ended. What such a run completed is in the store.
    """
    records = instance.get_run_records(dg.RunsFilter(statuses=list(_IN_PROGRESS)))
    runs = {one.dagster_run.run_id: one.dagster_run for one in records if TASK_TAG in one.dagster_run.tags}
    told = instance.run_storage.get_cursor_values({_key(run_id) for run_id in runs}) if runs else {}
    heard, silent = look(earlier, {run_id: told.get(_key(run_id), "") for run_id in runs}, at_s)
    for run_id in silent:
        run = runs[run_id]
        since = at_s - earlier[run_id].since_s
        text = (
            f"The worker of queue {run.tags.get(QUEUE_TAG, '(default)')} has said nothing for {since:.0f} s: it was killed, or its host is "
            "off or cut off. What is complete is kept: launch the run again, on this host or another, to continue"
        )
        if run.status == dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message=text)
        else:
            instance.report_run_failed(run, message=text)
        instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return heard, silent


def heard_of(cursor: str | None) -> dict[str, Heard]:
    """What a sensor's cursor remembers."""
    return {run_id: Heard(beat, since_s) for run_id, (beat, since_s) in json.loads(cursor or "{}").items()}


def cursor_of(heard: Mapping[str, Heard]) -> str:
    """A sensor's cursor that remembers it."""
    return json.dumps({run_id: [one.beat, one.since_s] for run_id, one in heard.items()})


def _beat(run_id: str, done: threading.Event) -> None:
    with dg.DagsterInstance.get() as instance:
        count = 0
        while True:
            # A database that is away makes this run silent, which is what the one who looks must see.
            with contextlib.suppress(SQLAlchemyError):
                instance.run_storage.set_cursor_values({_key(run_id): str(count)})
            count += 1
            if done.wait(BEAT_S):
                return


def _key(run_id: str) -> str:
    return f"engcmp/beat/{run_id}"
