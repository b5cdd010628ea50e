"""Sending a request and collecting the answer at once, under a limit of time and of bytes, whatever the other end does."""

from __future__ import annotations

import os
import selectors
import time
from typing import Literal

_BLOCK = 1 << 16


def exchange(
    reading: int, writing: int, request: bytes, *, until: float, most_bytes: int
) -> tuple[bytes, Literal["time", "output"] | None]:
    """All that came from `reading` until its end, and what it was cut for. `reading` and `writing` may be one socket.

    `until` is a reading of `time.monotonic`. An end that closes early is no error here: what it said is judged by the caller.
    """
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    data, sent = bytearray(), 0
    with selectors.DefaultSelector() as selector:
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        selector.register(reading, both if reading == writing else selectors.EVENT_READ)
        if reading != writing:
            selector.register(writing, selectors.EVENT_WRITE)
        while (left := until - time.monotonic()) > 0:
            for key, events in selector.select(left):
                if events & selectors.EVENT_WRITE:
                    sent = _send(key.fd, request, sent)
                    if sent >= len(request):
                        _stop_writing(selector, reading, writing)
                if events & selectors.EVENT_READ:
                    block = _receive(key.fd)
                    if block == b"":
                        return bytes(data), None
                    data += block or b""
            if len(data) > most_bytes:
                return bytes(data[:most_bytes]), "output"
    return bytes(data), "time"


def _send(writing: int, request: bytes, sent: int) -> int:
    try:
        return sent + os.write(writing, request[sent : sent + _BLOCK])
    except BlockingIOError:
        return sent
    except OSError:  # the other end is gone: reading tells what it said before
        return len(request)


def _receive(reading: int) -> bytes | None:
    """A block, b"" at the end, None where nothing is there after all."""
    try:
        return os.read(reading, _BLOCK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _stop_writing(selector: selectors.BaseSelector, reading: int, writing: int) -> None:
    if reading == writing:
        selector.modify(reading, selectors.EVENT_READ)
    else:
        selector.unregister(writing)
