"""The figures of one cell from arrays of its events and requests: the arithmetic behind `cells.cell_figures` (MEASURES section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.measures import measure
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.throughput.request_values import MS, QUANTILES, values_by_name
from engcmp_assets.kernel.throughput.scheduling import CLEAN_BELOW
from engcmp_assets.kernel.throughput.stream_arrays import (
    NS_PER_S,
    Columns,
    Events,
    Int64,
    Updates,
    masked,
    span_columns,
    stream_columns,
    taken,
)
from engcmp_assets.kernel.throughput.type7 import quantiles

Float64 = npt.NDArray[np.float64]

_HALF = 0.5
MIN_UPDATES = 8  # token events that a reply needs before the gap between them says anything
_FIRST1 = "the engine gives neither token ids nor continuous usage: the first update is taken as 1 token"


def cell_document(events: Events, requests: Columns, cell: Mapping[str, Any]) -> dict[str, Any]:
    """One cell of cells.json, as `cells.cell_figures` describes it. Raises EngcmpError where the two are not of one run."""
    table, updates = stream_columns(events, requests)
    failures = _failures(table)
    total = len(table["ok"])
    done = taken(table, table["ok"].data)
    single = _single_figures(done, cell)
    spans = span_columns(done)
    whole = _cell_wide(updates, table, done, spans)
    found: dict[str, Any] = {
        "cell_id": cell["cell_id"],
        "kind": cell.get("kind"),
        "concurrency": cell["concurrency"],
        "requests": total,
        "complete": not failures and total > 0,
        "failures": failures,
        "figures": {name: _figure(name, one) for name, one in (single | whole).items()},
        "client": dict(cell.get("client") or {}),
        "engine": dict(cell.get("engine") or {}),
        "flags": _flags(table, cell),
        "labels": _labels(done),
        "finish_reasons": _counted(done["finish_reason"].filled("not stated")),
        "n_tokens": int(done["n"].data.sum()),
        "counted_by": _counted(done["counted_by"].filled("not stated")),
        "first_update_counted": not bool(done["by_text"].any()),
        "batches": len(spans["n"]),
    }
    if not found["complete"]:
        reason = Missing(f"{len(failures)} of {total} requests failed" if failures else "the cell has no request")
        found["figures_of_completed_requests"] = {name: _figure(name, one) for name, one in single.items()}
        found["figures"] = dict.fromkeys(found["figures"], reason.as_json())
    return found


_Value = dict[str, Any] | Missing


def _figure(name: str, found: _Value) -> dict[str, Any]:
    if isinstance(found, Missing):
        return found.as_json()
    return found | {"unit": measure(name).unit, "version": measure(name).version}


def _single_figures(done: Columns, cell: Mapping[str, Any]) -> dict[str, _Value]:
    """What single requests give: their quantiles and shares."""
    values = values_by_name(done)
    figures = {name: _spread(values[value], share, _NONE[value]) for name, (value, share) in QUANTILES.items()}
    if bool(done["by_text"].any()):
        figures |= dict.fromkeys(("decode_tok_s", "clean_decode_tok_s"), Missing(_FIRST1))
    figures["prefill_tok_s"] = _prefill_rate(done, cell)
    figures["chars_per_token"] = _share(done["characters"], done["n"], "no request states the characters of its reply")
    figures["reasoning_share"] = _share(done["reasoning"], done["counted"], "no token was counted")
    left = masked((done["answered"].data > 0).tolist(), np.int64)
    figures["left_reasoning_share"] = _share(left, masked([1] * len(left), np.int64), "no request has a token")
    figures["tokens_per_update"] = _share(done["n"], done["updates"], "no request has a token")
    return figures | _acceptance(cell.get("engine") or {})


_NONE = {
    "ttft": "no request has a first token",
    "e2e": "no request has a token",
    "ttfa": "no reply has answer text",
    "ttft_scheduled": "no request states when it was scheduled",
    **dict.fromkeys(
        ("decode", "decode_first1", "overlap"), "no reply came in two reads or more: none has a decode window"
    ),
    **dict.fromkeys(
        ("clean_decode", "clean_decode_first1"),
        f"no stream decoded with under {CLEAN_BELOW:.0%} of its window beside other streams' prefill",
    ),
}


def _spread(values: Float64, share: float, reason: str) -> _Value:
    """A quantile of the values (type 7), with how many there are and their range; a median also with its outer deciles."""
    if not len(values):
        return Missing(reason)
    shares = (share, 0.0, 1.0, *((0.1, 0.9) if share == _HALF else ()))
    found = quantiles(values, shares)
    return dict(zip(("value", "low", "high", "p10", "p90"), found, strict=False)) | {"n": len(values)}


def _share(part: Any, whole: Any, reason: str) -> _Value:
    """Sum over sum, where every request states its part."""
    if not len(part) or part.mask.any() or whole.mask.any() or not whole.data.sum():
        return Missing(reason)
    return {"value": int(part.data.sum()) / int(whole.data.sum()), "n": len(part)}


def _prefill_rate(done: Columns, cell: Mapping[str, Any]) -> _Value:
    if cell.get("loop") == "open":
        return Missing("an open loop: a prefill rate is read with one stream at a time")
    if cell["concurrency"] != 1:
        return Missing(f"{cell['concurrency']} streams: a prefill rate is read with one stream only")
    cached = done["cached_tokens"]
    if (cell.get("engine") or {}).get("cached_tokens") == 0:
        cached = masked(cached.filled(0).tolist(), np.int64)  # the engine's own counter did not move over the cell
    if cached.mask.any():
        return Missing("the engine does not state its cached tokens: what it prefilled is not known")
    if done["usage_prompt_tokens"].mask.any():
        return Missing("the engine does not state its prompt tokens")
    fresh = (done["usage_prompt_tokens"].data - cached.data) * NS_PER_S
    span = done["first"].data - done["t0_ns"].data
    return _spread(fresh[span > 0] / span[span > 0], _HALF, _NONE["ttft"])


def _acceptance(engine: Mapping[str, Any]) -> dict[str, _Value]:
    accepted, drafted, steps = (engine.get(name) for name in ("accepted", "drafted", "draft_steps"))
    none = Missing("the engine states no counters of accepted and drafted tokens")
    found: dict[str, _Value] = {"acceptance": none, "accepted_length": none}
    if accepted is not None and drafted is not None:
        idle = Missing("no token was drafted in the cell")
        found["acceptance"] = {"value": accepted / drafted, "n": int(drafted)} if drafted > 0 else idle
    if accepted is not None and steps is not None:
        idle = Missing("no draft step was taken in the cell")
        found["accepted_length"] = {"value": 1 + accepted / steps, "n": int(steps)} if steps > 0 else idle
    return found


def _cell_wide(updates: Updates, table: Columns, done: Columns, spans: dict[str, Int64]) -> dict[str, _Value]:
    """What only the whole cell gives: aggregate, steady aggregate, prefill share and the gap between updates."""
    none = Missing("the cell has no completed request")
    found: dict[str, _Value] = dict.fromkeys(
        ("aggregate_tok_s", "aggregate_steady_tok_s", "prefill_share", "update_gap_median_ms"), none
    )
    batches = len(spans["n"])
    if not batches:
        return found
    found["aggregate_tok_s"] = _ratio(int(spans["n"].sum()) * NS_PER_S, int(spans["slot_ns"].sum()), batches)
    found["prefill_share"] = _ratio(int(spans["prefill_ns"].sum()), int(spans["wall_ns"].sum()), batches)
    found["aggregate_steady_tok_s"] = _steady(done, spans)
    found["update_gap_median_ms"] = _gaps(updates, table)
    return found


def _ratio(part: int, whole: int, batches: int) -> _Value:
    return {"value": part / whole, "n": batches} if whole > 0 else Missing("the cell's tokens came in no time")


def _steady(done: Columns, spans: dict[str, Int64]) -> _Value:
    """Tokens while all streams of a batch decode, over that time, summed over the batches that have such a time."""
    if bool(done["by_text"].any()):
        return Missing(_FIRST1)
    if not spans["steady_ns"].sum():
        return Missing("at no time did all streams of a batch decode at once")
    rate = int(done["steady"].sum()) * NS_PER_S / int(spans["steady_ns"].sum())
    return {"value": rate, "n": int((spans["steady_ns"] > 0).sum()), "of": len(spans["n"])}


def _gaps(updates: Updates, table: Columns) -> _Value:
    """The median time between one update and the next, over the replies of MIN_UPDATES updates or more."""
    long = table["ok"].data & (table["updates"].filled(0) >= MIN_UPDATES)
    if not long.any():
        return Missing(f"no reply came in {MIN_UPDATES} updates or more")
    own = long[updates.owners[1:]] & (updates.owners[1:] == updates.owners[:-1])
    gaps = np.diff(updates.t_ns)[own] / MS
    return {"value": float(np.median(gaps)), "n": len(gaps), "replies": int(long.sum())}


def _failures(table: Columns) -> list[dict[str, Any]]:
    """Every request that did not complete, with its cause; a stream without a token is one."""
    failed = taken(table, ~table["ok"].data, ("request_id", "status", "cause"))
    rows = zip(*(column.tolist() for column in failed.values()), strict=True)
    return [
        {
            "request_id": name,
            "status": "failed" if status == "ok" else status,
            "cause": ("no token came" if status == "ok" else "no cause stated") if cause is None else cause,
        }
        for name, status, cause in sorted(rows, key=lambda row: row[0])
    ]


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _flags(table: Columns, cell: Mapping[str, Any]) -> list[str]:
    """Why a reader should doubt the cell: the requests' own flags with how many carry them, and what the tables show."""
    own = _counted(flag for flags in table["flags"].compressed() for flag in flags)
    usage, by_text, most = table["usage_completion_tokens"], table["by_text"].data, table["max_tokens"]
    seen = {
        "counts differ": (table["counted"] != usage).filled(False) & ~by_text,
        "approximate count": by_text & usage.mask,
        "impossible count": (table["n"] > most).filled(False) | (usage > most).filled(False),
        "prompt tokens differ": (table["usage_prompt_tokens"] != table["expected_prompt_tokens"]).filled(False),
        "first read held several token events": (table["at_first"] > table["n_first"]).filled(False),
        "cached prompt tokens": (table["cached_tokens"] > 0).filled(False),
    }
    counts = own | {name: int(found.sum()) for name, found in seen.items() if found.any()}
    flags = [f"{name} ({count} of {len(by_text)} requests)" for name, count in sorted(counts.items())]
    if (cell.get("client") or {}).get("limit"):
        flags.append("the client was the limit")
    engine = cell.get("engine") or {}
    flags += [f"the engine counted {name}: {engine[name]}" for name in ("preemptions", "restarts") if engine.get(name)]
    return flags


def _labels(done: Columns) -> list[str]:
    """What the cell's name promises and the cell does not hold."""
    labels = []
    replies = len(done["ok"])
    if (done["reasoning"].data > 0).any():
        left = int((done["answered"].data > 0).sum())
        if left < replies:
            labels.append(
                f"{left} of {replies} replies left the reasoning span: the rest is reasoning about the prompt, not the answer"
            )
    if bool(done["by_text"].any()):
        labels.append(_FIRST1)
    return labels
