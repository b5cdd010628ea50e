"""Full rows of a prompt from the real vLLM: seconds of the capture plugin beside those of `prompt_logprobs: -1` over HTTP.

The plugin's request asks for the actual token's log-probability alone. Both are timed from the request until all is there: the answer
and the row files of the plugin; every byte of the JSON answer, which is not parsed. Needs the environment that `make test-vllm` makes,
and skips without it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "vllm"))

from serving import MODEL, Server, serving

from engcmp_assets.kernel.study import load_study
from engcmp_assets.sources.step import fetched_weights
from engcmp_resources import vllm_environment
from engcmp_resources.engines.vllm_plugin.reading import read_capture
from engcmp_resources.places import home_folder
from engcmp_resources.safetensors_checkpoint import write_checkpoint
from engcmp_resources.store import Store

VOCAB = 49_152


def measure(python: Path, rows: int, turns: int, http_turns: int) -> None:
    """Start a server, time both ways in it, print."""
    tokens = [int(token) for token in np.random.default_rng(1).integers(100, 40_000, rows + 1)]
    kept = os.environ.get("ENGCMP_TEST_HOME")
    store = Store(Path(kept) if kept else home_folder())
    weights = store.path(fetched_weights(load_study("smollm2-cpu"), store, print))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(weights, folder / "checkpoint")
        # Both ways may use every core: bound as it is by default, the engine leaves one of two to the API, and as long as its worker is
        # a process of its own, the engine's spins on a core for a second after each answer, which is longer than a capture takes.
        every_core = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        with serving(python, folder / "checkpoint", folder / "served", **every_core) as server:
            server.capture("warm", tokens)  # the first prompt of a length takes longer
            captured, plain = [], []
            for turn in range(turns):
                captured.append(_capture(server, f"turn-{turn}", tokens))
                plain.append(_plain(server, tokens))
            by_http = [_by_http(server, tokens) for _ in range(http_turns)]
    size = by_http[0][1]
    seconds, http_seconds = statistics.median(captured), statistics.median(one for one, _ in by_http)
    print(f"{rows} rows of {VOCAB:,}, medians of {turns} and {http_turns} turns")
    print(f"  capture plugin            {seconds:8.3f} s   {rows * VOCAB * 2 / 1e6:8.1f} MB of BF16")
    print(f"  prompt_logprobs -1, HTTP  {http_seconds:8.3f} s   {size / 1e6:8.1f} MB of JSON")
    alone = statistics.median(plain)
    print(f"  the request alone         {alone:8.3f} s   (no capture: what the engine itself takes)")
    print(
        f"  the plugin is {http_seconds / seconds:.0f} times faster (turns {min(captured):.3f} to {max(captured):.3f} s)"
    )
    print(f"  no plugin can be more than {http_seconds / alone:.0f} times faster here: its rows come with a request")


def _capture(server: Server, window: str, tokens: list[int]) -> float:
    started = time.perf_counter()
    server.capture(window, tokens, prompt_logprobs=0)
    seconds = time.perf_counter() - started
    read_capture(server.captures, window, tokens, vocab=VOCAB)  # raises where a row is missing
    return seconds


def _plain(server: Server, tokens: list[int]) -> float:
    started = time.perf_counter()
    server.score(tokens, prompt_logprobs=0)
    return time.perf_counter() - started


def _by_http(server: Server, tokens: list[int]) -> tuple[float, int]:
    """Seconds until the last byte of the answer, and its bytes."""
    body = {"model": MODEL, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": -1}
    started = time.perf_counter()
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=3600) as answer:
        answer.raise_for_status()
        size = sum(len(part) for part in answer.iter_raw())
    return time.perf_counter() - started, size


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Example: bench_vllm.py --rows 300 --turns 5 --http-turns 1"
    )
    parser.add_argument("--rows", type=int, default=300, help="Rows of the prompt (300).")
    parser.add_argument("--turns", type=int, default=5, help="How often the capture is timed (5).")
    parser.add_argument("--http-turns", type=int, default=1, help="How often HTTP is timed (1): minutes each.")
    arguments = parser.parse_args()
    python = vllm_environment.ready_python()
    if python is None:
        print(f"skipped: no environment with vLLM at {vllm_environment.place()}; `make test-vllm` makes it")
        return
    measure(python, arguments.rows, arguments.turns, arguments.http_turns)


if __name__ == "__main__":
    main()
