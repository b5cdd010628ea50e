"""The loops that send requests: how many at once, when, and what the client tells of itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from asking import QUICK, driven, plan_of
from raw_server import LAST_CHUNK, STREAM, Part, chunked, raw_server

from engcmp_resources.load.driving import Pace, Wire, drive
from engcmp_resources.load.streams import Address
from tests.simulator.running import running_simulator

BODY = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7],"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
CHAT = "/v1/chat/completions"


def overlapping(spans: list[tuple[int, int]]) -> int:
    """The most spans that hold at one moment."""
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    at_once = most = 0
    for _, step in moments:
        at_once += step
        most = max(most, at_once)
    return most


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_a_closed_loop_keeps_so_many_streams_at_once_and_no_more(concurrency: int) -> None:
    with running_simulator("vllm", timing={"ttft_ms": 40.0, "itl_ms": 5.0}) as simulator:
        _, records = driven(simulator.url, plan_of(3 * concurrency, tokens=6, cell={"concurrency": concurrency}))
        truth = simulator.truth(path=CHAT)
    assert [one.row["status"] for one in records] == ["ok"] * (3 * concurrency)
    spans = [(one["received_ns"], one["events"][-1]["sent_ns"]) for one in truth]
    assert overlapping(spans) == concurrency
    assert len(spans) == 3 * concurrency


def test_a_closed_loop_wider_than_its_requests_sends_each_once() -> None:
    with raw_server([*chunked(BODY), LAST_CHUNK]) as server:
        _, records = driven(server.url, plan_of(3, cell={"concurrency": 16}))
    assert [one.row["status"] for one in records] == ["ok"] * 3
    assert len(server.requests) == 3


@pytest.mark.parametrize("arrival", ["poisson", "constant"])
def test_an_open_loop_sends_on_time_however_slow_the_answers_are(arrival: str) -> None:
    cell = {"rate_per_s": 40.0, "arrival": arrival, "arrival_seed": 3}
    with running_simulator("vllm", timing={"ttft_ms": 300.0}, max_seqs=2) as simulator:
        done, records = driven(simulator.url, plan_of(10, tokens=2, cell=cell))
    due = Pace(1, 40.0, arrival, 3).due_s(10)
    rows = [one.row for one in records]
    assert [row["status"] for row in rows] == ["ok"] * 10
    start = rows[0]["scheduled_at_ns"]
    assert [row["scheduled_at_ns"] - start for row in rows] == [round(one * 1e9) for one in due]
    assert all(row["t0_ns"] >= row["scheduled_at_ns"] for row in rows)
    # Two at a time, 300 ms each: the last ones wait a second and more, and that shows from the scheduled time.
    assert rows[-1]["t0_ns"] + rows[-1]["ttft_ns"] - rows[-1]["scheduled_at_ns"] > 1e9
    assert done.client["asked_rate_per_s"] == 40.0


def test_the_gaps_of_a_poisson_process_follow_from_the_seed_and_have_its_mean() -> None:
    one, same, other = (Pace(1, 10.0, "poisson", seed).due_s(4000) for seed in (1, 1, 2))
    assert one == same != other
    assert one == sorted(one)
    assert one[0] == 0
    assert one[-1] / 3999 == pytest.approx(0.1, rel=0.05)
    assert Pace(1, 10.0, "constant").due_s(3) == [0.0, 0.1, 0.2]


def test_requests_that_go_out_late_make_the_client_the_limit() -> None:
    with raw_server([*chunked(BODY), LAST_CHUNK]) as server:
        address = Address.parse(server.url)
        wires = [Wire(f"r{number}", address.content(CHAT, b"{}", None)) for number in range(6)]

        def stall(done: int) -> None:
            threading.Event().wait(0.1)  # the event loop stands still

        found = drive(address, wires, Pace(1, 200.0, "constant"), deadlines=QUICK, on_done=stall).client
    assert found["limit"]
    assert "requests went out late" in found["reasons"]
    assert found["scheduling_delay_p99_ms"] > 20
    assert "the event loop was late" in found["reasons"]
    assert found["achieved_share"] < 0.95
    assert "the rate that was asked for was not reached" in found["reasons"]


def test_a_client_that_had_time_is_not_the_limit() -> None:
    with running_simulator("vllm", timing={"ttft_ms": 100.0, "itl_ms": 10.0}) as simulator:
        done, _ = driven(simulator.url, plan_of(2, tokens=30, cell={"concurrency": 2}))
    assert done.client["cpu_share"] < 0.5
    assert done.client["wall_s"] > 0.3
    assert "one core was busy" not in done.client["reasons"]


def test_a_429_that_states_no_time_is_waited_for_a_second_whatever_one_before_it_stated() -> None:
    def refusal(*headers: bytes) -> list[Part]:
        return [b"\r\n".join([b"HTTP/1.1 429 Busy", b"Content-Length: 0", *headers, b"", b""])]

    answers = refusal(b"Retry-After: 0"), refusal(), [*chunked(BODY), LAST_CHUNK]
    with raw_server(*answers) as server:
        _, (one,) = driven(server.url, plan_of(), retries_429=2)
    assert (one.row["status"], one.row["retries"]) == ("ok", 2)
    assert one.row["t0_ns"] - one.row["scheduled_at_ns"] > 1e9


def test_bodies_beyond_a_few_mb_go_to_a_file_that_has_no_name_and_read_the_same(tmp_path: Path) -> None:
    body = b"data: " + b"x" * (5 << 20) + b"\n\n"
    with raw_server([STREAM + b"Content-Length: %d\r\n\r\n" % len(body) + body]) as server:
        address = Address.parse(server.url)
        wires = [Wire(f"r{number}", address.content(CHAT, b"{}", None)) for number in range(4)]
        done = drive(address, wires, Pace(2), deadlines=QUICK, folder=tmp_path)
        assert not list(tmp_path.iterdir())
    assert [bytes(one.content()) == body for one in done.exchanges] == [True] * 4
    assert [one.put_away is None for one in done.exchanges].count(False) == 3
    assert sum(len(one.body) for one in done.exchanges) < 8 << 20


def test_ctrl_c_ends_the_cell_at_once_and_the_collector_works_again() -> None:
    with raw_server([*chunked(BODY), 30.0]) as server:
        address = Address.parse(server.url)

        def interrupt_in_mid_answer() -> None:
            while not any(server.writes_ns):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        interrupt = threading.Thread(target=interrupt_in_mid_answer)
        with pytest.raises(KeyboardInterrupt):
            interrupt.start()
            drive(address, [Wire("r", address.content(CHAT, b"{}", None))], Pace(1), deadlines=QUICK)
        interrupt.join()
    assert gc.isenabled()
