"""What the tests of the decode path share: a launcher of llama.cpp's server, and small helpers. No tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from engcmp_resources.engines.base import DecodingEngine, LaunchSpec, start_decoder

ARM = "q4_0/llamacpp@b11549"
VOCAB = 49_152
ROOT = Path(__file__).parents[2]


def servers_of(parent: int) -> set[int]:
    """The server processes of the process `parent`."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if above == parent and b"llamacpp_server_worker" in command:
            found.add(int(entry.name))
    return found


class DecoderLauncher:
    """Starts the server with the real files, unless a test names others."""

    def __init__(self, spec: LaunchSpec, library: Path, model: Path, log: Path) -> None:
        self.spec, self.library, self.model, self.log = spec, library, model, log
        self.running_before = servers_of(os.getpid())

    def __call__(self, **changed: Any) -> AbstractContextManager[DecodingEngine]:
        settings: dict[str, Any] = {"library": self.library, "model": self.model, "log": self.log}
        settings |= {"environment": {"ENGCMP_ARM": ARM, "ENGCMP_LOCK": "/lock", "ENGCMP_RUN": "run-1"}}
        return start_decoder("llamacpp", changed.pop("spec", self.spec), **(settings | changed))

    def servers(self) -> list[int]:
        """The server processes that were started since; empty without /proc."""
        return sorted(servers_of(os.getpid()) - self.running_before)


def tokens(count: int, seed: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(100, VOCAB, count)]


def until(condition: Any, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def cpu_ticks(pid: int) -> int:
    """What the process has computed so far, in ticks of the system's clock (hundredths of a second)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def until_it_computes(pid: int) -> None:
    """Until the process has computed for a tick from now on."""
    before = cpu_ticks(pid)
    assert until(lambda: cpu_ticks(pid) > before), "it does not compute"


class AtRequest:
    """Does something once, in the middle of a request to the server: it was sent whole, the server works, no answer was read.

    An answer with a whole distribution cannot have come meanwhile: its megabytes do not fit between the two.
    """

    def __init__(self, engine: DecodingEngine, pid: int, number: int, action: Callable[[], object]) -> None:
        self.sent = 0
        self._pid, self._number, self._action = pid, number, action
        client: httpx.Client = engine._client._http  # type: ignore[attr-defined] # what is within is for tests
        client.event_hooks = {"request": [lambda request: request.extensions.update(trace=self._trace)]}

    def _trace(self, event: str, _: object) -> None:
        if event == "http11.send_request_body.complete":
            self.sent += 1
            if self.sent == self._number:
                until_it_computes(self._pid)
                self._action()


def rows(engine: DecodingEngine, ids: list[int], positions: list[int], out: Path) -> bytes:
    engine.decode_rows("w", ids, positions, out)
    return out.read_bytes()
