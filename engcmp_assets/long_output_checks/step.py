"""long_output_checks: every reply of an arm judged, from its private text; what is kept of it holds no text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

import polars as pl

from engcmp_assets.kernel.names import REPLIES, REPLIES_PLAN, REPLY_CHECKS
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.progress import Progress
from engcmp_assets.kernel.records import ArmKey, Check, Missing
from engcmp_assets.kernel.replies.loops import ReplyVerdict
from engcmp_assets.kernel.replies.spans import Thresholds
from engcmp_assets.kernel.reply_measures import REPLY_IDS
from engcmp_assets.kernel.reply_plan import Asked, AskedReply, parse_asked
from engcmp_assets.kernel.reply_records import ReplyRecord, ReplyText
from engcmp_assets.kernel.reply_verdicts import ENDINGS, VERDICT_COLUMNS, Verdict, verdict_table
from engcmp_assets.kernel.source_outputs import reply_tokenizer_output
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.task_checks.code_tasks import CodeTask, load_code_tasks
from engcmp_assets.kernel.task_checks.code_verdicts import NO_SANDBOX, Run
from engcmp_assets.kernel.task_checks.json_schemas import Schema
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS, SUITE, VERSION
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.long_output_checks.figures import Judged, checks_document, groups_of, reply_figures
from engcmp_assets.long_output_checks.fitness import PASSED, fit_checks
from engcmp_assets.long_output_checks.judging import ReplyJudge, Said
from engcmp_assets.long_output_checks.rows import content_kind, failed_row, reason_of, verdict_row
from engcmp_assets.long_output_checks.tasks import Grader, JsonTask, NeedleTask, Task, check_of
from engcmp_assets.long_replies.step import REPLIES_FILE
from engcmp_resources import private_store
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.host import usable_cores
from engcmp_resources.places import named_folder
from engcmp_resources.reply_files import ReplyTokenizer
from engcmp_resources.sandbox.finding import find_sandbox
from engcmp_resources.sandbox.records import Limits, NoSandboxError
from engcmp_resources.threads import in_order

CHECKS_VERSION = "1"
VERDICTS_FILE, CHECKS_FILE = "verdicts.parquet", "checks.json"
_CODE_TASKS = "protocol/_tasks/code"
_CUT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_ARM_MEASURES = REPLY_IDS - {"reply_identical", "length_ratio", "thinking_ratio"}
_REPAIR = "use the version of engcmp that the study was frozen with, or freeze it anew"


@dataclass(frozen=True, slots=True)
class Fitness:
    """Which checks may grade at this build: `told` is each one's self-test, `unfit` why one may not; `sandbox` is for the receipt."""

    told: Mapping[str, Any]
    unfit: Mapping[str, Missing]
    run: Run | None
    sandbox: Mapping[str, Any]


def parameters(study: Study, arm: ArmKey | None) -> Mapping[str, Any]:
    """How replies are judged. Study and arm are part of it: figures carry their names."""
    return {
        "study": study.protocol.study, "arm": str(arm), "thresholds": asdict(Thresholds()),
        "statistics": study.protocol.statistics.model_dump(), "suite": [SUITE, VERSION],
    }  # fmt: skip


def records_of(work: Work) -> list[ReplyRecord]:
    """The arm's replies as they were measured, in their order."""
    table = pl.read_parquet(work.file(REPLIES, REPLIES_FILE))
    return [ReplyRecord.from_json(row) for row in table.iter_rows(named=True)]


def tasks_of(asked: Asked) -> dict[str, Task]:
    """What a right reply is, by the name of the reply. Raises EngcmpError for a task that was changed since the freeze."""
    code = {one.name: one for one in load_code_tasks(named_folder(_CODE_TASKS))}
    made = {one.reply_id: _task(one, code) for one in asked.replies}
    return {name: task for name, task in made.items() if task is not None}


def _task(asked: AskedReply, code: Mapping[str, CodeTask]) -> Task | None:
    wanted = asked.expected
    if asked.block == "code":
        task = code.get(wanted["task"])
        if task is None or task.sha256 != asked.task_sha256:
            raise _changed(f"code task {wanted['task']}")
        return task
    if asked.block == "json":
        return JsonTask(Schema(wanted["schema"]), wanted["records"], wanted["at"])
    if asked.block == "math":
        return Fraction(wanted["answer"])
    if asked.block == "needle":
        return NeedleTask(wanted["value"], tuple(wanted["decoys"]))
    if asked.block == "tools":
        if (wanted["suite"], wanted["version"]) != (SUITE, VERSION):
            raise _changed(f"the scenarios of {wanted['suite']} {wanted['version']}")
        return next(one for one in SCENARIOS if one.scenario_id == asked.scenario)
    return None


def _changed(what: str) -> EngcmpError:
    return EngcmpError(f"{what}: changed since the study was frozen", where=REPLIES_PLAN, remedy=_REPAIR)


