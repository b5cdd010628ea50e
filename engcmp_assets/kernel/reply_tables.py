"""The table `[long_replies]` of a protocol: stages of long replies with a cap each, and the task checks beside them (MEASURES section 7).

A study without it makes no long replies, and its freeze knows nothing of it. Prompts are texts of the study's folder, tasks of this
project, or drawn from the seed; each is frozen by its digest in `replies_plan.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from engcmp_assets.kernel.engine_tables import ProcessEngine, ServerEngine
from engcmp_assets.kernel.fields import Name, Strict
from engcmp_assets.kernel.throughput_tables import Sampling

REPLIES_PLAN_FILE = "replies_plan.json"
"""The frozen index of a study's replies, in its folder: the digest of every prompt and task."""
Stage = Literal["L1", "L2", "L3", "L3s"]
Kind = Literal["code", "json", "prose", "reasoning"]
ReplyTest = Literal["capped", "looped", "longer", "thinks_longer", "passed", "json_valid"]
"""An exact paired test of two arms' replies that a comparison may declare."""


def _once(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise ValueError("a value stands twice")
    return values


def _reasoning() -> list[Kind]:
    return ["reasoning"]


_Names = Annotated[list[Name], AfterValidator(_once)]
_Count = Annotated[int, Field(ge=1, lt=2**31)]
_Counts = Annotated[list[_Count], AfterValidator(_once)]
_Share = Annotated[float, Field(ge=0, le=1)]


class StagePlan(Strict):
    """A stage of long replies: `cap_tokens` of each, and how many of each content kind (none: as the table above says; 0: left empty).

    `again`: so many of each kind are made a second time under the same seed, in another launch: the floor of the identity of replies.
    """

    stage: Stage
    cap_tokens: _Count
    replies_per_kind: int | None = Field(default=None, ge=0)
    again: int = Field(default=0, ge=0, exclude=True)


class EarlyStop(Strict):
    """When the driver ends a reply: `verdicts` verbatim or soft ones in a row, each `characters` of its span after the one before."""

    verdicts: int = Field(default=3, ge=2)
    characters: int = Field(default=10_000, ge=1)


class Chat(Strict):
    """What the chat template puts before and after a user's only message, begin and system texts included; `template` goes into each
    chat request as `chat_template_kwargs`. With it the tokens of every prompt are predicted, and held against what the server counts.
    """

    before: str
    after: str
    template: dict[str, Any] = Field(default_factory=dict)


class _Tasks(Strict):
    """A check: `repeats` replies to each item, `cap_tokens` of each."""

    repeats: int = Field(default=1, ge=1)
    cap_tokens: _Count = 16_384


class CodeTasks(_Tasks):
    """Code tasks of this project, by name; none: all of them."""

    tasks: _Names = Field(default_factory=list)


class JsonTasks(_Tasks):
    """Lists of records: a task for each number of them."""

    records: _Counts = Field(default_factory=lambda: [10])


class MathTasks(_Tasks):
    """So many problems, drawn from the seed."""

    problems: int = Field(default=8, ge=1)


class NeedleTasks(_Tasks):
    """A prompt of exactly each length, in tokens of the whole prompt, with its needle at each depth (0 the begin, 1 the end)."""

    lengths: Annotated[_Counts, Field(min_length=1)]
    depths: Annotated[list[_Share], Field(min_length=1), AfterValidator(_once)] = Field(
        default_factory=lambda: [0.1, 0.5, 0.9]
    )
    decoys: int = Field(default=3, ge=0, lt=8)
    cap_tokens: _Count = 4096


class ToolTasks(_Tasks):
    """Built-in scenarios by id (none: all), each held at every number of conversations at a time. `cap_tokens` is of each message."""

    scenarios: _Names = Field(default_factory=list)
    concurrency: Annotated[_Counts, Field(min_length=1)] = Field(default_factory=lambda: [1])
    max_steps: int = Field(default=8, ge=1)
    timeout_s: float = Field(default=600.0, gt=0)


class ThinkingTasks(_Tasks):
    """Replies whose thinking is measured: to the prompts of these kinds, `repeats` to each."""

    kinds: Annotated[list[Kind], AfterValidator(_once)] = Field(default_factory=_reasoning)


class TraceTasks(_Tasks):
    """Frozen reasonings (`traces/NAME.toml` beside the prompts), each continued from up to so many sentence ends and other places."""

    traces: Annotated[_Names, Field(min_length=1)]
    sentence_ends: int = Field(default=8, ge=0)
    random: int = Field(default=8, ge=0)
    cap_tokens: _Count = 1


class TaskTables(Strict):
    """The checks that a study makes; one that is left out is not made."""

    code: CodeTasks | None = None
    json_: JsonTasks | None = Field(default=None, alias="json")
    math: MathTasks | None = None
    needles: NeedleTasks | None = None
    tools: ToolTasks | None = None
    thinking: ThinkingTasks | None = None
    fixed_traces: TraceTasks | None = None


class ReplyPlan(Strict):
    """`[long_replies]`, whole. Prompts of a kind are `PROMPTS/KIND-NUMBER.txt`; replies go round them, each with a seed of its own.

    `concurrency` is how many replies are made at a time, in every stage but that of the tools.
    """

    kinds: Annotated[list[Kind], Field(min_length=1), AfterValidator(_once)]
    replies_per_kind: int = Field(ge=0)
    seed: int = Field(ge=0, lt=2**63)
    concurrency: int = Field(ge=1, le=4096)
    sampling: Sampling
    stages: list[StagePlan]
    prompts: Name = "replies"
    chat: Chat | None = None
    early_stop: EarlyStop | None = None
    reply_deadline_s: float = Field(default=14_400.0, gt=0)
    tasks: TaskTables = Field(default_factory=TaskTables)

    @property
    def widest(self) -> int:
        """The most requests at a time."""
        found: int = max([self.concurrency, *(self.tasks.tools.concurrency if self.tasks.tools else ())])
        return found

    @property
    def caps(self) -> dict[str, int]:
        """The cap of each stage and check, by the field that sets it."""
        found = {f"stages.{one.stage}": one.cap_tokens for one in self.stages}
        return found | {f"tasks.{name}": check.cap_tokens for name, check in self.tasks if check is not None}

    def replies_of(self, stage: StagePlan) -> int:
        """Replies to each kind of a stage. L3s is named in the field and defined nowhere: it is empty unless its number is written."""
        if stage.replies_per_kind is not None:
            return stage.replies_per_kind
        return 0 if stage.stage == "L3s" else self.replies_per_kind


def reply_faults(
    plan: ReplyPlan, engines: Iterable[tuple[str, ProcessEngine | ServerEngine]]
) -> Iterator[tuple[str, str, str]]:
    """What cannot be measured as the table says: (field, what is wrong, remedy)."""
    names = [one.stage for one in plan.stages]
    if len(set(names)) != len(names):
        yield "long_replies.stages", "has a stage twice", "leave one of them out"
    for one in plan.stages:
        if one.again > plan.replies_of(one):
            yield (
                f"long_replies.stages.{one.stage}.again",
                f"is {one.again}, and the stage has {plan.replies_of(one)} replies of each kind",
                "lower it, or make more replies",
            )
    if plan.sampling.ignore_eos:
        yield "long_replies.sampling.ignore_eos", "is true, and a reply must end by itself", "write false"
    if plan.chat is None and (plan.tasks.needles or plan.tasks.fixed_traces):
        what = "needles" if plan.tasks.needles else "fixed_traces"
        yield (
            f"long_replies.tasks.{what}",
            "is of exact tokens, and nothing says what the template adds",
            "add [long_replies.chat]",
        )
    for name, engine in engines:
        if not isinstance(engine, ProcessEngine):
            continue
        for field, cap in plan.caps.items():
            if cap >= engine.context_tokens:
                yield (
                    f"long_replies.{field}",
                    f"caps at {cap} tokens, and the context of engine {name} is {engine.context_tokens}",
                    f"lower the cap, or raise engines.{name}.context_tokens",
                )
        needles = plan.tasks.needles
        if needles and max(needles.lengths) + needles.cap_tokens > engine.context_tokens:
            yield (
                "long_replies.tasks.needles.lengths",
                f"has {max(needles.lengths)}, with its reply over the context of engine {name}, {engine.context_tokens}",
                f"leave it out, or raise engines.{name}.context_tokens",
            )
