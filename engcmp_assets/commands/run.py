"""`engcmp demo` and `engcmp run`: materialize a study's arms and its results, in this process, in the instance that the UI shows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click
import dagster as dg

from engcmp_assets.automation import sync_partitions
from engcmp_assets.captured_rows.session import capture_steps
from engcmp_assets.commands.instance import open_instance
from engcmp_assets.event_log import connections_kept
from engcmp_assets.events import UNFIT, asset_key
from engcmp_assets.graph import definitions
from engcmp_assets.kernel.blocks import INPUTS, artifacts_of, blocks_of, blocks_of_arm, is_asked, parse_blocks
from engcmp_assets.kernel.progress import stderr_line
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study
from engcmp_assets.kernel.work import Session, output_blob
from engcmp_assets.long_replies.session import serving_steps
from engcmp_assets.publication.pages import render_table
from engcmp_assets.steps import steps_of
from engcmp_assets.throughput_events.session import is_measured
from engcmp_assets.upkeep import remeasure_config
from engcmp_resources.errors import EngcmpError, UnfitMachine
from engcmp_resources.places import home_folder
from engcmp_resources.store import STUDY_WIDE, Store

DEMO_STUDY = "smollm2-cpu"
# Dagster's own console log would hide our progress; the event log keeps all of it.
_QUIET_CONSOLE = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@click.command(epilog="Example: engcmp demo")
@click.option("--remeasure", is_flag=True, help="Measure again, as new repeats; nothing is overwritten.")
def demo(remeasure: bool) -> None:
    """Measure the study smollm2-cpu on this machine and print its summary."""
    run_study(DEMO_STUDY, [], remeasure=remeasure)


@click.command(epilog="Example: engcmp run smollm2-cpu --arm q4_0/llamacpp@b11549 --block q,t")
@click.argument("study")
@click.option("--arm", "arms", multiple=True, help="Only this arm (may be given more than once). Default: all arms.")
@click.option(
    "--block",
    "blocks",
    multiple=True,
    metavar="q,t,l",
    help="Only these blocks: q precision, t speed, l long output. Default: all that the study has.",
)
@click.option("--remeasure", is_flag=True, help="Measure again, as new repeats; nothing is overwritten.")
def run(study: str, arms: Sequence[str], blocks: Sequence[str], remeasure: bool) -> None:
    """Materialize STUDY: each arm from the frozen protocol to its summary, then comparisons, pages and catalog."""
    run_study(study, arms, blocks=blocks, remeasure=remeasure)


def run_study(name: str, arms: Sequence[str], *, blocks: Sequence[str] = (), remeasure: bool) -> None:
    """Run the arms one after the other, then the study-wide results, and print the summary and where to look next.

    `blocks` chooses among the blocks; an arm's summary is made once all that it takes is there. Raises EngcmpError for an unknown arm or
    block, before anything is started. An arm that fails is told, the others are measured all the same, and the command ends with its error:
    but not for an arm that this machine cannot run and nobody asked for by name, which is no fault of the run.
    """
    started = time.monotonic()
    study = load_study(name)
    study.require_frozen()
    chosen = [study.protocol.require_arm(text) for text in arms] or list(study.protocol.arm_keys)
    have = blocks_of([step.artifact for step in steps_of(study)])
    asked = parse_blocks(blocks, have, study=name)
    whole = asked == have
    definition = definitions()
    prefix = study.protocol.asset_prefix
    answered = made = 0
    failed: dict[str, EngcmpError] = {}
    with connections_kept(), open_instance() as instance:
        sync_partitions(instance, study)
        for turn in turns(study, chosen, blocks=asked):
            arm = turn.arm
            if str(arm) in failed or (turn.job == "speed" and not remeasure and is_measured(_session(study), arm)):
                continue
            stderr_line(f"[{arm}] {turn.words}")
            config = turn.config(study, remeasure=remeasure)
            only, own = None, tuple(one for one in asked if one in blocks_of_arm(study.protocol, arm))
            if turn.job == "speed" and "t" not in own:
                continue
            if own != have:
                names = turn_artifacts(_session(study), turn, own)
                only = [asset_key(study, one) for one in names]
                config = {"ops": {op: one for op, one in config["ops"].items() if op in _ops(study, names)}}
            try:
                counts = run_job(
                    definition, f"{prefix}_{turn.job}", instance, partition=str(arm), config=config, only=only
                )
            except EngcmpError as error:
                # An engine that does not run here, say for want of an instruction set, must not keep the others from being measured.
                failed[str(arm)] = error
                stderr_line(f"[{arm}] failed: {error}")
                continue
            answered, made = answered + counts[0], made + counts[1]
        if len(failed) == len(chosen):
            raise _failure(failed, len(chosen))
        if not whole and not any(_is_made(_session(study), "summaries", arm) for arm in study.protocol.arm_keys):
            left = [one for one in have if one not in asked]
            stderr_line(f"[{name}] {made} artifacts made, {answered} answered from the store")
            click.echo(f"{name}: no arm has a summary yet; it needs block {', '.join(left)} too: engcmp plan {name}")
            if failed:
                raise _failure(failed, len(chosen))
            return
        stderr_line(f"[{name}] comparisons, pages and catalog")
        counts = run_job(definition, f"{prefix}_results", instance)
        answered, made = answered + counts[0], made + counts[1]
    seconds = time.monotonic() - started
    stderr_line(f"[{name}] {made} artifacts made, {answered} answered from the store, in {seconds:.0f} s\n")
    click.echo(closing_text(study, Store(home_folder())))
    if failed:
        _end_with(failed, arms, len(chosen))


@dataclass(frozen=True, slots=True)
class Turn:
    """One arm's turn: everything of it up to a repeat of its speed, or that repeat alone. `until` None: all repeats."""

    arm: ArmKey
    job: Literal["arm", "speed"]
    until: int | None
    words: str

    def config(self, study: Study, *, remeasure: bool) -> dict[str, Any]:
        """The run configuration of the turn's job."""
        prefix = study.protocol.asset_prefix
        ops = dict(remeasure_config(study)["ops"]) if remeasure else {}
        serving = f"{prefix}__serving"
        if self.until is not None:
            own = dict(ops.get(serving, {"config": {}})["config"])
            ops[serving] = {"config": own | {"until_repeat": self.until}}
        return {"ops": {name: one for name, one in ops.items() if self.job == "arm" or name == serving}}


