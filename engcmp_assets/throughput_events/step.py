"""throughput_events: every event of every stream of the plan, one line for each request, and what was known of each session."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from engcmp_assets.engine_launch.serving import measured_plan, plan_of
from engcmp_assets.kernel.names import EVENTS, LOAD_PLAN, PROMPTS, SERVING
from engcmp_assets.kernel.plots import bars
from engcmp_assets.kernel.records import ArmKey, Check
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.throughput.event_tables import (
    EVENT_COLUMNS,
    EVENTS_SCHEMA,
    REQUEST_COLUMNS,
    REQUESTS_SCHEMA,
    table_bytes,
)
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.throughput_events.plan import Index
from engcmp_assets.throughput_events.startup import DOCUMENT, TABLES, rows_of
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

EVENTS_VERSION = "1"
SCHEMA = "engcmp.speed-sessions/1"
EVENTS_FILE, REQUESTS_FILE, SESSIONS_FILE = "events.parquet", "requests.parquet", "sessions.json"
STARTUP_FILE, STARTUP_EVENTS_FILE, STARTUP_REQUESTS_FILE = DOCUMENT, *(f"startup-{name}" for name in TABLES)
_S = 1e9
# What the cells of a repeat keep beside their events: what the client and the engine told.
_KEPT = ("cell_id", "kind", "concurrency", "loop", "client", "engine", "warmup", "session", "recounted")


def parameters(study: Study, _arm: ArmKey | None) -> Mapping[str, Any]:
    """The plan as it is measured. The study is part of it: no other study's measurement is this one's."""
    return {"study": study.protocol.study, "throughput": measured_plan(study), "events_version": EVENTS_VERSION}


def sessions_document(repeats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of each repeat (`repeat`, `began_at_s`, `ended_at_s`, and its `document` as cells.json has it) beside its events."""
    return {
        "schema": SCHEMA,
        "repeats": [
            {
                "repeat": one["repeat"], "began_at_s": one["began_at_s"], "ended_at_s": one["ended_at_s"],
                "sessions": one["document"]["sessions"],
                "cells": [{name: cell[name] for name in _KEPT if name in cell} for cell in one["document"]["cells"]],
            }
            for one in repeats
        ],
    }  # fmt: skip


def events_made(
    index: Index, sessions: Mapping[str, Any], folders: Sequence[Path], *, startup: Path | None = None
) -> Made:
    """The artifact of a plan's repeats; each folder holds the two tables of one repeat, or of all, `startup` what was measured of it."""
    tables = {
        name: _joined(schema, [folder / name for folder in folders])
        for name, schema in ((EVENTS_FILE, EVENTS_SCHEMA), (REQUESTS_FILE, REQUESTS_SCHEMA))
    }
    events, requests = (pl.read_parquet(io.BytesIO(tables[name])) for name in (EVENTS_FILE, REQUESTS_FILE))
    cells = [cell for repeat in sessions["repeats"] for cell in repeat["cells"]]
    late = [f"{cell['cell_id']}: {', '.join(cell['client']['reasons'])}" for cell in cells if cell["client"]["limit"]]
    planned = _planned(index)
    found = {
        row["request_id"]: (
            row["cell_id"],
            row["repeat"],
            row["seed"],
            row["max_tokens"],
            row["expected_prompt_tokens"],
        )
        for row in requests.iter_rows(named=True)
    }
    wrong = sorted(name for name in set(planned) | set(found) if planned.get(name) != found.get(name))
    spans = requests.group_by("cell_id", "repeat", maintain_order=True).agg(
        seconds=(pl.col("done_at_ns").max() - pl.col("t0_ns").min()) / _S
    )
    spans = spans.with_columns(seconds=pl.col("seconds").fill_null(0.0))
    plot = bars(
        "Time that each cell took",
        [f"{cell}, repeat {repeat}" for cell, repeat in zip(spans["cell_id"], spans["repeat"], strict=True)],
        spans["seconds"].to_list(),
        unit="seconds",
        groups=[f"repeat {repeat}" for repeat in spans["repeat"]],
    )
    failed = len(requests.filter(pl.col("status") != "ok"))
    return Made(
        products=[
            Product(EVENTS_FILE, "parquet", tables[EVENTS_FILE], rows=len(events), columns=EVENT_COLUMNS),
            Product(REQUESTS_FILE, "parquet", tables[REQUESTS_FILE], rows=len(requests), columns=REQUEST_COLUMNS),
            Product(SESSIONS_FILE, "json", canonical_bytes(dict(sessions))),
            *(_startup_products(startup) if startup else ()),
            Product("plot.png", "png", plot, role="view"),
        ],
        checks=[
            Check(
                "plan_followed", not wrong,
                f"Each of {len(planned)} planned requests was sent once, in its cell and repeat, with its seed and length"
                if not wrong else f"{len(wrong)} requests are not as planned, first {wrong[0]}",
                {"requests": len(found)},
            ),
            Check(
                "client_kept_up", not late,
                "; ".join(late) or "In no cell was this client the limit, and it passed its calibration before each session",
                {"cells": len(cells)},
            ),
        ],
        flags=["the client was the limit"] if late else [],
        details={
            "repeats": [{name: one[name] for name in ("repeat", "began_at_s", "ended_at_s", "sessions")} for one in sessions["repeats"]],
            "failed_requests": failed,
        },
    )  # fmt: skip


