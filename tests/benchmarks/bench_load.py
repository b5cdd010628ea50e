"""`engcmp throughput` against a null server: rate of token events end to end, CPU, memory, and how late its stamps are.

The server is a process of its own that writes prepared bytes, with the time just before each write. Rate: 200 replies of 2,000 one-token
events, 16 at a time, all of a reply at once; from the first request to the finished cells.json, in the command's own process. CPU is
what 200 replies take more than 16, so that the start does not count. Errors: replies of 60 tokens, the client's stamps less the server's;
of the first token, TTFT less the time from the read request to the written event. Medians of the runs. Wanted: 600,000 events/s or more,
2 CPU seconds a million events or less, below 150 MB, the same from 10^4 to 10^6 events; errors (p99) of 2 ms at 16 streams, 8 at 128.
Other clients are measured by the same functions: a `Runner` is given a workload and says what it took, a `Timer` how late it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engcmp_resources.load.calibration import wires
from engcmp_resources.load.driving import Pace, drive
from engcmp_resources.load.null_server import STAMPS, null_server
from engcmp_resources.load.streams import Address, Deadlines, Exchange

_RUN = """
import sys, time
from engcmp_assets.commands import throughput
measure = throughput.measure_plan
def measured(*given, **named):
    document = measure(*given, **named)
    print(time.monotonic_ns(), file=sys.stderr)  # cells.json is there; the table is printed after
    return document
throughput.measure_plan = measured
throughput.throughput.main(sys.argv[1:], standalone_mode=False)
# Not what wait4 tells of memory: that begins with what the benchmark held when it started this process.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""
_MB = 1 << 20


@dataclass(frozen=True)
class Workload:
    """Requests to a server at `url`: `replies` of `tokens` events each, `streams` at a time."""

    url: str
    replies: int
    tokens: int
    streams: int

    @property
    def events(self) -> int:
        return self.replies * self.tokens


@dataclass(frozen=True)
class Took:
    """What a workload took a client: seconds from its first request to its finished results, CPU seconds of its whole process tree,
    the most memory of it, and the token events that it counted."""

    seconds: float
    cpu_s: float
    peak_mb: float
    counted: int


Runner = Callable[[Workload], Took]
Error = tuple[float, float]  # of TTFT and of the last token's stamp, ms
Timer = Callable[[Workload], list[Error]]


def engcmp_throughput(load: Workload) -> Took:
    """The command in a process of its own, without calibration and warm-up."""
    with tempfile.TemporaryDirectory(prefix="bench-load-") as folder:
        plan, out = Path(folder) / "plan.json", Path(folder) / "out"
        plan.write_text(json.dumps(_plan(load)), encoding="utf-8")
        command = [sys.executable, "-c", _RUN, "--base-url", load.url, "--plan", str(plan), "--out", str(out)]
        command += ["--no-calibrate", "--warmup", "0"]
        with (Path(folder) / "said").open("w+") as said:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            lines = said.read().split()
        if process.returncode != 0:
            raise SystemExit(f"engcmp throughput ended with {process.returncode}: {' '.join(lines[-60:])}")
        rows = _read(out / "requests.parquet", ("t0_ns", "n_tokens"))
        ended_ns, peak_kb = map(int, lines[-2:])
        seconds = (ended_ns - min(rows["t0_ns"])) / 1e9
        return Took(seconds, used.ru_utime + used.ru_stime, peak_kb * 1024 / _MB, sum(rows["n_tokens"]))


def _plan(load: Workload) -> dict[str, object]:
    message = [{"role": "user", "content": "x"}]
    requests = [
        {"request_id": f"r{n}", "messages": message, "max_tokens": load.tokens, "seed": n} for n in range(load.replies)
    ]
    return {
        "model": "null",
        "cells": [{"cell_id": "burst", "kind": "code", "concurrency": load.streams, "requests": requests}],
    }


def _read(path: Path, names: Sequence[str]) -> dict[str, list[int]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=list(names))
    return {name: table.column(name).to_pylist() for name in names}


