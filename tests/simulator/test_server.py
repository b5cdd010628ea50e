"""What goes over the wire, byte by byte, and how the simulator is started."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from urllib.parse import urlsplit

import pytest

from .options import HELP, Options, parse
from .running import CHECKOUT, NotStarted, Simulator, command_of, running_simulator
from .talking import ask, chat_body, chat_stream


def raw(simulator: Simulator, body: dict[str, object]) -> bytes:
    """The answer to a chat, until the connection is closed."""
    address = urlsplit(simulator.url)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    pieces = []
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        connection.sendall(head.encode() + content)
        while piece := connection.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def test_each_event_is_one_chunk_of_the_transfer(vllm: Simulator) -> None:
    head, _, body = raw(vllm, chat_body(stream=True, max_tokens=4)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"Content-Type: text/event-stream" in head
    events = []
    while body:
        size, _, body = body.partition(b"\r\n")
        events.append(body[: int(size, 16)])
        assert body[int(size, 16) : int(size, 16) + 2] == b"\r\n"
        body = body[int(size, 16) + 2 :]
    assert len(events) == 1 + 4 + 1 + 1, "role, four tokens, [DONE], the empty chunk that ends the transfer"
    assert events[-1] == b""
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in events[:-1])


def test_a_connection_serves_one_request_after_another(vllm: Simulator) -> None:
    address = urlsplit(vllm.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        for _ in range(2):
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b'{"version":"0.33.0"}' in connection.recv(4096)


def test_sixteen_streams_at_once_are_each_their_own(vllm: Simulator) -> None:
    heard: dict[int, list[list[int]]] = {}

    def one(index: int) -> None:
        heard[index] = chat_stream(vllm, f"Stream {index}", max_tokens=20, ignore_eos=True).token_ids

    threads = [threading.Thread(target=one, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {sum(map(len, ids)) for ids in heard.values()} == {20}
    for index in range(16):
        assert chat_stream(vllm, f"Stream {index}", max_tokens=20, ignore_eos=True).token_ids == heard[index]


def test_more_requests_than_it_runs_wait() -> None:
    with running_simulator("vllm", max_seqs=1, timing={"ttft_ms": 1500.0}) as simulator:
        threads = [threading.Thread(target=chat_stream, args=(simulator,), kwargs={"max_tokens": 1}) for _ in range(2)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 10
        while "vllm:num_requests_waiting{" not in (text := ask(simulator, "/metrics").text) or " 1\n" not in text:
            assert time.monotonic() < until
            time.sleep(0.02)
        for thread in threads:
            thread.join()
        one, other = (record["tokens"][0]["sent_ns"] for record in simulator.truth(path="/v1/chat/completions"))
        assert abs(one - other) >= 1500e6


def test_the_body_must_be_an_object_and_the_path_one_that_is_served(vllm: Simulator) -> None:
    assert ask(vllm, "/v1/chat/completions", [1]).status_code == 400
    assert ask(vllm, "/v1/chat/completions", {"messages": []}).status_code == 400
    assert ask(vllm, "/nowhere").status_code == 404


def test_the_first_line_has_the_address() -> None:
    process = subprocess.Popen(command_of("sglang"), cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["dialect"] == "sglang"
        assert first["pid"] == process.pid
        assert urlsplit(first["address"]).hostname == "127.0.0.1"
    finally:
        process.kill()
        process.communicate()


def test_options_are_read_and_each_is_explained() -> None:
    assert set(HELP) == set(Options.__slots__)
    read = parse(
        ["--dialect", "cuteafd", "--no-full-prefill-logits", "--perturb", "0.5", "--noise-seed", "3", "--fork"]
    )
    assert (read.dialect, read.full_prefill_logits, read.perturb, read.noise_seed) == ("cuteafd", False, 0.5, 3)
    assert (read.fork, read.dump_root, read.port) == (True, None, 0)
    with pytest.raises(SystemExit):
        parse(["--dialect", "other"])


def test_a_start_that_fails_is_told_with_what_was_printed() -> None:
    with (
        pytest.raises(NotStarted, match=r"(?s)ended with 2: .*unrecognized arguments"),
        running_simulator("vllm", wrong=1),
    ):
        pass