def _startup_products(folder: Path) -> list[Product]:
    tables = zip(TABLES, (EVENT_COLUMNS, REQUEST_COLUMNS), strict=True)
    return [
        Product(STARTUP_FILE, "json", (folder / DOCUMENT).read_bytes()),
        *(
            Product(
                f"startup-{name}", "parquet", (folder / name).read_bytes(), rows=rows_of(folder / name), columns=columns
            )
            for name, columns in tables
        ),
    ]


def _joined(schema: pa.Schema, files: Sequence[Path]) -> bytes:
    """The tables one after the other; the same bytes again where the one file is what this has written."""
    return table_bytes(pa.concat_tables([pq.read_table(file, schema=schema) for file in files]).combine_chunks())


def _planned(index: Index) -> dict[str, tuple[str, int, int, int, int]]:
    return {
        one.request_id: (cell.cell_id, cell.repeat, one.seed, index.output_tokens, cell.prompt_tokens)
        for cell in index.cells
        for one in cell.requests
    }


def read_sessions(path: Path) -> dict[str, Any]:
    """sessions.json of a measured arm."""
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


def _unreachable(_work: Work) -> Made:
    raise EngcmpError("speed is measured within an engine's life", remedy="call the speed session")


def step(study: Study) -> Step:
    """The step of a study that measures speed."""
    plan = plan_of(study)
    return Step(
        artifact=EVENTS,
        title="Speed: events",
        description=(
            f"When each token of each reply came: {len(plan.cells)} cells (kind of content, prompt length, requests at a time), measured "
            f"{plan.repeats} times by a client of our own on this machine. Every speed is computed from these events. Replies are kept "
            "as counts and a hash, not as text. Prompts are frozen token ids that begin with a line that no other prompt has."
        ),
        group="capture",
        kinds=("parquet",),
        version=EVENTS_VERSION,
        uses=(
            Use("frozen_protocol", "study", ()),
            Use("prompt_set", "arm", (LOAD_PLAN, PROMPTS)),
            Use(SERVING, "arm", ("spec.json",)),
        ),
        per_arm=True,
        parameters=parameters,
        make=_unreachable,
        columns=REQUEST_COLUMNS,
        checks={
            "plan_followed": "Every planned request was sent once, with the frozen prompt, its seed and its length",
            "client_kept_up": "The client was on time in every cell: what was measured is the engine",
        },
    )
