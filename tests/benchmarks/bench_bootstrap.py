"""The cluster bootstrap: milliseconds for all measures of a panel, draws included, and the same by gathering every draw.

Each measure's interval comes from population_mean; the draws are made anew in each turn, once for all measures.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.fast_resample import drawn_counts, replicate_ratios
from engcmp_assets.kernel.measures import ROW_MEASURES
from engcmp_assets.kernel.splitmix import cluster_draws
from engcmp_assets.kernel.uncertainty import PANEL, Preset, population_mean

Float64 = npt.NDArray[np.float64]
_MEASURES = len(ROW_MEASURES) + 3  # and the two confident shares, and misses


def gathered(sums: Float64, counts: Float64, preset: Preset) -> Float64:
    """The statistics as the law words them: each replicate's clusters picked out and summed."""
    draws = cluster_draws(len(sums), preset.replicates, preset.seed)
    return np.asarray(sums[draws].sum(axis=1) / counts[draws].sum(axis=1))


def measure(windows: int, rows: int, turns: int, preset: Preset = PANEL) -> None:
    """Time a panel of `windows` windows with `rows` rows each, and print a line."""
    chance = np.random.default_rng(1)
    ids = [f"window-{number:03d}" for number in range(windows) for _ in range(rows)]
    values = chance.gamma(0.5, 1.0, (_MEASURES, len(ids)))
    whole, draws, slow = [], [], []
    for _ in range(turns):
        drawn_counts.cache_clear()
        started = time.perf_counter()
        drawn_counts(windows, preset.replicates, preset.seed)
        draws.append(time.perf_counter() - started)
        for one in values:
            population_mean(one, ids, preset=preset)
        whole.append(time.perf_counter() - started)
        sums = values.reshape(_MEASURES, windows, rows).sum(axis=2)
        counts = np.full(windows, float(rows))
        started = time.perf_counter()
        expected = [gathered(one, counts, preset) for one in sums]
        slow.append(time.perf_counter() - started)
    found = [replicate_ratios(one, counts, drawn_counts(windows, preset.replicates, preset.seed)) for one in sums]
    error = max(float(np.abs(a / b - 1).max()) for a, b in zip(found, expected, strict=True))
    ratio = statistics.median(b / a for a, b in zip(whole, slow, strict=True))
    print(
        f"{windows:7}{len(ids):8}{statistics.median(whole) * 1e3:10.1f}{statistics.median(draws) * 1e3:10.1f}"
        f"{statistics.median(slow) * 1e3:12.1f}{ratio:8.1f}{error:10.1e}"
    )


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_bootstrap.py --windows 25 64 --rows 64"
    )
    parser.add_argument("--windows", type=int, nargs="+", default=[25, 64], help="Windows of a panel (25 64).")
    parser.add_argument("--rows", type=int, default=64, help="Rows of a window (64).")
    parser.add_argument("--turns", type=int, default=5, help="How often each is timed (5).")
    arguments = parser.parse_args()
    print(f"{PANEL.replicates:,} replicates, {_MEASURES} measures, {arguments.turns} turns, medians in milliseconds")
    print(f"{'windows':>7}{'rows':>8}{'all':>10}{'draws':>10}{'gathered':>12}{'ratio':>8}{'error':>10}")
    for windows in arguments.windows:
        measure(windows, arguments.rows, arguments.turns)


if __name__ == "__main__":
    main()