def _tasks(work: Work) -> dict[str, Task]:
    place = work.file("prompt_set", REPLIES_PLAN)
    return tasks_of(parse_asked(place.read_bytes(), where=str(place)))


def make(work: Work) -> Made:
    """Judge every reply, run every check that may grade, and count."""
    records, tasks = records_of(work), _tasks(work)
    fitness = fitness_of(work, tasks)
    judged = list(_judged(work, records, tasks, fitness))
    return checks_made(work, judged, fitness)


def make_again(work: Work, stored: Sequence[Verdict], told: Mapping[str, Any]) -> Made:
    """As `make`, for an auditor: what this place cannot judge keeps its `stored` verdict, and the figures are made again from all.

    That is a reply whose private text is not here, and code where there is no sandbox; `told` are the self-tests as they were.
    """
    records, tasks = records_of(work), _tasks(work)
    fitness = fitness_of(work, tasks)
    home, unable = work.store.home, "code" in fitness.unfit and told.get("code") == PASSED
    absent = {
        one.reply_id
        for one in records
        if one.private_sha256 and private_store.verify(home, one.private_sha256) == "absent"
    }
    kept = {one.reply_id: one for one in stored if one.reply_id in absent or (unable and one.block == "code")}
    if absent:
        work.say(
            f"{private_store.NOT_HERE}: the verdicts on {len(absent)} replies are taken as they are, figures are made again from them"
        )
    if unable:
        work.say("there is no sandbox here: the verdicts on code are taken as they are")
    if "code" in told:
        unfit = {name: one for name, one in fitness.unfit.items() if name != "code"}
        unfit |= {} if told["code"] == PASSED else {"code": Missing(told["code"]["missing"])}
        fitness = replace(fitness, told={**fitness.told, "code": told["code"]}, unfit=unfit)
    return checks_made(work, list(_judged(work, records, tasks, fitness, kept)), fitness)


def fitness_of(work: Work, tasks: Mapping[str, Task]) -> Fitness:
    """The self-tests of the checks that the plan uses; a sandbox is looked for where there is code to run."""
    used = {check_of(task) for task in tasks.values()}
    run: Run | Missing = NO_SANDBOX
    facts: dict[str, Any] = {}
    if "code" in used:
        run, facts = _sandbox(work)
    code = {task.name: task for task in tasks.values() if isinstance(task, CodeTask)}
    told, unfit = fit_checks(used, list(code.values()), run)
    return Fitness(told, unfit, None if isinstance(run, Missing) else run, facts)


def checks_made(work: Work, verdicts: Sequence[Verdict], fitness: Fitness) -> Made:
    """The artifact that follows from the verdicts."""
    arm = _arm(work)
    judged = work.study.protocol.statistics
    figures = reply_figures(
        work.study.protocol.study, arm, verdicts, fitness.unfit, Judged(Preset(judged.replicates, judged.seed), judged.level)
    )  # fmt: skip
    document = checks_document(verdicts, figures, fitness.unfit, {"self_tests": dict(fitness.told)})
    table = parquet_bytes(VERDICT_COLUMNS, verdict_table(verdicts))
    told = sum(one.private_sha256 is not None for one in records_of(work))
    failed = [one.reply_id for one in verdicts if one.ending == "error"]
    return Made(
        products=[
            Product(VERDICTS_FILE, "parquet", table, rows=len(verdicts), columns=VERDICT_COLUMNS),
            Product(CHECKS_FILE, "json", canonical_bytes(document), rows=len(document["groups"])),
            Product("plot.png", "png", _plot(arm, verdicts), role="view"),
        ],
        figures=figures,
        checks=[
            Check(
                "self_tests_passed", not fitness.unfit,
                "; ".join(f"{name}: {one.reason}" for name, one in sorted(fitness.unfit.items()))
                or f"Each check that grades passed its own test in this build: {', '.join(sorted(fitness.told)) or 'none is used'}",
                {"checks": dict(fitness.told)},
            ),
            Check(
                "no_reply_failed", not failed,
                f"{len(failed)} of {len(verdicts)} replies broke off or failed, first {failed[0]}: they are counted apart"
                if failed else f"All {len(verdicts)} replies came to an end",
                {"replies": len(verdicts), "failed": len(failed)},
            ),
        ],
        details={
            "endings": {name: count for name in ENDINGS if (count := sum(one.ending == name for one in verdicts))},
            "sandbox": dict(fitness.sandbox), "private_texts": told,
        },
    )  # fmt: skip


