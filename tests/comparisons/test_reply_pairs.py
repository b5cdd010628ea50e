"""Two arms' long replies as a pair's document: exact tests by prompt, seeds only between versions of one engine, no word too much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_replies import graded, verdict, with_ids

from engcmp_assets.comparisons.pairs import figure_record
from engcmp_assets.comparisons.replies import ArmSide, Judging, replies_document
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.reply_verdicts import Verdict
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.long_output_checks.figures import scenario_runs
from engcmp_assets.publication.replies import identity_text

OLD, NEW, OTHER = "q4_0/llamacpp@b1", "q4_0/llamacpp@b2", "q4_0/vllm@v1"
PRESET = Preset(100, 1)


def pair(
    candidate: list[Verdict], baseline: list[Verdict], *, arm: str = NEW, declared: tuple[str, ...] = (), **sides: Any
) -> dict[str, Any]:
    plan = ComparisonPlan(pair_id="pair", label="new beside old", candidate=arm, baseline=OLD)
    made = []
    for word, name, own in (("candidate", arm, candidate), ("baseline", OLD, baseline)):
        runs = {"tools-c1": sides[f"{word}_runs"]} if f"{word}_runs" in sides else {}
        made.append(ArmSide(ArmKey.parse(name), own, runs, sides.get(f"{word}_traces", ())))
    document = replies_document("study", plan, (made[0], made[1]), Judging(PRESET, 0.95, declared))
    for figure in document["figures"]:
        figure_record(figure)  # what a receipt holds of it
    return document


def figure(document: dict[str, Any], measure: str, population: str = "long-L1") -> dict[str, Any]:
    (found,) = (one for one in document["figures"] if (one["measure"], one["population"]) == (measure, population))
    return dict(found)


def arm(endings: str, **more: Any) -> list[Verdict]:
    words = {"f": "finished", "c": "capped", "l": "looped", "r": "recovered", "e": "error"}
    return [verdict(f"p{number:02}", words[sign], **more) for number, sign in enumerate(endings)]


def test_outcomes_are_counted_by_arm_and_tested_by_prompt() -> None:
    found = pair(arm("cccccclf"), arm("ffffffff"))
    (stage,) = found["stages"]
    assert stage["candidate"]["endings"] == {"capped": 6, "finished": 1, "looped": 1}
    tests = {one["name"]: one for one in stage["tests"]}
    assert (tests["capped"]["candidate_more"], tests["capped"]["baseline_more"]) == (6, 0)
    assert tests["capped"]["p"] == pytest.approx(2 / 2**6)
    capped = figure(found, "reply_capped")
    assert (capped["value"], capped["verdict"]) == (0.75, "descriptive")
    assert "6 of 8, baseline 0 of 8" in capped["sentence"] and "exact p = 0.0312" in capped["sentence"]
    assert "passed" not in tests and "json_valid" not in tests


def test_a_test_is_descriptive_unless_it_was_declared() -> None:
    found = pair(arm("cccccccc"), arm("ffffffff"), declared=("capped",))
    assert figure(found, "reply_capped")["verdict"] == "resolved"
    assert figure(found, "reply_looped")["verdict"] == "descriptive"
    assert (
        figure(pair(arm("cfffffff"), arm("ffffffff"), declared=("capped",)), "reply_capped")["verdict"]
        == "not resolved"
    )


def test_a_reply_that_was_not_graded_is_neither_passed_nor_wrong() -> None:
    tasks = {"block": "code", "stage": "code", "kind": "code"}
    good = [graded(one, "code", True) for one in arm("ffff", **tasks)]
    mixed = [
        graded(one, "code", None if number == 0 else number > 1) for number, one in enumerate(arm("cfff", **tasks))
    ]
    found = pair(mixed, good)
    (stage,) = found["stages"]
    assert (stage["candidate"]["passed"], stage["candidate"]["passed_graded"], stage["ungraded_prompts"]) == (2, 3, 1)
    (test,) = (one for one in stage["tests"] if one["name"] == "passed")
    assert (test["candidate_more"], test["baseline_more"], test["undecided"]) == (0, 1, 2)
    assert figure(found, "code_passed", "code")["value"] == pytest.approx(2 / 3 - 1)


def test_json_is_tested_under_its_own_name() -> None:
    tasks = {"block": "json", "stage": "json", "kind": "json"}
    found = pair(
        [graded(one, "json", False) for one in arm("fff", **tasks)],
        [graded(one, "json", True) for one in arm("fff", **tasks)],
    )
    names = [one["name"] for one in found["stages"][0]["tests"]]
    assert "json_valid" in names and "passed" not in names
    assert "by prompt 0 more, 3 fewer" in figure(found, "json_valid", "json")["sentence"]


def replies(count: int, change: bool) -> list[Verdict]:
    return [
        replace(with_ids(verdict(f"p{number:02}"), [5] * 100 + [number + 1000 * change] + [6] * 99), seed=number) for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "change", "sentence"), [(75, False, "75 of 75 identical"), (25, True, "0 of 25 identical")]
)
def test_versions_of_one_engine_are_held_seed_against_seed(count: int, change: bool, sentence: str) -> None:
    found = pair(replies(count, change), replies(count, False))
    identity = found["stages"][0]["identity"]
    assert identity["sentence"] == sentence and identity["by_digest"] == 0
    assert all(one["within"] == [64, 128] for one in identity["divergences"])
    assert figure(found, "reply_identical")["value"] == (0.0 if change else 1.0)


def test_engines_are_never_paired_by_seed() -> None:
    found = pair(replies(5, False), replies(5, False), arm=OTHER)
    assert "only between versions of one engine" in found["stages"][0]["identity"]["missing"]
    assert "reply_identical" not in {one["measure"] for one in found["figures"]}


def test_without_ids_replies_are_compared_by_the_digest_of_their_text() -> None:
    found = pair([verdict("p1"), verdict("p2", text_sha256="0" * 64)], [verdict("p1"), verdict("p2")])
    identity = found["stages"][0]["identity"]
    assert (identity["sentence"], identity["by_digest"]) == ("1 of 2 identical", 2)
    assert "missing" in identity["divergences"][0]["within"]


def test_stages_without_a_shared_cap_or_a_partner_say_so() -> None:
    other_cap = pair(arm("ff", cap_tokens=512), arm("ff"))["stages"][0]
    assert other_cap["missing"] == "the replies do not share one cap"
    alone = pair(arm("ff"), [])["stages"][0]
    assert alone["missing"] == f"{OLD} has no such reply"
    assert pair(arm("ff"), [])["figures"] == []


def test_a_length_ratio_is_withheld_where_too_many_were_capped() -> None:
    longer = [verdict(f"p{number:02}", n_tokens=200) for number in range(10)]
    found = figure(pair(longer, arm("f" * 10)), "length_ratio")
    assert found["value"] == pytest.approx(2.0) and found["interval"]["low"] <= 2.0
    assert "bounded below" in figure(pair(arm("ccccffffff"), arm("ccccffffff")), "length_ratio")["value"]["missing"]


def scenarios(points: dict[str, float], repeat: int = 1) -> list[Verdict]:
    tools = {"block": "tools", "stage": "tools-c1"}
    return [
        replace(graded(verdict(name, **tools), "tools", value == 2, value), repeat=repeat, turn_ms=10.0 * value + 1)
        for name, value in points.items()
    ]


def test_scenarios_are_compared_with_flips_between_repeats_as_the_floor() -> None:
    base = scenario_runs(scenarios({"a": 2, "b": 2}) + scenarios({"a": 2, "b": 1}, repeat=2))
    new = scenario_runs(scenarios({"a": 0, "b": 2}) + scenarios({"a": 0, "b": 2}, repeat=2))
    (found,) = pair(arm("f"), arm("f"), candidate_runs=new, baseline_runs=base)["tools"]
    assert [side["flips"] for side in found["floors"]] == [1, 0]
    assert (found["between"]["flips"], found["between"]["compared"]) == (6, 8)
    assert found["standing"] == "descriptive" and found["turn_ms"]["ratio"] == pytest.approx(11 / 21)
    assert [one["scenario_id"] for one in found["changes"]] == ["a", "b"]
    (lacking,) = pair(arm("f"), arm("f"), candidate_runs=new, baseline_runs=[])["tools"]
    assert "without a run" in lacking["missing"]


def trace(log_prob: float, *, bound: bool = False, kind: str = "sentence_end", row: int = 3) -> dict[str, Any]:
    return {"trace_id": "t", "row": row, "kind": kind, "end": {"log_prob": log_prob, "bound": bound}}


def test_fixed_traces_are_compared_at_the_same_places_and_what_cannot_is_missing() -> None:
    first = [trace(-2.0), trace(-9.0, bound=True, kind="random", row=4), trace(-0.1, kind="true_end", row=5)]
    second = [trace(-1.0), trace(-9.0, bound=True, kind="random", row=4), trace(-0.1, kind="true_end", row=5)]
    found = pair(arm("f"), arm("f"), candidate_traces=second, baseline_traces=first)["traces"]
    assert [(one["kind"], one["exact"], one["positions"]) for one in found] == [
        ("sentence_end", 1, 1),
        ("random", 0, 1),
        ("true_end", 1, 1),
    ]
    assert found[0]["log_prob"]["value"] == 1.0
    dead = [{"trace_id": "t", "row": 3, "kind": "random", "end": {"missing": "it takes no completion"}}]
    assert pair(arm("f"), arm("f"), candidate_traces=dead, baseline_traces=first)["traces"] == {
        "missing": f"{NEW}: it takes no completion"
    }
    assert pair(arm("f"), arm("f"))["traces"] is None


def again(first: list[Verdict], other: int = 0) -> list[Verdict]:
    """The same replies a second time; the last `other` of them came out otherwise."""
    made = [replace(one, block="again", stage="again-L1", reply_id=f"again-{one.reply_id}") for one in first]
    return [with_ids(one, [3] * 9) if len(made) - at <= other else one for at, one in enumerate(made)]


def test_the_same_build_twice_is_the_floor_of_identity_between_versions() -> None:
    old, new = replies(8, False), replies(8, True)
    found = pair(new + again(new[:4], other=1), old + again(old[:4]))
    (stage,) = found["stages"]
    same_build = stage["identity"]["same_build"]
    assert [same_build[side]["sentence"] for side in ("candidate", "baseline")] == [
        "3 of 4 identical",
        "4 of 4 identical",
    ]
    own = figure(found, "reply_repeated")
    assert (own["value"], own["candidate_value"], own["baseline_value"], own["rows"]) == (0.75, 0.75, 1.0, 8)
    between = figure(found, "reply_identical")
    assert between["value"] == 0 and between["floor"]["across_launches"]["value"] == 0.75
    assert stage["candidate"]["replies"] == 8  # a second time counts in no other figure
    assert identity_text(stage["identity"]).startswith(
        "same seed: 0 of 8 identical (the same build twice: candidate 3 of 4 identical, baseline 4 of 4 identical)"
    )


def test_a_build_that_made_its_replies_once_has_no_floor_and_says_so() -> None:
    found = pair(replies(3, False), replies(3, False) + again(replies(3, False)))
    own = figure(found, "reply_repeated")
    assert own["value"] == {"missing": f"{NEW} made no reply of this stage a second time under its seed"}
    assert "missing" in figure(found, "reply_identical")["floor"]["across_launches"]
    assert "floor not measured" in identity_text(pair(replies(3, False), replies(3, False))["stages"][0]["identity"])
