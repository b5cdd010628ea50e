"""Long replies as streams: several at a time, each looked at while it comes, and handed on as soon as it has ended.

Unlike the client that measures speed (`load.driving`), which keeps all that came until a cell is over, this one may end a stream early
and tells of each reply at once, so that a killed run loses only the replies that were running.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from engcmp_resources.load.streams import Address, Deadlines, Exchange, Opener, end_of

Look = Callable[[str, bytes], bool]
Ended = Callable[[Exchange, bool], None]
_TICK_S = 0.05
_TOO_MANY_REQUESTS = 429
_WAIT_429_S = (1.0, 5.0, 30.0)


@dataclass(frozen=True, slots=True)
class ReplyWire:
    """A request as it is sent: all its bytes."""

    reply_id: str
    content: bytes


def stream_replies(
    address: Address,
    wires: Sequence[ReplyWire],
    *,
    concurrency: int,
    deadlines: Deadlines,
    look: Look | None,
    look_bytes: int,
    ended: Ended,
) -> None:
    """Send `wires`, `concurrency` at a time, each on a connection of its own.

    `look` is given a reply's id and the body so far, whenever that has grown by `look_bytes`, and says whether to end it there; it runs in
    a thread. `ended`, in a thread too, is given each exchange once it is over, and whether it was ended by `look`; what it raises ends the
    others, which are then told to nobody. A request that is refused with 429 is sent again after 1, 5 and 30 s.
    """
    asyncio.run(_Streams(address, deadlines, look, look_bytes, ended).run(wires, concurrency))


class _Streams:
    def __init__(
        self, address: Address, deadlines: Deadlines, look: Look | None, look_bytes: int, ended: Ended
    ) -> None:
        self._opener, self._deadlines = Opener(address, deadlines), deadlines
        self._look, self._look_bytes, self._ended = look, look_bytes, ended

    async def run(self, wires: Sequence[ReplyWire], concurrency: int) -> None:
        waiting = iter(wires)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(wires))):
                    group.create_task(self._work(waiting))
        except* Exception as failed:  # noqa: BLE001 - the first one is told as it is
            raise _first(failed) from None
        finally:
            self._opener.close()

    async def _work(self, waiting: Iterator[ReplyWire]) -> None:
        for wire in waiting:
            exchange, stopped = await self._one(wire, 0)
            for number, wait_s in enumerate(_WAIT_429_S, start=1):
                if exchange.http_status != _TOO_MANY_REQUESTS:
                    break
                await asyncio.sleep(wait_s)
                exchange, stopped = await self._one(wire, number)
            await asyncio.to_thread(self._ended, exchange, stopped)

    async def _one(self, wire: ReplyWire, retries: int) -> tuple[Exchange, bool]:
        exchange = Exchange(wire.reply_id, time.monotonic_ns(), retries=retries)
        try:
            connection = await self._opener.open()
        except OSError as error:
            exchange.end, exchange.detail, exchange.done_at_ns = end_of(error), str(error), time.monotonic_ns()
            return exchange, False
        over = connection.send(exchange, wire.content)
        stopped, seen = False, 0
        try:
            while not over.done():
                await asyncio.wait({over}, timeout=_TICK_S)
                late = None if over.done() else self._deadlines.passed(exchange, time.monotonic_ns())
                if late:
                    connection.give_up(late, time.monotonic_ns())
                elif not over.done() and self._look and len(exchange.body) - seen >= self._look_bytes:
                    seen = len(exchange.body)
                    stop = await asyncio.to_thread(self._look, wire.reply_id, bytes(exchange.body))
                    if stop and not over.done():
                        stopped = True
                        connection.give_up("cut", time.monotonic_ns())
        finally:
            connection.close()
        return exchange, stopped


def _first(group: BaseException) -> BaseException:
    """The first error of a group, however deep."""
    one = group
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one
