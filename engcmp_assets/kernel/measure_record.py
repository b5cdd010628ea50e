"""The record of one measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure: `id` and `version` name it in every published figure.

    `definition` is exact and written for a newcomer; column descriptions and pages quote it. `better` says which
    direction is closer to the reference, or for a speed the better one, and `neither` where no direction is.
    """

    id: str
    version: int
    unit: str
    title: str
    definition: str
    better: Literal["lower", "higher", "neither"]
