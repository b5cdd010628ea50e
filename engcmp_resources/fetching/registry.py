"""Container images by digest (OCI distribution API), laid out as an OCI image folder that container engines load.

An index of several platforms is followed to this machine's. Public images need no login. For another one `ENGCMP_REGISTRY_LOGIN` (or
the file that `ENGCMP_REGISTRY_LOGIN_FILE` names) says `HOST=USER:PASSWORD`: it goes to that registry's token service and nowhere else.
"""

from __future__ import annotations

import base64
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from engcmp_resources.canonical import canonical_bytes, sha256_bytes
from engcmp_resources.disk import replace_visible
from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import Digest, Planned, Say, Wanted, require_digest, secret
from engcmp_resources.fetching.http import FileAt, Http, require_ok
from engcmp_resources.releases.web import is_loopback, shown, web_url

_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9]+([._/-]+[a-z0-9]+)*")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LAYOUT = canonical_bytes({"imageLayoutVersion": "1.0.0"})
_LOGIN = "set ENGCMP_REGISTRY_LOGIN to HOST=USER:PASSWORD, or ENGCMP_REGISTRY_LOGIN_FILE to a file with that, which only you may read"
_UNAUTHORIZED = 401


@dataclass(frozen=True)
class Registry:
    """A registry of container images."""

    http: Http = field(default_factory=Http)

    def plan(self, wanted: Wanted) -> Sequence[Planned]:
        """The manifests, the configuration and the layers of the image, and the two small files of the layout."""
        image = _Image(self.http, wanted)
        top, kind, size = image.manifest(wanted.revision)
        index = {"mediaType": kind, "digest": wanted.revision, "size": size}
        planned = [image.blob(index, manifest=True)]
        if kind in _INDEXES or "manifests" in top:
            chosen = _of_this_machine(top, wanted)
            top, _, _ = image.manifest(str(chosen["digest"]))
            planned.append(image.blob(chosen, manifest=True))
        parts = [top.get("config"), *(top.get("layers") or [])]
        if not all(isinstance(one, dict) for one in parts):
            raise image.wrong("its manifest names no configuration and layers")
        planned += [image.blob(one) for one in parts if isinstance(one, dict)]
        made = {"oci-layout": _LAYOUT, "index.json": canonical_bytes({"schemaVersion": 2, "manifests": [index]})}
        whole = {one.path: one for one in planned}  # layers may stand twice
        for name, data in made.items():
            whole[name] = Planned(
                name, Digest("sha256", sha256_bytes(data)), len(data), None, (("content", data.decode()),)
            )
        return list(whole.values())

    def bring(self, wanted: Wanted, planned: Planned, target: Path, say: Say) -> None:
        """Fetch one blob, continued where it was cut; a new token is got for each, since they live for minutes only."""
        if planned.url is None:
            replace_visible(target, dict(planned.headers)["content"].encode())
            return
        image = _Image(self.http, wanted)
        headers = {"Accept": ", ".join((*_INDEXES, *_MANIFESTS, "*/*"))} | image.login()
        what, digest = f"{wanted.source}: {planned.path}", require_digest(wanted, planned)
        self.http.file(FileAt(planned.url, headers, digest, planned.bytes, what, _LOGIN, say), target)


