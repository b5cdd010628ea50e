"""The private channel to the supervisor of a sandbox, on the caller's side: its request, and what its lines say."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from engcmp_resources.sandbox.records import BrokenSandboxError, Call, Limits, Ran

# Python without the user's settings, without site-packages, without writing byte code.
PYTHON_FLAGS = ("-I", "-S", "-B", "-u", "-c")
_LINE_SLACK = 1024  # a line's bytes beside the base64 of its output
START_S = 30.0  # what a sandbox may take to start and end, beyond the limit of its run


def supervisor_text() -> str:
    """The program that is sent into the sandbox."""
    return (Path(__file__).parent / "supervisor.py").read_text(encoding="utf-8")


class Channel:
    """One run's nonce and request; then the bytes that came back, read as what they say."""

    def __init__(self, program: str, inputs: Sequence[bytes], limits: Limits) -> None:
        self._nonce = secrets.token_hex(16)
        self._calls = len(inputs)
        request = {
            "nonce": self._nonce,
            "program": program,
            "inputs": [base64.b64encode(given).decode() for given in inputs],
            "limits": limits.as_json(),
        }
        body = json.dumps(request).encode()
        self.request = len(body).to_bytes(8, "big") + body
        self.most_bytes = (len(inputs) + 2) * (limits.output_bytes * 4 // 3 + _LINE_SLACK)

    def read(self, data: bytes, cut: Literal["time", "output"] | None, said: str) -> Ran:
        """What happened, of all that came out; `cut` is what the caller ended it for, `said` what the sandbox's own tools printed.

        Raises BrokenSandboxError where the supervisor never said that it was ready: then no untrusted code has run.
        """
        words, foreign = self._words(data)
        if not words or "ready" not in words[0]:
            raise BrokenSandboxError(
                f"the sandbox did not start: {said.strip()[-500:] or cut or 'it said nothing'}",
                remedy="look at what it says; the check of this reply has no result",
            )
        calls = tuple(
            Call(base64.b64decode(word["output"]), word["exit"], word["cause"]) for word in words[1:] if "exit" in word
        )
        end = words[-1].get("end")
        python = str(words[0]["ready"])
        shown = said.strip()[-500:]
        if foreign:
            return Ran(calls, "foreign", python, shown)
        if end == "complete" and len(calls) == self._calls:
            return Ran(calls, "complete", python, shown)
        return Ran(calls, "time" if end == "time" else cut or "lost", python, shown)

    def _words(self, data: bytes) -> tuple[list[dict[str, Any]], bool]:
        words: list[dict[str, Any]] = []
        prefix = f"{self._nonce} ".encode()
        *lines, _unfinished = data.split(b"\n")
        for line in lines:
            if not line.startswith(prefix):
                return words, True
            words.append(json.loads(line[len(prefix) :]))
        return words, False
