"""A small fleet on one machine: Postgres and Redis as a control host, and GPU hosts as network namespaces that reach it by a bridge."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from homes import CHECKOUT

_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def wait_for(holds: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until it held."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.5)
    return time.monotonic() - started


@dataclass
class Network:
    """A bridge with the control host's address, and a namespace for each other host; without the right to make them, the machine's own."""

    prefix: str = field(default_factory=lambda: f"eng{os.getpid() % 100000}")
    names: list[str] = field(default_factory=list)
    separate: bool = False

    @property
    def control(self) -> str:
        return "10.213.77.1" if self.separate else "127.0.0.1"

    def make(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return
        made = subprocess.run(["ip", "link", "add", self.prefix, "type", "bridge"], capture_output=True, check=False)
        if made.returncode != 0:
            return
        self.separate = True
        call("ip", "addr", "add", f"{self.control}/24", "dev", self.prefix)
        call("ip", "link", "set", self.prefix, "up")

    def host(self, number: int) -> list[str]:
        """A new host; how a command is started on it."""
        if not self.separate:
            return []
        name, link = f"{self.prefix}h{number}", f"{self.prefix}v{number}"
        call("ip", "netns", "add", name)
        self.names.append(name)
        call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        call("ip", "link", "set", link, "master", self.prefix, "up")
        inside = ["ip", "netns", "exec", name]
        call(*inside, "ip", "addr", "add", f"10.213.77.{number + 1}/24", "dev", "eth0")
        call(*inside, "ip", "link", "set", "eth0", "up")
        call(*inside, "ip", "link", "set", "lo", "up")
        return inside

    def remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        if self.separate:
            subprocess.run(["ip", "link", "del", self.prefix], check=False)


@dataclass
class Child:
    """A process in a session of its own, with all that it starts."""

    command: list[str]
    log: Path
    variables: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Child:
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                self.command, env=os.environ | self.variables, cwd=CHECKOUT, stdout=sink, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self

    def power_off(self) -> None:
        """Everything of it at once, as a machine whose power fails."""
        assert self.process is not None
        marker = f"ENGCMP_TEST_HOST={self.variables['ENGCMP_TEST_HOST']}".encode()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # Redis writes a title over its variables
        for _ in range(3):
            for pid in with_variable(marker):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=30)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


def with_variable(marker: bytes) -> list[int]:
    """The processes that carry a variable."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and marker in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def start_postgres(folder: Path, host: str, port: int, password: str) -> Child:
    """A database server of its own; as root it runs as the system's user for it, since Postgres refuses root."""
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    data, secret = folder / "data", folder / "password"
    folder.mkdir(mode=0o700)
    secret.write_text(password, encoding="utf-8")
    if as_user:
        shutil.chown(folder, "postgres")
        shutil.chown(secret, "postgres")
    tools = _POSTGRES[-1]
    call(
        *as_user,
        str(tools / "initdb"),
        "-D",
        str(data),
        "-U",
        "engcmp",
        "-A",
        "scram-sha-256",
        f"--pwfile={secret}",
        "-N",
    )
    with (data / "pg_hba.conf").open("a", encoding="utf-8") as file:
        file.write("host all all 10.213.77.0/24 scram-sha-256\n")
    command = [*as_user, str(tools / "postgres"), "-D", str(data), "-h", host, "-p", str(port), "-k", str(folder), "-F"]
    return Child(command, folder.parent / "postgres.log", {"ENGCMP_TEST_HOST": f"postgres{port}"}).start()


def start_redis(folder: Path, host: str, port: int, password: str) -> Child:
    folder.mkdir()
    settings = folder / "redis.conf"
    settings.write_text(f'bind {host}\nport {port}\nrequirepass {password}\nsave ""\ndir {folder}\n', encoding="utf-8")
    return Child(
        ["redis-server", str(settings)], folder.parent / "redis.log", {"ENGCMP_TEST_HOST": f"redis{port}"}
    ).start()


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
