"""Runs whose process is gone: Dagster would show them as in progress for ever, and they would hold the engine's pool."""

import math
import os
import time
from pathlib import Path

import dagster as dg

from engcmp_assets.beats import TASK_TAG, cursor_of, end_silent_runs, heard_of

_SENSOR_INTERVAL_S = 15
_IN_PROGRESS = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
_PROC = Path("/proc")
# The clock of /proc counts whole seconds since boot.
_CLOCK_SLACK_S = 2.0
# A run tells its process as its first word; one that was killed just before that would be in progress for ever.
_SILENT_S = 600.0


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
        heard, silent = end_silent_runs(context.instance, heard_of(context.cursor), time.time())
        lost += silent
        text = f"reported as failed: {', '.join(lost)}" if lost else "every run in progress has its process"
        context.update_cursor(cursor_of(heard))
        return dg.SkipReason(text)

    return end


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report every run in progress whose process is gone as failed (as canceled, if that was asked for); their ids.

    A killed command, a killed UI or a restarted machine leave such runs. What they completed is in the store, so that
    materializing again continues. A run that has not told its process yet is left alone, unless it never will. So is one that went to
    a worker of another machine: this machine's processes say nothing of it (beats.py).
    """
    lost: list[str] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(_IN_PROGRESS))):
        if TASK_TAG in record.dagster_run.tags:
            continue
        run, worker = record.dagster_run, _worker(instance, record.dagster_run.run_id)
        if _lives(*worker) if worker else time.time() - record.update_timestamp.timestamp() < _SILENT_S:
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


def _worker(instance: dg.DagsterInstance, run_id: str) -> tuple[int, float] | None:
    """The process that executes the run, and when it said so (seconds since the epoch)."""
    for entry in reversed(instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        pid = entry.dagster_event.engine_event_data.metadata.get("pid") if entry.dagster_event else None
        if pid is not None:
            return int(str(pid.value)), entry.timestamp
    return None


def _lives(pid: int, seen_at: float) -> bool:
    """Whether the process with this id still is the one that was seen then, and not a later one with the same id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # another user's: a run's process is ours
    started_at = _started_at(pid)
    return started_at is None or started_at <= seen_at + _CLOCK_SLACK_S


def _started_at(pid: int) -> float | None:
    """When the process started (seconds since the epoch), where the system says so; never, for one that only waits to be buried."""
    try:
        # The command name in parentheses may hold anything, so the fields are counted from the last one.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return None
    if fields[0] == "Z":
        return math.inf
    boot = next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
    return None if boot is None else boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
