"""Other load clients beside `engcmp throughput`, in turns on the same null server: rate, CPU, memory, and how late their TTFT is.

Each client has an environment of its own in the user's cache, made at the first run from a pinned version (guidellm's alone takes 6 GB);
one that cannot be installed is left out, and it is said why. Rate: 200 replies of 2,000 one-token events, 16 at a time, all of a reply
at once, from the first request at the server to the client's finished results. CPU is what 200 replies take more than 16, of the whole
process tree; memory is the most that the tree holds, sampled (shared pages count more than once). TTFT error: what each client states
less the server's 60 ms, so the server's own lateness is in all of them alike; the server's role event comes at once. Agreement: the mean
of each metric that a client states beside the same metric of our events on the same schedule.
"""

from __future__ import annotations

import argparse
import contextlib
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
from typing import Any

import numpy as np
import polars as pl
from bench_load import _RUN, Workload, _busy, _plan
from peers import PEERS, Asked, Peer, Reported, furnish, offline
from truth_server import first_request_ns, truth_server

from engcmp_assets.kernel.throughput.peer_metrics import peer_metrics

_MB = 1 << 20
_SAMPLE_S = 0.1
_LIMIT_S = 300
_TTFT_MS, _ITL_MS = 60.0, 5.0
_RATE, _FEW, _ERRORS = (200, 2000), (16, 2000), (208, 60)


@dataclass(frozen=True)
class Own(Peer):
    """Our command, under the Python that runs this."""

    def python(self) -> Path:
        return Path(sys.executable)


def _own(asked: Asked) -> list[str]:
    plan, out = asked.folder / "plan.json", asked.folder / "out"
    plan.write_text(
        json.dumps(_plan(Workload(asked.url, asked.replies, asked.tokens, asked.streams))), encoding="utf-8"
    )
    command = ["-c", _RUN, "--base-url", asked.url, "--plan", str(plan), "--out", str(out)]
    return [*command, "--no-calibrate", "--warmup", "0"]


def _own_reported(asked: Asked) -> Reported:
    rows = pl.read_parquet(asked.folder / "out" / "requests.parquet")
    return Reported(int(rows["n_tokens"].sum()), (rows["ttft_ns"] / 1e6).to_list(), {})


OURS = Own("engcmp throughput", "out/cells.json", _own, _own_reported)


@dataclass(frozen=True)
class Ran:
    """A run of a client: seconds from the first request to its results, CPU seconds and peak MB of its process tree, and its report."""

    seconds: float
    cpu_s: float
    peak_mb: float
    said: Reported
    folder: Path


def run(peer: Peer, size: tuple[int, int], streams: int, options: Sequence[str], home: Path) -> Ran:
    """Run a client on a server of its own. Raises RuntimeError with its last words where it fails or counts other tokens."""
    replies, tokens = size
    folder = Path(tempfile.mkdtemp(prefix=f"{peer.spec.split('=')[0].split()[0]}-", dir=home))
    truth = folder / "truth.txt"
    with truth_server(truth, *options) as url:
        asked = Asked(url, replies, tokens, streams, folder, next(home.glob("hf/hub/*/snapshots/*")))
        environment = dict(os.environ) if peer is OURS else offline(home)
        cpu_s, peak_mb = _watched([str(peer.python()), *peer.command(asked)], folder, environment)
    said = peer.read(asked)
    if said.tokens not in (None, replies * tokens) or len(said.ttft_ms) < replies:
        raise RuntimeError(
            f"it counts {said.tokens} tokens in {len(said.ttft_ms)} replies, sent were {replies * tokens} in {replies}"
        )
    ended_ns = (folder / peer.result).stat().st_mtime_ns
    return Ran((ended_ns - first_request_ns(truth, replies)) / 1e9, cpu_s, peak_mb, said, folder)


def _watched(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """CPU seconds and peak MB of a command and all that it starts."""
    with (folder / "words.txt").open("w+") as words:
        process = subprocess.Popen(command, stdout=words, stderr=words, cwd=folder, env=environment)
        peak, until = 0, time.monotonic() + _LIMIT_S
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, _tree_bytes(process.pid))
            if time.monotonic() > until:
                process.kill()
            time.sleep(_SAMPLE_S)
        process.returncode = os.waitstatus_to_exitcode(status)
        words.seek(0)
        said = " ".join(words.read().split())[-400:]
    if process.returncode:
        raise RuntimeError(f"it ended with {process.returncode}: {said}")
    return used.ru_utime + used.ru_stime, peak / _MB


