"""The code check on both sandboxes: every task, every forgery, and replies that attack while they are graded."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engcmp_assets.kernel.task_checks.code_tasks import load_code_tasks
from engcmp_assets.kernel.task_checks.code_verdicts import FORGERIES, Run, check_code, grade, self_test
from engcmp_resources.sandbox.finding import LocalSandbox
from engcmp_resources.sandbox.records import MIB, Limits

TASKS = load_code_tasks(Path(__file__).resolve().parents[2] / "protocol" / "_tasks" / "code")
TASK = next(task for task in TASKS if task.name == "merge_spans")
LIMITS = Limits(memory_bytes=256 * MIB, processes=64, call_s=5)


@pytest.fixture
def run(sandbox: LocalSandbox) -> Run:
    return lambda program, inputs: sandbox.run(program, inputs, LIMITS)


def test_references_pass_and_wrong_solutions_and_forgeries_fail(run: Run) -> None:
    self_test(TASKS, run)


def test_a_reply_is_graded_with_each_test_in_a_process_of_its_own(run: Run) -> None:
    counting = "calls = []\n" + TASK.reference.replace(
        "    merged = []", "    calls.append(1)\n    assert len(calls) == 1\n    merged = []"
    )
    verdict = check_code(f"Here it is:\n```python\n{counting}\n```\n", "finished", TASK, run)
    assert (verdict.outcome, len(verdict.tests)) == ("passed", len(TASK.tests))


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes_one_test(run: Run, name: str) -> None:
    verdict = grade(FORGERIES[name].format(entry=TASK.entry), TASK, run)
    assert verdict.outcome == "failed"
    assert "passed" not in verdict.tests
    assert len(verdict.tests) == len(TASK.tests)


ATTACKS = {
    "fork bomb": (
        "    while True:\n        try:\n            os.fork()\n        except OSError:\n            pass\n",
        "time",
    ),
    "sleep": ("    time.sleep(999)\n", "time"),
    "memory": ("    held = b'x' * (1 << 30)\n    return held\n", "no_value"),
    "flood": ("    while True:\n        os.write(int(sys.argv[1]), b'x' * 65536)\n", "output"),
    "deep value": (
        "    value = []\n    for _ in range(100_000):\n        value = [value]\n    return value\n",
        "no_value",
    ),
    "long value": ("    return 'x' * 3_000_000\n", "output"),
    "kill all": ("    os.kill(-1, 9)\n", "raised"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_reply_that_attacks_fails_with_its_word(sandbox: LocalSandbox, marked: Any, name: str) -> None:
    body, word = ATTACKS[name]
    code = marked.program(f"import os, sys, time\ndef {TASK.entry}(spans):\n{body}")
    limits = Limits(memory_bytes=256 * MIB, processes=64, call_s=1.5)
    verdict = grade(code, TASK, lambda program, inputs: sandbox.run(program, inputs[:3], limits))
    assert verdict.outcome == "failed"
    assert verdict.tests[:3] == (word,) * 3


def test_a_right_reply_that_also_leaves_a_daemon_behind_passes(sandbox: LocalSandbox, marked: Any, run: Run) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(999)\n    os._exit(0)\n"
    assert grade(marked.program(daemon + TASK.reference), TASK, run).outcome == "passed"


def test_several_replies_may_be_graded_at_once(run: Run) -> None:
    codes = [TASK.reference, TASK.wrong["empty-spans-kept"]] * 2
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(pool.map(lambda code: grade(code, TASK, run).outcome, codes))
    assert verdicts == ["passed", "failed"] * 2


def test_a_sandbox_whose_supervisor_is_killed_from_outside_is_lost(sandbox: LocalSandbox, marked: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may kill a process of another user")

    def kill() -> None:
        until = time.monotonic() + 60
        while not (found := marked.left()["processes"]) and time.monotonic() < until:
            time.sleep(0.05)
        status = Path(f"/proc/{found[0]}/status").read_text()
        os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    ran = sandbox.run(marked.program("import time\ntime.sleep(99)\n"), [b""], Limits(call_s=90))
    killer.join()
    assert (ran.ending, ran.calls) == ("lost", ())


def test_what_the_first_test_left_in_the_files_the_second_may_find_but_nobody_else(
    sandbox: LocalSandbox, marked: Any
) -> None:
    write = marked.program(
        "import os, sys\nopen(f'/tmp/{MARK}', 'a').close()\nos.write(int(sys.argv[1]), str(os.listdir('/tmp')).encode())"
    )
    first, second = (sandbox.run(write, [b""], LIMITS).calls[0].output for _ in range(2))
    assert first == second == str([marked.word]).encode()
