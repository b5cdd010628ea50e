"""The driver of long replies: one stage at a time within a start of the engine, with a look at its log and memory around each."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from engcmp_assets.kernel.names import REPLIES
from engcmp_assets.kernel.progress import Progress
from engcmp_assets.kernel.replies.loops import Detector, SpanJudge, early_stop
from engcmp_assets.kernel.replies.spans import Kind, Span, SpanName, Thresholds, as_tokens, vocabulary
from engcmp_assets.kernel.reply_plan import AskedReply
from engcmp_assets.kernel.reply_records import ReplyRecord, ReplyText
from engcmp_assets.kernel.reply_streams import read_parts
from engcmp_assets.kernel.reply_tables import EarlyStop
from engcmp_assets.kernel.source_outputs import one_tokenizer
from engcmp_assets.kernel.throughput.plans import CHAT, Plan, PlanRequest, Wishes, request_body, short_request
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS, SYSTEM
from engcmp_assets.kernel.tool_calling.world import World
from engcmp_assets.long_replies.journalled import Replies
from engcmp_assets.long_replies.rows import (
    TRACE_SAMPLING,
    conversed,
    kept,
    refuse_other_prompt,
    stage_plan,
    streamed,
    trace_entry,
)
from engcmp_assets.long_replies.step import plan_of
from engcmp_assets.throughput_events.startup import memory_now
from engcmp_resources import private_store
from engcmp_resources.engines.servers import Endpoint
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.control import Control, EngineState, difference, granted
from engcmp_resources.load.streams import Address, Deadlines, Exchange, bearer_headers
from engcmp_resources.locks import host_lock
from engcmp_resources.reply_files import ReplyTokenizer
from engcmp_resources.reply_streams import ReplyWire, stream_replies
from engcmp_resources.tool_calling import ChatSettings, Talk, hold_talks

_LONGEST_WAIT_S = 12 * 3600.0
_IDLE_WAIT_S = 30.0
# A line by which an engine tells an error: a level of llama.cpp, vLLM, SGLang and CuteAFD, a traceback, or what kills a process.
_ERROR_LINE = re.compile(
    rb"^\S+ E |\b(?:ERROR|CRITICAL|FATAL)\b|Traceback \(most recent call last\)|CUDA error|[Oo]ut of memory|Segmentation fault",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Running:
    """A started engine as the driver needs it; `unchanged` raises where it is not the one that was started."""

    start: int
    endpoint: Endpoint
    facts: Mapping[str, Any]
    labels: Mapping[str, str]
    log: Path
    unchanged: Callable[[], None]


def run_stages(replies: Replies, running: Running, *, again: bool) -> None:
    """Make every reply that is missing, stage by stage: those of a second time (`again`), or all others.

    Raises EngcmpError where the engine ends: what was made before is kept.
    """
    tools = _Tools(replies)
    for stage in replies.asked.stages:
        asked = [one for one in replies.missing(again=again) if one.stage == stage]
        if not asked:
            continue
        replies.work.say(f"stage {stage}: {len(asked)} of {len(replies.asked.of_stage(stage))} replies to make")
        # No timed cell of another engine runs meanwhile.
        with host_lock(alone=False, who=replies.work.label, waiting=replies.work.say, timeout_s=_LONGEST_WAIT_S):
            _run_stage(replies, running, stage, asked, tools)


def _run_stage(replies: Replies, running: Running, stage: str, asked: Sequence[AskedReply], tools: _Tools) -> None:
    control = Control(Address.parse(running.endpoint.url), running.endpoint.key)
    running.unchanged()
    began = time.monotonic_ns()
    state, errors, memory = control.settled(_IDLE_WAIT_S), _error_lines(running.log), _memory(running)
    keeper = _Keeper(replies, running, asked, tools)
    if asked[0].scenario is not None:
        _talk(replies, running, asked, keeper)
    else:
        _stream(replies, running, control, asked, keeper)
    running.unchanged()
    after = control.settled(_IDLE_WAIT_S)
    replies.add_visit(
        {
            "stage": stage, "start": running.start, "replies": len(asked), "seconds": (time.monotonic_ns() - began) / 1e9,
            "log": {"new_error_lines": _error_lines(running.log) - errors},
            "memory": {"before": memory, "after": _memory(running)},
            "engine": _counters(state, after),
        }
    )  # fmt: skip


def _stream(replies: Replies, running: Running, control: Control, asked: Sequence[AskedReply], keeper: _Keeper) -> None:
    """The stage's replies as streams."""
    own = plan_of(replies.work.study)
    plan = stage_plan(own, asked, model=running.endpoint.model)
    requests = plan.cells[0].requests
    for one, request in zip(asked, requests, strict=True):
        refuse_other_prompt(one, request)
    wishes = _wishes(plan, control)
    address = Address.parse(running.endpoint.url)
    wires = [
        ReplyWire(one.request_id, address.content(one.path, request_body(plan, one, wishes), running.endpoint.key))
        for one in requests
    ]
    watch = (
        _Watch(own.early_stop, asked, keeper.tools) if own.early_stop and asked[0].block in ("long", "again") else None
    )
    by_id = {one.reply_id: (one, request) for one, request in zip(asked, requests, strict=True)}

    def ended(exchange: Exchange, stopped: bool) -> None:
        one, request = by_id[exchange.request_id]
        keeper.stream(one, plan, request, exchange, watch.detector(one.reply_id) if watch and stopped else None)

    stream_replies(
        address, wires, concurrency=asked[0].concurrency,
        deadlines=Deadlines(
            first_byte_s=own.reply_deadline_s, between_s=own.reply_deadline_s, whole_s=own.reply_deadline_s
        ),
        look=watch.look if watch else None, look_bytes=own.early_stop.characters if own.early_stop else 1, ended=ended,
    )  # fmt: skip


