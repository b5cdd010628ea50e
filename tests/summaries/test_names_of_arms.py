"""Figures carry the names of their own arm, also where two arms gave the same rows bit for bit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from homes import current_receipt, output_file

from engcmp_assets.kernel.receipts import part_id
from engcmp_assets.kernel.study import Study
from engcmp_assets.summaries.step import step

ONE, OTHER = "q4_0/llamacpp@b10809", "q4_0/llamacpp@b11549"


def test_two_arms_with_bit_identical_rows_keep_their_own_names(measured_home: Path) -> None:
    scores = [current_receipt(measured_home, "scores", arm) for arm in (ONE, OTHER)]
    names = [output["name"] for output in scores[0]["outputs"] if output["role"] == "data"]
    assert part_id(scores[0], names) == part_id(scores[1], names)  # the same rows: there is something to confuse
    summaries = [current_receipt(measured_home, "summaries", arm) for arm in (ONE, OTHER)]
    assert summaries[0]["task_key"] != summaries[1]["task_key"]
    for arm, receipt in zip((ONE, OTHER), summaries, strict=True):
        assert receipt["figures"]
        assert all(figure["figure_id"].startswith(f"smollm2-cpu/{arm}/") for figure in receipt["figures"])
        assert {figure["details"]["arm"] for figure in receipt["figures"]} == {arm}
        document = json.loads(output_file(measured_home, receipt, "summary.json").read_bytes())
        assert (document["arm"], document["version"]) == (arm, arm.split("@")[1])
    values = [[(figure["panel"], figure["value"]) for figure in receipt["figures"]] for receipt in summaries]
    assert values[0] == values[1]


def test_the_arm_is_a_parameter_of_its_summary(study: Study) -> None:
    summary = step(study)
    keys = [str(summary.parameters(study, arm)) for arm in study.protocol.arm_keys]
    assert len(set(keys)) == len(study.protocol.arms)


def test_every_figure_of_the_publication_has_an_id_of_its_own(measured_home: Path, study: Study) -> None:
    receipt = current_receipt(measured_home, "publication")
    summary = json.loads(output_file(measured_home, receipt, "SUMMARY.json").read_bytes())
    owners = [*summary["arms"], *summary["comparisons"]]
    ids = Counter(figure["figure_id"] for owner in owners for figure in owner["figures"])
    assert [name for name, count in ids.items() if count > 1] == []
    assert {figure["panel"] for owner in owners for figure in owner["figures"]} == set(study.protocol.panels)
    looks = sum(len(plan.measures) for plan in study.protocol.panels.values())
    assert len(ids) > looks * len(study.protocol.arms)
