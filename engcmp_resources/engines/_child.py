"""An engine's child process as its parent sees it: pipes with deadlines, a log, an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.base import child_environment
from engcmp_resources.errors import EngcmpError, UnfitMachine

END_WAIT_S = 5.0
_PIPE_BYTES = 1 << 16
_TAIL_LINES = 40
_TAIL_BYTES = 1 << 14
_ERROR_LINES = 4
_ERROR_LINE_CHARACTERS = 200
# Without the first an abort starts a debugger. The second costs 5 to 10 % of a decode on an idle machine and halves its
# time on a busy one, where threads that spin keep each other from the cores (a token decoded alone by the server: 15 ms
# against up to 3 s); the rows are the same bits.
OWN_ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"}
_NO_MEMORY = "most often the machine ran out of memory: free some or ask for a smaller context, then run again"


class Child:
    """The process of the program `worker` and its two pipes: one request, one answer, each with a deadline."""

    def __init__(self, worker: Path, *, label: str, log: Path, environment: Mapping[str, str]) -> None:
        self.label = label
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            # Isolated and without site packages: the worker needs the standard library alone. A session of its own
            # keeps the terminal's Ctrl-C away from it, so that its end is this process's decision.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(worker), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=child_environment(environment) | OWN_ENVIRONMENT,
                start_new_session=True,
            )
        assert self.process.stdin is not None and self.process.stdout is not None  # noqa: S101 - asked for above
        self._requests, self._answers = self.process.stdin, self.process.stdout
        os.set_blocking(self._requests.fileno(), False)
        self._received = b""

    def ask(self, request: dict[str, Any], *, doing: str, deadline_s: float) -> dict[str, Any]:
        """The worker's answer to `request`. Raises EngcmpError for a refusal, a death and a late answer."""
        until = time.monotonic() + deadline_s
        if self.process.returncode is not None:  # the caller went on after an error that ended the engine
            raise self.death(f"before {doing}")
        try:
            self._send(json.dumps(request).encode() + b"\n", until)
            answer = json.loads(self._receive(until))
        except TimeoutError as error:
            self.end(wait_s=0.0)
            raise self.error(
                f"no answer within {deadline_s:g} s while {doing}; the engine was killed",
                "run again on a machine that is less busy, or raise the deadline",
            ) from error
        except (BrokenPipeError, EOFError) as error:
            raise self.death(f"while {doing}") from error
        if "error" in answer:
            raise self.error(f"{doing}: {answer['error']['what']}", answer["error"]["remedy"])
        result: dict[str, Any] = answer["ok"]
        return result

    def _send(self, data: bytes, until: float) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._requests.fileno(), selectors.EVENT_WRITE, until)
            rest = rest[os.write(self._requests.fileno(), rest[:_PIPE_BYTES]) :]

    def _receive(self, until: float) -> bytes:
        while b"\n" not in self._received:
            _wait(self._answers.fileno(), selectors.EVENT_READ, until)
            block = os.read(self._answers.fileno(), _PIPE_BYTES)
            if not block:
                raise EOFError
            self._received += block
        line, _, self._received = self._received.partition(b"\n")
        return line

    def has_ended(self, *, within_s: float) -> bool:
        """Whether the process ends within this time."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def death(self, when: str) -> EngcmpError:
        """The error that tells how the engine ended; it is ended if it has not yet."""
        self.end(wait_s=END_WAIT_S)  # a closed pipe comes a moment before the exit code
        code = self.process.returncode
        remedy = "read the log; if it dies again in the same place, this version cannot serve this model"
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
            if name == "SIGILL":  # its last words, of a loader, would only distract
                what = f"the engine died of SIGILL {when}: this processor lacks an instruction that this build needs"
                remedy = "measure it on another machine, or use another build"
                return UnfitMachine(f"{self.label}: {what}", where=f"log {self.log}", remedy=remedy)
            return self.error(f"the engine died of {name} {when}", _NO_MEMORY if name == "SIGKILL" else remedy)
        return self.error(f"the engine ended with exit code {code} {when}", remedy)

    def error(self, what: str, remedy: str) -> EngcmpError:
        """An error of this engine, with its last words and the place of its log."""
        lines = [line.strip()[:_ERROR_LINE_CHARACTERS] for line in self.log_tail().splitlines() if line.strip(" .")]
        last = " | ".join(lines[-_ERROR_LINES:])
        return EngcmpError(
            f"{self.label}: {what}" + (f"; its last words: {last}" if last else ""),
            where=f"log {self.log}",
            remedy=remedy,
        )

    def log_tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:])

    def end(self, *, wait_s: float) -> None:
        """End of file on the worker's input, `wait_s` seconds, then SIGKILL. None is left, whatever interrupts."""
        try:
            self._requests.close()
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            pass  # killed below
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self._answers.close()


def _wait(descriptor: int, event: int, until: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, event)
        if not selector.select(max(0.0, until - time.monotonic())):
            raise TimeoutError


def check_file(label: str, name: str, path: Path, expected_sha256: str) -> None:
    """Raise EngcmpError for a file that is not the one that the launch names."""
    if not path.is_file():
        raise EngcmpError(f"{label}: there is no {name}", where=str(path), remedy="fetch or make the file again")
    found = sha256_file(path)
    if found != expected_sha256:
        raise EngcmpError(
            f"{label}: {name} has sha256 {found}, the launch names {expected_sha256}",
            where=str(path),
            remedy="fetch or make the file again",
        )
