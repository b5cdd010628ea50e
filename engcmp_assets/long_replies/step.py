"""long_replies: one row for each reply of the plan, what was looked at around each stage, and what the frozen traces say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import REPLIES, REPLIES_PLAN, SERVING
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.reply_plan import Asked, scenario_sha256
from engcmp_assets.kernel.reply_records import REPLY_COLUMNS, STOPPED_EARLY, ReplyRecord, replies_table
from engcmp_assets.kernel.reply_tables import ReplyPlan
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput.event_tables import table_bytes
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

REPLIES_VERSION = "1"
AGAIN_VERSION = "2"  # of the replies that are made a second time: in a start of their own
STAGES_SCHEMA, TRACES_SCHEMA = "engcmp.reply-stages/1", "engcmp.traces/1"
REPLIES_FILE, STAGES_FILE, TRACES_FILE, STARTS_FILE = "replies.parquet", "stages.json", "traces.json", "starts.json"
OTHER_PROMPT = "prompt tokens differ"
PRIVATE = "private_sha256"
"""What of the receipt's details names the private texts: `gc` keeps those, `verify` looks for them."""


def plan_of(study: Study) -> ReplyPlan:
    """The study's block of long replies. Raises EngcmpError for a study without one."""
    if study.protocol.long_replies is None:
        raise EngcmpError(
            f"study {study.protocol.study} makes no long replies", remedy="add a table [long_replies] to its protocol"
        )
    return study.protocol.long_replies


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The plan as it is asked for. The study is part of it: no other study's measurement is this one's."""
    plan = plan_of(study)
    asked = {"study": study.protocol.study, "long_replies": plan.model_dump(mode="json", by_alias=True)}
    again = {"again_version": AGAIN_VERSION} if any(stage.again for stage in plan.stages) else {}
    return asked | again | {"replies_version": REPLIES_VERSION}


def refuse_other_scenarios(asked: Asked) -> None:
    """Raise EngcmpError for a conversation that this code would hold in other words than those that were frozen."""
    known = {one.scenario_id: scenario_sha256(one) for one in SCENARIOS}
    for one in asked.replies:
        if one.scenario is not None and known.get(one.scenario) != one.task_sha256:
            raise EngcmpError(
                f"scenario {one.scenario} is not the frozen one", where=REPLIES_PLAN,
                remedy="use the code of the freeze, or `engcmp amend` the study",
            )  # fmt: skip


def refuse_short_context(study: Study, asked: Asked, facts: Mapping[str, Any]) -> None:
    """Raise EngcmpError for a reply that does not fit into the context that the engine resolved."""
    context = facts.get("n_ctx")
    if not isinstance(context, int):
        return
    for one in asked.replies:
        if (one.prompt_tokens or 0) + one.cap_tokens > context:
            raise EngcmpError(
                f"study {study.protocol.study}: reply {one.reply_id} takes up to {(one.prompt_tokens or 0) + one.cap_tokens:,} tokens, the "
                f"engine has a context of {context:,}",
                remedy="lower its cap, or start the engine with a longer context; nothing was asked",
            )


def replies_made(
    asked: Asked,
    entries: Mapping[str, Mapping[str, Any]],
    visits: Sequence[Mapping[str, Any]],
    starts: Sequence[Mapping[str, Any]],
    *,
    disturbed: Sequence[str] = (),
) -> Made:
    """The artifact of all replies (each entry: its `row`, and what it says of a `trace`), in the order of the plan.

    `starts` are those of the engine that made them, `disturbed` what was seen of the GPUs in those that no launch lists.
    """
    records = [ReplyRecord.from_json(entries[one.reply_id]["row"]) for one in asked.replies if one.reply_id in entries]
    traces = [entries[one.reply_id]["trace"] for one in asked.replies if one.trace is not None]
    stages = [_stage(asked, stage, records, visits) for stage in asked.stages]
    errors = sum(stage["log"]["new_error_lines"] for stage in stages)
    failed = [one.reply_id for one in records if one.status != "ok"]
    wrong, other = _not_as_planned(asked, records), [one.reply_id for one in records if OTHER_PROMPT in one.flags]
    plot = bars(
        "How the replies of each stage ended",
        [f"{stage['stage']}: {how}" for stage in stages for how in stage["ends"]],
        [count for stage in stages for count in stage["ends"].values()],
        unit="replies",
        groups=[stage["stage"] for stage in stages for _ in stage["ends"]],
    )
    traces_document = {"schema": TRACES_SCHEMA, "traces": traces}
    return Made(
        products=[
            Product(REPLIES_FILE, "parquet", table_bytes(replies_table(records)), rows=len(records), columns=REPLY_COLUMNS),
            Product(STAGES_FILE, "json", canonical_bytes({"schema": STAGES_SCHEMA, "stages": stages})),
            Product(STARTS_FILE, "json", canonical_bytes(list(starts))),
            *([Product(TRACES_FILE, "json", canonical_bytes(traces_document), rows=len(traces))] if traces else []),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check(
                "plan_followed", not wrong,
                f"Each of {len(asked.replies)} planned replies was asked for once, with its frozen prompt, its seed and its cap"
                if not wrong else f"{len(wrong)} replies are not as planned, first {wrong[0]}",
                {"replies": len(records)},
            ),
            Check(
                "replies_came", not failed,
                f"{len(failed)} replies failed, first {failed[0]}; they are rows with their cause" if failed
                else "Every reply came whole, or was cut by its cap or the declared rule",
                {"failed": len(failed)},
            ),
            Check(
                "prompt_tokens_as_predicted", not other,
                f"The engine counts other prompt tokens than the tokenizer and the template give for {len(other)} replies, first {other[0]}"
                if other else "The engine counts as many prompt tokens as were predicted, wherever both are known",
                {"differing": len(other)},
            ),
            Check(
                "engine_log_quiet", not errors,
                f"The engine's log has {errors} lines of errors more" if errors else "The engine's log told of no error between stages",
                {"error_lines": errors},
            ),
        ],
        flags=[*(["a reply failed"] if failed else []), *disturbed],
        details={
            "stages": [{name: stage[name] for name in ("stage", "asked", "done", "failed", "stopped_early")} for stage in stages],
            PRIVATE: sorted({one.private_sha256 for one in records if one.private_sha256}),
        },
    )  # fmt: skip


def _stage(
    asked: Asked, stage: str, records: Iterable[ReplyRecord], visits: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A stage of stages.json: how its replies ended, and what was looked at around it by each run that came through it."""
    own = [one for one in records if one.stage == stage]
    looked = [visit for visit in visits if visit["stage"] == stage]
    ends = Counter(one.finish_reason or "no reason" if one.status == "ok" else one.status for one in own)
    return {
        "stage": stage,
        "asked": len(asked.of_stage(stage)),
        "done": sum(one.status == "ok" for one in own),
        "failed": sum(one.status != "ok" for one in own),
        "causes": dict(sorted(Counter(one.cause for one in own if one.cause is not None).items())),
        "stopped_early": sum(one.finish_reason == STOPPED_EARLY for one in own),
        "stopped_by": dict(sorted(Counter(flag for one in own for flag in one.flags if flag.startswith("stopped by")).items())),
        "ends": dict(sorted(ends.items())),
        "log": {"new_error_lines": sum(visit["log"]["new_error_lines"] for visit in looked)},
        "visits": [dict(visit) for visit in looked],
    }  # fmt: skip


