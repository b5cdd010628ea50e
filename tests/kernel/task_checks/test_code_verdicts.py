"""Verdicts on code, from what a sandbox says. The code here is this project's own and runs in plain child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engcmp_assets.kernel.task_checks import code_verdicts
from engcmp_assets.kernel.task_checks.code_tasks import load_code_tasks
from engcmp_assets.kernel.task_checks.code_verdicts import check_code, grade, self_test, solutions
from engcmp_assets.kernel.task_checks.code_worker import exact_form
from engcmp_resources.errors import EngcmpError

TASKS = {
    task.name: task for task in load_code_tasks(Path(__file__).resolve().parents[3] / "protocol" / "_tasks" / "code")
}
TASK = TASKS["outer_spiral"]


@dataclass
class Call:
    output: bytes
    exit: int = 0
    cause: str | None = None


@dataclass
class Ran:
    calls: Sequence[Call]
    ending: str = "complete"


def plainly(program: str, inputs: Sequence[bytes]) -> Ran:
    """Each call in a child process without a sandbox: for code that was written here."""
    calls = []
    for given_ in inputs:
        reading, writing = os.pipe()
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, str(writing)], input=given_, pass_fds=(writing,), check=False
        )
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            calls.append(Call(pipe.read(), done.returncode))
    return Ran(calls)


# ---------------------------------------------------------------- which code


def test_the_one_block_that_defines_the_function_is_taken() -> None:
    block = "```python\ndef spiral(rows):\n    return []\n```"
    usage = "```python\nprint(spiral([[1]]))\n```"
    shell = "```bash\npip install spiral\n```"
    code = ["def spiral(rows):\n    return []"]
    assert solutions(f"Here:\n{block}\nUse it:\n{usage}\n{shell}", "spiral") == code
    assert solutions(block.replace("```python", "~~~py").replace("```", "~~~"), "spiral") == code
    assert solutions(block.removesuffix("\n```"), "spiral") == code  # never closed
    assert solutions("def spiral(rows):\n    return []", "spiral") == code  # no fence at all
    assert len(solutions(f"{block}\nbetter:\n{block}", "spiral")) == 2
    assert solutions(usage, "spiral") == []
    assert solutions("```\ndef spirals(rows): ...\n```", "spiral") == []
    assert solutions("def spiral(rows): ...\n```text\nx\n```", "spiral") == []  # outside of the reply's code
    held = "````python\ndef spiral(rows):\n    '''```'''\n```\n````"
    assert solutions(held, "spiral") == ["def spiral(rows):\n    '''```'''\n```"]


@pytest.mark.parametrize(
    ("reply", "finish", "outcome"),
    [
        ("", "finished", "empty"),
        ("I would sort it.", "finished", "no_code"),
        ("```\ndef spiral(r): ...\n```\n```\ndef spiral(r): ...\n```", "finished", "several_solutions"),
        ("```\ndef spiral(r):", "capped", "capped"),
        ("```\ndef spiral(r):", "stopped_early", "stopped_early"),
    ],
)
def test_a_reply_without_one_solution_is_not_run(reply: str, finish: Any, outcome: str) -> None:
    def never(*_: object) -> Ran:
        raise AssertionError("it ran")

    verdict = check_code(reply, finish, TASK, never)
    assert (verdict.outcome, verdict.tests) == (outcome, ())


# ---------------------------------------------------------------- which verdict


def test_the_reference_passes_and_each_wrong_solution_fails_a_test_that_is_named() -> None:
    good = check_code(f"```python\n{TASK.reference}\n```", "finished", TASK, plainly)
    assert (good.outcome, set(good.tests)) == ("passed", {"passed"})
    bad = grade(TASK.wrong["uneven-rows-pass"], TASK, plainly)
    assert (bad.outcome, bad.reason) == ("failed", "10 of 12 tests passed")
    assert bad.tests[-2:] == ("wrong", "wrong")


@pytest.mark.parametrize(
    ("body", "outcomes"),
    [
        ("return not rows", {"wrong"}),
        ("return tuple(rows)", {"wrong"}),
        ("raise KeyError", {"raised"}),
        ("return (x for x in rows)", {"no_value"}),
        ("raise SystemExit(0)", {"raised"}),
        ("class ValueError(Exception): ...\n    raise ValueError", {"no_value"}),
        ("return nothing", {"raised"}),
    ],
)
def test_each_way_to_fail_has_its_word(body: str, outcomes: set[str]) -> None:
    verdict = grade(f"def spiral(rows):\n    {body}\n", TASK, plainly)
    assert (verdict.outcome, set(verdict.tests)) == ("failed", outcomes)
    assert set(grade("def spiral(rows)", TASK, plainly).tests) == {"not_loaded"}


def test_a_solution_may_use_dataclasses_threads_and_exit_handlers() -> None:
    extra = "import atexit, dataclasses, threading, time\n@dataclasses.dataclass\nclass Box:\n    value: 'int' = 0\n"
    extra += "atexit.register(time.sleep, 99)\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    assert grade(extra + TASK.reference, TASK, plainly).outcome == "passed"


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        (Call(b"", 0, "time"), "time"),
        (Call(b"[", 0, "output"), "output"),
        (Call(b""), "no_value"),
        (Call(b"[{}] [{}]"), "no_value"),
        (Call(b'[{"returned": ["list"], "arguments": ["tuple", ["list"]]}]', 1), "no_value"),
        (Call(b'{"returned": ["list"], "arguments": ["tuple", ["list"]]}'), "no_value"),
        (Call(b'[{"returned": ["list"], "returned": ["list"], "arguments": ["tuple", ["list"]]}]'), "no_value"),
        (Call(b'[{"returned": ["list"], "arguments": ["tuple", ["list"]], "x": 1}]'), "wrong"),
        (Call(b'[{"returned": true}]'), "wrong"),
        (Call(b"[true]"), "no_value"),
        (Call(b"\xff"), "no_value"),
    ],
)
def test_whatever_comes_out_of_a_sandbox_is_judged(call: Call, outcome: str) -> None:
    verdict = grade("x", TASK, lambda _, inputs: Ran([call] * len(inputs)))
    assert (verdict.outcome, verdict.tests[0]) == ("failed", outcome)


@pytest.mark.parametrize(("ending", "rest"), [("time", "time"), ("output", "output"), ("foreign", "ended")])
def test_a_run_that_was_cut_fails_with_what_it_had(ending: str, rest: str) -> None:
    first = plainly(code_verdicts.worker_text(), [code_verdicts._request(TASK.reference, "spiral", TASK.tests[:1])])
    verdict = grade("x", TASK, lambda *_: Ran(first.calls, ending))
    assert verdict.outcome == "failed"
    assert verdict.tests == ("passed", *[rest] * (len(TASK.tests) - 1))
    assert ending in verdict.reason


def test_all_tests_passed_in_a_run_that_was_not_complete_is_no_pass() -> None:
    requests = [code_verdicts._request(TASK.reference, "spiral", [test]) for test in TASK.tests]
    calls = plainly(code_verdicts.worker_text(), requests).calls
    assert grade("x", TASK, lambda *_: Ran(calls)).outcome == "passed"
    assert grade("x", TASK, lambda *_: Ran(calls, "foreign")).outcome == "failed"


# ---------------------------------------------------------------- a broken harness


def test_a_sandbox_that_fails_says_nothing_of_the_code() -> None:
    def broken(*_: object) -> Ran:
        raise EngcmpError("the Docker engine says: gone")

    verdict = grade(TASK.wrong["uneven-rows-pass"], TASK, broken)
    assert (verdict.outcome, verdict.reason, verdict.tests) == ("harness_broken", "the Docker engine says: gone", ())


def test_a_lost_sandbox_is_tried_with_the_reference_before_the_code_is_blamed() -> None:
    def lost_with_it(program: str, inputs: Sequence[bytes]) -> Ran:
        return Ran([], "lost") if b"the culprit" in inputs[0] else plainly(program, inputs)

    assert grade("# the culprit", TASK, lambda *_: Ran([], "lost")).outcome == "harness_broken"
    verdict = grade("# the culprit", TASK, lost_with_it)
    assert (verdict.outcome, set(verdict.tests)) == ("failed", {"ended"})
    wrong_reference = lambda _, inputs: Ran([], "lost") if b"culprit" in inputs[0] else Ran([Call(b"")] * len(inputs))
    assert grade("# the culprit", TASK, wrong_reference).outcome == "harness_broken"


# ---------------------------------------------------------------- exact values


def test_values_of_other_types_are_other_values() -> None:
    values = [
        1,
        True,
        1.0,
        "1",
        b"1",
        [1],
        (1,),
        {1},
        frozenset({1}),
        {1: None},
        None,
        0.0,
        -0.0,
        0,
        False,
        [],
        (),
        {},
        "",
    ]
    forms = [str(exact_form(value)) for value in values]
    assert len(set(forms)) == len(values)
    assert exact_form({"a": 1, "b": [2]}) == exact_form({"b": [2], "a": 1})
    assert exact_form({3, 1, 2}) == exact_form({2, 3, 1})
    assert exact_form(10**5000) == ["int", hex(10**5000)]
    assert exact_form(float("nan")) == ["float", "nan"]


@pytest.mark.parametrize(
    "value", [object(), range(3), iter([]), type("I", (int,), {})(1), [type("S", (str,), {})("x")], 1j]
)
def test_types_that_are_not_plain_have_no_form(value: object) -> None:
    with pytest.raises(TypeError, match="a value of type"):
        exact_form(value)


@settings(deadline=None)  # no timed tests
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
                    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=8),
       st.data())  # fmt: skip
def test_equal_forms_are_equal_values(value: Any, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([value, [value], str(value), (value,), not value]))
    if exact_form(value) == exact_form(other):
        assert value == other and type(value) is type(other)


def test_the_self_test_passes_and_a_grader_that_trusts_the_code_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [TASK, TASKS["merge_spans"]]
    self_test(tasks, plainly)
    monkeypatch.setattr(code_verdicts, "_outcome", lambda *_: "passed")
    with pytest.raises(EngcmpError, match=r"outer_spiral, wrong solution .* gives 'passed', not 'failed'"):
        self_test(tasks, plainly)
    monkeypatch.setattr(code_verdicts, "_outcome", lambda *_: "wrong")
    with pytest.raises(EngcmpError, match="outer_spiral, the reference gives 'failed'"):
        self_test(tasks, plainly)
    with pytest.raises(EngcmpError, match="the run gives 'lost'"):
        self_test(tasks, lambda *_: Ran([], "lost"))
