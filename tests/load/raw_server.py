"""A server that writes exactly the bytes that a test gives it, when the test says, and notes the time just before each write."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

# Bytes are written; a number is seconds to wait; words end the connection. Without a word it stays open for the next request.
Part = bytes | float | Literal["close", "reset"]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@dataclass
class RawServer:
    """`url`; `writes_ns` of each answer; `requests` as they came; `connections` that were made."""

    url: str
    writes_ns: list[list[int]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0


def chunked(*contents: bytes) -> list[bytes]:
    """A head and each content as one chunk of the transfer, without the closing one."""
    return [STREAM + b"Transfer-Encoding: chunked\r\n\r\n", *(b"%x\r\n%b\r\n" % (len(one), one) for one in contents)]


LAST_CHUNK = b"0\r\n\r\n"


@contextmanager
def raw_server(*answers: Sequence[Part]) -> Iterator[RawServer]:
    """Gives the answers in turn, the last one again and again."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = RawServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    waiting, lock = list(answers), threading.Lock()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while request := _request(connection):
                with lock:
                    server.requests.append(request)
                    server.writes_ns.append(stamps := [])
                    answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                if not _answer(connection, answer, stamps):
                    return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.connections += 1
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _request(connection: socket.socket) -> bytes:
    """A request with its body; nothing where the client has gone."""
    got = b""
    try:
        while b"\r\n\r\n" not in got:
            if not (part := connection.recv(65536)):
                return b""
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        length = int(lengths[0]) if lengths else 0
        while len(body) < length:
            body += connection.recv(65536)
    except OSError:
        return b""
    return head + b"\r\n\r\n" + body


def _answer(connection: socket.socket, answer: Sequence[Part], stamps: list[int]) -> bool:
    """Whether the connection stays open."""
    for part in answer:
        if part == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if isinstance(part, str):
            return False
        if isinstance(part, float):
            time.sleep(part)
            continue
        stamps.append(time.monotonic_ns())
        try:
            connection.sendall(part)
        except OSError:
            return False
    return True
