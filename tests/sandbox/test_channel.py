"""What comes back over the private channel, and an exchange with an end that misbehaves."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from engcmp_resources.sandbox.channel import Channel
from engcmp_resources.sandbox.exchange import exchange
from engcmp_resources.sandbox.records import BrokenSandboxError, Limits


def lines(channel: Channel, *words: dict[str, Any]) -> bytes:
    nonce = json.loads(channel.request[8:])["nonce"]
    return b"".join(f"{nonce} {json.dumps(word)}\n".encode() for word in words)


READY, DONE, END = {"ready": "3.11.2"}, {"output": "eA==", "exit": 0, "cause": None}, {"end": "complete"}


def test_a_whole_run_is_read() -> None:
    channel = Channel("program", [b"a", b"b"], Limits())
    ran = channel.read(lines(channel, READY, DONE, DONE, END), None, "")
    assert (ran.ending, ran.python, [call.output for call in ran.calls]) == ("complete", "3.11.2", [b"x", b"x"])


@pytest.mark.parametrize(
    ("words", "cut", "ending"),
    [
        ([READY, DONE], None, "lost"),
        ([READY, DONE], "time", "time"),
        ([READY, DONE], "output", "output"),
        ([READY, DONE, {"end": "time"}], None, "time"),
        ([READY, DONE, END], None, "lost"),  # one of two calls: it cannot be complete
    ],
)
def test_a_run_that_is_not_whole_says_why(words: list[dict[str, Any]], cut: Any, ending: str) -> None:
    channel = Channel("program", [b"a", b"b"], Limits())
    ran = channel.read(lines(channel, *words), cut, "")
    assert (ran.ending, len(ran.calls)) == (ending, 1)


def test_a_line_without_the_nonce_is_foreign_and_nothing_after_it_counts() -> None:
    channel, other = (Channel("program", [b"a"], Limits()) for _ in range(2))
    forged = lines(other, DONE, END)
    ran = channel.read(lines(channel, READY) + forged + lines(channel, DONE, END), None, "")
    assert (ran.ending, ran.calls) == ("foreign", ())


def test_a_supervisor_that_was_never_ready_is_a_broken_sandbox() -> None:
    channel = Channel("program", [b"a"], Limits())
    for data in (b"", b"Traceback\n", lines(channel, DONE, END), lines(channel, READY)[:-1]):
        with pytest.raises(BrokenSandboxError, match="the sandbox did not start: bwrap: no permission"):
            channel.read(data, None, "bwrap: no permission\n")


def talk(program: str, request: bytes, seconds: float = 30, most: int = 1 << 20) -> tuple[bytes, str | None]:
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        until = time.monotonic() + seconds
        try:
            return exchange(process.stdout.fileno(), process.stdin.fileno(), request, until=until, most_bytes=most)
        finally:
            process.kill()
            process.stdin.raw.close()


def test_a_long_request_is_sent_while_the_answer_is_read() -> None:
    echo = """
import sys
left = 3_000_000
while left:
    block = sys.stdin.buffer.read1(4096)
    left -= len(block)
    sys.stdout.buffer.write(block * 2)
sys.stdout.flush()
"""
    assert talk(echo, b"x" * 3_000_000, most=7_000_000) == (b"x" * 6_000_000, None)


def test_an_end_that_reads_nothing_floods_or_is_silent() -> None:
    assert talk("print('early', flush=True); import os; os.close(0)", b"x" * 1_000_000) == (b"early\n", None)
    assert talk("while True: print('x' * 9999)", b"", most=50_000) == (b"".join([b"x" * 9999 + b"\n"] * 5), "output")
    assert talk("import time; time.sleep(99)", b"x" * 1_000_000, seconds=1) == (b"", "time")


def test_one_socket_may_be_both_ends() -> None:
    ours, theirs = socket.socketpair()

    def answer() -> None:
        got = b""
        while len(got) < 500_000:
            got += theirs.recv(1 << 16)
        theirs.sendall(got[::-1])
        theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    request = os.urandom(500_000)
    data, cut = exchange(ours.fileno(), ours.fileno(), request, until=time.monotonic() + 30, most_bytes=1 << 20)
    thread.join()
    ours.close()
    assert (data, cut) == (request[::-1], None)
