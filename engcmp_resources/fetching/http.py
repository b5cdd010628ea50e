"""Files over HTTP: continued where they were cut, checked while they are written, and no login shown to another host."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from engcmp_resources.disk import disk_errors, keep_whole, make_folder, require_space
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Digest, Hashing, Say, hashed, require_same
from engcmp_resources.releases.web import hidden, httpx_join, is_loopback, origin, shown, web_url

_REDIRECTS = 5
_REDIRECT_STATUS = (301, 302, 303, 307, 308)
_OK, _PARTIAL, _RANGE = 200, 206, 416
_DOCUMENT_BYTES = 100_000_000
_TOLD_EACH_S = 2.0
_CHUNK_BYTES = 1 << 20
_LONGEST_WAIT_S = 60.0
_NEEDS_LOGIN, _GONE = (401, 403), (404, 410)
_TOO_MANY, _SERVER_FAULT = 429, 500
_OTHER = "another file than the one pinned is served: check the place and the pin"
# A login is for the place that it was made for.
_LOGIN = "authorization"


class _Interrupted(Exception):
    """The server or the line gave up; asking again may help. `wait_s`: how long the server wants it to take."""

    def __init__(self, why: str, wait_s: float | None = None) -> None:
        super().__init__(why)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class FileAt:
    """A file at an address: what it must be, how errors name it (`what`), and what helps where a login is needed."""

    url: str
    headers: Mapping[str, str]
    digest: Digest
    size: int | None
    what: str
    login: str
    say: Say


@dataclass(frozen=True)
class Http:
    """How files are asked for: up to `attempts` times, counted anew after each new byte, `pause_s` apart; `timeout_s` for one silence."""

    attempts: int = 5
    pause_s: float = 2.0
    timeout_s: float = 60.0
    sleep: Callable[[float], None] = time.sleep

    def document(self, url: str, headers: Mapping[str, str], *, what: str) -> httpx.Response:
        """A small answer, read whole: any status but those of a server that is at fault for now. Raises EngcmpError."""
        for attempt in range(1, self.attempts + 1):
            try:
                with self._answer(url, headers, what) as response:
                    body = bytearray()
                    for chunk in response.iter_bytes(_CHUNK_BYTES):
                        body += chunk
                        if len(body) > _DOCUMENT_BYTES:
                            raise EngcmpError(
                                f"{what}: the answer has no end", where=shown(url), remedy="check the address"
                            )
                    told = {name: value for name, value in response.headers.items() if name != "content-encoding"}
                    return httpx.Response(response.status_code, headers=told, content=bytes(body))
            except (_Interrupted, httpx.TransportError) as error:
                self._wait(attempt, error, what, url)
        raise AssertionError("the last attempt raises")

    def file(self, asked: FileAt, target: Path) -> None:
        """Make `target` the file, which has the digest that it must have. A part that is there from before is continued.

        The part lies beside it, named after the digest. Raises EngcmpError for another file (the part is removed), a full disk, a place
        that needs a login, and one that gives up for good (the part stays).
        """
        part = target.with_name(f".{target.name}.{asked.digest.value[:16]}.partial")
        with disk_errors(target):
            make_folder(target.parent)
        attempt = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                found = self._continue(asked, part)
                break
            except (_Interrupted, httpx.TransportError) as error:
                more = part.exists() and part.stat().st_size > before
                attempt = 1 if more else attempt + 1
                self._wait(attempt, error, asked.what, asked.url)
                asked.say(f"{asked.what}: goes on after an interruption")
        try:
            require_same(asked.what, asked.digest, found)
        except EngcmpError:
            part.unlink(missing_ok=True)
            raise
        keep_whole(part, target)

    def _continue(self, asked: FileAt, part: Path) -> Hashing:
        """One request for what the part lacks; the digests of the whole. Raises _Interrupted where the answer ends too soon."""
        size, have = asked.size, part.stat().st_size if part.exists() else 0
        if size is not None and have > size:
            part.unlink()
            have = 0
        if size is not None and have == size and have:
            return hashed(part, size)
        headers = dict(asked.headers) | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self._answer(asked.url, headers, asked.what) as response:
            if response.status_code == _RANGE:  # what is there is no beginning of this file
                part.unlink(missing_ok=True)
                raise _Interrupted("the part that was there does not belong to this file")
            if response.status_code != _PARTIAL:
                require_ok(response, asked.what, asked.url, asked.login)
            begins = _begins_at(response, have)
            expected = _expected_size(asked, response, begins)
            if expected is not None:
                require_space(part.parent, expected - begins, asked.what)
            found = hashed(part, expected) if begins else Hashing(expected)
            _append(asked, response, part, begins, found)
        if expected is not None and found.bytes < expected:
            raise _Interrupted(f"the answer ended after {found.bytes:,} of {expected:,} bytes")
        return found

    @contextmanager
    def _answer(self, url: str, headers: Mapping[str, str], what: str) -> Iterator[httpx.Response]:
        """The answer after redirects: never from https to http, and a login only to the host that it was meant for."""
        first = address = web_url(url).copy_with(userinfo=b"")
        kept = {name.lower(): value for name, value in headers.items()}
        if _LOGIN in kept and first.scheme != "https" and not is_loopback(first.host):
            raise EngcmpError(f"{what}: a login is not sent over plain http", where=shown(url), remedy="use https://")
        with httpx.Client(timeout=self.timeout_s, follow_redirects=False) as client:
            for _ in range(_REDIRECTS + 1):
                with client.stream("GET", address, headers=kept) as response:
                    location = response.headers.get("location")
                    if response.status_code not in _REDIRECT_STATUS or location is None:
                        _raise_for_now(response)
                        yield response
                        return
                target = web_url(httpx_join(address, location)).copy_with(userinfo=b"")
                if target.scheme != "https" and address.scheme == "https":
                    raise EngcmpError(
                        f"{what}: redirects from https to plain http",
                        where=shown(str(target)),
                        remedy="do not use this place",
                    )
                if origin(target) != origin(first):
                    kept.pop(_LOGIN, None)
                address = target
        raise EngcmpError(f"{what}: more than {_REDIRECTS} redirects", where=shown(url), remedy="correct the address")

    def _wait(self, attempt: int, error: Exception, what: str, url: str) -> None:
        """Wait before the next attempt. Raises EngcmpError after the last one."""
        if attempt >= self.attempts:
            why = hidden(str(error)) or type(error).__name__
            raise EngcmpError(
                f"{what}: no whole answer after {attempt} attempts: {why}", where=shown(url),
                remedy="check the network and run again: what was fetched is kept and continued",
            ) from None  # fmt: skip
        asked = error.wait_s if isinstance(error, _Interrupted) and error.wait_s is not None else self.pause_s * attempt
        self.sleep(min(asked, _LONGEST_WAIT_S))


def require_ok(response: httpx.Response, what: str, url: str, login: str) -> None:
    """Raise EngcmpError for any status but 200; `login` is the remedy where one is needed."""
    status = response.status_code
    if status in _NEEDS_LOGIN:
        raise EngcmpError(f"{what}: HTTP {status}, a login is needed", where=shown(url), remedy=login)
    if status in _GONE:
        raise EngcmpError(
            f"{what}: HTTP {status}, there is no such file",
            where=shown(url),
            remedy="correct the place, path or revision",
        )
    if status != _OK:
        raise EngcmpError(f"{what}: HTTP {status}", where=shown(url), remedy="check the address")


def _append(asked: FileAt, response: httpx.Response, part: Path, begins: int, found: Hashing) -> None:
    """Write the answer's bytes after the first `begins` ones, and into the digests."""
    told, size = time.monotonic(), asked.size
    with disk_errors(part), part.open("r+b" if begins else "wb") as file:
        file.seek(begins)
        file.truncate()
        for chunk in response.iter_raw():  # as it comes: a chunk that waits to be full is lost with the line
            if size is not None and found.bytes + len(chunk) > size:
                raise EngcmpError(
                    f"{asked.what}: more than the {size:,} bytes that were expected",
                    where=shown(asked.url),
                    remedy=_OTHER,
                )
            file.write(chunk)
            found.update(chunk)
            if time.monotonic() - told >= _TOLD_EACH_S:
                told = time.monotonic()
                asked.say(f"{asked.what}: {found.bytes / 1e6:,.0f}{f' of {size / 1e6:,.0f}' if size else ''} MB")


