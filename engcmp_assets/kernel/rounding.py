"""Whether log-probabilities were rounded to a few decimals before they were written, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_DECIMALS = 5
_LEAST_VALUES = 20  # distinct ones: fewer may be multiples of a step by chance
_FLOAT32 = 2.0**-23  # relative: a rounded value may have been kept as float32
_FLOAT64 = 1e-9


def rounded_to(values: npt.NDArray[np.floating[Any]]) -> float | None:
    """The coarsest decimal step, 1 to 0.00001, of which all `values` are multiples; None where there is none or too few values to tell."""
    own = np.unique(values[np.isfinite(values)].astype(np.float64))
    if len(own) < _LEAST_VALUES:
        return None
    for decimals in range(_MOST_DECIMALS + 1):
        scaled = own * 10.0**decimals
        if (np.abs(scaled - np.rint(scaled)) <= np.abs(scaled) * _FLOAT32 + _FLOAT64).all():
            return float(10.0**-decimals)
    return None


def rounding_sentence(step: float) -> str:
    """What it costs that log-probabilities (nats) are multiples of `step`."""
    half = f"{step / 2:g}"
    return (
        f"every log-probability is a multiple of {step:g}: they were rounded before they were written, so each is off by up to {half} "
        f"nats, differences below {half} nats cannot be told, and what the listed tokens leave is known to {half} only"
    )
