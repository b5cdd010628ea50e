"""Speed of a server that runs already: what fails is told and never averaged, and a busy one is refused. The server is a simulator."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import polars as pl
import pytest
from homes import assert_one_clear_line, wait_until
from ports import free_port
from served_tables import MODEL, VOCAB
from speedy import SERVED, checks_of, protocol_with, receipt, requests_of, served_study, speed_table, stored
from tiny import TINY, TinyStudy

from engcmp_assets.throughput_events.session import _refuse_short_context
from engcmp_resources.errors import EngcmpError
from tests.simulator.running import Simulator, running_simulator

Start = Callable[..., Simulator]


@pytest.fixture
def served(tmp_path: Path, measured_home: Path) -> Iterator[tuple[TinyStudy, Start]]:
    port = free_port()
    tiny = served_study(tmp_path / "study", measured_home, port, repeats=1)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    known = tmp_path / "known.json"
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    known.write_text(json.dumps(texts), encoding="utf-8")
    with ExitStack() as stack:

        def start(*faults: dict[str, Any] | str, **options: Any) -> Simulator:
            asked = {"port": port, "model": MODEL, "vocab": VOCAB, "known_texts": known} | options
            return stack.enter_context(running_simulator("vllm", faults=list(faults), **asked))

        yield tiny, start


def test_token_ids_give_exact_counts_and_every_rate(served: tuple[TinyStudy, Start]) -> None:
    tiny, start = served
    start(timing={"ttft_ms": 20.0, "itl_ms": 5.0})
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    made = receipt(tiny, "throughput_cells", SERVED)
    assert checks_of(made)["cells_complete"] and checks_of(made)["output_lengths_as_asked"]
    assert set(requests_of(tiny, SERVED)["counted_by"]) == {"ids"}
    figures = {one["figure_id"].rpartition("/throughput/")[2]: one["value"] for one in made["figures"]}
    # 200 tokens/s are sent; a first event that was read late shortens its window.
    assert figures["code-24-c1/ttft_median_ms"] > 20 and 0 < figures["code-24-c1/decode_tok_s"] < 400
    assert tiny.run("verify", TINY).returncode == 0


def test_a_failed_request_makes_its_cell_incomplete_and_no_figure_is_averaged_over_it(
    served: tuple[TinyStudy, Start],
) -> None:
    tiny, start = served
    start(
        {"name": "connection_cut", "at": {"running": {"from": 2}, "token": 3}, "times": 1},
        timing={"ttft_ms": 50.0, "itl_ms": 20.0},
    )
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-3000:]
    made = receipt(tiny, "throughput_cells", SERVED)
    assert not checks_of(made)["cells_complete"]
    document = json.loads(stored(tiny, made, "cells.json").read_bytes())
    one, two = document["cells"]
    assert one["complete"] and not two["complete"]
    assert [failure["cause"] for failure in two["failures"]] == ["cut_in_body"]
    values = {figure["figure_id"].rpartition("/throughput/")[2]: figure["value"] for figure in made["figures"]}
    assert "requests failed" in values["code-24-c2/aggregate_tok_s"]["missing"]
    assert isinstance(values["code-24-c1/aggregate_tok_s"], float)
    assert tiny.run("verify", TINY).returncode == 0


def test_an_open_loop_tells_latency_from_when_a_request_was_due(tmp_path: Path, measured_home: Path) -> None:
    port = free_port()
    tiny = served_study(tmp_path / "study", measured_home, port, repeats=1, requests=4, rate=20.0)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    known = tmp_path / "known.json"
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    known.write_text(json.dumps(texts), encoding="utf-8")
    with running_simulator(
        "vllm", port=port, model=MODEL, vocab=VOCAB, known_texts=known, timing={"ttft_ms": 400.0, "itl_ms": 5.0}
    ):
        done = tiny.run("run", TINY)
        assert done.returncode == 0, done.stderr[-3000:]
        assert tiny.run("verify", TINY).returncode == 0
    sent = requests_of(tiny, SERVED).filter(pl.col("cell_id") == "code-24-r20").sort("scheduled_at_ns")
    assert sent["scheduled_at_ns"].diff().drop_nulls().to_list() == [50_000_000] * 3, "whatever comes back"
    assert sent["t0_ns"][1] < sent["done_at_ns"][0], "the second goes out before the first has ended"
    made = receipt(tiny, "throughput_cells", SERVED)
    cells = {cell["cell_id"]: cell for cell in json.loads(stored(tiny, made, "cells.json").read_bytes())["cells"]}
    assert [cells[name]["loop"] for name in ("code-24-c1", "code-24-c2", "code-24-r20")] == ["closed", "closed", "open"]
    figures = cells["code-24-r20"]["figures"]
    due, ttft = (figures[name]["value"] for name in ("ttft_scheduled_median_ms", "ttft_median_ms"))
    assert due >= ttft > 400 and "open loop" in figures["prefill_tok_s"]["missing"]
    (page,) = (tiny.home / "views" / TINY).glob("*/publication/SUMMARY.md")
    text = page.read_text(encoding="utf-8")
    assert "`ttft_scheduled_median_ms`" in text and "an open loop, whose latency is also told" in text


def test_a_busy_engine_is_refused_and_nothing_is_timed(served: tuple[TinyStudy, Start]) -> None:
    tiny, start = served
    simulator = start(timing={"itl_ms": 500.0})
    body = {"model": MODEL, "prompt": [5] * 7, "max_tokens": 400, "stream": True, "ignore_eos": True}

    def load() -> None:
        with (
            pytest.raises(httpx.HTTPError),
            httpx.stream("POST", f"{simulator.url}/v1/completions", json=body, timeout=300, trust_env=False) as one,
        ):
            for _ in one.iter_lines():
                pass

    busy = threading.Thread(target=load)
    busy.start()
    try:
        wait_until(lambda: bool(simulator.truth(path="/v1/completions")))
        done = tiny.run("run", TINY)
    finally:
        simulator.stop()
        busy.join(20)
    assert_one_clear_line(done, "the engine is not idle: 1 requests run or wait")
    assert not (tiny.home / "heads" / TINY / SERVED.replace("/", "~") / "throughput_events.json").exists()


@pytest.mark.parametrize(("context", "refused"), [(29, True), (30, False), (None, False)])
def test_an_engine_whose_context_is_too_short_is_refused(context: int | None, refused: bool) -> None:
    speed: Any = SimpleNamespace(plan=protocol_with(speed_table()).throughput, work=SimpleNamespace(arm=SERVED))
    serving: Any = SimpleNamespace(facts={} if context is None else {"n_ctx": context})
    with (
        pytest.raises(EngcmpError, match="takes 30 tokens, the engine has a context of 29")
        if refused
        else nullcontext()
    ):
        _refuse_short_context(speed, serving)
