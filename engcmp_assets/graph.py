"""The asset graph of a study, made from its steps: Dagster is the catalogue and the scheduler, the steps do the work.

This file makes assets, checks and jobs; `events` is what a reader sees on an asset's page, `automation` the sensors and approval,
`upkeep` the schedules.
"""

# No postponed annotations here: Dagster reads the ops' annotations as types.

import datetime
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import Field

import engcmp_assets.event_log  # noqa: F401 - sets how the databases are written
from engcmp_assets import alerting, automation, events, observations, spreading, upkeep
from engcmp_assets.captured_rows.drift import ABOUT as ABOUT_DRIFT
from engcmp_assets.captured_rows.drift import CHECK as DRIFT
from engcmp_assets.captured_rows.drift import drift_check
from engcmp_assets.captured_rows.refusals import refusal_kept
from engcmp_assets.captured_rows.session import capture_arm, capture_steps
from engcmp_assets.engine_launch.preconditions import refuse_unready_place
from engcmp_assets.frozen_protocol.standing import require_standing
from engcmp_assets.kernel import row_loop
from engcmp_assets.kernel.names import AUDIT, CATALOG, CELLS, ENGINE_VERSIONS, LAUNCH, REPLY_CHECKS, SERVING
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.version_alerts import ALERTS
from engcmp_assets.kernel.work import Done, Session, Step, materialize
from engcmp_assets.long_replies.session import measure_serving, serving_steps
from engcmp_assets.lost_runs import lost_runs_sensor, tell_process
from engcmp_assets.partitions import arm_partitions
from engcmp_assets.steps import step_named, steps_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.object_cache import ObjectCache
from engcmp_resources.object_store import VARIABLE
from engcmp_resources.places import home_folder, study_names
from engcmp_resources.shared_heads import pull
from engcmp_resources.store import Store

POOL = "gpu"
FIRST_OF_ARM = "sources"
COMPARED = "comparisons"
OF_ROWS = ("scores", "tails")
ANALYSIS = ("scores", "tails", CELLS, REPLY_CHECKS, "summaries")
# A week, and a day for a machine that was off.
_PUBLISHED_FOR = datetime.timedelta(days=8)


class Materialize(dg.Config):
    """How an artifact is materialized. The defaults answer from the store what was done before."""

    remeasure: bool = Field(
        default=False,
        description="Make it again, as a new measurement; nothing is overwritten. Of __scoring: run the engine again.",
    )


class MeasureSpeed(Materialize):
    """How the speed of an arm is measured."""

    until_repeat: int | None = Field(
        default=None,
        description="Stop after this repeat, with nothing materialized: so the repeats of several arms take turns. Empty: all repeats.",
    )


def definitions() -> dg.Definitions:
    """All studies in protocol/. A protocol edited after its freeze still loads: its first asset says what is wrong.

    One that cannot be read at all (a draft beside the others) is left out, with its error on standard error.
    """
    row_loop.keep_objects(ObjectCache())  # every process that runs a step comes by here
    assets: list[Any] = []
    jobs: list[Any] = [upkeep.clean_up_job()]
    sensors: list[dg.SensorDefinition] = [lost_runs_sensor()]
    if os.environ.get(VARIABLE):
        sensors.append(spreading.shared_results_sensor())
    schedules: list[dg.ScheduleDefinition] = [upkeep.clean_up_schedule()]
    for study in _readable_studies():
        assets += study_assets(study)
        own = study_jobs(study)
        jobs += [*own.values(), upkeep.verify_job(study), spreading.windows_job(study)]
        sensors += [
            automation.arms_sensor(study, [own["capture"], own["analysis"]]), automation.results_sensor(study),
            alerting.alerts_sensor(study),
        ]  # fmt: skip
        schedules += upkeep.study_schedules(study)
        if study.protocol.releases:
            jobs.append(automation.approve_job(study))
            sensors += [automation.releases_sensor(study, engine) for engine in study.protocol.releases]
    return dg.Definitions(
        assets=assets, jobs=jobs, sensors=sensors, schedules=schedules, executor=dg.in_process_executor
    )


def _readable_studies() -> Iterator[Study]:
    for name in study_names():
        try:
            study = load_study(name)
            _ = study.protocol
        except EngcmpError as error:
            stderr_line(f"study {name} is left out: {error}")
            continue
        yield study


