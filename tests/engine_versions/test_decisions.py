"""What a listing means for a study: which tags are new, which are no longer what they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from engcmp_assets.engine_versions.candidate import PinnedWheel, candidate_name, candidate_text
from engcmp_assets.engine_versions.decisions import Finding, Known, Tag, decide, known_versions, news_key
from engcmp_assets.kernel.iterations import IterationFile, parse_iteration
from engcmp_assets.kernel.release_rules import ReleaseRule, order_of, rule_fault
from engcmp_assets.kernel.study import Study
from engcmp_resources.errors import EngcmpError

ENGINE = "llamacpp"
A, B = "a" * 64, "b" * 64
FILE = "xllamacpp-2026.11.12000-cp310-abi3-manylinux2014_x86_64.whl"


def rule(**changes: Any) -> ReleaseRule:
    fields: dict[str, Any] = {
        "place": "package_index", "name": "xllamacpp", "license": "MIT", "member": "xllamacpp/xllamacpp.abi3.so",
        "platforms": ["linux-x86_64"], "tags": r"20\d\d\.\d+\.(?P<build>\d+)", "version": "b{build}",
        "later_than": "2026.10.11549", "checkpoints": {"q4_0": ".*"}, "baselines": ["b11549"],
    }  # fmt: skip
    return ReleaseRule.model_validate(fields | changes)


def tag(name: str, sha256: str | None = A, **fields: Any) -> Tag:
    return Tag(name, None if sha256 is None else f"files:{sha256}", {f"xllamacpp-{name}.whl": sha256}, **fields)


def known(version: str, name: str, sha256: str = A, **changes: Any) -> Known:
    fields = {"digest": None, "files": {f"xllamacpp-{name}.whl": sha256}, "state": "in the study", "where": None}
    return Known(version, name, **(fields | changes))


def states(findings: list[Finding]) -> dict[str, str]:
    return {one.tag: one.state for one in findings}


def test_a_later_tag_of_the_right_form_is_new_and_named_by_the_rule() -> None:
    (found,) = decide(ENGINE, rule(), [tag("2026.11.12000")], [])
    assert (found.state, found.version, found.digest) == ("new", "b12000", f"files:{A}")


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (tag("2026.10.11549"), "not later than"),
        (tag("2026.9.99999"), "not later than"),
        (tag("0.2.14"), "not later than"),
        (tag("2026.11.12000.1"), "does not match"),
        (tag("2026.11.12000", prerelease=True), "a pre-release"),
        (tag("2026.11.12000", None), "no hash"),
    ],
)
def test_a_tag_that_does_not_count_says_why(one: Tag, why: str) -> None:
    (found,) = decide(ENGINE, rule(), [one], [])
    assert found.state == "does not count"
    assert why in found.why


def test_a_pre_release_counts_where_the_rule_says_so() -> None:
    (found,) = decide(ENGINE, rule(prereleases=True), [tag("2026.11.12000", prerelease=True)], [])
    assert found.state == "new"


def test_a_tag_that_runs_no_checkpoint_does_not_count() -> None:
    (found,) = decide(ENGINE, rule(checkpoints={"q4_0": r"2027\..*"}), [tag("2026.11.12000")], [])
    assert found.state == "does not count" and "none of the study's checkpoints" in found.why


def test_a_withdrawn_release_is_no_candidate_and_a_known_one_says_that_it_was_withdrawn() -> None:
    (found,) = decide(ENGINE, rule(), [tag("2026.11.12000", withdrawn="broken")], [])
    assert found.state == "withdrawn" and "broken" in found.why
    (found,) = decide(ENGINE, rule(), [tag("2026.11.12000", withdrawn="broken")], [known("b12000", "2026.11.12000")])
    assert found.state == "in the study" and "broken" in found.why


def test_a_pinned_tag_with_the_same_content_is_in_the_study_even_if_it_is_older_than_the_rule_asks_for() -> None:
    (found,) = decide(ENGINE, rule(), [tag("2026.4.8672")], [known("b8672", "2026.4.8672")])
    assert (found.state, found.version, found.repushed) == ("in the study", "b8672", False)


def test_a_tag_pushed_again_is_an_alarm_and_a_version_of_its_own() -> None:
    (found,) = decide(ENGINE, rule(), [tag("2026.4.8672", B)], [known("b8672", "2026.4.8672", A)])
    assert (found.state, found.version, found.repushed) == ("pushed again", f"b8672-{B[:8]}", True)


def test_once_the_new_content_is_known_too_the_alarm_stays_and_nothing_is_new() -> None:
    both = [known("b8672", "2026.4.8672", A), known("b8672-bbbbbbbb", "2026.4.8672", B)]
    (found,) = decide(ENGINE, rule(), [tag("2026.4.8672", B)], both)
    assert (found.state, found.version, found.repushed) == ("in the study", "b8672-bbbbbbbb", True)
    assert news_key([found]) == []


def test_a_wheel_added_to_a_release_later_is_no_other_content() -> None:
    more = Tag("2026.4.8672", f"files:{B}", {"xllamacpp-2026.4.8672.whl": A, "xllamacpp-for-another-platform.whl": B})
    (found,) = decide(ENGINE, rule(), [more], [known("b8672", "2026.4.8672", A)])
    assert (found.state, found.repushed) == ("in the study", False)


def test_a_deleted_tag_is_said_and_its_version_stays() -> None:
    (found,) = decide(ENGINE, rule(), [], [known("b8672", "2026.4.8672")])
    assert (found.state, found.version) == ("gone", "b8672")


@pytest.mark.parametrize(("declined", "state"), [(None, "waiting for approval"), ("crashes", "declined")])
def test_a_candidate_is_known_as_what_it_is(study: Study, declined: str | None, state: str) -> None:
    adds = candidate(study, declined=declined)
    found = known_versions(study.protocol, ENGINE, rule(), {"llamacpp-b12000": adds})
    mine = next(one for one in found if one.where == "llamacpp-b12000")
    assert (mine.version, mine.tag, mine.state) == ("b12000", "2026.11.12000", state)
    (again,) = [one for one in decide(ENGINE, rule(), [listed()], found) if one.tag == "2026.11.12000"]
    assert again.state == state
    assert news_key([again]) == []


def test_a_wheel_of_a_folder_is_not_the_index_s_release_of_that_name(study: Study) -> None:
    folder = rule(place="folder", name="wheels", package="xllamacpp")
    assert known_versions(study.protocol, ENGINE, folder, {}) == []


def test_versions_of_another_place_are_not_this_place_s(study: Study) -> None:
    assert {one.version for one in known_versions(study.protocol, ENGINE, rule(), {})} == {"b8672", "b10809", "b11549"}
    assert known_versions(study.protocol, ENGINE, rule(name="another-package"), {}) == []


@pytest.mark.parametrize(
    ("place", "source", "digest"),
    [
        ("git", {"repository": "https://example.org/x", "tag": "v1", "commit": "c" * 40}, f"git:{'c' * 40}"),
        ("registry", {"image": "example.org/x", "tag": "v1", "digest": f"sha256:{A}"}, f"sha256:{A}"),
    ],
)
def test_a_version_pinned_by_commit_or_image_is_compared_by_that(
    study: Study, place: str, source: Mapping[str, str], digest: str
) -> None:
    own = rule(
        place=place,
        name=source.get("repository", source.get("image")),
        member=None,
        platforms=[],
        tags="v(?P<n>.*)",
        version="{n}",
    )
    text = json.dumps(dict(source) | {"license": "MIT"})
    adds = IterationFile.model_validate(
        {
            "schema": "engcmp.iteration/1",
            "because": "x",
            "sources": {"s": json.loads(text)},
            "versions": {ENGINE: {"1": {"source": "s"}}},
        }
    )
    found = known_versions(study.protocol, ENGINE, own, {"c": adds})
    assert [one.digest for one in found] == [digest]
    assert states(decide(ENGINE, own, [Tag("v1", digest)], found)) == {"v1": "waiting for approval"}
    assert states(decide(ENGINE, own, [Tag("v1", digest[:-1] + "0")], found)) == {"v1": "pushed again"}


def test_tags_are_ordered_as_people_read_them() -> None:
    assert sorted(["2026.10.1", "2026.9.2", "2026.10"], key=order_of) == ["2026.9.2", "2026.10", "2026.10.1"]
    assert sorted(["v1.10", "v1.9", "v2"], key=order_of) == ["v1.9", "v1.10", "v2"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tags": "("}, "tags"),
        ({"version": "b{nothing}"}, "version"),
        ({"checkpoints": {"q4_0": "["}}, "checkpoints.q4_0"),
        ({"member": None}, "member"),
        ({"platforms": []}, "member"),
        ({"place": "folder", "package": None}, "package"),
    ],
)
def test_a_rule_that_does_not_hold_together_is_named_by_its_field(changes: Mapping[str, Any], field: str) -> None:
    fault = rule_fault(rule(**changes))
    assert fault is not None and fault[0] == field


# ---------------------------------------------------------------- the candidate's file


def listed() -> Tag:
    return Tag("2026.11.12000", f"files:{B}", {FILE: A})


def candidate(study: Study, *, declined: str | None = None) -> IterationFile:
    (found,) = decide(ENGINE, rule(), [listed()], [])
    wheels = {"linux-x86_64": PinnedWheel(FILE, A, "xllamacpp/xllamacpp.abi3.so", B)}
    text = candidate_text(study.protocol, rule(), found, place="an index", wheels=wheels)
    if declined is not None:
        text = text.replace("because =", f"declined = {json.dumps(declined)}\nbecause =")
    return parse_iteration(text.encode(), where="here")


def test_a_candidate_pins_the_release_and_adds_an_arm_for_each_checkpoint(study: Study) -> None:
    adds = candidate(study)
    assert adds.release is not None
    assert (adds.release.tag, adds.release.digest, adds.measure) == ("2026.11.12000", f"files:{B}", True)
    assert [entry.arm for entry in adds.arms] == ["q4_0/llamacpp@b12000"]
    source = adds.sources["llamacpp-b12000"].model_dump()
    assert source["version"] == "2026.11.12000"
    assert source["wheels"]["linux-x86_64"]["member_sha256"] == B


def test_a_candidate_is_compared_with_the_last_version_and_the_baselines_once_each(study: Study) -> None:
    assert [(pair.candidate, pair.baseline) for pair in candidate(study).comparisons] == [
        ("q4_0/llamacpp@b12000", "q4_0/llamacpp@b11549")
    ]
    other = rule(baselines=["b8672"])
    (found,) = decide(ENGINE, other, [listed()], [])
    wheels = {"linux-x86_64": PinnedWheel(FILE, A, "m.so", B)}
    adds = parse_iteration(
        candidate_text(study.protocol, other, found, place="p", wheels=wheels).encode(), where="here"
    )
    assert [pair.baseline for pair in adds.comparisons] == ["q4_0/llamacpp@b11549", "q4_0/llamacpp@b8672"]


def test_a_tag_pushed_again_is_compared_with_its_former_content(study: Study) -> None:
    old = known_versions(study.protocol, ENGINE, rule(), {})
    files = next(one for one in old if one.version == "b10809").files
    other = Tag("2026.9.10809", f"files:{B}", dict.fromkeys(files, B))
    found = next(one for one in decide(ENGINE, rule(), [other], old) if one.tag == other.tag)
    wheels = {"linux-x86_64": PinnedWheel(FILE, B, "m.so", A)}
    text = candidate_text(study.protocol, rule(baselines=[]), found, place="p", wheels=wheels)
    pairs = parse_iteration(text.encode(), where="here").comparisons
    assert [(pair.candidate, pair.baseline) for pair in pairs] == [
        (f"q4_0/llamacpp@b10809-{B[:8]}", "q4_0/llamacpp@b10809")
    ]


def test_a_tag_that_makes_no_arm_s_name_is_refused_before_anything_is_written(study: Study) -> None:
    odd = rule(tags=r"(?P<build>.*)", version="{build}", later_than=None)
    (found,) = decide(ENGINE, odd, [Tag("../../x", f"files:{A}", {FILE: A})], [])
    wheels = {"linux-x86_64": PinnedWheel(FILE, A, "m.so", B)}
    with pytest.raises(EngcmpError, match="is not an arm"):
        candidate_text(study.protocol, odd, found, place="p", wheels=wheels)


def test_text_from_outside_cannot_leave_its_field(study: Study) -> None:
    (found,) = decide(ENGINE, rule(), [listed()], [])
    wheels = {"linux-x86_64": PinnedWheel('x"\n[[arms]]\narm = "evil', A, "m.so", B)}
    text = candidate_text(study.protocol, rule(), found, place='"""\n[x]', wheels=wheels)
    adds = parse_iteration(text.encode(), where="here")
    assert len(adds.arms) == 1
    assert adds.release is not None and adds.release.place == '"""\n[x]'


def test_a_release_without_a_wheel_for_any_platform_is_refused(study: Study) -> None:
    (found,) = decide(ENGINE, rule(), [listed()], [])
    with pytest.raises(EngcmpError, match=r"2026\.11\.12000 has no wheel for linux-x86_64"):
        candidate_text(study.protocol, rule(), found, place="p", wheels={})
    assert candidate_name(found) == "llamacpp-b12000"