def rates(runner: Runner, replies: int, tokens: int, streams: int) -> dict[str, float]:
    """Token events a second, CPU seconds a million events and peak MB of a client, on a burst server."""
    few = max(streams, replies // 12)
    with null_server(burst=True) as url:
        runner(Workload(url, few, tokens, streams))  # its files are read once
        small = runner(Workload(url, few, tokens, streams))
        whole = runner(Workload(url, replies, tokens, streams))
    if whole.counted != replies * tokens:
        raise SystemExit(f"{whole.counted} tokens counted of {replies * tokens}")
    cpu_s = (whole.cpu_s - small.cpu_s) / ((replies - few) * tokens) * 1e6
    return {"events_per_s": whole.counted / whole.seconds, "cpu_s_per_million": cpu_s, "peak_mb": whole.peak_mb}


def engcmp_streams(load: Workload) -> list[Error]:
    """engcmp's own streams: TTFT as read here less the server's own, and the last token's stamp here less the server's."""
    driven = drive(
        Address.parse(load.url), wires(load.url, load.replies, load.tokens), Pace(load.streams), deadlines=Deadlines()
    )
    return [_error_ms(one) for one in driven.exchanges]


def errors(timer: Timer, replies: int, tokens: int, streams: int) -> dict[str, float]:
    """How late a client's times are, ms: of TTFT and of the last token, p50 and p99 of the magnitudes."""
    with null_server(ttft_ms=60.0, itl_ms=5.0) as url:
        first, last = zip(*timer(Workload(url, replies, tokens, streams)), strict=True)
    found = {}
    for name, values in (("ttft", np.abs(first)), ("last", np.abs(last))):
        found |= {f"{name}_p50_ms": float(np.quantile(values, 0.5)), f"{name}_p99_ms": float(np.quantile(values, 0.99))}
    return found


def _error_ms(one: Exchange) -> Error:
    stamps = list(STAMPS.finditer(one.content()))
    first, last = (_read_at(one, stamp.end()) for stamp in (stamps[0], stamps[-1]))
    own = int(stamps[0][1]) - int(stamps[0][2])
    return (first - one.t0_ns - own) / 1e6, (last - int(stamps[-1][1])) / 1e6


def _read_at(one: Exchange, inside: int) -> int:
    closing = one.content().index(b"\n\n", inside) + 2
    return one.read_stamps[int(np.searchsorted(np.frombuffer(one.read_ends, dtype=np.int64), closing))]


def _flat(runs: int) -> None:
    """Time an event at three sizes; what it takes beyond the smaller size; and what a cell takes whatever its size.

    The last is no start-up: a cell's figures, its durable files and a look at the engine's counters take it once. It is measured by
    itself, as replies of one event: what a cell of 10^4 takes less that shows whether its events cost more than those of 10^6.
    """
    found: list[tuple[int, float, float]] = []
    for replies, tokens in ((5, 1), (5, 2000), (50, 2000), (500, 2000)):
        with null_server(burst=True) as url:
            took = [engcmp_throughput(Workload(url, replies, tokens, 16)) for _ in range(runs)]
        seconds = [one.seconds for one in took]
        found.append((replies * tokens, statistics.median(seconds), min(seconds)))
        if tokens > 1:
            middle, least = (value / (replies * tokens) * 1e6 for value in found[-1][1:])
            print(
                f"{replies * tokens:,} events: {middle:.2f} us an event (least {least:.2f}), {max(one.peak_mb for one in took):.0f} MB"
            )
    (_, itself, least_itself), *sizes = found
    print(f"a cell of 5 events: {itself * 1e3:.1f} ms (least {least_itself * 1e3:.1f})")
    for events, middle, least in sizes:
        own, own_least = ((one - fixed) / events * 1e6 for one, fixed in ((middle, itself), (least, least_itself)))
        print(f"  {events:,} without that: {own:.2f} us an event (least {own_least:.2f})")
    slopes = [(more[1] - less[1]) / (more[0] - less[0]) for less, more in itertools.pairwise(sizes)]
    ratio = slopes[1] / slopes[0]
    print(
        f"a further event: {slopes[0] * 1e6:.2f} us from 10^4 to 10^5, {slopes[1] * 1e6:.2f} us to 10^6: x{ratio:.2f} (flat: near 1)"
    )


def _median(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _busy() -> str:
    """How much of the machine others take, over half a second."""
    before = _ticks()
    time.sleep(0.5)
    busy, total = (new - old for new, old in zip(_ticks(), before, strict=True))
    return f"{busy / max(1, total):.0%} of the machine busy with other things, load {os.getloadavg()[0]:.2f}"


def _ticks() -> tuple[int, int]:
    numbers = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: bench_load.py --runs 3",
    )
    parser.add_argument("--runs", type=int, default=3, help="runs whose median is printed")
    parser.add_argument("--only", choices=("rate", "flat", "errors"), help="one of the three parts")
    asked = parser.parse_args()
    print(_busy())
    if asked.only in (None, "rate"):
        runs = [rates(engcmp_throughput, 200, 2000, 16) for _ in range(asked.runs)]
        for run in runs:
            print(
                f"  {run['events_per_s']:,.0f} events/s, {run['cpu_s_per_million']:.2f} CPU s a million, {run['peak_mb']:.0f} MB"
            )
        found = _median(runs)
        print(
            f"400,000 events: {found['events_per_s']:,.0f} events/s (wanted 600,000), {found['cpu_s_per_million']:.2f} CPU s a million "
            f"(wanted 2), {found['peak_mb']:.0f} MB (wanted 150)"
        )
    if asked.only in (None, "flat"):
        _flat(asked.runs)
    if asked.only in (None, "errors"):
        for streams, replies in ((16, 208), (128, 640)):
            found = _median([errors(engcmp_streams, replies, 60, streams) for _ in range(asked.runs)])
            print(f"{streams} streams: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()))
    print(_busy())


if __name__ == "__main__":
    main()
