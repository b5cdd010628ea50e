"""One request and its answer: what was asked, what is sent, and a record of every token and time of it."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from .engine import Engine
    from .faults import Entry

CONTROL = "/__sim__/"  # the simulator's own routes
_PEEK_S = 0.05  # how soon a client that has gone is noticed


class Refusal(Exception):
    """A request that is answered with an error status; the dialect gives the body its form."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Cut(Exception):
    """The connection is closed here, in the middle of whatever was being sent."""


class Gone(Exception):
    """The client has closed the connection."""


class Exchange:
    """A request with its answer. `record` is what `/__sim__/truth` tells of it, times in nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, handler: BaseHTTPRequestHandler, engine: Engine, content: bytes) -> None:
        received_ns = time.monotonic_ns()
        self._handler, self._engine, self._content = handler, engine, content
        parts = urlsplit(handler.path)
        self.method, self.path, self.query = handler.command, parts.path, dict(parse_qsl(parts.query))
        self.headers = handler.headers
        self.streaming = False
        self.keepalive_ms: float | None = None
        self._had: list[Entry] = []
        self._pending: list[int] = []
        self.record: dict[str, Any] = {
            "request": None,
            "method": self.method,
            "path": self.path,
            "received_ns": received_ns,
            "status": None,
            "ended": "open",
            "prompt_ids": [],
            "cached_tokens": 0,
            "scored_rows": [],
            "tokens": [],
            "events": [],
            "finish_reason": None,
            "usage_sent": None,
            "faults": [],
        }

    def body(self) -> dict[str, Any]:
        """The JSON object that was sent. Raises Refusal for anything else."""
        try:
            body = json.loads(self._content)
        except ValueError as error:
            raise Refusal(400, f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refusal(400, "the body is no object")
        return body

    def fault(self, name: str, **moment: Any) -> Mapping[str, Any] | None:
        """The parameters of a fault where it happens at this moment of this request, else None. The simulator's own routes have none."""
        if name not in self._engine.faults.names or self.path.startswith(CONTROL):
            return None  # at once: this is asked several times a token
        moment |= {"path": self.path, "method": self.method, "request": self.record["request"]}
        moment |= {"prompt_tokens": len(self.record["prompt_ids"]), "running": self._engine.running}
        found = self._engine.faults.find(name, moment, self._had)
        if found is not None and name not in self.record["faults"]:
            self.record["faults"].append(name)
        return found

    def send(self, content: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        """A whole answer; the tokens that wait to be sent count as sent with it."""
        self.record["status"] = status
        self._note("body", self._pending)
        self._pending = []
        self._head(status, kind, {"Content-Length": str(len(content)), **headers})
        self._write(content)
        self.record["ended"] = "whole"

    def send_json(self, answer: Any, status: int = 200, **headers: str) -> None:
        """A whole answer of JSON; numbers that JSON lacks are written as NaN and Infinity."""
        content = json.dumps(answer, separators=(",", ":")).encode()
        if status == 200 and self.fault("json_cut"):
            content = content[: len(content) // 2]
        self.send(content, status=status, **headers)

    def hold(self, tokens: Sequence[int]) -> None:
        """Tokens that go out with the next event, or with the body."""
        self._pending += tokens

    def start_stream(self) -> None:
        """The head of a stream of server-sent events."""
        self.streaming = True
        self.record["status"] = 200
        self._head(
            200, "text/event-stream; charset=utf-8", {"Transfer-Encoding": "chunked", "Cache-Control": "no-cache"}
        )
        self._write(b"")

    def event(self, data: Any, kind: str, tokens: Sequence[int] = ()) -> None:
        """One event with JSON, or with the text itself, that carries `tokens` and those that were held."""
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        self.frame(f"data: {text}\n\n", kind, tokens)

    def frame(self, text: str, kind: str, tokens: Sequence[int] = ()) -> None:
        """The lines of one event, or a comment, as one chunk of the transfer."""
        content = text.encode()
        self._note(kind, [*self._pending, *tokens])
        self._pending = []
        self._write(b"%x\r\n%b\r\n" % (len(content), content))

    def end_stream(self) -> None:
        """The end of a stream."""
        self._write(b"0\r\n\r\n")
        self.record["ended"] = "whole"

    def pause_until(self, deadline_ns: int | None) -> None:
        """Wait, for ever where the deadline is None; comments go out meanwhile if they are to. Raises Gone as soon as the client has."""
        comments = self.fault("keepalive_comments") if self.streaming else None
        every_ms, text = (comments["every_ms"], comments["text"]) if comments else (self.keepalive_ms, "keepalive")
        next_ns = time.monotonic_ns() + round(every_ms * 1e6) if every_ms and self.streaming else None
        while True:
            now_ns = time.monotonic_ns()
            if deadline_ns is not None and now_ns >= deadline_ns:
                return
            if next_ns is not None and now_ns >= next_ns:
                self._comment(text)
                next_ns += round((every_ms or 0) * 1e6)
            until = [ns for ns in (deadline_ns, next_ns) if ns is not None]
            wait_s = min([_PEEK_S, *((ns - now_ns) / 1e9 for ns in until)])
            if wait_s < _PEEK_S:
                time.sleep(max(0.0, wait_s))
            elif self._has_gone(wait_s):
                raise Gone

    def reset(self) -> None:
        """Reset the connection: what was sent and not read yet is lost too."""
        connection = self._handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), connection.fileno())  # closes the one reference to the socket

    def _comment(self, text: str) -> None:
        content = f": {text}\n\n".encode()
        self.record["events"].append({"sent_ns": time.monotonic_ns(), "kind": "comment", "tokens": []})
        self._write(b"%x\r\n%b\r\n" % (len(content), content))

    def _has_gone(self, wait_s: float) -> bool:
        connection = self._handler.connection
        if not select.select([connection], [], [], wait_s)[0]:
            return False
        try:
            if connection.recv(1, socket.MSG_PEEK):
                time.sleep(wait_s)  # the next request of an impatient client
                return False
        except OSError:
            pass
        return True

    def _note(self, kind: str, tokens: Sequence[int]) -> None:
        # Before the bytes are written: no client can have them earlier.
        sent_ns = time.monotonic_ns()
        self.record["events"].append({"sent_ns": sent_ns, "kind": kind, "tokens": list(tokens)})
        self.record["tokens"] += [{"id": token, "sent_ns": sent_ns} for token in tokens]

    def _head(self, status: int, kind: str, headers: Mapping[str, str]) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", kind)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

    def _write(self, content: bytes) -> None:
        try:
            self._handler.wfile.write(content)
            self._handler.wfile.flush()
        except OSError as error:
            raise Gone from error
