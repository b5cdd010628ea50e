"""`engcmp throughput` as a user runs it, against the simulator over real HTTP."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from engcmp_assets.commands.main import main
from engcmp_assets.commands.speed_requests import expected
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.throughput.event_tables import EVENT_COLUMNS, REQUEST_COLUMNS
from engcmp_assets.kernel.throughput.plans import parse_plan
from engcmp_assets.kernel.throughput_tables import PLAN_FILE
from engcmp_assets.throughput_events.plan import parse_index
from engcmp_assets.throughput_events.steps import Target, measure_plan
from engcmp_resources.canonical import sha256_of
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address
from tests.simulator.running import Simulator, running_simulator

CHECKOUT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
FILES = ("events.parquet", "requests.parquet", "cells.json")


@dataclass
class Ran:
    code: int
    out: str
    err: str


@dataclass
class Here:
    """The command in this process, on a plan of its own."""

    folder: Path
    url: str
    capsys: pytest.CaptureFixture[str]

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def plan(self, widths: tuple[int, ...] = (1, 3), requests: int = 3, tokens: int = 10, **changes: Any) -> Path:
        cells = [
            {
                "cell_id": f"c{width}", "kind": "code", "concurrency": width,
                "requests": [self.request(f"c{width}-{number}", tokens, number) for number in range(requests)],
            }
            for width in widths
        ]  # fmt: skip
        path = self.folder / "plan.json"
        path.write_text(
            json.dumps({"model": "sim/model", "sampling": {"temperature": 0}, "cells": cells} | changes), "utf-8"
        )
        return path

    def request(self, name: str, tokens: int, seed: int) -> dict[str, Any]:
        message = {"role": "user", "content": f"{name}: Hello."}
        return {"request_id": name, "messages": [message], "max_tokens": tokens, "seed": seed}

    def __call__(self, *arguments: str, plan: Path | None = None, calibrate: bool = False) -> Ran:
        self.capsys.readouterr()
        plan = plan or self.folder / "plan.json"
        given = ["throughput", "--base-url", self.url, "--plan", str(plan), "--out", str(self.out), *arguments]
        with pytest.raises(SystemExit) as ended:
            main([*given, *([] if calibrate else ["--no-calibrate"])])
        said = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(ended.value.code, said.out, said.err)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "cells.json").read_bytes())
        return found

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """The command as a process of its own."""
        command = [
            sys.executable,
            "-m",
            "engcmp_assets.commands",
            "throughput",
            "--base-url",
            self.url,
            "--no-calibrate",
        ]
        command += ["--plan", str(self.folder / "plan.json"), "--out", str(self.out), *arguments]
        return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[Simulator]:
    with running_simulator("vllm") as simulator:
        yield simulator


@pytest.fixture
def simulator(shared: Simulator) -> Simulator:
    shared.script()
    return shared


@pytest.fixture
def here(tmp_path: Path, simulator: Simulator, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, simulator.url, capsys)


def chats(simulator: Simulator, since: int) -> list[dict[str, Any]]:
    return simulator.truth(path=CHAT)[since:]


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.01)


def test_events_requests_and_cells_hold_every_token_that_the_server_sent(here: Here, simulator: Simulator) -> None:
    simulator.script({"name": "several_tokens_in_a_chunk", "tokens": [2, 1, 3]}, itl_ms=2.0)
    here.plan()
    since = len(simulator.truth(path=CHAT))
    ran = here("--warmup", "0")
    assert (ran.code, ran.err.count("engcmp:")) == (0, 0)
    truth = chats(simulator, since)[1:]  # the first asked what the server takes
    events, requests = (pl.read_parquet(here.out / name) for name in FILES[:2])
    assert requests["request_id"].to_list() == [f"c{width}-{number}" for width in (1, 3) for number in range(3)]
    assert requests["status"].to_list() == ["ok"] * 6
    assert requests["n_tokens"].sum() == sum(len(one["tokens"]) for one in truth) == 60
    sent = sorted(token["sent_ns"] for one in truth for token in one["tokens"])
    read = sorted(t_ns for t_ns, tokens in events.select("t_ns", "tokens").iter_rows() for _ in range(tokens))
    assert len(sent) == len(read)
    assert all(written <= came for written, came in zip(sent, read, strict=True))
    cells = here.document()["cells"]
    assert [(cell["cell_id"], cell["complete"], cell["requests"], cell["failures"]) for cell in cells] == [
        ("c1", True, 3, []), ("c3", True, 3, []),
    ]  # fmt: skip
    assert cells[0]["engine"]["generation_tokens"] == 30
    assert set(cells[0]["client"]) >= {"cpu_s", "loop_lag_p99_ms", "scheduling_delay_p99_ms", "limit"}
    assert cells[0]["figures"]["ttft_median_ms"]["value"] > 0
    assert re.search(r"^c1 +1 +3/3 ", ran.out, re.MULTILINE)


def test_replies_are_counted_again_from_their_text_and_no_text_is_kept(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(1,))
    asked = len(simulator.truth(path="/tokenize"))
    ran = here()
    assert ran.code == 0
    (cell,) = here.document()["cells"]
    assert (cell["recounted"]["by"], cell["recounted"]["replies"]) == ("the server's /tokenize", 3)
    assert cell["recounted"]["counted"] == cell["n_tokens"] == 30
    assert "    text counted again by the server's /tokenize: " in ran.out
    asked_for = len(simulator.truth(path="/tokenize")) - asked
    assert asked_for >= 1 + 3, "one to find it, one for each span of a reply"


def test_each_column_has_its_unit_and_definition_in_the_file(here: Here) -> None:
    here.plan(widths=(1,), requests=1)
    assert here("--warmup", "0").code == 0
    for name, columns in (("events.parquet", EVENT_COLUMNS), ("requests.parquet", REQUEST_COLUMNS)):
        schema = pq.read_schema(here.out / name)
        assert schema.names == [column.name for column in columns]
        for field, column in zip(schema, columns, strict=True):
            assert field.metadata == {b"unit": column.unit.encode(), b"description": column.description.encode()}


def test_a_dry_run_prints_every_request_and_sends_none(here: Here, simulator: Simulator) -> None:
    plan = here.plan(widths=(2,), requests=2)
    before = len(simulator.truth())
    ran = here("--dry-run", "--warmup", "2")
    assert ran.code == 0
    assert len(simulator.truth()) == before
    assert not here.out.exists()
    lines = ran.out.splitlines()
    assert [line.split("  ")[1:3] for line in lines[:4]] == [[f"warmup-{number}", "untimed"] for number in range(4)]
    digest = sha256_of({"messages": [{"role": "user", "content": "c2-1: Hello."}]})
    first = hashlib.sha256(b"c2-1: Hello.").hexdigest()[:16]
    assert lines[5] == (
        f"c2  c2-1  prompt {digest}  expected prompt tokens not stated  first line {first}  seed 1  max_tokens 10"
    )
    assert lines[6].startswith(
        "2 timed requests in 1 cells, 4 untimed, and one short one to ask what the server takes;"
    )
    listed = json.loads(here("--dry-run", "--json", "--warmup", "0").out)
    assert [(one["request_id"], one["timed"]) for one in listed["requests"]] == [("c2-0", True), ("c2-1", True)]
    assert listed["sampling"] == json.loads(plan.read_text())["sampling"]


def test_a_dry_run_lists_what_a_run_sends_in_its_order(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(1, 2), requests=2)
    listed = json.loads(here("--dry-run", "--json").out)["requests"]
    since = len(simulator.truth(path=CHAT))
    assert here().code == 0
    assert len(chats(simulator, since)) == 1 + len(listed), "one asks what the server takes"
    assert [one["timed"] for one in listed] == [False, True, True, False, False, True, True]


def test_a_dry_run_tells_of_prompts_that_begin_alike(here: Here) -> None:
    here.plan(widths=(1,), requests=2)
    plan = json.loads((here.folder / "plan.json").read_bytes())
    for number, one in enumerate(plan["cells"][0]["requests"]):
        one["messages"] = [{"role": "user", "content": f"The same line.\nThen {number}."}]
    (here.folder / "plan.json").write_text(json.dumps(plan), "utf-8")
    assert "2 timed prompts begin with a line that another has too" in here("--dry-run").out


def test_a_dry_run_of_a_study_says_what_every_arm_must_count(capsys: pytest.CaptureFixture[str]) -> None:
    def asked(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["throughput", "--study", "smollm2-cpu", *more])
        said = capsys.readouterr()
        assert ended.value.code == (0 if "--dry-run" in more else 2), said.err
        return said.out + said.err

    study = load_study("smollm2-cpu")
    arms = [str(arm) for arm in study.protocol.arm_keys]
    index = parse_index(study.files[PLAN_FILE], where=PLAN_FILE)
    listed = json.loads(asked("--dry-run", "--json"))
    assert listed["arms"] == arms and len(arms) > 1
    rows = listed["requests"]
    planned = [one for cell in index.cells for one in (*cell.warmup, *cell.requests)]
    assert [(one["prompt_sha256"], one["seed"], one["first_line"]) for one in rows] == [
        (one.tokens_sha256, one.seed, one.first_line) for one in planned
    ]
    assert all(set(one["expected_prompt_tokens"]) == set(arms) for one in rows)
    told = asked("--dry-run").splitlines()
    first = next(line for line in told if "  untimed" not in line)
    assert f"  expected prompt tokens {index.cells[0].prompt_tokens}  first line (ids) " in first
    assert told[-1].endswith(f"all count alike: {', '.join(arms)}")
    assert expected({"a": 64, "b": 65, "c": 64}) == "64 (a c), 65 (b)"
    assert "--study goes with --dry-run" in asked()


def test_a_client_that_measures_loads_nothing_that_reads_studies_or_tables_of_rows() -> None:
    code = "import sys, engcmp_assets.commands.throughput; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "engcmp_assets.throughput_events.steps" in loaded
    assert not loaded & {"engcmp_assets.kernel.study", "polars", "dagster", "requests", "jinja2"}


def test_json_prints_what_cells_json_holds(here: Here) -> None:
    here.plan(widths=(1,))
    assert json.loads(here("--json").out) == here.document()


def test_a_failed_request_makes_its_cell_incomplete_and_the_exit_status_1(here: Here, simulator: Simulator) -> None:
    here.plan()
    simulator.script({"name": "connection_cut", "times": 1, "at": {"token": 3}})
    ran = here("--warmup", "0")
    assert ran.code == 1
    first, second = here.document()["cells"]
    assert (first["complete"], second["complete"]) == (False, True)
    assert [(one["request_id"], one["status"], one["cause"]) for one in first["failures"]] == [
        ("c1-0", "incomplete", "cut_in_body")
    ]
    assert "value" not in first["figures"]["aggregate_tok_s"]
    assert "incomplete: c1-0: cut_in_body" in ran.out
    assert "cut_in_body: the connection was closed in the middle of the body" in ran.out, "a code is told in words"


def test_a_failed_cell_is_measured_again_on_demand_and_what_it_was_stays(here: Here, simulator: Simulator) -> None:
    here.plan()
    simulator.script({"name": "connection_cut", "times": 1, "at": {"token": 3}})
    assert here("--warmup", "0").code == 1
    failed = (here.out / "parts" / "0000" / "cell.json").read_bytes()
    sent = len(simulator.truth(path=CHAT))
    assert here().code == 1 and len(simulator.truth(path=CHAT)) == sent, "by itself a failed cell stays"
    ran = here("--again-failed", "--warmup", "0")
    assert ran.code == 0 and "cell c1 is measured again" in ran.err
    assert "measured again: 1 earlier in earlier/" in ran.out
    assert len(simulator.truth(path=CHAT)) == sent + 1 + 3, "one request to ask, and the one cell"
    assert (here.out / "earlier" / "0000-1" / "cell.json").read_bytes() == failed
    assert [cell.get("earlier") for cell in here.document()["cells"]] == [["0000-1"], None]
    assert here("--again", "c3").code == 0
    assert [cell.get("earlier") for cell in here.document()["cells"]] == [["0000-1"], ["0001-1"]]
    assert "the plan has no cell 'c9'" in here("--again", "c9").err


def test_the_table_says_of_how_many_requests_a_median_is_and_how_far_they_spread(here: Here) -> None:
    here.plan(widths=(1, 3))
    lines = here().out.splitlines()
    assert lines[0].split("  ")[0] == "cell" and "prefill tok/s" in lines[0]
    one, three = (next(line for line in lines if line.startswith(name)) for name in ("c1 ", "c3 "))
    assert re.search(r"^c1 +1 +3/3 +[\d.e+]+ \[[\d.e+]+, [\d.e+]+\] ", one)
    figures = here.document()["cells"][0]["figures"]
    assert f"{figures['ttft_median_ms']['value']:.4g} [{figures['ttft_median_ms']['p10']:.4g}, " in one
    assert three.split()[:3] == ["c3", "3", "3/3"]
    assert any(line.startswith("Medians of as many requests as are whole, [10th, 90th percentile]") for line in lines)


def test_the_table_says_of_replies_that_never_left_their_reasoning_that_no_answer_was_measured(here: Here) -> None:
    here.plan(widths=(1, 2), tokens=3)  # the simulator thinks for longer
    lines = here("--warmup", "0").out.splitlines()
    label = "    label: 0 of 3 replies left the reasoning span: the rest is reasoning about the prompt, not the answer"
    one, two = (next(number for number, line in enumerate(lines) if line.startswith(name)) for name in ("c1 ", "c2 "))
    assert label in lines[one + 1 : two] and label in lines[two + 1 :], "under each cell"


def test_no_prompt_stands_in_the_results(here: Here) -> None:
    here.plan(widths=(1,))
    assert here().code == 0
    listing = json.loads((here.out / "plan-digests.json").read_bytes())
    assert [len(one["prompt_sha256"]) for one in listing["requests"]] == [64] * 3
    for path in (one for one in here.out.rglob("*") if one.is_file()):
        assert b"Hello." not in path.read_bytes(), path


def test_a_full_disk_leaves_nothing_half_written(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.plan(widths=(1,))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("engcmp_assets.throughput_events.cell_folders.os.fsync", full)
        ran = here()
    assert ran.code == 1 and "the disk is full" in ran.err
    assert not list(here.out.rglob("*.partial"))
    assert here().code == 0


def test_warm_up_is_sent_before_each_new_width_and_stands_in_no_table(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(1, 3), requests=2)
    since = len(simulator.truth(path=CHAT))
    assert here("--warmup", "2").code == 0
    assert len(chats(simulator, since)) == 1 + (2 + 2) + (4 + 2), "two for each stream that the cell has"
    assert [cell["warmup"]["requests"] for cell in here.document()["cells"]] == [2, 4]
    assert pl.read_parquet(here.out / "requests.parquet").height == 4


def test_what_a_server_refuses_is_dropped_and_recorded(here: Here, simulator: Simulator) -> None:
    simulator.script({"name": "refuses_fields", "fields": ["return_token_ids"]})
    here.plan(widths=(1,))
    assert here().code == 0
    (session,) = here.document()["sessions"]
    told = session["streams"][CHAT]
    assert told["asked_for"] == {"token_ids": False, "usage": True, "continuous": True, "timings": False}
    assert "return_token_ids" in told["refused"]["token_ids"]
    assert set(pl.read_parquet(here.out / "requests.parquet")["counted_by"]) == {"usage"}


def test_a_calibration_is_recorded_and_one_that_failed_is_a_flag_here(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.plan(widths=(2,), requests=2)
    monkeypatch.setattr("engcmp_resources.load.calibration._ALLOWED_MS", 0.0)
    monkeypatch.setattr("engcmp_resources.load.calibration._ALLOWED_MS_PER_STREAM", 0.0)
    ran = here(calibrate=True)
    assert ran.code == 0
    assert "calibration: this client may be the limit" in ran.err
    document = here.document()
    assert document["sessions"][0]["calibration"]["passed"] is False
    assert "the calibration of the client failed" in document["cells"][0]["flags"]


def test_a_cell_in_which_the_client_had_no_time_left_is_flagged(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.plan(widths=(1,), requests=2)
    monkeypatch.setattr("engcmp_resources.load.driving._CPU_SHARE", -1.0)
    ran = here()
    (cell,) = here.document()["cells"]
    assert cell["client"]["limit"] and "one core was busy" in cell["client"]["reasons"]
    assert "the client was the limit" in cell["flags"] and "    flag: the client was the limit" in ran.out


def test_prompt_tokens_that_came_from_a_cache_are_told_in_the_cell(here: Here, simulator: Simulator) -> None:
    simulator.script("cache_always_hits")
    here.plan(widths=(1,), requests=2)
    assert here("--warmup", "0").code == 0
    (cell,) = here.document()["cells"]
    assert "cached prompt tokens (2 of 2 requests)" in cell["flags"]
    rows = pl.read_parquet(here.out / "requests.parquet")
    assert (rows["cached_tokens"] == rows["usage_prompt_tokens"] - 1).all()
    assert cell["engine"]["cached_tokens"] == rows["cached_tokens"].sum()
    uncached = (rows["usage_prompt_tokens"] - rows["cached_tokens"]) / rows["ttft_ns"] * 1e9
    assert cell["figures"]["prefill_tok_s"]["value"] == pytest.approx(uncached.median()), "of what was computed alone"


def test_a_study_measures_nothing_with_a_client_that_does_not_keep_up(
    here: Here, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = parse_plan(here.plan(widths=(2,), requests=2).read_bytes(), where="plan.json")
    for name, value in (("_CALIBRATIONS", 2), ("_CALM_S", 0.0)):
        monkeypatch.setattr(f"engcmp_assets.throughput_events.steps.{name}", value)
    for name in ("_ALLOWED_MS", "_ALLOWED_MS_PER_STREAM"):
        monkeypatch.setattr(f"engcmp_resources.load.calibration.{name}", 0.0)
    since, said = len(simulator.truth(path=CHAT)), list[str]()
    target = Target(Address.parse(here.url), strict=True)
    with pytest.raises(EngcmpError, match=r"too busy to time 2 streams: .*token was read .* ms late"):
        measure_plan(plan, target, here.out, calibrated=True, say=said.append)
    assert sum(line.startswith("calibration: ") for line in said) == 2, "it was tried as often as is allowed"
    assert len(chats(simulator, since)) == 1, "the request that asks what the server takes, and none that is timed"
    assert not list(here.out.glob("parts/*"))


def test_the_collection_before_a_cell_looks_at_nothing_that_was_there_before_the_first(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.plan(widths=(1, 2), requests=2)
    assert here("--help").code == 0  # loads the command, which keeps what it loads out of all collections
    gc.unfreeze()
    looked_at: list[int] = []
    collect = gc.collect

    def counted() -> int:
        looked_at.append(len(gc.get_objects()))
        return collect()

    monkeypatch.setattr("engcmp_resources.load.driving.gc.collect", counted)
    assert here("--warmup", "0").code == 0
    # One when the client is rehearsed, the one before all cells, then one a cell.
    rehearsed, before, *cells = looked_at
    assert len(cells) == 2 and max(cells) < min(rehearsed, before) / 4
    assert gc.get_freeze_count() == 0, "whoever goes on in this process has its collections back"


# What is kept, and continued.


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_is_finished_survives_every_end_and_the_rest_is_measured_by_the_same_call(
    here: Here, simulator: Simulator, how: signal.Signals
) -> None:
    here.plan(widths=(1, 2), requests=2, tokens=12)
    since = len(simulator.truth(path=CHAT))
    simulator.script({"name": "stall", "at": {"token": 4, "request": {"from": simulator_requests(simulator) + 3}}})
    process = here.started("--warmup", "0")
    first = here.out / "parts" / "0000"
    wait_for(first)
    until = time.monotonic() + 60
    while len(chats(simulator, since)) < 5:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.2)  # in the middle of the second cell
    process.send_signal(how)
    _, said = process.communicate(timeout=30)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    if how == signal.SIGINT:
        assert said.splitlines()[-1] == "engcmp: stopped; what is complete is kept, start again to continue"
        assert "Traceback" not in said
    kept = {path.name: path.read_bytes() for path in first.iterdir()}
    assert not (here.out / "cells.json").exists()
    assert not (here.out / "parts" / "0001").exists()
    simulator.script()
    since = len(simulator.truth(path=CHAT))
    assert here("--warmup", "0").code == 0
    assert len(chats(simulator, since)) == 1 + 2, "only the second cell is measured"
    assert {path.name: path.read_bytes() for path in first.iterdir()} == kept
    document = here.document()
    assert [cell["complete"] for cell in document["cells"]] == [True, True]
    assert [cell["session"] for cell in document["cells"]] == [0, 1]
    assert len(document["sessions"]) == 2
    assert pl.read_parquet(here.out / "requests.parquet")["cell_id"].to_list() == ["c1", "c1", "c2", "c2"]


def simulator_requests(simulator: Simulator) -> int:
    """How many requests it has numbered."""
    numbers = [one["request"] for one in simulator.truth() if one["request"] is not None]
    return max(numbers, default=-1) + 1


def test_a_call_with_nothing_left_sends_nothing_and_gives_the_same_files(here: Here, simulator: Simulator) -> None:
    here.plan()
    assert here().code == 0
    before = {name: (here.out / name).read_bytes() for name in FILES}
    (here.out / "events.parquet").unlink()
    (here.out / "cells.json").write_text("{}")
    sent = len(simulator.truth())
    assert here().code == 0
    assert len(simulator.truth()) == sent
    assert {name: (here.out / name).read_bytes() for name in FILES} == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux names the file of a descriptor")
def test_a_cell_is_on_disk_before_it_has_its_name_and_its_name_before_the_next_cell_and_cells_json(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.plan(widths=(1, 3))
    told: list[str] = []
    sync, rename, replace = os.fsync, Path.rename, Path.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        told.append(f"on disk {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def renamed(self: Path, target: Path) -> Path:
        told.append(f"named {target.name}")
        return rename(self, target)

    def replaced(self: Path, target: Path) -> Path:
        told.append(f"named {target.name}")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        patched.setattr(Path, "rename", renamed)
        patched.setattr(Path, "replace", replaced)
        assert here("--warmup", "0").code == 0
    since = 0
    for part in ("0000", "0001"):
        place = told.index(f"named {part}")
        own = ("events.parquet", "requests.parquet", "cell.json", "SHA256.json", f".{part}.partial")
        assert set(told[since:place]) >= {f"on disk {name}" for name in own}
        since = place
    assert "on disk parts" in told[told.index("named 0000") : told.index("on disk .0001.partial")]
    assert "on disk parts" in told[told.index("named 0001") : told.index("named events.parquet")]
    assert told[-3:] == ["named requests.parquet", "named cells.json", "on disk out"]


def test_the_tables_of_one_cell_are_the_part_s_own_and_another_measurement_leaves_the_earlier_ones(here: Here) -> None:
    here.plan(widths=(1,))
    assert here().code == 0
    assert (here.out / "events.parquet").samefile(here.out / "parts" / "0000" / "events.parquet")
    before = (here.out / "events.parquet").read_bytes()
    assert here("--again", "c1").code == 0
    assert (here.out / "earlier" / "0000-1" / "events.parquet").read_bytes() == before
    assert (here.out / "events.parquet").read_bytes() != before
    assert (here.out / "events.parquet").samefile(here.out / "parts" / "0000" / "events.parquet")


def test_half_a_cell_that_a_kill_left_is_measured_again(here: Here) -> None:
    here.plan(widths=(1,))
    assert here().code == 0
    half = here.out / "parts" / ".0000.partial"
    (here.out / "parts" / "0000").rename(half)
    (half / "events.parquet").write_bytes(b"PAR1")
    assert here().code == 0
    assert pl.read_parquet(here.out / "events.parquet").height > 0
    assert [one.name for one in (here.out / "parts").iterdir()] == ["0000"]
    assert here.document()["cells"][0]["session"] == 1


@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_finished_cell_that_was_changed_is_named_and_not_joined(here: Here, harm: str) -> None:
    here.plan(widths=(1,))
    assert here().code == 0
    part = here.out / "parts" / "0000"
    table = part / "requests.parquet"
    if harm == "gone":
        (part / "cell.json").unlink()
    else:
        content = table.read_bytes()
        table.write_bytes(content[:40] if harm == "cut" else content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    again = here()
    assert again.code == 1
    assert "a finished cell" in again.err and str(part) in again.err and "remove the folder 0000" in again.err
    assert "Traceback" not in again.err


def test_a_server_that_is_stuck_at_the_first_request_ends_at_the_deadline(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(1,))
    simulator.script({"name": "stuck_but_healthy"})
    stuck = here("--first-byte-s", "0.5")
    assert stuck.code == 1 and "no answer to a first short request within 0.5 s" in stuck.err
    assert not (here.out / "cells.json").exists()


def test_the_warm_up_of_a_wide_cell_has_no_more_requests_than_the_cell(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(64,), requests=2)
    since = len(simulator.truth(path=CHAT))
    assert here().code == 0
    assert len(chats(simulator, since)) == 1 + 2 + 2, "what is asked for, the warm-up, the cell"


@pytest.mark.parametrize("change", ["plan", "server"])
def test_cells_of_another_plan_or_server_are_never_mixed(here: Here, change: str) -> None:
    here.plan(widths=(1,))
    assert here().code == 0
    before = (here.out / "cells.json").read_bytes()
    if change == "plan":
        here.plan(widths=(1,), tokens=11)
    else:
        here.url = here.url.replace("127.0.0.1", "localhost")
    ran = here()
    assert ran.code == 1
    assert f"the cells there are of a {change} that is another" in ran.err
    assert (here.out / "cells.json").read_bytes() == before


def test_a_folder_with_other_things_is_left_alone(here: Here) -> None:
    here.plan(widths=(1,))
    here.out.mkdir()
    (here.out / "mine.txt").write_text("x")
    ran = here()
    assert ran.code == 1
    assert "the folder holds mine.txt" in ran.err
    assert [path.name for path in here.out.iterdir() if not path.name.startswith(".")] == ["mine.txt"]


def test_two_calls_never_measure_into_one_folder(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(1,), requests=1)
    simulator.script("stuck_but_healthy")
    process = here.started("--warmup", "0")
    wait_for(here.out / "plan-digests.json")
    ran = here()
    process.kill()
    process.communicate()
    assert ran.code == 1
    assert "another process measures into this folder" in ran.err


# what can be wrong


def one_line(ran: Ran) -> str:
    assert ran.code == 1
    (line,) = [one for one in ran.err.splitlines() if one.startswith("engcmp: ")]
    assert "Traceback" not in ran.err
    return line


def test_an_engine_that_others_use_is_not_measured(
    here: Here, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.plan(widths=(1,))
    monkeypatch.setattr("engcmp_assets.throughput_events.steps._IDLE_WAIT_S", 0.2)
    simulator.script({"name": "stall", "at": {"token": 2, "request": simulator_requests(simulator)}})
    host, port = simulator.url.removeprefix("http://").split(":")
    body = json.dumps(
        {"model": "sim/model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "stream": True}
    ).encode()
    with socket.create_connection((host, int(port))) as other:
        other.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        other.recv(100)
        assert "the engine is not idle: 1 requests run or wait" in one_line(here())
    assert not (here.out / "run.json").exists()


def test_a_server_that_is_not_there_is_said_with_its_address(here: Here) -> None:
    here.plan(widths=(1,))
    here.url = "http://127.0.0.1:9"
    assert "nothing answers" in one_line(here())


@pytest.mark.parametrize("content", ["{", "[]", '{"model": "m", "cells": [{"cell_id": "c"}]}'])
def test_a_plan_that_is_wrong_is_one_line_with_its_place(here: Here, content: str) -> None:
    (here.folder / "plan.json").write_text(content)
    assert "plan.json" in one_line(here())


def test_a_plan_that_is_not_there_is_one_line(here: Here) -> None:
    assert "cannot be read" in one_line(here())


def test_the_key_comes_from_a_variable_and_is_written_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sk-planted-93")
    monkeypatch.setenv("MY_KEY", "sk-planted-93")
    with running_simulator("vllm", api_key_file=tmp_path / "key") as simulator:
        here = Here(tmp_path, simulator.url, capsys)
        here.plan(widths=(1,), requests=2)
        assert "the server answers 401" in one_line(here())
        assert here("--key-env", "MY_KEY").code == 0
    for path in [one for one in here.out.rglob("*") if one.is_file()]:
        assert b"sk-planted-93" not in path.read_bytes(), path


def test_a_variable_without_a_key_is_one_line(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.plan(widths=(1,))
    monkeypatch.delenv("NO_KEY", raising=False)
    assert "NO_KEY holds no key" in one_line(here("--key-env", "NO_KEY"))
    monkeypatch.setenv("NO_KEY", "two\nlines")
    line = one_line(here("--key-env", "NO_KEY"))
    assert "NO_KEY holds no key" in line
    assert "lines" not in line


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["throughput", "--help"])
    assert "Example: engcmp throughput --base-url" in capsys.readouterr().out


def test_progress_is_told_while_a_cell_takes_long(here: Here, simulator: Simulator) -> None:
    here.plan(widths=(1,), requests=6, tokens=4)
    simulator.script(ttft_ms=800.0)
    ran = here("--warmup", "0")
    lines = [line for line in ran.err.splitlines() if "requests" in line]
    assert len(lines) >= 3
    assert re.match(r"cell 1 of 1 c1, \d/6 requests", lines[0])


def test_an_open_loop_of_a_plan_is_measured_from_the_scheduled_time(here: Here, simulator: Simulator) -> None:
    path = here.plan(widths=(1,), requests=5, tokens=3)
    document = json.loads(path.read_text())
    document["cells"][0] |= {"rate_per_s": 50.0, "arrival": "constant"}
    path.write_text(json.dumps(document))
    assert here().code == 0
    rows = pl.read_parquet(here.out / "requests.parquet").sort("scheduled_at_ns")
    assert rows["scheduled_at_ns"].diff().drop_nulls().to_list() == [20_000_000] * 4
    assert here.document()["cells"][0]["loop"] == "open"
