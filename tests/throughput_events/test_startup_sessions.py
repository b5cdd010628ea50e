"""Start-up measured end to end: on the real llama.cpp, and of a server that runs already, which is a simulator."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from homes import start_engcmp
from ports import free_port
from served_tables import MODEL, VOCAB
from speedy import SERVED, receipt, served_study, stored, with_speed
from tiny import BASE_ARM, TINY, TinyStudy, copy_of, make_tiny

from tests.simulator.running import running_simulator


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> TinyStudy:
    return with_speed(make_tiny(tmp_path_factory.mktemp("startup") / "tiny", measured_home), repeats=1, startup=True)


@pytest.fixture(scope="module")
def measured(tiny: TinyStudy) -> TinyStudy:
    """Killed in the middle of the repeated prompts, and run again."""
    process = start_engcmp("run", TINY, home=tiny.home, **tiny.variables)
    assert process.stderr is not None
    for line in process.stderr:
        if "start-up: cell 2 of 6" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-4000:]
    return tiny


def values_of(tiny: TinyStudy, arm: str) -> dict[str, Any]:
    figures = receipt(tiny, "throughput_cells", arm)["figures"]
    kept = [one for one in figures if "/startup/" in one["figure_id"]]
    return {one["figure_id"].partition("/startup/")[2]: one["value"] for one in kept}


def startup_of(tiny: TinyStudy, arm: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stored(tiny, receipt(tiny, "throughput_cells", arm), "cells.json").read_bytes())
    summary: dict[str, Any] = found["startup"]
    return summary


def test_a_start_is_timed_cold_and_warm_with_its_memory_and_what_a_repeated_prompt_found(measured: TinyStudy) -> None:
    values = values_of(measured, BASE_ARM)
    assert values["warm/ready_s"] > 0
    if isinstance(values["cold/ready_s"], dict):
        assert "was not cleared" in values["cold/ready_s"]["missing"], "a file system in memory keeps its pages"
    else:
        assert startup_of(measured, BASE_ARM)["ready"]["cold"]["caches"] == [
            "page cache of the model file", "page cache of the library",
        ]  # fmt: skip
    assert values["stated/kv_pool_tokens"] == 1024 == 2 * 512
    assert values["after its requests/resident_bytes"] > 50_000_000
    for length in (24, 64):
        assert values[f"prefix-{length}/cold/prefix_cached_tokens"] == 0, "after a kill it is sent to a fresh engine"
        assert values[f"prefix-{length}/repeat-2/prefix_cached_tokens"] == length - 1
    assert values["prefix-64/repeat-1/prefix_ttft_ms"] < values["prefix-64/cold/prefix_ttft_ms"]
    assert startup_of(measured, BASE_ARM)["thinking"]["switch"] == "ignored by the template"


def test_the_starts_are_the_launchs_and_the_killed_one_is_among_them(measured: TinyStudy) -> None:
    starts = json.loads(stored(measured, receipt(measured, "engine_launch/serving"), "starts.json").read_bytes())
    assert [start["launch"] for start in starts] == [0, 0, 0, 0, 1]
    document = json.loads(stored(measured, receipt(measured, "throughput_events"), "startup.json").read_bytes())
    assert [(one["start"], one["state"]) for one in document["starts"]] == [(3, "cold"), (4, "warm")]
    asked = pl.read_parquet(stored(measured, receipt(measured, "throughput_events"), "startup-requests.parquet"))
    assert len(asked) == 2 * 3 + 2 and set(asked["status"]) == {"ok"}


def test_what_follows_from_it_is_computed_again_and_is_on_the_page(measured: TinyStudy) -> None:
    done = measured.run("verify", TINY)
    assert done.returncode == 0, done.stdout
    page = (measured.home / "views" / TINY / "_study" / "publication" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "## Start-up and memory" in page and "ready, cold (s)" in page and "64 tokens, repeat 2" in page
    assert "thinking switch: ignored by the template (on 38 prompt tokens, off 38 prompt tokens)" in page
    traced = measured.run("trace", f"{TINY}/{BASE_ARM}/startup/warm/ready_s")
    assert traced.returncode == 0 and "engine_launch/serving of " in traced.stdout


def test_a_changed_table_of_a_start_up_is_found(measured: TinyStudy, tmp_path: Path) -> None:
    copied = copy_of(measured, tmp_path / "copy")
    path = stored(copied, receipt(copied, "throughput_events"), "startup-requests.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    assert copied.run("verify", TINY).returncode == 1


def test_a_server_that_runs_already_has_no_ready_time_and_its_thinking_can_be_switched(
    tmp_path: Path, measured_home: Path
) -> None:
    port = free_port()
    tiny = served_study(tmp_path / "study", measured_home, port, repeats=1, startup=True)
    prompts = json.loads((tiny.folder / "prompt_set.json").read_bytes())
    known = tmp_path / "known.json"
    texts = {
        (tiny.folder / "texts" / f"{one['window_id']}.txt").read_text(encoding="utf-8"): one["tokens"]
        for one in prompts["windows"]
    }
    known.write_text(json.dumps(texts), encoding="utf-8")
    with running_simulator("vllm", port=port, model=MODEL, vocab=VOCAB, known_texts=known):
        done = tiny.run("run", TINY)
        assert done.returncode == 0, done.stderr[-3000:]
        values, found = values_of(tiny, SERVED), startup_of(tiny, SERVED)
        assert values["warm/ready_s"] == {"missing": "the engine was not started by engcmp"}
        assert values["cold/ready_s"] == {"missing": "the engine's kind declares no cache that it can clear"}
        assert "missing" in values["after its requests/resident_bytes"]
        assert found["thinking"]["switch"] == "honoured" and found["thinking"]["on"]["reasoning_tokens"] > 0
        assert tiny.run("verify", TINY).returncode == 0
