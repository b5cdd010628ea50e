"""The artifacts of a study in the order of the graph. What depends on the protocol (its panels) is made for the study."""

from __future__ import annotations

from engcmp_assets.captured_rows.session import capture_steps
from engcmp_assets.comparisons.step import step as comparisons_step
from engcmp_assets.engine_versions.step import STEP as ENGINE_VERSIONS
from engcmp_assets.frozen_protocol.step import STEP as FROZEN_PROTOCOL
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Step
from engcmp_assets.prompt_set.step import STEP as PROMPT_SET
from engcmp_assets.publication.step import STEP as PUBLICATION
from engcmp_assets.reference_rows.step import STEP as REFERENCE_ROWS
from engcmp_assets.scores.step import step as scores_step
from engcmp_assets.sources.step import STEP as SOURCES
from engcmp_assets.summaries.step import step as summaries_step
from engcmp_assets.tails.step import step as tails_step
from engcmp_assets.throughput_cells.step import step as cells_step
from engcmp_assets.throughput_events.session import speed_steps


def steps_of(study: Study) -> tuple[Step, ...]:
    """Every step of a study. Those of `capture_steps` are made together, within the engine's life; so are those of `speed_steps`."""
    return (
        FROZEN_PROTOCOL,
        SOURCES,
        PROMPT_SET,
        REFERENCE_ROWS,
        *capture_steps(study),
        *speed_steps(study),
        scores_step(study),
        tails_step(study),
        *([cells_step(study)] if study.protocol.throughput else []),
        summaries_step(study),
        comparisons_step(study),
        PUBLICATION,
        *([ENGINE_VERSIONS] if study.protocol.releases else []),
    )


def step_named(study: Study, artifact: str) -> Step:
    """The step that makes `artifact`."""
    return next(step for step in steps_of(study) if step.artifact == artifact)
