"""One request's records: its line of requests.parquet and its lines of events.parquet, from what was received (MEASURES section 6)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.throughput.plans import Plan, PlanCell, PlanRequest
from engcmp_assets.kernel.throughput.stream_events import KINDS, StreamEvents, read_stream

_OK = 200
_REASONING, _ANSWER, _ROLE, _DONE = (KINDS.index(name) for name in ("reasoning", "answer", "role", "done"))
_SHOWN = 300
CAUSES = {
    "connection_refused": "nothing listens at the address",
    "not_connected": "no connection could be opened",
    "connect_deadline": "no connection was opened in time",
    "no_answer": "the connection was closed or reset before a byte of an answer",
    "first_byte_deadline": "no byte of an answer came in time",
    "stalled": "nothing more came for the time that is allowed between two reads",
    "whole_deadline": "the reply did not end in time",
    "bad_http": "what came is no HTTP",
    "http_STATUS": "the server refused with this status",
    "html": "a page of HTML came instead of a stream",
    "not_a_stream": "the answer holds no server-sent event",
    "error_event": "the stream told an error",
    "bad_event": "an event is no JSON, or has an unknown form",
    "no_token": "the stream brought no token",
    "reset": "the connection was reset in the middle of the body",
    "cut_in_body": "the connection was closed in the middle of the body",
    "cut_clean": "the body ended well, without [DONE] and without a finish reason",
    "no_done": "the body ended well and the reply had a finish reason, but [DONE] did not come",
}
FLAGS = {
    "approximate count": "text was counted, one token for each event; the server states no count",
    "first token's chunk not counted": "how many tokens the first event holds is not known",
    "impossible count": "more tokens came, or are stated, than were asked for",
    "counts differ": "the server states another number of tokens than came",
    "usage missing": "the server states no token counts",
    "prompt tokens differ": "the server counts other prompt tokens than the plan expects",
    "no finish reason": "the server does not say why the reply ended",
    "reasoning stated as 0": "reasoning came, and the server states that there is none",
    "shorter than asked": "the reply ended early although it was to go on to its end",
    "refused with 429 before": "the server was too busy at first, and the request was sent again",
    "sent again on a new connection": "the server had closed an idle connection",
    "connection did not end well after [DONE]": "the reply is whole, its connection broke after it",
    "first read held several token events": "the first tokens came together: the decode rate begins after them",
    "cached prompt tokens": "part of the prompt came from a cache, and was not computed in the time to the first token",
    "the client was the limit": "this client was late or had no time left: the times are not the server's alone",
    "the calibration of the client failed": "against a server that only sends, this client was late: see `client` in cells.json",
    "the engine was not idle before": "other requests ran or waited when the cell began",
    "the engine counted preemptions": "the engine put requests back for want of room",
    "the engine counted restarts": "the engine was started anew within the cell",
}
"""What each flag of a request or cell means, by how the flag begins."""
_NEVER_ANSWERED = {
    "refused": "connection_refused", "not_connected": "not_connected", "late_connect": "connect_deadline", "no_answer": "no_answer",
    "late_first_byte": "first_byte_deadline",
}  # fmt: skip
_BROKEN_OFF = {
    "cut": "cut_in_body", "reset": "reset", "late_between": "stalled", "late_whole": "whole_deadline", "bad_http": "bad_http",
}  # fmt: skip


def cause_words(cause: str) -> str:
    """What a cause of failure means, in words."""
    known = CAUSES.get(cause)
    return known or (CAUSES["http_STATUS"] if cause.startswith("http_") else "the cause that the server gave")


class Received(Protocol):
    """What the client keeps of one request: `engcmp_resources.load.streams.Exchange` explains each field."""

    request_id: str
    scheduled_at_ns: int
    t0_ns: int
    done_at_ns: int
    http_status: int | None
    content_type: str
    detail: str
    retries: int
    resent: bool
    read_ends: array[int]
    read_stamps: array[int]

    @property
    def end(self) -> str:
        """How the exchange ended."""

    def content(self) -> bytes | bytearray:
        """The body, without the transfer's framing."""


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """A request's row of requests.parquet, and its events: `t_ns` int64 [n], `kinds` uint8 [n] into KINDS, `tokens` int32 [n]."""

    row: dict[str, Any]
    t_ns: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]


def request_records(plan: Plan, cell: PlanCell, request: PlanRequest, received: Received) -> RequestRecords:
    """The records of one request. Each event has the stamp of the read that brought its closing blank line."""
    body = received.content()
    is_page = _is_page(received.content_type, body)
    events = read_stream(body if received.http_status == _OK and not is_page else b"")
    reads = np.frombuffer(received.read_ends, dtype=np.int64)
    stamps = np.frombuffer(received.read_stamps, dtype=np.int64)
    t_ns = stamps[np.searchsorted(reads, events.ends)] if events.ends.size else np.empty(0, dtype=np.int64)
    status, cause, detail = _outcome(received, events, _beginning(body), is_page=is_page)
    row = _times(received, events, t_ns) | _counts(request, events)
    row |= {
        "request_id": request.request_id,
        "cell_id": cell.cell_id,
        "status": status,
        "cause": cause,
        "detail": detail[:_SHOWN],
    }
    row |= {
        "repeat": cell.repeat,
        "batch": request.batch,
        "concurrency": cell.concurrency,
        "kind": cell.kind,
        "seed": request.seed,
    }
    row |= {"retries": received.retries, "http_status": received.http_status}
    row["flags"] = _flags(plan, request, received, events, row)
    return RequestRecords(row, t_ns, events.kinds, events.tokens)


