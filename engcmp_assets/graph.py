"""The asset graph of a study, made from its steps: Dagster is the catalogue and the scheduler, the steps do the work.

Two files make a graph: this one (assets, checks, jobs) and `events` (what a reader sees on an asset's page).
"""

# No postponed annotations here: Dagster reads the ops' annotations as types.

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from engcmp_assets import events
from engcmp_assets.captured_rows.session import capture_arm, capture_steps
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, Step, materialize
from engcmp_assets.steps import step_named, steps_of
from engcmp_resources.places import home_folder, study_names
from engcmp_resources.store import Store

POOL = "gpu"
_SENSOR_INTERVAL_S = 30
_IN_PROGRESS = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)
_PROC = Path("/proc")
# The clock of /proc counts whole seconds since boot.
_CLOCK_SLACK_S = 2.0
# A run tells its process as its first word; one that was killed just before that would be in progress for ever.
_SILENT_S = 600.0


class Materialize(dg.Config):
    """How an artifact is materialized. The defaults answer from the store what was done before."""

    remeasure: bool = False


def arm_partitions(prefix: str) -> dg.DynamicPartitionsDefinition:
    """One partition for each arm of the study; filled by `engcmp ui`, `engcmp run` and the sensor."""
    return dg.DynamicPartitionsDefinition(name=f"{prefix}_arms")


def definitions() -> dg.Definitions:
    """All studies in protocol/. A protocol edited after its freeze still loads: its first asset says what is wrong."""
    assets: list[dg.AssetsDefinition] = []
    jobs: list[Any] = []
    sensors: list[dg.SensorDefinition] = [lost_runs_sensor()]
    for name in study_names():
        study = load_study(name)
        assets += study_assets(study)
        jobs += study_jobs(study)
        sensors.append(partition_sensor(study))
    return dg.Definitions(assets=assets, jobs=jobs, sensors=sensors, executor=dg.in_process_executor)


def study_assets(study: Study) -> list[dg.AssetsDefinition]:
    """The study's assets: one for each step, and one multi-asset within which the engine lives."""
    single = [_asset(study, step) for step in steps_of(study) if step not in capture_steps(study)]
    return [*single, _capture_asset(study)]


def study_jobs(study: Study) -> list[Any]:
    """`<study>_arm` makes all of one arm, `<study>_results` the study-wide results."""
    prefix = study.protocol.asset_prefix
    of_arm = [events.asset_key(study, step.artifact) for step in steps_of(study) if step.per_arm]
    wide = [events.asset_key(study, name) for name in ("comparisons", "publication")]
    first = events.asset_key(study, "frozen_protocol")
    return [
        dg.define_asset_job(
            f"{prefix}_arm",
            selection=dg.AssetSelection.assets(first, *of_arm),
            description="Everything of one arm, from the frozen protocol to its summary.",
        ),
        dg.define_asset_job(
            f"{prefix}_results",
            selection=dg.AssetSelection.assets(*wide),
            description="Comparisons of all measured arms, and the pages.",
        ),
    ]


def partition_sensor(study: Study) -> dg.SensorDefinition:
    """Always on: adds a partition for each arm of the protocol that has none yet."""
    partitions = arm_partitions(study.protocol.asset_prefix)

    @dg.sensor(
        name=f"{study.protocol.asset_prefix}_arms",
        asset_selection=dg.AssetSelection.assets(events.asset_key(study, "summaries")),
        minimum_interval_seconds=_SENSOR_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Adds a partition for each arm that the protocol lists; it never starts a run.",
    )
    def fill(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        known = set(context.instance.get_dynamic_partitions(str(partitions.name)))
        new = [str(arm) for arm in study.protocol.arm_keys if str(arm) not in known]
        if not new:
            return dg.SkipReason("every arm of the protocol has its partition")
        return dg.SensorResult(dynamic_partitions_requests=[partitions.build_add_request(new)])

    return fill


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
        return dg.SkipReason(
            f"reported as failed: {', '.join(lost)}" if lost else "every run in progress has its process"
        )

    return end


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report every run in progress whose process is gone as failed (as canceled, if that was asked for); their ids.

    A killed command, a killed UI or a restarted machine leave such runs. What they completed is in the store, so that
    materializing again continues. A run that has not told its process yet is left alone, unless it never will.
    """
    lost: list[str] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(_IN_PROGRESS))):
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


def _asset(study: Study, step: Step) -> dg.AssetsDefinition:
    prefix = study.protocol.asset_prefix

    @dg.multi_asset(
        name=f"{prefix}__{step.artifact}",
        specs=[dg.AssetSpec(**events.spec_fields(study, step))],
        partitions_def=arm_partitions(prefix) if step.per_arm else None,
        check_specs=events.check_specs(study, step, arm_partitions(prefix) if step.per_arm else None),
    )
    def make(context: dg.AssetExecutionContext, config: Materialize) -> Iterator[dg.MaterializeResult[Any]]:
        with events.failures():
            session = _session(study, context)
            arm = _arm(session.study, context) if step.per_arm else None
            done = materialize(session, step, arm, remeasure=config.remeasure)
            yield events.materialize_result(session, step, arm, done)

    return make


def _capture_asset(study: Study) -> dg.AssetsDefinition:
    prefix = study.protocol.asset_prefix

    @dg.multi_asset(
        name=f"{prefix}__scoring",
        specs=[dg.AssetSpec(**events.spec_fields(study, step), skippable=True) for step in capture_steps(study)],
        check_specs=[
            check for step in capture_steps(study) for check in events.check_specs(study, step, arm_partitions(prefix))
        ],
        partitions_def=arm_partitions(prefix),
        can_subset=True,
        pool=POOL,
        description="The engine's life: lock, start, proof, every window of the panel, end.",
    )
    def scoring(context: dg.AssetExecutionContext, config: Materialize) -> Iterator[dg.MaterializeResult[Any]]:
        with events.failures():
            session = _session(study, context)
            arm = _arm(session.study, context)
            wanted = [
                step.artifact for step in capture_steps(study)
                if events.asset_key(study, step.artifact) in context.selected_asset_keys
            ]  # fmt: skip

            def ready(facts: Any) -> None:
                context.log_event(events.ready_observation(study, arm, facts))

            for done in capture_arm(session, arm, artifacts=wanted, remeasure=config.remeasure, ready=ready):
                step = step_named(study, done.receipt["artifact"])
                yield events.materialize_result(session, step, arm, done)

    return scoring


def _session(study: Study, context: dg.AssetExecutionContext) -> Session:
    """The study is read anew for each run, so that a code location that was loaded before an edit cannot measure an old protocol."""
    return Session(load_study(study.folder.name), Store(home_folder()), context.run.run_id, events.say_to(context))


def _arm(study: Study, context: dg.AssetExecutionContext) -> ArmKey:
    """The partition as an arm of the protocol; the run is tagged with it, since runs clicked in the UI carry no job tags."""
    arm = study.protocol.require_arm(context.partition_key)
    tags = {"engcmp/checkpoint": arm.checkpoint, "engcmp/engine": arm.engine, "engcmp/version": arm.version}
    if arm.setting is not None:
        tags["engcmp/setting"] = arm.setting
    if any(context.run.tags.get(name) != value for name, value in tags.items()):
        context.instance.add_run_tags(context.run.run_id, tags)
    return arm


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
