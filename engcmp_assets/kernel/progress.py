"""Progress of long work in words: which arm, artifact and window, how far, and how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

Say = Callable[[str], None]
_NS = 1_000_000_000


def stderr_line(text: str) -> None:
    """Say it on standard error, at once."""
    print(text, file=sys.stderr, flush=True)


@dataclass(slots=True)
class Progress:
    """Says at most one line every `every_s` seconds, and always the first and the last.

    `clock_ns` is a monotonic clock. The estimate of the time left takes the rate since the start of this work,
    so what an earlier run had done (`already`) does not flatter it.
    """

    say: Say
    label: str
    unit: str
    total: int
    clock_ns: Callable[[], int]
    already: int = 0
    every_s: float = 2.0
    _start_ns: int = field(init=False)
    _last_ns: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._start_ns = self.clock_ns()

    def update(self, done: int, note: str = "") -> None:
        """Report that `done` of `total` units are done, `note` saying where."""
        now = self.clock_ns()
        due = self._last_ns is None or now - self._last_ns >= self.every_s * _NS or done >= self.total
        if not due:
            return
        self._last_ns = now
        place = f"{self.label}: {note}" if note else self.label
        self.say(f"{place}, {done}/{self.total} {self.unit}{self._left(done, now)}")

    def _left(self, done: int, now: int) -> str:
        fresh, elapsed_s = done - self.already, (now - self._start_ns) / _NS
        if fresh <= 0 or fresh < self.total / 50 or done >= self.total or elapsed_s < 1:
            return ""  # a rate over less than a second, or over the first few of very many, predicts nothing
        seconds = elapsed_s * (self.total - done) / fresh
        return f", about {seconds:.0f} s left"
