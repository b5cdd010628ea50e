"""The webhook over loopback: what it is sent, when it is sent again, and that its secrets appear nowhere."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from engcmp_resources.errors import EngcmpError
from engcmp_resources.webhook import ADDRESS, ATTEMPTS, TOKEN, Webhook

SECRET, BEARER = "s3cret-part-of-the-path", "b3arer-token"


class Receiver:
    """An HTTP server that answers as `script` says, its last entry for all further requests, and keeps what it was sent."""

    def __init__(self, script: list[int]) -> None:
        self.script, self.got = script, list[dict[str, Any]]()
        kept = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                kept.got.append({"path": self.path, "headers": dict(self.headers), "body": json.loads(body)})
                status = kept.script.pop(0) if len(kept.script) > 1 else kept.script[0]
                self.send_response(status)
                if status in (301, 302, 307):
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/hook/{SECRET}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made: list[Receiver] = []

    def make(*script: int) -> Receiver:
        made.append(Receiver(list(script)))
        return made[-1]

    yield make
    for one in made:
        one.server.shutdown()
        one.server.server_close()


def hook(address: str) -> Webhook:
    found = Webhook.of_environment({ADDRESS: address, TOKEN: BEARER})
    assert found is not None
    return found


def test_a_message_is_posted_with_its_key_and_the_token(receivers: Any) -> None:
    one = receivers(204)
    hook(one.address).send({"text": "slower"}, key="k1", wait=lambda _s: None)
    (got,) = one.got
    assert got["body"] == {"text": "slower"} and got["path"].endswith(SECRET)
    assert got["headers"]["Authorization"] == f"Bearer {BEARER}" and got["headers"]["Idempotency-Key"] == "k1"


def test_a_busy_receiver_is_asked_again_and_each_time_later(receivers: Any) -> None:
    one, waited = receivers(503, 429, 200), list[float]()
    hook(one.address).send({}, key="k", wait=waited.append)
    assert len(one.got) == 3 and waited == [1.0, 2.0]


@pytest.mark.parametrize(("status", "requests"), [(503, ATTEMPTS), (404, 1), (302, 1)])
def test_what_is_not_taken_is_an_error_without_a_secret(receivers: Any, status: int, requests: int) -> None:
    one = receivers(status)
    with pytest.raises(EngcmpError, match=f"it answered {status}") as told:
        hook(one.address).send({}, key="k", wait=lambda _s: None)
    assert len(one.got) == requests and all(got["path"] != "/elsewhere" for got in one.got)
    assert SECRET not in str(told.value) and BEARER not in str(told.value) and one.address not in str(told.value)


def test_a_receiver_that_is_not_there_is_asked_again_and_then_told(
    receivers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    waited = list[float]()
    with caplog.at_level(logging.DEBUG), pytest.raises(EngcmpError, match="it was not reached") as told:
        hook(f"http://127.0.0.1:1/{SECRET}").send({}, key="k", wait=waited.append)
    assert len(waited) == ATTEMPTS - 1
    assert told.value.__cause__ is None and told.value.__context__ is None
    assert SECRET not in f"{told.value}{caplog.text}"


def test_nothing_that_is_logged_or_shown_holds_a_secret(receivers: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = receivers(500, 200)
    own = hook(one.address)
    with caplog.at_level(logging.DEBUG):
        own.send({}, key="k", wait=lambda _s: None)
        logging.getLogger("httpx").info("and afterwards it logs as before")
    assert "as before" in caplog.text
    for secret in (SECRET, BEARER, one.address):
        assert secret not in caplog.text and secret not in repr(own)


@pytest.mark.parametrize("address", ["ftp://x/s3cret-part-of-the-path", "s3cret-part-of-the-path", "http://"])
def test_an_address_that_is_none_is_refused_without_being_shown(address: str) -> None:
    with pytest.raises(EngcmpError, match=ADDRESS) as told:
        Webhook.of_environment({ADDRESS: address})
    assert "s3cret" not in str(told.value)


def test_without_an_address_there_is_no_webhook() -> None:
    assert Webhook.of_environment({}) is None and Webhook.of_environment({ADDRESS: " "}) is None
