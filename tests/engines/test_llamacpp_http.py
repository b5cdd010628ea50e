"""The client of llama.cpp's server alone, against a small server that pretends to be it: answers that it never gives."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engcmp_resources.engines._llamacpp_http import BrokenOff, CompletionClient, Late
from engcmp_resources.errors import EngcmpError

ARM = "q4_0/llamacpp@b11549"
SMALL = 4
PROBABILITIES = {2: 0.5, 0: 0.25, 1: 0.125, 3: 0.125}
Answer = Callable[[BaseHTTPRequestHandler], None]


def completion(**changed: Any) -> dict[str, Any]:
    """The server's answer for the row after three tokens, most probable first."""
    entries = [{"id": token, "token": "x", "logprob": float(np.log(p))} for token, p in PROBABILITIES.items()]
    distribution = {"id": 2, "logprob": -0.6, "top_logprobs": changed.pop("entries", entries)}
    answer = {"model": "m", "content": "a", "timings": {"prompt_n": 1, "cache_n": 2}, "index": 0}
    return answer | {"completion_probabilities": [distribution]} | changed


@contextmanager
def pretending(answer: Answer) -> Iterator[CompletionClient]:
    """A client of a server that gives `answer` to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server: HTTPServer = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        yield CompletionClient(address, key="key-of-the-test", label=ARM, model="m", vocab=SMALL)
    finally:
        server.shutdown()
        server.server_close()


def send(body: Any, *, status: int = 200, kind: str = "application/json", length: int | None = None) -> Answer:
    """An answer with this body; `length` is what its header claims."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(content) if length is None else length))
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def decode(client: CompletionClient, deadline_s: float = 10.0) -> npt.NDArray[np.float32]:
    return client.decode_row([5, 6, 7], doing="decoding row 2 of window w", deadline_s=deadline_s)[0]


def test_a_row_is_put_in_the_order_of_token_ids() -> None:
    with pretending(send(completion())) as client:
        assert decode(client).tobytes() == np.log([0.25, 0.125, 0.5, 0.125]).astype("<f4").tobytes()


def test_the_servers_number_for_no_probability_is_read_as_minus_infinity() -> None:
    values = {0: 0.0, 1: -3.4028234663852886e38, 2: -3.4028234663852886e38, 3: -200.0}
    entries = [{"id": token, "logprob": value} for token, value in values.items()]
    with pretending(send(completion(entries=entries))) as client:
        assert decode(client).tolist() == [0.0, -np.inf, -np.inf, -200.0]


ENTRIES = completion()["completion_probabilities"][0]["top_logprobs"]
HTML = b"<!DOCTYPE html><html><body>Welcome to the wiki</body></html>"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (send(HTML, kind="text/html"), "the answer is no JSON: '<!DOCTYPE html>.*another program answers"),
        (send({"hello": "world"}), "missing required field `model`: .*hello.*another program answers"),
        (send([]), "Expected `object`, got `array`"),
        (send(json.dumps(completion()).encode()[:-20]), "the answer is no JSON"),
        (send(b"\xff\xfe"), "the answer is no JSON"),
        (send(b""), "the answer is no JSON: nothing"),
        (send({"error": {"code": 500, "message": "out of luck"}}, status=500), "HTTP status 500: .*out of luck"),
        (send(b"", status=204), "HTTP status 204"),
        (send(HTML, status=302), "HTTP status 302"),
        (send(completion(model="other")), "serves the model 'other', not 'm'"),
        (send(completion(timings={"prompt_n": 3, "cache_n": 0})), "took 0 tokens from its cache and processed 3"),
        (send(completion(timings={"prompt_n": 1, "cache_n": 1})), "took 1 tokens from its cache and processed 1"),
        (send(completion(timings={"prompt_n": 1})), "missing required field `cache_n`"),
        (send(completion(completion_probabilities=[])), "0 distributions for one token"),
        (send(completion(entries=[])), "0 probabilities for 4 tokens; token 0 has 0"),
        (send(completion(entries=ENTRIES[:-1])), "3 probabilities for 4 tokens; token 3 has 0"),
        (send(completion(entries=[*ENTRIES[:-1], ENTRIES[0]])), "4 probabilities for 4 tokens; token 2 has 2"),
        (send(completion(entries=[*ENTRIES, {"id": 4, "logprob": -9.0}])), "token 4, the vocabulary has 4"),
        (send(completion(entries=[*ENTRIES[:-1], {"id": -1, "logprob": -2.0}])), "token -1"),
        (send(completion(entries=[*ENTRIES[:-1], {"id": 3, "logprob": None}])), "Expected `float`, got `null`"),
        (send(completion(entries=[*ENTRIES[:-1], {"id": 3, "logprob": -9.0}])), "sum to 0.875123, not to 1"),
        (send(completion(entries=[*ENTRIES[:-1], {"id": 3, "logprob": 800.0}])), "sum to inf"),
    ],
)
def test_an_answer_that_is_no_row_is_refused(answer: Answer, words: str) -> None:
    with pretending(answer) as client, pytest.raises(EngcmpError, match=words) as refused:
        decode(client)
    assert ARM in str(refused.value)
    assert "row 2 of window w" in str(refused.value)
    assert "127.0.0.1" in str(refused.value)


def test_a_body_that_breaks_off_and_a_closed_port_are_told_apart_from_wrong_answers() -> None:
    whole = json.dumps(completion()).encode()
    broken = pytest.raises(BrokenOff, match="broke off while decoding row 2 of window w")
    with pretending(send(whole, length=len(whole) + 1)) as client, broken:
        decode(client)
    with broken:
        decode(client)


def test_an_answer_that_trickles_is_late() -> None:
    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            gone.set()  # as it should

    gone = threading.Event()
    with pretending(trickle) as client, pytest.raises(Late, match="in time while decoding row 2"):
        decode(client, deadline_s=0.3)
    assert gone.wait(30), "the client did not go before the end"


def test_an_answer_without_an_end_does_not_fill_memory() -> None:
    def flood(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * 65_536)
        except OSError:
            pass  # the client has gone, as it should

    with pretending(flood) as client, pytest.raises(EngcmpError, match="an answer of more than"):
        decode(client)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (send(HTML, kind="text/html"), "getting ready: the answer is no JSON"),
        (send({"status": "loading model"}), "the server's health is 'loading model'"),
        (send({"error": {"code": 503, "message": "Loading model"}}, status=503), "HTTP status 503: .*Loading model"),
        (send({"status": "ok"}), "missing required field `data`"),
    ],
)
def test_a_server_that_is_not_ready_or_another_is_refused(answer: Answer, words: str) -> None:
    with pretending(answer) as client, pytest.raises(EngcmpError, match=words):
        client.get_ready(10.0)
