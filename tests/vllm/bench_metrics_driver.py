"""Runs in the vLLM environment: streams through `vllm bench serve`'s own reader and its own metrics, its clock set to our stamps.

Argument: a file with `[{"t0_ns", "events": [[t_ns, text of the event]]}]`. Prints the metrics as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.benchmarks import serve
from vllm.benchmarks.lib import endpoint_request_func as client


class Clock:
    """Stands in for the module's `time`: reads what the stream says."""

    now_ns = 0

    def perf_counter(self) -> float:
        return self.now_ns / 1e9


class Recorded:
    """Stands in for aiohttp's session and response: one recorded stream, each event at its stamp."""

    status = 200
    reason = None

    def __init__(self, events: list[list[Any]], clock: Clock) -> None:
        self.events, self.clock, self.content = events, clock, self

    def post(self, **_: Any) -> Recorded:
        return self

    async def __aenter__(self) -> Recorded:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def iter_any(self) -> AsyncIterator[bytes]:
        for t_ns, text in self.events:
            self.clock.now_ns = t_ns
            yield f"{text}\n\n".encode()


async def read(stream: dict[str, Any], clock: Clock) -> Any:
    clock.now_ns = stream["t0_ns"]
    asked = client.RequestFuncInput(
        prompt="p", api_url="http://recorded/v1/chat/completions", prompt_len=1, output_len=1, model="m"
    )
    return await client.async_request_openai_chat_completions(asked, Recorded(stream["events"], clock))


def main() -> None:
    streams = json.loads(Path(sys.argv[1]).read_text())
    clock = Clock()
    client.time = clock
    outputs = [asyncio.run(read(stream, clock)) for stream in streams]
    failed = [output.error for output in outputs if not output.success]
    asked = [SimpleNamespace(prompt_len=1) for _ in outputs]
    metrics, _ = serve.calculate_metrics(asked, outputs, 1.0, None, [50.0], {})
    found = {
        name: {
            "mean": float(getattr(metrics, f"mean_{name}_ms")),
            "median": float(getattr(metrics, f"median_{name}_ms")),
        }
        for name in ("ttft", "tpot", "itl", "e2el")
    }
    print(json.dumps({"failed": failed, "metrics": found}))


if __name__ == "__main__":
    main()
