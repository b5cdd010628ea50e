"""Runs whose process is gone: Dagster would show them as in progress for ever, and they would hold the engine's pool."""

import math
import os
import time
from pathlib import Path

import dagster as dg

from engcmp_assets.beats import TASK_TAG, cursor_of, end_silent_runs, heard_of
from engcmp_resources.container_owners import owner

_SENSOR_INTERVAL_S = 15
_IN_PROGRESS = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
_PROC = Path("/proc")
# The clock of /proc counts whole seconds since boot.
_CLOCK_SLACK_S = 2.0
# A run tells its process as its first word; one that was killed just before that would be in progress for ever.
_SILENT_S = 600.0
# From there to its first step, which tags it with its process, it loads the studies.
_LOADING_S = 120.0
PROCESS_TAG = "engcmp/process"


def lost_runs_sensor() -> dg.SensorDefinition:
    """Always on: a run whose process is gone (killed, or the machine was restarted) must not hold the engine's pool."""

    @dg.sensor(
        name="engcmp_lost_runs",
        minimum_interval_seconds=_SENSOR_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports runs whose process is gone as failed, so that the next one can start; it never starts a run.",
    )
    def end(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        lost = end_lost_runs(context.instance)
        # The seconds since boot, not the wall clock: one that is set forward would silence every run.
        heard, silent = end_silent_runs(context.instance, heard_of(context.cursor), time.monotonic())
        lost += silent
        text = f"reported as failed: {', '.join(lost)}" if lost else "every run in progress has its process"
        context.update_cursor(cursor_of(heard))
        return dg.SkipReason(text)

    return end


def tell_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Tag a run with the process that executes it, by its start since boot, so that a clock that is set meanwhile does not make it lost."""
    told = owner()
    if told and run.tags.get(PROCESS_TAG) != told:
        instance.add_run_tags(run.run_id, {PROCESS_TAG: told})


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report every run in progress whose process is gone as failed (as canceled, if that was asked for); their ids.

    A killed command, a killed UI or a restarted machine leave such runs. What they completed is in the store, so that
    materializing again continues. A run that has not told its process yet is left alone, until it has been looked at for so long that
    it never will. So is one that went to a worker of another machine: this machine's processes say nothing of it (beats.py).
    """
    lost: list[str] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(_IN_PROGRESS))):
        if TASK_TAG in record.dagster_run.tags:
            continue
        run, worker = record.dagster_run, _worker(instance, record.dagster_run.run_id)
        lives = _lives(*worker) if worker else None
        unknown = lives is None and not _waited_for(instance, run.run_id, _LOADING_S if worker else _SILENT_S)
        if _is_told(run) or lives or unknown:
            continue
        process = f"Process {worker[0]} of this run is gone" if worker else "This run never told its process"
        text = f"{process}; what is complete is kept: materialize again to continue"
        if run.status == dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message=text)
        else:
            instance.report_run_failed(run, message=text)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        lost.append(run.run_id)
    return lost


def _waited_for(instance: dg.DagsterInstance, run_id: str, seconds: float) -> bool:
    """Whether the run was looked at that long ago and could not be judged then either: by the seconds since boot, kept in the instance,
    because the wall clock, which its records go by, may be set forward while it starts.
    """
    key, now_s = f"engcmp/looked-at/{run_id}/{(owner() or 'no boot').split()[0]}", time.monotonic()
    first = instance.run_storage.get_cursor_values({key}).get(key)
    if first is None or now_s < float(first):  # without /proc a restart is seen by its younger clock
        instance.run_storage.set_cursor_values({key: str(now_s)})
        return False
    return now_s - float(first) >= seconds


def _worker(instance: dg.DagsterInstance, run_id: str) -> tuple[int, float] | None:
    """The process that executes the run, and when it said so (seconds since the epoch)."""
    for entry in reversed(instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        pid = entry.dagster_event.engine_event_data.metadata.get("pid") if entry.dagster_event else None
        if pid is not None:
            return int(str(pid.value)), entry.timestamp
    return None


def _is_told(run: dg.DagsterRun) -> bool:
    """Whether the very process that the run is tagged with lives. A run that is executed again begins with the tag of the earlier one,
    so that a tag proves a life and no death.
    """
    told, ours = run.tags.get(PROCESS_TAG, "").split(), owner().split()
    if len(told) != len(ours) or told[:2] != ours[:2] or not told:
        return False
    fields = _fields(int(told[2])) if told[2].isdigit() else None
    return fields is not None and fields[0] != "Z" and fields[19] == told[3]


def _fields(pid: int) -> list[str] | None:
    """What /proc says of a process, behind its name, which may hold anything; None for one that has ended, and without /proc."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _lives(pid: int, seen_at: float) -> bool | None:
    """Whether the process with this id still is the one that was seen then. None for one that began later by the wall clock: another
    one with the same id, or the clock was set forward since.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # another user's: a run's process is ours
    started_at = _started_at(pid)
    if started_at == math.inf:
        return False
    return True if started_at is None or started_at <= seen_at + _CLOCK_SLACK_S else None


def _started_at(pid: int) -> float | None:
    """When the process started (seconds since the epoch), where the system says so; never, for one that only waits to be buried."""
    fields = _fields(pid)
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    if fields is None:
        return None
    if fields[0] == "Z":
        return math.inf
    boot = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    return None if boot is None else boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
