"""`engcmp tools`: runs of scenarios against a server, imported result files, and two builds held against each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from homes import Here, assert_one_clear_line

sys.path.append(str(Path(__file__).parent.parent / "tool_calling"))

from chat_stub import Says, serving

from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS
from engcmp_assets.kernel.tool_calling.self_test import reference

FILES = Path(__file__).parent.parent / "tool_calling" / "suite_results"
KNOWN = FILES / "3.0.0_eight_at_once.json"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def changed(path: Path, place: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(path.read_bytes())
    change(document)
    place.write_text(json.dumps(document), encoding="utf-8")
    return place


def right(body: dict[str, Any]) -> Says:
    """A model that does all right: it plays the reference conversation of the scenario that it is asked."""
    messages = [one for one in body["messages"] if one["role"] != "system"]
    first = messages[0]["content"]
    scenario = next(one for one in SCENARIOS if one.turns[0].user == first)
    said = [step for turn in reference(scenario) for step in turn]
    step = said[sum(one["role"] == "assistant" for one in messages)]
    calls = tuple((call["name"], call["arguments"]) for call in step["tool_calls"])
    return Says(step["content"] or "", calls)


# ---------------------------------------------------------------- import


@pytest.mark.parametrize("version", ["2.8.0", "3.0.0"])
def test_a_result_file_is_imported_without_its_texts(here: Here, tmp_path: Path, version: str) -> None:
    out = tmp_path / "run.json"
    done = here("tools", "import", str(FILES / f"{version}_idle.json"), "--out", str(out), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"tool-eval-bench {version}: 0 of 6 (3 of 4 scenarios graded) points; 3 fail, 1 missing" in done.stdout
    run = json.loads(out.read_bytes())
    assert run["schema"] == "engcmp.tool-run/1" and "log of" not in json.dumps(run)
    assert {one["scenario_id"]: one["points"] for one in run["scenarios"]}["TC-45"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda it: it.update(tool_eval_bench_version="4.0.0"), ("4.0.0 is not known", "use 2.8.0 or 3.0.0")),
        (lambda it: it.update(schema_version="2"), ("schema_version '2' is not known",)),
        (lambda it: it["scores"].update(total_points=176), ("176 of 8 points", "run it again")),
        (lambda it: it.pop("config"), ("config is NoneType",)),
    ],
)
def test_a_file_of_another_version_or_a_changed_one_is_refused(
    here: Here, tmp_path: Path, change: Callable[[dict[str, Any]], object], words: tuple[str, ...]
) -> None:
    bad, out = changed(KNOWN, tmp_path / "bad.json", change), tmp_path / "run.json"
    assert_one_clear_line(here("tools", "import", str(bad), "--out", str(out), home=tmp_path), "bad.json", *words)
    assert not out.exists()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"schema": "engcmp.tool-run/1", "scenarios": []}'])
def test_what_is_no_result_file_is_refused(here: Here, tmp_path: Path, data: bytes) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(data)
    assert_one_clear_line(here("tools", "import", str(bad), home=tmp_path), "bad.json")


# ---------------------------------------------------------------- compare


def test_two_result_files_are_compared_scenario_by_scenario(here: Here, tmp_path: Path) -> None:
    def worse(it: dict[str, Any]) -> None:
        row = next(one for one in it["scores"]["scenario_results"] if one["scenario_id"] == "TC-01")
        row.update(status="fail", points=0)
        it["scores"].update(total_points=it["scores"]["total_points"] - 2)

    other = changed(KNOWN, tmp_path / "other.json", worse)
    done = here("tools", "compare", "--baseline", str(KNOWN), "--candidate", str(other), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "baseline: 3 of 8 points; flips between its repeats: one run of this build" in done.stdout
    assert "between the builds: 1 of 4" in done.stdout
    assert "candidate more in 0, baseline in 1, neither in 3; exact p = 1" in done.stdout
    assert "TC-01  2  0" in done.stdout and "descriptive" in done.stdout
    machine = json.loads(
        here("tools", "compare", "--baseline", str(KNOWN), "--candidate", str(other), "--json", home=tmp_path).stdout
    )
    assert machine["changes"] == [{"scenario_id": "TC-01", "baseline": [2], "candidate": [0]}]


def test_a_build_without_a_graded_scenario_is_not_compared_and_never_one_of_0_points(
    here: Here, tmp_path: Path
) -> None:
    def ungraded(it: dict[str, Any]) -> None:
        for row in it["scenarios"]:
            row.update(outcome="capped", points=None)

    imported = tmp_path / "whole.json"
    assert here("tools", "import", str(KNOWN), "--out", str(imported), home=tmp_path).returncode == 0
    none = changed(imported, tmp_path / "none.json", ungraded)
    for sides, build in (((imported, none), "candidate"), ((none, imported), "baseline"), ((none, none), "baseline")):
        pair = ("--baseline", str(sides[0]), "--candidate", str(sides[1]))
        words = (f"no scenario of the {build} was graded (4 capped)", "--max-tokens")
        assert_one_clear_line(here("tools", "compare", *pair, home=tmp_path), *words)


def test_a_run_that_is_not_there_is_one_clear_line(here: Here, tmp_path: Path) -> None:
    pair = ("--baseline", str(tmp_path / "gone.json"), "--candidate", str(KNOWN))
    assert_one_clear_line(here("tools", "compare", *pair, home=tmp_path), "gone.json", "cannot be read")


def test_flips_between_repeats_of_one_build_are_the_floor(here: Here, tmp_path: Path) -> None:
    same = ("--baseline", str(KNOWN), "--baseline", str(KNOWN), "--candidate", str(KNOWN), "--candidate", str(KNOWN))
    done = here("tools", "compare", *same, home=tmp_path)
    assert done.stdout.count("flips between its repeats: 0 of 4") == 2
    assert "counts only beyond the floor" in done.stdout and "no scenario's points differ" in done.stdout


def test_runs_made_in_another_way_are_refused(here: Here, tmp_path: Path) -> None:
    for other, word in (("2.8.0_eight_at_once", "version"), ("3.0.0_one_at_once", "concurrency")):
        pair = ("--baseline", str(KNOWN), "--candidate", str(FILES / f"{other}.json"))
        assert_one_clear_line(here("tools", "compare", *pair, home=tmp_path), "differ in", word, "made in the same way")


# ---------------------------------------------------------------- run


def test_the_built_in_scenarios_are_run_kept_and_compared(here: Here, tmp_path: Path) -> None:
    with serving(right) as stub:
        asked = (
            "tools",
            "run",
            "--base-url",
            stub.url,
            "--model",
            "stub",
            "--out",
            str(tmp_path / "v1"),
            "--repeats",
            "2",
        )
        done = here(*asked, "--concurrency", "4", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("engcmp-built-in 1: 24 of 24 points; 12 pass") == 2
        assert {body["seed"] for body in stub.asked} == {1, 2}
        count = len(stub.asked)
        again = here(*asked, "--concurrency", "4", home=tmp_path)
        assert again.returncode == 0 and again.stderr.count("is there already") == 2 and len(stub.asked) == count
    with serving(lambda _: Says("")) as stub:
        idle = (
            "tools",
            "run",
            "--base-url",
            stub.url,
            "--model",
            "stub",
            "--out",
            str(tmp_path / "v2"),
            "--concurrency",
            "4",
        )
        assert "0 of 24 points; 12 fail" in here(*idle, home=tmp_path).stdout
    sides = ("--baseline", str(tmp_path / "v1" / "1.json"), "--candidate", str(tmp_path / "v2" / "1.json"))
    found = here("tools", "compare", *sides, home=tmp_path).stdout
    assert "candidate more in 0, baseline in 12, neither in 0; exact p = 0.000488" in found


def test_a_server_that_is_not_there_is_an_error_and_leaves_nothing(here: Here, tmp_path: Path) -> None:
    place = ("--base-url", "http://127.0.0.1:9", "--model", "m", "--out", str(tmp_path / "v1"))
    done = here("tools", "run", *place, home=tmp_path)
    assert_one_clear_line(done, "no scenario got an answer: turn 1: the connection failed")
    assert not list(tmp_path.glob("v1/*"))


def test_a_run_of_another_model_or_setting_is_never_taken_for_this_one(here: Here, tmp_path: Path) -> None:
    with serving(right) as stub:
        asked = ("tools", "run", "--base-url", stub.url, "--out", str(tmp_path / "v1"), "--concurrency", "4")
        assert here(*asked, "--model", "stub", home=tmp_path).returncode == 0
        kept = (tmp_path / "v1" / "1.json").read_bytes()
        for other, said in {
            ("--model", "rival"): "model 'stub' there, 'rival' now",
            ("--model", "stub", "--temperature", "1"): "temperature 0.0 there, 1.0 now",
            ("--model", "stub", "--no-thinking"): "thinking True there, False now",
        }.items():
            assert_one_clear_line(here(*asked, *other, home=tmp_path), said)
        assert (tmp_path / "v1" / "1.json").read_bytes() == kept


def test_a_run_with_errors_is_made_again_by_the_same_call_and_kept_beside(here: Here, tmp_path: Path) -> None:
    with serving(right) as stub:
        asked = (
            "tools",
            "run",
            "--base-url",
            stub.url,
            "--model",
            "stub",
            "--out",
            str(tmp_path / "v1"),
            "--concurrency",
            "4",
        )
        assert here(*asked, home=tmp_path).returncode == 0
        place = tmp_path / "v1" / "1.json"
        changed(place, place, lambda run: run["scenarios"][0].update(outcome="error", points=None))
        old = place.read_bytes()
        done = here(*asked, home=tmp_path)
        assert "1 scenarios ended in errors: the run is made again" in done.stderr and "24 of 24 points" in done.stdout
        assert place.with_suffix(".errors.json").read_bytes() == old


@pytest.mark.parametrize("command", ["import", "compare", "run"])
def test_each_command_of_the_group_has_an_example(here: Here, tmp_path: Path, command: str) -> None:
    text = here("tools", command, "--help", home=tmp_path).stdout
    assert f"Example: engcmp tools {command}" in text and "Options:" in text
