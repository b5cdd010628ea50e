"""A new engine version enters a frozen study by a file: measured for real, from a wheel in a folder, with no code and no network."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from homes import assert_one_clear_line
from tiny import BASE_ARM, NEW_ARM, TINY, TinyStudy, copy_of, make_tiny, make_wheel, write_iteration

from engcmp_resources.canonical import sha256_file
from engcmp_resources.package_index import platform_key

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Story:
    """What happened, in order: the commands' answers, and the freeze and receipts after each measurement."""

    tiny: TinyStudy
    done: Mapping[str, Done]
    frozen: bytes
    base_receipts: frozenset[str]


@pytest.fixture(scope="module")
def story(measured_home: Path, llamacpp_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    tiny = make_tiny(tmp_path_factory.mktemp("tiny"), measured_home)
    done = {"freeze": tiny.run("freeze", TINY), "run base": tiny.run("run", TINY)}
    frozen, receipts = tiny.frozen, frozenset(path.name for path in (tiny.home / "receipts").iterdir())
    write_iteration(tiny, llamacpp_library, platform_key())
    done["run too early"] = tiny.run("run", TINY, "--arm", NEW_ARM)
    done["freeze iteration"] = tiny.run("freeze", TINY, "--iteration", "b99")
    done["run new"] = tiny.run("run", TINY, "--arm", NEW_ARM)
    done["run all"] = tiny.run("run", TINY)
    done["verify"] = tiny.run("verify", TINY)
    return Story(tiny, done, frozen, receipts)


@pytest.fixture
def copied(story: Story, tmp_path: Path) -> TinyStudy:
    return copy_of(story.tiny, tmp_path)


def receipts_of(tiny: TinyStudy, arm: str | None) -> dict[str, dict[str, Any]]:
    """The current receipts of an arm, or of the study, by artifact."""
    root = tiny.home / "heads" / TINY / (arm.replace("/", "~") if arm else "_study")
    found = {}
    for path in root.rglob("*.json"):
        sha256 = json.loads(path.read_bytes())["receipt_sha256"]
        receipt = json.loads((tiny.home / "receipts" / f"{sha256}.json").read_bytes())
        found[receipt["artifact"]] = receipt
    return found


def succeeded(done: Done) -> Done:
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done


def test_a_study_that_is_only_data_is_frozen_and_measured(story: Story) -> None:
    assert (
        f"{TINY}: 4 files frozen as {json.loads(story.frozen)['frozen_sha256']}"
        in succeeded(story.done["freeze"]).stdout
    )
    assert BASE_ARM in succeeded(story.done["run base"]).stdout


def test_before_its_freeze_an_iteration_adds_no_arm(story: Story) -> None:
    assert_one_clear_line(story.done["run too early"], "has no version of engine llamacpp 'b99'", "it has b10809")


def test_after_its_freeze_just_the_new_arm_is_measured_and_nothing_frozen_has_changed(story: Story) -> None:
    assert f"iteration b99 ({NEW_ARM}) frozen as" in succeeded(story.done["freeze iteration"]).stdout
    said = succeeded(story.done["run new"]).stderr
    assert f"[{NEW_ARM}] engine_launch/scoring: launch 2/2, decode: starting llamacpp@b99" in said
    assert BASE_ARM not in said
    assert story.tiny.frozen == story.frozen
    left = {path.name for path in (story.tiny.home / "receipts").iterdir()}
    assert story.base_receipts <= left


def test_the_base_arm_is_answered_from_the_store(story: Story) -> None:
    assert "starting" not in succeeded(story.done["run all"]).stderr
    assert "0 artifacts made" in story.done["run all"].stderr
    current = receipts_of(story.tiny, BASE_ARM)
    assert {receipt["run_id"] for receipt in current.values()} == {current["sources"]["run_id"]}
    assert all(receipt["iterations"] == [] for receipt in current.values())


def test_the_new_arm_s_receipts_carry_the_iteration_and_so_does_what_is_of_every_arm(story: Story) -> None:
    freeze = json.loads((story.tiny.iteration.with_name("b99.frozen.json")).read_bytes())
    carried = [{"name": "b99", "frozen_sha256": freeze["frozen_sha256"]}]
    new = receipts_of(story.tiny, NEW_ARM)
    assert set(new) == set(receipts_of(story.tiny, BASE_ARM))
    assert all(receipt["iterations"] == carried for receipt in new.values())
    wide = receipts_of(story.tiny, None)
    assert {name: receipt["iterations"] for name, receipt in wide.items()} == {
        "frozen_protocol": [], "comparisons": carried, "publication": carried, "catalog": carried,
    }  # fmt: skip
    assert all(receipt["frozen_sha256"] == freeze["base_frozen_sha256"] for receipt in (*new.values(), *wide.values()))


def test_the_same_library_under_another_number_reads_bit_identical(story: Story) -> None:
    folder = story.tiny.home / "views" / TINY / "_study" / "publication"
    summary = json.loads((folder / "SUMMARY.json").read_bytes())
    assert [arm["arm"] for arm in summary["arms"]] == [BASE_ARM, NEW_ARM]
    pair = next(pair for pair in summary["comparisons"] if pair["pair_id"] == "b99-vs-b11549")
    assert pair["state"] == "compared"
    assert {figure["panel"] for figure in pair["figures"]} == {"pa", "pb"}
    assert {figure["verdict"] for figure in pair["figures"]} == {"bit-identical"}
    identical = [figure["value"] for figure in pair["figures"] if figure["measure"] == "rows_bit_identical"]
    assert set(identical) == {1.0}
    assert NEW_ARM in (folder / "SUMMARY.md").read_text(encoding="utf-8")


def test_the_whole_verifies(story: Story) -> None:
    said = succeeded(story.done["verify"]).stdout
    assert f"{TINY}: verified" in said
    assert "not made yet" not in said


# ---------------------------------------------------------------- an iteration is frozen too


def test_an_iteration_that_was_edited_after_its_freeze_stops_run_and_verify_and_is_named(copied: TinyStudy) -> None:
    with copied.iteration.open("a", encoding="utf-8") as file:
        file.write("# a note\n")
    assert_one_clear_line(copied.run("run", TINY), "iteration b99 was edited after its freeze", str(copied.iteration))
    checked = copied.run("verify", TINY)
    assert checked.returncode == 1
    assert f"FAILED {copied.iteration}: iteration b99 was edited after its freeze" in checked.stdout
    again = copied.run("freeze", TINY, "--iteration", "b99")
    assert_one_clear_line(
        again, "iteration b99 was edited after its freeze", str(copied.iteration), "another iteration"
    )


def test_an_iteration_of_another_frozen_hash_is_refused_until_it_is_frozen_anew(copied: TinyStudy) -> None:
    before = json.loads(copied.frozen)["frozen_sha256"]
    with (copied.folder / "protocol.toml").open("a", encoding="utf-8") as file:
        file.write('later = "another limit"\n')
    succeeded(copied.run("amend", TINY, "--because", "a limit was missing"))
    refused = copied.run("run", TINY)
    assert_one_clear_line(refused, f"iteration b99 extends frozen hash {before[:12]}", str(copied.iteration))
    assert f"FAILED {copied.iteration}: iteration b99 extends" in copied.run("verify", TINY).stdout
    succeeded(copied.run("freeze", TINY, "--iteration", "b99"))
    checked = copied.run("verify", TINY)
    assert checked.returncode == 1
    assert "summaries was made under another frozen hash than that of the protocol" in checked.stdout


def test_an_arm_whose_engine_does_not_run_keeps_no_other_from_being_measured(copied: TinyStudy, tmp_path: Path) -> None:
    library = tmp_path / "no-library.so"
    library.write_bytes(b"not a library")
    wheel = make_wheel(copied.root / "wheels", "2099.1.2", library, platform_key())
    text = copied.iteration.read_text(encoding="utf-8").replace("b99", "b98").replace("2099.1.1", "2099.1.2")
    for field, digest in (("sha256", sha256_file(wheel)), ("member_sha256", sha256_file(library))):
        text = re.sub(rf'(?m)^{field} = "\w+"', f'{field} = "{digest}"', text)
    copied.iteration.with_name("b98.toml").write_text(text, encoding="utf-8")
    assert copied.run("freeze", TINY, "--iteration", "b98").returncode == 0
    done = copied.run("run", TINY)
    assert_one_clear_line(done, "q4_0/llamacpp@b98")
    summary = json.loads((copied.home / "views" / TINY / "_study" / "publication" / "SUMMARY.json").read_bytes())
    states = {arm["arm"]: arm["state"] for arm in summary["arms"]}
    assert states == {BASE_ARM: "measured", "q4_0/llamacpp@b98": "refused", NEW_ARM: "measured"}
    assert "q4_0/llamacpp@b98" in done.stdout
