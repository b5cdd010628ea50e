"""The null server for other clients: it also answers GET, takes both names of `max_tokens`, and writes down when requests came.

    python truth_server.py FILE [--burst] [--ttft-ms 60] [--itl-ms 5]

It prints its port and ends when standard input does. FILE gets a line for each streamed request: nanoseconds of the wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TextIO

from engcmp_resources.load.null_server import _Replies

_MODELS = b'{"object":"list","data":[{"id":"null","object":"model","owned_by":"null","max_model_len":100000}]}'
_LONG_NAME = b'"max_completion_tokens"'
_SAME_LENGTH = b'"max_tokens"'.rjust(len(_LONG_NAME))


class Noting(_Replies):
    """One connection, as the null server's."""

    truth: TextIO

    def data_received(self, data: bytes) -> None:
        if data.startswith((b"GET ", b"HEAD ")):
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_MODELS)
            self._transport.write(head + _MODELS)
            return
        if data.startswith(b"POST "):
            self.truth.write(f"{time.time_ns()}\n")
        super().data_received(data.replace(_LONG_NAME, _SAME_LENGTH))


@contextlib.contextmanager
def truth_server(truth: Path, *options: str) -> Generator[str, None, None]:
    """The server in a process of its own; gives its address. `options` are those of its command line."""
    command = [sys.executable, __file__, str(truth), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def first_request_ns(truth: Path, replies: int) -> int:
    """When the first of the last `replies` requests came: what a client sent to try the server is before them."""
    stamps: Sequence[int] = sorted(int(line) for line in truth.read_text().splitlines())
    return stamps[-replies]


async def _serve(asked: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Noting(asked.ttft_ms / 1e3, asked.itl_ms / 1e3, burst=asked.burst), "127.0.0.1", 0, backlog=1024
    )
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.buffer.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--ttft-ms", type=float, default=60.0)
    parser.add_argument("--itl-ms", type=float, default=5.0)
    asked = parser.parse_args()
    with asked.truth.open("w", buffering=1) as Noting.truth:
        asyncio.run(_serve(asked))


if __name__ == "__main__":
    main()
