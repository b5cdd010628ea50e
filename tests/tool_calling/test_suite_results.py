"""Result files of tool-eval-bench, made by both versions against a stub: what is taken from them, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_eval.results import read_result

FILES = Path(__file__).parent / "suite_results"
VERSIONS = ("2.8.0", "3.0.0")


def outcomes(name: str) -> dict[str, tuple[str, int | None]]:
    found = read_result(FILES / f"{name}.json").document["scenarios"]
    return {one["scenario_id"]: (one["outcome"], one["points"]) for one in found}


@pytest.mark.parametrize("version", VERSIONS)
def test_points_settings_and_turns_are_taken(version: str) -> None:
    found = read_result(FILES / f"{version}_eight_at_once.json")
    document = found.document
    assert (document["suite"], document["version"], document["max_points"]) == ("tool-eval-bench", version, 8)
    assert document["settings"] == {
        "temperature": 0.0, "max_turns": 8, "max_tokens": 16384, "thinking": True, "reference_date": None, "extra": {},
        "seed": 7, "concurrency": 8,
    }  # fmt: skip
    assert outcomes(f"{version}_eight_at_once") == {
        "TC-01": ("pass", 2), "TC-07": ("fail", 0), "TC-10": ("fail", 0), "TC-45": ("partial", 1),
    }  # fmt: skip
    assert all(len(one["turn_ms"]) == 2 and min(one["turn_ms"]) > 0 for one in document["scenarios"])


@pytest.mark.parametrize("version", VERSIONS)
def test_texts_and_host_stay_out_of_the_document(version: str) -> None:
    found = read_result(FILES / f"{version}_idle.json")
    text = json.dumps(found.document)
    assert "log of" not in text
    assert "host" not in text
    assert found.texts["TC-01"] == "log of TC-01"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_excluded_scenario_is_missing_though_the_file_says_fail_with_0_points(version: str) -> None:
    assert outcomes(f"{version}_idle") == {
        "TC-01": ("fail", 0), "TC-07": ("fail", 0), "TC-10": ("fail", 0), "TC-45": ("missing", None),
    }  # fmt: skip
    assert read_result(FILES / f"{version}_idle.json").document["max_points"] == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_refuses_everything_earns_nothing(version: str) -> None:
    assert set(outcomes(f"{version}_all_refused").values()) == {("missing", None)}
    assert read_result(FILES / f"{version}_all_refused.json").document["max_points"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reply_cut_while_thinking_is_capped_not_wrong(version: str) -> None:
    assert outcomes(f"{version}_capped")["TC-01"] == ("capped", None)


def test_a_file_of_several_trials_is_refused() -> None:
    with pytest.raises(EngcmpError, match="made with --trials: it holds one trial of several"):
        read_result(FILES / "3.0.0_two_trials.json")


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads((FILES / "3.0.0_eight_at_once.json").read_text())
    change(document)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    return path


def first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["scores"]["scenario_results"][0]
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(tool_eval_bench_version="2.7.0"), "tool-eval-bench 2.7.0 is not known"),
        (lambda d: d.pop("tool_eval_bench_version"), "tool_eval_bench_version is NoneType, not str"),
        (lambda d: d.update(schema_version="2"), "schema_version '2' is not known"),
        (lambda d: d.update(error="connection refused", scores=None), "the run failed: connection refused"),
        (lambda d: d.update(status="running"), "the run is 'running', not completed"),
        (lambda d: d["scores"].update(total_points=5), "it says 5 of 8 points, its scenarios add up to 3 of 8"),
        (lambda d: first(d).update(points=1), "TC-01: 'pass' with 1 points"),
        (lambda d: first(d).update(failure_kind="timeout"), "its excluded scenarios are not those"),
        (lambda d: d["config"]["scenario_ids"].append("TC-02"), "5 scenarios were asked for, 4 are told"),
        (lambda d: first(d).update(scenario_id="MY-01"), "'MY-01' is no scenario of the suite"),
        (lambda d: d["config"].update(error_rate=0.1), "made with --error-rate 0.1"),
        (lambda d: d.update(scores=[]), "scores is list, not dict"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    path = changed(tmp_path, change)
    with pytest.raises(EngcmpError, match=words) as raised:
        read_result(path)
    assert raised.value.where == str(path)
    assert raised.value.remedy


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]"])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(EngcmpError, match=r"cannot be read as JSON|the document is list, not dict"):
        read_result(path)
