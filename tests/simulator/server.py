"""The HTTP server: it reads a request, lets the faults have their way with it, and hands it to the dialect."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .engine import Engine, StreamBroken, StreamEnds
from .exchange import CONTROL, Cut, Exchange, Gone, Refusal
from .faults import FAULTS, BadScript

Route = Callable[[Exchange], None]
_PAGE = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>Bad Gateway</body></html>"


class Dialect:
    """The interface of one engine. A subclass fills `routes` by (method, path)."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.options = engine, engine.options
        key = engine.options.api_key_file
        self.key = key.read_text(encoding="utf-8").strip() if key else None
        self.routes: dict[tuple[str, str], Route] = {}

    def needs_key(self, path: str) -> bool:
        """Whether a request of this path must bear the key, if there is one."""
        return path.startswith("/v1/")

    def refuse_key(self, path: str) -> Refusal:
        """The answer to a request that does not bear the key."""
        return Refusal(401, "Unauthorized", kind="AuthenticationError")

    def error(self, refusal: Refusal) -> Any:
        """The body of an error."""
        return {"error": {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.status}}

    def say_started(self, address: str) -> None:
        """The lines of the log before it is ready."""

    def say_ready(self, address: str) -> None:
        """The line of the log that says that it is ready."""
        raise NotImplementedError  # each dialect has its own

    def bears_key(self, exchange: Exchange) -> bool:
        """Whether the request bears the key."""
        held = {exchange.headers.get("Authorization", ""), f"Bearer {exchange.headers.get('x-api-key', '')}"}
        return f"Bearer {self.key}" in held


def make_server(engine: Engine, dialect: Dialect) -> ThreadingHTTPServer:
    """The server, bound to its address, which does not listen yet: until it does, connections are refused."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body of an answer go out together; each write is flushed
        timeout = 600

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            exchange = Exchange(self, engine, content)
            try:
                if exchange.path.startswith(CONTROL):
                    _answer_control(exchange, engine)
                    return
                engine.records.append(exchange.record)
                _answer(exchange, dialect)
            except Gone:
                exchange.record["ended"] = "client gone"
                self.close_connection = True
            except Cut:
                exchange.record["ended"] = "cut"
                self.close_connection = True

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = _Server((engine.options.host, engine.options.port), Handler, bind_and_activate=False)
    server.server_bind()
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that has gone is no fault of ours
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        # Without the look-up of the host's name that http.server makes.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.socket.getsockname()[:2]


def _answer(exchange: Exchange, dialect: Dialect) -> None:
    try:
        _refuse_at_the_door(exchange, dialect)
        route = dialect.routes.get((exchange.method, exchange.path))
        if route is None:
            raise Refusal(404, "Not Found", kind="NotFoundError")
        if not exchange.fault("html"):
            route(exchange)
        else:
            exchange.send(_PAGE, "text/html")
    except Refusal as refusal:
        if exchange.streaming:
            exchange.event(dialect.error(refusal), "error")
            exchange.end_stream()
        else:
            exchange.send_json(dialect.error(refusal), refusal.status, **refusal.headers)
    except StreamBroken as broken:
        text = json.dumps(dialect.error(Refusal(500, "EngineCore encountered an issue", kind="InternalServerError")))
        exchange.frame(f"event: error\ndata: {text}\n\n" if broken.event else f"data: {text}\n\n", "error")
        if broken.done:
            exchange.event("[DONE]", "done")
        exchange.end_stream()
    except StreamEnds:
        exchange.end_stream()


def _refuse_at_the_door(exchange: Exchange, dialect: Dialect) -> None:
    if exchange.fault("dead_behind_health"):
        raise Refusal(500, "EngineDeadError: EngineCore encountered an issue", kind="InternalServerError")
    if dialect.key and dialect.needs_key(exchange.path) and not dialect.bears_key(exchange):
        raise dialect.refuse_key(exchange.path)
    if fault := exchange.fault("http_429"):
        raise Refusal(429, "too many requests", kind="rate_limit_error", Retry_After=str(fault["retry_after_s"]))
    if fault := exchange.fault("refuses_fields"):
        _refuse_fields(exchange, fault["fields"])
    if fault := exchange.fault("http_error"):
        raise Refusal(fault["status"], fault["message"], kind="InternalServerError")


def _refuse_fields(exchange: Exchange, fields: list[str]) -> None:
    body = exchange.body() if exchange.method == "POST" else {}
    held = set(body) | set(body.get("stream_options") or {})
    if unknown := sorted(held & set(fields)):
        raise Refusal(400, f"Extra inputs are not permitted: {unknown[0]}")


def _answer_control(exchange: Exchange, engine: Engine) -> None:
    """`/__sim__/`: the truth, the log, the script; it has no faults."""
    asked = (exchange.method, exchange.path)
    if asked == ("GET", "/__sim__/truth"):
        first = int(exchange.query.get("first", 0))
        options = {name: _plain(getattr(engine.options, name)) for name in engine.options.__slots__}
        answer = {"clock": "CLOCK_MONOTONIC", "now_ns": time.monotonic_ns(), "options": options}
        answer["listening_ns"] = engine.listening_ns
        exchange.send_json(answer | {"records": engine.records[first:]})
    elif asked == ("GET", "/__sim__/log"):
        exchange.send_json({"lines": engine.log})
    elif asked == ("GET", "/__sim__/faults"):
        exchange.send_json({name: kind.does for name, kind in FAULTS.items()})
    elif asked == ("POST", "/__sim__/script"):
        try:
            engine.faults.load(exchange.body())
            exchange.send_json({"ok": True})
        except (BadScript, Refusal) as error:
            exchange.send_json({"ok": False, "error": str(error)}, 400)
    else:
        exchange.send_json({"error": "truth, log, faults or script"}, 404)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
