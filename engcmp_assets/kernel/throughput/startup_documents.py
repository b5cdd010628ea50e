"""An arm's start-up as figures, from startup.json of the measurement and its table of requests (MEASURES section 8)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import STARTUP, figure_id
from engcmp_assets.kernel.records import ArmKey, Figure, Missing, plain
from engcmp_assets.kernel.throughput.startup import PrefixRequest, Start, prefix_repeats, thinking_switch

_NO_INTERVAL = Missing("a start-up is measured a few times: the single values are beside it")
_NONE = Missing("it was not measured")
Document = Mapping[str, Any]


def startup_summary(kept: Document, events: pl.DataFrame, requests: pl.DataFrame) -> dict[str, Any]:
    """`ready` of each state, `kv_pool`, `memory`, `prefix` and `thinking`, as plain JSON; what was not measured is `{"missing": reason}`.

    `kept` is startup.json, `events` and `requests` the tables of what the start-up asked.
    Raises EngcmpError for requests that are not those of a plan.
    """
    starts = list(kept["starts"])
    cleared = [cache["cache"] for one in starts for cache in one["caches"] if cache["cleared"]]
    names = list(dict.fromkeys(cleared))
    states = {state: _of_state(state, starts, names, kept.get("no_cold_start")) for state in ("cold", "warm")}
    document: dict[str, Any] = plain(
        {
            "ready": states,
            "kv_pool": kept.get("kv_pool") or _NONE,
            "memory": kept.get("memory") or _NONE,
            "prefix": _prefix(kept, requests),
            "thinking": _thinking(kept, events, requests),
        }
    )
    return document


def _of_state(state: str, starts: Sequence[Document], names: Sequence[str], why: str | None) -> dict[str, Any]:
    """The starts of one state. A cold one of which a cache could not be cleared was not cold, and does not count."""
    own = [one for one in starts if one["state"] == state]
    stayed = [
        f"start {one['start']}: {cache['cache']} was not cleared"
        for one in own
        if state == "cold"
        for cache in one["caches"]
        if not cache["cleared"]
    ]
    counted = [] if stayed else [one["ready_s"] for one in own if not isinstance(one["ready_s"], Mapping)]
    lines = [one["ready_line_s"] for one in own if not isinstance(one["ready_line_s"], Mapping)]
    untold = next((one["ready_s"]["missing"] for one in own if isinstance(one["ready_s"], Mapping)), None)
    reason = "; ".join(stayed) or untold or (why if state == "cold" else None) or f"no {state} start was measured"
    return {
        "seconds": statistics.median(counted) if counted else Missing(reason),
        "of_starts": counted,
        "ready_line_s": statistics.median(lines) if lines and counted else Missing("the engine has no ready line of its own"),
        "caches": list(names) if counted else [],
    }  # fmt: skip


def starts_of(summary: Document) -> list[Start]:
    """The starts of an arm that count, for a comparison of two arms."""
    return [
        Start(seconds, state, tuple(summary["ready"][state]["caches"]))
        for state in ("cold", "warm")
        for seconds in summary["ready"][state]["of_starts"]
    ]


def _prefix(kept: Document, requests: pl.DataFrame) -> Any:
    cells = {cell["cell_id"]: cell for cell in kept.get("prefix", ())}
    if not cells:
        return Missing("no repeated prompt is declared")
    failed = [f"{name}: {cell['failures'][0]['cause']}" for name, cell in cells.items() if not cell["complete"]]
    if failed:
        return Missing(f"a request failed: {'; '.join(failed)}")
    sent = []
    for row in requests.filter(pl.col("cell_id").is_in(list(cells))).iter_rows(named=True):
        counted = cells[row["cell_id"]]["engine"].get("cached_tokens")
        cached = row["cached_tokens"] if row["cached_tokens"] is not None else counted
        length, repeat = int(row["expected_prompt_tokens"]), int(row["repeat"])
        sent.append(PrefixRequest(length, repeat, int(row["ttft_ns"]), None if cached is None else int(cached)))
    return prefix_repeats(sent)


def _thinking(kept: Document, events: pl.DataFrame, requests: pl.DataFrame) -> Any:
    """The switch by what the engine answered with it on and off, and what it stated of its template at the start."""
    asked = kept.get("thinking") or {}
    if not asked:
        return Missing("no probe prompt is declared")
    sides: dict[str, dict[str, int | None]] = {}
    for state, cell in asked.items():
        own = requests.filter(pl.col("cell_id") == f"thinking-{state}")
        if "missing" in cell or not cell["complete"]:
            why = cell["missing"] if "missing" in cell else cell["failures"][0]["cause"]
            return Missing(f"with thinking {state} a request failed: {why}")
        reasons = events.filter(
            (pl.col("kind") == "reasoning") & pl.col("request_id").is_in(own["request_id"].to_list())
        )
        sides[state] = {
            "prompt_tokens": _sum(own["usage_prompt_tokens"]), "reasoning_tokens": int(reasons["tokens"].sum()),
        }  # fmt: skip
    if not any(side["reasoning_tokens"] for side in sides.values()):
        for side in sides.values():
            side["reasoning_tokens"] = None  # no reply reasons either way: only the prompt can tell
    found = thinking_switch(sides.get("on"), sides.get("off"))
    return found | {"prompts": requests.filter(pl.col("cell_id") == "thinking-on").height}


def _sum(column: pl.Series) -> int | None:
    """The sum where every request states it."""
    return None if column.null_count() or not len(column) else int(column.sum())


def startup_figures(study: str, arm: ArmKey, summary: Document) -> list[Figure]:
    """Every figure of an arm's start-up; its population says of which state, or of which sending of which prompt."""
    owner = f"{study}/{arm}"
    return [
        Figure(
            figure_id=figure_id(owner, STARTUP, population, measure),
            label=f"{arm}, start-up, {population}: {MEASURES[measure].title}",
            measure=measure,
            measure_version=MEASURES[measure].version,
            unit=MEASURES[measure].unit,
            panel=STARTUP,
            population=population,
            value=value,
            interval=_NO_INTERVAL,
            rows=number,
            clusters=number,
            details={"arm": str(arm)} | details,
        )
        for population, measure, value, number, details in _values(summary)
    ]


