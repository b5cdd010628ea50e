"""What the events of a cell say of each request, as arrays: the arithmetic behind `streams.stream_table` (MEASURES section 6).

It needs numpy alone, so that a client that measures keeps its memory small. All times are readings of one monotonic clock in integer
nanoseconds. A token event is an event with at least one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.throughput.scheduling import overlap_shares
from engcmp_assets.kernel.throughput.stream_events import KINDS
from engcmp_resources.errors import EngcmpError

Int64 = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Columns = dict[str, Any]
"""Masked arrays [requests] by name: int64, float64, bool, or object for text and lists. What is masked is absent."""

NS_PER_S = 1_000_000_000
INTS = (
    "t0_ns", "scheduled_at_ns", "ttft_ns", "ttfa_ns", "last_at_ns", "done_at_ns", "usage_completion_tokens", "usage_prompt_tokens",
    "cached_tokens", "repeat", "batch", "characters", "max_tokens", "expected_prompt_tokens",
)  # fmt: skip
TEXTS = ("request_id", "finish_reason", "status", "cause", "counted_by", "flags")
SPAN_READ = ("run", "batch", "n", "t0_ns", "first", "last")
"""The columns that a batch's spans are made of."""
_REASONING, _ANSWER, _TOOL = (KINDS.index(name) for name in ("reasoning", "answer", "tool_call"))


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a cell in arrays of one length, in order of arrival within each request: `owners` into `names`, `t_ns` int64,
    `kinds` uint8 into KINDS, `tokens` int32.
    """

    names: Sequence[str]
    owners: npt.NDArray[np.integer[Any]]
    t_ns: Int64
    kinds: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Updates:
    """The token events, those of a request together: `owners` are rows of the requests, `starts` where each request's begin."""

    owners: Rows
    t_ns: Int64
    kinds: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int32]
    starts: Int64

    @property
    def rows(self) -> Rows:
        """The rows of the requests that have a token event, as `starts` has them."""
        return self.owners[self.starts]

    def sums(self, values: npt.NDArray[np.integer[Any]]) -> Int64:
        """The sum of `values` [token events] for each of `rows`."""
        return np.add.reduceat(values, self.starts, dtype=np.int64) if self.starts.size else np.empty(0, dtype=np.int64)


def masked(values: Sequence[Any], dtype: type) -> Any:
    """A masked array of `values`, in which None is what is absent."""
    mask = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    if dtype is object:
        return np.ma.array(np.fromiter(values, dtype=object, count=len(values)), mask=mask)
    return np.ma.array([0 if value is None else value for value in values], mask=mask, dtype=dtype)


def request_columns(rows: Sequence[dict[str, Any]]) -> Columns:
    """The columns of requests.parquet that are read here, from its rows."""
    found = {name: masked([row.get(name) for row in rows], np.int64) for name in INTS}
    return found | {name: masked([row.get(name) for row in rows], object) for name in TEXTS}


def taken(columns: Columns, which: npt.NDArray[Any], names: Iterable[str] | None = None) -> Columns:
    """The rows that a mask or a list of numbers names, of all columns or of those in `names`; not copied where that is every row."""
    wanted = columns if names is None else {name: columns[name] for name in names}
    if which.dtype == bool and which.all():
        return dict(wanted)
    return {name: column[which] for name, column in wanted.items()}


def stream_columns(events: Events, requests: Columns) -> tuple[Columns, Updates]:
    """The columns of `requests` and those that `streams.stream_table` describes; and the token events.

    Raises EngcmpError where the events and the requests are not of one run.
    """
    names = requests["request_id"].tolist()
    ok = requests["status"].filled("") == "ok"
    updates = _updates(events, _rows(events, names, requests, ok))
    found = dict(requests) | _counts(updates, len(names))
    ok &= ~found["first"].mask
    by_text = requests["counted_by"].filled("") == "text"
    usage = requests["usage_completion_tokens"]
    found |= {
        "ok": np.ma.array(ok, mask=np.zeros(len(ok), dtype=bool)),
        "by_text": np.ma.array(by_text, mask=np.zeros(len(ok), dtype=bool)),
        "n": _either(by_text & ~usage.mask, usage, found["counted"]),
        "n_first": _only(~by_text, found["n_first"]),
        "run": np.ma.array(requests["repeat"].filled(0), mask=np.zeros(len(ok), dtype=bool)),
        "batch": np.ma.array(requests["batch"].filled(0), mask=np.zeros(len(ok), dtype=bool)),
        "free": _first_known(found["first"], *(requests[name] for name in ("done_at_ns", "last_at_ns", "t0_ns"))),
    }
    _same_run(updates, found, names)
    window = found["last"] - found["first"]
    moving = ok & (window.filled(0) > 0)
    # Whole numbers are divided once, so a rate is the nearest float64 to the exact one.
    for name, first in (("decode", found["n_first"]), ("decode_first1", 1)):
        found[name] = _only(moving, (found["n"] - first) * NS_PER_S / np.where(moving, window.filled(1), 1))
    found["overlap"] = _overlap(found, moving)
    found["steady"] = _steady(updates, found)
    return found, updates


