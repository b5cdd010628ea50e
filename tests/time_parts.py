"""Where the minutes of a test run go: each test's time is counted for one part, and the parts are printed at the end.

The budget is that of the tests in CI on two cores. It is shown and fails nothing: a slow machine is no fault of the code.
ENGCMP_TEST_SECONDS names a file in which the parts are added up over several calls of pytest.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Container, Generator
from pathlib import Path
from typing import Any

import pytest

# Minutes; what has none comes on top.
BUDGET = {"tests": 25, "demo": 8, "docker": 8, "browser": 6, "chaos": None, "vllm": None, "machines": 6}
NEEDS_DOCKER = "needs_docker"
_DEMO = "measured_home"  # the fixture that runs `engcmp demo`
_DEMO_SECONDS = "demo_seconds"


def part_of(node_id: str, keywords: Container[str] = ()) -> str:
    """The part that a test belongs to, by where it stands, or because it starts containers."""
    file = node_id.partition("::")[0].removeprefix("tests/")
    if file.startswith(("docker/", "chaos/", "vllm/", "machines/")):
        return file.partition("/")[0]
    if NEEDS_DOCKER in keywords:
        return "docker"
    return "browser" if "/test_browser" in file else "tests"


class TimeParts:
    """Adds up what each test took with its fixtures; the demo that the first test waits for is a part of its own.

    Of tests that ran in several processes at a time (pytest-xdist) the parts share the time that passed.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.seconds: Counter[str] = Counter()
        self.several = bool(getattr(config.option, "numprocesses", None))
        self.started = time.monotonic()

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
                # With the test's report it also reaches the process that adds up.
                request._pyfuncitem.user_properties.append((_DEMO_SECONDS, took))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        demo = sum(took for name, took in report.user_properties if name == _DEMO_SECONDS)
        part = part_of(report.nodeid, report.keywords)
        self.seconds[part] += report.duration
        if demo and report.when == "setup":
            self.seconds["demo"] += demo
            self.seconds[part] -= demo

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ:
            return  # the process that started it adds up for all
        passed, total = time.monotonic() - self.started, self.seconds.total()
        if self.several and total:
            self.seconds = Counter({part: took * passed / total for part, took in self.seconds.items()})
        if kept := os.environ.get("ENGCMP_TEST_SECONDS"):
            path = Path(kept)
            self.seconds.update(json.loads(path.read_bytes()) if path.exists() else {})
            path.write_text(json.dumps(self.seconds), encoding="utf-8")
        lines = [
            f"{part} {self.seconds[part] / 60:.1f}" + (f" of {most}" if most else "")
            for part, most in BUDGET.items()
            if self.seconds[part]
        ]
        terminalreporter.write_line(f"minutes: {', '.join(lines)}")
