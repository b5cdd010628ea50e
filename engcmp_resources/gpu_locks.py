"""Locks for sets of GPUs, one for each GPU and host-wide across users, and the leases that say who holds them.

The kernel's lock decides and dies with its holder. The lease beside it tells who, since when and with which container; one whose
lock is free is stale. Programs exclude each other only where they see the same lock folder: mount it into a container that runs
engcmp itself.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError
from engcmp_resources.locks import engine_lock, engine_lock_folder, lock_label, remove_orphans, take_lock

_BASES = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - one place for all users is the purpose; links in it are refused
_FOLDER = "engcmp"
_STICKY_FOR_ALL = 0o1777
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LEASE_BYTES = 4096
_TEXT_LENGTH = 200
_SETTLE_TRIES, _SETTLE_S = 40, 0.025
_SET_LOCK_DIR = "set ENGCMP_GPU_LOCK_DIR to one folder for all users of this host, with the sticky bit (mode 1777)"


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a lock, as its holder wrote it. `started` are the clock ticks after boot at which `pid` began, if the system tells.

    `lock` is the lock's file; `user` is the number of the file's owner, whatever its text says.
    """

    lock: Path
    pid: int
    started: int | None
    user: int
    arm: str
    run: str
    since: str
    container: str | None

    @property
    def path(self) -> Path:
        # One file for each user: in a folder with the sticky bit nobody can replace another's.
        return self.lock.with_suffix(f".lease-{self.user}")

    @property
    def what(self) -> str:
        """The lock's name for a reader: `GPU 0`, or `the engine lock`."""
        return _name(self.lock)

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote it lives: a process that has got its number since does not count."""
        return self.started is not None and process_started(self.pid) == self.started

    def __str__(self) -> str:
        container = "" if self.container is None else f", container {self.container}"
        return f"process {self.pid} of user {self.user} (arm {self.arm}, run {self.run}, since {self.since}{container})"


class Held:
    """Locks that are held: their files, and the leases that dead holders had left beside them."""

    def __init__(self, paths: Sequence[Path], leases: Sequence[Lease], stale: Sequence[Lease]) -> None:
        self.paths = tuple(paths)
        self.stale = tuple(stale)
        self._leases = list(leases)

    @property
    def label(self) -> str:
        """What processes and containers of the engine carry as ENGCMP_LOCK."""
        return lock_label(self.paths)

    def update_lease(self, *, container: str | None) -> None:
        """Write the container's id into the leases, so that whoever finds one of a dead run knows what to remove."""
        self._leases = [replace(lease, container=container) for lease in self._leases]
        for lease in self._leases:
            _write(lease)


@contextmanager
def gpu_locks(
    gpus: Sequence[int],
    *,
    arm: str,
    run_id: str,
    waiting: Callable[[str], None],
    timeout_s: float,
    folder: Path | None = None,
) -> Iterator[Held]:
    """Hold the locks of `gpus` (NVML's indices), taken one after the other in ascending order, so that no two takers block each other.

    For an empty set it is `engine_lock`, with a lease. `folder` is by default ENGCMP_GPU_LOCK_DIR, else `engcmp` in /run/lock, or in
    /tmp where not everyone may write there. `waiting` is called with a sentence that names the holder. Raises EngcmpError after
    `timeout_s` seconds in all, and for a folder or a file that another user could exchange.
    """
    with ExitStack() as stack:
        if gpus:
            place = shared_folder(folder)
            end = time.monotonic() + timeout_s
            paths = [
                stack.enter_context(_lock_of_gpu(place, gpu, waiting, max(0.0, end - time.monotonic())))
                for gpu in sorted(set(gpus))
            ]
        else:
            asked: dict[str, Any] = {"arm": arm, "run_id": run_id, "waiting": waiting, "timeout_s": timeout_s}
            paths = [stack.enter_context(engine_lock(**asked, folder=folder))]
        stale = [lease for path in paths for lease in _leases_of(path)]
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        mine = [
            Lease(path, os.getpid(), process_started(os.getpid()), os.geteuid(), arm, run_id, since, None)
            for path in paths
        ]
        for lease in stale:
            _remove(lease)
        try:
            for lease in mine:
                _write(lease)
            yield Held(paths, mine, stale)
        finally:
            for lease in mine:
                _remove(lease)