def turns(study: Study, arms: Sequence[ArmKey], *, blocks: Sequence[str] = ("t",)) -> list[Turn]:
    """The turns of `arms`, in order, for the blocks that are measured.

    Repeats of a speed block go round the arms, each time the other way, where the protocol says abba: what drifts meanwhile then falls on
    every arm of a pair alike.
    """
    plan = study.protocol.throughput if "t" in blocks else None
    repeats = plan.repeats if plan else 1
    found = []
    for repeat in range(1, repeats + 1):
        order = list(reversed(arms)) if plan and plan.order == "abba" and repeat % 2 == 0 else list(arms)
        for index, arm in enumerate(order, start=1):
            place = f"arm {index} of {len(order)}"
            words = place if repeat == 1 else f"repeat {repeat} of the speed block, {place}"
            until = None if repeat == repeats else repeat
            found.append(Turn(arm, "arm" if repeat == 1 else "speed", until, words))
    return found


def turn_artifacts(session: Session, turn: Turn, blocks: Sequence[str]) -> list[str]:
    """What a turn makes where not all blocks are asked for: the blocks' artifacts, and the summary once all that it takes is there."""
    steps = {step.artifact: step for step in steps_of(session.study)}
    inputs = list(INPUTS) if turn.job == "arm" else []
    names = [
        *inputs,
        *artifacts_of(blocks if turn.job == "arm" else [one for one in blocks if one != "q"], list(steps)),
    ]
    taken = [
        use.artifact for use in steps["summaries"].uses
        if use.scope == "arm" and is_asked(session.study.protocol, turn.arm, use.artifact)
    ]  # fmt: skip
    if all(one in names or _is_made(session, one, turn.arm) for one in taken):
        names.append("summaries")
    return names


