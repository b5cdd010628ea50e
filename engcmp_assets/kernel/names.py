"""Names that several rooms share: artifacts, panels and outputs. Keys of figures are made here and nowhere else."""

from __future__ import annotations

LAUNCH = "engine_launch/scoring"
SERVING = "engine_launch/serving"
EVENTS = "throughput_events"
CELLS = "throughput_cells"
REPLIES = "long_replies"
REPLY_CHECKS = "long_output_checks"
ENGINE_VERSIONS = "engine_versions"
AUDIT = "audit"
CATALOG = "catalog"

PROMPTS = "prompts.json"
LOAD_PLAN = "throughput.json"
REPLIES_PLAN = "replies.json"
WEIGHTS = "weights.gguf"
LIBRARY = "engine-library"
ALL = "all"
BLOCK = "block:"
BUCKET = "bucket:"
SPEED = "throughput"  # stands in the id of a speed in place of a panel
REPLY_PANEL = "replies"  # the same in the id of a figure of long replies
STARTUP = "startup"  # the same in the id of a figure of the start-up
LIGHT_HASH = "light:"  # begins the hash of what an API returned of a row, which is no hash of a raw row


def engine_file(role: str) -> str:
    """Name of the `sources` output that holds a file of the arm's engine, by the role that it has in the launch."""
    return f"engine-{role}"


def captured_rows(panel: str) -> str:
    """The artifact that holds an arm's rows on a panel."""
    return f"captured_rows/{panel}"


def scored_rows(panel: str) -> str:
    """Name of the `scores` output that holds the scored rows of a panel."""
    return f"rows-{panel}.parquet"


def part_of(block: str | None, bucket: str | None = None) -> str:
    """Name of the rows of a kind of content, of a context length, or of one at the other: `block:code,bucket:8-16K`; `all` for neither."""
    parts = [f"{begin}{name}" for begin, name in ((BLOCK, block), (BUCKET, bucket)) if name is not None]
    return ",".join(parts) or ALL


def population_parts(population: str) -> tuple[str | None, str | None] | None:
    """The kind of content and the context length that a population's rows are of, None for any; None for the name of no such rows."""
    if population == ALL:
        return None, None
    if population.startswith(BUCKET):
        return None, population.removeprefix(BUCKET)
    if not population.startswith(BLOCK):
        return None
    block, _, bucket = population.removeprefix(BLOCK).partition(f",{BUCKET}")
    return block, bucket or None


def population_words(population: str) -> str:
    """How pages call a population: `all rows`, `code`, `8-16K`, or `code at 8-16K`."""
    parts = population_parts(population)
    if parts is None:
        return population
    return " at ".join(name for name in parts if name is not None) or "all rows"


def figure_id(owner: str, panel: str, population: str, measure: str) -> str:
    """Id of a figure: what `engcmp trace` takes. `owner` is the study and an arm, or the study, `pair` and a pair's id."""
    return f"{owner}/{panel}/{population}/{measure}"
