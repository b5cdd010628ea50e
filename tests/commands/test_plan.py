"""`engcmp plan`: what a study asks for and what is done already, with no GPU, no engine and nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from homes import CHECKOUT, Q4, STUDY, Here, assert_one_clear_line, current_receipt, everything

from engcmp_assets.tails import step as tails_step


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def test_a_plan_of_an_empty_home_says_that_all_is_to_be_done_and_writes_nothing(here: Here, tmp_path: Path) -> None:
    done = here("plan", STUDY, home=tmp_path / "home")
    assert done.returncode == 0 and not (tmp_path / "home").exists()
    assert f"{STUDY}: 6 arms, frozen as " in done.stdout
    assert done.stdout.count("(0 of ") == 6 and "2 x scoring, prefill: 2 repeats" in done.stdout
    assert "expected GPU hours: unknown: no rate declared" in done.stdout
    assert " free" in done.stdout


def test_what_is_done_is_told_from_the_heads(here: Here, measured_home: Path) -> None:
    before = everything(measured_home / "heads")
    found = json.loads(here("plan", STUDY, "--arm", Q4, "--json", home=measured_home).stdout)
    (arm,) = found["arms"]
    assert arm["arm"] == Q4 and set(arm["artifacts"].values()) == {"done"}
    assert found["study_wide"]["publication"] == "done" and "engine_versions" not in found["study_wide"]
    assert found["disk"]["free_bytes"] > 0
    assert found["disk"]["rows_bytes"] == {"known": sum(launch["bytes"] for launch in arm["launches"]), "unknown": []}
    assert everything(measured_home / "heads") == before


def test_what_an_edited_study_has_from_before_is_said_to_be_of_another_freeze(
    here: Here, measured_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "protocol" / STUDY
    shutil.copytree(CHECKOUT / "protocol" / STUDY, folder)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(folder.parent))
    with (folder / "protocol.toml").open("a", encoding="utf-8") as file:
        file.write('more = "a limit"\n')
    edited = here("plan", STUDY, home=measured_home)
    assert "not to be run as it is: protocol file protocol.toml was edited after the freeze" in edited.stdout
    with (folder / "protocol.toml").open("a", encoding="utf-8") as file:
        file.write(
            '[rates.llamacpp]\nbasis = "a guess"\nstart_s = 4\nprefill_tok_s = 100\ndecode_tok_s = { 1 = 20, 2 = 30 }\n'
        )
    (folder / "FROZEN.json").unlink()
    rated = here("plan", STUDY, home=measured_home)
    assert "0 of 13 artifacts done, 13 made under another freeze" in rated.stdout
    assert "rates of llamacpp: a guess" in rated.stdout and "unknown" not in rated.stdout


def test_an_unknown_arm_is_named_with_those_there_are(here: Here, tmp_path: Path) -> None:
    done = here("plan", STUDY, "--arm", "q4_0/llamacpp@b1", home=tmp_path)
    assert_one_clear_line(done, "b1", "b11549")


def test_rates_of_an_engine_that_does_not_exist_are_refused(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "protocol" / STUDY
    shutil.copytree(CHECKOUT / "protocol" / STUDY, folder)
    monkeypatch.setenv("ENGCMP_PROTOCOL", str(folder.parent))
    with (folder / "protocol.toml").open("a", encoding="utf-8") as file:
        file.write('[rates.other]\nbasis = "a guess"\n')
    assert_one_clear_line(here("plan", STUDY, home=tmp_path), "rates names 'other'", "llamacpp")


def test_what_a_block_that_is_not_asked_would_make_is_not_to_do_and_borrowed_hours_are_marked(
    here: Here, tmp_path: Path
) -> None:
    found = json.loads(here("plan", "glm53-flash", "--json", home=tmp_path).stdout)
    arms = {one["arm"]: one for one in found["arms"]}
    timed = arms["K3.25-v1/vllm-fork@v0.9.2+jit-caches"]
    assert set(timed["artifacts"]) == {
        "sources", "prompt_set", "engine_launch/serving", "throughput_events", "throughput_cells", "summaries",
    }  # fmt: skip
    assert timed["rates_of"] == "K3.25-v1/vllm-fork@v0.9.2" and arms["K3.25-v1/vllm-fork@v0.9.2"]["rates_of"] is None
    # The one size that a document states is that of P-A.
    assert found["sources"]["missing_bytes"]["known"] == 31_700_000_000 and found["sources"]["here_bytes"] == 0
    said = here("plan", "glm53-flash", home=tmp_path).stdout
    assert (
        "31.7 GB more to fetch" in said and "(worked out at the rates of K3.25-v1/vllm-fork@v0.9.2, borrowed)" in said
    )


def test_a_result_whose_file_is_gone_or_whose_parameters_changed_is_to_be_made_again(
    here: Here, home_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = current_receipt(home_copy, "summaries", Q4)
    output = next(one for one in summary["outputs"] if one["name"] == "summary.json")
    (home_copy / "store" / output["sha256"][:2] / f"{output['sha256']}.json").unlink()
    monkeypatch.setattr(tails_step, "parameters", lambda _study, _arm: {"other": True})
    (arm,) = json.loads(here("plan", STUDY, "--arm", Q4, "--json", home=home_copy).stdout)["arms"]
    again = {name for name, state in arm["artifacts"].items() if state == "to be made again"}
    assert again == {"summaries", "tails"} and set(arm["artifacts"].values()) == {"done", "to be made again"}
