"""The artifacts of a study in the order of the graph."""

from __future__ import annotations

from engcmp_assets.captured_rows.step import STEP as CAPTURED_ROWS
from engcmp_assets.comparisons.step import STEP as COMPARISONS
from engcmp_assets.engine_launch.step import STEP as ENGINE_LAUNCH
from engcmp_assets.frozen_protocol.step import STEP as FROZEN_PROTOCOL
from engcmp_assets.kernel.work import Step
from engcmp_assets.prompt_set.step import STEP as PROMPT_SET
from engcmp_assets.publication.step import STEP as PUBLICATION
from engcmp_assets.reference_rows.step import STEP as REFERENCE_ROWS
from engcmp_assets.scores.step import STEP as SCORES
from engcmp_assets.sources.step import STEP as SOURCES
from engcmp_assets.summaries.step import STEP as SUMMARIES
from engcmp_assets.tails.step import STEP as TAILS

STEPS: tuple[Step, ...] = (
    FROZEN_PROTOCOL,
    SOURCES,
    PROMPT_SET,
    REFERENCE_ROWS,
    ENGINE_LAUNCH,
    CAPTURED_ROWS,
    SCORES,
    TAILS,
    SUMMARIES,
    COMPARISONS,
    PUBLICATION,
)
# These two are made together: the engine lives from the launch to the last captured window.
CAPTURE_STEPS: tuple[Step, ...] = (ENGINE_LAUNCH, CAPTURED_ROWS)
BY_ARTIFACT = {step.artifact: step for step in STEPS}