class _Image:
    """One image on its registry."""

    def __init__(self, http: Http, wanted: Wanted) -> None:
        host, _, name = wanted.where.partition("/")
        if _HOST.fullmatch(host) is None or _NAME.fullmatch(name) is None or _DIGEST.fullmatch(wanted.revision) is None:
            raise EngcmpError(
                f"source {wanted.source}: not an image by digest", where=f"{wanted.where}@{wanted.revision}",
                remedy="give HOST/NAME, without https:// or tag, and a digest sha256:...",
            )  # fmt: skip
        self._http, self._host, self._what = http, host, f"source {wanted.source}"
        if host == "docker.io":
            host, name = "registry-1.docker.io", name if "/" in name else f"library/{name}"
        bare = host if host.endswith("]") else host.rsplit(":", 1)[0]
        self._root, self._name = f"{'http' if is_loopback(bare) else 'https'}://{host}", name

    def manifest(self, digest: str) -> tuple[dict[str, Any], str, int]:
        """A manifest, its media type and its size; its bytes have the digest."""
        if _DIGEST.fullmatch(digest) is None:
            raise self.wrong(f"a manifest has the digest {digest[:80]!r}")
        url = f"{self._root}/v2/{self._name}/manifests/{digest}"
        answer = self._ask(url, {"Accept": ", ".join((*_INDEXES, *_MANIFESTS))})
        if f"sha256:{sha256_bytes(answer.content)}" != digest:
            raise self.wrong("its manifest has another digest than the one asked for")
        try:
            found = json.loads(answer.content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.wrong("its manifest is no JSON object")
        kind = str(found.get("mediaType") or answer.headers.get("content-type", "").split(";")[0])
        return found, kind, len(answer.content)

    def blob(self, entry: dict[str, Any], *, manifest: bool = False) -> Planned:
        """A part of the image as a file of the layout. Raises EngcmpError for one without digest or size."""
        match, size = _DIGEST.fullmatch(str(entry.get("digest"))), entry.get("size")
        if match is None or not isinstance(size, int) or size < 0:
            raise self.wrong("a part of it has no sha256 or no size")
        place = "manifests" if manifest else "blobs"
        url = f"{self._root}/v2/{self._name}/{place}/sha256:{match[1]}"
        return Planned(f"blobs/sha256/{match[1]}", Digest("sha256", match[1]), size, url)

    def login(self) -> dict[str, str]:
        """The header that reading this image needs: empty where the registry wants none."""
        url = f"{self._root}/v2/"
        answer = self._http.document(url, {}, what=self._what)
        if answer.status_code != _UNAUTHORIZED:
            return {}
        return self._token(answer)

    def wrong(self, why: str) -> EngcmpError:
        return EngcmpError(
            f"{self._what}: {why}", where=f"{self._root}/{self._name}", remedy="check the image and the registry"
        )

    def _ask(self, url: str, headers: dict[str, str]) -> httpx.Response:
        answer = self._http.document(url, headers, what=self._what)
        if answer.status_code == _UNAUTHORIZED:
            answer = self._http.document(url, headers | self._token(answer), what=self._what)
        require_ok(answer, self._what, url, _LOGIN)
        return answer

    def _token(self, refusal: httpx.Response) -> dict[str, str]:
        """The token that the address in a refusal gives, to anyone or to the user's login for this registry."""
        challenge = refusal.headers.get("www-authenticate", "")
        if not challenge.lower().startswith("bearer "):
            return {}
        parameters = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = web_url(parameters.get("realm", ""))
        if realm.scheme != "https" and not (is_loopback(realm.host) and is_loopback(web_url(self._root).host)):
            raise EngcmpError(
                f"{self._what}: the registry gives tokens out over plain http",
                where=shown(str(realm)),
                remedy="do not use this registry",
            )
        query = {"scope": parameters.get("scope") or f"repository:{self._name}:pull"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        url = str(realm.copy_merge_params(query))
        answer = self._http.document(url, self._user(), what=self._what)
        require_ok(answer, self._what, url, _LOGIN)
        try:
            given = json.loads(answer.content)
            token = given.get("token") or given.get("access_token") or ""
        except (ValueError, AttributeError):
            token = ""
        if not isinstance(token, str) or re.fullmatch(r"[\x21-\x7e]+", token) is None:
            raise self.wrong("its token service gave no token")
        return {"Authorization": f"Bearer {token}"}

    def _user(self) -> dict[str, str]:
        """The user's own login, where it is for this registry."""
        host, _, login = (secret("ENGCMP_REGISTRY_LOGIN", "ENGCMP_REGISTRY_LOGIN_FILE") or "").partition("=")
        if not login or host != self._host:
            return {}
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def _of_this_machine(index: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The entry of an index for Linux on this machine's processor. Raises EngcmpError where it has none."""
    architecture = _ARCHITECTURES.get(platform.machine().lower(), platform.machine().lower())
    found = []
    for one in index.get("manifests") or []:
        runs = one.get("platform") if isinstance(one, dict) else None
        if isinstance(runs, dict):
            found.append(f"{runs.get('os')}/{runs.get('architecture')}")
            if (runs.get("os"), runs.get("architecture")) == ("linux", architecture):
                return dict(one)
    raise EngcmpError(
        f"source {wanted.source}: the image has no linux/{architecture}", where=wanted.where,
        remedy=f"it has {', '.join(found) or 'none'}: fetch it on such a machine",
    )  # fmt: skip
