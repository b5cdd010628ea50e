"""HTTP for listings: one time limit, one size limit, few redirects, errors told apart, and no credential in any text."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import RateLimitedError, UnreachableError

LIMIT_BYTES = 50_000_000
_REDIRECTS = 5
_REDIRECT_STATUS = (301, 302, 303, 307, 308)
_RETRY_DEFAULT_S = 300.0
# A server that asks for more than a day is taken at a day: a wrong clock must not end the watching.
_RETRY_MOST_S = 86_400.0
_LOOK_AGAIN = "check the network and the address; it is asked again at the next look"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to one request, after redirects. `url` has no userinfo."""

    url: str
    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def media_type(self) -> str:
        """The media type without parameters, in lower case; empty where none is stated."""
        return str(self.headers.get("content-type", "")).split(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Connection:
    """How servers are reached: a bundle or folder of certificates, a client's certificate, a proxy, hosts that are not verified.

    `wait_s` is the longest time for one step of a request.
    """

    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    wait_s: float = 15.0

    def trusts(self, url: httpx.URL) -> bool:
        """Whether the settings name this host, with or without its port, as one that needs no valid certificate."""
        return bool({url.host, f"{url.host}:{_port(url)}"} & self.trusted_hosts)

    def context(self, *, verified: bool) -> ssl.SSLContext:
        """Raises EngcmpError for certificate files that cannot be read."""
        try:
            if self.cert is not None:
                folder = self.cert if Path(self.cert).is_dir() else None
                context = ssl.create_default_context(cafile=None if folder else self.cert, capath=folder)
            else:
                context = httpx.create_ssl_context()
                context.load_default_certs()  # pip trusts the system's certificates too, httpx alone does not
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert)
        except OSError as error:  # ssl.SSLError is an OSError
            raise EngcmpError(
                f"the certificates cannot be read: {error.strerror or error}",
                where=self.cert or self.client_cert,
                remedy="correct cert and client-cert in pip's settings, or SSL_CERT_FILE",
            ) from error
        if not verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context


@dataclass(slots=True)
class Web:
    """The requests of one look. All bodies together are at most LIMIT_BYTES; `place` names the look in errors."""

    place: str
    connection: Connection = field(default_factory=Connection)
    _left_bytes: int = LIMIT_BYTES
    _clients: dict[bool, httpx.AsyncClient] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def ask(
        self, address: str, *, method: str = "GET", headers: Mapping[str, str], auth: httpx.Auth | None = None
    ) -> Answer:
        """The answer, whatever its status. At most 5 redirects, never from https to http, a login only to the first origin."""
        first = url = web_url(address).copy_with(userinfo=b"")
        kept = dict(headers)
        for _ in range(_REDIRECTS + 1):
            answer = await self._once(method, url, kept, auth)
            location = answer.headers.get("location")
            if answer.status not in _REDIRECT_STATUS or location is None:
                return answer
            url = self._redirected(url, location)
            if origin(url) != origin(first):
                auth = None
                kept = {name: value for name, value in kept.items() if name.lower() != "authorization"}
        raise EngcmpError(
            f"{self.place}: more than {_REDIRECTS} redirects", where=shown(str(first)), remedy="correct the address"
        )

    def _redirected(self, url: httpx.URL, location: str) -> httpx.URL:
        target = web_url(httpx_join(url, location)).copy_with(userinfo=b"")
        if target.scheme != "https" and url.scheme == "https":
            raise EngcmpError(
                f"{self.place}: redirects from https to {shown(str(target))}",
                where=shown(str(url)),
                remedy="do not use this address: what it serves could be changed on the way",
            )
        return target

    async def _once(self, method: str, url: httpx.URL, headers: dict[str, str], auth: httpx.Auth | None) -> Answer:
        where, body = shown(str(url)), bytearray()
        try:
            async with self._client(url).stream(method, url, headers=headers, auth=auth) as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    self._left_bytes -= len(chunk)
                    if self._left_bytes < 0:
                        raise EngcmpError(
                            f"{self.place}: the listing has more than {LIMIT_BYTES / 1e6:.0f} MB",
                            where=where,
                            remedy="check that the address is that of a listing",
                        )
                return Answer(where, response.status_code, response.headers, bytes(body))
        except httpx.TransportError as error:
            reason = hidden(str(error)) or type(error).__name__
            raise UnreachableError(f"{self.place}: no answer: {reason}", where=where, remedy=_LOOK_AGAIN) from None
        except httpx.DecodingError as error:
            raise garbage(self.place, where, f"its compression is broken ({error})") from error

    def _client(self, url: httpx.URL) -> httpx.AsyncClient:
        verified = not self.connection.trusts(url)
        if verified not in self._clients:
            try:
                self._clients[verified] = httpx.AsyncClient(
                    verify=self.connection.context(verified=verified),
                    proxy=self.connection.proxy,
                    timeout=self.connection.wait_s,
                    follow_redirects=False,
                )
            except (ValueError, httpx.InvalidURL, ImportError):  # its text may hold the proxy's login
                raise EngcmpError(
                    f"{self.place}: the proxy's address cannot be used",
                    remedy="correct proxy in pip's settings, or HTTPS_PROXY",
                ) from None
        return self._clients[verified]

    def require_ok(self, answer: Answer, *, missing: str, login: str) -> None:
        """Raise the error that the status stands for; none for 200. `missing` is what a 404 means, `login` the remedy for 401."""
        status, where = answer.status, answer.url
        if status == 200:  # noqa: PLR2004 - the status of HTTP itself
            return
        said = f"{self.place}: HTTP {status}"
        if status == 429 or (status == 403 and _limited(answer.headers)):  # noqa: PLR2004 - the status of HTTP itself
            raise RateLimitedError(f"{said}, too many requests", where=where, retry_after_s=_retry_after_s(answer))
        if status >= 500 or status == 408:  # noqa: PLR2004 - the status of HTTP itself
            raise UnreachableError(f"{said}, a fault of the server", where=where, remedy=_LOOK_AGAIN)
        if status in (404, 410):
            raise EngcmpError(f"{self.place}: {missing}", where=where, remedy="correct the name or the address")
        if status in (401, 403):
            raise EngcmpError(f"{said}, a login is needed", where=where, remedy=login)
        raise EngcmpError(f"{said}, which is no listing", where=where, remedy="correct the address")