def _rows(events: Events, names: list[str], requests: Columns, ok: npt.NDArray[np.bool_]) -> Rows:
    """The row of the request that each of the events' names is of."""
    place = {name: number for number, name in enumerate(names)}
    if len(place) != len(names):
        raise EngcmpError(
            "a request stands twice", where="requests.parquet", remedy="give each request an id of its own"
        )
    unsent = np.flatnonzero(requests["t0_ns"].mask & ok)
    if unsent.size:
        raise EngcmpError(
            f"request {names[unsent[0]]} is ok and has no t0_ns",
            where="requests.parquet",
            remedy="give the time it was sent at",
        )
    used = np.bincount(events.owners, minlength=len(events.names)) > 0
    strays = sorted(
        name for name, is_used in zip(events.names, used.tolist(), strict=True) if is_used and name not in place
    )
    if strays:
        raise EngcmpError(
            f"events of request {strays[0]}, which is not in requests.parquet", where="events.parquet",
            remedy="give both tables of one run",
        )  # fmt: skip
    return np.array([place.get(name, -1) for name in events.names], dtype=np.int32)


def _updates(events: Events, rows: Rows) -> Updates:
    carrying = np.flatnonzero(events.tokens > 0)
    owners = rows[events.owners[carrying]] if carrying.size else np.empty(0, dtype=np.int32)
    if (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners, kind="stable")
        carrying, owners = carrying[order], owners[order]
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return Updates(owners, events.t_ns[carrying], events.kinds[carrying], events.tokens[carrying], starts)


def _counts(updates: Updates, requests: int) -> Columns:
    """Per request what its token events say; absent where it has none."""
    t_ns, tokens, kinds, starts = updates.t_ns, updates.tokens, updates.kinds, updates.starts
    ends = np.append(starts[1:], len(t_ns))
    first = t_ns[starts]
    at_first = t_ns == np.repeat(first, ends - starts)  # [token events]
    answers = np.flatnonzero(kinds == _ANSWER)
    owners, where = np.unique(updates.owners[answers], return_index=True)
    found = {
        "first": first,
        "last": t_ns[ends - 1] if starts.size else first,
        "counted": updates.sums(tokens),
        "n_first": tokens[starts],
        "at_first": updates.sums(np.where(at_first, tokens, 0)),
        "updates": ends - starts if starts.size else first,
        "reasoning": updates.sums(np.where(kinds == _REASONING, tokens, 0)),
        "answered": updates.sums(np.where((kinds == _ANSWER) | (kinds == _TOOL), tokens, 0)),
    }
    columns = {name: _placed(values, updates.rows, requests) for name, values in found.items()}
    return columns | {"answer": _placed(t_ns[answers[where]], owners, requests)}


def _placed(values: npt.NDArray[np.integer[Any]], rows: Rows, requests: int) -> Any:
    column = np.ma.array(np.zeros(requests, dtype=np.int64), mask=np.ones(requests, dtype=bool))
    column[rows] = values
    return column


def _only(which: npt.NDArray[np.bool_], column: Any) -> Any:
    """The column, absent where `which` is false."""
    return np.ma.array(column.data, mask=np.ma.getmaskarray(column) | ~which)


def _either(which: npt.NDArray[np.bool_], one: Any, other: Any) -> Any:
    mask = np.where(which, one.mask, other.mask)
    return np.ma.array(np.where(which, one.data, other.data), mask=mask)


def _first_known(*columns: Any) -> Any:
    found = columns[0]
    for column in columns[1:]:
        found = _either(~found.mask, found, column)
    return found


