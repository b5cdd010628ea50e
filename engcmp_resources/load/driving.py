"""The loops that send a cell's requests, and what the client itself cost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engcmp_resources.load.streams import Address, Bodies, Connection, Deadlines, Exchange, Opener, end_of

Arrival = Literal["poisson", "constant"]
_NS = 1_000_000_000
_TICK_S = 0.005
_TICKS_A_CHECK = 10
_OPEN_AHEAD_S = 0.2  # a connection of an open loop is opened so long before its request is due
_TOO_MANY_REQUESTS = 429
_LONGEST_WAIT_S = 60.0
# A client is the limit of what it measures above these: it was late, or had no time left.
_LAG_P99_MS, _SCHEDULING_P99_MS, _CPU_SHARE, _RATE_SHARE = 10.0, 20.0, 0.9, 0.95


@dataclass(frozen=True, slots=True)
class Wire:
    """A request as it is sent: all its bytes, made before the cell."""

    request_id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Pace:
    """When requests go out. `rate_per_s` None: closed loop, `concurrency` at a time; else an open loop of that many a second.

    In an open loop `concurrency` does not bound anything; `seed` draws the gaps of a Poisson process.
    """

    concurrency: int
    rate_per_s: float | None = None
    arrival: Arrival = "poisson"
    seed: int = 0

    def due_s(self, count: int) -> list[float]:
        """Seconds from the start at which each of `count` requests is due, for an open loop; the first is due at once."""
        rate = self.rate_per_s or 1.0
        if self.arrival == "constant":
            return [index / rate for index in range(count)]
        draws = random.Random(self.seed)  # noqa: S311 - a seeded process, no secret
        due, at = [], 0.0
        for _ in range(count):
            due.append(at)
            at += draws.expovariate(rate)
        return due


@dataclass(frozen=True, slots=True)
class Driven:
    """A cell that was driven: its exchanges in the order of the requests, and what the client measured of itself."""

    exchanges: list[Exchange]
    client: dict[str, Any]


@dataclass(slots=True)
class _Meter:
    """How late the event loop is, each few milliseconds; it also ends what has passed a deadline."""

    opener: Opener
    check_every: int
    lags_ns: array[int] = field(default_factory=lambda: array("q"))
    _due: float = 0.0
    _handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _TICK_S
        self._handle = loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.lags_ns.append(int(max(0.0, now - self._due) * _NS))
        if len(self.lags_ns) % self.check_every == 0:
            self.opener.end_late(time.monotonic_ns())
        self._due = max(self._due + _TICK_S, now)
        self._handle = loop.call_at(self._due, self._tick)


class _Driver:
    """One cell on one event loop."""

    def __init__(
        self,
        address: Address,
        deadlines: Deadlines,
        retries_429: int,
        on_done: Callable[[int], None] | None,
        folder: Path | None,
    ) -> None:
        self._opener = Opener(address, deadlines)
        self._retries, self._on_done, self._done = retries_429, on_done, 0
        self._idle: list[Connection] = []
        self._bodies = Bodies(folder)
        check_every = max(1, min(_TICKS_A_CHECK, round(deadlines.shortest_s / 10 / _TICK_S)))
        self._meter = _Meter(self._opener, check_every)

    async def drive(self, wires: Sequence[Wire], pace: Pace) -> Driven:
        exchanges = [Exchange(wire.request_id, 0) for wire in wires]
        jobs = list(zip(wires, exchanges, strict=True))
        closed = pace.rate_per_s is None
        ready = min(pace.concurrency, len(jobs)) if closed else 0
        await asyncio.gather(*(self._keep_one_open() for _ in range(ready)))
        cpu_ns, began_ns = time.process_time_ns(), time.monotonic_ns()
        self._meter.start()
        try:
            if closed:
                waiting = iter(jobs)
                await asyncio.gather(*(self._work(waiting) for _ in range(ready)))
            else:
                due = [began_ns + round(one * _NS) for one in pace.due_s(len(jobs))]
                await asyncio.gather(*(self._at(job, one) for job, one in zip(jobs, due, strict=True)))
        finally:
            self._meter.stop()
            wall_ns, cpu_ns = time.monotonic_ns() - began_ns, time.process_time_ns() - cpu_ns
            self._opener.close()
        return Driven(exchanges, _client_facts(exchanges, pace, self._meter.lags_ns, wall_ns=wall_ns, cpu_ns=cpu_ns))

    async def _work(self, waiting: Iterator[tuple[Wire, Exchange]]) -> None:
        for wire, exchange in waiting:
            exchange.scheduled_at_ns = time.monotonic_ns()
            await self._request(wire, exchange)

    async def _at(self, job: tuple[Wire, Exchange], due_ns: int) -> None:
        wire, exchange = job
        exchange.scheduled_at_ns = due_ns
        await asyncio.sleep((due_ns - time.monotonic_ns()) / _NS - _OPEN_AHEAD_S)
        if not self._idle:
            await self._keep_one_open()
        await asyncio.sleep((due_ns - time.monotonic_ns()) / _NS)
        await self._request(wire, exchange)

    async def _keep_one_open(self) -> None:
        with contextlib.suppress(OSError):  # whoever needs it then tries again, and tells
            self._idle.append(await self._opener.open())

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return await self._opener.open()

    async def _request(self, wire: Wire, exchange: Exchange) -> None:
        await self._exchange(wire, exchange)
        while (
            exchange.http_status == _TOO_MANY_REQUESTS
            and exchange.end == "complete"
            and exchange.retries < self._retries
        ):
            await asyncio.sleep(_wait_s(exchange))
            _begin_again(exchange)
            exchange.retries += 1
            await self._exchange(wire, exchange)
        self._bodies.keep(exchange)
        self._done += 1
        if self._on_done is not None:
            self._on_done(self._done)

    async def _exchange(self, wire: Wire, exchange: Exchange) -> None:
        try:
            connection = await self._connection()
            reused = connection.used
            await connection.send(exchange, wire.content)
            if reused and exchange.end == "no_answer":
                # The server dropped an idle connection just then: the request went nowhere. Never after a byte of an answer.
                _begin_again(exchange)
                exchange.resent = True
                connection = await self._opener.open()
                await connection.send(exchange, wire.content)
        except OSError as error:
            exchange.end, exchange.detail, exchange.done_at_ns = end_of(error), str(error), time.monotonic_ns()
            return
        if connection.usable:
            self._idle.append(connection)


def drive(
    address: Address, wires: Sequence[Wire], pace: Pace, *, deadlines: Deadlines, retries_429: int = 0,
    on_done: Callable[[int], None] | None = None, folder: Path | None = None,
) -> Driven:  # fmt: skip
    """Send `wires` at `pace` and keep what comes back; `on_done` is told how many exchanges have ended.

    A request that the server refuses with 429 is sent again at most `retries_429` times, after the time that the server states (60 s at
    most). Nothing else is sent twice but what an idle connection, dropped by the server before a byte of an answer, swallowed.
    Bodies that are more than a few MB together go into a nameless file in `folder`. KeyboardInterrupt ends all connections.
    """
    gc.collect()
    gc.disable()  # a collection takes milliseconds, and would be read as the server's
    try:
        return asyncio.run(_Driver(address, deadlines, retries_429, on_done, folder).drive(wires, pace))
    finally:
        gc.enable()


def _begin_again(exchange: Exchange) -> None:
    exchange.http_status, exchange.end = None, "open"
    exchange.detail = exchange.content_type = exchange.retry_after = ""
    del exchange.body[:], exchange.read_ends[:], exchange.read_stamps[:]


def _wait_s(exchange: Exchange) -> float:
    """Seconds that the server asks to wait; a date, or nothing, is read as one second."""
    text = exchange.retry_after.strip()
    return min(float(text), _LONGEST_WAIT_S) if text.isdigit() else 1.0


def _client_facts(
    exchanges: Sequence[Exchange], pace: Pace, lags_ns: array[int], *, wall_ns: int, cpu_ns: int
) -> dict[str, Any]:
    """What the client measured of itself over a cell, and whether it was the limit. Shares are of one core."""
    sent = [one for one in exchanges if one.t0_ns]
    delays = np.array([one.t0_ns - one.scheduled_at_ns for one in sent if not one.retries], dtype=np.float64) / 1e6
    lags = np.frombuffer(lags_ns, dtype=np.int64) / 1e6 if lags_ns else np.zeros(1)
    lag_p50, lag_p99 = np.quantile(lags, (0.5, 0.99)).tolist()
    delay_p50, delay_p99 = np.quantile(delays, (0.5, 0.99)).tolist() if delays.size else (None, None)
    facts: dict[str, Any] = {
        "wall_s": wall_ns / _NS,
        "cpu_s": cpu_ns / _NS,
        "cpu_share": cpu_ns / max(1, wall_ns),
        "loop_lag_p50_ms": lag_p50,
        "loop_lag_p99_ms": lag_p99,
        "loop_lag_max_ms": float(lags.max()),
        "scheduling_delay_p50_ms": delay_p50,
        "scheduling_delay_p99_ms": delay_p99,
    }
    reasons = [
        text
        for found, limit, text in (
            (facts["loop_lag_p99_ms"], _LAG_P99_MS, "the event loop was late"),
            (facts["scheduling_delay_p99_ms"], _SCHEDULING_P99_MS, "requests went out late"),
            (facts["cpu_share"], _CPU_SHARE, "one core was busy"),
        )
        if found is not None and found > limit
    ]
    if pace.rate_per_s is not None and len(sent) > 1:
        span_s = (max(one.t0_ns for one in sent) - min(one.t0_ns for one in sent)) / _NS
        due = pace.due_s(len(exchanges))
        facts["asked_rate_per_s"], facts["achieved_share"] = pace.rate_per_s, (due[-1] / span_s if span_s else 1.0)
        if facts["achieved_share"] < _RATE_SHARE:
            reasons.append("the rate that was asked for was not reached")
    return facts | {"limit": bool(reasons), "reasons": reasons}
