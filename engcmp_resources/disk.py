"""Writing so that a file appears whole or not at all, and what a user is told when the disk refuses."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import secrets
import shutil
import stat
import weakref
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from engcmp_resources.errors import EngcmpError

_FULL = (errno.ENOSPC, errno.EDQUOT)
# What a path or a file system can be at fault for; other errors of the system are not about a place on the disk.
_REFUSED = (
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG,
    errno.ELOOP, errno.EIO, errno.EFBIG, errno.ENOLCK, errno.ENOTSUP, errno.EXDEV,
)  # fmt: skip
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
FULL_REMEDY = "free space and start again: what is complete is kept and nothing half written remains"


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk, a quota, a read-only or impossible place into an EngcmpError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise EngcmpError("the disk is full", where=str(where), remedy=FULL_REMEDY) from error
        if error.errno in _REFUSED:
            raise EngcmpError(
                f"cannot write there: {error.strerror}", where=str(where),
                remedy="make the folder writable, or name another one (ENGCMP_HOME for results)",
            ) from error  # fmt: skip
        raise


def require_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse early where `folder`'s file system has less than `needed_bytes` free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise EngcmpError(
            f"{what} needs {needed_bytes / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB free",
            where=str(folder),
            remedy="free space, or set ENGCMP_HOME to a folder on a larger disk",
        )


def files_below(folder: Path) -> list[Path]:
    """All files below `folder`, sorted, links among them; a folder that another process removes meanwhile has none (Path.rglob raises)."""
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def make_folder(folder: Path) -> None:
    """Make `folder` and what is above it, each entry on disk before something is put in."""
    missing = list(itertools.takewhile(lambda path: not path.is_dir(), [folder, *folder.parents]))
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk; of a file, its bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(contents: Mapping[Path, bytes], folders: Collection[Path] = ()) -> None:
    """Write files, and come back when their bytes, and the names in `folders`, are on disk.

    Waiting for all at once is one wait, not one for each.
    """
    for path, content in contents.items():
        path.write_bytes(content)
    with ThreadPoolExecutor(len(contents) + len(folders)) as waiting:
        list(waiting.map(sync_folder, (*contents, *folders)))


def write_whole(target: Path, data: bytes, *, temporary: Path, mode: int) -> None:
    """Write `data` as `target`: temporary file, fsync, rename, fsync of the folder. Raises EngcmpError where the disk refuses."""
    with disk_errors(target):
        make_folder(target.parent)
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(target.parent)


def replace_visible(path: Path, data: bytes) -> None:
    """`write_whole` of a file that a user sees and edits. What a kill leaves has a name with a dot in front: no file of a study."""
    write_whole(path, data, temporary=path.with_name(f".{path.name}.partial"), mode=0o644)


def replace_all_visible(contents: Mapping[Path, bytes | Path], folders: Collection[Path] = ()) -> None:
    """`replace_visible` of files of one folder: each appears whole or not at all, in their order. A kill may leave the first ones.

    A Path in place of bytes is a file on disk that gets this name too, or is copied where a file has one name only. The names in
    `folders` are on disk before the first file appears.
    """
    folder = next(iter(contents)).parent
    partials = {path: path.with_name(f".{path.name}.partial") for path in contents}
    with disk_errors(folder):
        try:
            written = {}
            for path, content in contents.items():
                if isinstance(content, bytes):
                    written[partials[path]] = content
                elif not _linked(content, partials[path]):
                    written[partials[path]] = content.read_bytes()
            write_synced(written, folders)
            for path, partial in partials.items():
                partial.chmod(0o644)
                partial.replace(path)  # of two names of one file it does nothing: the partial one goes below
        finally:
            for partial in partials.values():
                partial.unlink(missing_ok=True)
        sync_folder(folder)


def _linked(file: Path, name: Path) -> bool:
    """Give `file` a second name; False where the file system has no such thing."""
    name.unlink(missing_ok=True)  # what a kill left
    try:
        os.link(file, name)
    except OSError as error:
        if error.errno in _FULL or not file.is_file():
            raise
        return False
    return True


def keep_whole(partial: Path, target: Path) -> None:
    """Give a finished file its name, its bytes being on disk before. Raises EngcmpError where the disk refuses."""
    with disk_errors(target):
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
        sync_folder(target.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the file `path`, for a moment; the kernel frees it however the holder ends."""
    with disk_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with disk_errors(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class InUse:
    """A lock that every process that writes in a folder holds together with the others, for as long as this object lives.

    `alone` is for what must have no writer beside it. The kernel frees the lock however its holder ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            weakref.finalize(self, os.close, self._descriptor)
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it alone; who comes meanwhile waits. Raises EngcmpError where another process holds it too."""
        try:
            if not _try_lock(self._descriptor):
                raise EngcmpError(
                    "another process is writing there", where=str(self._path.parent.parent),
                    remedy="wait for the run to end, or end it, and start again",
                )  # fmt: skip
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)