def _is_page(content_type: str, body: bytes | bytearray) -> bool:
    start = bytes(body[:64]).lstrip().lower()
    return content_type.startswith("text/html") or start.startswith((b"<!doctype", b"<html"))


_Outcome = tuple[str, str | None, str]


def _outcome(received: Received, events: StreamEvents, beginning: str, *, is_page: bool) -> _Outcome:
    """Status, cause and detail. A stream that brought tokens and then broke off is incomplete; all else that is not whole failed."""
    return _no_stream(received, beginning, is_page=is_page) or _stream_outcome(received, events, beginning)


def _no_stream(received: Received, beginning: str, *, is_page: bool) -> _Outcome | None:
    """What came instead of a stream, if anything did."""
    if received.end in _NEVER_ANSWERED:
        return "failed", _NEVER_ANSWERED[received.end], received.detail
    if received.http_status not in (None, _OK):
        return "failed", f"http_{received.http_status}", beginning
    return ("failed", "html", beginning) if is_page else None


def _stream_outcome(received: Received, events: StreamEvents, beginning: str) -> _Outcome:
    has_tokens = bool(events.tokens.any())
    status, cause, detail = "failed", None, ""
    if events.error is not None:
        cause, detail = "error_event", events.error
    elif received.end != "complete" and not events.done:
        status, cause, detail = "incomplete" if has_tokens else "failed", _BROKEN_OFF[received.end], received.detail
    elif not events.kinds.size or (received.content_type.startswith("application/json") and not has_tokens):
        cause, detail = "not_a_stream", beginning
    elif events.broken is not None:
        cause, detail = "bad_event", events.broken
    elif not has_tokens:
        cause = "no_token"
    elif not events.done:
        status, cause = "incomplete", "cut_clean" if events.finish_reason is None else "no_done"
    return (status, cause, detail) if cause else ("ok", None, "")


def _beginning(body: bytes | bytearray) -> str:
    return " ".join(bytes(body[: 4 * _SHOWN]).decode(errors="replace").split())


def _times(received: Received, events: StreamEvents, t_ns: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Readings of the clock, and the two durations from t0; None for what did not happen."""

    def first(which: npt.NDArray[np.bool_]) -> int | None:
        return int(t_ns[int(which.argmax())]) if which.any() else None

    carrying = np.flatnonzero(events.tokens)
    first_at = int(t_ns[carrying[0]]) if carrying.size else None
    answer_at = first((events.kinds == _ANSWER) & (events.tokens > 0))
    done_at = first(events.kinds == _DONE)
    t0 = received.t0_ns or None
    return {
        "t0_ns": t0,
        "scheduled_at_ns": received.scheduled_at_ns or None,
        "ttft_ns": None if first_at is None or t0 is None else first_at - t0,
        "ttfa_ns": None if answer_at is None or t0 is None else answer_at - t0,
        "last_at_ns": int(t_ns[carrying[-1]]) if carrying.size else None,
        "done_at_ns": done_at if done_at is not None else received.done_at_ns or None,
        "t_first_role_ns": first(events.kinds == _ROLE),
        "chunk_events": int(carrying.size),
    }


def _counts(request: PlanRequest, events: StreamEvents) -> dict[str, Any]:
    """Token counts. Where text was counted, an event's tokens are not known: n is the server's own count if it states one."""
    counted = int(events.tokens.sum())
    by_text = events.counted_by == "text"
    stated = events.completion_tokens
    carrying = np.flatnonzero(events.tokens)
    return {
        "n_tokens": stated if by_text and stated is not None else counted,
        "n_first_tokens": None if by_text or not carrying.size else int(events.tokens[carrying[0]]),
        "usage_completion_tokens": stated,
        "usage_prompt_tokens": events.prompt_tokens,
        "cached_tokens": events.cached_tokens,
        "finish_reason": events.finish_reason,
        "max_tokens": request.max_tokens,
        "expected_prompt_tokens": request.expected_prompt_tokens,
        "characters": events.characters,
        "reasoning_tokens": events.reasoning_tokens,
        "text_sha256": events.text_sha256,
        "counted_by": events.counted_by if counted else None,
    }


def _flags(
    plan: Plan, request: PlanRequest, received: Received, events: StreamEvents, row: dict[str, Any]
) -> list[str]:
    """What a reader should know of this request; a flag changes no figure."""
    stated, n = row["usage_completion_tokens"], int(events.tokens.sum())
    asked_whole = bool(plan.sampling.get("ignore_eos"))
    reasoned = bool(((events.kinds == _REASONING) & (events.tokens > 0)).any())
    seen = {
        "approximate count": row["counted_by"] == "text" and stated is None,
        "first token's chunk not counted": row["counted_by"] == "text",
        "impossible count": max(n, stated or 0) > request.max_tokens,
        "counts differ": stated is not None and row["counted_by"] in ("ids", "usage") and stated != n,
        "usage missing": stated is None and events.done,
        "prompt tokens differ": None not in (row["expected_prompt_tokens"], row["usage_prompt_tokens"])
        and row["expected_prompt_tokens"] != row["usage_prompt_tokens"],
        "no finish reason": events.done and events.finish_reason is None,
        "reasoning stated as 0": reasoned and row["reasoning_tokens"] == 0,
        "shorter than asked": row["status"] == "ok" and asked_whole and row["n_tokens"] < request.max_tokens,
        "refused with 429 before": received.retries > 0,
        "sent again on a new connection": received.resent,
        "connection did not end well after [DONE]": events.done and received.end != "complete",
    }
    return [name for name, found in seen.items() if found] + events.flags
