"""The analysis of a cell: seconds per million events, from tables in memory to the cell's figures and other clients' metrics.

A cell has 16 streams at once; the number of replies grows with the number of events. Each cell costs some milliseconds whatever its
size, so the smallest one reads highest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import polars as pl

from engcmp_assets.kernel.throughput.batches import ratio_interval
from engcmp_assets.kernel.throughput.cells import cell_figures
from engcmp_assets.kernel.throughput.peer_metrics import peer_metrics
from engcmp_assets.kernel.throughput.streams import stream_table

_WIDTH, _UPDATES = 16, 500
_MS = 1_000_000


def made_cell(events: int, seed: int = 1) -> tuple[pl.DataFrame, pl.DataFrame]:
    """events.parquet and requests.parquet of about `events` token events in replies of 500, 16 at once."""
    chance = np.random.default_rng(seed)
    replies = max(_WIDTH, events // _UPDATES)
    updates = events // replies
    batch = np.arange(replies) // _WIDTH
    t0 = batch.astype(np.int64) * (updates * 20 + 1000) * _MS + chance.integers(0, 50 * _MS, replies)
    gaps = chance.integers(1 * _MS, 20 * _MS, (replies, updates))
    gaps[:, 0] += 100 * _MS
    at = t0[:, None] + np.cumsum(gaps, axis=1)
    tokens = chance.integers(1, 4, (replies, updates)).astype(np.int32)
    ids = np.array([f"c-{number:06d}" for number in range(replies)])
    table = pl.DataFrame(
        {
            "request_id": np.repeat(ids, updates),
            "t_ns": at.ravel(),
            "kind": np.tile(np.where(np.arange(updates) < updates // 2, "reasoning", "answer"), replies),
            "tokens": tokens.ravel(),
        }
    )
    none = pl.lit(None, pl.Int64)
    requests = pl.DataFrame(
        {
            "request_id": ids, "t0_ns": t0, "last_at_ns": at[:, -1], "done_at_ns": at[:, -1], "ttft_ns": at[:, 0] - t0,
            "n_tokens": tokens.sum(axis=1), "n_first_tokens": tokens[:, 0], "usage_completion_tokens": tokens.sum(axis=1), "batch": batch,
        }
    )  # fmt: skip
    return table, requests.with_columns(
        pl.lit("c").alias("cell_id"), pl.lit("ok").alias("status"), pl.lit("length").alias("finish_reason"),
        pl.lit(None, pl.String).alias("cause"), pl.lit([], pl.List(pl.String)).alias("flags"),
        *(none.alias(name) for name in ("scheduled_at_ns", "ttfa_ns", "usage_prompt_tokens", "cached_tokens")),
    )  # fmt: skip


def measure(events: int, turns: int) -> None:
    """Time one size and print a line."""
    table, requests = made_cell(events)
    cell = {"cell_id": "c", "concurrency": _WIDTH}
    if not cell_figures(table, requests, cell)["complete"]:
        raise SystemExit("the made cell is not complete")
    streams = stream_table(table, requests)
    figures = timed(lambda: cell_figures(table, requests, cell), turns)
    peers = timed(lambda: peer_metrics(table, requests), turns)
    interval = timed(lambda: ratio_interval(streams, streams, "decode_tok_s"), turns)
    millions = len(table) / 1e6
    print(
        f"{len(table):>10,}{len(requests):>9,}{figures[0] / millions:>12.3f}{figures[1] / millions:>12.3f}"
        f"{peers[0] / millions:>12.3f}{peers[1] / millions:>12.3f}{interval[0] * 1e3:>14.1f}"
    )


def timed(work: Callable[[], object], turns: int) -> tuple[float, float]:
    """Median seconds of `work`, by the wall and of the processor: other work on the machine lengthens the first alone."""
    walls, own = [], []
    for _ in range(turns):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        own.append(time.process_time() - cpu)
    return statistics.median(walls), statistics.median(own)


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: bench_cells.py --events 10000 1000000")
    parser.add_argument(
        "--events", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="Token events (10^4 to 10^6)."
    )
    parser.add_argument("--turns", type=int, default=5, help="How often each is timed (5).")
    arguments = parser.parse_args()
    print(
        f"{arguments.turns} turns, medians; seconds per million events, and milliseconds of one interval of 20,000 replicates"
    )
    print(f"{'events':>10}{'replies':>9}{'figures':>12}{'CPU':>12}{'peers':>12}{'CPU':>12}{'interval ms':>14}")
    for events in arguments.events:
        measure(events, arguments.turns)


if __name__ == "__main__":
    main()
