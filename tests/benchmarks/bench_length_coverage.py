"""How often the interval of the length ratio holds the true one: `python tests/benchmarks/bench_length_coverage.py --trials 400`.

Each line is one share of capped replies (of both arms). `told` counts the trials in which the ratio was not withheld; `cover` is of all
trials with the rule on withholding switched off, `cover_told` of those told.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "kernel" / "reply_lengths"))

from length_draws import capped_at, drawn

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.reply_lengths import censored_fit
from engcmp_assets.kernel.reply_lengths.records import pair_up
from engcmp_assets.kernel.reply_lengths.under_cap import under_the_cap
from engcmp_assets.kernel.uncertainty import Preset


def coverage(*, share: float, ratio: float, prompts: int, trials: int, replicates: int) -> dict[str, float]:
    rng, cap, limit = np.random.default_rng(20261130), capped_at(share, ratio), censored_fit.CAPPED_LIMIT
    hits: list[bool] = []
    told, fitted, plain, widths = [], [], [], []
    for trial in range(trials):
        pairs = pair_up(*drawn(rng, ratio=ratio, cap=cap, prompts=prompts), cap)
        plain.append(under_the_cap(pairs).ratio)
        told.append(max(pairs.capped_share("baseline"), pairs.capped_share("candidate")) <= limit)
        censored_fit.CAPPED_LIMIT = 1.0
        found = censored_fit.length_ratio(pairs, preset=Preset(replicates=replicates, seed=trial))
        censored_fit.CAPPED_LIMIT = limit
        if isinstance(found.ratio, Missing) or isinstance(found.interval, Missing):
            hits.append(False)
            continue
        fitted.append(math.log(found.ratio))
        widths.append(found.interval.high / found.interval.low)
        hits.append(found.interval.low <= ratio <= found.interval.high)
    kept = [hit for hit, one in zip(hits, told, strict=True) if one]
    return {
        "capped": share, "cap": cap, "trials": trials, "told": sum(told), "cover": sum(hits) / trials,
        "cover_told": sum(kept) / len(kept) if kept else math.nan, "median": math.exp(float(np.median(fitted))),
        "plain": float(np.mean(plain)), "width": float(np.median(widths)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_length_coverage.py --trials 400 --prompts 32"
    )
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--ratio", type=float, default=1.3)
    parser.add_argument("--capped", type=float, nargs="+", default=[0.05, 0.25])
    asked = parser.parse_args()
    for share in asked.capped:
        row = coverage(
            share=share, ratio=asked.ratio, prompts=asked.prompts, trials=asked.trials, replicates=asked.replicates
        )
        print(json.dumps({name: round(value, 4) for name, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
