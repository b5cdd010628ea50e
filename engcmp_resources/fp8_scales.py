"""What FP8 weights and their scales say of the BF16 weights they were made from: arithmetic on arrays, no files.

Values are E4M3 without infinities (largest 448). A weight w is stored as q with a scale s, w about q s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_resources.errors import EngcmpError

LARGEST = 448.0
Float32 = npt.NDArray[np.float32]


def _e4m3() -> Float32:
    """The value of each of the 256 codes; both NaN codes are NaN."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values[(codes & 127) == 127] = np.nan  # noqa: PLR2004 - all bits set
    return np.where(codes > 127, -values, values).astype(np.float32)  # noqa: PLR2004 - the sign bit


E4M3 = _e4m3()


@dataclass(frozen=True, slots=True)
class Fp8Relation:
    """Of `values` weights: how many lie further from q s than half a step (`apart`), the worst distance in steps, and of `scales` how many
    are powers of two and how many are the largest weight of their group over 448.
    """

    values: int
    apart: int
    worst_steps: float
    scales: int
    powers_of_two: int
    from_largest: int

    def __add__(self, other: Fp8Relation) -> Fp8Relation:
        return Fp8Relation(
            self.values + other.values, self.apart + other.apart, max(self.worst_steps, other.worst_steps),
            self.scales + other.scales, self.powers_of_two + other.powers_of_two, self.from_largest + other.from_largest,
        )  # fmt: skip

    @property
    def rule(self) -> str:
        """`amax`, `pow2`, or `neither`: the rule that every scale follows."""
        return (
            "amax" if self.from_largest == self.scales else "pow2" if self.powers_of_two == self.scales else "neither"
        )


NOTHING = Fp8Relation(0, 0, 0.0, 0, 0, 0)


def bf16_values(bits: npt.NDArray[np.uint16]) -> Float32:
    """BF16 bits as float32."""
    values: Float32 = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def group_of(shape: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns that one scale is of, for weights [r, c] and scales of this shape.

    One scale for all, one a row, or one for each block. Raises EngcmpError for scales that fit in no such way.
    """
    rows, columns = shape
    if scales in ((), (1,), (1, 1)):
        return rows, columns
    if scales in ((rows,), (rows, 1)):
        return 1, columns
    if len(scales) == 2:  # noqa: PLR2004 - a grid of blocks
        group = (-(-rows // scales[0]), -(-columns // scales[1]))
        group = (
            1 << (group[0] - 1).bit_length(),
            1 << (group[1] - 1).bit_length(),
        )  # blocks are powers of two, the last is cut
        if (-(-rows // group[0]), -(-columns // group[1])) == scales:
            return group
    raise EngcmpError(
        f"scales of shape {list(scales)} do not fit weights of shape {list(shape)}",
        remedy="name the scale tensor that belongs to them",
    )


def relation_of(weights: Float32, codes: npt.NDArray[np.uint8], scales: Float32, group: tuple[int, int]) -> Fp8Relation:
    """The relation of rows of weights [r, c] to their codes [r, c] and scales [groups of rows, groups of columns], group by group.

    A step is the distance of the two codes beside a value, times the scale. Raises EngcmpError for codes that are NaN and scales that are
    not positive and finite.
    """
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise EngcmpError("a scale is not positive and finite", remedy="this is no checkpoint of this format")
    wide = np.repeat(np.repeat(scales, group[0], axis=0)[: len(weights)], group[1], axis=1)[:, : weights.shape[1]]
    values = E4M3[codes]
    if np.isnan(values).any():
        raise EngcmpError("a code is NaN", remedy="this is no checkpoint of this format")
    step = np.maximum(np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-6))) - 3), 2.0**-9).astype(np.float64)
    clipped = np.clip(weights.astype(np.float64) / wide, -LARGEST, LARGEST)
    steps = np.abs(clipped - values) / step
    largest = np.array(
        [[np.abs(weights[i : i + group[0], j : j + group[1]]).max() for j in range(0, weights.shape[1], group[1])]
         for i in range(0, len(weights), group[0])], dtype=np.float64,
    )  # fmt: skip
    mantissa, _ = np.frexp(scales)
    near: npt.NDArray[Any] = np.isclose(scales, largest / LARGEST, rtol=2.0**-7, atol=0)
    return Fp8Relation(
        weights.size, int((steps > 0.5 + 1e-3).sum()), float(steps.max(initial=0.0)), scales.size, int((mantissa == 0.5).sum()),  # noqa: PLR2004 - half a step; frexp of a power of two
        int(near.sum()),
    )  # fmt: skip
