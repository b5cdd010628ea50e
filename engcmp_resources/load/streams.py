"""One streamed request on one connection: each read is stamped before anything else is done with it (MEASURES section 6).

What is kept while a cell runs is bytes and stamps. Events are parsed when the cell is over, so that parsing delays no stamp.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import tempfile
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal
from urllib.parse import urlsplit

import httptools

from engcmp_resources.errors import EngcmpError

End = Literal[
    "open", "complete", "cut", "reset", "no_answer", "bad_http", "refused", "not_connected", "late_connect",
    "late_first_byte", "late_between", "late_whole",
]  # fmt: skip
_BUFFER_BYTES = 1 << 18
_PORTS = {"http": 80, "https": 443}
_INFORMATIONAL = range(100, 200)
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds of each phase: opening a connection, to the first byte, between two reads, and of the whole exchange."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    between_s: float = 120.0
    whole_s: float = 3600.0

    def passed(self, exchange: Exchange, now_ns: int) -> End | None:
        """Which deadline an exchange that was sent has passed, if any."""
        if now_ns - exchange.t0_ns > self.whole_s * _NS:
            return "late_whole"
        if not exchange.read_stamps:
            return "late_first_byte" if now_ns - exchange.t0_ns > self.first_byte_s * _NS else None
        return "late_between" if now_ns - exchange.read_stamps[-1] > self.between_s * _NS else None

    @property
    def shortest_s(self) -> float:
        return min(self.first_byte_s, self.between_s, self.whole_s)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. `prefix` is the path before `/v1`, without a final slash."""

    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address of `http[s]://HOST[:PORT][/PREFIX][/v1]`. Raises EngcmpError for anything else."""
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            parts, port = None, 0
        if parts is None or not parts.hostname or parts.query or parts.fragment or parts.username is not None:
            raise EngcmpError(f"{_shown(url)!r} is no address of a server", remedy="write http://HOST:PORT")
        return cls(parts.hostname, port, parts.scheme == "https", parts.path.rstrip("/").removesuffix("/v1"))

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self._named}:{self.port}{self.prefix}"

    @property
    def _named(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def content(self, path: str, body: bytes, key: str | None) -> bytes:
        """The bytes of a POST of the JSON `body` to `path`; `key` is sent as a bearer token."""
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {self._named}:{self.port}\r\n{bearer}"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\nAccept-Encoding: identity\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


def _shown(url: str) -> str:
    """An address without what stands before an @: it may be a password."""
    return url.rsplit("@", 1)[-1]


@dataclass(slots=True)
class Exchange:
    """What came back of one request, as bytes. Times are nanoseconds of CLOCK_MONOTONIC.

    `body` is without the transfer's framing. After read i, `read_ends[i]` bytes of it had come, at `read_stamps[i]`.
    `t0_ns` is just before the request's bytes were written, 0 where they never were. `end` says how it ended, `retries` how often
    it was sent before and refused with 429, `resent` whether an idle connection that the server had dropped made it go twice.
    """

    request_id: str
    scheduled_at_ns: int
    t0_ns: int = 0
    done_at_ns: int = 0
    http_status: int | None = None
    content_type: str = ""
    retry_after: str = ""
    end: End = "open"
    detail: str = ""
    retries: int = 0
    resent: bool = False
    # Not in the text form: asyncio makes one of every result.
    body: bytearray = field(default_factory=bytearray, repr=False)
    put_away: tuple[IO[bytes], int, int] | None = field(
        default=None, repr=False
    )  # file, offset and length of a body in a file
    read_ends: array[int] = field(default_factory=lambda: array("q"), repr=False)
    read_stamps: array[int] = field(default_factory=lambda: array("q"), repr=False)

    def content(self) -> bytes | bytearray:
        """The body, from wherever it is kept."""
        if self.put_away is None:
            return self.body
        file, offset, length = self.put_away
        return os.pread(file.fileno(), length, offset)


class Bodies:
    """Keeps bodies of ended exchanges in memory up to a limit, and what is more in a file that has no name."""

    def __init__(self, folder: Path | None, most_bytes: int = 8 << 20) -> None:
        self._folder, self._left, self._end = folder, most_bytes, 0
        self._file: IO[bytes] | None = None

    def keep(self, exchange: Exchange) -> None:
        """Take charge of an ended exchange's body; where the disk refuses, it stays in memory."""
        size = len(exchange.body)
        if size <= self._left or self._folder is None:
            self._left -= size
            return
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - it lives as long as what is in it
            if os.pwrite(self._file.fileno(), exchange.body, self._end) == size:
                exchange.put_away = (self._file, self._end, size)
                exchange.body = bytearray()
                self._end += size


