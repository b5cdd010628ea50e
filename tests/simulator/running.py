"""A simulator as a child process, for tests."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

CHECKOUT = Path(__file__).resolve().parents[2]
READY = {
    "vllm": "Application startup complete.",
    "cuteafd": "GLM 5.3 Flash API is ready",
    "llama-server": "server is listening on",
    "sglang": "The server is fired up and ready to roll!",
}


class Simulator:
    """A simulator that runs. `url` is its address; `log` all lines it has printed after the first; `ended` its exit status or None."""

    def __init__(self, dialect: str, process: subprocess.Popen[str], deadline_s: float) -> None:
        self.dialect, self.process, self.log = dialect, process, list[str]()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._seen = 0
        self._until = time.monotonic() + deadline_s
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        first = self._next()
        if first is None or not first.startswith("{"):
            raise NotStarted(f"the simulator ended with {process.wait(10)}: {first} {' '.join(self._rest())}")
        self.url: str = json.loads(first)["address"]

    @property
    def ended(self) -> int | None:
        return self.process.poll()

    def wait_for_line(self, part: str, seconds: float = 20) -> str:
        """The first line that holds this, once it was printed. Raises NotStarted where the process ends or time runs out before."""
        deadline = time.monotonic() + seconds
        while True:
            for line in self.log[self._seen :]:
                self._seen += 1
                if part in line:
                    return line
            if self._reader.is_alive() and time.monotonic() < deadline:
                time.sleep(0.002)
            elif self._seen == len(self.log):
                raise NotStarted(f"no line with {part!r}; status {self.ended}; {self.log}")

    def truth(self, *, path: str | None = None) -> list[dict[str, Any]]:
        """What it has sent, a record for each request (of one path)."""
        records = self._ask("GET", "/__sim__/truth")["records"]
        return [record for record in records if path in (None, record["path"])]

    def last(self, path: str | None = None) -> dict[str, Any]:
        """The record of the last request, once its answer has ended."""
        deadline = time.monotonic() + 20
        while (record := self.truth(path=path)[-1])["ended"] == "open" and time.monotonic() < deadline:
            time.sleep(0.005)
        if record["ended"] == "open":
            raise TimeoutError(f"the answer goes on: {record['path']}")
        return record

    def script(self, *faults: dict[str, Any] | str, **timing: float) -> None:
        """Put faults (objects, or names alone) and timing in force, instead of those before."""
        self._ask("POST", "/__sim__/script", script_of(faults, timing))

    def stop(self) -> int:
        """End it as the system does, and then by force. Gives its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(10)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, self.url + path, json=body, timeout=20, trust_env=False)
        if answer.status_code == httpx.codes.BAD_REQUEST:
            raise ValueError(answer.json()["error"])
        answer.raise_for_status()
        return answer.json()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for index, line in enumerate(self.process.stdout):
            if index == 0:
                self._lines.put(line)
            else:
                self.log.append(line.rstrip("\n"))
        self._lines.put(None)

    def _next(self) -> str | None:
        try:
            return self._lines.get(timeout=max(0.01, self._until - time.monotonic()))
        except queue.Empty:
            self.process.kill()
            raise NotStarted("the simulator printed nothing in time") from None

    def _rest(self) -> list[str]:
        self._reader.join(10)
        return self.log


class NotStarted(Exception):
    """The simulator ended, or said not what was waited for."""


def script_of(faults: Iterable[dict[str, Any] | str], timing: dict[str, float]) -> dict[str, Any]:
    """A script of faults (objects, or names alone) and timing."""
    named = [{"name": fault} if isinstance(fault, str) else fault for fault in faults]
    return {"faults": named, "timing": timing}


def command_of(dialect: str, **options: Any) -> list[str]:
    """The command line; an option's underscores become dashes, False and None are left out."""
    command = [sys.executable, "-m", "tests.simulator", "--dialect", dialect]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is False and name == "full_prefill_logits":
            command.append("--no-full-prefill-logits")
        elif value is not None and value is not False:
            command += [flag] if value is True else [flag, str(value)]
    return command


@contextmanager
def running_simulator(
    dialect: str,
    *,
    faults: list[dict[str, Any] | str] | None = None,
    timing: dict[str, float] | None = None,
    wait_ready: bool = True,
    deadline_s: float = 30,
    **options: Any,
) -> Iterator[Simulator]:
    """A simulator on a free port, ended at the end. `options` are those of the command line.

    `faults` and `timing` hold from its start. Raises NotStarted where it ends before it has an address.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="simulator-") as folder:
        script = Path(folder) / "script.json"
        script.write_text(json.dumps(script_of(faults or [], timing or {})), encoding="utf-8")
        command = command_of(dialect, script=script, **options)
        process = subprocess.Popen(
            [*command, "--until-stdin-closes"],
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        yield from _held(dialect, process, wait_ready, deadline_s)


def _held(dialect: str, process: subprocess.Popen[str], wait_ready: bool, deadline_s: float) -> Iterator[Simulator]:
    try:
        simulator = Simulator(dialect, process, deadline_s)
        if wait_ready:
            simulator.wait_for_line(READY[dialect], deadline_s)
        yield simulator
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
