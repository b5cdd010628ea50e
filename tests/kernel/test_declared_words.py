"""What a protocol declares, as reports say it: files of a family, settings, confounds, arms without results, gaps."""

from __future__ import annotations

import pytest

from engcmp_assets.comparisons.step import parameters
from engcmp_assets.kernel.declared_words import words_of_pair, words_of_pairs, words_of_study
from engcmp_assets.kernel.matrix import NOT_COMPARABLE, Standing, matrix_table
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study, load_study


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return load_study("glm53-flash").base


def words(protocol: Protocol, pair: str) -> list[str]:
    return words_of_pair(protocol, next(plan for plan in protocol.comparisons if plan.pair_id == pair))


def test_a_comparison_of_two_files_names_both_and_the_control_first(protocol: Protocol) -> None:
    first, *rest = words(protocol, "C1-vs-V1")
    assert first.startswith(
        "Two files of K3.25: the candidate is measured on K3.25-Core-FP8, the baseline on K3.25-v1. The experts are the same"
    )
    assert first.endswith("The control is the pair C1-vs-C0.")
    assert any("drafts" in one and one.endswith("(review, M2)") for one in rest)


def test_the_control_pair_does_not_name_itself(protocol: Protocol) -> None:
    first = words(protocol, "C1-vs-C0")[0]
    assert first.startswith("Two files of K3.25") and "control is the pair" not in first


def test_one_file_on_both_sides_is_no_family_matter(protocol: Protocol) -> None:
    assert not any("Two files" in one for one in words(protocol, "C0-vs-V1"))


def test_what_a_setting_changes_beside_its_purpose_is_said(protocol: Protocol) -> None:
    told = words(protocol, "F1a-vs-C1")
    assert told[0].startswith("The setting kda-bf16 (KDA in BF16 (F1a)) also changes the split of KDA")
    assert not any("also changes" in one for one in words(protocol, "F1c-vs-C1"))


def test_the_study_says_what_has_no_results_and_what_is_not_known(protocol: Protocol) -> None:
    told = words_of_study(protocol)
    assert told[: len(protocol.limits)] == list(protocol.limits.values())
    assert (
        "K4-Core-K6/vllm-fork@v0.9.2 is not comparable: it does not run: the release has no loader for the 6-bit core."
        in told
    )
    assert sum(one.startswith("Not known: ") for one in told) == len(protocol.gaps)
    assert sum(one.startswith("Other than in the published run: ") for one in told) == len(protocol.deviations)


def test_a_study_that_declares_nothing_says_its_limits_alone(study: Study) -> None:
    assert not words_of_pairs(study.base)
    assert words_of_study(study.base) == list(study.base.limits.values())


def test_an_arm_that_does_not_run_stands_in_the_matrix_without_a_page() -> None:
    arm, other = ArmKey.parse("K6/e@1"), ArmKey.parse("K4/e@1")
    standings = [
        Standing(arm, NOT_COMPARABLE, "it does not run: no loader"),
        Standing(other, "not measured", "engcmp run"),
    ]
    table = matrix_table(standings, [], panel="pa", measure_id="kl_full", links={other: "page"})
    assert "| K6 | not comparable: it does not run: no loader |" in table and "[not measured](page)" in table


def test_comparisons_of_a_study_take_in_what_it_declares_and_of_others_nothing_changes(study: Study) -> None:
    declared = parameters(load_study("glm53-flash"), None)
    assert declared["declared"] == words_of_pairs(load_study("glm53-flash").base)
    assert declared["bands"]["C1-vs-V1"]["share"] == 0.10 and "K4-C-vs-V" not in declared["bands"]
    assert not {"declared", "bands"} & set(parameters(study, None))
