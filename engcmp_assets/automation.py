"""What happens by itself: arms appear, approved ones are measured, results are kept current, new versions are found; and approval.

Only an arm of an approved release starts an engine from here, once. All else that a sensor requests is computed from what is stored.
"""

# No postponed annotations here: Dagster reads the ops' annotations as types.

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import dagster as dg

from engcmp_assets import events, observations
from engcmp_assets.captured_rows.session import capture_steps
from engcmp_assets.engine_versions.decisions import in_words, news_key
from engcmp_assets.engine_versions.look import candidates_of, look
from engcmp_assets.frozen_protocol.iteration_freeze import freeze_iteration
from engcmp_assets.kernel.blocks import INPUTS, is_asked, not_asked
from engcmp_assets.kernel.iterations import Iteration
from engcmp_assets.kernel.names import CATALOG, ENGINE_VERSIONS
from engcmp_assets.kernel.progress import Say, stderr_line
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, base_of, prepare, says_the_same
from engcmp_assets.long_replies.session import serving_steps
from engcmp_assets.lost_runs import tell_process
from engcmp_assets.partitions import arm_partitions, candidate_partitions
from engcmp_assets.steps import step_named, steps_of
from engcmp_resources.canonical import sha256_of
from engcmp_resources.disk import files_below
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import home_folder
from engcmp_resources.refusals import REFUSALS
from engcmp_resources.releases.base import RateLimitedError, UnreachableError
from engcmp_resources.store import Store

_ARMS_INTERVAL_S, _RESULTS_INTERVAL_S, _RELEASES_INTERVAL_S = 30, 30, 3600
_RUN_KEY_CHARS = 32


def sync_partitions(instance: dg.DagsterInstance, study: Study, say: Say = stderr_line) -> None:
    """A partition for each arm, and one for each candidate that waits; candidates that were approved or declined go."""
    prefix = study.protocol.asset_prefix
    instance.add_dynamic_partitions(str(arm_partitions(prefix).name), [str(arm) for arm in study.protocol.arm_keys])
    name = str(candidate_partitions(prefix).name)
    try:
        waiting = [one for one, adds in candidates_of(study).items() if adds.declined is None]
    except EngcmpError as error:
        say(f"candidates cannot be read: {error}")
        return
    for gone in set(instance.get_dynamic_partitions(name)) - set(waiting):
        instance.delete_dynamic_partition(name, gone)
    instance.add_dynamic_partitions(name, waiting)


