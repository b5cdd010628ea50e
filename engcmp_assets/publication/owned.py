"""All figures of an arm or a pair, whatever they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.publication.gaps import gap_figures_of
from engcmp_assets.publication.replies import reply_figures_of
from engcmp_assets.publication.speed import speed_figures
from engcmp_assets.publication.startup import startup_figures_of


def figures_of_owner(own: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of rows, speeds, start-up, replies and gaps, in this order."""
    return [
        *own["figures"],
        *speed_figures(own),
        *startup_figures_of(own),
        *reply_figures_of(own),
        *gap_figures_of(own),
    ]
