"""A server that is a group of processes of its own: started with its output in the log, watched, and ended with all that it started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from engcmp_resources.containers import tail_of
from engcmp_resources.engines._api import BrokenOff, Late
from engcmp_resources.engines.servers import LaunchPlace
from engcmp_resources.errors import EngcmpError
from engcmp_resources.start_failures import kind_of, remedy_for

_POLL_S, _DEATH_WAIT_S = 0.1, 3.0
_LAST_LINES = 40
_PROC = Path("/proc")


class ProcessGroup:
    """The processes of a launch; see `_serving.Watch`."""

    def __init__(self, place: LaunchPlace, process: subprocess.Popen[bytes]) -> None:
        self._place, self._process = place, process

    def refuse_changed(self) -> None:
        if self._process.poll() is not None:
            raise self.error(f"the engine {_ending(self._process.returncode)}")

    def explained(self, error: EngcmpError, doing: str) -> EngcmpError:
        said = error.what.removeprefix(f"{self._place.label}: ")
        if isinstance(error, Late):
            self.end(0.0)  # it answers no more: nothing may wait for it, and its memory is given back
            return self.error(
                f"no answer in time while {doing}: it was stuck and has been ended",
                "raise the deadline, if it is only slow",
            )
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_WAIT_S)  # a connection breaks off a moment before the process has ended
        if self._process.returncode is not None:
            return self.error(f"the engine {_ending(self._process.returncode)} while {doing}")
        return self.error(f"{doing}: {said}")

    @contextmanager
    def explaining(self, doing: str) -> Generator[None, None, None]:
        """Late and broken answers of the block, told as what happened to the engine; one of an engine that still loads passes as it is."""
        try:
            yield
        except Late as error:
            raise self.explained(error, doing) from error
        except BrokenOff as error:
            if self._process.poll() is None:
                raise
            raise self.explained(error, doing) from error

    def log_tail(self) -> str:
        return tail_of(self._place.log)

    def error(self, what: str, remedy: str | None = None) -> EngcmpError:
        """An error of this launch, with what is known to cause it and the last lines of the log."""
        tail = tail_of(self._place.log, _LAST_LINES)
        lines = "".join(f"\n    {line}" for line in tail.splitlines())
        return kind_of(what)(
            f"{self._place.label}: {what}", where=f"log {self._place.log}",
            remedy=(remedy or remedy_for(f"{what}\n{tail}")) + (f". The last lines of its log:{lines}" if lines else ""),
        )  # fmt: skip

    def mapped_files(self) -> set[Path]:
        """The files that the group's processes have in memory, libraries among them. Empty on a system without /proc."""
        found = set()
        for pid in self._members():
            with suppress(OSError):
                lines = (_PROC / str(pid) / "maps").read_text().splitlines()
                found |= {Path(line[line.index("/") :]) for line in lines if "/" in line}
        return found

    def end(self, wait_s: float) -> None:
        """SIGTERM to all of the group, `wait_s` seconds, then SIGKILL; returns when none of it is left."""
        for number, patience_s in ((signal.SIGTERM, wait_s), (signal.SIGKILL, 30.0)):
            until = time.monotonic() + patience_s
            self._signal(number)
            while self._signal(0) and time.monotonic() < until:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_POLL_S)
                if self._process.returncode is not None and not self._members():
                    return
                time.sleep(_POLL_S / 10)
        self._process.wait()

    def _signal(self, number: int) -> bool:
        """Whether there was anyone to get the signal."""
        self._process.poll()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
            return True
        return False

    def _members(self) -> list[int]:
        found = []
        for entry in _PROC.glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):
                # The command name in parentheses may hold anything: fields are counted from the last one. Z is a zombie.
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == self._process.pid and state != "Z":
                    found.append(int(entry.name))
        return found


@contextmanager
def running_group(
    command: Sequence[str], environment: Mapping[str, str], place: LaunchPlace, *, stop_s: float
) -> Generator[ProcessGroup, None, None]:
    """Run `command` in the launch's scratch folder; on leaving all of it ends, in order within `stop_s` seconds, and its sockets go.

    A run that is killed leaves it: the labels in `environment` say whose it is, and `locks.remove_orphans` ends it at the next start.
    """
    place.log.parent.mkdir(parents=True, exist_ok=True)
    # Sockets are made there, whose paths have at most 107 characters.
    temporary = Path(tempfile.mkdtemp(prefix="engcmp-"))
    own = {"TMPDIR": str(temporary), "VLLM_RPC_BASE_PATH": str(temporary)}
    try:
        with place.log.open("ab") as log:
            process = subprocess.Popen(
                list(command), cwd=place.scratch, env=dict(environment) | own, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        group = ProcessGroup(place, process)
        try:
            yield group
        finally:
            group.end(stop_s)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"died of {signal.Signals(-code).name if -code in signal.valid_signals() else f'signal {-code}'}"