def _not_as_planned(asked: Asked, records: Sequence[ReplyRecord]) -> list[str]:
    planned = {one.reply_id: (one.prompt_sha256, one.seed, one.cap_tokens) for one in asked.replies}
    found = {one.reply_id: (one.prompt_sha256, one.seed, one.cap_tokens) for one in records}
    return sorted(name for name in set(planned) | set(found) if planned.get(name) != found.get(name))


def _unreachable(_work: Work) -> Made:
    raise EngcmpError("long replies are made within an engine's life", remedy="call the serving session")


def step(study: Study) -> Step:
    """The step of a study that makes long replies."""
    plan = plan_of(study)
    stages = ", ".join(f"{one.stage} {one.cap_tokens:,}" for one in plan.stages if plan.replies_of(one))
    return Step(
        artifact=REPLIES,
        title="Long replies",
        description=(
            f"One row for each reply that the arm's engine wrote: long ones by stage and most tokens ({stages or 'none'}), and those to "
            "the tasks that are checked. When it came, how it ended, how long it is, and hashes of what it says. The texts themselves stay "
            "in the private store of the home that measured them. A reply that failed is a row with its cause."
        ),
        group="capture",
        kinds=("parquet",),
        version=REPLIES_VERSION,
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("prompt_set", "arm", (REPLIES_PLAN,)),
            Use(SERVING, "arm", ("spec.json",)),
        ),
        per_arm=True,
        parameters=parameters,
        make=_unreachable,
        columns=REPLY_COLUMNS,
        checks={
            "plan_followed": "Every planned reply was asked for once, with its frozen prompt, its seed and its cap",
            "replies_came": "No reply failed or broke off",
            "prompt_tokens_as_predicted": "The engine counts the prompt tokens that the tokenizer and the template give",
            "engine_log_quiet": "The engine's log told of no error between stages",
        },
    )
