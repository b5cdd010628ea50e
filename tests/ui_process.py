"""The real `engcmp ui` for tests: started as a script starts it, asked over HTTP, ended by a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from homes import CHECKOUT, STUDY, command
from ports import free_port

LOCATION = {"repositoryLocationName": "engcmp", "repositoryName": "__repository__"}
# In the background of a shell that is not interactive, a process is told to ignore Ctrl-C: the way in which scripts start it.
IN_THE_BACKGROUND = '"$@" >"$UI_LOG" 2>&1 & echo $!; wait $!'
_LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
_STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


@dataclass(frozen=True)
class Ui:
    """A running UI: its address, the process id of `engcmp ui`, and what it said."""

    url: str
    pid: int
    home: Path
    log: Path
    shell: subprocess.Popen[str]

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/graphql", json={"query": query, "variables": variables}, timeout=30).json()
        assert "errors" not in answer, answer
        return dict(answer["data"])

    def launch(self, job: str, partition: str) -> str:
        """Start a run as the button does: no configuration, the partition as a tag."""
        params = {
            "selector": {**LOCATION, "jobName": job},
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
        }
        answer = self.graphql(_LAUNCH, params=params)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def terminate(self, run_id: str) -> None:
        assert self.graphql(_TERMINATE, id=run_id)["terminateRun"]["__typename"] == "TerminateRunSuccess"

    def status(self, run_id: str) -> str:
        return str(self.graphql(_STATUS, id=run_id)["runOrError"]["status"])

    def stop(self) -> float:
        """End it by SIGTERM; how many seconds that took."""
        started = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        self.shell.wait(timeout=60)
        return time.monotonic() - started


@contextmanager
def running_ui(home: Path, *flags: str) -> Iterator[Ui]:
    """`engcmp ui` on `home` and a free port, from a shell's background, until it answers; ended on leaving."""
    log = home / "ui-started.log"
    log.write_text("")
    url = f"http://127.0.0.1:{free_port()}"
    arguments = command("ui", "--port", url.rsplit(":", 1)[1], *flags)
    shell = subprocess.Popen(
        ["/bin/sh", "-c", IN_THE_BACKGROUND, "sh", *arguments],
        env=os.environ | {"ENGCMP_HOME": str(home), "UI_LOG": str(log)}, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert shell.stdout is not None
    ui = Ui(url, int(shell.stdout.readline()), home, log, shell)
    try:
        wait_for(lambda: "The UI is open" in log.read_text() or shell.poll() is not None, 240, log.read_text)
        assert shell.poll() is None, log.read_text()
        yield ui
    finally:
        if shell.poll() is None:
            ui.stop()


def wait_for(condition: Callable[[], bool], seconds: float, explain: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {explain()}"
        time.sleep(0.1)


def home_without_dagster(measured: Path, target: Path) -> Path:
    """A copy of the results by hard links, without Dagster's event log: what a lost DAGSTER_HOME leaves."""
    shutil.copytree(
        measured, target, symlinks=True, copy_function=os.link, ignore=shutil.ignore_patterns("dagster", "scratch")
    )
    return target


def forget(home: Path, arm: str, artifacts: Sequence[str], study: str = STUDY) -> None:
    """Take the artifacts' heads and completed tasks away from an arm, so that they are to be made again."""
    for artifact in artifacts:
        (home / "heads" / study / arm.replace("/", "~") / f"{artifact}.json").unlink(missing_ok=True)
    for task in (home / "tasks").glob("*.json"):
        receipt = home / "receipts" / f"{json.loads(task.read_bytes()).get('receipt_sha256')}.json"
        if receipt.is_file():
            made = json.loads(receipt.read_bytes())
            if made["study"] == study and made["arm"] == arm and made["artifact"] in artifacts:
                task.unlink()


def processes_of(home: Path) -> list[str]:
    """Every living process that was started for these results: webserver, daemon, code servers, runs (Linux)."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"ENGCMP_HOME={home}".encode() in (folder / "environ").read_bytes().split(
                b"\0"
            ):
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
        except OSError:  # another user's, or it has just ended
            continue
    return found
