"""Start-up and memory of a study's arms as its pages show them (MEASURES section 8): ready times, memory, a repeated prompt, the switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.publication.claims import pair_name
from engcmp_assets.publication.formats import format_any, listed, reason, value_parts

Summary = Mapping[str, Any]
_MB = 1_000_000
_STATES = ("cold", "warm")
_COLUMNS = (
    ("cold", "ready_s", "ready, cold (s)", 1),
    ("warm", "ready_s", "ready, warm (s)", 1),
    ("stated", "kv_pool_tokens", "KV pool (tokens)", 1),
    ("after its requests", "resident_bytes", "resident memory (MB)", _MB),
    ("after its requests", "gpu_memory_bytes", "GPU memory (MB)", _MB),
)


def startup_figures_of(owner: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of start-up that an arm has."""
    return list(owner["startup"]["figures"]) if owner.get("startup") else []


def startup_view(summary: Summary, anchors: Mapping[str, str]) -> dict[str, Any] | None:
    """What the section on start-up shows; None where no arm has one."""
    measured = [arm for arm in summary["arms"] if arm.get("startup")]
    if not measured:
        return None
    tables = [
        {
            "title": "Start and memory", "columns": [title for _, _, title, _ in _COLUMNS],
            "rows": [
                {
                    "arm": arm["arm"],
                    "cells": [_cell(arm, population, measure, anchors, unit) for population, measure, _, unit in _COLUMNS],
                }
                for arm in measured
            ],
        }
    ]  # fmt: skip
    sendings = list(dict.fromkeys(one["population"] for arm in measured for one in _of(arm, "prefix_ttft_ms")))
    if sendings:
        tables.append(
            {
                "title": "First token of a repeated prompt (ms), with the prompt tokens that came from a cache in brackets",
                "columns": [_sending(name) for name in sendings],
                "rows": [{"arm": arm["arm"], "cells": [_again(arm, name, anchors) for name in sendings]} for arm in measured],
            }
        )  # fmt: skip
    return {"tables": tables, "notes": [*_notes(measured), *_pairs(summary)]}


def _of(arm: Mapping[str, Any], measure: str) -> list[Mapping[str, Any]]:
    return [one for one in startup_figures_of(arm) if one["measure"] == measure]


def _cell(
    arm: Mapping[str, Any], population: str, measure: str, anchors: Mapping[str, str], unit: int = 1
) -> dict[str, Any]:
    figure = next((one for one in _of(arm, measure) if one["population"] == population), None)
    if figure is None:
        return {"value": None, "text": "not measured", "again": ""}
    value = figure["value"] if isinstance(figure["value"], Mapping) else figure["value"] / unit
    text = reason(value) if isinstance(value, Mapping) else ""
    return value_parts(value, None) | {
        "anchor": anchors.get(figure["figure_id"]), "id": figure["figure_id"], "again": "",
        **({"text": text} if text else {}),
    }  # fmt: skip


def _again(arm: Mapping[str, Any], population: str, anchors: Mapping[str, str]) -> dict[str, Any]:
    """The time of one sending, and in brackets what of it was cached."""
    cached = next((one["value"] for one in _of(arm, "prefix_cached_tokens") if one["population"] == population), None)
    told = "" if cached is None else "not stated" if isinstance(cached, Mapping) else f"{cached:.0f}"
    return _cell(arm, population, "prefix_ttft_ms", anchors) | {"again": told}


def _sending(population: str) -> str:
    prompt, _, which = population.partition("/")
    return f"{prompt.removeprefix('prefix-')} tokens, {which.replace('-', ' ')}"


def _notes(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What must be known of the tables, each once, with its arms."""
    found: dict[str, list[str]] = {}
    for arm in measured:
        for text in _of_arm(arm["startup"]):
            found.setdefault(text, []).append(arm["arm"])
    for text, names in found.items():
        yield text if len(names) == len(measured) else f"{listed(names)}: {text}"


def _of_arm(startup: Mapping[str, Any]) -> Iterator[str]:
    caches = startup["ready"]["cold"]["caches"]
    if caches:
        yield f"cold: {listed(caches)} cleared before; warm: kept"
    starts = [f"{len(startup['ready'][state]['of_starts'])} {state}" for state in _STATES]
    yield f"starts: {listed(starts)}"
    pool = startup["kv_pool"]
    if pool.get("how"):
        yield f"KV pool as of {pool['how']}, for a maximum length of {format_any(pool.get('max_model_len'))} tokens"
    yield f"thinking switch: {_switch(startup['thinking'])}"


def _switch(thinking: Mapping[str, Any]) -> str:
    if "missing" in thinking:
        return f"not measured: {thinking['missing']}"
    told = ", ".join(
        f"{state} {format_any(thinking[state]['prompt_tokens'])} prompt tokens"
        for state in ("on", "off")
        if "prompt_tokens" in thinking.get(state, {})
    )
    switch = thinking["switch"]
    word = f"not known: {switch['missing']}" if isinstance(switch, Mapping) else switch
    return f"{word} ({told})" if told else str(word)


def _pairs(summary: Summary) -> Iterator[str]:
    """Each pair's ready times and pools as ratios, candidate / baseline, with what keeps them from being compared."""
    for pair in summary["comparisons"]:
        found = (pair.get("speed") or {}).get("startup")
        if not found:
            continue
        ready, pool = found["ready"], found["kv_pool"]
        ratios = [f"ready {state} {_ratio(ready[f'{state}_ratio'])}" for state in _STATES] + [
            f"KV pool {_ratio(pool['ratio'])}"
        ]
        labels = list(dict.fromkeys([*ready["labels"], *pool["labels"]]))
        yield f"{pair_name(pair)}, candidate / baseline: {', '.join(ratios)}" + (
            f" ({'; '.join(labels)})" if labels else ""
        )


def _ratio(value: Any) -> str:
    return f"not known ({reason(value)})" if isinstance(value, Mapping) else format_any(value)
