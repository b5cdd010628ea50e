"""`engcmp throughput` on a real engine that decodes several requests at once: llama.cpp's own server, its library, a real model.

What is counted of each stream is held against the token ids that the engine itself lists for the same request, and against its counters.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from engcmp_assets.kernel.throughput.plans import parse_plan
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.engines import llamacpp_server_cli
from engcmp_resources.load.streams import Address

KEY, SLOTS = "planted-key", 4
LENGTHS = (16, 27, 19, 33)
PATHS = ("chat", "ids")


@pytest.fixture(scope="module")
def server(llamacpp_library: Path, q4_0_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("parallel")
    (folder / "key").write_text(KEY)
    named = {
        "--library": llamacpp_library,
        "-m": q4_0_model,
        "-a": "sha",
        "--port": 0,
        "--api-key-file": folder / "key",
        "-np": SLOTS,
    }
    words = [str(word) for pair in named.items() for word in pair]
    words += ["-c", str(512 * SLOTS), "-b", "512", "-ub", "256", "-t", "2", "--metrics"]
    command = [sys.executable, "-I", "-S", str(Path(llamacpp_server_cli.__file__)), *words]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={"OMP_WAIT_POLICY": "passive"}
        )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


def prompt(cell: int, number: int) -> list[int]:
    return [1000 + 37 * cell + 11 * number + place for place in range(12)]


def plan_of(widths: tuple[int, ...]) -> dict[str, Any]:
    """A chat cell and one of token ids for each width; every reply has a length of its own."""
    cells = []
    for width in widths:
        for path in PATHS:
            requests = []
            for number in range(2 * width):
                asked = (
                    {"token_ids": prompt(width, number), "expected_prompt_tokens": 12}
                    if path == "ids"
                    else {"messages": [{"role": "user", "content": f"Count to {number} with {width}."}]}
                )
                length = LENGTHS[number % len(LENGTHS)]
                requests.append(
                    asked | {"request_id": f"{path}-{width}-{number}", "max_tokens": length, "seed": number}
                )
            cells.append({"cell_id": f"{path}-c{width}", "kind": "code", "concurrency": width, "requests": requests})
    return {"model": "sha", "sampling": {"temperature": 0, "ignore_eos": True}, "cells": cells}


@pytest.fixture(scope="module")
def measured(
    server: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any], pl.DataFrame, pl.DataFrame]:
    out = tmp_path_factory.mktemp("speed")
    asked = plan_of((1, 2, SLOTS))
    plan = parse_plan(json.dumps(asked).encode(), where="plan")
    document = measure_plan(plan, Target(Address.parse(server), KEY), out, calibrated=False, say=lambda _: None)
    return asked, document, pl.read_parquet(out / "requests.parquet"), pl.read_parquet(out / "events.parquet")


Measured = tuple[dict[str, Any], dict[str, Any], pl.DataFrame, pl.DataFrame]


def test_every_reply_of_every_width_is_whole_and_has_the_tokens_that_were_asked_for(measured: Measured) -> None:
    asked, document, requests, events = measured
    assert [(cell["cell_id"], cell["complete"], cell["failures"]) for cell in document["cells"]] == [
        (cell["cell_id"], True, []) for cell in asked["cells"]
    ]
    wanted = {one["request_id"]: one["max_tokens"] for cell in asked["cells"] for one in cell["requests"]}
    assert dict(requests.select("request_id", "n_tokens").iter_rows()) == wanted
    assert dict(requests.select("request_id", "usage_completion_tokens").iter_rows()) == wanted
    counted = events.group_by("request_id").agg(pl.col("tokens").sum())
    assert dict(counted.iter_rows()) == wanted
    assert not set(requests["counted_by"]) & {"text"}, "exact, not by its look"
    ids = requests.filter(pl.col("request_id").str.starts_with("ids-"))
    assert set(ids["usage_prompt_tokens"]) == {12}
    assert not [flag for cell in document["cells"] for flag in cell["flags"] if "count" in flag]


def test_the_engine_s_own_counters_moved_by_as_many_tokens(measured: Measured) -> None:
    _, document, requests, _ = measured
    for cell in document["cells"]:
        own = requests.filter(pl.col("cell_id") == cell["cell_id"])
        assert cell["engine"]["generation_tokens"] == own["n_tokens"].sum(), cell["cell_id"]


def test_the_ids_that_the_engine_lists_are_those_of_the_stream(measured: Measured, server: str) -> None:
    """One at a time, so that the arithmetic is the same; the text of the stream is that of the listed ids."""
    _, _, requests, _ = measured
    alone = requests.filter(pl.col("cell_id") == "ids-c1")
    for number, row in enumerate(alone.iter_rows(named=True)):
        asked = {
            "prompt": prompt(1, number), "n_predict": row["max_tokens"], "temperature": 0, "ignore_eos": True, "return_tokens": True,
            "seed": number, "cache_prompt": False,
        }  # fmt: skip
        answer = httpx.post(
            f"{server}/completion", json=asked, headers={"Authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False
        ).json()
        assert len(answer["tokens"]) == row["n_tokens"]
        assert hashlib.sha256(b"\0" + answer["content"].encode()).hexdigest() == row["text_sha256"]


@pytest.mark.parametrize("width", [2, SLOTS])
def test_the_streams_were_in_fact_decoded_at_once(measured: Measured, width: int) -> None:
    _, document, requests, _ = measured
    for path in PATHS:
        own = requests.filter(pl.col("cell_id") == f"{path}-c{width}").sort("t0_ns").head(width)
        firsts, lasts = (own["t0_ns"] + own["ttft_ns"]), own["last_at_ns"]
        assert firsts.max() < lasts.max() and own["t0_ns"].max() < lasts.min(), "sent before the first one ended"
        spans = list(zip(firsts.to_list(), lasts.to_list(), strict=True))
        at_once = max(sum(first <= t <= last for first, last in spans) for t in firsts)
        assert at_once >= 2, (path, spans)
    cells = {cell["cell_id"]: cell for cell in document["cells"]}
    assert "value" in cells[f"ids-c{width}"]["figures"]["aggregate_tok_s"]


def test_one_at_a_time_nothing_overlaps_and_the_prefill_rate_is_known(measured: Measured) -> None:
    _, document, requests, _ = measured
    own = requests.filter(pl.col("cell_id") == "ids-c1").sort("t0_ns")
    assert all(later >= ended for later, ended in zip(own["t0_ns"][1:], own["last_at_ns"][:-1], strict=True))
    cells = {cell["cell_id"]: cell for cell in document["cells"]}
    assert "one stream" in cells[f"ids-c{SLOTS}"]["figures"]["prefill_tok_s"]["missing"]