def _talk(replies: Replies, running: Running, asked: Sequence[AskedReply], keeper: _Keeper) -> None:
    """The stage's conversations, so many at a time; each is kept when it has ended."""
    own, check = plan_of(replies.work.study), plan_of(replies.work.study).tasks.tools
    if check is None:
        raise EngcmpError("conversations without their table", remedy="report this fault")
    extra = {name: value for name, value in own.sampling.model_dump().items() if name != "temperature"}
    extra |= {"chat_template_kwargs": own.chat.template} if own.chat and own.chat.template else {}
    scenarios = {one.scenario_id: one for one in SCENARIOS}
    failed = threading.Event()

    def one(item: AskedReply) -> None:
        if failed.is_set():
            return
        scenario = scenarios[str(item.scenario)]
        said = [turn.user for turn in scenario.turns]
        talk = Talk(item.reply_id, SYSTEM, [tool.as_json() for tool in scenario.tools], said, World(scenario).respond)
        settings = ChatSettings(
            item.seed, own.sampling.temperature, item.cap_tokens, check.max_steps, check.timeout_s, extra
        )
        began = time.monotonic_ns()
        held = hold_talks(
            running.endpoint.url, running.endpoint.model, [talk], settings, concurrency=1, headers=bearer_headers(running.endpoint.key)
        )[item.reply_id]  # fmt: skip
        try:
            keeper.talk(item, held, began_ns=began, ended_ns=time.monotonic_ns())
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(asked[0].concurrency) as pool:
        for _ in pool.map(one, asked):
            pass


class _Keeper:
    """Keeps each reply as it ends: the text in the private store, then its row in the journal. May be called from several threads."""

    def __init__(self, replies: Replies, running: Running, asked: Sequence[AskedReply], tools: _Tools) -> None:
        self._replies, self._running, self.tools = replies, running, tools
        self._lock, self._done = threading.Lock(), 0
        stage, work = asked[0].stage, replies.work
        total = len(replies.asked.of_stage(stage))
        self._already = total - len(asked)
        self._progress = Progress(
            work.session.say,
            f"[{work.arm}] {REPLIES}, stage {stage}",
            "replies",
            total,
            time.monotonic_ns,
            self._already,
        )

    def stream(
        self, asked: AskedReply, plan: Plan, request: PlanRequest, exchange: Exchange, stopped_early: Detector | None
    ) -> None:
        record, text, parts = streamed(
            asked, plan, request, exchange, stopped_early=stopped_early, start=self._running.start
        )
        self._keep(asked, record, text, trace_entry(asked, record, parts))

    def talk(self, asked: AskedReply, held: Mapping[str, Any], *, began_ns: int, ended_ns: int) -> None:
        record, text = conversed(asked, held, start=self._running.start, began_ns=began_ns, ended_ns=ended_ns)
        self._keep(asked, record, text, {})

    def _keep(self, asked: AskedReply, record: ReplyRecord, text: ReplyText, trace: Mapping[str, Any]) -> None:
        # An engine that has ended or was started anew fails here, so that nothing of its running replies is kept.
        self._running.unchanged()
        work = self._replies.work
        private = None
        if record.status != "failed" or text.reasoning or text.answer or text.turns:
            private = private_store.write(work.store.home, text.as_json())
        control = bool(self.tools.tokenizer().control_tokens(text.reasoning + text.answer))
        with self._lock:
            self._replies.add_reply(kept(record, text, private, control=control), trace)
            self._done += 1
            how = record.finish_reason if record.status == "ok" else record.cause
            self._progress.update(self._already + self._done, f"{asked.reply_id} ended: {how}")


