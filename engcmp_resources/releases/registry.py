"""Releases as tags of a container image, asked of its registry (OCI distribution API v2) without a login; nothing is pulled."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError
from engcmp_resources.releases.base import Listing, Release, ReleasePlace, register_lister
from engcmp_resources.releases.tags import is_prerelease, tag_order
from engcmp_resources.releases.web import (
    Answer,
    Web,
    garbage,
    httpx_join,
    is_loopback,
    origin,
    run_within,
    shown,
    web_url,
)

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LOGIN = (
    "engcmp asks registries without a login: name a public image (a registry says the same of an image that is missing)"
)
_PAGE_TAGS = 1000
_UNAUTHORIZED, _NOT_FOUND, _NO_METHOD = 401, 404, 405

T = TypeVar("T")


class _Tags(msgspec.Struct):
    tags: list[str] | None


class _Token(msgspec.Struct):
    token: str | None = None
    access_token: str | None = None


class _Manifest(msgspec.Struct, rename={"schema_version": "schemaVersion"}):
    schema_version: int


@register_lister("registry")
def list_registry(place: ReleasePlace, *, wanted: Callable[[str], bool], timeout_s: float) -> Listing:
    """The tags of the image `place.name` (`HOST/NAME`), with the digest of those that are `wanted`: each costs a request."""
    host, _, name = place.name.partition("/")
    if _HOST.fullmatch(host) is None or _NAME.fullmatch(name) is None:
        raise EngcmpError(
            "not the name of an image",
            where=place.name.rsplit("@", 1)[-1],
            remedy="give HOST/NAME, without https://, tag or digest, as ghcr.io/owner/image",
        )
    if host == "docker.io":
        host, name = "registry-1.docker.io", name if "/" in name else f"library/{name}"
    return run_within(timeout_s, _list(host, name, wanted), place=f"image {place.name}")


async def _list(host: str, name: str, wanted: Callable[[str], bool]) -> Listing:
    async with Web(f"image {host}/{name}") as web:
        image = _Image(web, host, name)
        releases = []
        for tag in sorted(await image.tags(), key=tag_order):
            digest = await image.digest(tag) if wanted(tag) else None
            if digest is not None or not wanted(tag):
                releases.append(Release(tag, digest, prerelease=is_prerelease(tag)))
    return Listing(f"image {host}/{name}", tuple(releases))


class _Image:
    """One image on its registry, and the token that the registry gave for reading it."""

    def __init__(self, web: Web, host: str, name: str) -> None:
        bare = host if host.endswith("]") else host.rsplit(":", 1)[0]
        self._web = web
        self._root = httpx.URL(f"{'http' if is_loopback(bare) else 'https'}://{host}")
        self._name = name
        self._token: str | None = None

    async def tags(self) -> set[str]:
        """All tags, over all pages. A tag may be named twice where one was pushed meanwhile."""
        url: str | None = f"{self._root}/v2/{self._name}/tags/list?n={_PAGE_TAGS}"
        tags: set[str] = set()
        asked: set[str] = set()
        while url is not None:
            asked.add(url)
            answer = await self._ask(url, "application/json")
            self._require_ok(answer)
            page = _decoded(self._web, answer, _Tags).tags or []
            if not all(_TAG.fullmatch(tag) for tag in page):
                raise garbage(self._web.place, answer.url, "it holds a tag that is none")
            tags.update(page)
            url = self._next_page(answer, url)
            if url in asked:
                raise garbage(self._web.place, answer.url, "its pages lead in a circle")
        return tags

    async def digest(self, tag: str) -> str | None:
        """The digest of a tag's manifest; None where the tag is gone meanwhile."""
        url = f"{self._root}/v2/{self._name}/manifests/{quote(tag, safe='')}"
        answer = await self._ask(url, _MANIFESTS, method="HEAD")
        stated = answer.headers.get("docker-content-digest")
        if answer.status == _NO_METHOD or (answer.status == httpx.codes.OK and stated is None):
            answer = await self._ask(url, _MANIFESTS)
            stated = None
        if answer.status == _NOT_FOUND:
            return None
        self._require_ok(answer)
        if stated is None:
            _decoded(self._web, answer, _Manifest)  # a login page has a hash too
            stated = f"sha256:{sha256_bytes(answer.body)}"
        if re.fullmatch(r"sha256:[0-9a-f]{64}", stated) is None:
            raise garbage(self._web.place, answer.url, f"tag {tag} has the digest {stated[:80]!r}")
        return str(stated)

    def _require_ok(self, answer: Answer) -> None:
        self._web.require_ok(answer, missing="there is no such image", login=_LOGIN)

    async def _ask(self, url: str, accept: str, *, method: str = "GET") -> Answer:
        """The answer, asked once more with a new token where the registry says that it needs one."""
        answer = await self._web.ask(url, method=method, headers=self._headers(accept))
        if answer.status == _UNAUTHORIZED:
            self._token = await self._new_token(answer)
            answer = await self._web.ask(url, method=method, headers=self._headers(accept))
        return answer

    def _headers(self, accept: str) -> dict[str, str]:
        return {"Accept": accept} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    async def _new_token(self, refusal: Answer) -> str | None:
        """The token that anyone gets at the address that the refusal names; None where it names none."""
        challenge = refusal.headers.get("www-authenticate", "")
        if not challenge.lower().startswith("bearer "):
            return None
        parameters = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = web_url(parameters.get("realm", ""))
        if realm.scheme != "https" and not (is_loopback(realm.host) and is_loopback(self._root.host)):
            raise EngcmpError(
                f"{self._web.place}: the registry gives tokens out over plain http",
                where=shown(str(realm)),
                remedy="do not use this registry: what it says could be changed on the way",
            )
        query = {"scope": parameters.get("scope") or f"repository:{self._name}:pull"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        answer = await self._web.ask(str(realm.copy_merge_params(query)), headers={"Accept": "application/json"})
        self._require_ok(answer)
        answered = _decoded(self._web, answer, _Token)
        token = answered.token or answered.access_token or ""
        if re.fullmatch(r"[\x21-\x7e]+", token) is None:
            raise garbage(self._web.place, answer.url, "it holds no token")
        return token

    def _next_page(self, answer: Answer, url: str) -> str | None:
        """The address in the Link header with rel="next"; None on the last page."""
        for link in answer.headers.get("link", "").split(","):
            match = re.fullmatch(r'\s*<([^>]*)>(.*;)?\s*rel="?next"?.*', link)
            if match is not None:
                following = web_url(httpx_join(httpx.URL(url), match[1]))
                if origin(following) != origin(self._root):
                    raise garbage(self._web.place, answer.url, "its next page is at another host")
                return str(following)
        return None


def _decoded(web: Web, answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise garbage(web.place, answer.url, str(error)[:200]) from error
