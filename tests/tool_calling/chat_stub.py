"""A chat server over OpenAI's API whose model is a function of the test: streamed or whole, tool calls included."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Says:
    """What the model answers with: text, or calls as (name, arguments as they are sent), or an HTTP error."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None
    status: int = 200
    reasoning: str | None = None
    usage: dict[str, int] = field(
        default_factory=lambda: {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}
    )

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


Model = Callable[[dict[str, Any]], Says]


def call(name: str, **arguments: object) -> tuple[str, str]:
    return name, json.dumps(arguments)


@dataclass
class Stub:
    url: str
    asked: list[dict[str, Any]]
    at_once: list[int]


@contextmanager
def serving(model: Model) -> Iterator[Stub]:
    """The server while it is needed, and what it was asked; `at_once` holds how many requests were open at each arrival."""
    stub = Stub("", [], [])
    lock = threading.Lock()
    open_now = [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            found = self.path.endswith("/models")
            self._json(
                200 if found else 404, {"object": "list", "data": [{"id": "stub", "object": "model"}]} if found else {}
            )

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                stub.asked.append(body)
                open_now[0] += 1
                stub.at_once.append(open_now[0])
            try:
                said = model(body)
            finally:
                with lock:
                    open_now[0] -= 1
            if said.status != 200:
                self._json(said.status, {"error": {"message": "the stub refuses", "type": "BadRequestError"}})
            elif body.get("stream"):
                self._stream(said)
            else:
                message = {"role": "assistant", "content": said.text or None} | _calls(said)
                if said.reasoning is not None:
                    message["reasoning_content"] = said.reasoning
                choice = {"index": 0, "message": message, "finish_reason": said.finish_reason}
                self._json(
                    200,
                    {"id": "x", "object": "chat.completion", "model": "stub", "choices": [choice], "usage": said.usage},
                )

        def _json(self, status: int, document: Any) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, said: Says) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            deltas: list[dict[str, Any]] = [{"role": "assistant"}]
            deltas += [{"content": said.text}] if said.text else []
            deltas += [_calls(said, indexed=True)] if said.calls else []
            chunks = [{"choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": said.finish_reason}]})
            chunks.append({"choices": [], "usage": said.usage})
            for chunk in chunks:
                self.wfile.write(b"data: " + json.dumps({"id": "x", "model": "stub", **chunk}).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _calls(said: Says, *, indexed: bool = False) -> dict[str, Any]:
    if not said.calls:
        return {}
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        | ({"index": n} if indexed else {})
        for n, (name, arguments) in enumerate(said.calls)
    ]
    return {"tool_calls": made}
