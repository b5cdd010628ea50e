"""The audit of a study that was captured for real from servers with known faults: it finds each of them, and nothing else.

The servers are simulators over HTTP that run already. What their faults leave in row files and receipts is all that the audit sees.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from homes import CHECKOUT, STUDY, quiet
from ports import free_port
from served_tables import MODEL, VOCAB, engine_table, freeze, make_served, write_known
from speedy import SPEED_TOKENS, speed_table
from tiny import TINY, TinyStudy, make_tiny

from engcmp_assets.audit.battery import audit
from engcmp_assets.audit.found import Report
from engcmp_assets.audit.recompute import Evidence
from engcmp_assets.kernel.study import load_study
from tests.simulator.running import running_simulator

FAULTS = {"plain": (), "same": (), "stale": ("cache_always_hits", "logprobs_stale", "cache_hidden")}
"""Each arm's server and what is wrong with its answers to the study's prompts; what is wrong from its start on is refused at the launch."""
MISCOUNTED = {"name": "usage_wrong", "completion": 0, "prompt": 1, "at": {"prompt_tokens": SPEED_TOKENS}}
"""What is wrong with the stale arm's answers to prompts of the speed block: each is counted as one token longer than it was sent."""
PLANTS = {
    ("another prompt", "q4_0/stale@v1, panel pl"), ("restarts", "q4_0/same@v1"), ("near-copies", "panel pl"),
    ("inputs", "pair stale-vs-plain"),
}  # fmt: skip
PAIR = """[[comparisons]]
pair_id = "{name}-vs-plain"
label = "{name} beside plain"
candidate = "q4_0/{name}@v1"
baseline = "q4_0/plain@v1"
"""


def planted_study(root: Path, measured_home: Path, ports: dict[str, int]) -> TinyStudy:
    """The tiny study for these servers, frozen; one of its texts stands twice in it."""
    tiny = make_tiny(root, measured_home)
    copied = (CHECKOUT / "protocol" / STUDY / "texts" / "prose-1.txt").read_text(encoding="utf-8")[:420]
    (tiny.folder / "texts" / "prose-1.txt").write_text(copied, encoding="utf-8")
    (tiny.folder / "texts" / "prose-2.txt").write_text(f"{copied} And so on.", encoding="utf-8")
    engines = "".join(engine_table(name, port) for name, port in ports.items())
    pairs = "".join(PAIR.format(name=name) for name in ("same", "stale"))
    speed = speed_table(requests=1, repeats=1, concurrency=[1])
    make_served(tiny, engines, pairs + speed, rows=100, repeats=2)
    freeze(tiny)
    return tiny


@pytest.fixture(scope="module")
def captured(measured_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyStudy]:
    """The study after it was run: one server ended in the middle of its capture, and another took its place."""
    root = tmp_path_factory.mktemp("simulated")
    ports = {name: free_port() for name in FAULTS}
    tiny = planted_study(root / "study", measured_home, ports)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())["windows"]
    lengths = [len(one["tokens"]) for one in prompts]
    assert SPEED_TOKENS not in lengths, "what is miscounted there is refused by the capture"
    known = root / "known.json"
    write_known(tiny, known)
    with ExitStack() as stack:

        def serve(on: ExitStack, name: str, *faults: dict[str, Any]) -> None:
            asked = {"port": ports[name], "model": MODEL, "vocab": VOCAB, "known_texts": known}
            on.enter_context(running_simulator("vllm", faults=list(faults), **asked))

        with ExitStack() as short:
            serve(short, "same", {"name": "dies_in_row", "at": {"row": 3, "prompt_tokens": lengths[1]}})
            done = tiny.run("run", TINY, "--arm", "q4_0/same@v1")
            assert done.returncode == 1, done.stderr[-2000:]
        for name, faults in FAULTS.items():
            rows = [{"name": fault, "at": {"prompt_tokens": lengths}} for fault in faults]
            serve(stack, name, *rows, *([MISCOUNTED] if name == "stale" else []))
        done = tiny.run("run", TINY)
        assert done.returncode == 0, done.stderr[-4000:]
        yield tiny


def audited(tiny: TinyStudy) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tiny.variables.items():
            patch.setenv(name, value)
        return audit(load_study(TINY), Evidence(tiny.home), quiet, time.monotonic_ns)


def test_each_fault_of_the_servers_is_found_and_nothing_else(captured: TinyStudy) -> None:
    report = audited(captured)
    assert {(one.check, one.about) for one in report.found} == PLANTS
    assert len(report.found) == len(PLANTS)
    (inputs,) = (one for one in report.found if one.check == "inputs")
    told = f"1 of 1 requests have other prompt tokens .*: {SPEED_TOKENS + 1} and {SPEED_TOKENS}"
    assert inputs.outcome == "corrected" and re.fullmatch(told, inputs.what)
    (looked,) = (one for one in report.checks if one.check == "inputs")
    assert looked.looked_at == f"{len(FAULTS)} requests of the speed block"
