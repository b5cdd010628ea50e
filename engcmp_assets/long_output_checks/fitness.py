"""Which checks may grade: each runs its self-test at every build, and one that fails it grades nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.task_checks import code_verdicts, json_check, math_check, needles
from engcmp_assets.kernel.task_checks.code_tasks import CodeTask
from engcmp_assets.kernel.task_checks.code_verdicts import Run
from engcmp_assets.kernel.tool_calling.self_test import check_grader
from engcmp_resources.errors import EngcmpError

PASSED = "passed"
_TESTS: Mapping[str, Callable[[], None]] = {
    "json": json_check.self_test, "math": math_check.self_test, "needle": needles.self_test, "tools": check_grader,
}  # fmt: skip


def fit_checks(
    used: Collection[str], tasks: Sequence[CodeTask], run: Run | Missing
) -> tuple[dict[str, Any], dict[str, Missing]]:
    """The outcome of each self-test of the checks that are used, and the unfit ones with their reason.

    `run` is the sandbox's, or why there is none. A failed self-test is Missing, never a pass.
    """
    told: dict[str, Any] = {}
    unfit: dict[str, Missing] = {}
    for check in sorted(used):
        why = _why_not(check, tasks, run)
        told[check] = PASSED if why is None else {"missing": why.reason}
        if why is not None:
            unfit[check] = why
    return told, unfit


def _why_not(check: str, tasks: Sequence[CodeTask], run: Run | Missing) -> Missing | None:
    if check == "code" and isinstance(run, Missing):
        return run
    try:
        if check == "code" and not isinstance(run, Missing):
            code_verdicts.self_test(tasks, run)
        else:
            _TESTS[check]()
    except EngcmpError as error:
        return Missing(f"the {check} check failed its own test: {error.what}")
    return None