class _Tools:
    """The model's own tokenizer, loaded when it is first needed."""

    def __init__(self, replies: Replies) -> None:
        self._replies, self._lock = replies, threading.Lock()
        self._tokenizer: ReplyTokenizer | None = None
        self._judge: SpanJudge | None = None

    def tokenizer(self) -> ReplyTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = ReplyTokenizer.load(self._weights())
            return self._tokenizer

    def judge(self) -> SpanJudge:
        tokenizer = self.tokenizer()
        with self._lock:
            if self._judge is None:
                self._judge = SpanJudge(vocabulary(tokenizer.token_texts()), Thresholds())
            return self._judge

    def _weights(self) -> Path:
        work = self._replies.work
        return work.file("sources", one_tokenizer(work.study.protocol))


class _Watch:
    """The declared rule: looks at each running reply and says whether it goes round in circles."""

    def __init__(self, rule: EarlyStop, asked: Sequence[AskedReply], tools: _Tools) -> None:
        self._limits = replace(Thresholds(), early_stop_verdicts=rule.verdicts, early_stop_chars=rule.characters)
        self._tools = tools
        self._kinds = {one.reply_id: cast(Kind, one.kind) for one in asked}
        self._verdicts: dict[tuple[str, SpanName], list[tuple[int, Detector | None]]] = {}
        self._stopped: dict[str, Detector] = {}

    def detector(self, reply_id: str) -> Detector | None:
        """The detector by which a reply was ended."""
        return self._stopped.get(reply_id)

    def look(self, reply_id: str, body: bytes) -> bool:
        """Judge the span that is being written, once it has grown by the declared number of characters."""
        parts = read_parts(body)
        name: SpanName = "answer" if parts.answer else "reasoning"
        text = parts.answer or parts.reasoning
        told = self._verdicts.setdefault((reply_id, name), [])
        if len(text) - (told[-1][0] if told else 0) < self._limits.early_stop_chars:
            return False
        judge, tokenizer = self._tools.judge(), self._tools.tokenizer()
        ids = tokenizer.encode(text)
        span = Span(
            name, text, as_tokens(ids),
            token_at=lambda char: len(tokenizer.encode(text[:char])), char_at=lambda token: len(tokenizer.decode(ids[:token])),
        )  # fmt: skip
        loop = judge.loop_at_end(span, self._kinds[reply_id], judge.measure(span))
        told.append((len(text), loop.detector if loop else None))
        if loop is None or not early_stop(told, self._limits):
            return False
        self._stopped[reply_id] = loop.detector
        return True


def _wishes(plan: Plan, control: Control) -> Wishes:
    """What the server takes beside the request itself. One that takes no completion at all says so of each trace."""
    path = plan.cells[0].requests[0].path
    probe = short_request(path, 0, 1)
    sampling = {name: value for name, value in plan.sampling.items() if name not in TRACE_SAMPLING}
    plain = plan.model_copy(update={"sampling": sampling})

    def ask(wanted: Mapping[str, bool]) -> str | None:
        return control.refusal(path, request_body(plain, probe, Wishes(**wanted)))

    try:
        return Wishes(**granted(ask)[0])
    except EngcmpError:
        if path == CHAT:
            raise
        return Wishes(token_ids=False, usage=False, continuous=False, timings=False)


def _memory(running: Running) -> dict[str, Any]:
    return memory_now(running.labels, running.facts)


def _error_lines(log: Path) -> int:
    """Lines of the engine's log that tell an error. Its words are not kept: they may hold what was asked."""
    return sum(1 for _ in _matches(log))


def _matches(log: Path) -> Iterator[None]:
    if log.is_file():
        with log.open("rb") as file:
            for line in file:
                if _ERROR_LINE.search(line):
                    yield None


def _counters(before: EngineState, after: EngineState) -> dict[str, Any]:
    why = before.why or after.why
    return {"missing": why} if why is not None else difference(before, after)
