"""The artifacts of a study in the order of the graph. What depends on the protocol (its panels) is made for the study."""

from __future__ import annotations

from engcmp_assets.audit.step import step as audit_step
from engcmp_assets.captured_rows.session import capture_steps
from engcmp_assets.catalog.step import step as catalog_step
from engcmp_assets.comparisons.step import step as comparisons_step
from engcmp_assets.engine_versions.step import STEP as ENGINE_VERSIONS
from engcmp_assets.frozen_protocol.step import STEP as FROZEN_PROTOCOL
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import Step
from engcmp_assets.long_output_checks.step import step as reply_checks_step
from engcmp_assets.long_replies.session import serving_steps
from engcmp_assets.prompt_set.step import STEP as PROMPT_SET
from engcmp_assets.publication.step import step as publication_step
from engcmp_assets.reference_rows.step import STEP as REFERENCE_ROWS
from engcmp_assets.scores.step import step as scores_step
from engcmp_assets.sources.step import STEP as SOURCES
from engcmp_assets.summaries.step import step as summaries_step
from engcmp_assets.tails.step import step as tails_step
from engcmp_assets.throughput_cells.step import step as cells_step


def steps_of(study: Study) -> tuple[Step, ...]:
    """Every step of a study. Those of `capture_steps` are made together, within the engine's life; so are those of `serving_steps`."""
    listed = (
        FROZEN_PROTOCOL,
        SOURCES,
        PROMPT_SET,
        REFERENCE_ROWS,
        *capture_steps(study),
        *serving_steps(study),
        scores_step(study),
        tails_step(study),
        *([cells_step(study)] if study.protocol.throughput else []),
        *([reply_checks_step(study)] if study.protocol.long_replies else []),
        summaries_step(study),
        comparisons_step(study),
        publication_step(study),
    )
    return (
        *listed,
        catalog_step(listed),
        audit_step(study),
        *([ENGINE_VERSIONS] if study.protocol.releases else []),
    )


def step_named(study: Study, artifact: str) -> Step:
    """The step that makes `artifact`."""
    return next(step for step in steps_of(study) if step.artifact == artifact)