def _raise_for_now(response: httpx.Response) -> None:
    status = response.status_code
    if status == _TOO_MANY or status >= _SERVER_FAULT:
        stated = response.headers.get("retry-after", "")
        raise _Interrupted(f"HTTP {status}", float(stated) if re.fullmatch(r"[0-9]{1,6}", stated) else None)


def _begins_at(response: httpx.Response, asked: int) -> int:
    """Where the answer's first byte belongs: 0 for a whole file, whatever was asked."""
    if response.status_code != _PARTIAL:
        return 0
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range", ""))
    if match is None or int(match[1]) != asked:
        raise _Interrupted("the answer is another part than the one asked for")
    return asked


def _expected_size(asked: FileAt, response: httpx.Response, begins: int) -> int | None:
    """The size of the whole file, as it is known or as the answer states it. Raises EngcmpError where the two differ."""
    match = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("content-range", "")) if begins else None
    length = response.headers.get("content-length", "")
    whole = int(match[1]) if match else begins + int(length) if length.isdigit() else None
    if asked.size is not None and whole not in (None, asked.size):
        raise EngcmpError(
            f"{asked.what}: {whole:,} bytes are offered, {asked.size:,} were expected",
            where=shown(asked.url),
            remedy=_OTHER,
        )
    return asked.size if asked.size is not None else whole
