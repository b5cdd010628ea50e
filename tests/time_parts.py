"""Where the minutes of a test run go: each test's time is counted for one part, and the parts are printed at the end.

The budget is that of the tests in CI on two cores. It is shown and fails nothing: a slow machine is no fault of the code.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

# Minutes; what has none comes on top.
BUDGET = {"tests": 25, "demo": 8, "docker": 8, "browser": 6, "chaos": None, "vllm": None}
_DEMO = "measured_home"  # the fixture that runs `engcmp demo`


def part_of(node_id: str) -> str:
    """The part that a test belongs to, by where it stands."""
    file = node_id.partition("::")[0].removeprefix("tests/")
    if file.startswith(("docker/", "chaos/", "vllm/")):
        return file.partition("/")[0]
    return "browser" if "/test_browser" in file else "tests"


class TimeParts:
    """Adds up what each test took with its fixtures; the demo that the first test waits for is a part of its own."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        started = time.monotonic()
        try:
            return (yield)
        finally:
            if fixturedef.argname == _DEMO:
                took = time.monotonic() - started
                self.seconds["demo"] += took
                self.seconds[part_of(request._pyfuncitem.nodeid)] -= took

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[part_of(report.nodeid)] += report.duration

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = [
            f"{part} {self.seconds[part] / 60:.1f}" + (f" of {most}" if most else "")
            for part, most in BUDGET.items()
            if self.seconds[part]
        ]
        terminalreporter.write_line(f"minutes: {', '.join(lines)}")
