"""A webhook that is told of alerts. Its address and its token are secrets: they come from the environment, and appear nowhere else."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from engcmp_resources.errors import EngcmpError

ADDRESS, TOKEN = "ENGCMP_WEBHOOK_URL", "ENGCMP_WEBHOOK_TOKEN"
ATTEMPTS = 4
_TIMEOUT_S = 10.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
# What these libraries log of a request is its whole address.
_TALKATIVE = ("httpx", "httpcore", "httpcore.connection", "httpcore.http11", "httpcore.proxy")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where alerts are sent. `repr` tells neither address nor token."""

    address: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Webhook | None:
        """The webhook that ENGCMP_WEBHOOK_URL names, with ENGCMP_WEBHOOK_TOKEN as its bearer token; None where there is none.

        Raises EngcmpError for an address that is none of http or https: its words do not hold the address.
        """
        address = environment.get(ADDRESS, "").strip()
        if not address:
            return None
        try:
            sound = httpx.URL(address).scheme in ("http", "https") and bool(httpx.URL(address).host)
        except httpx.InvalidURL:
            sound = False
        if not sound:
            raise EngcmpError(f"{ADDRESS} is no address of http or https", remedy="mend the variable, or leave it out")
        return cls(address, environment.get(TOKEN, "").strip() or None)

    def send(self, message: Mapping[str, Any], *, key: str, wait: Callable[[float], None] = time.sleep) -> None:
        """Post `message` as JSON, again after a while where the receiver is not reached, is busy or fails. No redirect is followed.

        `key` goes with it as Idempotency-Key, so that a receiver knows what it was told already. Raises EngcmpError, which holds neither
        address nor token, where it was not taken.
        """
        headers = {"Idempotency-Key": key} | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        why = ""
        with _silent(), httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False) as client:
            for attempt in range(ATTEMPTS):
                if attempt:
                    wait(min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_WAIT_S))
                try:
                    answer = client.post(self.address, json=dict(message), headers=headers)
                except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                    why = f"it was not reached ({type(error).__name__})"
                    continue
                if answer.is_success:
                    return
                why = f"it answered {answer.status_code}"
                if answer.status_code not in _AGAIN:
                    break
        # Not `from` what was raised: another library's error holds the address.
        raise EngcmpError(
            f"the webhook did not take the alert: {why}", remedy=f"look at the receiver, and at {ADDRESS} and {TOKEN}"
        ) from None


@contextmanager
def _silent() -> Iterator[None]:
    """While something is sent, the libraries that send it log nothing."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    before = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was
