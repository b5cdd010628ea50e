"""One stream over real HTTP: every framing, line end and way to break off, told apart; the server writes bytes that the test gives."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from asking import driven, kinds, only, plan_of
from raw_server import LAST_CHUNK, STREAM, Part, chunked, raw_server

from engcmp_assets.kernel.throughput.requests import CAUSES
from engcmp_resources.errors import EngcmpError
from engcmp_resources.load.streams import Address, Deadlines

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
DONE = b"data: [DONE]\n\n"


OPENSSL = shutil.which("openssl") or "openssl"


def token(text: str = " a", ids: int = 1, **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": [7] * ids}
    return b"data: " + json.dumps({"choices": [choice], **more}, separators=(",", ":")).encode() + b"\n\n"


def usage(tokens: int, prompt: int = 3) -> bytes:
    stated = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return b"data: " + json.dumps({"choices": [], "usage": stated}).encode() + b"\n\n"


WHOLE = [ROLE, token(), token(ids=2), FINISH, usage(3), DONE]


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_reads_the_same_under_every_framing_and_line_end(framing: str, line_end: bytes) -> None:
    events = [event.replace(b"\n", line_end) for event in WHOLE]
    body = b"".join(events)
    answers: dict[str, list[Part]] = {
        "chunked": [*chunked(*events), LAST_CHUNK],
        "length": [STREAM + b"Content-Length: %d\r\n\r\n" % len(body) + body],
        "close": [STREAM + b"Connection: close\r\n\r\n", *events, "close"],
    }
    with raw_server(answers[framing]) as server:
        _, records = driven(server.url, plan_of(2))
    for one in records:
        assert (one.row["status"], one.row["cause"], one.row["flags"]) == ("ok", None, [])
        assert (one.row["n_tokens"], one.row["n_first_tokens"], one.row["usage_completion_tokens"]) == (3, 1, 3)
        assert kinds(one) == ["role", "answer", "answer", "finish", "usage", "done"]
        assert one.tokens.tolist() == [0, 1, 2, 0, 0, 0]
    assert server.connections == (1 if framing != "close" else 2)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_an_event_that_is_split_over_reads_has_the_stamp_of_the_read_that_closed_it(size: int) -> None:
    first, second = token("x"), token("y")
    pieces = [first[at : at + size] for at in range(0, len(first), size)]
    parts: list[Part] = []
    for piece in chunked(*pieces):
        parts += [piece, 0.001 if size < 50 else 0.02]
    with raw_server([*parts, *chunked(second, FINISH, DONE)[1:], LAST_CHUNK]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert one.row["status"] == "ok"
    assert one.tokens.tolist() == [1, 1, 0, 0]
    closed_ns = server.writes_ns[0][len(pieces)]  # the head is write 0
    assert closed_ns <= one.t_ns[0] < closed_ns + 250e6
    assert one.t_ns[0] == one.row["t0_ns"] + one.row["ttft_ns"]


def test_the_clock_starts_on_an_open_connection_and_times_are_those_of_the_writes() -> None:
    parts: list[Part] = [*chunked(ROLE), 0.05, *chunked(token())[1:], 0.05, *chunked(token("b", 2))[1:], 0.05]
    with raw_server([*parts, *chunked(FINISH, DONE)[1:], LAST_CHUNK]) as server:
        _, (one,) = driven(server.url, plan_of())
    role, first, last, done = (server.writes_ns[0][index] for index in (1, 2, 3, 5))
    row = one.row
    for written, read in (
        (role, row["t_first_role_ns"]), (first, row["t0_ns"] + row["ttft_ns"]), (last, row["last_at_ns"]), (done, row["done_at_ns"])
    ):  # fmt: skip
        assert written <= read < written + 250e6
    assert row["t0_ns"] < server.writes_ns[0][0]
    assert row["scheduled_at_ns"] <= row["t0_ns"]


def test_comments_of_every_kind_lose_nothing() -> None:
    events = [
        b": ping\n\n",
        ROLE,
        b": a\n: b\n\n",
        token(),
        b": keep-alive\n" + token("b"),
        b":\n\n",
        b"event: x\nid: 4\n" + token("c"),
    ]
    with raw_server([*chunked(*events, FINISH, b": late\n\n", usage(3), DONE), LAST_CHUNK]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert (one.row["status"], one.row["n_tokens"], one.row["flags"]) == ("ok", 3, [])
    expected = [
        "comment",
        "role",
        "comment",
        "answer",
        "answer",
        "comment",
        "answer",
        "finish",
        "comment",
        "usage",
        "done",
    ]
    assert kinds(one) == expected


def test_an_event_of_several_data_lines_is_one_event() -> None:
    event = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"x"},"token_ids":[1,2]}]}\n\n'
    with raw_server([*chunked(event, FINISH, DONE), LAST_CHUNK]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert (one.row["status"], one.tokens.tolist()) == ("ok", [2, 0, 0])


def test_a_done_without_its_blank_line_is_read_and_flagged() -> None:
    with raw_server([*chunked(token(), FINISH, b"data: [DONE]\n"), LAST_CHUNK]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert one.row["status"] == "ok"
    assert "last event not closed" in one.row["flags"]


BROKEN: dict[str, tuple[list[Part], str, str]] = {
    "no [DONE]": ([*chunked(ROLE, token(), FINISH, usage(1)), LAST_CHUNK], "incomplete", "no_done"),
    "cut clean": ([*chunked(ROLE, token()), LAST_CHUNK], "incomplete", "cut_clean"),
    "error then [DONE]": ([*chunked(ROLE, token(), b'data: {"error":{"message":"oops"}}\n\n', DONE), LAST_CHUNK], "failed", "error_event"),
    "event: error": ([*chunked(token(), b'event: error\ndata: {"detail":"oops"}\n\n'), LAST_CHUNK], "failed", "error_event"),
    "error: line": ([*chunked(token(), b'error: {"code":500,"message":"oops"}\n\n'), LAST_CHUNK], "failed", "error_event"),
    "object error": ([*chunked(b'data: {"object":"error","message":"oops"}\n\n', DONE), LAST_CHUNK], "failed", "error_event"),
    "reset": ([*chunked(ROLE, token()), 0.1, "reset"], "incomplete", "reset"),
    "closed in the body": ([*chunked(ROLE, token()), 0.05, "close"], "incomplete", "cut_in_body"),
    "closed before a token": ([*chunked(ROLE), "close"], "failed", "cut_in_body"),
    "short of its length": ([STREAM + b"Content-Length: 900\r\n\r\n" + token(), "close"], "incomplete", "cut_in_body"),
    "closed without an answer": (["close"], "failed", "no_answer"),
    "no token": ([*chunked(ROLE, FINISH, usage(0), DONE), LAST_CHUNK], "failed", "no_token"),
    "HTML as a stream": ([STREAM + b"Content-Length: 14\r\n\r\n<html>x</html>"], "failed", "html"),
    "a whole answer": (
        [b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}'], "failed", "not_a_stream"
    ),
    "empty": ([STREAM + b"Content-Length: 0\r\n\r\n"], "failed", "not_a_stream"),
    "half a JSON": ([*chunked(token(), b'data: {"choices":[{"de\n\n', FINISH, DONE), LAST_CHUNK], "failed", "bad_event"),
    "unknown form": ([*chunked(token(), b'data: {"choices":"none"}\n\n', FINISH, DONE), LAST_CHUNK], "failed", "bad_event"),
    "no HTTP": ([b"hello\r\n\r\n", "close"], "failed", "bad_http"),
    "bad chunk": ([*chunked(ROLE, token()), b"zz\r\n"], "incomplete", "bad_http"),
    "status 503": ([b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate"], "failed", "http_503"),
    "stall": ([*chunked(ROLE, token()), 5.0], "incomplete", "stalled"),
    "stall before a token": ([*chunked(ROLE), 5.0], "failed", "stalled"),
    "silence": ([5.0], "failed", "first_byte_deadline"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_every_way_to_break_off_is_told_apart(name: str) -> None:
    answer, status, cause = BROKEN[name]
    with raw_server(answer) as server:
        _, (one,) = driven(server.url, plan_of(), deadlines=Deadlines(first_byte_s=0.4, between_s=0.4, whole_s=20))
    assert (one.row["status"], one.row["cause"]) == (status, cause)
    assert cause in CAUSES or cause.startswith("http_")
    if cause in ("error_event", "http_503"):
        assert "oops" in one.row["detail"] or "late" in one.row["detail"]


def test_a_reply_that_trickles_for_ever_ends_at_the_deadline_of_the_whole() -> None:
    parts: list[Part] = [*chunked(ROLE)]
    for _ in range(200):
        parts += [*chunked(token())[1:], 0.05]
    with raw_server(parts) as server:
        _, (one,) = driven(server.url, plan_of(tokens=500), deadlines=Deadlines(whole_s=0.5))
    assert (one.row["status"], one.row["cause"]) == ("incomplete", "whole_deadline")
    assert 0.4e9 < one.row["done_at_ns"] - one.row["t0_ns"] < 2e9


def test_an_end_after_done_that_is_not_well_is_flagged_and_the_reply_is_whole() -> None:
    with raw_server([*chunked(*WHOLE), "close"]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert (one.row["status"], one.row["flags"]) == ("ok", ["connection did not end well after [DONE]"])


def test_a_refused_connection_is_a_failed_request() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    _, (one,) = driven(url, plan_of())
    assert (one.row["status"], one.row["cause"], one.row["t0_ns"]) == ("failed", "connection_refused", None)


def test_a_connection_that_is_not_made_in_time_is_a_failed_request_that_was_never_sent() -> None:
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # nobody takes them: the queue is full, and what comes after waits
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        began = time.monotonic()
        _, (found,) = driven(f"http://127.0.0.1:{full.getsockname()[1]}", plan_of(), deadlines=Deadlines(connect_s=0.2))
    assert (found.row["status"], found.row["cause"], found.row["t0_ns"]) == ("failed", "connect_deadline", None)
    assert time.monotonic() - began < 5


def test_an_idle_connection_that_the_server_dropped_costs_no_request() -> None:
    whole: list[Part] = [*chunked(*WHOLE), LAST_CHUNK]
    with raw_server([*whole, "close"]) as server:
        _, records = driven(server.url, plan_of(6))
    assert [one.row["status"] for one in records] == ["ok"] * 6
    assert len(server.requests) == 6


def test_a_second_request_is_not_read_into_the_first_ones_answer() -> None:
    answers = [[*chunked(token(str(number)), FINISH, DONE), LAST_CHUNK] for number in range(4)]
    with raw_server(*answers) as server:
        _, records = driven(server.url, plan_of(4))
    assert server.connections == 1
    assert len({one.row["text_sha256"] for one in records}) == 4


def test_an_interim_answer_is_not_the_answer() -> None:
    with raw_server([b"HTTP/1.1 100 Continue\r\n\r\n", *chunked(*WHOLE), LAST_CHUNK]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert (one.row["status"], one.row["http_status"], one.row["n_tokens"]) == ("ok", 200, 3)


def test_a_stream_that_is_labelled_as_json_is_a_stream_all_the_same() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    with raw_server([head, *WHOLE, "close"]) as server:
        _, (one,) = driven(server.url, plan_of())
    assert (one.row["status"], one.row["n_tokens"]) == ("ok", 3)


def test_the_key_is_a_bearer_token_and_the_prefix_of_the_address_is_kept() -> None:
    with raw_server([*chunked(*WHOLE), LAST_CHUNK]) as server:
        driven(f"{server.url}/proxy/v1/", plan_of(), key="secret-1")
    head = server.requests[0].split(b"\r\n\r\n")[0]
    assert head.startswith(b"POST /proxy/v1/chat/completions HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer secret-1\r\n" in head


@pytest.mark.parametrize("text", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:y", "http://x?a=1", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(EngcmpError, match="no address"):
        Address.parse(text)


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(EngcmpError) as refused:
        Address.parse("http://me:secret@host:1")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://host/v1", "http://host:80"),
        ("https://host/api/v1/", "https://host:443/api"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_an_address_with_or_without_v1(text: str, shown: str) -> None:
    assert str(Address.parse(text)) == shown


def test_a_stream_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection = context.wrap_socket(listener.accept()[0], server_side=True)
        got = b""
        while b"\r\n\r\n{" not in got or not got.endswith(b"}"):
            got += connection.recv(65536)
        connection.sendall(b"".join([*chunked(*WHOLE), LAST_CHUNK]))
        connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    _, records = driven(f"https://localhost:{listener.getsockname()[1]}", plan_of())
    thread.join(10)
    listener.close()
    assert (only(records).row["status"], only(records).row["n_tokens"]) == ("ok", 3)
