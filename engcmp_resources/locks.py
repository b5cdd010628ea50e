"""The locks of this host's engines, which die with their holder, and the removal of engines that outlived theirs.

An engine on the processor has one lock for each user, in a private folder; an engine on GPUs has one for each GPU, for all users of
the host (gpu_locks.py).
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError

_POLL_S = 0.2
_AGAIN_S = 0.02
_REMIND_S = 10.0
_HOLDER_BYTES = 4096
_KILL_WAIT_S = 10.0
_ROUNDS = 5
_SESSION = 3  # of the fields of /proc/PID/stat behind the name
_LABEL_SEPARATOR = os.pathsep
_PROC = Path("/proc")


@contextmanager
def engine_lock(
    *, arm: str, run_id: str, waiting: Callable[[str], None], timeout_s: float, folder: Path | None = None
) -> Iterator[Path]:
    """Hold the engine lock of this host (and user): one engine at a time, whichever program starts it.

    Yields the lock file's path, which the engine's processes carry as ENGCMP_LOCK. `folder` is by default
    ENGCMP_LOCK_DIR, else a folder of this user in the system's temporary folder. `waiting` is called with a sentence
    that names the holder when the wait begins, when the holder changes and every 10 s. The kernel frees the lock when
    its holder ends, however it ends; the descriptor is closed on exec, so that no engine can inherit the lock.
    Raises EngcmpError after `timeout_s` seconds of waiting, and for a folder that others can write to.
    """
    path = _lock_folder(folder) / "engine.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        take_lock(
            descriptor, path, what="the engine lock", holder=lambda: _holder(descriptor),
            waiting=waiting, timeout_s=timeout_s,
        )  # fmt: skip
        holder = json.dumps({"pid": os.getpid(), "arm": arm, "run": run_id}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder[:_HOLDER_BYTES], 0)
        try:
            yield path
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        # The file stays: removing it would let two processes hold two files of one name.
        os.close(descriptor)


@contextmanager
def host_lock(
    *, alone: bool, who: str, waiting: Callable[[str], None], timeout_s: float, folder: Path | None = None
) -> Iterator[None]:
    """Hold this host (and user) for a timed measurement, `alone`, or for analysis, which shares it with other analysis.

    So no analysis disturbs what is timed. It is taken after the engine's lock, never before it. `who` names the holder to those who wait;
    all else as `engine_lock`.
    """
    path = _lock_folder(folder) / "host.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def holder() -> str:
        return os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace") or "an analysis"

    try:
        take_lock(
            descriptor, path, what="this machine", holder=holder, waiting=waiting, timeout_s=timeout_s, shared=not alone
        )
        if alone:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} ({who})".encode()[:_HOLDER_BYTES], 0)
        try:
            yield
        finally:
            if alone:
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def engine_lock_folder() -> Path:
    """The folder of this user's engine lock, which need not exist: ENGCMP_LOCK_DIR, else one in the system's temporary folder."""
    override = os.environ.get("ENGCMP_LOCK_DIR")
    return Path(override) if override else Path(tempfile.gettempdir()) / f"engcmp-{os.geteuid()}"


def _lock_folder(folder: Path | None) -> Path:
    folder = folder or engine_lock_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # lstat: a link could lead to a folder that its owner exchanges later.
        state = folder.lstat()
    except OSError as error:
        raise EngcmpError(
            f"no folder for the engine lock: {error.strerror}",
            where=str(folder),
            remedy="set ENGCMP_LOCK_DIR to a folder of yours",
        ) from error
    private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022
    if not private:
        raise EngcmpError(
            "the folder of the engine lock is a link, another user's, or writable for others",
            where=str(folder),
            remedy="remove it, or set ENGCMP_LOCK_DIR to a folder that only you can write to",
        )
    return folder.resolve()


def take_lock(
    descriptor: int,
    path: Path,
    *,
    what: str,
    holder: Callable[[], str],
    waiting: Callable[[str], None],
    timeout_s: float,
    shared: bool = False,
) -> None:
    """Take the lock of an open file, alone or `shared`; `what` names it and `holder` says who has it.

    Raises EngcmpError after `timeout_s` seconds. Even with 0 it tries twice: who only asks whether a lock is free holds it for an
    instant.
    """
    started = time.monotonic()
    told: tuple[str, float] | None = None
    tries = 0
    while True:
        tries += 1
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            who = holder()
            if now - started >= timeout_s and tries > 1:
                raise EngcmpError(
                    f"{what} was not free within {timeout_s:.3g} s; {who} holds it",
                    where=str(path),
                    remedy="wait for that run, or end it, and run again",
                ) from None
            if timeout_s > 0 and (told is None or told[0] != who or now - told[1] >= _REMIND_S):
                waiting(f"waiting for {what}; {who} holds it")
                told = (who, now)
            time.sleep(min(_POLL_S, max(_AGAIN_S, started + timeout_s - now)))
        else:
            return


def _holder(descriptor: int) -> str:
    data = os.pread(descriptor, _HOLDER_BYTES, 0)
    try:
        holder: dict[str, Any] = json.loads(data)
        return f"process {holder['pid']} (arm {holder['arm']}, run {holder['run']})"
    except (ValueError, KeyError, TypeError):  # it took the lock this instant and has not written yet
        return "a process that has just started"


@dataclass(frozen=True, slots=True)
class _Orphan:
    pid: int
    arm: str
    run: str
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) of arm {self.arm}, run {self.run}"


def lock_label(locks: Sequence[Path]) -> str:
    """What the processes of an engine carry as ENGCMP_LOCK: all locks that its owner holds."""
    return _LABEL_SEPARATOR.join(map(str, locks))


def names_one_of(label: str, locks: Sequence[Path]) -> bool:
    """Whether an ENGCMP_LOCK of a process or container names one of `locks`: then it is on something that `locks` are for."""
    return not set(label.split(_LABEL_SEPARATOR)).isdisjoint(map(str, locks))


def remove_orphans(*locks: Path) -> list[str]:
    """Kill the engine processes that dead holders of `locks` left; a sentence for each.

    Call it right after taking the locks: then every process whose ENGCMP_LOCK names one of them (`lock_label`), beside ENGCMP_ARM
    and ENGCMP_RUN, other than this one and its ancestors, has no living owner. Processes of other users are not looked at.
    It needs /proc: on a system without it (macOS) it does nothing and returns an empty list; there an engine ends when
    the pipe from its parent closes. Raises EngcmpError for a process that does not die.
    """
    if not (_PROC / "self" / "environ").exists():
        return []
    removed: dict[int, str] = {}
    for _ in range(_ROUNDS):  # an orphan may have started another process behind the scan
        orphans = _orphans(locks)
        if not orphans:
            break
        for orphan in orphans:
            if _kill(orphan, locks):
                removed[orphan.pid] = f"removed an engine left by a dead run: {orphan}"
    return [removed[pid] for pid in sorted(removed)]


def _orphans(locks: Sequence[Path]) -> list[_Orphan]:
    spared = _ancestors()
    candidates = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    found = (_orphan(pid, locks) for pid in candidates if pid not in spared)
    return [orphan for orphan in found if orphan is not None]


def _ancestors() -> set[int]:
    """The pids of this process and all above it: a shell with the labels exported is no engine."""
    pids, pid = set(), os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            # The command name in parentheses may hold anything, so the fields are counted from the last one.
            pid = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # an ancestor that has just ended has no living ones above it
            break
    return pids


def _orphan(pid: int, locks: Sequence[Path]) -> _Orphan | None:
    folder = _PROC / str(pid)
    try:
        environment = (folder / "environ").read_bytes()
        command = (folder / "cmdline").read_bytes()
    except (PermissionError, FileNotFoundError, ProcessLookupError):  # another user's, or it has just ended
        return None
    pairs = (entry.partition(b"=") for entry in environment.split(b"\0"))
    labels = {name: value.decode(errors="replace") for name, _, value in pairs if name.startswith(b"ENGCMP_")}
    if not names_one_of(labels.get(b"ENGCMP_LOCK", ""), locks) or not {b"ENGCMP_ARM", b"ENGCMP_RUN"} <= labels.keys():
        return None
    words = [word.decode(errors="replace") for word in command.split(b"\0") if word]
    return _Orphan(pid, labels[b"ENGCMP_ARM"], labels[b"ENGCMP_RUN"], " ".join(Path(word).name for word in words)[:80])


def _kill(orphan: _Orphan, locks: Sequence[Path]) -> bool:
    """SIGKILL `orphan` and wait for its end; false if it ended by itself meanwhile."""
    try:
        handle = os.pidfd_open(orphan.pid)
    except ProcessLookupError:
        return False
    company: list[int] = []
    try:
        # The handle is of whoever has this pid now: look again before the signal.
        if _orphan(orphan.pid, locks) is None:
            return False
        company = _led_by(orphan.pid)
        for one in (handle, *company):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(one, signal.SIGKILL)
            if not select.select([one], [], [], _KILL_WAIT_S)[0]:
                raise EngcmpError(
                    f"an engine left by a dead run does not end: {orphan}",
                    where=lock_label(locks),
                    remedy="end it by hand, or restart the machine, and run again",
                )
    finally:
        for one in (handle, *company):
            os.close(one)
    return True


def _led_by(leader: int) -> list[int]:
    """Handles of all other processes in the session that an engine's process leads; none where it leads none. Those of an engine that
    write a title over their variables, as vLLM's engine core does, are found by it alone, and only as long as the leader lives.
    """
    spared, found = _ancestors() | {leader}, []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        with suppress(OSError, IndexError):
            handle = os.pidfd_open(int(entry.name))  # before the look: else the number may be another's by then
            try:
                own = int((entry / "stat").read_text().rpartition(")")[2].split()[_SESSION]) == leader
            except OSError:
                own = False
            if own:
                found.append(handle)
            else:
                os.close(handle)
    return found
