"""Names and files that come from a user: which may be joined to a folder, and which may be opened."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path, PurePosixPath

from engcmp_resources.errors import EngcmpError

CAPTURE_AGAIN = "capture or fetch this window again"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def fault(window_id: str, what: str, path: Path, *, remedy: str = CAPTURE_AGAIN) -> EngcmpError:
    """The error of a window's file: it names the window, the file and the remedy. No `window_id`: the file is of no one window."""
    return EngcmpError(f"window {window_id}: {what}" if window_id else what, where=f"file {path}", remedy=remedy)


def check_window_id(window_id: str) -> None:
    """Raise EngcmpError for a window id that is no plain file name: it must not lead out of a folder."""
    if _PLAIN.fullmatch(window_id) is None:
        raise EngcmpError(
            f"window id {window_id!r} is no plain name", remedy="use letters, digits, dots, dashes and underscores"
        )


def inside(folder: Path, name: object, *, listed_in: Path) -> Path:
    """The file that the text `name`, as found in the file `listed_in`, means below `folder`.

    Raises EngcmpError for a name that is no relative path or climbs with `..`. Symbolic links that lie in the folder are the user's own
    (caches of downloaded data are made of them) and are followed where the file is opened.
    """
    text = name if isinstance(name, str) else ""
    parts = PurePosixPath(text).parts
    if not parts or "\0" in text or "\\" in text or text.startswith("/") or ".." in parts:
        raise EngcmpError(
            f"{listed_in.name} names the file {str(name)[:200]!r}, which is no path within its folder",
            where=f"file {listed_in}", remedy="take the data from where you trust it",
        )  # fmt: skip
    return folder.joinpath(*parts)


def open_regular(path: Path, *, window_id: str) -> tuple[int, int]:
    """A descriptor for reading a regular file, which the caller closes, and the file's size in bytes.

    Raises EngcmpError for what is missing, unreadable or no regular file; a pipe or a device is not waited for.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise fault(window_id, f"cannot be read: {reason}", path) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise fault(window_id, "is no regular file", path, remedy="name the file that holds the rows")
    return descriptor, found.st_size


def small_file(path: Path, *, most_bytes: int, window_id: str) -> bytes:
    """The bytes of a file that may have `most_bytes`. Raises EngcmpError, before it reads, for a larger one; else as open_regular."""
    descriptor, size = open_regular(path, window_id=window_id)
    with os.fdopen(descriptor, "rb") as file:
        if size > most_bytes:
            raise fault(window_id, f"{size:,} bytes, at most {most_bytes:,} are read of such a file", path)
        try:
            return file.read(most_bytes)
        except OSError as error:
            raise fault(window_id, f"cannot be read: {error.strerror}", path) from error
