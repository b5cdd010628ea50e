"""llama.cpp as an engine: the parent's side of the child process in `llamacpp_worker`."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engcmp_resources.canonical import sha256_file
from engcmp_resources.engines.base import (
    START_DEADLINE_S,
    WINDOW_DEADLINE_S,
    LaunchSpec,
    PrefillResult,
    child_environment,
    register_engine,
)
from engcmp_resources.errors import EngcmpError

_WORKER = Path(__file__).with_name("llamacpp_worker.py")
_END_WAIT_S = 5.0
_PIPE_BYTES = 1 << 16
_TAIL_LINES = 40
_TAIL_BYTES = 1 << 14
_ERROR_LINES = 4
_ERROR_LINE_CHARACTERS = 200
# Without the first an abort starts a debugger. The second costs 5 to 10 % of a decode on an idle machine and halves its
# time on a busy one, where threads that spin keep each other from the cores; the rows are the same bits.
_OWN_ENVIRONMENT = {"GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"}
_REMEDIES = {
    "SIGKILL": "most often the machine ran out of memory: free some or ask for a smaller context, then run again",
    "SIGILL": "this CPU lacks an instruction that this build needs: use another wheel",
}


class _Child:
    """The worker process and its two pipes: one request, one answer, each with a deadline."""

    def __init__(self, *, label: str, log: Path, environment: Mapping[str, str]) -> None:
        self.label = label
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            # Isolated and without site packages: the worker needs the standard library alone. A session of its own
            # keeps the terminal's Ctrl-C away from it, so that its end is this process's decision.
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_WORKER), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=child_environment(environment) | _OWN_ENVIRONMENT,
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
            raise self._death(f"before {doing}")
        try:
            self._send(json.dumps(request).encode() + b"\n", until)
            answer = json.loads(self._receive(until))
        except TimeoutError as error:
            self.end(wait_s=0.0)
            raise self._error(
                f"no answer within {deadline_s:g} s while {doing}; the engine was killed",
                "run again on a machine that is less busy, or raise the deadline",
            ) from error
        except (BrokenPipeError, EOFError) as error:
            raise self._death(f"while {doing}") from error
        if "error" in answer:
            raise self._error(f"{doing}: {answer['error']['what']}", answer["error"]["remedy"])
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

    def _death(self, when: str) -> EngcmpError:
        self.end(wait_s=_END_WAIT_S)  # a closed pipe comes a moment before the exit code
        code = self.process.returncode
        remedy = "read the log; if it dies again in the same place, this version cannot serve this model"
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
            return self._error(f"the engine died of {name} {when}", _REMEDIES.get(name, remedy))
        return self._error(f"the engine ended with exit code {code} {when}", remedy)

    def _error(self, what: str, remedy: str) -> EngcmpError:
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


class _LlamaCpp:
    """A running llama.cpp; see RunningEngine."""

    def __init__(self, child: _Child, facts: dict[str, Any], window_deadline_s: float) -> None:
        self._child = child
        self._facts = facts
        self._window_deadline_s = window_deadline_s

    @property
    def facts(self) -> dict[str, Any]:
        return self._facts

    def tokenize(self, text: str) -> list[int]:
        request = {"do": "tokenize", "text": text}
        answer = self._child.ask(request, doing="tokenizing a text", deadline_s=self._window_deadline_s)
        return [int(token) for token in answer["tokens"]]

    def prefill_rows(self, window_id: str, tokens: Sequence[int], positions: Sequence[int], out: Path) -> PrefillResult:
        self._check_window(window_id, tokens, positions)
        request = {
            "do": "prefill",
            "tokens": [int(token) for token in tokens],
            "positions": [int(position) for position in positions],
            "out": str(out.absolute()),
        }
        try:
            answer = self._child.ask(request, doing=f"decoding window {window_id}", deadline_s=self._window_deadline_s)
        except BaseException:
            # The worker removes it after an error, but a worker that was killed cannot.
            out.with_name(f"{out.name}.partial").unlink(missing_ok=True)
            raise
        return PrefillResult(answer["rows"], answer["seconds"], answer["peak_rss_bytes"])

    def _check_window(self, window_id: str, tokens: Sequence[int], positions: Sequence[int]) -> None:
        what = None
        limit, name = min((self._facts["n_ctx"], "context"), (self._facts["n_batch"], "batch"))
        if not tokens or not positions:
            what = f"{len(tokens)} tokens and {len(positions)} rows"
        elif len(tokens) > limit:
            what = f"{len(tokens)} tokens, the {name} holds {limit}"
        elif not all(0 <= token < self._facts["n_vocab"] for token in tokens):
            what = f"a token id outside 0..{self._facts['n_vocab'] - 1}"
        elif not all(0 <= position < len(tokens) for position in positions):
            what = f"a row outside 0..{len(tokens) - 1}"
        if what is not None:
            raise EngcmpError(
                f"{self._child.label}: window {window_id}: {what}",
                remedy="correct the window, or the context and batch sizes of the launch, in the protocol",
            )

    def log_tail(self) -> str:
        return self._child.log_tail()


def _check_file(label: str, name: str, path: Path, expected_sha256: str) -> None:
    if not path.is_file():
        raise EngcmpError(f"{label}: there is no {name}", where=str(path), remedy="fetch or make the file again")
    found = sha256_file(path)
    if found != expected_sha256:
        raise EngcmpError(
            f"{label}: {name} has sha256 {found}, the launch names {expected_sha256}",
            where=str(path),
            remedy="fetch or make the file again",
        )


def _requested(spec: LaunchSpec) -> dict[str, int]:
    return {
        "n_ctx": spec.context_tokens,
        "n_batch": spec.batch_tokens,
        "n_ubatch": spec.micro_batch_tokens,
        "n_threads": spec.threads,
        "n_threads_batch": spec.threads,
        "n_vocab": spec.vocab,
    }


def _with_settings(label: str, spec: LaunchSpec, facts: dict[str, Any]) -> dict[str, Any]:
    settings = {name: {"requested": asked, "resolved": facts[name]} for name, asked in _requested(spec).items()}
    differing = [
        f"{name} requested {pair['requested']}, found {pair['resolved']}"
        for name, pair in settings.items()
        if pair["requested"] != pair["resolved"]
    ]
    if differing:
        raise EngcmpError(
            f"{label}: {spec.engine}@{spec.version} resolved its settings differently: {'; '.join(differing)}",
            remedy="request what this version can do (it may round the context up to a multiple of 256), "
            "or use a version with the known layout",
        )
    return {
        "engine": spec.engine,
        "version": spec.version,
        **facts,
        "settings": settings,
        "environment": dict(_OWN_ENVIRONMENT),
    }


@register_engine("llamacpp")
@contextmanager
def start_llamacpp(
    spec: LaunchSpec,
    *,
    library: Path,
    model: Path,
    log: Path,
    environment: Mapping[str, str],
    start_deadline_s: float = START_DEADLINE_S,
    window_deadline_s: float = WINDOW_DEADLINE_S,
) -> Generator[_LlamaCpp, None, None]:
    """Start llama.cpp from the shared object `library` in a child process; see `base.start_engine`.

    Both files are hashed first: what is not as `spec` names it is not started.
    """
    label = f"arm {environment['ENGCMP_ARM']}" if "ENGCMP_ARM" in environment else f"{spec.engine}@{spec.version}"
    _check_file(label, "library", library, spec.library_sha256)
    _check_file(label, "model", model, spec.model_sha256)
    child = _Child(label=label, log=log, environment=environment)
    try:
        request = {"library": str(library.absolute()), "model": str(model.absolute()), **_requested(spec)}
        facts = child.ask(request, doing="loading", deadline_s=start_deadline_s)
        yield _LlamaCpp(child, _with_settings(label, spec, facts), window_deadline_s)
    finally:
        child.end(wait_s=_END_WAIT_S)
