"""Releases on the package index that pip is set to, asked for with the Simple API (PEP 503, 691, 700); nothing is downloaded."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import msgspec

from engcmp_resources.canonical import sha256_file
from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import Listing, ReleasePlace, register_lister
from engcmp_resources.releases.pip_settings import PipSettings, read_pip_settings
from engcmp_resources.releases.web import Web, garbage, run_within, shown
from engcmp_resources.releases.wheels import (
    NO_REASON,
    FoundWheel,
    package_name,
    releases_of,
    sha256_or_none,
    version_in,
    wheels_in,
)

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_JSON = ("application/vnd.pypi.simple.v1+json", "application/json")
_HTML = ("application/vnd.pypi.simple.v1+html", "text/html")
_LOGIN = "put a login into pip's settings (PIP_INDEX_URL) or into the netrc file; pip then uses it too"
_ARCHIVES = (".whl", ".tar.gz", ".zip", ".tar.bz2", ".egg", ".tgz")
_NOT_FOUND = (404, 410)


class _File(msgspec.Struct):
    filename: str
    hashes: dict[str, str] = {}
    yanked: bool | str = False


class _Meta(msgspec.Struct, rename={"api_version": "api-version"}):
    api_version: str


class _Page(msgspec.Struct):
    meta: _Meta
    files: list[_File]


@register_lister("package_index")
def list_package_index(place: ReleasePlace, *, wanted: Callable[[str], bool], timeout_s: float) -> Listing:
    """All versions of the package `place.name` that have wheels, on all indexes and folders that pip looks at.

    Every place must answer: a listing without one of them would look as if releases had been deleted.
    """
    package = package_name(place.name)
    started = time.monotonic()
    settings = read_pip_settings(timeout_s)
    left_s = timeout_s - (time.monotonic() - started)
    return run_within(left_s, _ask_all(package, settings), place=f"package {package}")


async def _ask_all(package: str, settings: PipSettings) -> Listing:
    found: dict[str, list[FoundWheel]] = {}
    async with Web(f"package {package}", settings.connection) as web:
        for index in settings.indexes:
            page = await _look(web, settings, f"{index}/{package}/", package, is_index=True)
            if page is not None:
                found[shown(index)] = page
        for link in settings.find_links:
            page = await _look(web, settings, link, package, is_index=False)
            if page:
                found[shown(link)] = page
    if not found:
        asked = ", ".join(shown(address) for address in (*settings.indexes, *settings.find_links))
        raise EngcmpError(
            f"there is no package {package} on the package index",
            where=asked or "pip is set to look nowhere",
            remedy="correct the name, or pip's settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS)",
        )
    wheels = [wheel for page in found.values() for wheel in page]
    return Listing(f"package {package} on {', '.join(found)}", releases_of(package, wheels))


async def _look(
    web: Web, settings: PipSettings, address: str, package: str, *, is_index: bool
) -> list[FoundWheel] | None:
    """The wheels at one address; None where it does not know the package."""
    if not address.startswith(("http://", "https://")):
        return _local(address, package, is_index=is_index)
    settings.require_secure(address)
    answer = await web.ask(address, headers={"Accept": _ACCEPT}, auth=settings.login(address))
    if answer.status in _NOT_FOUND:
        return None
    web.require_ok(answer, missing=f"there is no package {package}", login=_LOGIN)
    if answer.media_type in _JSON:
        return _json_wheels(answer.body, web.place, answer.url)
    if answer.media_type in _HTML:
        return _html_wheels(answer.body.decode(errors="replace"), web.place, answer.url)
    raise garbage(web.place, answer.url, f"its type is {answer.media_type[:80] or 'not stated'}")


def _local(address: str, package: str, *, is_index: bool) -> list[FoundWheel] | None:
    """Wheels of a folder or of a page of links on this machine. What is missing is left out, as pip does."""
    path = Path(url2pathname(urlsplit(address).path)) if address.startswith("file:") else Path(address).expanduser()
    if is_index:
        path /= "index.html"
    if path.is_dir():
        return wheels_in(path, package)
    if not path.is_file() or path.suffix not in (".html", ".htm"):
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EngcmpError(
            f"the page of links cannot be read: {error.strerror}", where=str(path), remedy="make it readable"
        ) from error
    return _html_wheels(text, f"package {package}", str(path), lambda link: _local_sha256(path.parent, link, package))


def _local_sha256(folder: Path, link: str, package: str) -> str | None:
    """The sha256 of a wheel of `package` on this machine that a page in `folder` leads to; None where there is none."""
    file = folder / url2pathname(link)
    return sha256_file(file) if version_in(file.name, package) is not None and file.is_file() else None


def _json_wheels(body: bytes, place: str, where: str) -> list[FoundWheel]:
    try:
        page = msgspec.json.decode(body, type=_Page)
    except msgspec.MsgspecError as error:
        raise garbage(place, where, str(error)[:200]) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise garbage(place, where, "it is not JSON") from error
    _require_version(page.meta.api_version, place, where)
    return [
        FoundWheel(file.filename, sha256_or_none(file.hashes.get("sha256")), _reason(file.yanked))
        for file in page.files
    ]


def _reason(yanked: bool | str) -> str | None:
    """A string is the reason; an empty one is no yank in JSON (PEP 691: a truthy value is)."""
    if not yanked:
        return None
    return NO_REASON if yanked is True else " ".join(yanked.split()) or NO_REASON


def _require_version(stated: str, place: str, where: str) -> None:
    if re.fullmatch(r"1(\.[0-9]+)*", stated.strip()) is None:
        raise EngcmpError(
            f"{place}: the index speaks version {stated[:20]!r} of the Simple API, engcmp reads 1",
            where=where,
            remedy="update engcmp, or name another index in pip's settings",
        )


class _Links(HTMLParser):
    """The links of a page and the version of the Simple API that it states."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str]] = []
        self.version: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and values.get("href"):
            self.links.append(values)
        elif tag == "meta" and values.get("name") == "pypi:repository-version":
            self.version = values.get("content", "")


def _html_wheels(
    text: str, place: str, where: str, sha256_at: Callable[[str], str | None] = lambda _link: None
) -> list[FoundWheel]:
    """The files that a page links to; `sha256_at` is asked with the path of a link that states no sha256."""
    parser = _Links()
    try:
        parser.feed(text)
        parser.close()
    except AssertionError as error:  # html.parser says so of a broken declaration
        raise garbage(place, where, "it is broken HTML") from error
    if parser.version is not None:
        _require_version(parser.version, place, where)
    found = [_linked(link, sha256_at) for link in parser.links]
    files = [wheel for wheel in found if wheel is not None]
    if not files and parser.version is None:
        raise garbage(place, where, "it is a web page without links to files")
    return files


def _linked(link: dict[str, str], sha256_at: Callable[[str], str | None]) -> FoundWheel | None:
    """The file that a link leads to; None where it leads to none."""
    try:
        url = urlsplit(link["href"].strip())
    except ValueError:
        return None
    name = unquote(url.path.rsplit("/", 1)[-1])
    if not name.endswith(_ARCHIVES):
        return None
    stated = re.search(r"(?:^|&)sha256=([0-9A-Fa-f]{64})(?:&|$)", url.fragment)
    yanked = link.get("data-yanked")
    reason = None if yanked is None else " ".join(yanked.split()) or NO_REASON
    return FoundWheel(name, stated[1].lower() if stated else sha256_at(url.path), reason)
