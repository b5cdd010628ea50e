"""A release appears, is approved, measured, pushed again and deleted: by the commands, on real wheels and a real engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from homes import assert_one_clear_line
from tiny import BASE_ARM, TINY, TinyStudy
from watched import FIRST, SECOND, iterations, make_watched, release

from engcmp_resources.canonical import sha256_file

Done = subprocess.CompletedProcess[str]
NEW_ARM = "q4_0/llamacpp@b1"


@dataclass(frozen=True)
class Story:
    """What the commands said, the iteration files after each, and the receipt of the look that saw the tag pushed again."""

    tiny: TinyStudy
    done: Mapping[str, Done]
    files: Mapping[str, Mapping[str, bytes]]
    alarm: Mapping[str, Any]
    second_sha256: str


@pytest.fixture(scope="module")
def story(measured_home: Path, llamacpp_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    tiny = make_watched(tmp_path_factory.mktemp("watched"), measured_home)
    done: dict[str, Done] = {}
    files: dict[str, dict[str, bytes]] = {}

    def do(name: str, *arguments: str) -> None:
        done[name] = tiny.run(*arguments)
        files[name] = iterations(tiny)

    do("freeze", "freeze", TINY)
    do("run", "run", TINY)
    do("look at nothing", "versions", TINY)
    release(tiny, FIRST, llamacpp_library)
    do("look", "versions", TINY)
    do("look again", "versions", TINY, "--json")
    do("run unapproved", "run", TINY, "--arm", NEW_ARM)
    do("approve", "versions", TINY, "--approve", "llamacpp-b1")
    do("run new", "run", TINY)
    second = sha256_file(release(tiny, FIRST, llamacpp_library, note="built again"))
    do("look at other bytes", "versions", TINY)
    alarm = newest(tiny)
    (other,) = (name.removesuffix(".toml") for name in iterations(tiny) if name.startswith("llamacpp-b1-"))
    do("approve other bytes", "versions", TINY, "--approve", other)
    do("run other bytes", "run", TINY)
    for wheel in (tiny.root / "wheels").iterdir():
        wheel.unlink()
    do("look at a deleted tag", "versions", TINY)
    do("verify", "verify", TINY)
    return Story(tiny, done, files, alarm, second)


def newest(tiny: TinyStudy) -> dict[str, Any]:
    head = json.loads((tiny.home / "heads" / TINY / "_study" / "engine_versions.json").read_bytes())
    receipt: dict[str, Any] = json.loads((tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes())
    return receipt


def test_every_command_went_through(story: Story) -> None:
    for name, done in story.done.items():
        assert done.returncode == (1 if name == "run unapproved" else 0), (name, done.stdout, done.stderr)


def test_an_empty_folder_has_no_release_and_writes_nothing(story: Story) -> None:
    assert story.files["look at nothing"] == {}
    assert "waiting" not in story.done["look at nothing"].stdout


def test_a_new_release_becomes_a_candidate_that_adds_nothing_until_it_is_approved(story: Story) -> None:
    assert list(story.files["look"]) == ["llamacpp-b1.toml"]
    assert "waiting for approval: llamacpp-b1" in story.done["look"].stdout
    assert_one_clear_line(story.done["run unapproved"], "b1", "it has")


def test_looking_again_changes_no_candidate(story: Story) -> None:
    assert story.files["look again"] == story.files["look"]
    answer = json.loads(story.done["look again"].stdout)
    assert answer["waiting"] == ["llamacpp-b1"]
    assert [row["state"] for row in answer["releases"] if row["tag"] == FIRST] == ["waiting for approval"]


def test_an_approved_release_is_measured_and_compared_with_the_last_version(story: Story) -> None:
    assert sorted(story.files["approve"]) == ["llamacpp-b1.frozen.json", "llamacpp-b1.toml"]
    summary = json.loads((story.tiny.home / "views" / TINY / "_study" / "publication" / "SUMMARY.json").read_bytes())
    assert [arm["arm"] for arm in summary["arms"] if arm["state"] == "measured"][:2] == [BASE_ARM, NEW_ARM]
    pair = next(one for one in summary["comparisons"] if one["pair_id"] == "b1-vs-b11549-q4_0")
    assert pair["state"] == "compared"
    differences = [f for f in pair["figures"] if f["measure"] == "rows_bit_identical" and f["population"] == "all"]
    assert {figure["value"] for figure in differences} == {1.0}  # the same library under another number


def test_a_tag_pushed_again_is_an_alarm_and_a_new_version_and_overwrites_nothing(story: Story) -> None:
    before, after = story.files["approve"], story.files["look at other bytes"]
    assert {name: after[name] for name in before} == before
    (new,) = set(after) - set(before)
    assert story.second_sha256 in after[new].decode()
    check = next(one for one in story.alarm["checks"] if one["name"] == "no_tag_pushed_again")
    assert not check["passed"] and FIRST in check["explanation"]
    assert story.alarm["flags"] == ["a tag was pushed again"]
    assert f"q4_0/llamacpp@{new.removeprefix('llamacpp-').removesuffix('.toml')}" in after[new].decode()
    assert 'baseline = "q4_0/llamacpp@b1"' in after[new].decode()


def test_a_deleted_tag_is_told_and_takes_no_result_away(story: Story) -> None:
    check = next(one for one in newest(story.tiny)["checks"] if one["name"] == "pinned_tags_are_there")
    assert not check["passed"] and FIRST in check["explanation"]
    assert "verified" in story.done["verify"].stdout
    assert SECOND not in story.done["look at a deleted tag"].stdout
