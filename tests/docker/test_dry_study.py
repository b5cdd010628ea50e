"""The K3.25 study end to end on the simulator: freeze, plan, launchers, every arm and block, follow-ups, pairs, pages, proof."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from docker_engine import docker_engine  # noqa: F401 - a fixture
from dry_study import AFD, ARMS, DRY, FORK, STAND_INS, dry_study, real_protocol
from tiny import TinyStudy

from engcmp_resources import host_image
from engcmp_resources.containers import DockerHost

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the image engcmp/host runs this host's own programs")


@pytest.fixture(autouse=True)
def _image(docker_engine: None) -> None:
    host = DockerHost()
    host_image.ensure(host)
    host.close()


def receipt(tiny: TinyStudy, arm: str, artifact: str) -> dict[str, Any]:
    head = json.loads((tiny.home / "heads" / DRY / arm.replace("/", "~") / f"{artifact}.json").read_bytes())
    found: dict[str, Any] = json.loads((tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes())
    return found


def output(tiny: TinyStudy, made: dict[str, Any], name: str) -> Any:
    one = next(one for one in made["outputs"] if one["name"] == name)
    return json.loads((tiny.home / "store" / one["sha256"][:2] / f"{one['sha256']}.{one['suffix']}").read_bytes())


def test_the_k3_25_study_runs_from_its_freeze_to_its_pages(tmp_path: Path, measured_home: Path) -> None:
    tiny = dry_study(tmp_path, measured_home)
    frozen = json.loads((tmp_path / "protocol" / DRY / "FROZEN.json").read_bytes())
    planned = json.loads(tiny.run("plan", DRY, "--json").stdout)
    assert [one["arm"] for one in planned["arms"]] == list(ARMS) and planned["frozen"]["sha256"] == frozen[
        "frozen_sha256"
    ]
    done = tiny.run("run", DRY)
    assert done.returncode == 0, done.stderr[-3000:]
    planned = json.loads(tiny.run("plan", DRY, "--json").stdout)
    assert {state for one in planned["arms"] for state in one["artifacts"].values()} == {"done"}
    assert set(planned["study_wide"].values()) <= {"done", "to do"} and planned["study_wide"]["publication"] == "done"

    summary = output(tiny, receipt(tiny, "_study", "publication"), "SUMMARY.json")
    assert summary["frozen_sha256"] == frozen["frozen_sha256"]
    arms = {one["arm"]: one for one in summary["arms"]}
    assert list(arms) == list(ARMS) and {one["state"] for one in arms.values()} == {"measured"}
    real = real_protocol()
    pairs = {one["pair_id"]: one for one in summary["comparisons"]}
    assert list(pairs) == [
        pair["pair_id"] for pair in real["comparisons"] if {pair["candidate"], pair["baseline"]} <= set(ARMS)
    ]
    assert {one["state"] for one in pairs.values()} == {"compared"}
    _assert_launchers_got_what_follow_ups_set(tiny)
    _assert_each_arm_has_its_blocks_and_says_what_it_lacks(
        arms, {one["arm"]: one.get("blocks") for one in real["arms"]}
    )
    _assert_pairs_are_of_what_both_arms_have(pairs)
    _assert_prompts_were_chats_of_the_planned_length(tiny)
    _assert_stand_ins_of_published_files_are_named(tiny)
    page = (tiny.home / "views" / DRY / "_study" / "publication" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "no precision: the protocol asks for speed only of this arm" in page
    assert "precision is not compared: " in page
    proved = tiny.run("verify", DRY)
    assert proved.returncode == 0, proved.stdout[-3000:]


def _assert_launchers_got_what_follow_ups_set(tiny: TinyStudy) -> None:
    """Every launcher ran at its commit; a follow-up adds to its config what the protocol sets, no more."""
    launches = {arm: "serving" if arm.startswith(f"{FORK}+") else "scoring" for arm in ARMS}
    facts = {
        arm: output(tiny, receipt(tiny, arm, f"engine_launch/{mode}"), "starts.json")[0]["facts"]
        for arm, mode in launches.items()
    }
    assert all(one["launcher"]["commit"] for one in facts.values())
    shipped = set(facts[AFD]["launcher"]["config"].splitlines())
    added = {
        arm: set(facts[arm]["launcher"]["config"].splitlines()) - shipped for arm in ARMS if arm.startswith(f"{AFD}+")
    }
    assert added == {
        f"{AFD}+kda-bf16": {"GLM5_FLASH_KDA_FP8=off"},
        f"{AFD}+head-bf16": {"GLM5_FLASH_FP8_HEAD=off"},
        f"{AFD}+w8a16": {"GLM5_FLASH_FP8_PREFILL=off"},
        f"{AFD}+bf16-all": {"GLM5_FLASH_KDA_FP8=off", "GLM5_FLASH_FP8_HEAD=off", "GLM5_FLASH_FP8_PREFILL=off"},
        f"{AFD}+one-lane": {"GLM5_FLASH_PREFILL_LANES=1", "GLM5_FLASH_PREFILL_LANE_ROWS=4096"},
    }
    told = tiny.run("launch", "diff", f"{DRY}/{AFD}", f"{DRY}/{AFD}+w8a16")
    assert told.returncode == 0 and "GLM5_FLASH_FP8_PREFILL=off" in told.stdout, told.stderr


def _assert_each_arm_has_its_blocks_and_says_what_it_lacks(
    arms: dict[str, dict[str, Any]], asked: dict[str, list[str] | None]
) -> None:
    words = {"q": "precision", "t": "speed", "l": "long output"}
    for arm, one in arms.items():
        own = asked[arm] or list("qtl")
        assert {"q": bool(one["figures"]), "t": bool(one.get("speed")), "l": bool(one.get("replies"))} == {
            block: block in own for block in "qtl"
        }, arm
        assert set(one.get("not_asked", {})) == {word for block, word in words.items() if block not in own}
        assert all("missing" in why for why in one.get("not_asked", {}).values())
        if one.get("speed"):
            assert all(cell["complete"] for cell in one["speed"]), arm
        for group in one.get("replies", {"groups": []})["groups"]:
            assert group["replies"] and not group["endings"].get("error"), (arm, group["population"], group["endings"])


def _assert_pairs_are_of_what_both_arms_have(pairs: dict[str, dict[str, Any]]) -> None:
    # The control: one version of CuteAFD on both files, whose stand-ins compute alike; the engines stray by what they were given.
    control = {one["measure"]: one["value"] for one in pairs["C1-vs-C0"]["figures"] if one["population"] == "all"}
    engines = {one["measure"]: one["value"] for one in pairs["C1-vs-V1"]["figures"] if one["population"] == "all"}
    assert control["kl_pair20"] == 0 < engines["kl_pair20"]
    parts = {name: (bool(one["figures"]), "speed" in one, "replies" in one) for name, one in pairs.items()}
    assert parts["C1-vs-V1"] == (True, True, True) and parts["C1-vs-C0"] == (True, False, False)
    assert parts["F1c-vs-V1"] == (True, True, False) and parts["K3.25-lane-vs-v4"] == (True, False, True)
    assert parts["jit-vs-V1"] == parts["boundary-vs-V1"] == (False, True, False)
    assert pairs["jit-vs-V1"]["reason"].startswith("precision is not compared: K3.25-v1/vllm-fork@v0.9.2+jit-caches: ")
    # A setting whose stand-in computes as the engine as shipped closes none of its gap; on two documents no gap is resolved.
    (all_rows, *_) = pairs["F1c-vs-C1"]["gap"]["figures"]
    assert all_rows["means"]["candidate"] == all_rows["means"]["setting"] > all_rows["means"]["baseline"]
    assert "no share of it can be closed" in all_rows["value"]["missing"] and "gap" not in pairs["C1-vs-V1"]
    # The same build twice is the floor of identity between versions; settings of one version are never held seed against seed.
    stages = {
        name: {one["population"]: one for one in pairs[name]["replies"]["stages"]} for name in parts if parts[name][2]
    }
    told = stages["K3.25-v4-vs-v3"]["long-L1"]["identity"]
    assert told["compared"] == 2 and {one["sentence"] for one in told["same_build"].values()} == {"2 of 2 identical"}
    assert "only between versions of one engine" in stages["K3.25-lane-vs-v4"]["long-L1"]["identity"]["missing"]
    assert "not_compared" not in pairs["C1-vs-V1"] and set(pairs["F1c-vs-V1"]["not_compared"]) == {"l"}


def _assert_stand_ins_of_published_files_are_named(tiny: TinyStudy) -> None:
    """Tokenizer and drafter came from the mirror by the real study's pins; every launch was given the drafter, by its list of files."""
    sources = receipt(tiny, AFD, "sources")
    listed = {name: output(tiny, sources, name) for name in ("tokenizer.files.json", "engine-drafter")}
    assert [one["stand_in"] for one in listed.values()] == list(STAND_INS.values())
    assert listed["engine-drafter"]["revision"] == "bf582e4eacc1810f76656d1811693ff6c6737d2a"
    drafter = next(one["sha256"] for one in sources["outputs"] if one["name"] == "engine-drafter")
    for arm in ARMS:
        mode = "serving" if arm.startswith(f"{FORK}+") else "scoring"
        assert (
            output(tiny, receipt(tiny, arm, f"engine_launch/{mode}"), "spec.json")["identities"]["drafter"] == drafter
        )
    assert receipt(tiny, AFD, "prompt_set")["details"]["tokenizer"]["stand_in"] == STAND_INS["tokenizer"]


def _assert_prompts_were_chats_of_the_planned_length(tiny: TinyStudy) -> None:
    """Of both engines, since the study sends chats to each; what they count is what was planned, template included."""
    for arm in (FORK, AFD):
        sessions = output(tiny, receipt(tiny, arm, "throughput_events"), "sessions.json")
        (sent,) = [one["prompts"]["sent_as"] for repeat in sessions["repeats"] for one in repeat["sessions"]]
        assert sent == "chats"
        for artifact, check in (
            ("throughput_cells", "prompt_tokens_as_planned"),
            ("long_replies", "prompt_tokens_as_predicted"),
        ):
            found = {one["name"]: (one["passed"], one["explanation"]) for one in receipt(tiny, arm, artifact)["checks"]}
            assert found[check][0], (arm, found[check])
