"""Names that several rooms share: artifacts, panels and outputs. Keys of figures are made here and nowhere else."""

from __future__ import annotations

from engcmp_assets.kernel.records import ArmKey

LAUNCH = "engine_launch/scoring"
SERVING = "engine_launch/serving"
EVENTS = "throughput_events"
CELLS = "throughput_cells"
ENGINE_VERSIONS = "engine_versions"

PROMPTS = "prompts.json"
LOAD_PLAN = "throughput.json"
WEIGHTS = "weights.gguf"
LIBRARY = "engine-library"
ALL = "all"
BLOCK = "block:"
SPEED = "throughput"  # stands in the id of a speed in place of a panel
LIGHT_HASH = "light:"  # begins the hash of what an API returned of a row, which is no hash of a raw row


def checkpoint_output(arm: ArmKey) -> str:
    """Name of the `sources` output that holds the arm's checkpoint."""
    return f"{arm.checkpoint}.gguf"


def engine_file(role: str) -> str:
    """Name of the `sources` output that holds a file of the arm's engine, by the role that it has in the launch."""
    return f"engine-{role}"


def captured_rows(panel: str) -> str:
    """The artifact that holds an arm's rows on a panel."""
    return f"captured_rows/{panel}"


def scored_rows(panel: str) -> str:
    """Name of the `scores` output that holds the scored rows of a panel."""
    return f"rows-{panel}.parquet"


def figure_id(owner: str, panel: str, population: str, measure: str) -> str:
    """Id of a figure: what `engcmp trace` takes. `owner` is the study and an arm, or the study, `pair` and a pair's id."""
    return f"{owner}/{panel}/{population}/{measure}"