def arms_sensor(study: Study, jobs: Sequence[Any]) -> dg.SensorDefinition:
    """Always on: a partition for each arm, and the runs of arms whose release was approved for measuring.

    `jobs` are the two that it may request: the capture and the analysis of an arm.
    """
    name, prefix = study.folder.name, study.protocol.asset_prefix

    @dg.sensor(
        name=f"{prefix}_arms",
        jobs=jobs,
        minimum_interval_seconds=_ARMS_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Adds a partition for each arm that the protocol or a frozen iteration lists. Starts a run only for the arms of an iteration "
            "that says `measure = true`: once, first the capture and then the analysis."
        ),
    )
    def fill(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        now, store = load_study(name), Store(home_folder(), read_only=True)
        known = set(context.instance.get_dynamic_partitions(str(arm_partitions(prefix).name)))
        new = [str(arm) for arm in now.protocol.arm_keys if str(arm) not in known]
        sync_partitions(context.instance, now, context.log.info)
        requests = [
            request
            for iteration in now.iterations
            if iteration.adds.measure
            for arm in iteration.arm_keys
            if (request := next_run(now, store, iteration, arm)) is not None
        ]
        if not (new or requests):
            return dg.SkipReason("every arm has its partition, and no approved one waits for its runs")
        return dg.SensorResult(run_requests=requests)

    return fill


def next_run(study: Study, store: Store, iteration: Iteration, arm: ArmKey) -> dg.RunRequest | None:
    """The run that an approved arm needs next: its capture, then its analysis; None where both are done.

    The run key is of arm, digest, frozen hashes and capture versions: the same arm is never started twice by itself, and a
    tag that was pushed again, another protocol or another way to capture is another key.
    """
    name, prefix = study.protocol.study, study.protocol.asset_prefix
    if store.head(name, arm.folder, "summaries") is not None:
        return None
    steps = (*capture_steps(study), *serving_steps(study))
    asked = [step for step in steps if is_asked(study.protocol, arm, step.artifact)]
    captured = all(store.head(name, arm.folder, step.artifact) is not None for step in asked)
    part = "analysis" if captured else "capture"
    digest = iteration.adds.release.digest if iteration.adds.release else ""
    versions = [step.code_version for step in steps]
    key = sha256_of([part, str(arm), digest, study.frozen_sha256, iteration.frozen_sha256, versions])[:_RUN_KEY_CHARS]
    return dg.RunRequest(
        run_key=key, job_name=f"{prefix}_{part}", partition_key=str(arm), tags=arm_tags(arm),
        asset_selection=selection(study, arm, captured=captured),
    )  # fmt: skip


def selection(study: Study, arm: ArmKey, *, captured: bool) -> list[dg.AssetKey] | None:
    """The assets of a run of an arm that is not asked for every block of the study; None for all of the job."""
    if not not_asked(study.protocol, arm):
        return None
    first = {step.artifact for step in (*capture_steps(study), *serving_steps(study))} | {*INPUTS, "reference_rows"}
    names = ["frozen_protocol", *(step.artifact for step in steps_of(study) if step.per_arm)]
    return [
        events.asset_key(study, name)
        for name in names
        if (name not in first) == captured and is_asked(study.protocol, arm, name)
    ]


def arm_tags(arm: ArmKey) -> dict[str, str]:
    """The tags of an arm's runs, by which they are found in the UI."""
    tags = {"engcmp/checkpoint": arm.checkpoint, "engcmp/engine": arm.engine, "engcmp/version": arm.version}
    return tags | ({} if arm.setting is None else {"engcmp/setting": arm.setting})


def results_sensor(study: Study) -> dg.SensorDefinition:
    """Always on: comparisons, pages and the catalog follow what was measured. It never starts an engine."""
    name, prefix = study.folder.name, study.protocol.asset_prefix

    @dg.sensor(
        name=f"{prefix}_results_current",
        job_name=f"{prefix}_results",
        minimum_interval_seconds=_RESULTS_INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Makes comparisons, pages and catalog again when an arm that they rest on has new figures. It never starts an engine.",
    )
    def keep(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        now, store = load_study(name), Store(home_folder(), read_only=True)
        state = _heads_state(now, store)
        if state == context.cursor:
            return dg.SkipReason("nothing has changed since the last look")
        stale = stale_results(Session(now, store, "sensor", context.log.info))
        if not stale:
            return dg.SensorResult(skip_reason="comparisons, pages and the catalog are current", cursor=state)
        return dg.SensorResult(run_requests=[dg.RunRequest(run_key=sha256_of(stale)[:_RUN_KEY_CHARS])], cursor=state)

    return keep


def stale_results(session: Session) -> dict[str, str]:
    """The study-wide results that are not what their inputs give now, with what they would be of; {} before any arm is measured."""
    study = session.study
    summaries = [session.current("summaries", arm) for arm in study.protocol.arm_keys]
    if not any(one and one.receipt["frozen_sha256"] == study.frozen_sha256 for one in summaries):
        return {}
    found = {}
    for artifact in ("comparisons", "publication", CATALOG):
        current = session.current(artifact, None)
        try:
            base = base_of(prepare(session, step_named(study, artifact), None))
        except EngcmpError:  # its input is still to be made, and is named before it
            found[artifact] = "its input first"
            continue
        if current is None or not says_the_same(current.receipt, base):
            found[artifact] = sha256_of([base["frozen_sha256"], base["iterations"], base["task_key"], base["inputs"]])
    return found


def _heads_state(study: Study, store: Store) -> str:
    """A short word for all heads of the study and its arms' refusals: it changes when any of them is replaced."""
    folders = [store.home / kind / study.protocol.study for kind in ("heads", REFUSALS)]
    heads = []
    for path in (path for folder in folders for path in files_below(folder) if path.suffix == ".json"):
        with suppress(FileNotFoundError):  # a refusal that a run takes back meanwhile
            heads.append((str(path.relative_to(store.home)), path.stat().st_mtime_ns))
    return sha256_of([study.frozen_sha256, [one.frozen_sha256 for one in study.iterations], heads])


def still_to_wait_s(cursor: Mapping[str, Any]) -> float:
    """Seconds until a place that asked to wait may be asked again; 0 where the clock was set back: then nobody knows."""
    since_s = time.time() - cursor.get("asked_at", 0)
    return float(max(cursor.get("wait_s", 0) - since_s, 0)) if since_s >= 0 else 0.0


def releases_sensor(study: Study, engine: str) -> dg.SensorDefinition:
    """Off until it is turned on, since it asks a place outside: looks for new versions of one engine."""
    name, prefix, rule = study.folder.name, study.protocol.asset_prefix, study.protocol.releases[engine]

    @dg.sensor(
        name=f"{prefix}_{engine.replace('-', '_')}_releases",
        job_name=f"{prefix}_{ENGINE_VERSIONS}",
        minimum_interval_seconds=_RELEASES_INTERVAL_S,
        description=(
            f"Looks each hour at {rule.name} ({rule.place}) for new versions of {engine}; a new one that counts becomes a candidate. It "
            + (
                "waits for your approval (job that ends in _approve)."
                if rule.approval == "wait"
                else "is approved by the protocol, and its arms are measured."
            )
            + " Turn it on with the switch."
        ),
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        cursor = json.loads(context.cursor or "{}")
        if (wait_s := still_to_wait_s(cursor)) > 0:
            return dg.SkipReason(f"asked to wait {wait_s:.0f} s more before the next look")
        try:
            seen = look(load_study(name), engine)
        except RateLimitedError as error:
            later = json.dumps({"asked_at": time.time(), "wait_s": error.retry_after_s})
            return dg.SensorResult(skip_reason=str(error), cursor=later)
        except UnreachableError as error:
            return dg.SkipReason(f"{error.what}; the next look asks again")
        except EngcmpError as error:
            return dg.SkipReason(f"cannot look: {error}")
        news = news_key(seen.findings)
        if not news:
            return dg.SensorResult(skip_reason=f"{seen.place}: {in_words(seen.findings)}", cursor="{}")
        context.log.info(f"{seen.place}: {in_words(seen.findings)}")
        # The same news is told once; a candidate that was removed by hand does not come back by itself.
        return dg.SensorResult(
            run_requests=[dg.RunRequest(run_key=sha256_of([engine, news])[:_RUN_KEY_CHARS])], cursor="{}"
        )

    return watch


def approve_job(study: Study) -> Any:
    """Approve a candidate: its iteration is frozen, and its arms appear."""
    name, prefix = study.folder.name, study.protocol.asset_prefix

    @dg.op(
        name=f"{prefix}_approve_candidate",
        description="Freeze the candidate iteration, and add the partitions of its arms.",
        out=dg.Out(dg.Nothing),
    )
    def approve(context: dg.OpExecutionContext) -> None:
        with events.failures():
            tell_process(context.instance, context.run)
            now = load_study(name)
            if not context.has_partition_key:
                waiting = ", ".join(candidates_of(now)) or "none"
                raise EngcmpError("no candidate is chosen", remedy=f"choose one as the partition; waiting: {waiting}")
            words = freeze_iteration(now, context.partition_key)
            context.log.info(words)
            after = load_study(name)
            sync_partitions(context.instance, after, context.log.info)
            context.log_event(observations.approval_observation(after, context.partition_key, words))

    @dg.job(
        name=f"{prefix}_approve",
        partitions_def=candidate_partitions(prefix),
        description=(
            "Approves a new engine version: choose its candidate as the partition and launch. The candidate's file lies in the study's "
            "folder, under iterations/; read it first. Its arms then appear as partitions, and are measured one after the other."
        ),
    )
    def approving() -> None:
        approve()

    return approving
