"""What a start-up measurement asks of an engine beside the plan's load, and what it keeps of its starts and of a repeated prompt."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from engcmp_assets.kernel.records import plain
from engcmp_assets.kernel.startup_tables import StartupPlan, ThinkingPlan
from engcmp_assets.kernel.throughput.event_tables import EVENTS_SCHEMA, REQUESTS_SCHEMA, joined_bytes
from engcmp_assets.kernel.throughput.plans import Plan, PlanCell, PlanRequest
from engcmp_assets.throughput_events.plan import AsChats, Index, Texts, frozen_ids, frozen_prompt, sampling_of
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.disk import replace_visible
from engcmp_resources.engine_memory import engine_memory
from engcmp_resources.errors import EngcmpError
from engcmp_resources.gpus import Owned, snapshot

SCHEMA = "engcmp.startup/1"
DOCUMENT = "startup.json"
TABLES = {"events.parquet": EVENTS_SCHEMA, "requests.parquet": REQUESTS_SCHEMA}
"""What is kept of a start-up beside its document, in its folder and as outputs with `startup-` before the name."""
_KEPT = ("cell_id", "complete", "failures", "engine")
_NOT_STARTED = {"missing": "the engine was not started by engcmp"}
Say = Callable[[str], None]


def prefix_plan(index: Index, texts: Texts, repeats: int, *, model: str, chats: AsChats | None = None) -> Plan | None:
    """Each prompt of the index's `prefix` sent once and then `repeats` times again, one request a cell; None where there is none.

    Raises EngcmpError for a prompt that is not the frozen one.
    """
    cells = []
    for one in index.prefix:
        ids = frozen_ids(one.request, texts[one.kind], one.prompt_tokens)
        prompt = frozen_prompt(one.request, ids, chats)
        for repeat in range(repeats + 1):
            name = f"{one.request.request_id}/{repeat}"
            request = PlanRequest(
                request_id=name, **prompt, max_tokens=one.output_tokens, seed=one.request.seed,
                expected_prompt_tokens=one.prompt_tokens,
            )  # fmt: skip
            cells.append(PlanCell(cell_id=name, kind=one.kind, concurrency=1, repeat=repeat, requests=(request,)))
    return Plan(model=model, sampling=sampling_of(index, chats), cells=tuple(cells)) if cells else None


def thinking_plan(asked: ThinkingPlan, index: Index, *, model: str, thinking: bool) -> Plan:
    """Each prompt as a chat with the template's `enable_thinking` as given."""
    state = "on" if thinking else "off"
    requests = tuple(
        PlanRequest(
            request_id=f"thinking-{state}/{number}", messages=({"role": "user", "content": text},),
            max_tokens=asked.output_tokens, seed=number,
        )
        for number, text in enumerate(asked.prompts, 1)
    )  # fmt: skip
    cell = PlanCell(cell_id=f"thinking-{state}", kind="thinking", concurrency=1, requests=requests)
    # A reply may end by itself here: whether it reasons is asked, not how fast.
    sampling = dict(index.sampling) | {"ignore_eos": False, "chat_template_kwargs": {"enable_thinking": thinking}}
    return Plan(model=model, sampling=sampling, cells=(cell,))


def start_record(start: int, state: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A start as the document keeps it: seconds from the command to the first token and to its own ready line, and its caches."""
    ready = facts.get("ready") or {}
    return {
        "start": start,
        "state": state,
        "ready_s": _seconds(ready.get("first_token_ms"), _NOT_STARTED),
        "ready_line_s": _seconds(ready.get("ready_line_ms"), {"missing": "the engine has no ready line of its own"}),
        "caches": list(facts.get("start_caches") or ()),
    }


def _seconds(milliseconds: Any, why: Mapping[str, str]) -> Any:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else dict(why)


def probe(
    folder: Path,
    asked: StartupPlan,
    index: Index,
    texts: Texts,
    target: Target,
    *,
    model: str,
    say: Say,
    chats: AsChats | None = None,
) -> dict[str, Any]:
    """Ask a warm engine for the repeated prompts and for thinking on and off; what came is in `folder`, this is the rest of it."""
    found: dict[str, Any] = {"prefix": [], "thinking": {}}
    plan = prefix_plan(index, texts, asked.prefix.repeats, model=model, chats=chats) if asked.prefix else None
    if plan is not None:
        document = measure_plan(plan, target, folder / "prefix", calibrated=True, say=say)
        found["prefix"] = [{name: cell[name] for name in _KEPT} for cell in document["cells"]]
        found["sessions"] = document["sessions"]
    # Nothing is timed here: a busy client does not matter, and a refusal is the answer.
    calm = replace(target, strict=False, warm_up=0)
    for thinking in (True, False) if asked.thinking else ():
        state = "on" if thinking else "off"
        try:
            own = thinking_plan(asked.thinking, index, model=model, thinking=thinking) if asked.thinking else None
            if own is not None:
                document = measure_plan(own, calm, folder / f"thinking-{state}", calibrated=False, say=say)
                found["thinking"][state] = {name: document["cells"][0][name] for name in _KEPT}
        except EngcmpError as error:
            target.unchanged()  # where the engine has ended, that is the error
            found["thinking"][state] = {"missing": error.what}
    return found


def memory_now(labels: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine's processes hold of this machine's memory, and of that of its GPUs."""
    container = facts.get("container")
    own = container.get("id") if isinstance(container, Mapping) else None
    shot = snapshot(Owned(roots={os.getpid()}, containers={own} if own else set()))
    return {"host": engine_memory(labels, container=own), "gpus": _gpu_memory(shot.as_json())}


def _gpu_memory(shot: Mapping[str, Any]) -> Mapping[str, Any]:
    """The sum over the GPUs of what the driver says that the engine's processes have taken."""
    gpus = shot.get("gpus", shot)
    if isinstance(gpus, Mapping):
        return gpus  # why there is none
    told = [one["compute_processes"] for one in gpus]
    used = [own["used_bytes"] for one in told if not isinstance(one, Mapping) for own in one if own["ours"]]
    if not used or any(isinstance(one, Mapping) for one in used):
        return {"missing": "the driver names no process of the engine with its memory"}
    return {"used_bytes": sum(used), "processes": len(used)}


def write_document(folder: Path, document: Mapping[str, Any]) -> None:
    """The document and the tables of all that was asked, in `folder`; the document last: with it the measurement is whole."""
    for name, schema in TABLES.items():
        files = sorted(folder.glob(f"*/{name}"))
        replace_visible(folder / name, joined_bytes(schema, files))
    replace_visible(folder / DOCUMENT, canonical_bytes(plain({"schema": SCHEMA, **document})))


def rows_of(path: Path) -> int:
    """How many rows a table of a start-up has."""
    return int(pq.read_metadata(path).num_rows)
