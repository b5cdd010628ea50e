"""The sandbox of Docker: a sealed container without network, with every limit, of the image that holds no file.

Its output is kept by no log of Docker's (such a log lies outside all limits), and nothing is pulled.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound

from engcmp_resources import host_image
from engcmp_resources.container_owners import owner
from engcmp_resources.containers import Container, DockerHost, surely
from engcmp_resources.errors import EngcmpError
from engcmp_resources.sandbox.channel import PYTHON_FLAGS, START_S, Channel, supervisor_text
from engcmp_resources.sandbox.exchange import exchange
from engcmp_resources.sandbox.records import BrokenSandboxError, Limits, NoSandboxError, Ran

_USER = "65534:65534"
_TIMEOUT_S = 60
_FRAME_HEADER = 8
_STDOUT = 1
_FAILURES = (DockerException, OSError)


class DockerSandbox:
    """A container for each run. Raises NoSandboxError where no Docker engine answers or its containers are not of this system."""

    name = "docker"

    def __init__(self) -> None:
        try:
            host = DockerHost()
            try:
                self._image = host_image.ensure(host).id
            finally:
                host.close()
            self._mounts = host_image.mounts()
        except EngcmpError as error:
            raise NoSandboxError(str(error)) from error
        self._client = docker.from_env(timeout=_TIMEOUT_S)
        self._version = str(self._client.version()["Version"])

    def facts(self) -> dict[str, Any]:
        """For a receipt."""
        return {"sandbox": self.name, "version": self._version, "image": self._image}

    def shown(self) -> tuple[Path, ...]:
        """The folders of this machine that can be read inside."""
        return tuple(mount.source for mount in self._mounts)

    def run(self, program: str, inputs: Sequence[bytes], limits: Limits) -> Ran:
        """See Sandbox."""
        channel = Channel(program, inputs, limits)
        try:
            with self._attached(limits) as (made, wire):
                until = time.monotonic() + limits.total_s + START_S
                made.start()
                most = channel.most_bytes * 2  # with the headers of Docker's frames, which are a small part
                data, cut = exchange(wire, wire, channel.request, until=until, most_bytes=most)
        except _FAILURES as error:
            text = getattr(error, "explanation", None) or error
            raise BrokenSandboxError(f"the Docker engine says: {text}", remedy="look at Docker's own log") from error
        out, said = _frames(data)
        return channel.read(out, cut, said.decode(errors="replace"))

    @contextmanager
    def _attached(self, limits: Limits) -> Iterator[tuple[Any, int]]:
        """A container that is made and not started, and the socket of its input and output; it is gone on leaving."""
        name = f"engcmp-sandbox-{secrets.token_hex(8)}"
        try:
            made = self._client.containers.create(**self._arguments(name, limits))
            wire = made.attach_socket(params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            with closing(wire):
                yield made, wire.fileno()
        finally:
            surely(lambda: self._remove(name))

    def _remove(self, name: str) -> None:
        with suppress(NotFound):
            Container(self._client.containers.get(name)).remove()

    def _arguments(self, name: str, limits: Limits) -> dict[str, Any]:
        exact = {"core": 0, "nofile": limits.open_files, "fsize": limits.tmp_bytes}
        return {
            "image": self._image,
            "name": name,
            "entrypoint": [host_image.python(), *PYTHON_FLAGS, supervisor_text()],
            "stdin_open": True,
            "environment": {},
            "use_config_proxy": False,
            "labels": {"ENGCMP_RUN": "sandbox", "ENGCMP_ARM": "none", "ENGCMP_OWNER": owner()},
            "mounts": [docker.types.Mount(m.target, str(m.source), "bind", True) for m in self._mounts],
            "network_mode": "none",
            "nano_cpus": limits.cpus * 10**9,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "pids_limit": limits.processes,
            "user": _USER,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            # No working folder there: Docker would make it first, and its mode would win over this one.
            "tmpfs": {"/tmp": f"size={limits.tmp_bytes},mode=1777,nosuid,nodev"},  # noqa: S108 - inside the container
            "shm_size": limits.shm_bytes,
            "ipc_mode": "private",
            "ulimits": [docker.types.Ulimit(name=kind, soft=most, hard=most) for kind, most in exact.items()],
            "log_config": docker.types.LogConfig(type="none"),
            "restart_policy": {"Name": "no"},
        }


def _frames(data: bytes) -> tuple[bytes, bytes]:
    """Standard output and error of Docker's frames: one byte of stream, three of nothing, four of length, then the bytes."""
    out, said, at = bytearray(), bytearray(), 0
    while at + _FRAME_HEADER <= len(data):
        length = int.from_bytes(data[at + 4 : at + _FRAME_HEADER], "big")
        block = data[at + _FRAME_HEADER : at + _FRAME_HEADER + length]
        (out if data[at] == _STDOUT else said).extend(block)
        at += _FRAME_HEADER + length
    return bytes(out), bytes(said)