def leases(folder: Path | None = None) -> list[tuple[Lease, bool]]:
    """Every lease of this host's GPUs and of this user's engine lock, and whether it is stale: whether its lock is free.

    `folder` stands for both places. Nothing is made or removed. Where there is no folder there is no lease.
    """
    return [(lease, _is_free(lock)) for lock in _locks_in(folder, "lease-*") for lease in _leases_of(lock)]


def clean_up_locks(folder: Path | None = None) -> list[str]:
    """Remove what dead holders left: this user's engine processes and the leases beside every lock that is free; a sentence for each.

    A lease that another user left stays if the folder does not let it go, and is told.
    """
    with ExitStack() as stack:
        # Under the locks: else a holder that begins this instant could lose what it has just made.
        free = [lock for lock in _locks_in(folder, "lock") if stack.enter_context(_taken_if_free(lock))]
        sentences = remove_orphans(*free)
        for lease in [lease for lock in free for lease in _leases_of(lock)]:
            _remove(lease)
            done = "cannot remove" if lease.path.exists() else "removed"
            sentences.append(f"{done} the lease of a dead run: {lease.what}, {lease}")
    return sentences


def _locks_in(folder: Path | None, suffix: str) -> list[Path]:
    """The locks of which there is a file of `suffix`."""
    places = [folder] if folder is not None else [engine_lock_folder()]
    if folder is None:
        with contextlib.suppress(EngcmpError):  # where no folder is for everyone, nobody holds a lock in it
            places.append(_shared_place())
    names = tuple(f"{stem}.{suffix}" for stem in ("engine", "gpu-*"))
    found = {path.with_suffix(".lock") for name in names for place in places for path in place.glob(name)}
    return sorted(found)


