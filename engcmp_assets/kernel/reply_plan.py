"""Which replies a study asks for, in what order, with which prompts, seeds and caps; and the index of them that is frozen.

The index (`replies_plan.json`) holds digests and no text. The whole plan, with prompts and what a right reply is, follows from the
protocol's table, the study's texts, this project's tasks and the model's tokenizer; it is laid out as `replies.json` of the prompt set.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field, ValidationError

from engcmp_assets.kernel.fields import Sha256, Strict
from engcmp_assets.kernel.fixed_traces import FrozenTrace, choose_positions
from engcmp_assets.kernel.reply_records import Block
from engcmp_assets.kernel.reply_tables import (
    Chat,
    CodeTasks,
    JsonTasks,
    MathTasks,
    NeedleTasks,
    ReplyPlan,
    ThinkingTasks,
    ToolTasks,
    TraceTasks,
)
from engcmp_assets.kernel.reply_tasks import RECORDS_SCHEMA, problems, records_prompt
from engcmp_assets.kernel.splitmix import outputs
from engcmp_assets.kernel.task_checks.code_tasks import CodeTask
from engcmp_assets.kernel.task_checks.needles import make_prompt
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS, SUITE, SYSTEM, VERSION
from engcmp_assets.kernel.tool_calling.scenarios import Scenario
from engcmp_resources.canonical import canonical_bytes, parse_json, sha256_bytes, sha256_of
from engcmp_resources.errors import EngcmpError, first_fault

SCHEMA, INDEX_SCHEMA = "engcmp.replies-asked/1", "engcmp.replies-plan/1"
_SEED_BITS = 31  # what every engine takes
_CONTROL = re.compile(r"<\|[^|>\s]{1,40}\|>|</?s>")
_TRACE_FIELDS = ("question", "begin", "thinking", "end")
_RESTORE = "restore the file, or freeze the study anew"


class TracePlace(Strict):
    """Where in a frozen trace a reply begins: after row `row`; `end_token` is what its first token is asked for."""

    trace_id: str
    row: int
    kind: str
    end_token: int
    label: str | None


class AskedReply(Strict):
    """One reply that is asked for. Exactly one of `messages` (a chat), `token_ids` (a completion) and `scenario` (a conversation) is there.

    `prompt_tokens` is what the engine must count, none where nothing predicts it. `expected` is what a right reply is, by its block:
    code {task}, json {records, at, schema}, math {answer}, needle {value, decoys, depth_tokens, depth}, tools {suite, version}.
    """

    reply_id: str
    block: Block
    stage: str
    kind: str
    item: str
    repeat: int
    seed: int
    cap_tokens: int
    concurrency: int
    prompt_sha256: Sha256
    prompt_tokens: int | None = None
    task_sha256: Sha256 | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    scenario: str | None = None
    expected: dict[str, Any] = Field(default_factory=dict)
    trace: TracePlace | None = None

    @property
    def index_entry(self) -> dict[str, Any]:
        """What is frozen of it: no text."""
        left_out = {"messages", "token_ids", "expected"}
        return self.model_dump(mode="json", exclude=left_out) | {"expected_sha256": sha256_of(self.expected)}


class Asked(Strict):
    """The whole plan of a study's replies, in the order in which they are asked for, stage by stage."""

    schema_: str = Field(alias="schema", pattern=f"^{SCHEMA}$")
    replies: tuple[AskedReply, ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages in order; each has one number of replies at a time."""
        return tuple(dict.fromkeys(one.stage for one in self.replies))

    def of_stage(self, stage: str) -> tuple[AskedReply, ...]:
        return tuple(one for one in self.replies if one.stage == stage)


class Vocabulary(Protocol):
    """The model's own tokenizer: special tokens in a text are read as such, nothing is added."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class _Item:
    """What is asked, before it has a name, a seed and a repeat."""

    item: str
    kind: str
    content: Mapping[str, Any]
    prompt_tokens: int | None = None
    task_sha256: str | None = None
    expected: Mapping[str, Any] | None = None
    trace: TracePlace | None = None


class _Prompts:
    """The study's texts and the tokenizer, as far as prompts need them."""

    def __init__(self, plan: ReplyPlan, files: Mapping[str, bytes], vocabulary: Vocabulary) -> None:
        self.plan, self._files, self.vocabulary = plan, files, vocabulary

    def of_kind(self, kind: str) -> list[_Item]:
        """The prompts of a content kind, in the order of their names."""
        begin = f"{self.plan.prompts}/{kind}-"
        names = sorted(name for name in self._files if name.startswith(begin) and name.endswith(".txt"))
        if not names:
            raise EngcmpError(
                f"no prompt is of the kind {kind!r}", where=f"protocol field long_replies.kinds, {begin}*.txt",
                remedy=f"write {begin}1.txt, or leave the kind out",
            )  # fmt: skip
        return [
            self.chat(name.removeprefix(f"{self.plan.prompts}/").removesuffix(".txt"), kind, self.text(name))
            for name in names
        ]

    def chat(self, item: str, kind: str, text: str, **known: Any) -> _Item:
        """A chat of one message. Raises EngcmpError for a text that names control tokens: engines read those differently."""
        if found := _CONTROL.search(text):
            raise EngcmpError(
                f"prompt {item} holds {found[0]!r}, which reads as a control token",
                remedy="write it in other words: some engines parse it, others do not",
            )
        tokens = len(self.vocabulary.encode(self.rendered(text))) if self.plan.chat else None
        return _Item(item, kind, {"messages": [{"role": "user", "content": text}]}, tokens, **known)

    def rendered(self, text: str) -> str:
        chat = self.plan.chat or Chat(before="", after="")
        return f"{chat.before}{text}{chat.after}"

    def text(self, name: str) -> str:
        """A text file of the study, without the line end that closes it. Raises EngcmpError where it is missing or no UTF-8."""
        try:
            return self._files[name].decode("utf-8").removesuffix("\n")
        except KeyError as error:
            raise EngcmpError(f"{name} is missing", where="the study's folder", remedy="write it") from error
        except UnicodeDecodeError as error:
            raise EngcmpError(f"{name} is not UTF-8", where="the study's folder", remedy="save it as UTF-8") from error


def asked_replies(
    plan: ReplyPlan, files: Mapping[str, bytes], vocabulary: Vocabulary, code_tasks: Sequence[CodeTask]
) -> Asked:
    """The whole plan. `files` are the study's, by their path in its folder; `code_tasks` those of this project.

    Raises EngcmpError, naming it, for a kind without prompts, a task, scenario or trace that there is not, and a length no prompt can have.
    """
    prompts = _Prompts(plan, files, vocabulary)
    seeds = _seeds(plan.seed)
    planned = [
        AskedReply(
            reply_id=f"{stage}/{one.item}/{repeat}",
            block=block,
            stage=stage,
            kind=one.kind,
            item=one.item,
            repeat=repeat,
            seed=next(seeds),
            cap_tokens=cap,
            concurrency=width,
            prompt_sha256=sha256_of(_hashed(**one.content, task_sha256=one.task_sha256)),
            prompt_tokens=one.prompt_tokens,
            task_sha256=one.task_sha256,
            expected=dict(one.expected or {}),
            trace=one.trace,
            **one.content,
        )
        for block, stage, cap, width, one, repeat in _all(prompts, code_tasks)
    ]
    long = [one for one in planned if one.block == "long"]
    replies = [*long, *_made_again(plan, long), *planned[len(long) :]]
    return Asked.model_validate({"schema": SCHEMA, "replies": replies})


def again_of(stage: str) -> str:
    """The stage in which some replies of a stage are made a second time."""
    return f"again-{stage}"


def _made_again(plan: ReplyPlan, long: Sequence[AskedReply]) -> Iterator[AskedReply]:
    """The same prompts under the same seeds and caps once more, in another launch: the first of each kind, as many as are declared."""
    wanted: dict[str, int] = {stage.stage: stage.again for stage in plan.stages}
    made: Counter[tuple[str, str]] = Counter()
    for one in long:
        made[one.stage, one.kind] += 1
        if made[one.stage, one.kind] <= wanted[one.stage]:
            name = {"reply_id": again_of(one.reply_id), "stage": again_of(one.stage)}
            yield one.model_copy(update={**name, "block": "again"})


def index_bytes(asked: Asked) -> bytes:
    """The index as it is frozen."""
    return canonical_bytes({"schema": INDEX_SCHEMA, "replies": [one.index_entry for one in asked.replies]})


def asked_bytes(asked: Asked) -> bytes:
    """The whole plan as `replies.json` of the prompt set."""
    return canonical_bytes(asked.model_dump(mode="json", by_alias=True))


def parse_asked(data: bytes, *, where: str) -> Asked:
    """The whole plan again. Raises EngcmpError naming the field that is missing or of another type."""
    try:
        asked = Asked.model_validate(parse_json(data, what="plan of replies", where=where, remedy=_RESTORE))
    except ValidationError as error:
        place, words = first_fault(error.errors())
        field = ".".join(map(str, place))
        raise EngcmpError(f"plan of replies: {field}: {words}", where=where, remedy=_RESTORE) from error
    for one in asked.replies:
        hashed = _hashed(one.messages, one.token_ids, one.scenario, one.task_sha256)
        if sha256_of(hashed) != one.prompt_sha256:
            raise EngcmpError(
                f"prompt {one.reply_id} is not the frozen one: it has another digest", where=where, remedy=_RESTORE
            )
    return asked


def _hashed(
    messages: Sequence[Mapping[str, Any]] | None = None,
    token_ids: Sequence[int] | None = None,
    scenario: str | None = None,
    task_sha256: str | None = None,
) -> dict[str, Any]:
    """What the digest of a prompt is of: the prompt as it stands in a request, or the conversation's name and digest."""
    if scenario is not None:
        return {"scenario": scenario, "task_sha256": task_sha256}
    return {"messages": list(messages)} if messages is not None else {"prompt": list(token_ids or ())}


_Planned = tuple[Block, str, int, int, _Item, int]


def _all(prompts: _Prompts, code_tasks: Sequence[CodeTask]) -> Iterator[_Planned]:
    """Block, stage, cap, replies at a time, item and repeat of each reply, in order."""
    plan, tasks = prompts.plan, prompts.plan.tasks
    for stage in plan.stages:
        count = plan.replies_of(stage)
        for kind in plan.kinds if count else ():
            items = prompts.of_kind(kind)
            for number in range(count):
                item = items[number % len(items)]
                yield "long", stage.stage, stage.cap_tokens, plan.concurrency, item, number // len(items) + 1
    checks: tuple[tuple[Block, Any, Iterable[_Item]], ...] = (
        ("code", tasks.code, _code(prompts, tasks.code, code_tasks) if tasks.code else ()),
        ("json", tasks.json_, _json(prompts, tasks.json_) if tasks.json_ else ()),
        ("math", tasks.math, _math(prompts, tasks.math) if tasks.math else ()),
        ("needle", tasks.needles, _needles(prompts, tasks.needles) if tasks.needles else ()),
        ("thinking", tasks.thinking, _thinking(prompts, tasks.thinking) if tasks.thinking else ()),
        ("trace", tasks.fixed_traces, _traces(prompts, tasks.fixed_traces) if tasks.fixed_traces else ()),
    )
    for block, check, wanted in checks:
        for item in wanted:
            for repeat in range(1, check.repeats + 1):
                yield block, block, check.cap_tokens, plan.concurrency, item, repeat
    if tasks.tools:
        for width in tasks.tools.concurrency:
            for item in _tools(tasks.tools):
                for repeat in range(1, tasks.tools.repeats + 1):
                    yield "tools", f"tools-c{width}", tasks.tools.cap_tokens, width, item, repeat


def _code(prompts: _Prompts, check: CodeTasks, known: Sequence[CodeTask]) -> Iterator[_Item]:
    for task in _named(known, [one.name for one in known], check.tasks, "long_replies.tasks.code.tasks"):
        yield prompts.chat(task.name, "code", task.prompt, task_sha256=task.sha256, expected={"task": task.name})


def _json(prompts: _Prompts, check: JsonTasks) -> Iterator[_Item]:
    for records in check.records:
        wanted = {"records": records, "at": "", "schema": RECORDS_SCHEMA}
        yield prompts.chat(
            f"records-{records}", "json", records_prompt(records), task_sha256=sha256_of(wanted), expected=wanted
        )


def _math(prompts: _Prompts, check: MathTasks) -> Iterator[_Item]:
    for number, problem in enumerate(problems(check.problems, prompts.plan.seed), start=1):
        wanted = {"answer": str(problem.answer)}
        yield prompts.chat(
            f"problem-{number}", "reasoning", problem.text, task_sha256=sha256_of(wanted), expected=wanted
        )


def _needles(prompts: _Prompts, check: NeedleTasks) -> Iterator[_Item]:
    for number, (length, depth) in enumerate((one, other) for one in check.lengths for other in check.depths):
        messages: dict[str, str] = {}

        def render(text: str, kept: dict[str, str] = messages) -> str:
            kept[prompts.rendered(text)] = text
            return prompts.rendered(text)

        made = make_prompt(
            encode=prompts.vocabulary.encode, render=render, tokens=length, depth=depth,
            seed=(prompts.plan.seed + 16 * number) % 2**63, decoys=check.decoys,
        )  # fmt: skip
        wanted = {"value": made.value, "decoys": list(made.decoys), "depth": depth, "depth_tokens": made.depth_tokens}
        item = f"needle-{length}-{round(100 * depth)}"
        found = prompts.chat(item, "prose", messages[made.text], task_sha256=sha256_of(wanted), expected=wanted)
        if found.prompt_tokens != length:
            raise EngcmpError(f"{item} has {found.prompt_tokens} tokens", remedy="report this fault")
        yield found


def _thinking(prompts: _Prompts, check: ThinkingTasks) -> Iterator[_Item]:
    for kind in check.kinds:
        yield from prompts.of_kind(kind)


def _tools(check: ToolTasks) -> Iterator[_Item]:
    ids = [one.scenario_id for one in SCENARIOS]
    for scenario in _named(SCENARIOS, ids, check.scenarios, "long_replies.tasks.tools.scenarios"):
        wanted = {"suite": SUITE, "version": VERSION}
        yield _Item(
            scenario.scenario_id, "prose", {"scenario": scenario.scenario_id}, None, scenario_sha256(scenario), wanted
        )


def scenario_sha256(scenario: Scenario) -> str:
    """Digest of what a conversation's model is given: system text, tools and what the user says."""
    return sha256_of(
        [SUITE, VERSION, SYSTEM, [tool.as_json() for tool in scenario.tools], [turn.user for turn in scenario.turns]]
    )


def _traces(prompts: _Prompts, check: TraceTasks) -> Iterator[_Item]:
    for name in check.traces:
        file = f"{prompts.plan.prompts}/traces/{name}.toml"
        trace = _frozen_trace(prompts, name, file)
        pieces = [prompts.vocabulary.decode([token]) for token in trace.tokens]
        places = choose_positions(
            trace, pieces, sentence_ends_kept=check.sentence_ends, random_kept=check.random, seed=prompts.plan.seed
        )
        for place in places:
            ids = list(trace.tokens[: place.row + 1])
            at = TracePlace(trace_id=name, row=place.row, kind=place.kind, end_token=trace.end_token, label=trace.label)
            yield _Item(
                f"{name}@{place.row}",
                "reasoning",
                {"token_ids": ids},
                len(ids),
                sha256_of(list(trace.tokens)),
                None,
                at,
            )


def _frozen_trace(prompts: _Prompts, name: str, file: str) -> FrozenTrace:
    """A trace of its file: the question's prompt, where the thinking begins, the thinking, and the marker that ends it."""
    try:
        raw = tomllib.loads(prompts.text(file))
        question, begin, thinking, end = (str(raw.pop(field)) for field in _TRACE_FIELDS)
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise EngcmpError(
            f"trace {name}: {error}", where=file, remedy=f"write {', '.join(_TRACE_FIELDS)}, all text"
        ) from error
    if raw:
        raise EngcmpError(f"trace {name}: unknown field {min(raw)}", where=file, remedy="leave it out")
    encode = prompts.vocabulary.encode
    before, inside, marker = encode(prompts.rendered(question) + begin), encode(thinking), encode(end)
    return FrozenTrace(name, (*before, *inside, *marker), len(before), len(before) + len(inside))


def _named(known: Sequence[Any], names: Sequence[str], wanted: Sequence[str], field: str) -> list[Any]:
    """Those of `known` that are wanted, in the order wanted; all where none is named."""
    by_name = dict(zip(names, known, strict=True))
    for name in wanted:
        if name not in by_name:
            raise EngcmpError(
                f"protocol field {field} names {name!r}, which there is not", remedy=f"they are {', '.join(names)}"
            )
    return [by_name[name] for name in wanted or names]


def _seeds(seed: int) -> Iterator[int]:
    """Seeds of single replies: no two are equal."""
    taken: set[int] = set()
    first, count = 0, 256
    while True:
        for drawn in map(int, outputs(seed, first, count)):
            one = drawn >> (64 - _SEED_BITS)
            if one not in taken:
                taken.add(one)
                yield one
        first += count


def plan_sha256(asked: Asked) -> str:
    """Digest of the frozen index."""
    return sha256_bytes(index_bytes(asked))