def run_within(timeout_s: float, work: Coroutine[Any, Any, T], *, place: str) -> T:
    """The result of `work`, ended after `timeout_s` whatever a server does. Not to be called in a running event loop."""
    # Not asyncio.run: at its end it would wait for a name resolution that hangs.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(work, max(timeout_s, 0.0)))
    except TimeoutError:
        raise UnreachableError(f"{place}: no whole answer in time", remedy=_LOOK_AGAIN) from None
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def web_url(address: str) -> httpx.URL:
    """Raises EngcmpError, which does not show it, for an address that is no http or https URL."""
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, ValueError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise EngcmpError("not an address of the web", remedy="give an address that begins with https://")
    return url


def httpx_join(url: httpx.URL, link: str) -> str:
    """`link` as seen from `url`; empty, which is no address, where it cannot be read."""
    try:
        return str(url.join(link))
    except (httpx.InvalidURL, ValueError):
        return ""


def origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """Scheme, host and port: what a login belongs to."""
    return url.scheme, url.host, _port(url)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine itself, where plain http is no risk."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def hidden(text: str) -> str:
    """`text` with the userinfo of every URL in it removed."""
    return re.sub(r"(?<=//)[^/\s]*@", "", text)


def shown(address: str) -> str:
    """An address as it may be shown: without userinfo, query and fragment."""
    return re.split(r"[?#]", hidden(address))[0]


def garbage(place: str, where: str, why: str) -> EngcmpError:
    """The error for an answer that is not what the protocol says."""
    return EngcmpError(
        f"{place}: the answer is not a listing: {why}",
        where=where,
        remedy="check the address; a network's login page also looks like this",
    )


def _port(url: httpx.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)


def _limited(headers: httpx.Headers) -> bool:
    return "retry-after" in headers or "0" in (
        headers.get("x-ratelimit-remaining"),
        headers.get("ratelimit-remaining"),
    )


def _retry_after_s(answer: Answer) -> float:
    """Seconds from Retry-After (seconds or a date), from x-ratelimit-reset (a time), or 300; from 1 s to a day.

    Times count from the answer's own Date: this machine's clock may be wrong.
    """
    stated, reset = (str(answer.headers.get(name, "")).strip() for name in ("retry-after", "x-ratelimit-reset"))
    seconds = _RETRY_DEFAULT_S
    if re.fullmatch(r"[0-9]{1,12}", stated):
        seconds = float(stated)
    elif stated:
        try:
            seconds = parsedate_to_datetime(stated).timestamp() - _answered_at_s(answer)
        except (ValueError, OverflowError):
            seconds = _RETRY_DEFAULT_S
    elif re.fullmatch(r"[0-9]{1,12}", reset):
        seconds = float(reset) - _answered_at_s(answer)
    return min(max(seconds, 1.0), _RETRY_MOST_S)


def _answered_at_s(answer: Answer) -> float:
    """When the server says that it answered, in seconds since the epoch; now, where it does not say."""
    try:
        return parsedate_to_datetime(str(answer.headers["date"])).timestamp()
    except (KeyError, ValueError, OverflowError):
        return time.time()
