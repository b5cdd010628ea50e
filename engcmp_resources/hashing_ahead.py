"""Very many small files are hashed in a process of its own, while this one still reads what names them.

Around each small file Python's lock costs more than its hash does, so threads gain nothing there. The process is this file, run alone:
names of files come in, a line of hash and status for each goes out.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_MOST_BYTES = 1 << 20
_FIELDS = 5


@contextmanager
def hashing_ahead(sound: dict[str, list[int]]) -> Iterator[Callable[[str, str, int], None]]:
    """Within it, files that are asked for (path, SHA-256 and bytes as they should be) are hashed by another process.

    On leaving, those that have that hash are in `sound` with their status: size, mtime (ns), ctime (ns), inode. Of a file that is not
    there nothing is said; nor of any, where this process may start no other (an audit may not).
    """
    asked: dict[str, str] = {}
    try:
        ahead = _Ahead()
    except OSError:
        yield lambda _path, _sha256, _size: None
        return

    def ask(path: str, sha256: str, size: int) -> None:
        if path not in asked:
            asked[path] = sha256
            ahead.ask(path, size)

    try:
        yield ask
        sound.update({path: status for path, sha256, status in ahead.answers() if asked.get(path) == sha256})
    finally:
        ahead.close()


class _Ahead:
    """The process."""

    def __init__(self) -> None:
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `answers` and `close`
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=self._told,
                stderr=subprocess.DEVNULL,
            )
        except BaseException:
            self._told.close()
            raise

    def ask(self, path: str, size: int) -> None:
        """Have a file hashed, unless it is a large one: those are better shared among threads."""
        if size <= _MOST_BYTES and "\n" not in path and self._process.stdin is not None:
            with suppress(OSError):  # its end is seen where the answers are read
                self._process.stdin.write(os.fsencode(path) + b"\n")

    def answers(self) -> Iterator[tuple[str, str, list[int]]]:
        """Path, SHA-256 and status (size, mtime, ctime, inode) of each file whose status was the same before and after it was read."""
        with self._told:
            with suppress(OSError):
                self._process.communicate()
            self._told.seek(0)
            for line in self._told:
                sha256, *status, path = line.rstrip(b"\n").split(b" ", _FIELDS)
                yield os.fsdecode(path), sha256.decode(), [int(number) for number in status]

    def close(self) -> None:
        """End it, whatever it still has to do."""
        self._process.kill()
        with suppress(OSError):
            self._process.communicate()
        self._told.close()


def _hashed(path: bytes) -> bytes | None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return None
        data = os.read(file, found.st_size + 1)
        then = os.fstat(file)
    finally:
        os.close(file)
    before, after = ((one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino) for one in (found, then))
    if before != after or len(data) != found.st_size:
        return None
    return b"%s %d %d %d %d %s\n" % (hashlib.sha256(data).hexdigest().encode(), *before, path)


def _main() -> None:
    for line in sys.stdin.buffer:
        with suppress(OSError):
            sys.stdout.buffer.write(_hashed(line.rstrip(b"\n")) or b"")


if __name__ == "__main__":
    _main()
