"""The one value of each completed request that a figure is a quantile of (MEASURES section 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.throughput.scheduling import CLEAN_BELOW
from engcmp_assets.kernel.throughput.stream_arrays import Columns

MS = 1_000_000  # ns


def _ms(start: Any, end: Any) -> Any:
    """Milliseconds from one time to the other. Not by numpy.ma's operators: they cost a small cell ten times the arithmetic."""
    mask = np.ma.getmaskarray(start) | np.ma.getmaskarray(end)
    return np.ma.array((end.data - start.data) / MS, mask=mask)


def _clean(done: Columns, name: str) -> Any:
    clean = (done["overlap"] < CLEAN_BELOW).filled(False)
    return np.ma.array(done[name].data, mask=np.ma.getmaskarray(done[name]) | ~clean)


_VALUES: dict[str, Callable[[Columns], Any]] = {
    "ttft": lambda done: _ms(done["t0_ns"], done["first"]),
    "ttfa": lambda done: _ms(done["t0_ns"], done["answer"]),
    "ttft_scheduled": lambda done: _ms(done["scheduled_at_ns"], done["first"]),
    "e2e": lambda done: _ms(done["t0_ns"], done["last"]),
    "decode": lambda done: done["decode"],
    "decode_first1": lambda done: done["decode_first1"],
    "clean_decode": lambda done: _clean(done, "decode"),
    "clean_decode_first1": lambda done: _clean(done, "decode_first1"),
    "overlap": lambda done: done["overlap"],
}
READ = ("first", "t0_ns", "answer", "scheduled_at_ns", "last", "decode", "decode_first1", "overlap")
"""The columns that values are made of."""
QUANTILES: dict[str, tuple[str, float]] = {
    **{
        f"{name}_{word}_ms": (name, share)
        for name in ("ttft", "ttfa", "ttft_scheduled")
        for word, share in (("median", 0.5), ("p90", 0.9), ("max", 1.0))
    },
    "e2e_median_ms": ("e2e", 0.5),
    **{f"{name}_tok_s": (name, 0.5) for name in ("decode", "decode_first1", "clean_decode", "clean_decode_first1")},
    "overlap_share": ("overlap", 0.5),
}
"""Of which value of single requests a measure is a quantile, and which one."""


def request_values(done: Columns, name: str) -> Any:
    """A value of the completed requests, a masked float64 array in their order: ms, tokens/s or a share."""
    return _VALUES[name](done)


def values_by_name(done: Columns) -> dict[str, npt.NDArray[np.float64]]:
    """Every value by name, of the completed requests that have it, in their order."""
    return {name: request_values(done, name).compressed() for name in _VALUES}
