"""A server that only sends: prepared bytes at set times, each event with the time just before it was written. It shows what a client adds.

    python -m engcmp_resources.load.null_server --ttft-ms 20 --itl-ms 5

It prints its port and ends when standard input does. A reply has as many tokens as the request's `max_tokens`, one in an event. Each
event tells `sent_ns`, and `read_ns`, when the request had been read: CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Generator

from engcmp_resources.errors import EngcmpError

_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"null-0001","object":"chat.completion.chunk","model":"null","sent_ns":"%019d","read_ns":"%019d",'
    b'"choices":[{"index":0,"delta":{"content":" a"},"token_ids":[7]}]}\n\n'
)
_FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}}\n\n'
_ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
_LAST = b"data: [DONE]\n\n"
STAMPS = re.compile(rb'"sent_ns":"(\d{19})","read_ns":"(\d{19})"')
_START_S = 20


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def _end(tokens: int) -> bytes:
    return _chunk(_FINISH) + _chunk(_USAGE % (tokens, tokens + 1)) + _chunk(_LAST) + b"0\r\n\r\n"


class _Replies(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, ttft_s: float, itl_s: float, *, burst: bool) -> None:
        self._ttft_s, self._itl_s, self._burst = ttft_s, itl_s, burst
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what asyncio gives for a stream
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or (length and len(body) < int(length[1])):
            return
        read_ns = time.monotonic_ns()
        self._got = b""
        wanted = _MAX_TOKENS.search(body)
        tokens = int(wanted[1]) if wanted else 16
        if self._burst:
            self._transport.write(_HEAD + _chunk(_ROLE))
            event = _chunk(_EVENT % (time.monotonic_ns(), read_ns))
            self._transport.write(event * tokens + _end(tokens))
            return
        self._transport.write(_HEAD + _chunk(_ROLE))
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + self._ttft_s, self._send, tokens, tokens, read_ns, loop.time() + self._ttft_s)

    def _send(self, left: int, tokens: int, read_ns: int, due: float) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_chunk(_EVENT % (time.monotonic_ns(), read_ns)))
        if left == 1:
            self._transport.write(_end(tokens))
        else:
            due += self._itl_s
            asyncio.get_running_loop().call_at(due, self._send, left - 1, tokens, read_ns, due)


async def _serve(ttft_s: float, itl_s: float, *, burst: bool) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Replies(ttft_s, itl_s, burst=burst), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)  # until whoever started it is gone


@contextlib.contextmanager
def null_server(*, ttft_ms: float = 0.0, itl_ms: float = 0.0, burst: bool = False) -> Generator[str, None, None]:
    """A null server in a process of its own; gives its address. `burst`: all events of a reply at once, times of the first."""
    command = [sys.executable, "-m", __spec__.name, "--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
    process = subprocess.Popen(
        [*command, *(["--burst"] if burst else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: S101 - both are pipes
    try:
        port = process.stdout.readline().strip()
        if not port.isdigit():
            raise EngcmpError("the null server did not start", remedy="look at what it printed; start again")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _main() -> None:
    parser = argparse.ArgumentParser(description="A server that only sends.")
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    parser.add_argument("--burst", action="store_true")
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is for whoever started it
        asyncio.run(_serve(asked.ttft_ms / 1e3, asked.itl_ms / 1e3, burst=asked.burst))


if __name__ == "__main__":
    _main()
