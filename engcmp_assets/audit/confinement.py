"""An audit in a process that can neither reach an engine nor write into the store.

Where there is one, bubblewrap gives the process a network of its own, without any other machine or process in it, and a view of all
files that cannot be written to; else `unshare` gives it the network alone. In every case the process itself refuses, before it begins,
to open a socket, to start a program or to write below ENGCMP_HOME, and cannot take that back; where the kernel can, it refuses C code the
same, and leaves it one folder to write to, which is removed at the end. What was in force is proved, and told.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError

BUBBLEWRAP, NETWORK, PROCESS = "bubblewrap", "network namespace", "process alone"
IN_FORCE = {
    BUBBLEWRAP: "bubblewrap: a network of its own and all files read-only; sockets, programs and writes refused in the process too",
    NETWORK: "a network of its own (unshare); sockets, programs and writes below ENGCMP_HOME refused in the process",
    PROCESS: "the process alone: sockets, programs and writes below ENGCMP_HOME refused in it; this system gives no namespace",
}  # fmt: skip
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a file system of the namespace's own, which ends with it
_TRIAL_S = 20
_BUBBLEWRAP = (
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent",
    "--new-session",
)  # fmt: skip


def ways() -> dict[str, list[str]]:
    """The ways of confining that this system has, the strictest first: name, and what stands before the command."""
    found: dict[str, list[str]] = {}
    bwrap, unshare = shutil.which("bwrap"), shutil.which("unshare")
    if bwrap and _works([bwrap, *_BUBBLEWRAP]):
        found[BUBBLEWRAP] = [bwrap, *_BUBBLEWRAP]
    if unshare:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        if _works([unshare, "--net", *user]):
            found[NETWORK] = [unshare, "--net", *user]
    return found | {PROCESS: []}


def _works(prefix: list[str]) -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run([*prefix, "true"], capture_output=True, check=False, timeout=_TRIAL_S).returncode == 0
    return False


def run_confined(study: str, home: Path, say: Callable[[str], None], *, way: str | None = None) -> dict[str, Any]:
    """The report of an audit of `study` in `home`, made in a confined process; `way` asks for one of `ways`.

    Raises EngcmpError in the words of that process, and where it could reach what it must not.
    """
    possible = ways()
    name = way or next(iter(possible))
    if name not in possible:
        raise EngcmpError(f"this system has no {name}", remedy=f"it has {', '.join(possible)}")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryDirectory(prefix="engcmp-audit-") as scratch,
    ):
        command = [
            *possible[name], sys.executable, "-m", "engcmp_assets.audit.inside", study, name, str(listener.getsockname()[1]),
        ]  # fmt: skip
        apart = {"TMPDIR": _SHARED_MEMORY if name == BUBBLEWRAP else scratch}
        process = subprocess.Popen(
            command, env=os.environ | {"ENGCMP_HOME": str(home)} | apart, stdout=told, stderr=subprocess.PIPE, text=True
        )
        try:
            last = _follow(process, say)
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        told.seek(0)
        return _answer(told.read(), code, last)


def _follow(process: subprocess.Popen[str], say: Callable[[str], None]) -> str:
    """Say what the process says; returns its last line."""
    last = ""
    if process.stderr is not None:
        for line in process.stderr:
            last = line.strip() or last
            say(line.rstrip("\n"))
    return last


def _answer(said: bytes, code: int, last: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError as error:
        raise EngcmpError(
            f"the audit's process ended with {code} and without a report: {last}", remedy="run it again"
        ) from error
    if "error" in answer:
        raise EngcmpError(answer["error"]["what"], where=answer["error"]["where"], remedy=answer["error"]["remedy"])
    return answer
