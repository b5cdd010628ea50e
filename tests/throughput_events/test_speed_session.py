"""Speed measured end to end on the real llama.cpp: what comes out, what a kill costs, and what is proved afterwards."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from homes import assert_one_clear_line, start_engcmp
from speedy import CELLS, checks_of, receipt, requests_of, stored, with_speed
from tiny import BASE_ARM, TINY, TinyStudy, copy_of, make_tiny

FIGURE = f"{TINY}/{BASE_ARM}/throughput/code-24-c1/ttft_median_ms"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, measured_home: Path) -> TinyStudy:
    return with_speed(make_tiny(tmp_path_factory.mktemp("speed") / "tiny", measured_home))


@pytest.fixture(scope="module")
def measured(tiny: TinyStudy) -> TinyStudy:
    done = tiny.run("run", TINY)
    assert done.returncode == 0, done.stderr[-4000:]
    return tiny


@pytest.fixture
def copied(measured: TinyStudy, tmp_path: Path) -> TinyStudy:
    return copy_of(measured, tmp_path / "copy")


def test_every_planned_request_is_measured_and_its_tokens_are_those_that_were_planned(measured: TinyStudy) -> None:
    requests = requests_of(measured)
    assert len(requests) == 2 * 2 * 2 and set(requests["status"]) == {"ok"}
    assert set(requests["usage_prompt_tokens"]) == {24} == set(requests["expected_prompt_tokens"])
    assert set(requests["n_tokens"]) == {6} and set(requests["finish_reason"]) == {"length"}
    assert set(requests["cached_tokens"]) == {0}, "no prompt begins as another one did"
    assert requests["seed"].n_unique() == len(requests)
    events = pl.read_parquet(stored(measured, receipt(measured, "throughput_events"), "events.parquet"))
    assert set(events["request_id"]) == set(requests["request_id"])
    assert set(events.columns) == {"request_id", "t_ns", "kind", "tokens"}, "no text is kept"
    assert checks_of(receipt(measured, "throughput_events"))["plan_followed"]


def test_the_launch_has_a_start_for_each_repeat_with_room_for_the_widest_cell(measured: TinyStudy) -> None:
    launch = receipt(measured, "engine_launch/serving")
    starts = json.loads(stored(measured, launch, "starts.json").read_bytes())
    assert [(start["start"], start["launch"]) for start in starts] == [(1, 1), (2, 2)]
    for start in starts:
        assert (start["facts"]["slots"], start["facts"]["n_ctx"]) == (2, 512), "each request has the whole context"
        assert start["facts"]["settings"]["slots"] == {"requested": 2, "resolved": 2}
    spec = json.loads(stored(measured, launch, "spec.json").read_bytes())
    assert (spec["mode"], spec["slots"]) == ("serving", 2)
    assert checks_of(launch)["settings_resolved_as_requested"]


def test_cells_are_of_the_first_repeat_with_the_later_one_beside_it(measured: TinyStudy) -> None:
    made = receipt(measured, "throughput_cells")
    document = json.loads(stored(measured, made, "cells.json").read_bytes())
    assert [cell["cell_id"] for cell in document["cells"]] == list(CELLS)
    (later,) = document["repeats"]
    assert later["repeat"] == 2 and later["started_at_s"] > document["started_at_s"]
    checks = checks_of(made)
    assert checks["cells_complete"] and checks["prompt_tokens_as_planned"] and checks["output_lengths_as_asked"]
    requests = requests_of(measured)
    own = requests.filter((pl.col("cell_id") == "code-24-c1") & (pl.col("repeat") == 1))
    figure = next(one for one in made["figures"] if one["figure_id"] == FIGURE)
    assert figure["value"] == pytest.approx(own["ttft_ns"].median() / 1e6)
    second = requests.filter((pl.col("cell_id") == "code-24-c1") & (pl.col("repeat") == 2))["ttft_ns"].median()
    assert isinstance(second, float)
    assert figure["details"]["repeats"]["2"]["value"] == pytest.approx(second / 1e6)
    alone = next(one for one in made["figures"] if one["figure_id"].endswith("code-24-c2/prefill_tok_s"))
    assert "one stream only" in alone["value"]["missing"]


def test_a_session_keeps_its_calibration_and_what_the_engine_counted(measured: TinyStudy) -> None:
    sessions = json.loads(stored(measured, receipt(measured, "throughput_events"), "sessions.json").read_bytes())
    for repeat in sessions["repeats"]:
        (session,) = repeat["sessions"]
        assert session["calibration"]["passed"] and session["calibration"]["concurrency"] == 2
        assert session["start"] == repeat["repeat"]
        for cell in repeat["cells"]:
            assert cell["engine"]["prompt_tokens"] == 2 * 24 and cell["engine"]["before"]["running"] == 0
    text = json.dumps(sessions)
    assert "127.0.0.1" not in text, "an address says nothing of what was measured"


def test_beside_every_cell_the_machine_was_sampled_by_the_clock_of_its_events(measured: TinyStudy) -> None:
    samples = pl.read_parquet(stored(measured, receipt(measured, "engine_launch/serving"), "telemetry.parquet"))
    for (repeat,), own in requests_of(measured).group_by("repeat"):
        beside = samples.filter((pl.col("start") == repeat) & (pl.col("phase") != "stopping"))
        assert beside["t_ns"].min() < own["t0_ns"].min(), "from before the first request on"
        assert beside["host_cpu_percent"].drop_nulls().len() and beside["host_memory_available_bytes"].null_count() == 0
        for cell in own.partition_by("cell_id"):
            # One a second; a machine that is busy with other things takes one late.
            assert (beside["t_ns"] - cell["t0_ns"].min()).abs().min() < 5e9, cell["cell_id"][0]


def test_a_second_run_is_answered_from_the_store(measured: TinyStudy) -> None:
    done = measured.run("run", TINY)
    assert done.returncode == 0 and "] 0 artifacts made" in done.stderr
    assert "starting" not in done.stderr and "repeat 2" not in done.stderr


def test_verify_computes_the_speeds_again_and_trace_follows_one_to_the_frozen_hash(measured: TinyStudy) -> None:
    done = measured.run("verify", TINY)
    assert done.returncode == 0, done.stdout
    traced = measured.run("trace", FIGURE)
    assert traced.returncode == 0
    for artifact in ("throughput_cells", "throughput_events", "engine_launch/serving", "prompt_set", "frozen_protocol"):
        assert f"{artifact} of " in traced.stdout
    assert "2 requests, 2 batches" in traced.stdout


def test_a_changed_event_is_found(copied: TinyStudy) -> None:
    path = stored(copied, receipt(copied, "throughput_events"), "events.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    done = copied.run("verify", TINY)
    assert done.returncode == 1 and path.name in done.stdout + done.stderr


def test_a_prompt_that_is_not_the_frozen_one_stops_everything(copied: TinyStudy) -> None:
    path = copied.folder / "throughput_plan.json"
    text = path.read_text(encoding="utf-8")
    digest = json.loads(text)["cells"][0]["requests"][0]["tokens_sha256"]
    path.write_text(text.replace(digest, "0" * 64), encoding="utf-8")
    assert_one_clear_line(copied.run("run", TINY), "throughput_plan.json was edited after the freeze")


@pytest.fixture
def fresh(tiny: TinyStudy, tmp_path: Path) -> Iterator[TinyStudy]:
    yield copy_of(tiny, tmp_path / "fresh")


def test_a_kill_keeps_every_finished_cell_and_the_cut_one_is_measured_again(
    measured: TinyStudy, tmp_path: Path
) -> None:
    again = copy_of(measured, tmp_path / "again")
    process = start_engcmp("run", TINY, "--remeasure", home=again.home, **again.variables)
    assert process.stderr is not None
    for line in process.stderr:
        if "repeat 2: cell 2 of 2" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    (scratch,) = (again.home / "scratch").glob("capture-speed-*")
    kept = {
        part.relative_to(scratch): (part / "requests.parquet").read_bytes()
        for part in scratch.glob("repeat-*/parts/*")
        if part.is_dir()
    }
    assert len(kept) == 3, "of repeat 2 the second cell was cut in two"
    before = pl.concat([pl.read_parquet(data) for data in kept.values()])
    done = again.run("run", TINY, "--remeasure")
    assert done.returncode == 0, done.stderr[-3000:]
    requests = requests_of(again)
    assert Counter(requests["status"]) == {"ok": 8}
    times = dict(zip(requests["request_id"], requests["t0_ns"], strict=True))
    for name, t0 in zip(before["request_id"], before["t0_ns"], strict=True):
        assert times[name] == t0, "a finished cell is not measured again"
    starts = json.loads(stored(again, receipt(again, "engine_launch/serving"), "starts.json").read_bytes())
    assert [start["launch"] for start in starts] == [1, 2, 2]
    assert receipt(again, "throughput_events")["measurement"] == 2
    assert not list((again.home / "scratch").glob("capture-speed-*"))
    assert again.run("verify", TINY).returncode == 0
