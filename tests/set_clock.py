"""A wall clock that is set while programs run: for the processes that are started with `variables`, and for nobody else. No tests.

It stands for an operator or a time service that sets the system's clock. What counts from the boot goes on, as it does then.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PATCH = """
import datetime, pathlib, time
_FILE, _time, _time_ns, _datetime = pathlib.Path({path!r}), time.time, time.time_ns, datetime.datetime
def _ahead_s():
    return float(_FILE.read_text() or 0)
time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + int(_ahead_s() * 1e9)
class SetClock(_datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)
SetClock.__name__ = SetClock.__qualname__ = "datetime"
SetClock.__module__ = "datetime"
datetime.datetime = SetClock
"""


@dataclass(frozen=True)
class SettableClock:
    """`set(s)` puts the clock that many seconds ahead of the true time; below 0 it is behind."""

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """What a Python process must have in its environment to read this clock."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "ahead"
        if not path.exists():
            self.set(0)
        (self.folder / "sitecustomize.py").write_text(_PATCH.format(path=str(path)), encoding="utf-8")
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))}

    def set(self, ahead_s: float) -> None:
        """From now on, whole: a reader sees the old value or the new one."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "new").write_text(str(ahead_s), encoding="utf-8")
        (self.folder / "new").replace(self.folder / "ahead")
