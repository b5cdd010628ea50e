"""An arm's speeds as its summary holds them: the figures that a reader compares first, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.records import Figure
from engcmp_assets.kernel.throughput.ratios import COMPARED, SCHEDULED

_SHOWN = (
    *COMPARED,
    "decode_first1_tok_s",
)  # the last where an engine does not say how many tokens its first update holds
_KEPT = ("cell_id", "requests", "concurrency", "complete", "flags", "labels")


def speed_cells(document: Mapping[str, Any], figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Each cell of the measured repeat of cells.json: how it was measured, and of its `figures` those that are compared."""
    opened = {cell["cell_id"] for cell in document["cells"] if cell["loop"] == "open"}
    compared = [
        one.as_json()
        for one in figures
        if one.measure in _SHOWN or (one.measure in SCHEDULED and one.population in opened)
    ]
    return [
        {
            **{name: cell[name] for name in _KEPT},
            "repeats": 1 + len(document["repeats"]),
            "figures": [one for one in compared if one["population"] == cell["cell_id"]],
        }
        for cell in document["cells"]
    ]