def _ops(study: Study, names: Sequence[str]) -> set[str]:
    """The ops that make these artifacts."""
    within = {step.artifact: "scoring" for step in capture_steps(study)}
    within |= {step.artifact: "serving" for step in serving_steps(study)}
    return {f"{study.protocol.asset_prefix}__{within.get(name, name)}" for name in names}


def _is_made(session: Session, artifact: str, arm: ArmKey) -> bool:
    """Whether the arm has the artifact under the present freeze."""
    done = session.current(artifact, arm)
    return done is not None and done.receipt["frozen_sha256"] == session.study.frozen_sha256


def _session(study: Study) -> Session:
    return Session(study, Store(home_folder()), "run", stderr_line)


def _end_with(failed: Mapping[str, EngcmpError], named: Sequence[str], of: int) -> None:
    """Say which arms this machine cannot run. Raises EngcmpError where an arm failed otherwise, or one that was `named`."""
    faults = {arm: error for arm, error in failed.items() if arm in named or not isinstance(error, UnfitMachine)}
    if faults:
        raise _failure(faults, of)
    for error in failed.values():
        click.echo(f"\nNot measured on this machine: {error}")


def _failure(failed: Mapping[str, EngcmpError], of: int) -> EngcmpError:
    """One error for all arms that failed, which each has told already: of the first that another machine would not mend."""
    arm, first = next(
        ((arm, error) for arm, error in failed.items() if not isinstance(error, UnfitMachine)),
        next(iter(failed.items())),
    )
    what = f"{arm}: {first.what}" if len(failed) == 1 else f"{len(failed)} of {of} arms failed; {arm}: {first.what}"
    return EngcmpError(what, where=first.where, remedy=first.remedy)


def closing_text(study: Study, store: Store) -> str:
    """The summary table and where to look next. Raises EngcmpError where the study was not published."""
    name = study.protocol.study
    sha256 = store.head(name, None, "publication")
    if sha256 is None:
        raise EngcmpError(f"study {name} has no publication", where=str(store.home), remedy=f"`engcmp run {name}`")
    receipt = store.read_receipt(sha256)
    summary = _json(store, receipt, "SUMMARY.json")
    figure = next((f["figure_id"] for arm in summary["arms"] for f in arm["figures"]), "FIGURE")
    pages = store.home / "views" / name / STUDY_WIDE / "publication"
    return "\n".join(
        [
            render_table(summary),
            "Where to look next",
            f"  pages    {pages / 'SUMMARY.html'}",
            f"           {pages / 'SUMMARY.md'}",
            f"  site     {pages / 'site' / 'index.html'}",
            "  browser  make ui                (assets, lineage, plots, receipts)",
            f"  proof    .venv/bin/engcmp verify {name}",
            f"  lineage  .venv/bin/engcmp trace {figure}",
            f"  catalog  .venv/bin/engcmp catalog {name}",
        ]
    )


def run_job(
    definition: dg.Definitions,
    job: str,
    instance: dg.DagsterInstance,
    *,
    partition: str | None = None,
    config: Mapping[str, Any] | None = None,
    only: Sequence[dg.AssetKey] | None = None,
) -> tuple[int, int]:
    """Run a job, or `only` some of its assets, in this process; how many artifacts were answered from the store, and how many made.

    Raises EngcmpError where a step fails, in the words of the step.
    """
    try:
        result = definition.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key=partition, run_config=_QUIET_CONSOLE | dict(config or {}),
            asset_selection=only,
        )  # fmt: skip
    except dg.Failure as failure:
        raise _as_error(failure) from failure
    events = [event.materialization for event in result.get_asset_materialization_events()]
    flags = [event.metadata["answered_from_store"].value for event in events if "answered_from_store" in event.metadata]
    return sum(map(bool, flags)), len(flags) - sum(map(bool, flags))


def _as_error(failure: dg.Failure) -> EngcmpError:
    words = {name: str(value.value) for name, value in failure.metadata.items()}
    if "what" not in words:
        return EngcmpError(str(failure.description), remedy="look at the run in the UI (make ui)")
    kind = UnfitMachine if UNFIT in words else EngcmpError
    return kind(words["what"], where=words.get("where"), remedy=words.get("remedy"))


def _json(store: Store, receipt: dict[str, Any], name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(store.path(output_blob(receipt, name)).read_bytes())
    return document