def _same_run(updates: Updates, found: Columns, names: list[str]) -> None:
    """Refuse times that run backward, and those that the events contradict: the two tables are then not of one run."""
    back = np.flatnonzero((updates.t_ns[1:] < updates.t_ns[:-1]) & (updates.owners[1:] == updates.owners[:-1]))
    if back.size:
        raise EngcmpError(
            f"events of request {names[int(updates.owners[back[0]])]} run backward in time",
            where="events.parquet",
            remedy="give each request's events as they came",
        )
    for name, own in (("ttft_ns", found["first"] - found["t0_ns"]), ("last_at_ns", found["last"])):
        wrong = np.flatnonzero(found["ok"].data & ~found[name].mask & (found[name].data != own.data))
        if wrong.size:
            row = int(wrong[0])
            raise EngcmpError(
                f"request {names[row]}: {name} is {found[name][row]}, its events say {own[row]}",
                where="requests.parquet",
                remedy="give both tables of one run",
            )


def _overlap(found: Columns, moving: npt.NDArray[np.bool_]) -> Any:
    """The share of each decode window beside any prefill; a stream's own prefill ends where its window begins."""
    sent = ~found["t0_ns"].mask
    column = np.ma.array(np.zeros(len(moving)), mask=~moving)
    column.data[moving] = overlap_shares(
        found["t0_ns"].data[sent], found["free"].data[sent], found["first"].data[moving], found["last"].data[moving]
    )
    return column


def _steady(updates: Updates, found: Columns) -> Any:
    """The tokens of each stream that came while every stream of its batch decoded; the first such instant ends a token made before."""
    spans = span_columns(taken(found, found["ok"].data, SPAN_READ))
    bounds = {
        (run, batch): (start, end)
        for run, batch, start, end in zip(
            *(spans[name].tolist() for name in ("run", "batch", "all_from", "all_until")), strict=True
        )
    }
    keys = zip(found["run"].tolist(), found["batch"].tolist(), strict=True)
    limits = np.array([bounds.get(key, (0, 0)) for key in keys], dtype=np.int64).reshape(-1, 2)
    after, until = limits[updates.owners].T
    steady = np.where((updates.t_ns > after) & (updates.t_ns <= until), updates.tokens, 0)
    column = np.ma.array(np.zeros(len(limits), dtype=np.int64), mask=np.zeros(len(limits), dtype=bool))
    column[updates.rows] = updates.sums(steady)
    return column


def span_columns(done: Columns) -> dict[str, Int64]:
    """One row for each batch of completed requests, as `batches.batch_spans` describes it: plain int64 arrays [batches]."""
    run, batch, n, t0, first, last = (np.ma.getdata(done[name]) for name in SPAN_READ)
    order = np.lexsort((batch, run))
    run, batch = run[order], batch[order]
    if not order.size:
        names = (
            "run",
            "batch",
            "n",
            "start",
            "end",
            "all_from",
            "all_until",
            "wall_ns",
            "slot_ns",
            "prefill_ns",
            "steady_ns",
        )
        return {name: np.empty(0, dtype=np.int64) for name in names}
    starts = np.flatnonzero(np.concatenate(([True], (run[1:] != run[:-1]) | (batch[1:] != batch[:-1]))))
    spans = {
        "run": run[starts],
        "batch": batch[starts],
        "n": np.add.reduceat(n[order], starts),
        "start": np.minimum.reduceat(t0[order], starts),
        "end": np.maximum.reduceat(last[order], starts),
        "all_from": np.maximum.reduceat(first[order], starts),
        "all_until": np.minimum.reduceat(last[order], starts),
    }
    by_start = np.lexsort((spans["batch"], spans["start"], spans["run"]))
    spans = {name: column[by_start] for name, column in spans.items()}
    runs = np.flatnonzero(np.concatenate(([True], spans["run"][1:] != spans["run"][:-1])))
    final = np.append(runs[1:], len(by_start)) - 1
    until = np.append(spans["start"][1:], 0)
    until[final] = np.maximum.reduceat(spans["end"], runs)
    return spans | {
        "wall_ns": spans["end"] - spans["start"],
        "slot_ns": until - spans["start"],
        "prefill_ns": spans["all_from"] - spans["start"],
        "steady_ns": np.maximum(spans["all_until"] - spans["all_from"], 0),
    }
