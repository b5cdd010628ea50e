"""Ports of servers that tests start. No tests."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

LOOPBACK = "0100007F"
_RANGE = range(
    15_000, 32_000
)  # below what the system gives to whoever asks for any port, so none is taken before it is used
_HELD: list[IO[bytes]] = []  # until this process ends, also where the server starts, ends and starts again


def free_port(host: str = "127.0.0.1") -> int:
    """A port of `host` at which nothing listens, given to no other test process that runs."""
    folder = Path(tempfile.gettempdir()) / f"engcmp-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        port = random.choice(_RANGE)
        held = (folder / str(port)).open("wb")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind((host, port))
        except OSError:  # another process has it, or something else listens there
            held.close()
            continue
        _HELD.append(held)
        return port


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses (hexadecimal, as the kernel tells them) and ports at which a process waits for TCP connections (Linux)."""
    sockets = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for fields in (line.split() for line in (path.read_text().splitlines()[1:] if path.exists() else ())):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found
