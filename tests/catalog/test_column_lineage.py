"""Column lineage: complete for every study, and only of columns that are right above."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engcmp_assets.catalog.lineage import lineage_of
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.work import Step
from engcmp_assets.steps import steps_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.places import study_names


def steps(study: str) -> dict[str, Step]:
    return {step.artifact: step for step in steps_of(load_study(study))}


@pytest.mark.parametrize("study", study_names())
def test_every_column_of_a_study_has_its_origins_right_above_it(study: str) -> None:
    known = steps(study)
    for artifact, step in known.items():
        found = lineage_of(step, known)
        assert list(found) == [column.name for column in step.columns]
        for column, origins in found.items():
            assert len(origins) == len(set(origins))
            for above, name in origins:
                assert above in {use.artifact for use in step.uses}, f"{artifact} {column}"
                assert name in {one.name for one in known[above].columns}, f"{artifact} {column}"


@pytest.mark.parametrize(
    ("study", "artifact", "column", "origins"),
    [
        ("smollm2-cpu", "scores", "nll", {("captured_rows/pa", "raw_row_sha256"), ("reference_rows", "next_token")}),
        ("smollm2-cpu", "scores", "cluster", {("prompt_set", "cluster")}),
        ("smollm2-cpu", "tails", "p99_nats", {("scores", "kl_full"), ("scores", "kl_coarse")}),
        ("smollm2-cpu", "throughput_cells", "complete", {("throughput_events", "status")}),
        ("smollm2-cpu", "captured_rows/pb", "start", {("engine_launch/scoring", "start")}),
        ("smollm2-cpu", "frozen_protocol", "sha256", set()),
        ("smollm2-replies", "long_output_checks", "looped", {("long_replies", "text_sha256")}),
        ("smollm2-replies", "summaries", "value", {("scores", "nll"), ("long_output_checks", "passed")}),
        ("smollm2-vllm", "scores", "kl_top20", {("captured_rows/pl", "raw_row_sha256"), ("reference_rows", "position")}),
    ],
)  # fmt: skip
def test_what_a_column_is_made_from(study: str, artifact: str, column: str, origins: set[tuple[str, str]]) -> None:
    known = steps(study)
    found = set(lineage_of(known[artifact], known)[column])
    assert origins <= found and (bool(found) or not origins)


def test_a_column_that_no_rule_is_about_is_refused_by_name() -> None:
    known = steps("smollm2-cpu")
    step = replace(known["tails"], artifact="news", columns=(Column("novel", "int", "1", "Something new"),))
    with pytest.raises(EngcmpError, match="column novel of news"):
        lineage_of(step, known)