def _judged(
    work: Work,
    records: Sequence[ReplyRecord],
    tasks: Mapping[str, Task],
    fitness: Fitness,
    kept: Mapping[str, Verdict] | None = None,
) -> Iterator[Verdict]:
    """Every reply in its order, those of `kept` as they are.

    Texts are judged several at a time; code is run by one, for its time is limited.
    """
    tokenizer = ReplyTokenizer.load(work.file("sources", reply_tokenizer_output(work.study.protocol, _arm(work))))
    judge, grader = ReplyJudge(tokenizer, Thresholds()), Grader(fitness.run, fitness.unfit)
    home = work.store.home

    def one(record: ReplyRecord) -> tuple[ReplyRecord, ReplyText | None, ReplyVerdict | None, int]:
        if record.private_sha256 is None or record.reply_id in (kept or {}):
            return record, None, None, 0
        text = ReplyText.from_json(private_store.read(home, record.private_sha256))
        refuse_other_tokenizer(tokenizer, text)
        spans = whole_characters(text.reasoning), whole_characters(text.answer)
        said = Said(record.reply_id, content_kind(record), *spans, reason_of(record)[0])
        return record, text, judge.verdict(said), len(judge.control_tokens(said))

    progress = Progress(work.say, "judging", "replies", len(records), time.monotonic_ns)
    for number, (record, text, found, control) in enumerate(in_order(records, one, usable_cores()), start=1):
        task = tasks.get(record.reply_id)
        if kept and record.reply_id in kept:
            yield kept[record.reply_id]
        elif text is None or found is None:
            yield failed_row(record, None if task is None else check_of(task))
        else:
            graded = None if task is None else grader.verdict(task, text.answer, found.finish, text.turns)
            yield verdict_row(record, text, found, control, graded)
        progress.update(number, record.reply_id)


def refuse_other_tokenizer(tokenizer: ReplyTokenizer, text: ReplyText) -> None:
    """Raise EngcmpError unless the engine's ids of a reply are, by this tokenizer, the reply's text.

    Control tokens stand in the ids and not in the text, so each span must lie in what the ids say. Nothing is proved by a reply without
    ids, or whose bytes were cut within a character.
    """
    if text.token_ids is None or _CUT_CHARACTER in text.reasoning + text.answer:
        return
    try:
        told = tokenizer.decode(list(text.token_ids))
    except OverflowError:  # an id that no vocabulary holds
        told = ""
    for span in (text.reasoning, text.answer):
        if span.strip() not in told:
            raise EngcmpError(
                f"reply {text.reply_id}: the engine's {len(text.token_ids):,} token ids are another text by this tokenizer",
                where="sources, the tokenizer of the checkpoint", remedy="name the checkpoint whose tokenizer the engine uses",
            )  # fmt: skip


def whole_characters(text: str) -> str:
    """The text with halves of surrogate pairs, which no tokenizer reads, as U+FFFD; halves that belong together are one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _sandbox(work: Work) -> tuple[Run | Missing, dict[str, Any]]:
    """A proved sandbox's way to run code, or why there is none: code is never run without one."""
    try:
        sandbox = find_sandbox([work.store.home, named_folder(".")])
    except (NoSandboxError, PermissionError) as error:  # a confined process, as that of an audit, may start none
        work.say(str(error))
        return NO_SANDBOX, {"missing": NO_SANDBOX.reason}
    limits = Limits()
    return (lambda program, inputs: sandbox.run(program, inputs, limits)), sandbox.facts() | {
        "limits": limits.as_json()
    }


def _arm(work: Work) -> ArmKey:
    if work.arm is None:
        raise EngcmpError("replies belong to an arm", remedy="choose a partition")
    return work.arm


def _plot(arm: ArmKey, verdicts: Sequence[Verdict]) -> bytes:
    """How the replies of each group ended, as bars."""
    lines = [
        (f"{group.population}: {name}", count, name)
        for group in groups_of(verdicts)
        for name in ENDINGS
        if (count := sum(one.ending == name for one in group.verdicts))
    ]
    labels, counts, groups = zip(*lines, strict=True) if lines else ((), (), ())
    return bars(
        f"{arm}: how replies ended", list(labels), [float(one) for one in counts], unit="replies", groups=list(groups)
    )


def step(study: Study) -> Step:
    """The step of a study that makes long replies."""
    return Step(
        artifact=REPLY_CHECKS,
        title="Long replies: checks",
        description=(
            "Every reply of the arm judged: how it ended, whether it went round in circles and from which token on, how long its "
            "reasoning and its answer are (a capped length is a lower bound), and whether it is right: code by tests in a sandbox, JSON, "
            "numbers, needles, tool calls. A reply that was cut is never wrong. A check that fails its own test grades nothing."
        ),
        group="analysis",
        kinds=("polars", "parquet"),
        version=CHECKS_VERSION,
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("sources", "arm", lambda study, arm: (reply_tokenizer_output(study.protocol, arm),)),
            Use("prompt_set", "arm", (REPLIES_PLAN,)),
            Use(REPLIES, "arm", (REPLIES_FILE,)),
        ),
        per_arm=True,
        parameters=parameters,
        make=make,
        measures=tuple(sorted(_ARM_MEASURES)),
        columns=VERDICT_COLUMNS,
        checks={
            "self_tests_passed": "Every check that the plan uses passed its self-test in this build, the code check in a proved sandbox",
            "no_reply_failed": "Every reply came to an end; one that broke off is a row of its own and counts nowhere as wrong",
        },
    )
