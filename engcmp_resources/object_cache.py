"""Compiled code kept between processes: `engcmp/compiled/<key>.o` in the user's cache folder (XDG_CACHE_HOME, else ~/.cache).

What lies there is run, so it is read and written only in a folder that is this user's and that nobody else can write to. A file holds
its key and the SHA-256 of its code before the code: a damaged or foreign one counts as absent, and is written again. Where anything
fails, nothing is kept: code is then compiled in each process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_BYTES = 16 << 20  # far above any code of ours: what is longer is not read to its end
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def cache_folder() -> Path:
    """Where compiled code is kept, which need not exist. Raises RuntimeError for a user without a home folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "engcmp" / "compiled"


class ObjectCache:
    """Code under keys of 64 hexadecimal digits, in `folder` or else in cache_folder(). Neither call raises anything."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def load(self, key: str) -> bytes | None:
        """The code that was stored under `key`, whole and unchanged; None where it is not there or not trusted."""
        with contextlib.suppress(OSError, RuntimeError), self._opened() as place:
            descriptor = os.open(f"{key}.o", _READ, dir_fd=place)
            with os.fdopen(descriptor, "rb") as file:
                if _own(os.fstat(descriptor)) and stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return _sound(key, file.read(_MOST_BYTES))
        return None

    def store(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`, in the place of what is there. A reader finds the old file or the new one, never a part of it."""
        with contextlib.suppress(OSError, RuntimeError):
            folder = self._folder or cache_folder()
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            with self._opened() as place:
                partial = f".{key}.{os.getpid()}.partial"
                with contextlib.suppress(FileNotFoundError):  # left by a process of this number that was killed
                    os.unlink(partial, dir_fd=place)
                try:
                    with os.fdopen(os.open(partial, _WRITE, 0o600, dir_fd=place), "wb") as file:
                        file.write(_heading(key, data) + data)
                    os.replace(partial, f"{key}.o", src_dir_fd=place, dst_dir_fd=place)
                except BaseException:
                    os.unlink(partial, dir_fd=place)
                    raise

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder's descriptor: names are looked up in that folder, whatever happens to its own name meanwhile.

        Raises OSError for a link, another user's folder, and one that others can write to.
        """
        place = os.open(self._folder or cache_folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not _own(os.fstat(place)):
                raise PermissionError("not a folder of this user alone")
            yield place
        finally:
            os.close(place)


def _own(state: os.stat_result) -> bool:
    """Whether this user has it, and no one else can write to it."""
    return state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _heading(key: str, data: bytes) -> bytes:
    return f"{key}\n{hashlib.sha256(data).hexdigest()}\n".encode("ascii")


def _sound(key: str, content: bytes) -> bytes | None:
    """The code that `content` holds, if it is what was stored under `key`."""
    data = content[len(_heading(key, b"")) :]
    return data if data and content.startswith(_heading(key, data)) else None
