"""Whether a reply's code does what was asked (MEASURES section 7): hidden tests, run in a sandbox, judged outside of it.

Expected values never enter the sandbox. What comes out is compared here, by value and exact type, as JSON whose leaves are strings: no
object of the reply takes part in a comparison. So an `__eq__` that is always true, `exit(0)`, printed lines, patched builtins or another
test configuration give a wrong value or none. Each test runs in a process of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.task_checks import code_worker
from engcmp_assets.kernel.task_checks.answers import Finish, Unfinished, hold, unfinished
from engcmp_assets.kernel.task_checks.code_tasks import CodeTask, HiddenTest
from engcmp_assets.kernel.task_checks.json_check import NotJsonError, strict_json
from engcmp_resources.errors import EngcmpError

NO_SANDBOX = Missing("no sandbox")
MOST_CODE_BYTES = 1 << 20
_MOST_OUTPUT_DEPTH = 200

Outcome = Literal["passed", "failed", "empty", "no_code", "several_solutions", "harness_broken"] | Unfinished
TestOutcome = Literal["passed", "wrong", "raised", "not_loaded", "no_value", "time", "output", "ended"]
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([A-Za-z0-9+_-]*)[^\n`]*$")
_PYTHON = frozenset({"", "python", "python3", "py"})


class Ended(Protocol):
    """One call as a sandbox tells it; see engcmp_resources.sandbox.records.Call."""

    @property
    def output(self) -> bytes: ...
    @property
    def exit(self) -> int: ...
    @property
    def cause(self) -> str | None: ...


class RunEnded(Protocol):
    """One run as a sandbox tells it; see engcmp_resources.sandbox.records.Ran."""

    @property
    def calls(self) -> Sequence[Ended]: ...
    @property
    def ending(self) -> str: ...


# Runs a program once for each input, in a sandbox. Raises EngcmpError where the sandbox itself is broken.
Run = Callable[[str, Sequence[bytes]], RunEnded]


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """`passed` only where every test passed; `tests` has the outcome of each, and is empty where none was run.

    `harness_broken` says nothing of the reply: it is Missing in every figure, and never a fail.
    """

    outcome: Outcome
    reason: str
    tests: tuple[TestOutcome, ...] = ()


def check_code(reply: str, finish: Finish, task: CodeTask, run: Run) -> CodeVerdict:
    """The verdict on an answer span's code."""
    ended = unfinished(finish)
    if ended is not None:
        return CodeVerdict(ended, "the reply did not finish")
    if not reply.strip():
        return CodeVerdict("empty", "there is no answer")
    found = solutions(reply, task.entry)
    if len(found) != 1:
        outcome: Outcome = "several_solutions" if found else "no_code"
        return CodeVerdict(outcome, f"{len(found)} blocks define {task.entry}")
    return grade(found[0], task, run)


def solutions(reply: str, entry: str) -> list[str]:
    """The Python code blocks that define `entry` at their top level; without any code block, the whole reply where it does."""
    blocks = _blocks(reply)
    defines = re.compile(rf"^(?:(?:async )?def|class) {entry}\b|^{entry}\s*[:=]", re.MULTILINE)
    return [block for block in ([reply] if blocks is None else blocks) if defines.search(block)]


def grade(code: str, task: CodeTask, run: Run) -> CodeVerdict:
    """The verdict on code. A sandbox that is lost without a known cause is tried with the reference solution before the code is blamed."""
    if len(code.encode(errors="replace")) > MOST_CODE_BYTES:
        return CodeVerdict("failed", f"more than {MOST_CODE_BYTES:,} bytes of code")
    try:
        verdict = _graded(code, task, run)
        if verdict is not None:
            return verdict
        control = _graded(task.reference, task, run)
    except EngcmpError as error:
        return CodeVerdict("harness_broken", str(error))
    if control is None or control.outcome != "passed":
        return CodeVerdict("harness_broken", "the sandbox was lost, and the reference solution does not pass either")
    ended: list[TestOutcome] = ["ended"] * len(task.tests)
    return CodeVerdict("failed", "the code ended the sandbox; the reference solution passes in it", tuple(ended))


def _graded(code: str, task: CodeTask, run: Run) -> CodeVerdict | None:
    """The verdict, each test in a process of its own; None where the sandbox was lost."""
    ran = run(worker_text(), [_request(code, task.entry, [test]) for test in task.tests])
    if ran.ending == "lost":
        return None
    outcomes = [_outcomes(call, [test])[0] for call, test in zip(ran.calls, task.tests, strict=False)]
    rest: TestOutcome = "time" if ran.ending == "time" else "output" if ran.ending == "output" else "ended"
    tests = (*outcomes, *[rest] * (len(task.tests) - len(outcomes)))
    passed = tests.count("passed")
    if ran.ending == "complete" and passed == len(tests):
        return CodeVerdict("passed", "", tests)
    cause = "" if ran.ending == "complete" else f"; the run ended with {ran.ending}"
    return CodeVerdict("failed", f"{passed} of {len(tests)} tests passed{cause}", tests)


def _request(code: str, entry: str, tests: Sequence[HiddenTest]) -> bytes:
    return json.dumps({"code": code, "entry": entry, "calls": [test.arguments for test in tests]}).encode()


