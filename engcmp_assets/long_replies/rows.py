"""From what came back to what is kept: a reply's row and its private text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.reply_plan import AskedReply
from engcmp_assets.kernel.reply_records import STOPPED_EARLY, ReplyRecord, ReplyText
from engcmp_assets.kernel.reply_streams import TOP, ReplyParts, end_log_prob, log_prob_document, read_parts, total
from engcmp_assets.kernel.reply_tables import ReplyPlan
from engcmp_assets.kernel.throughput.plans import Plan, PlanCell, PlanRequest
from engcmp_assets.kernel.throughput.requests import Received, RequestRecords, request_records
from engcmp_assets.kernel.throughput.stream_events import KINDS
from engcmp_resources.errors import EngcmpError

_REASONING, _ANSWER, _TOOL = (KINDS.index(name) for name in ("reasoning", "answer", "tool_call"))
# What single reads of a clock say, and what is meant for fixed lengths: of no use for a reply.
_NOT_OURS = ("first token's chunk not counted", "shorter than asked")
EMPTY, CONTROL = "empty", "control tokens in the text"
# How a conversation's failure begins, and the cause that is kept of it: the words after it may be the server's own.
_CAUSES = {
    "no answer within": "whole_deadline",
    "the connection failed": "reset",
    "an answer that is no": "not_a_completion",
}
TRACE_SAMPLING = {"logprobs": TOP, "return_tokens_as_token_ids": True}
"""What a trace's request says beside the study's sampling: log-probabilities by token id."""


def stage_plan(plan: ReplyPlan, asked: Sequence[AskedReply], *, model: str) -> Plan:
    """A stage's streamed requests as one cell. Traces ask for the log-probabilities beside each token, with ids in place of texts."""
    sampling: dict[str, Any] = plan.sampling.model_dump()
    if plan.chat and plan.chat.template and asked[0].messages is not None:
        sampling["chat_template_kwargs"] = plan.chat.template
    if asked[0].trace is not None:
        sampling |= TRACE_SAMPLING
    requests = tuple(
        PlanRequest(
            request_id=one.reply_id, messages=one.messages, token_ids=one.token_ids, max_tokens=one.cap_tokens, seed=one.seed,
            expected_prompt_tokens=one.prompt_tokens,
        )
        for one in asked
    )  # fmt: skip
    cell = PlanCell(cell_id=asked[0].stage, kind=asked[0].block, concurrency=asked[0].concurrency, requests=requests)
    return Plan(model=model, sampling=sampling, cells=(cell,))


def refuse_other_prompt(asked: AskedReply, request: PlanRequest) -> None:
    """Raise EngcmpError for a prompt that is not the frozen one: nothing is asked then."""
    if request.prompt_sha256 != asked.prompt_sha256:
        raise EngcmpError(
            f"prompt {asked.reply_id} is not the frozen one: it has another digest", where="replies.json",
            remedy="restore the frozen plan and prompt set; nothing was asked",
        )  # fmt: skip


def streamed(
    asked: AskedReply, plan: Plan, request: PlanRequest, received: Received, *, stopped_early: str | None, start: int
) -> tuple[ReplyRecord, ReplyText, ReplyParts]:
    """The row (without the text's hashes: see `kept`), the text and the parts of a reply that came as a stream.

    `stopped_early` names the detector by which the driver ended it.
    """
    found = request_records(plan, plan.cells[0], request, received)
    parts = read_parts(received.content())
    row = found.row
    flags = [flag for flag in row["flags"] if flag not in _NOT_OURS]
    status, cause, finish = row["status"], row["cause"], row["finish_reason"]
    if stopped_early is not None:
        status, cause, finish = "ok", None, STOPPED_EARLY
        flags = [flag for flag in flags if flag != "no finish reason"] + [f"stopped by {stopped_early}"]
    elif cause == "no_token" and finish is not None and received.end == "complete":
        status, cause = "ok", None  # it ended well and says nothing: an answer too
    said = bool(parts.reasoning or parts.answer)
    if status == "ok" and not said:
        flags.append(EMPTY)
    record = _record(asked, start, status=status, cause=cause, finish=finish, flags=flags) | {
        "prompt_tokens": row["usage_prompt_tokens"], "n_tokens": _tokens(row, cause), "ttft_ns": row["ttft_ns"],
        "started_at_ns": row["t0_ns"] or row["scheduled_at_ns"] or received.done_at_ns, "done_at_ns": received.done_at_ns,
        **_span_tokens(found, row),
        "reasoning_chars": len(parts.reasoning) if said or status == "ok" else None,
        "answer_chars": len(parts.answer) if said or status == "ok" else None,
    }  # fmt: skip
    text = ReplyText(asked.reply_id, parts.reasoning, parts.answer, parts.token_ids, asked.prompt_sha256)
    return ReplyRecord(**record), text, parts