class _Answer:
    """What the parser tells while it reads one answer. The body goes straight into the exchange, without a call of ours."""

    __slots__ = ("complete", "exchange", "framed", "headed", "on_body", "parser", "reusable")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.complete = self.framed = self.headed = self.reusable = False
        self.on_body = exchange.body.extend
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-length" | b"transfer-encoding":
                self.framed = True
            case b"content-type":
                self.exchange.content_type = value.decode("latin-1").lower()
            case b"retry-after":
                self.exchange.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.exchange.http_status = self.parser.get_status_code()
        self.headed = self.exchange.http_status not in _INFORMATIONAL

    def on_message_complete(self) -> None:
        if self.headed:
            self.complete = True
            self.reusable = self.framed and self.parser.should_keep_alive()


class Connection(asyncio.BufferedProtocol):
    """A connection that carries one exchange after the other."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer  # shared by all connections of a loop: what is read is parsed before the next read
        self._transport: asyncio.Transport | None = None
        self._answer: _Answer | None = None
        self._ended: asyncio.Future[None] | None = None
        self.usable = False
        self.used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what asyncio gives for a stream
        self._transport, self.usable = transport, True

    @property
    def exchange(self) -> Exchange | None:
        """The exchange that it carries now."""
        return self._answer.exchange if self._answer else None

    def send(self, exchange: Exchange, content: bytes) -> asyncio.Future[None]:
        """Write the request; the result comes when the exchange has ended, whatever way."""
        assert self._transport is not None  # noqa: S101 - a connection is handed out only when it is made
        self._answer, self._ended, self.used = _Answer(exchange), asyncio.get_running_loop().create_future(), True
        exchange.t0_ns = time.monotonic_ns()
        self._transport.write(content)
        return self._ended

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now_ns = time.monotonic_ns()
        answer = self._answer
        if answer is None:
            self.close()  # a server that speaks without being asked
            return
        exchange = answer.exchange
        try:
            answer.parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserError as error:
            exchange.read_ends.append(len(exchange.body))
            exchange.read_stamps.append(now_ns)
            if answer.complete:  # what follows a whole answer is none of it
                answer.reusable = False
                self._finish("complete", now_ns)
            else:
                exchange.detail = str(error)
                self._finish("bad_http", now_ns)
            return
        exchange.read_ends.append(len(exchange.body))
        exchange.read_stamps.append(now_ns)
        if answer.complete:
            self._finish("complete", now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        now_ns = time.monotonic_ns()
        self.usable = False
        answer = self._answer
        if answer is None:
            return
        if not answer.exchange.read_stamps:
            answer.exchange.detail = str(exc or "")
            self._finish("no_answer", now_ns)
        elif exc is not None:
            answer.exchange.detail = str(exc)
            self._finish("reset", now_ns)
        else:
            whole = answer.headed and not answer.framed  # a body that lasts until the connection is closed
            self._finish("complete" if whole else "cut", now_ns)

    def give_up(self, end: End, now_ns: int) -> None:
        """End the exchange here and now, and the connection with it."""
        self._finish(end, now_ns)

    def close(self) -> None:
        """Close the connection without waiting."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, end: End, now_ns: int) -> None:
        answer, ended = self._answer, self._ended
        assert answer is not None and ended is not None  # noqa: S101 - it is called while an exchange is open
        self._answer = self._ended = None
        del answer.parser  # each holds the other, and the collector rests while a cell runs
        answer.exchange.end, answer.exchange.done_at_ns = end, now_ns
        if end != "complete" or not answer.reusable:
            self.close()
        if not ended.done():
            ended.set_result(None)


class Opener:
    """Opens connections to one address for one event loop."""

    def __init__(self, address: Address, deadlines: Deadlines) -> None:
        self._address, self._deadlines = address, deadlines
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._tls = ssl.create_default_context() if address.tls else None
        self.opened: list[Connection] = []

    async def open(self) -> Connection:
        """A new connection. Raises OSError (TimeoutError for the deadline) where there is none."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._deadlines.connect_s):
            _, connection = await loop.create_connection(
                lambda: Connection(self._buffer), self._address.host, self._address.port, ssl=self._tls
            )
        self.opened = [one for one in self.opened if one.usable]
        self.opened.append(connection)
        return connection

    def end_late(self, now_ns: int) -> None:
        """End each exchange that has passed a deadline."""
        for connection in self.opened:
            exchange = connection.exchange
            late = self._deadlines.passed(exchange, now_ns) if exchange else None
            if late:
                connection.give_up(late, now_ns)

    def close(self) -> None:
        for connection in self.opened:
            connection.close()


def end_of(error: OSError) -> End:
    """How an exchange ended for which no connection could be opened."""
    if isinstance(error, TimeoutError):
        return "late_connect"
    return "refused" if isinstance(error, ConnectionRefusedError) else "not_connected"


def bearer_headers(key: str | None) -> Mapping[str, str]:
    """The header that bears the key, for control requests."""
    return {"Authorization": f"Bearer {key}"} if key else {}
