"""The batches of a cell: their spans, and the interval of a ratio that resamples them (MEASURES sections 4 and 6).

The requests of a batch wait on one another, so a batch is one observation. Under 8 batches there is no interval.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.records import Interval, Missing
from engcmp_assets.kernel.throughput.request_values import QUANTILES, READ, request_values
from engcmp_assets.kernel.throughput.stream_arrays import SPAN_READ, span_columns
from engcmp_assets.kernel.throughput.streams import frame_columns
from engcmp_assets.kernel.uncertainty import BOOTSTRAP_CLUSTERS, PANEL, Preset

Float64 = npt.NDArray[np.float64]

_TURN = 1 << 9  # replicates at once: memory does not grow with their number


def batch_spans(done: pl.DataFrame) -> pl.DataFrame:
    """One row for each batch of a stream table's completed requests, in the order of their start.

    `n` tokens; `wall_ns` from its first sending to its last token; `slot_ns` the same, but up to the next batch's first sending where
    one follows in the run, so that the slots of a run add up to its wall time; `prefill_ns` from its first sending to its last first
    token; `all_from` and `all_until` (ns): while every stream of it decodes. Requests without a batch are one batch; a `run` is a
    repeat of the cell, between two of which nothing was timed.
    """
    columns = frame_columns(done, SPAN_READ)
    return pl.DataFrame(span_columns(columns))


def ratio_interval(
    candidate: pl.DataFrame, baseline: pl.DataFrame, measure_id: str, *, preset: Preset = PANEL, level: float = 0.95
) -> Interval | Missing:
    """The interval of candidate / baseline of one measure in one cell, both arms' stream tables resampled by the same batches.

    A batch is known by its run and number, which hold the same prompts on both arms; the draws are SplitMix64's, so that any
    implementation gives the same interval. Missing under 8 batches that have a value on both arms, and for a measure that has no
    batches' sums and is no median or 90th percentile.
    """
    sides = [side.filter(pl.col("ok")) for side in (candidate, baseline)]
    statistics = _sums if measure_id in _SUMS else _quantiles
    if measure_id not in _SUMS and QUANTILES.get(measure_id, ("", 1.0))[1] == 1.0:
        return Missing(f"{measure_id} is not resampled")
    batches = _shared(sides, measure_id)
    if len(batches) < BOOTSTRAP_CLUSTERS:
        have = "1 batch has" if len(batches) == 1 else f"{len(batches)} batches have"
        return Missing(f"{have} a value on both arms: an interval needs at least {BOOTSTRAP_CLUSTERS}")
    if preset.replicates * (1 - level) / 2 < 1:
        return Missing(f"{preset.replicates:,} replicates leave less than one beyond a level of {level:g}")
    drawn = drawn_counts(len(batches), preset.replicates, preset.seed)
    upper, lower = (statistics(side, batches, measure_id, drawn) for side in sides)
    if not (lower > 0).all():
        return Missing("a resample of the baseline reads 0: its ratio has no value")
    tail = (1 - level) / 2
    low, high = np.quantile(upper / lower, [tail, 1 - tail], method="linear").tolist()
    method = f"bootstrap of {len(batches)} batches, {preset.replicates:,} replicates, seed {preset.seed}"
    return Interval(low, high, level, method)


_SUMS = {"aggregate_tok_s": ("n", "slot_ns"), "aggregate_steady_tok_s": ("steady", "steady_ns")}
_KEY = ["run", "batch"]


def _shared(sides: list[pl.DataFrame], measure_id: str) -> pl.DataFrame:
    """The batches with a value on both arms, sorted: `run`, `batch` and their `number`."""
    found = []
    for side in sides:
        if measure_id in _SUMS:
            found.append(_parts(side, measure_id).filter(pl.col("whole") > 0).select(_KEY))
        else:
            found.append(_request_values(side, QUANTILES[measure_id][0]).select(_KEY).unique())
    return found[0].join(found[1], on=_KEY, how="semi").sort(_KEY).with_row_index("number")


def _parts(side: pl.DataFrame, measure_id: str) -> pl.DataFrame:
    part, whole = _SUMS[measure_id]
    spans = batch_spans(side).join(side.group_by(_KEY).agg(pl.col("steady").sum()), on=_KEY)
    return spans.select(*_KEY, part=part, whole=whole)


def _sums(side: pl.DataFrame, batches: pl.DataFrame, measure_id: str, drawn: npt.NDArray[np.int32]) -> Float64:
    parts = batches.join(_parts(side, measure_id), on=_KEY, how="left", maintain_order="left")
    return replicate_ratios(
        parts["part"].to_numpy().astype(np.float64), parts["whole"].to_numpy().astype(np.float64), drawn
    )


def _request_values(side: pl.DataFrame, name: str) -> pl.DataFrame:
    """`run`, `batch` and `value` of the requests that have one."""
    values = request_values(frame_columns(side, READ), name)
    return side.select("run", "batch", value=pl.Series(values.tolist(), dtype=pl.Float64)).drop_nulls()


def _quantiles(side: pl.DataFrame, batches: pl.DataFrame, measure_id: str, drawn: npt.NDArray[np.int32]) -> Float64:
    """The measure's quantile over the requests of each replicate's batches, as often as each is drawn (type 7)."""
    name, share = QUANTILES[measure_id]
    rows = _request_values(side, name).join(batches, on=_KEY).sort("value", "number")
    values, numbers = rows["value"].to_numpy(), rows["number"].to_numpy()
    found = np.empty(drawn.shape[1])
    for start in range(0, len(found), _TURN):
        # A replicate's counts lie together: 14 times faster to gather.
        by_replicate = np.ascontiguousarray(drawn[:, start : start + _TURN].T)
        upto = np.cumsum(np.take(by_replicate, numbers, axis=1), axis=1, dtype=np.int64)
        size = upto[:, -1]
        place = (size - 1) * share
        low = np.floor(place).astype(np.int64)
        # Each replicate's counts rise from 1 to its size: moved one after the other, they are one sorted list.
        offset = np.concatenate([[0], np.cumsum(size)[:-1]])
        every = (upto + offset[:, None]).ravel()
        row = np.arange(len(size)) * len(numbers)
        ranks = (low, np.ceil(place).astype(np.int64))
        below, above = (values[np.searchsorted(every, rank + offset, side="right") - row] for rank in ranks)
        found[start : start + _TURN] = below + (above - below) * (place - low)
    return found