def study_assets(study: Study) -> list[dg.AssetsDefinition]:
    """The study's assets: one for each step, one multi-asset within which the engine lives, and the look at the world outside."""
    within = [step.artifact for step in (*capture_steps(study), *serving_steps(study))]
    single = [_asset(study, step) for step in steps_of(study) if step.artifact not in (*within, ENGINE_VERSIONS)]
    outside = [_versions_asset(study)] if study.protocol.releases else []
    serving = [_serving_asset(study)] if serving_steps(study) else []
    return [*single, _capture_asset(study), *serving, *outside]


def study_jobs(study: Study) -> dict[str, Any]:
    """Everything of an arm as one run, the same in two parts (the engine, then what follows from its rows), and the study-wide results."""
    prefix = study.protocol.asset_prefix
    serving = [step.artifact for step in serving_steps(study)]
    captured = [*(step.artifact for step in capture_steps(study)), *serving]
    of_arm = [step.artifact for step in steps_of(study) if step.per_arm]
    analysis = [name for name in of_arm if name in ANALYSIS]
    inputs = [name for name in of_arm if name not in (*captured, *analysis)]
    parts = {
        "arm": (["frozen_protocol", *of_arm], "Everything of one arm, from the frozen protocol to its summary."),
        "capture": (
            ["frozen_protocol", *inputs, *captured],
            "The measurements of one arm: its inputs, the engine's launches, its rows and its speed. It alone needs the engine's place.",
        ),
        "analysis": (analysis, "What follows from an arm's measurements: scores, tails, speeds and summary. It starts no engine."),
        "results": (["comparisons", "publication", CATALOG], "Comparisons of all measured arms, the pages, and the catalog of all files."),
        AUDIT: ([AUDIT], "The study looked at again by a process without a network and without a way to write: its findings."),
    }  # fmt: skip
    if serving:
        text = "What is measured of one arm under load, whose inputs were made before, what follows from it, and the summary."
        parts["speed"] = ([*serving, *(name for name in analysis if name not in OF_ROWS)], text)
    if study.protocol.releases:
        text = "Looks for new versions of the engines, and writes a candidate for each one that counts."
        parts[ENGINE_VERSIONS] = ([ENGINE_VERSIONS], text)
    return {
        name: dg.define_asset_job(
            f"{prefix}_{name}",
            selection=dg.AssetSelection.assets(*(events.asset_key(study, one) for one in artifacts)),
            description=text,
        )
        for name, (artifacts, text) in parts.items()
    }


def _asset(study: Study, step: Step) -> dg.AssetsDefinition:
    prefix = study.protocol.asset_prefix

    @dg.multi_asset(
        name=f"{prefix}__{step.artifact}",
        specs=[dg.AssetSpec(**events.spec_fields(study, step), freshness_policy=_freshness(step))],
        partitions_def=arm_partitions(prefix) if step.per_arm else None,
        check_specs=events.check_specs(
            study, step, arm_partitions(prefix) if step.per_arm else None, ALERTS if step.artifact == COMPARED else None
        ),
    )
    def make(context: dg.AssetExecutionContext, config: Materialize) -> Iterator[dg.MaterializeResult[Any]]:
        with events.failures():
            session = _session(study, context)
            arm = _arm(session.study, context) if step.per_arm else None
            if arm is not None and step.artifact == FIRST_OF_ARM:
                with refusal_kept(session, arm, measured=False):
                    refuse_unready_place(session, arm)
            done = materialize(session, step, arm, remeasure=config.remeasure)
            told = alerting.version_checks(session, done) if step.artifact == COMPARED else []
            yield events.materialize_result(session, step, arm, done, instance=context.instance, further_checks=told)

    return make


