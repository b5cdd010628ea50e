"""The ten tasks as data, and files that are no tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engcmp_assets.kernel.task_checks.code_tasks import CodeTask, load_code_tasks, parse_code_task
from engcmp_resources.errors import EngcmpError

FOLDER = Path(__file__).resolve().parents[3] / "protocol" / "_tasks" / "code"
TASKS = load_code_tasks(FOLDER)
GOOD = """
entry = "double"
prompt = "Double it."
returns = [["(1,)", "2"], ["(2,)", "4"], ["(3,)", "6"], ["(4,)", "8"], ["(5,)", "10"], ["(6,)", "12"], ["('a',)", "'aa'"]]
raises = [["(None,)", "TypeError"]]
reference = "def double(x): return x * 2"
[wrong]
adds = "def double(x): return x + 2"
squares = "def double(x): return x ** 2"
prints = "def double(x): print(x * 2)"
"""


def test_there_are_ten_tasks_each_with_its_tests_and_wrong_solutions() -> None:
    assert len(TASKS) == 10
    assert len({task.entry for task in TASKS}) == 10
    for task in TASKS:
        assert f"`{task.entry}(" in task.prompt
        assert task.prompt.endswith("types are compared too.")
        assert len(task.tests) >= 8
        assert len(task.wrong) >= 4
        assert len({test.arguments for test in task.tests}) == len(task.tests)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_prompt_gives_a_hidden_test_away(task: CodeTask) -> None:
    values = [test.returns.strip("'") for test in task.tests if test.returns is not None]
    assert sum(len(value) > 5 and value in task.prompt for value in values) <= 2


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_solutions_are_python(task: CodeTask) -> None:
    for name, code in {"reference": task.reference, **task.wrong}.items():
        compile(code, name, "exec")
        assert f"def {task.entry}(" in code


def test_a_task_changes_its_hash_with_its_file() -> None:
    assert parse_code_task("a", GOOD).sha256 == parse_code_task("a", GOOD).sha256
    assert parse_code_task("a", GOOD).sha256 != parse_code_task("a", GOOD + "\n").sha256


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('entry = "double"', "", "code task t: KeyError.'entry'"),
        ('entry = "double"', 'entry = "double"\nentri = 1', "unknown field entri"),
        ('["(1,)", "2"]', '["1", "2"]', "the arguments 1 are no tuple"),
        ('["(1,)", "2"]', '["(1,)", "f(2)"]', "malformed node"),
        ('["(1,)", "2"]', '["(1,)"]', "not enough values"),
        ('["(1,)", "2"], ', "", "7 tests and 3 wrong solutions, fewer than 8 and 3"),
        ("[wrong]", "[wrong", "code task t: TOMLDecodeError"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(EngcmpError, match=said):
        parse_code_task("t", GOOD.replace(old, new, 1))


def test_a_folder_without_tasks_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngcmpError, match="no code tasks"):
        load_code_tasks(tmp_path)


def test_the_worker_imports_nothing_of_this_project() -> None:
    worker = Path(__file__).resolve().parents[3] / "engcmp_assets" / "kernel" / "task_checks" / "code_worker.py"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", worker.read_text(), "1"],
        input='{"code": "def f(x): return x", "entry": "f", "calls": ["((1, 2.5, None),)"]}',
        capture_output=True,
        text=True,
        check=True,
    )
    form = '["tuple", ["int", "0x1"], ["float", "0x1.4000000000000p+1"], ["none"]]'
    assert done.stdout == f'[{{"returned": {form}, "arguments": ["tuple", {form}]}}]'