class Temporaries:
    """Names for unfinished files below `root`, in a folder whose lock this process holds for as long as it lives.

    Not a process id but the lock tells whether the owner lives: containers that share a folder have the same ids.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder: Path | None = None
        self._owner = 0
        self._numbers = itertools.count()

    def name(self) -> Path:
        """A name that is free. What is put there goes when this process has ended, at the latest with `remove_dead`."""
        if self._folder is None or self._owner != os.getpid() or not self._folder.is_dir():
            self._folder, self._owner = self._claim(), os.getpid()
        return self._folder / str(next(self._numbers))

    def _claim(self) -> Path:
        with disk_errors(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
            while True:
                folder = self._root / f"tmp-{secrets.token_hex(8)}"
                lock = folder.with_suffix(".lock")
                descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                # Between the two lines above and below, `remove_dead` of another process may take it for a dead one's.
                if _try_lock(descriptor) and lock.exists():
                    folder.mkdir()
                    weakref.finalize(self, _give_up, folder, lock, descriptor, os.getpid())
                    return folder
                os.close(descriptor)

    def remove_dead(self) -> None:
        """Remove what processes that are gone have left."""
        for lock in self._root.glob("tmp-*.lock"):
            with suppress(FileNotFoundError):  # its owner has just ended, or another process cleans up too
                descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _try_lock(descriptor):
                        _remove(lock.with_suffix(""))
                        lock.unlink()
                finally:
                    os.close(descriptor)
        for path in self._root.glob("tmp-*"):
            # A folder is made after its lock and goes before it.
            if path.suffix != ".lock" and not path.with_suffix(".lock").exists():
                _remove(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _give_up(folder: Path, lock: Path, descriptor: int, owner: int) -> None:
    if owner != os.getpid():
        return  # a forked child: the folder is its parent's
    _remove(folder)
    with suppress(OSError):  # a disk that has become read-only keeps it; without a holder it is a dead one's
        lock.unlink(missing_ok=True)
    os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def file_status(path: Path | str) -> list[int] | None:
    """Size, mtime, ctime and inode of an ordinary file; None for anything else. Raises OSError for what cannot be looked at."""
    try:
        status = os.lstat(path)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def ordinary_bytes(path: str) -> bytes | None:
    """The bytes of an ordinary file that can be read; None for anything else."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        data = os.read(file, status.st_size + 1) if stat.S_ISREG(status.st_mode) else b""
        return data if len(data) == status.st_size and data else None
    except OSError:
        return None
    finally:
        os.close(file)


def same_bytes(before: list[int], after: list[int] | None) -> bool:
    """Whether two statuses are of the same file with the same bytes: size, mtime and inode, but not ctime."""
    return after is not None and [before[0], before[1], before[3]] == [after[0], after[1], after[3]]


def read_ordinary(path: Path, what: str, *, remedy: str) -> bytes:
    """The bytes of an ordinary file; a pipe or device in its place would block or never end. Raises EngcmpError."""
    try:
        if file_status(path) is None:
            raise EngcmpError(f"{what} is missing or not an ordinary file", where=str(path), remedy=remedy)
        return path.read_bytes()
    except OSError as error:
        raise EngcmpError(f"{what} cannot be read: {error.strerror}", where=str(path), remedy=remedy) from error
