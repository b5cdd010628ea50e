"""Names that several rooms share: artifacts, panels and outputs. Keys of figures are made here and nowhere else."""

from __future__ import annotations

from engcmp_assets.kernel.records import ArmKey

PANEL = "pa"
LAUNCH = "engine_launch/scoring"
ROWS = f"captured_rows/{PANEL}"

WEIGHTS = "weights.gguf"
LIBRARY = "engine-library"
SCORED_ROWS = "rows.parquet"

ALL = "all"
BLOCK = "block:"


def checkpoint_output(arm: ArmKey) -> str:
    """Name of the `sources` output that holds the arm's checkpoint."""
    return f"{arm.checkpoint}.gguf"


def figure_id(study: str, owner: str, population: str, measure: str) -> str:
    """Id of a figure: what `engcmp trace` takes. `owner` is an arm, or `pair/` and a pair's id."""
    return f"{study}/{owner}/{PANEL}/{population}/{measure}"
