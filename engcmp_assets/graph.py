"""The asset graph of a study, made from its steps: Dagster is the catalogue and the scheduler, the steps do the work.

Two files make a graph: this one (assets, checks, jobs) and `events` (what a reader sees on an asset's page).
"""

# No postponed annotations here: Dagster reads the ops' annotations as types.

from collections.abc import Iterator
from typing import Any

import dagster as dg

from engcmp_assets import events
from engcmp_assets.captured_rows.session import capture_arm, capture_steps
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Done, Session, Step, materialize
from engcmp_assets.steps import steps_of
from engcmp_resources.places import home_folder, study_names
from engcmp_resources.store import Store

POOL = "gpu"
_SENSOR_INTERVAL_S = 30


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
    sensors: list[dg.SensorDefinition] = []
    for name in study_names():
        study = load_study(name)
        assets += study_assets(study)
        jobs += study_jobs(study)
        sensors.append(partition_sensor(study))
    return dg.Definitions(assets=assets, jobs=jobs, sensors=sensors, executor=dg.in_process_executor)


def study_assets(study: Study) -> list[dg.AssetsDefinition]:
    """The study's assets: one for each step, and one multi-asset within which the engine lives."""
    single = [_asset(study, step) for step in STEPS if step not in CAPTURE_STEPS]
    return [*single, _capture_asset(study)]


def study_jobs(study: Study) -> list[Any]:
    """`<study>_arm` makes all of one arm, `<study>_results` the study-wide results."""
    prefix = study.protocol.asset_prefix
    of_arm = [events.asset_key(study, step.artifact) for step in STEPS if step.per_arm]
    wide = [events.asset_key(study, name) for name in ("comparisons", "publication")]
    first = events.asset_key(study, "frozen_protocol")
    return [
        dg.define_asset_job(
            f"{prefix}_arm",
            selection=dg.AssetSelection.assets(first, *of_arm),
            partitions_def=arm_partitions(prefix),
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


def _asset(study: Study, step: Step) -> dg.AssetsDefinition:
    prefix = study.protocol.asset_prefix

    @dg.multi_asset(
        name=f"{prefix}__{step.artifact}",
        specs=[dg.AssetSpec(**events.spec_fields(study, step))],
        partitions_def=arm_partitions(prefix) if step.per_arm else None,
        check_specs=events.check_specs(study, step),
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
        specs=[dg.AssetSpec(**events.spec_fields(study, step), skippable=True) for step in CAPTURE_STEPS],
        check_specs=[check for step in CAPTURE_STEPS for check in events.check_specs(study, step)],
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
                step.artifact for step in CAPTURE_STEPS
                if events.asset_key(study, step.artifact) in context.selected_asset_keys
            ]  # fmt: skip

            def ready(facts: Any) -> None:
                context.log_event(events.ready_observation(study, arm, facts))

            for done in capture_arm(session, arm, artifacts=wanted, remeasure=config.remeasure, ready=ready):
                step = _step_of(done)
                yield events.materialize_result(session, step, arm, done)

    return scoring


def _step_of(done: Done) -> Step:
    return next(step for step in CAPTURE_STEPS if step.artifact == done.receipt["artifact"])


def _session(study: Study, context: dg.AssetExecutionContext) -> Session:
    """The study is read anew for each run, so that a code location that was loaded before an edit cannot measure an old protocol."""
    return Session(load_study(study.folder.name), Store(home_folder()), context.run_id, events.say_to(context))


def _arm(study: Study, context: dg.AssetExecutionContext) -> ArmKey:
    """The partition as an arm of the protocol; the run is tagged with it, since runs clicked in the UI carry no job tags."""
    arm = study.protocol.require_arm(context.partition_key)
    tags = {"engcmp/checkpoint": arm.checkpoint, "engcmp/engine": arm.engine, "engcmp/version": arm.version}
    if any(context.run.tags.get(name) != value for name, value in tags.items()):
        context.instance.add_run_tags(context.run_id, tags)
    return arm
