"""The scheduling explanation of two arms: whether the decode itself is faster, or one engine orders prefill and decode otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from engcmp_assets.kernel.records import Missing, plain
from engcmp_assets.kernel.throughput.bands import Run, figure_value, ratio_of
from engcmp_assets.kernel.throughput.batches import batch_spans
from engcmp_assets.kernel.throughput.scheduling import aggregate_parts, decode_by_overlap


def scheduling_explanation(candidate: Run, baseline: Run) -> dict[str, Any]:
    """Plain JSON of every cell that both runs completed and whose streams are at hand.

    `overlap_share` of both; `decode_ratio` and `clean_decode_ratio` (candidate / baseline): where the first is far from 1 and the second
    is near it, streams decode alike and the order differs; `aggregate`, the parts of the difference in aggregate (AggregateParts).
    `decode_by_overlap` is over the streams of all these cells, of each side. Where an arm cannot tell the tokens of its first update, both
    take 1. Raises nothing: what cannot be said is missing with its reason.
    """
    first1 = any(not cell["first_update_counted"] for run in (candidate, baseline) for cell in run.cells.values())
    suffix = "_first1" if first1 else ""
    cells, pooled = [], {side: list[pl.DataFrame]() for side in ("candidate", "baseline")}
    for cell_id in candidate.cells:
        if not all(_whole(run, cell_id) for run in (candidate, baseline)):
            continue
        done = [run.streams[cell_id].filter("ok") for run in (candidate, baseline)]
        for side, own in zip(pooled, done, strict=True):
            pooled[side].append(own.select("overlap", f"decode{suffix}"))

        def ratio(name: str, cell_id: str = cell_id) -> float | Missing:
            return ratio_of(figure_value(candidate, cell_id, name), figure_value(baseline, cell_id, name))

        cells.append(
            {
                "cell_id": cell_id,
                "overlap_share": [figure_value(run, cell_id, "overlap_share") for run in (candidate, baseline)],
                "prefill_share": [figure_value(run, cell_id, "prefill_share") for run in (candidate, baseline)],
                "decode_ratio": ratio(f"decode{suffix}_tok_s"),
                "clean_decode_ratio": ratio(f"clean_decode{suffix}_tok_s"),
                "aggregate": aggregate_parts(batch_spans(done[0]), batch_spans(done[1])),
            }
        )
    document: dict[str, Any] = plain(
        {
            "cells": cells,
            "decode_by_overlap": {side: _bins(tables, f"decode{suffix}") for side, tables in pooled.items()},
            "labels": ["the first update of a reply is taken as 1 token on both sides"] if first1 else [],
        }
    )
    return document


def _whole(run: Run, cell_id: str) -> bool:
    cell: Mapping[str, Any] | None = run.cells.get(cell_id)
    return cell is not None and bool(cell["complete"]) and cell_id in run.streams


def _bins(tables: list[pl.DataFrame], decode: str) -> Any:
    return decode_by_overlap(pl.concat(tables), decode) if tables else Missing("no cell is complete on both arms")
