"""Comparing runs of a suite: points, flips, tests, times; and which runs may be held against each other."""

from pathlib import Path
from typing import Any

import pytest

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.tool_calling.suite_runs import compare_runs, flips, score
from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_eval.results import read_result

FILES = Path(__file__).parent / "suite_results"


def run(
    points: list[int | None], *, seed: int = 1, version: str = "3.0.0", ms: float = 10.0, **settings: Any
) -> dict[str, Any]:
    words = {2: "pass", 1: "partial", 0: "fail", None: "missing"}
    scenarios = [
        {"scenario_id": f"TC-{n:02}", "outcome": words[one], "points": one, "turn_ms": [ms]}
        for n, one in enumerate(points, 1)
    ]
    return {
        "suite": "s",
        "version": version,
        "settings": {"seed": seed, "concurrency": 1, **settings},
        "scenarios": scenarios,
    }


def test_a_missing_scenario_is_in_neither_points_nor_maximum() -> None:
    assert str(score(run([2, 1, 0, None]))) == "3 of 6 (3 of 4 scenarios graded)"
    assert str(score(run([2] * 88))) == "176 of 176"


def test_the_floor_is_how_often_repeats_of_one_build_differ() -> None:
    found = flips([run([2, 0, 1, 2]), run([2, 1, 1, None], seed=2), run([2, 0, 2, 2], seed=3)])
    assert not isinstance(found, Missing)
    assert (found.flips, found.compared, found.repeats) == (4, 10, 3)
    assert found.scenarios == ("TC-02", "TC-03")
    assert isinstance(flips([run([2])]), Missing)


def test_two_builds_are_compared_scenario_by_scenario() -> None:
    baseline, candidate = [run([2, 2, 2, 2, 1, None])], [run([1, 0, 0, 2, 2, 2])]
    found = compare_runs(baseline, candidate)
    assert (found.points.baseline_more, found.points.candidate_more, found.points.undecided) == (3, 1, 1)
    assert (found.passed.baseline_more, found.passed.candidate_more) == (3, 1)
    assert found.points.p == pytest.approx(10 / 16)
    assert [one.scenario_id for one in found.changes] == ["TC-01", "TC-02", "TC-03", "TC-05", "TC-06"]
    assert found.changes[4].baseline == (None,)
    assert found.not_compared == ("TC-06",)
    assert isinstance(found.floors[0], Missing)
    assert (found.between.flips, found.between.compared) == (4, 5)


def test_repeats_of_a_scenario_are_one_item_of_the_test() -> None:
    baseline = [run([2, 0]), run([0, 0], seed=2)]
    candidate = [run([2, 2]), run([0, 2], seed=2)]
    found = compare_runs(baseline, candidate)
    assert (found.points.candidate_more, found.points.undecided) == (1, 1)
    floor = found.floors[0]
    assert not isinstance(floor, Missing)
    assert (floor.flips, floor.compared) == (1, 2)


def test_the_time_of_a_turn_is_told_as_median_and_ratio() -> None:
    found = compare_runs([run([2, 2], ms=10)], [run([2, 2], ms=15)]).turn_ms
    assert found == {"baseline": 10, "candidate": 15, "ratio": 1.5}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (run([2, 2], version="2.8.0"), "differ in version: '3.0.0' and '2.8.0'"),
        (run([2, 2, 2]), r"differ in scenarios: \['TC-03'\] are in one only"),
        (run([2, 2], concurrency=8), "differ in settings: concurrency 1 and 8"),
        (run([2, 2], temperature=0.6), "differ in settings: temperature None and 0.6"),
    ],
)
def test_runs_made_in_another_way_are_not_compared(other: dict[str, Any], words: str) -> None:
    with pytest.raises(EngcmpError, match=words):
        compare_runs([run([2, 2])], [other])


def test_imported_files_of_two_versions_are_not_compared_and_of_one_are() -> None:
    old, new = (read_result(FILES / f"{version}_one_at_once.json").document for version in ("2.8.0", "3.0.0"))
    with pytest.raises(EngcmpError, match="differ in version"):
        compare_runs([old], [new])
    assert str(compare_runs([new], [new]).candidate[0]) == "3 of 8"
    idle = read_result(FILES / "3.0.0_idle.json").document
    assert compare_runs([new], [idle]).not_compared == ("TC-45",)


def test_a_build_without_a_run_is_refused() -> None:
    with pytest.raises(EngcmpError, match="a build without a run"):
        compare_runs([], [run([2])])
