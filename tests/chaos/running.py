"""A started `engcmp`, its standard error read as it comes."""

from __future__ import annotations

import queue
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from homes import start_engcmp


class Running:
    """The process, and the lines that were read of it so far."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process: subprocess.Popen[str] = start_engcmp(*arguments, home=home)
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line)
        self._queue.put(None)

    def wait_for(self, pattern: re.Pattern[str], seconds: float = 120) -> bool:
        """Whether such a line came before the run's end."""
        deadline = time.monotonic() + seconds
        while True:
            line = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            if line is None:
                return False
            self.lines.append(line)
            if pattern.search(line):
                return True

    def rest(self) -> str:
        """All that was said, after the end."""
        self.process.wait(timeout=120)
        while (line := self._queue.get(timeout=30)) is not None:
            self.lines.append(line)
        return "".join(self.lines)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)
