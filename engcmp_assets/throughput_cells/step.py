"""throughput_cells: an arm's speeds, cell by cell, from the events of its streams."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from engcmp_assets.engine_launch.serving import plan_of
from engcmp_assets.kernel.names import CELLS, EVENTS
from engcmp_assets.kernel.plots import DotRow, dots_with_intervals
from engcmp_assets.kernel.records import ArmKey, Figure
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.tables import parquet_bytes
from engcmp_assets.kernel.throughput.recounts import recount_words
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS
from engcmp_assets.kernel.throughput.startup_documents import startup_figures, startup_summary
from engcmp_assets.kernel.throughput.startup_measures import STARTUP_IDS
from engcmp_assets.kernel.work import Made, Product, Step, Use, Work
from engcmp_assets.throughput_cells.documents import COLUMNS, arm_speeds, cell_checks, cell_table, cells_document
from engcmp_assets.throughput_events.step import (
    EVENTS_FILE,
    REQUESTS_FILE,
    SESSIONS_FILE,
    STARTUP_EVENTS_FILE,
    STARTUP_FILE,
    STARTUP_REQUESTS_FILE,
    read_sessions,
)
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

CELLS_FILE = "cells.json"
_PLOTTED = "aggregate_tok_s"


def parameters(study: Study, arm: ArmKey | None) -> Mapping[str, Any]:
    """Study and arm: figures carry their names, and two arms must not share them."""
    return {"study": study.protocol.study, "arm": str(arm), "ignore_eos": plan_of(study).sampling.ignore_eos}


def document_of(work: Work, arm: ArmKey) -> dict[str, Any]:
    """cells.json of an arm, from its events; with `startup` where the study measures that."""
    events, requests = (pl.read_parquet(work.file(EVENTS, name, arm)) for name in (EVENTS_FILE, REQUESTS_FILE))
    document = cells_document(events, requests, read_sessions(work.file(EVENTS, SESSIONS_FILE, arm)))
    if work.study.protocol.startup:
        kept = json.loads(work.file(EVENTS, STARTUP_FILE, arm).read_bytes())
        tables = [
            pl.read_parquet(work.file(EVENTS, name, arm)) for name in (STARTUP_EVENTS_FILE, STARTUP_REQUESTS_FILE)
        ]
        document["startup"] = startup_summary(kept, *tables)
    return document


def startup_of(study: str, arm: ArmKey, document: Mapping[str, Any]) -> list[Figure]:
    """The figures of an arm's start-up; none where the study does not measure it."""
    return startup_figures(study, arm, document["startup"]) if "startup" in document else []


def make(work: Work) -> Made:
    """The figures of every cell and repeat, as JSON and as a table."""
    arm = work.arm
    if arm is None:
        raise EngcmpError("speeds belong to an arm", remedy="choose a partition")
    document = document_of(work, arm)
    table = cell_table(document)
    requests = pl.read_parquet(work.file(EVENTS, REQUESTS_FILE))
    flags = sorted({f"{cell['cell_id']}: {flag}" for cell in document["cells"] for flag in cell["flags"]})
    return Made(
        products=[
            Product(CELLS_FILE, "json", canonical_bytes(document), rows=len(document["cells"])),
            Product(
                "cells.parquet", "parquet", parquet_bytes(COLUMNS, table), rows=len(table["cell_id"]), columns=COLUMNS
            ),
            Product("plot.png", "png", _plot(arm, document), role="view"),
        ],
        figures=[
            *arm_speeds(work.study.protocol.study, arm, document), *startup_of(work.study.protocol.study, arm, document),
        ],
        checks=cell_checks(document, requests, fixed_output=plan_of(work.study).sampling.ignore_eos),
        flags=flags,
        details={
            "cells": [cell["cell_id"] for cell in document["cells"]],
            "labels": sorted({label for cell in document["cells"] for label in cell["labels"]}),
            "counted_by": {cell["cell_id"]: cell["counted_by"] for cell in document["cells"]},
            "recounted": {cell["cell_id"]: recount_words(cell["recounted"]) for cell in document["cells"] if "recounted" in cell},
            **({"startup": document["startup"]} if "startup" in document else {}),
        },
    )  # fmt: skip


def _plot(arm: ArmKey, document: Mapping[str, Any]) -> bytes:
    rows = []
    for run in (document, *document["repeats"]):
        for cell in run["cells"]:
            found = cell["figures"][_PLOTTED]
            group = f"repeat {run['repeat']}"
            rows.append(DotRow(cell["cell_id"], found.get("value"), None, None, group, found.get("missing", "")))
    return dots_with_intervals(f"{arm}: tokens of all streams", rows, unit=f"tokens/s ({_PLOTTED})")


def step(study: Study) -> Step:
    """The step of a study that measures speed."""
    plan = plan_of(study)
    startup = (STARTUP_FILE, STARTUP_EVENTS_FILE, STARTUP_REQUESTS_FILE) if study.protocol.startup else ()
    return Step(
        artifact=CELLS,
        title="Speed: cells",
        description=(
            "The arm's speeds, cell by cell: time to the first token, decode rate of a stream, tokens of all streams, and what tells how "
            f"they came about. A cell is a kind of content, a prompt length and a number of requests at a time. {plan.requests} requests "
            "each; a cell in which one failed has no figures. Repeat 1 is the figure, later repeats show by how much it drifts."
            + (" And its start-up: ready time, memory, a repeated prompt, the thinking switch." if startup else "")
        ),
        group="analysis",
        kinds=("polars", "parquet"),
        version="2",
        uses=(
            Use("frozen_protocol", "study", ()),
            Use(EVENTS, "arm", (EVENTS_FILE, REQUESTS_FILE, SESSIONS_FILE, *startup)),
        ),
        per_arm=True,
        parameters=parameters,
        make=make,
        measures=tuple(sorted((*SPEED_IDS, *(STARTUP_IDS if startup else ())))),
        columns=COLUMNS,
        checks={
            "cells_complete": "No request of any cell failed",
            "client_was_not_the_limit": "In no cell was the client late or out of time",
            "prompt_tokens_as_planned": "The engine counted as many prompt tokens as were sent",
            "output_lengths_as_asked": "Replies are as long as they were asked to be",
        },
    )