def process_started(pid: int) -> int | None:
    """The clock ticks after boot at which a process began, which tell it from a later one of its number; None without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def shared_folder(folder: Path | None = None) -> Path:
    """The folder of the GPUs' locks, made if need be: the same for every user of the host.

    Raises EngcmpError where it is a link, or where someone else could remove the locks in it.
    """
    place = folder or _shared_place()
    for _ in range(_SETTLE_TRIES):
        try:
            place.mkdir(mode=0o700)
            place.chmod(_STICKY_FOR_ALL)
        except FileExistsError:
            pass
        except OSError as error:
            raise EngcmpError(
                f"no folder for the GPU locks: {error.strerror}", where=str(place), remedy=_SET_LOCK_DIR
            ) from error
        state = place.lstat()
        own = state.st_uid == os.geteuid() and not state.st_mode & 0o022
        if stat.S_ISDIR(state.st_mode) and (own or state.st_mode & stat.S_ISVTX):
            return place
        time.sleep(_SETTLE_S)  # another user may have made it this instant and not opened it yet
    raise EngcmpError(
        "the folder of the GPU locks is a link, or others can remove the locks in it",
        where=str(place),
        remedy=_SET_LOCK_DIR,
    )


def _shared_place() -> Path:
    override = os.environ.get("ENGCMP_GPU_LOCK_DIR")
    if override:
        return Path(override)
    for base in _BASES:
        # By the folder's mode, not by what this user may do: all users must choose alike.
        with contextlib.suppress(OSError):
            state = base.stat()
            if state.st_uid == 0 and state.st_mode & _STICKY_FOR_ALL == _STICKY_FOR_ALL:
                return base.resolve() / _FOLDER
    raise EngcmpError(
        "no folder for the GPU locks is writable for everyone", where=str(_BASES[0]), remedy=_SET_LOCK_DIR
    )


@contextmanager
def _lock_of_gpu(folder: Path, gpu: int, waiting: Callable[[str], None], timeout_s: float) -> Iterator[Path]:
    path = folder / f"gpu-{gpu}.lock"
    while True:
        descriptor = _open_lock(path)
        try:
            asked = {"what": f"the lock of {_name(path)}", "holder": lambda: _holder(path)}
            take_lock(descriptor, path, waiting=waiting, timeout_s=timeout_s, **asked)  # type: ignore[arg-type] # its own named arguments, handed on
            if _is_still(descriptor, path):  # a file that was removed meanwhile locks nobody out
                yield path
                return
        finally:
            os.close(descriptor)


def _open_lock(path: Path) -> int:
    """The lock's file, for reading: so nobody needs the right to write in another user's file."""
    for _ in range(_SETTLE_TRIES):
        with contextlib.suppress(FileNotFoundError, FileExistsError, PermissionError):
            try:
                descriptor = _opened(path)
            except FileNotFoundError:
                descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
                os.fchmod(descriptor, 0o644)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
            break
        time.sleep(_SETTLE_S)  # its maker may not have opened it to others yet
    raise EngcmpError(
        f"the lock of {_name(path)} cannot be opened", where=str(path), remedy="remove it, or make it readable"
    )


def _opened(path: Path) -> int:
    try:
        return os.open(path, _OPEN)
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise EngcmpError(
            f"{path.name} is a link or no file: {error.strerror}", where=str(path), remedy="remove it"
        ) from error


def _is_still(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def _taken_if_free(lock: Path, kind: int = fcntl.LOCK_EX) -> Iterator[bool]:
    try:
        descriptor = os.open(lock, _OPEN)
    except OSError:  # a lock whose file is gone is free
        yield not lock.exists()
        return
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            taken = True
        except BlockingIOError:
            taken = False
        yield taken
    finally:
        os.close(descriptor)


def _is_free(lock: Path) -> bool:
    with _taken_if_free(lock, fcntl.LOCK_SH) as taken:
        return taken


def _holder(lock: Path) -> str:
    alive = [str(lease) for lease in _leases_of(lock) if lease.is_alive]
    return alive[0] if alive else "a process that has just started, or one of another container"


def _leases_of(lock: Path) -> list[Lease]:
    found: Iterable[Path] = sorted(lock.parent.glob(f"{lock.stem}.lease-*"))
    return [lease for path in found if (lease := _read(lock, path)) is not None and lease.path == path]


def _read(lock: Path, path: Path) -> Lease | None:
    """The lease in a file; None for what is none, since anyone may put files there."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return None
        said = json.loads(os.read(descriptor, _LEASE_BYTES))
        container = None if said["container"] is None else _shown(said["container"])
        started = None if said["started"] is None else int(said["started"])
        texts = [_shown(said[name]) for name in ("arm", "run", "since")]
        return Lease(lock, int(said["pid"]), started, state.st_uid, texts[0], texts[1], texts[2], container)
    except (ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(descriptor)


def _shown(text: object) -> str:
    """What another user wrote, so that it can do nothing to a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in str(text))[:_TEXT_LENGTH]


def _write(lease: Lease) -> None:
    said = {name: value for name, value in asdict(lease).items() if name != "lock"}
    partial = lease.path.with_name(f".{lease.path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, json.dumps(said, sort_keys=True).encode())
        os.fchmod(descriptor, 0o644)
    finally:
        os.close(descriptor)
    partial.replace(lease.path)


def _remove(lease: Lease) -> None:
    with contextlib.suppress(FileNotFoundError, PermissionError):  # of another user: it stays, and is told again
        lease.path.unlink()


def _name(lock: Path) -> str:
    return f"GPU {lock.stem.removeprefix('gpu-')}" if lock.stem.startswith("gpu-") else "the engine lock"