def conversed(
    asked: AskedReply, talk: Mapping[str, Any], *, start: int, began_ns: int, ended_ns: int
) -> tuple[ReplyRecord, ReplyText]:
    """The row and the text of a conversation as `hold_talks` records it: counts are sums over its messages."""
    turns = talk["turns"]
    steps = [step for turn in turns for step in turn["steps"]]
    failure = next((turn["failure"] for turn in turns if turn["failure"] is not None), None)
    last = steps[-1] if steps else {}
    usages = [step["usage"] if isinstance(step["usage"], Mapping) else {} for step in steps]
    reasoning = "\n".join(step["reasoning"] for step in steps if step["reasoning"])
    answer = str(last.get("content") or "")
    status, cause = ("ok", None) if failure is None else ("incomplete" if steps else "failed", _cause(failure))
    record = _record(asked, start, status=status, cause=cause, finish=last.get("finish_reason"), flags=[]) | {
        "prompt_tokens": total([_count(one.get("prompt_tokens")) for one in usages]) if steps else None,
        "n_tokens": total([_count(one.get("completion_tokens")) for one in usages]) if steps else None,
        "started_at_ns": began_ns, "done_at_ns": ended_ns,
        "reasoning_chars": len(reasoning) if steps else None, "answer_chars": len(answer) if steps else None,
    }  # fmt: skip
    calls = tuple(dict(call) for call in last.get("tool_calls", ()))
    text = ReplyText(asked.reply_id, reasoning, answer, None, asked.prompt_sha256, calls, tuple(plain(list(turns))))
    return ReplyRecord(**record), text


def kept(record: ReplyRecord, text: ReplyText, private_sha256: str | None, *, control: bool) -> ReplyRecord:
    """The row with the hashes of its text; of a reply that brought none, without."""
    flags = (*record.flags, CONTROL) if control else record.flags
    if private_sha256 is None:
        return replace(record, flags=flags)
    return replace(
        record, text_sha256=text.text_sha256, token_ids_sha256=text.token_ids_sha256, private_sha256=private_sha256, flags=flags
    )  # fmt: skip


def trace_entry(asked: AskedReply, record: ReplyRecord, parts: ReplyParts) -> dict[str, Any]:
    """What a trace's reply says of the end of thinking: its log-probability, a bound, or why there is none."""
    if asked.trace is None:
        return {}
    if record.status == "failed":
        said: dict[str, Any] = {"missing": f"the engine did not continue the trace: {record.cause}"}
    else:
        said = log_prob_document(end_log_prob(parts.first, asked.trace.end_token))
    return asked.trace.model_dump(mode="json") | {"reply_id": asked.reply_id, "end": said}


def _record(
    asked: AskedReply, start: int, *, status: str, cause: str | None, finish: str | None, flags: Sequence[str]
) -> dict[str, Any]:
    named = ("reply_id", "block", "stage", "kind", "item", "repeat", "seed", "prompt_sha256", "cap_tokens")
    unknown = ("n_reasoning_tokens", "n_answer_tokens", "text_sha256", "token_ids_sha256", "private_sha256", "ttft_ns")
    own = {"status": status, "cause": cause, "finish_reason": finish, "start": start, "flags": tuple(flags)}
    return {name: getattr(asked, name) for name in named} | dict.fromkeys(unknown) | own


def _tokens(row: Mapping[str, Any], cause: str | None) -> int | None:
    """Tokens of a reply; none where nothing was counted and something may have been lost."""
    return row["n_tokens"] if row["n_tokens"] or cause is None else None


def _span_tokens(found: RequestRecords, row: Mapping[str, Any]) -> dict[str, int | None]:
    """Tokens of each span, where events tell theirs: where only text was counted they do not."""
    if row["counted_by"] not in ("ids", "usage"):
        return {}
    reasoning = int(found.tokens[found.kinds == _REASONING].sum())
    answer = int(found.tokens[(found.kinds == _ANSWER) | (found.kinds == _TOOL)].sum())
    return {"n_reasoning_tokens": reasoning, "n_answer_tokens": answer}


def _cause(failure: str) -> str:
    if failure.startswith("HTTP "):
        return f"http_{failure[5:8]}"
    return next((cause for begin, cause in _CAUSES.items() if failure.startswith(begin)), "failed")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
