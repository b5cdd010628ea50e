"""Whether this client, on this machine, now, keeps up: its stamps of a null server's streams against that server's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engcmp_resources.load.driving import Pace, Wire, drive
from engcmp_resources.load.null_server import STAMPS, null_server
from engcmp_resources.load.streams import Address, Deadlines, Exchange

_TOKENS, _TTFT_MS, _ITL_MS, _ROUNDS = 32, 50.0, 10.0, 3
# A client that is later than this would be read as the engine: a few per cent of the quickest first token, more with many streams.
_ALLOWED_MS, _ALLOWED_MS_PER_STREAM = 5.0, 0.125
_DEADLINES = Deadlines(connect_s=5, first_byte_s=20, between_s=20, whole_s=60)


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the client added to a null server's times. Errors in ms: its stamp less the server's, of first and last tokens.

    `reasons` says why it would not keep up; none: `passed`. A study refuses to measure without; `engcmp throughput` flags its cells.
    """

    concurrency: int
    requests: int
    first_token_p50_ms: float | None
    first_token_p99_ms: float | None
    last_token_p50_ms: float | None
    last_token_p99_ms: float | None
    allowed_p99_ms: float
    client: dict[str, Any]
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.reasons

    def as_json(self) -> dict[str, Any]:
        """The calibration as cells.json holds it."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {"reasons": list(self.reasons), "passed": self.passed}


def calibrate(concurrency: int) -> Calibration:
    """Measure a null server, started for this in a process of its own, with as many streams as the widest cell will have."""
    requests = _ROUNDS * concurrency
    with null_server(ttft_ms=_TTFT_MS, itl_ms=_ITL_MS) as url:
        driven = drive(
            Address.parse(url), wires(url, requests, _TOKENS), Pace(concurrency=concurrency), deadlines=_DEADLINES
        )
    first, last = stamp_errors_ms(driven.exchanges)
    allowed = _ALLOWED_MS + _ALLOWED_MS_PER_STREAM * concurrency
    reasons = list(driven.client["reasons"])
    if len(first) < requests:
        reasons.append(f"{requests - len(first)} of {requests} streams of the null server were not received whole")
    quantiles = {}
    for name, errors in (("first", first), ("last", last)):
        for percent in (50, 99):
            quantiles[f"{name}_p{percent}"] = float(np.quantile(errors, percent / 100)) if errors else None
        worst = quantiles[f"{name}_p99"]
        if worst is not None and worst > allowed:
            reasons.append(f"the {name} token was read {worst:.1f} ms late (p99), over {allowed:.1f} ms")
    return Calibration(
        concurrency=concurrency,
        requests=requests,
        first_token_p50_ms=quantiles["first_p50"],
        first_token_p99_ms=quantiles["first_p99"],
        last_token_p50_ms=quantiles["last_p50"],
        last_token_p99_ms=quantiles["last_p99"],
        allowed_p99_ms=allowed,
        client=driven.client,
        reasons=tuple(reasons),
    )


def wires(url: str, requests: int, tokens: int) -> list[Wire]:
    """Requests to a null server for `tokens` tokens each."""
    body = {"model": "null", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "x"}]}
    content = Address.parse(url).content("/v1/chat/completions", json.dumps(body).encode(), None)
    return [Wire(f"null-{number}", content) for number in range(requests)]


def stamp_errors_ms(exchanges: Sequence[Exchange]) -> tuple[list[float], list[float]]:
    """The client's stamp less the server's, in ms, of each whole exchange's first and last token event."""
    first: list[float] = []
    last: list[float] = []
    for one in exchanges:
        if one.end != "complete":
            continue
        body = one.content()
        found = list(STAMPS.finditer(body))
        ends = np.frombuffer(one.read_ends, dtype=np.int64)
        for stamp, errors in ((found[0], first), (found[-1], last)):
            closing = body.index(b"\n\n", stamp.end()) + 2
            read = one.read_stamps[int(np.searchsorted(ends, closing))]
            errors.append((read - int(stamp[1])) / 1e6)
    return first, last
