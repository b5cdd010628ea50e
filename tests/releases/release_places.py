"""Places of releases that are real and small: a server on this machine that answers as it is told, and wheels."""

from __future__ import annotations

import http.server
import ssl
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Reply:
    """One answer. `drip_s` is the pause before each byte of the body, `stall_s` the one before the status.

    With `endless_header` the bytes that drip are those of a header, as many as the body has.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    stall_s: float = 0.0
    endless_header: bool = False
    repeat: int = 1


class Server:
    """Answers by path (with its query, or without). `asked` holds each request: method, path, headers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.replies: dict[str, Reply | Callable[[dict[str, str]], Reply]] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.over = threading.Event()

    @property
    def host(self) -> str:
        return self.address.split("//")[1]

    def __setitem__(self, path: str, reply: Reply | Callable[[dict[str, str]], Reply]) -> None:
        self.replies[path] = reply

    def reply_to(self, method: str, path: str, headers: dict[str, str]) -> Reply:
        self.asked.append((method, path, headers))
        found = (
            self.replies.get(f"{method} {path}") or self.replies.get(path) or self.replies.get(path.partition("?")[0])
        )
        if found is None:
            return Reply(b"nothing here", 404)
        return found(headers) if callable(found) else found


class Handler(http.server.BaseHTTPRequestHandler):
    server_of_test: Server

    def do_GET(self) -> None:
        told = self.server_of_test
        reply = told.reply_to(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        told.over.wait(reply.stall_s)
        try:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.endless_header:
                self.flush_headers()
                self.wfile.write(b"X: ")
            else:
                self.send_header("Content-Length", str(len(reply.body) * reply.repeat))
                self.end_headers()
            if self.command == "HEAD":
                return
            for _ in range(reply.repeat):
                pieces = [reply.body] if not reply.drip_s else [reply.body[i : i + 1] for i in range(len(reply.body))]
                for piece in pieces:
                    if told.over.wait(reply.drip_s):
                        return
                    self.wfile.write(piece)
        except (BrokenPipeError, ConnectionResetError):  # the one who asked has given up: some tests want that
            return

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test has no access log."""


def serving(stack: ExitStack, context: ssl.SSLContext | None = None) -> Server:
    handler = type("OneTest", (Handler,), {})
    server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    told = Server(f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}")
    handler.server_of_test = told
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.shutdown)
    stack.callback(told.over.set)
    return told


def make_wheel(
    folder: Path, version: str, tag: str = "py3-none-any", text: str = "", package: str = "demo_wheel"
) -> Path:
    """A small wheel that is one."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{package}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{package}/__init__.py", text)
        archive.writestr(
            f"{package}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        )
    return wheel


class Watch:
    """How long a block took."""

    def __enter__(self) -> Watch:
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._started