def _capture_asset(study: Study) -> dg.AssetsDefinition:
    prefix = study.protocol.asset_prefix
    arms = arm_partitions(prefix)

    @dg.multi_asset(
        name=f"{prefix}__scoring",
        specs=[dg.AssetSpec(**events.spec_fields(study, step), skippable=True) for step in capture_steps(study)],
        check_specs=[
            check
            for step in capture_steps(study)
            for check in events.check_specs(study, step, arms, {} if step.artifact == LAUNCH else {DRIFT: ABOUT_DRIFT})
        ],
        partitions_def=arms,
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

            for done in _told(
                context, capture_arm(session, arm, artifacts=wanted, remeasure=config.remeasure, ready=ready)
            ):
                step = step_named(study, done.receipt["artifact"])
                drift = [] if step.artifact == LAUNCH else [drift_check(session.store, done.receipt)]
                yield events.materialize_result(
                    session, step, arm, done, instance=context.instance, further_checks=drift
                )

    return scoring


def _serving_asset(study: Study) -> dg.AssetsDefinition:
    prefix = study.protocol.asset_prefix
    arms = arm_partitions(prefix)

    @dg.multi_asset(
        name=f"{prefix}__serving",
        specs=[dg.AssetSpec(**events.spec_fields(study, step), skippable=True) for step in serving_steps(study)],
        check_specs=[check for step in serving_steps(study) for check in events.check_specs(study, step, arms)],
        partitions_def=arms,
        can_subset=True,
        pool=POOL,
        description="The engine's life under its load: lock, start, proof, every cell and every reply of the plan, end.",
    )
    def serving(context: dg.AssetExecutionContext, config: MeasureSpeed) -> Iterator[dg.MaterializeResult[Any]]:
        with events.failures():
            session = _session(study, context)
            arm = _arm(session.study, context)
            wanted = [
                step.artifact for step in serving_steps(study)
                if events.asset_key(study, step.artifact) in context.selected_asset_keys
            ]  # fmt: skip

            def ready(facts: Any) -> None:
                context.log_event(events.ready_observation(study, arm, facts, SERVING))

            measured = measure_serving(
                session,
                arm,
                artifacts=wanted,
                remeasure=config.remeasure,
                until_repeat=config.until_repeat,
                ready=ready,
            )
            for done in _told(context, measured):
                step = step_named(study, done.receipt["artifact"])
                yield events.materialize_result(session, step, arm, done, instance=context.instance)

    return serving


def _told(context: dg.AssetExecutionContext, made: Iterator[Done]) -> Iterator[Done]:
    """What is made; a run that is stopped says that nothing is lost, above Dagster's own words for it."""
    try:
        yield from made
    except dg.DagsterExecutionInterruptedError:
        context.log.info("Stopped. What is complete is kept: launch it again, with the same settings, to go on")
        raise


def _versions_asset(study: Study) -> dg.AssetsDefinition:
    """A look at the world outside is observed, not materialized: "Materialize all" must not ask the network."""
    step = step_named(study, ENGINE_VERSIONS)

    def look(context: dg.AssetExecutionContext) -> Iterator[dg.ObserveResult]:
        with events.failures():
            session = _session(study, context)
            # Nobody has to materialize the protocol before the first look: what a look rests on is made if need be.
            materialize(session, step_named(study, "frozen_protocol"), None)
            done = materialize(session, step, None, remeasure=True)
            automation.sync_partitions(context.instance, load_study(study.folder.name), session.say)
            yield observations.observe_result(replace(session, study=load_study(study.folder.name)), step, done)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # the set of Dagster packages is pinned to one number
        observed: dg.AssetsDefinition = dg.multi_observable_source_asset(
            name=f"{study.protocol.asset_prefix}__{step.artifact}",
            specs=[dg.AssetSpec(**events.spec_fields(study, step))],
            check_specs=events.check_specs(study, step, None),
        )(look)
    return observed


def _freshness(step: Step) -> dg.FreshnessPolicy | None:
    """Published figures are made again, or answered from the store, each week; older ones are shown as overdue."""
    return dg.FreshnessPolicy.time_window(fail_window=_PUBLISHED_FOR) if step.artifact == "publication" else None


def _session(study: Study, context: dg.AssetExecutionContext) -> Session:
    """The study is read anew for each run, so that a code location that was loaded before an edit cannot measure an old protocol.

    Nothing is made of one that differs from its freeze, in its files or in what this code measures. What other machines have committed
    meanwhile is taken in first.
    """
    tell_process(context.instance, context.run)
    now = load_study(study.folder.name)
    require_standing(now)
    store = Store(home_folder())
    if store.shared is not None:
        pull(store, study.folder.name)
    return Session(now, store, context.run.run_id, events.say_to(context))


def _arm(study: Study, context: dg.AssetExecutionContext) -> ArmKey:
    """The partition as an arm of the protocol; the run is tagged with it, since runs clicked in the UI carry no job tags."""
    arm = study.protocol.require_arm(context.partition_key)
    tags = automation.arm_tags(arm)
    if any(context.run.tags.get(name) != value for name, value in tags.items()):
        context.instance.add_run_tags(context.run.run_id, tags)
    return arm
