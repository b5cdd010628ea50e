"""cells.json of an arm: every cell of its first repeat, and of the later repeats, which show the drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.names import SPEED, figure_id
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.records import ArmKey, Check, Figure, Missing, plain
from engcmp_assets.kernel.throughput.cells import cell_figures
from engcmp_assets.kernel.throughput.speed_measures import SPEED_IDS

SCHEMA = "engcmp.speed-cells/1"
_NO_INTERVAL = Missing(
    "a speed has an interval only as a ratio of two arms, from batches; the drift repeats are beside it"
)
COLUMNS = (
    Column("cell_id", "str", "1", "Name of the cell: content kind, prompt length in tokens, requests at a time"),
    Column("repeat", "int", "1", "Repeat of the plan: 1 is the measured one, later ones show the drift"),
    Column("measure", "str", "1", "Measure id; its definition is on the summary page"),
    Column("value", "float", "as the measure", "Value in the cell; empty where missing, with its reason in cells.json"),
    Column("unit", "str", "1", "Unit of the measure"),
    Column("requests", "int", "1", "Requests of the cell"),
    Column("complete", "str", "1", "yes, or no where a request failed: then the cell has no figures"),
)
Cell = Mapping[str, Any]


def cells_document(events: pl.DataFrame, requests: pl.DataFrame, sessions: Mapping[str, Any]) -> dict[str, Any]:
    """`cells` are those of repeat 1, `repeats` the later ones; each repeat with when it began, in seconds of the wall clock."""
    repeats = []
    for one in sessions["repeats"]:
        own = requests.filter(pl.col("repeat") == one["repeat"])
        cells = [_cell(events, own, cell, one["sessions"][cell["session"]]) for cell in one["cells"]]
        repeats.append({"repeat": one["repeat"], "started_at_s": one["began_at_s"], "cells": cells})
    return {"schema": SCHEMA, **repeats[0], "repeats": repeats[1:]}


def _cell(events: pl.DataFrame, requests: pl.DataFrame, known: Cell, session: Mapping[str, Any]) -> dict[str, Any]:
    own = requests.filter(pl.col("cell_id") == known["cell_id"])
    found = cell_figures(
        events.join(own.select("request_id"), on="request_id", how="semi", maintain_order="left"), own, known
    )
    before = known["engine"].get("before", {})
    busy = int(before.get("running", 0) + before.get("waiting", 0))
    flags = [*found["flags"], *([f"the engine was not idle before: {busy} requests"] if busy else [])]
    sent = session.get("prompts", {})
    labels = [f"prompts were sent as chats: {sent['why']}"] if sent.get("sent_as") == "chats" else []
    more = {"flags": flags, "labels": [*found["labels"], *labels], "start": session["start"]}
    more |= {"recounted": known["recounted"]} if "recounted" in known else {}  # replies were not always counted again
    document: dict[str, Any] = plain(found | more | {"loop": known["loop"], "warmup": known["warmup"]})
    return document


def cell_checks(document: Mapping[str, Any], requests: pl.DataFrame, *, fixed_output: bool) -> list[Check]:
    """Whether the cells say what their names promise; nothing here changes a figure."""
    runs = [document, *document["repeats"]]
    named = [(f"{cell['cell_id']}, repeat {run['repeat']}", cell) for run in runs for cell in run["cells"]]
    failed = [
        f"{name}: {len(cell['failures'])} of {cell['requests']} requests failed"
        for name, cell in named
        if not cell["complete"]
    ]
    limited = [name for name, cell in named if cell["client"].get("limit")]
    done = requests.filter(pl.col("status") == "ok")
    prompts = done.filter(pl.col("usage_prompt_tokens") != pl.col("expected_prompt_tokens"))["request_id"].to_list()
    untold = done["usage_prompt_tokens"].null_count()
    short = done.filter(pl.col("n_tokens") != pl.col("max_tokens"))["request_id"].to_list() if fixed_output else []
    return [
        Check(
            "cells_complete", not failed, "; ".join(failed) or f"Every request of all {len(named)} cells was answered whole",
            {"cells": len(named), "incomplete": len(failed)},
        ),
        Check(
            "client_was_not_the_limit", not limited,
            f"It was in {', '.join(limited)}" if limited else "The client was on time in every cell",
            {"cells": len(named)},
        ),
        Check(
            "prompt_tokens_as_planned", not prompts,
            f"{len(prompts)} requests have another number of prompt tokens, first {prompts[0]}" if prompts
            else "The engine counted the planned prompt tokens" + (f"; {untold} replies do not state them" if untold else ""),
            {"requests": len(done)},
        ),
        Check(
            "output_lengths_as_asked", not short,
            f"{len(short)} replies have another length than asked for, first {short[0]}" if short
            else "Every reply has the length that was asked for" if fixed_output else "Replies may end by themselves",
            {"requests": len(done)},
        ),
    ]  # fmt: skip


def cell_table(document: Mapping[str, Any]) -> dict[str, list[Any]]:
    """One line for each measure of each cell and repeat."""
    table: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
    for run in (document, *document["repeats"]):
        for cell in run["cells"]:
            for measure in SPEED_IDS:
                line = (
                    cell["cell_id"], run["repeat"], measure, cell["figures"][measure].get("value"), MEASURES[measure].unit,
                    cell["requests"], "yes" if cell["complete"] else "no",
                )  # fmt: skip
                for column, value in zip(COLUMNS, line, strict=True):
                    table[column.name].append(value)
    return table


def arm_speeds(study: str, arm: ArmKey, document: Mapping[str, Any]) -> list[Figure]:
    """Every measure in every cell of repeat 1, with what later repeats read beside it."""
    later = [(run["repeat"], {cell["cell_id"]: cell for cell in run["cells"]}) for run in document["repeats"]]
    return [
        _figure(f"{study}/{arm}", arm, cell, measure, [(repeat, cells[cell["cell_id"]]) for repeat, cells in later])
        for cell in document["cells"]
        for measure in SPEED_IDS
    ]


def _figure(owner: str, arm: ArmKey, cell: Cell, measure: str, later: Sequence[tuple[int, Cell]]) -> Figure:
    found, definition = cell["figures"][measure], MEASURES[measure]
    rest = {name: value for name, value in found.items() if name not in ("value", "unit", "version", "missing")}
    return Figure(
        figure_id=figure_id(owner, SPEED, cell["cell_id"], measure),
        label=f"{arm}, {cell['cell_id']}: {definition.title}",
        measure=measure,
        measure_version=definition.version,
        unit=definition.unit,
        panel=SPEED,
        population=cell["cell_id"],
        value=Missing(found["missing"]) if "missing" in found else float(found["value"]),
        interval=_NO_INTERVAL,
        rows=cell["requests"],
        clusters=cell["batches"],
        details={
            "arm": str(arm),
            "of": rest,
            "repeats": {
                str(repeat): {k: v for k, v in one["figures"][measure].items() if k in ("value", "missing")}
                for repeat, one in later
            },
            "flags": cell["flags"],
            "labels": cell["labels"],
        },
    )
