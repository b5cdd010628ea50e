"""The null server sends what it says and when it says; the calibration reads it, and tells a client that does not keep up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from asking import QUICK, driven, kinds, plan_of
from raw_server import raw_server

from engcmp_resources.load import calibration, driving
from engcmp_resources.load.calibration import calibrate, stamp_errors_ms, wires
from engcmp_resources.load.driving import Pace, drive
from engcmp_resources.load.null_server import STAMPS, null_server
from engcmp_resources.load.streams import Address


def test_the_null_server_sends_so_many_tokens_at_set_times() -> None:
    with null_server(ttft_ms=60, itl_ms=20) as url:
        done, (one, _) = driven(url, plan_of(2, tokens=5))
    assert (one.row["status"], one.row["n_tokens"], one.row["flags"]) == ("ok", 5, [])
    assert kinds(one) == ["role", *["answer"] * 5, "finish", "usage", "done"]
    stamps = [(int(found[1]), int(found[2])) for found in STAMPS.finditer(done.exchanges[0].content())]
    sent, read = [one for one, _ in stamps], stamps[0][1]
    assert all(at - read >= 59e6 + 20e6 * number for number, at in enumerate(sent)), "never before its time"
    assert one.row["t0_ns"] < read


def test_a_burst_has_all_events_at_once_and_every_token() -> None:
    with null_server(burst=True) as url:
        _, records = driven(url, plan_of(4, tokens=3000, cell={"concurrency": 2}))
    assert [(one.row["status"], one.row["n_tokens"]) for one in records] == [("ok", 3000)] * 4


def test_errors_are_the_clients_stamp_less_the_servers() -> None:
    with null_server(ttft_ms=10, itl_ms=1) as url:
        done = drive(Address.parse(url), wires(url, 3, 8), Pace(3), deadlines=QUICK)
    first, last = stamp_errors_ms(done.exchanges)
    assert len(first) == len(last) == 3
    assert all(error > 0 for error in (*first, *last)), "no client can read before the server writes"
    for one in done.exchanges:
        one.read_stamps = type(one.read_stamps)("q", [stamp + 50_000_000 for stamp in one.read_stamps])
    later, _ = stamp_errors_ms(done.exchanges)
    assert [new - old for new, old in zip(later, first, strict=True)] == pytest.approx([50.0] * 3)


def test_a_calibration_says_what_the_client_added_and_what_is_allowed() -> None:
    found = calibrate(4)
    document = found.as_json()
    assert (document["concurrency"], document["requests"]) == (4, 12)
    assert 0 < document["first_token_p50_ms"] <= document["first_token_p99_ms"]
    assert document["passed"] is not bool(document["reasons"])
    assert document["allowed_p99_ms"] == pytest.approx(5.5)


def test_a_client_that_is_late_fails_the_calibration_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_ALLOWED_MS", 0.0)
    monkeypatch.setattr(calibration, "_ALLOWED_MS_PER_STREAM", 0.0)
    found = calibrate(2)
    assert not found.passed
    assert any("token was read" in reason for reason in found.reasons)


def test_a_client_without_time_left_fails_the_calibration_whatever_its_stamps_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "_ALLOWED_MS", 60_000.0)
    for name in ("_LAG_P99_MS", "_SCHEDULING_P99_MS", "_CPU_SHARE"):
        monkeypatch.setattr(driving, name, -1.0)
    found = calibrate(2)
    assert not found.passed
    assert found.reasons == ("the event loop was late", "requests went out late", "one core was busy")


def test_streams_of_the_null_server_that_do_not_come_whole_fail_the_calibration() -> None:
    with raw_server(["close"]) as server:
        done = drive(Address.parse(server.url), wires(server.url, 2, 3), Pace(1), deadlines=QUICK)
    assert stamp_errors_ms(done.exchanges) == ([], [])


def test_the_null_server_ends_with_whoever_started_it() -> None:
    lines = ["import time", "from engcmp_resources.load.null_server import null_server", "with null_server() as url:"]
    code = "\n".join([*lines, "  print(url, flush=True)", "  time.sleep(60)"])
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    url = parent.stdout.readline().strip()
    driven(url, plan_of())
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    until = time.monotonic() + 10
    while driven(url, plan_of())[1][0].row["cause"] != "connection_refused":
        assert time.monotonic() < until
        time.sleep(0.05)
    parent.stdout.close()


def test_128_streams_run_at_once_without_a_limit_of_connections() -> None:
    with null_server(ttft_ms=1500, itl_ms=1) as url:
        done, records = driven(url, plan_of(128, tokens=3, cell={"concurrency": 128}))
    assert {one.row["status"] for one in records} == {"ok"}
    stamps = [STAMPS.search(one.content()) for one in done.exchanges]
    read, sent = ([int(found[which]) for found in stamps if found] for which in (2, 1))
    assert len(read) == 128
    assert max(read) < min(sent), "every request had been read before the first token was written"