def _tree_bytes(root: int) -> int:
    """Resident bytes of a process and its descendants."""
    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                sizes[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    wanted, found = {root}, True
    while found:
        found = {pid for pid, parent in parents.items() if parent in wanted} - wanted
        wanted |= found
    return sum(sizes.get(pid, 0) for pid in wanted)


Row = dict[str, float]


def measured(peer: Peer, home: Path, *, start_cpu_s: float) -> Row:
    """One turn of a client. `start_cpu_s`: the CPU seconds of its run of few replies."""
    rate = run(peer, _RATE, 16, ["--burst"], home)
    late = run(peer, _ERRORS, 16, ["--ttft-ms", str(_TTFT_MS), "--itl-ms", str(_ITL_MS)], home)
    events = _RATE[0] * _RATE[1]
    errors = np.abs(np.array(late.said.ttft_ms) - _TTFT_MS)
    return {
        "events/s": events / rate.seconds,
        "CPU s/M": (rate.cpu_s - start_cpu_s) / (events - _FEW[0] * _FEW[1]) * 1e6,
        "peak MB": rate.peak_mb,
        "TTFT p50 ms": float(np.quantile(errors, 0.5)),
        "TTFT p99 ms": float(np.quantile(errors, 0.99)),
    }


def usable(say: Callable[[str], None]) -> list[Peer]:
    """The clients that are installed or can be; for each other one, why not."""
    found = []
    for peer in PEERS:
        try:
            peer.python()
        except (subprocess.CalledProcessError, OSError) as error:
            said = str(getattr(error, "stderr", None) or error).split()
            say(f"{peer.name} is left out: it could not be installed: {' '.join(said)[-300:]}")
        else:
            found.append(peer)
    return found


def compare(turns: int, home: Path) -> dict[str, Row]:
    """The medians of all clients over the turns, ours first. One that fails twice in a turn is left out from then on."""
    clients: list[Peer] = [OURS, *usable(print)]
    starts: dict[str, float] = {}
    rows: dict[str, list[Row]] = {}
    for turn, peer in itertools.product(range(turns), list(clients)):
        for tries_left in (1, 0) if peer in clients else ():
            try:
                if peer.name not in starts:
                    starts[peer.name] = run(peer, _FEW, 16, ["--burst"], home).cpu_s
                row = measured(peer, home, start_cpu_s=starts[peer.name])
            except (RuntimeError, OSError, KeyError, ValueError) as error:
                print(
                    f"{peer.name} {'is run once more in' if tries_left else 'is left out from'} turn {turn + 1}: {error!r}"
                )
                if not tries_left:
                    clients.remove(peer)
                continue
            rows.setdefault(peer.name, []).append(row)
            print(f"  turn {turn + 1}, {peer.name}: {_shown(row)}, load {os.getloadavg()[0]:.1f}", flush=True)
            break
    return {
        name: {key: statistics.median(row[key] for row in turns) for key in turns[0]} for name, turns in rows.items()
    }


def _shown(row: Row) -> str:
    return ", ".join(f"{name} {value:,.{0 if value >= 100 else 2}f}" for name, value in row.items())


def agreement(
    peer: Peer, size: tuple[int, int], streams: int, schedule: tuple[float, float], home: Path
) -> dict[str, tuple[float, float]]:
    """Each metric that a client states (its mean), and the same metric of our events on a server of the same schedule (ms)."""
    options = ["--ttft-ms", str(schedule[0]), "--itl-ms", str(schedule[1])]
    theirs, ours = (run(one, size, streams, options, home) for one in (peer, OURS))
    tables = [pl.read_parquet(ours.folder / "out" / f"{name}.parquet") for name in ("events", "requests")]
    found: dict[str, Any] = next(
        (one for name, one in peer_metrics(*tables).items() if _tool(name) == _tool(peer.name)), {}
    )
    found |= {"e2e_ttft": {"mean": statistics.fmean(ours.said.ttft_ms)}}  # llama-benchy's: the first text
    return {name: (mean, found[name]["mean"]) for name, mean in theirs.said.means.items()}


def _tool(name: str) -> str:
    return name.split(maxsplit=1)[0].split("-", maxsplit=1)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: bench_load_peers.py --turns 5",
    )
    parser.add_argument(
        "--turns", type=int, default=5, help="runs of each client, one after the other, whose median is printed"
    )
    parser.add_argument("--only", choices=("rate", "agreement"), help="one of the two parts")
    asked = parser.parse_args()
    print(_busy())
    with tempfile.TemporaryDirectory(prefix="bench-load-peers-") as folder:
        home = Path(folder)
        furnish(home)
        if asked.only in (None, "rate"):
            found = compare(asked.turns, home)
            ours = found[OURS.name]
            for name, row in found.items():
                ratios = ", ".join(f"{key} x{row[key] / ours[key]:.3g}" for key in row)
                print(f"{name}: {_shown(row)}; to ours: {ratios}")
        if asked.only in (None, "agreement"):
            for peer in usable(print):
                for metric, (theirs, own) in agreement(peer, (48, 60), 4, (_TTFT_MS, _ITL_MS), home).items():
                    print(f"{peer.name} {metric}: it says {theirs:.3f}, ours from events {own:.3f}")
    print(_busy())


if __name__ == "__main__":
    main()
