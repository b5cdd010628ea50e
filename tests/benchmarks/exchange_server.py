"""A server whose replies hold what clients' definitions differ in; each reply follows from its number.

A role event long before the first token, reasoning, several tokens an event, empty events, a finish event and the usage after the last
token, `[DONE]` later still. No comments: vLLM's client loses what follows one.

    python exchange_server.py PORT
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_MODELS = b'{"object":"list","data":[{"id":"null","object":"model","owned_by":"null","max_model_len":100000}]}'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
_PROMPT, _WORDS = 11, 97


def reply(number: int, tokens: int) -> Iterator[tuple[float, str]]:
    """The events of a reply, each with the ms to wait before it."""
    chance = random.Random(number)
    yield 5 + chance.random() * 5, _event(number, {"role": "assistant", "content": ""})
    sent, wait = 0, 40 + chance.random() * 20
    while sent < tokens:
        n = min(tokens - sent, chance.choice((1, 1, 1, 2, 3)))
        name = "reasoning_content" if sent < tokens // 3 else "content"
        words = "".join(f" w{word % _WORDS}" for word in range(sent, sent + n))
        sent += n
        yield wait, _event(number, {name: words}, usage=sent)
        wait = 6 + chance.random() * 12
        if chance.random() < 0.1:
            yield 3, _event(number, {"content": ""})
    yield 8, _event(number, {}, finish="length")
    yield 2, _event(number, None, usage=tokens)
    yield 4, "[DONE]"


def _event(number: int, delta: dict[str, str] | None, *, usage: int | None = None, finish: str | None = None) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    event: dict[str, Any] = {"id": f"r{number}", "object": "chat.completion.chunk", "created": 1, "model": "null"}
    event["choices"] = choices
    if usage is not None:
        event["usage"] = {"prompt_tokens": _PROMPT, "completion_tokens": usage, "total_tokens": _PROMPT + usage}
    return json.dumps(event, separators=(",", ":"))


class Server:
    """Answers one request after the other on each connection; replies are numbered as their requests come."""

    def __init__(self) -> None:
        self.replies = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if head.startswith(b"POST"):
                    await self._reply(writer, json.loads(body))
                else:
                    lead = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                    writer.write(lead % len(_MODELS) + _MODELS)
                    await writer.drain()

    async def _reply(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        number, self.replies = self.replies, self.replies + 1
        writer.write(_HEAD)
        for wait_ms, text in reply(number, asked.get("max_completion_tokens") or asked["max_tokens"]):
            await asyncio.sleep(wait_ms / 1e3)
            data = f"data: {text}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def main() -> None:
    server = await asyncio.start_server(Server().serve, "127.0.0.1", int(sys.argv[1]))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
