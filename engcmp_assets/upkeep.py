"""What is done by the calendar: drift repeats, the weekly proof of everything, the daily clean-up."""

# No postponed annotations here: Dagster reads the ops' annotations as types.

import time
from typing import Any

import dagster as dg

from engcmp_assets import events, observations
from engcmp_assets.audit.leftovers import clean_up
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.audit.verify import verify
from engcmp_assets.automation import arm_tags
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.lost_runs import end_lost_runs, tell_process
from engcmp_resources.places import home_folder

_DAILY, _WEEKLY_RESULTS, _WEEKLY_PROOF = "15 3 * * *", "0 5 * * 0", "30 5 * * 0"
_CLEAN_UP = "engcmp_clean_up"
_SHOWN = 20


def study_schedules(study: Study) -> list[dg.ScheduleDefinition]:
    """A study's schedules; drift repeats are off until they are turned on, since they start an engine."""
    prefix = study.protocol.asset_prefix
    running = dg.DefaultScheduleStatus.RUNNING
    found = [
        dg.ScheduleDefinition(
            name=f"{prefix}_weekly_results", job_name=f"{prefix}_results", cron_schedule=_WEEKLY_RESULTS, default_status=running,
            description="Each Sunday: comparisons and pages are made, or answered from the store, so that their age is known.",
        ),
        dg.ScheduleDefinition(
            name=f"{prefix}_weekly_verification", job_name=f"{prefix}_verify", cron_schedule=_WEEKLY_PROOF, default_status=running,
            description="Each Sunday: every hash, every chain and every figure is proved again. A run that fails names the files.",
        ),
    ]  # fmt: skip
    if study.protocol.drift is not None:
        found.append(drift_schedule(study))
    return found


def drift_schedule(study: Study) -> dg.ScheduleDefinition:
    """Measures the declared arms again, to see whether the machine or anything under it has moved."""
    name, prefix = study.folder.name, study.protocol.asset_prefix
    plan = study.protocol.drift

    @dg.schedule(
        name=f"{prefix}_drift",
        job_name=f"{prefix}_arm",
        cron_schedule=plan.cron if plan else "",
        description=(
            "Measures the arms that the protocol names under [drift] again, as new repeats; the check same_as_last_measurement on "
            "captured rows says whether anything has moved. It starts an engine: turn it on with the switch."
        ),
    )
    def repeat(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest]:
        now = load_study(name).protocol
        when = context.scheduled_execution_time.isoformat()
        return [
            dg.RunRequest(
                run_key=f"{when} {arm}",
                partition_key=str(arm),
                run_config=remeasure_config(study),
                tags=arm_tags(arm) | {"engcmp/because": "drift"},
            )
            for arm in map(now.require_arm, now.drift.arms if now.drift else ())
        ]

    return repeat


def remeasure_config(study: Study) -> dict[str, Any]:
    """Only measurements are taken again; analysis follows from what they give."""
    engines = ["scoring", *(["serving"] if study.protocol.throughput else [])]
    return {"ops": {f"{study.protocol.asset_prefix}__{name}": {"config": {"remeasure": True}} for name in engines}}


def verify_job(study: Study) -> Any:
    """`engcmp verify` as a run: it fails where anything does not hold, and is seen on the publication's page where it does."""
    name, prefix = study.folder.name, study.protocol.asset_prefix

    @dg.op(name=f"{prefix}_verify_all", description="Prove the study's results.", out=dg.Out(dg.Nothing))
    def prove(context: dg.OpExecutionContext) -> None:
        with events.failures():
            tell_process(context.instance, context.run)
            now = load_study(name)
            found = verify(now, Evidence(home_folder()), context.log.info, time.monotonic_ns)
        if found.problems:
            shown = [str(problem) for problem in found.problems[:_SHOWN]]
            raise dg.Failure(
                description=f"{len(found.problems)} problems; the first: {shown[0]}",
                metadata={"problems": dg.MetadataValue.md("\n".join(f"* {text}" for text in shown))},
                allow_retries=False,
            )
        context.log_event(observations.verified_observation(now, found))

    @dg.job(
        name=f"{prefix}_verify",
        description="Proves the study's results as `engcmp verify` does: every hash, every chain, every figure from its rows.",
    )
    def verifying() -> None:
        prove()

    return verifying


def clean_up_job() -> Any:
    """What `engcmp gc` does without --files, as a run."""

    @dg.op(name=f"{_CLEAN_UP}_all", description="Clean up after dead runs.", out=dg.Out(dg.Nothing))
    def clean(context: dg.OpExecutionContext) -> None:
        with events.failures():
            tell_process(context.instance, context.run)
            found = clean_up(context.log.info)
        found += [f"reported as ended: run {run_id}" for run_id in end_lost_runs(context.instance)]
        context.log.info("; ".join(found) or "no run has left anything")

    @dg.job(
        name=_CLEAN_UP,
        description="Removes what killed runs left: engine processes, temporary files, runs without a process.",
    )
    def cleaning() -> None:
        clean()

    return cleaning


def clean_up_schedule() -> dg.ScheduleDefinition:
    """Daily, on from the start: it removes nothing that a result needs."""
    return dg.ScheduleDefinition(
        name="engcmp_daily_clean_up", job_name=_CLEAN_UP, cron_schedule=_DAILY, default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Each night: what killed runs left is removed. No result is touched.",
    )  # fmt: skip