def _outcomes(call: Ended, tests: Sequence[HiddenTest]) -> list[TestOutcome]:
    """The outcome of each test of one call of the worker."""
    if call.cause is not None:
        return ["time" if call.cause == "time" else "output"] * len(tests)
    try:
        said = strict_json(call.output, most_depth=_MOST_OUTPUT_DEPTH)
    except NotJsonError:
        said = None
    if call.exit != 0 or not isinstance(said, list) or len(said) != len(tests):
        return ["no_value"] * len(tests)
    return [_outcome(one, test.expected()) for one, test in zip(said, tests, strict=True)]


def _outcome(said: object, expected: Mapping[str, object]) -> TestOutcome:
    """`said` is made of the lists, dicts, strings and numbers of JSON only, so `==` is Python's own."""
    if said == expected:
        return "passed"
    if not isinstance(said, dict):
        return "no_value"
    if "raised" in said:
        return "raised"
    return "wrong" if "returned" in said else "not_loaded" if said.get("stage") == "load" else "no_value"


def worker_text() -> str:
    """The program that runs one call in the sandbox."""
    return Path(code_worker.__file__).read_text(encoding="utf-8")


def _blocks(reply: str) -> list[str] | None:
    """The Python code blocks of a reply, also one that is never closed; None where it has no fence at all."""
    blocks: list[str] = []
    fence, kind, lines, any_fence = "", "", [""], False
    for line in reply.split("\n"):
        match = _FENCE.match(line.rstrip("\r"))
        if fence:
            if match is not None and match[1].startswith(fence) and not match[2]:
                blocks += ["\n".join(lines)] if kind in _PYTHON else []
                fence = ""
            else:
                lines.append(line)
        elif match is not None:
            fence, kind, lines, any_fence = match[1], match[2].lower(), [], True
    if fence and kind in _PYTHON:
        blocks.append("\n".join(lines))
    return blocks if any_fence else None


# Code that passes wherever a grader believes what the code's own process says. {entry} is the function asked for.
FORGERIES: Mapping[str, str] = {
    "always-equal": "class Same:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    "    def __hash__(self): return 0\n\ndef {entry}(*given):\n    return Same()\n",
    "equal-int": "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "\ndef {entry}(*given):\n    return Same(1)\n",
    "equal-type": "class Kind(type):\n    def __eq__(cls, other): return True\n    __hash__ = lambda cls: hash(list)\n\n"
    "class Same(metaclass=Kind):\n    def __iter__(self): return iter(())\n    def __index__(self): return 1\n"
    "    def __eq__(self, other): return True\n\ndef {entry}(*given):\n    return Same()\n",
    "exit-0": "import sys\nsys.exit(0)\n\ndef {entry}(*given): ...\n",
    "os-exit-0": "import os\n\ndef {entry}(*given):\n    os._exit(0)\n",
    "printed": "print('PASSED', flush=True)\nprint('{{\"returned\": true}}', flush=True)\n\ndef {entry}(*given):\n    print('ok')\n",
    "patched-builtins": "import builtins, json\nbuiltins.all = lambda *_: True\nbuiltins.isinstance = lambda *_: True\n"
    "builtins.type = lambda *_: int\njson.dumps = lambda *_, **__: '{{\"passed\": true}}'\n\ndef {entry}(*given):\n    return None\n",
    "conftest": "import pathlib\npathlib.Path('/tmp/conftest.py').write_text('def pytest_sessionfinish(session): session.exitstatus = 0')\n"
    "\ndef {entry}(*given):\n    return None\n",
    "modules": "import sys, types\nfor name in ('solution', '__main__', 'code_verdicts', 'pytest', 'unittest'):\n"
    "    sys.modules[name] = types.ModuleType(name)\n\ndef {entry}(*given):\n    return True\n",
    "frames": "import gc, sys\nframe = sys._getframe()\nwhile frame:\n    frame.f_globals['answer'] = lambda *_: {{'passed': True}}\n"
    "    frame.f_globals['expected'] = None\n    frame = frame.f_back\n\ndef {entry}(*given):\n    return None\n",
    "channel": "import os, sys\nfor line in (b'{{\"passed\": true}}', b'PASSED'):\n    os.write(int(sys.argv[1]), line)\n"
    "os._exit(0)\n\ndef {entry}(*given): ...\n",
}


def self_test(tasks: Sequence[CodeTask], run: Run) -> None:
    """The reference of each task passes, its wrong solutions fail, and no forgery passes the first task: all in one run.

    Raises EngcmpError where one differs: then nothing may be graded.
    """
    planted = [(f"{task.name}, the reference", task, task.reference, "passed") for task in tasks]
    planted += [
        (f"{task.name}, wrong solution {name}", task, code, "failed")
        for task in tasks
        for name, code in task.wrong.items()
    ]
    planted += [
        (f"forgery {name}", tasks[0], code.format(entry=tasks[0].entry), "failed") for name, code in FORGERIES.items()
    ]
    ran = run(worker_text(), [_request(code, task.entry, task.tests) for _, task, code, _ in planted])
    hold("code", [("the run", ran.ending, "complete")])
    for call, (what, task, _, wanted) in zip(ran.calls, planted, strict=True):
        outcome = "passed" if set(_outcomes(call, task.tests)) == {"passed"} else "failed"
        hold("code", [(what, outcome, wanted)])
