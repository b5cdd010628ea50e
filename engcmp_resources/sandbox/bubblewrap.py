"""The sandbox of bubblewrap: namespaces of its own, a minimal root, another user, and a control group for the totals.

Namespaces alone are no file-system sandbox; bubblewrap also moves to a root that holds nothing but the system's programs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engcmp_resources.sandbox import cgroups
from engcmp_resources.sandbox.channel import PYTHON_FLAGS, START_S, Channel, supervisor_text
from engcmp_resources.sandbox.exchange import exchange
from engcmp_resources.sandbox.records import BrokenSandboxError, Limits, NoSandboxError, Ran

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin")
_HOST_USER = 65533  # whom root becomes: no account has it, so that its limits are of the sandbox alone
_INSIDE_USER = "65534"
_LEAST_VERSION = (0, 8)  # --disable-userns
_SESSION_VARIABLES = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_JOINING = Path(__file__).parent / "joining.py"


class BubblewrapSandbox:
    """A sandbox for each run, made by `bwrap`. Raises NoSandboxError where bwrap or control groups are not there."""

    name = "bubblewrap"

    def __init__(self) -> None:
        found = shutil.which("bwrap")
        if found is None:
            raise NoSandboxError(
                "bubblewrap is not installed", remedy="install the package bubblewrap, or start Docker"
            )
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"(\d+)\.(\d+)", said)
        if version is None or (int(version[1]), int(version[2])) < _LEAST_VERSION:
            raise NoSandboxError(f"bubblewrap is too old: {said.strip()}", remedy="install 0.8 or newer")
        self._bwrap, self._version, self._groups = found, version[0], cgroups.kind()
        self._python = _python()

    def facts(self) -> dict[str, Any]:
        """For a receipt."""
        return {"sandbox": self.name, "version": self._version, "groups": self._groups}

    def shown(self) -> tuple[Path, ...]:
        """The folders of this machine that can be read inside."""
        return tuple(folder for folder in (*map(Path, _SYSTEM), self._python[1]) if folder.is_dir())

    def run(self, program: str, inputs: Sequence[bytes], limits: Limits) -> Ran:
        """See Sandbox."""
        channel = Channel(program, inputs, limits)
        until = time.monotonic() + limits.total_s + START_S
        with cgroups.group(self._groups, limits) as group, tempfile.TemporaryFile() as said:
            with _started(self._command(group, limits), said.fileno()) as process:
                assert process.stdin is not None and process.stdout is not None  # noqa: S101 - pipes were asked for
                data, cut = exchange(
                    process.stdout.fileno(),
                    process.stdin.fileno(),
                    channel.request,
                    until=until,
                    most_bytes=channel.most_bytes,
                )
            said.seek(0)
            return channel.read(data, cut, said.read(1 << 16).decode(errors="replace"))

    def _command(self, group: cgroups.Group, limits: Limits) -> list[str]:
        user = str(_HOST_USER) if os.geteuid() == 0 else "-"
        joined = ":".join(map(str, group.join))
        joining = [sys.executable, "-I", "-S", "-B", "-c", _JOINING.read_text(encoding="utf-8"), joined, user]
        return [*group.prefix, *joining, self._bwrap, *self._arguments(limits), "--", *self._supervisor()]

    def _supervisor(self) -> list[str]:
        return [str(self._python[0]), *PYTHON_FLAGS, supervisor_text()]

    def _arguments(self, limits: Limits) -> list[str]:
        spaces = ("user", "ipc", "pid", "net", "uts", "cgroup-try")
        apart = [f"--unshare-{space}" for space in spaces]
        tied = [
            "--disable-userns",
            "--new-session",
            "--die-with-parent",
            "--as-pid-1",
            "--clearenv",
            "--cap-drop",
            "ALL",
        ]
        user = ["--uid", _INSIDE_USER, "--gid", _INSIDE_USER]
        shown = [word for folder in dict.fromkeys(self.shown()) for word in ("--ro-bind", str(folder), str(folder))]
        places = ["--proc", "/proc", "--dev", "/dev"]
        for size, folder in ((limits.shm_bytes, "/dev/shm"), (limits.tmp_bytes, "/tmp")):  # noqa: S108 - inside
            places += ["--perms", "1777", "--size", str(size), "--tmpfs", folder]
        return [*apart, *tied, *user, *shown, *places, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108 - inside


@contextmanager
def _started(command: Sequence[str], said: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a command; on leaving it is dead."""
    kept = {name: os.environ[name] for name in _SESSION_VARIABLES if name in os.environ}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=kept, start_new_session=True
        )
    except OSError as error:
        raise BrokenSandboxError(f"the sandbox did not start: {error}") from error
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _python() -> tuple[Path, Path]:
    """A Python that the sandbox's user can run, and the folder that holds it: the one that runs this, else the system's."""
    own = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    system = Path("/usr/bin/python3").resolve(), Path("/usr")
    for program, prefix in (own, system):
        if program.is_file() and (os.geteuid() != 0 or _open_to_all(program)):
            return program, prefix
    raise NoSandboxError(
        "no Python that another user than root can run", where=str(own[0]), remedy="install the system's python3"
    )


def _open_to_all(program: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (program, *program.parents))
