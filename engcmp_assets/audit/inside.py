"""The confined process of an audit: `python -m engcmp_assets.audit.inside STUDY WAY PORT`. Its report goes to standard output, as JSON.

Before anything is read it gives up what it must not have, and proves it: a listener that the parent holds open stands for an engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from engcmp_assets.audit.confinement import BUBBLEWRAP, IN_FORCE, PROCESS
from engcmp_resources.errors import EngcmpError
from engcmp_resources.kernel_filter import refuse_sockets_and_programs
from engcmp_resources.places import home_folder
from engcmp_resources.write_filter import refuse_writes_outside

_REFUSED = (
    "socket.", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn",
)  # fmt: skip
_SECOND = ("os.link", "os.symlink")  # what they make is their second argument
_WRITES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", *_SECOND, "os.truncate", "os.chmod", "os.chown", "os.utime",
           "shutil.rmtree")  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATIENCE_S = 2.0
KERNEL = "the kernel refuses sockets and programs to all code of the process, so that no socket file is reached either"

BY_ANY = "neither by Python nor by C code"
BY_PYTHON = "by Python; nothing on this system (bubblewrap, or Landlock of Linux 6.2 and later) keeps C code from it"


class ConfinedError(PermissionError):
    """What an audit must not do."""


def give_up(home: Path) -> None:
    """From now on this process opens no socket, starts no program and writes nothing below `home`; it cannot take that back."""
    root = os.path.realpath(home)

    def below(path: Any) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        place = os.path.realpath(os.fsdecode(path))
        return place == root or place.startswith(root + os.sep)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED):
            raise ConfinedError(f"an audit does not use {event}")
        writes = event == "open" and len(arguments) > 2 and bool((arguments[2] or 0) & _WRITING)  # noqa: PLR2004 - an open has three arguments
        touched = arguments[1:2] if event in _SECOND else arguments
        # A name that is not whole may be of any folder that is open; a database is written to by C code, of which nothing is heard.
        vague = writes and isinstance(arguments[0], (str, bytes)) and not Path(os.fsdecode(arguments[0])).is_absolute()
        if event == "sqlite3.connect" and below(arguments[0]):
            raise ConfinedError("an audit opens no database below ENGCMP_HOME")
        if (writes and (vague or below(arguments[0]))) or (event in _WRITES and any(map(below, touched))):
            raise ConfinedError(f"an audit does not write: {event} below ENGCMP_HOME")

    sys.addaudithook(refuse)


def reaches(port: int) -> bool:
    """Whether the listener of the parent answers from here."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S):
        return True
    return False


def writes(home: Path) -> bool:
    """Whether a file can be made in `home` from here. It leaves none behind."""
    trial = home / ".audit-trial"
    with suppress(OSError):
        trial.write_bytes(b"")
        trial.unlink()
        return True
    return False


def writes_by_c_code(home: Path) -> bool:
    """As `writes`, past all that Python is told of."""
    trial = os.fsencode(home / ".audit-trial")
    libc = ctypes.CDLL(None, use_errno=True)
    made: int = libc.open(trial, os.O_WRONLY | os.O_CREAT, 0o600)
    if made < 0:
        return False
    libc.close(made)
    libc.unlink(trial)
    return True


def prove(way: str, home: Path, port: int, *, closed: bool) -> dict[str, str]:
    """Give up what must not be had, and say what holds; `closed`: the kernel has been told to keep the store's files as they are.

    Raises EngcmpError where an engine could be reached or the store written to.
    """
    reached = reaches(port)
    if reached and way != PROCESS:
        raise EngcmpError(f"{way} does not keep the network away", remedy="use another way, or mend the system")
    if way == BUBBLEWRAP and not os.statvfs(home).f_flag & os.ST_RDONLY:
        raise EngcmpError("bubblewrap does not keep files from being written to", where=str(home), remedy="mend it")
    give_up(home)
    kernel = refuse_sockets_and_programs()
    shut = closed or way == BUBBLEWRAP
    if reaches(port) or writes(home) or (shut and writes_by_c_code(home)):
        raise EngcmpError("the process could still reach an engine or write to the store", remedy="report it as a bug")
    return {
        "in force": IN_FORCE[way],
        "an engine": "a listener on this machine could not be reached",
        "the store": "no file could be made below ENGCMP_HOME, " + (BY_ANY if shut else BY_PYTHON),
        "kernel": KERNEL
        if kernel
        else "this kernel has no filter of calls, so that C code is kept from sockets by the network alone",
    }


def main(study: str, way: str, port: str) -> int:
    """Audit a study and print the report."""
    # Before anything starts a thread, which would be free of it.
    closed = refuse_writes_outside(Path(tempfile.gettempdir()))
    # What an audit needs is loaded before it gives programs up: some packages look at their platform by starting one.
    from engcmp_assets.audit.battery import audit  # noqa: PLC0415 - after the process is confined
    from engcmp_assets.audit.recompute import Evidence  # noqa: PLC0415 - as above
    from engcmp_assets.kernel.progress import stderr_line  # noqa: PLC0415 - as above
    from engcmp_assets.kernel.records import plain  # noqa: PLC0415 - as above
    from engcmp_assets.kernel.study import load_study  # noqa: PLC0415 - as above

    home = home_folder()
    try:
        confined = prove(way, home, int(port), closed=closed)
        report = plain(audit(load_study(study), Evidence(home), stderr_line, time.monotonic_ns)) | {
            "confined": confined
        }
    except EngcmpError as error:
        report = {"error": {"what": error.what, "where": error.where, "remedy": error.remedy}}
    sys.stdout.write(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
