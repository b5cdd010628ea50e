"""Running tool-eval-bench: the real one where its commands are named in ENGCMP_TOOL_EVAL_BENCH (PATH:PATH), else what may go wrong."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from chat_stub import Says, call, serving

from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_eval.installation import SCENARIO_IDS, SuiteTool, find_tool
from engcmp_resources.tool_eval.results import read_result
from engcmp_resources.tool_eval.running import SuiteSettings, run_suite, suite_command

REAL = [Path(one) for one in os.environ.get("ENGCMP_TOOL_EVAL_BENCH", "").split(":") if one]
NEEDS_REAL = pytest.mark.skipif(not REAL, reason="ENGCMP_TOOL_EVAL_BENCH names no installed tool-eval-bench")
FEW = SuiteSettings(seed=7, scenario_ids=("TC-01", "TC-07"))


def weather(body: dict[str, Any]) -> Says:
    if any(message["role"] == "tool" for message in body["messages"]) or not body.get("tools"):
        return Says("It is 8 degrees and overcast.")
    return Says(calls=(call("get_weather", location="Berlin"),))


@NEEDS_REAL
@pytest.mark.parametrize("command", REAL, ids=lambda path: path.parent.parent.name)
def test_the_real_suite_runs_in_its_own_folder_and_is_read(command: Path, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TOOL_EVAL_MODEL=another\nTOOL_EVAL_HEADERS=X-Other=1\n")
    events: list[Any] = []
    with serving(weather) as stub:
        found = run_suite(
            find_tool(command), stub.url, "stub", FEW, tmp_path / "run", timeout_s=120, heard=events.append
        )
        result = read_result(found).document
    assert {one["scenario_id"]: one["outcome"] for one in result["scenarios"]} == {"TC-01": "pass", "TC-07": "fail"}
    assert {body["model"] for body in stub.asked} == {"stub"}
    assert {body.get("seed") for body in stub.asked if body.get("tools")} == {7}
    assert [event["scenario_id"] for event in events if event["event"] == "scenario_result"] == ["TC-01", "TC-07"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".env", "run"]


@NEEDS_REAL
@pytest.mark.parametrize("command", REAL, ids=lambda path: path.parent.parent.name)
def test_the_real_suite_knows_all_88_scenarios(command: Path, tmp_path: Path) -> None:
    with serving(lambda _: Says("")) as stub:
        settings = SuiteSettings(seed=1, concurrency=8)
        found = read_result(run_suite(find_tool(command), stub.url, "stub", settings, tmp_path / "run", timeout_s=300))
    assert sorted(found.texts) == sorted(SCENARIO_IDS)
    assert found.document["settings"]["concurrency"] == 8


def test_the_suite_of_88_is_asked_for_by_name() -> None:
    command = suite_command(
        SuiteTool(Path("x"), "3.0.0"), "http://h", "m", SuiteSettings(seed=3, concurrency=8, thinking=False)
    )
    assert command[command.index("--scenarios") + 1 : command.index("--seed")] == list(SCENARIO_IDS)
    assert (SCENARIO_IDS[0], SCENARIO_IDS[-1], len(set(SCENARIO_IDS))) == ("TC-01", "TC-88", 88)
    assert "--no-think" in command
    assert command[command.index("--trials") + 1] == "1"


def program(folder: Path, body: str) -> Path:
    """A command of the user's that is not the suite, or is a broken one."""
    path = folder / "tool"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print('tool-eval-bench 2.7.0')", "tool-eval-bench 2.7.0 is not known"),
        ("print('something else 3.0.0')", "asked for its version it says"),
        ("raise SystemExit('no module named rich')", "no module named rich"),
    ],
)
def test_what_is_no_known_version_is_refused(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(EngcmpError, match=words):
        find_tool(program(tmp_path, body))


def test_a_command_that_is_not_there_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngcmpError, match=r"tool-eval-bench is not installed; .*pip install tool-eval-bench==3\.0\.0"):
        find_tool()


def test_a_run_sees_nothing_of_the_user_s_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_EVAL_MODEL", "another")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    tool = program(tmp_path, "import os, json\njson.dump(dict(os.environ), open('result.json', 'w'))")
    found = run_suite(SuiteTool(tool, "3.0.0"), "http://h", "m", FEW, tmp_path / "run", timeout_s=60, api_key="k")
    seen = found.read_text()
    assert "another" not in seen
    assert "proxy" not in seen.lower()
    assert '"TOOL_EVAL_API_KEY": "k"' in seen


def test_a_run_that_fails_tells_what_it_said(tmp_path: Path) -> None:
    tool = program(tmp_path, "import sys\nsys.stderr.write('cannot reach the model')\nsys.exit(1)")
    with pytest.raises(EngcmpError, match="ended with 1 and no result: cannot reach the model"):
        run_suite(SuiteTool(tool, "3.0.0"), "http://h", "m", FEW, tmp_path / "run", timeout_s=60)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_run_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    body = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('child', 'w').write(str(child.pid))\ntime.sleep(600)"
    )
    tool = program(tmp_path, body)
    started = time.monotonic()
    with pytest.raises(EngcmpError, match="took longer than 3 s"):
        run_suite(SuiteTool(tool, "3.0.0"), "http://h", "m", FEW, tmp_path / "run", timeout_s=3)
    assert time.monotonic() - started < 60
    child = int((tmp_path / "run" / "child").read_text())
    while alive(child) and time.monotonic() - started < 60:
        time.sleep(0.05)  # a killed process takes a moment to go
    assert not alive(child)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="the folder is not empty"):
        run_suite(SuiteTool(program(tmp_path, ""), "3.0.0"), "http://h", "m", FEW, tmp_path, timeout_s=5)