_Value = tuple[str, str, float | Missing, int, dict[str, Any]]


def _values(summary: Document) -> Iterator[_Value]:
    for state, ready in summary["ready"].items():
        kept = {name: ready[name] for name in ("of_starts", "ready_line_s", "caches")}
        yield state, "ready_s", _number(ready["seconds"]), len(ready["of_starts"]), kept
    pool, memory = summary["kv_pool"], summary["memory"]
    stated = {name: pool.get(name) for name in ("how", "max_model_len")}
    yield "stated", "kv_pool_tokens", _number(pool.get("tokens", pool)), 1, stated
    now = memory if "missing" in memory else memory.get("after", memory["ready"])
    for measure, place, name in (
        ("resident_bytes", "host", "resident_bytes"), ("gpu_memory_bytes", "gpus", "used_bytes"),
    ):  # fmt: skip
        found = now.get(place, now)
        rest = {key: value for key, value in found.items() if key != "missing"}
        yield "after its requests", measure, _number(found.get(name, found)), 1, {"of": rest}
    for own in summary["prefix"] if isinstance(summary["prefix"], Sequence) else ():
        name = f"prefix-{own['prompt_tokens']}"
        yield f"{name}/cold", "prefix_ttft_ms", own["cold_ttft_ms"], 1, {"labels": own["labels"]}
        yield f"{name}/cold", "prefix_cached_tokens", _number(own["cold_cached_tokens"]), 1, {}
        for one in own["repeats"]:
            again = f"{name}/repeat-{one['repeat']}"
            yield again, "prefix_ttft_ms", one["ttft_ms"], 1, {"share_of_cold": one["share_of_cold"]}
            yield again, "prefix_cached_tokens", _number(one["cached_tokens"]), 1, {}


def _number(value: Any) -> float | Missing:
    return (
        Missing(str(value.get("missing", "the engine does not state it")))
        if isinstance(value, Mapping)
        else float(value)
    )
