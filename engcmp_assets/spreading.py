"""What several machines do together: windows of one panel scored on each, and results of the others taken in."""

# No postponed annotations here: Dagster reads the ops' annotations as types.

from typing import Any

import dagster as dg
from pydantic import Field

from engcmp_assets import events
from engcmp_assets.frozen_protocol.standing import require_standing
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, prepare
from engcmp_assets.lost_runs import tell_process
from engcmp_assets.partitions import arm_partitions
from engcmp_assets.scores.windows import score_share
from engcmp_assets.steps import step_named
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder, study_names
from engcmp_resources.shared_heads import pull
from engcmp_resources.store import Store

_PULL_INTERVAL_S = 30


class Share(dg.Config):
    """Which windows a run scores."""

    share: int = Field(default=1, description="Which share this run scores, from 1 on.")
    of: int = Field(
        default=1, description="Into how many shares the windows are cut: one for each run, and so for each host."
    )


def windows_job(study: Study) -> Any:
    """A share of an arm's windows, scored and kept; `scores` takes what is kept."""
    name, prefix = study.folder.name, study.protocol.asset_prefix

    @dg.op(name=f"{prefix}_score_share", description="Score a share of the windows.", out=dg.Out(dg.Nothing))
    def score(context: dg.OpExecutionContext, config: Share) -> None:
        with events.failures():
            if not 1 <= config.share <= config.of:
                raise EngcmpError(f"share {config.share} of {config.of} is none", remedy="count from 1 to `of`")
            tell_process(context.instance, context.run)
            now, store = load_study(name), Store(home_folder())
            require_standing(now)
            if store.shared is not None:
                pull(store, name)
            session = Session(now, store, context.run.run_id, context.log.info)
            work = prepare(session, step_named(now, "scores"), now.protocol.require_arm(context.partition_key))
            made, before = score_share(work, config.share, config.of)
            context.log.info(f"share {config.share} of {config.of}: {made} windows scored, {before} were kept before")

    @dg.job(
        name=f"{prefix}_windows",
        partitions_def=arm_partitions(prefix),
        description=(
            "Scores a share of an arm's windows and keeps the scores: start one run on each host (share 1 of 2, 2 of 2), then materialize "
            "`scores`, which takes what is kept. The figures are the same as of one process, to the byte."
        ),
    )
    def scoring() -> None:
        score()

    return scoring


def shared_results_sensor() -> dg.SensorDefinition:
    """Always on where an object store is set: what other machines have committed is seen here, and results follow it."""

    @dg.sensor(
        name="engcmp_shared_results",
        minimum_interval_seconds=_PULL_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Takes in the receipts that other machines have put into the object store. It never starts a run.",
    )
    def take(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        store = Store(home_folder())
        moved = sum(len(pull(store, name)) for name in study_names())
        return dg.SkipReason(f"{moved} results of other machines are new here")

    return take
