"""The tiny study with a speed block, for llama.cpp or for servers that run already. No tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from homes import CHECKOUT, STUDY
from served_tables import RULE, engine_table, freeze, make_served
from tiny import BASE_ARM, SPEED_BLOCK, TINY, TinyStudy, make_tiny

from engcmp_assets.kernel.protocol import Protocol, parse_protocol

SPEED_TOKENS = 24  # of each prompt of the speed block
CELLS = (f"code-{SPEED_TOKENS}-c1", f"code-{SPEED_TOKENS}-c2")
SPEED = """# ---------------------------------------------------------------- Block T: how fast
[throughput]
kinds = ["code"]
prompt_tokens = [{tokens}]
concurrency = {concurrency}
requests = {requests}
output_tokens = 6
warmup = 1
repeats = {repeats}
seconds_between_repeats = {seconds}
start_each_repeat = {each}
order = "abba"
seed = 7
[throughput.sampling]
temperature = 0.0
top_p = 1.0
top_k = 0
min_p = 0.0
presence_penalty = 0.0
frequency_penalty = 0.0
ignore_eos = true
[throughput.band]
share = 0.2
least_hours = 1.0

"""
STARTUP = """[startup]
cold_starts = 1
warm_starts = 1
[startup.prefix]
kind = "code"
prompt_tokens = [24, 64]
repeats = 2
output_tokens = 2
[startup.thinking]
prompts = ["What is 2 + 2?"]
output_tokens = 8

"""
SERVED = "q4_0/served@v1"


def protocol_with(table: str) -> Protocol:
    """The real study's protocol with another speed block, or with none."""
    text = SPEED_BLOCK.sub("", (CHECKOUT / "protocol" / STUDY / "protocol.toml").read_text(encoding="utf-8"))
    later = f"{RULE}what comes later"
    return parse_protocol(text.replace(later, f"{table}\n{later}").encode(), where="protocol.toml")


def speed_table(
    *,
    requests: int = 2,
    repeats: int = 2,
    seconds: float = 0,
    each: bool = True,
    startup: bool = False,
    rate: float = 0,
    concurrency: Sequence[int] = (1, 2),
) -> str:
    counts = {"requests": requests, "repeats": repeats, "seconds": seconds, "concurrency": list(concurrency)}
    table = SPEED.format(tokens=SPEED_TOKENS, each=str(each).lower(), **counts)
    opened = f'[throughput.open_loop]\nrates_per_s = [{rate}]\narrival = "constant"\n\n' if rate else ""
    return table + opened + (STARTUP if startup else "")


def with_speed(tiny: TinyStudy, **plan: Any) -> TinyStudy:
    """The tiny study with a speed block, frozen."""
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    assert "[throughput]" not in text
    later = f"{RULE}what comes later"
    path.write_text(text.replace(later, speed_table(**plan) + later), encoding="utf-8")
    freeze(tiny)
    return tiny


def served_study(root: Path, measured_home: Path, port: int, **plan: Any) -> TinyStudy:
    """The same for one server that runs already at `port`."""
    return with_speed(served_base(root, measured_home, port), **plan)


def served_base(root: Path, measured_home: Path, port: int) -> TinyStudy:
    """The tiny study for that server, without a speed block and not frozen."""
    tiny = make_tiny(root, measured_home)
    make_served(tiny, engine_table("served", port), "")
    path = tiny.folder / "protocol.toml"
    text = path.read_text(encoding="utf-8")
    text = (
        text.replace("[sources.weights]", "comparisons = []\n[sources.weights]", 1)
        if "comparisons = []" not in text
        else text
    )
    path.write_text(text, encoding="utf-8")
    return tiny


def receipt(tiny: TinyStudy, artifact: str, arm: str = BASE_ARM) -> dict[str, Any]:
    head = json.loads((tiny.home / "heads" / TINY / arm.replace("/", "~") / f"{artifact}.json").read_bytes())
    found: dict[str, Any] = json.loads((tiny.home / "receipts" / f"{head['receipt_sha256']}.json").read_bytes())
    return found


def stored(tiny: TinyStudy, made: Mapping[str, Any], name: str) -> Path:
    (one,) = (output for output in made["outputs"] if output["name"] == name)
    return tiny.home / "store" / one["sha256"][:2] / f"{one['sha256']}.{one['suffix']}"


def requests_of(tiny: TinyStudy, arm: str = BASE_ARM) -> pl.DataFrame:
    return pl.read_parquet(stored(tiny, receipt(tiny, "throughput_events", arm), "requests.parquet"))


def checks_of(made: Mapping[str, Any]) -> dict[str, bool]:
    return {check["name"]: check["passed"] for check in made["checks"]}
