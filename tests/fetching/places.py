"""A server on this machine that speaks what hubs and registries speak: ranges, redirects, logins, and lines that break. No tests."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Place:
    """What is served by path (without query), and how it misbehaves. `asked` holds each request: path with query, and headers."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.redirects: dict[str, str] = {}
        self.cuts: dict[str, list[int]] = {}  # after how many bytes the line breaks, request by request
        self.busy: dict[str, int] = {}  # how many requests are answered with 503 first
        self.without_ranges = False
        self.token: str | None = None
        self.refusal: dict[str, str] = {}
        self.open_paths: set[str] = set()  # for everyone, whatever `token` says
        self.asked: list[tuple[str, dict[str, str]]] = []

    @property
    def host(self) -> str:
        return self.address.split("//")[1]

    def asked_for(self, path: str) -> list[dict[str, str]]:
        return [headers for one, headers in self.asked if one.partition("?")[0] == path]


class Handler(http.server.BaseHTTPRequestHandler):
    place: Place
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        place, path = self.place, self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        place.asked.append((self.path, headers))
        if place.token and path not in place.open_paths and headers.get("authorization") != place.token:
            return self.answer(401, b"who are you", place.refusal)
        if place.busy.get(path, 0) > 0:
            place.busy[path] -= 1
            return self.answer(503, b"", {"Retry-After": "0"})
        if path in place.redirects:
            return self.answer(302, b"", {"Location": place.redirects[path]})
        if path not in place.files:
            return self.answer(404, b"nothing here", {})
        return self.send(path, place.files[path], headers.get("range"))

    def send(self, path: str, data: bytes, asked: str | None) -> None:
        more = dict(self.place.headers.get(path, {}))
        begin, status = 0, 200
        if asked and not self.place.without_ranges:
            begin = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if begin >= len(data):
                return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status, more["Content-Range"] = 206, f"bytes {begin}-{len(data) - 1}/{len(data)}"
        cuts = self.place.cuts.get(path)
        cut = cuts.pop(0) if cuts else None
        return self.answer(status, data[begin:], more, cut)

    def answer(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test has no access log."""


@contextmanager
def serving() -> Iterator[Place]:
    handler = type("OneTest", (Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        place = Place(f"http://127.0.0.1:{server.server_port}")
        handler.place = place
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield place
        finally:
            server.shutdown()
            thread.join()


def hub(
    place: Place, repository: str, commit: str, files: dict[str, bytes], *, large: set[str], kind: str = "models"
) -> None:
    """Lay a repository out as the hub does: two pages of its tree, and each file under its resolve address."""
    prefix = "" if kind == "models" else f"{kind}/"
    entries: list[dict[str, Any]] = [{"type": "directory", "path": "sub", "oid": "0" * 40, "size": 0}]
    for name, data in files.items():
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git_id(data)}
        if name in large:
            entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
        entries.append(entry)
        place.files[f"/{prefix}{repository}/resolve/{commit}/{name}"] = data
    tree = f"/api/{kind}/{repository}/tree/{commit}"
    place.files[tree] = json.dumps(entries[:2]).encode()
    place.files[f"{tree}/2"] = json.dumps(entries[2:]).encode()
    place.headers[tree] = {"Link": f'<{place.address}{tree}/2?cursor=x>; rel="next"'}


def image(place: Place, name: str, layers: list[bytes], *, architecture: str) -> str:
    """An image of two platforms, and the digest of its index."""

    def put(kind: str, data: bytes, media: str) -> dict[str, Any]:
        digest = f"sha256:{sha256(data)}"
        place.files[f"/v2/{name}/{kind}/{digest}"] = data
        place.headers[f"/v2/{name}/{kind}/{digest}"] = {"Content-Type": media}
        return {"mediaType": media, "digest": digest, "size": len(data)}

    oci = "application/vnd.oci.image"
    manifests = []
    for one in (architecture, "sparc"):
        config = put("blobs", json.dumps({"architecture": one, "os": "linux"}).encode(), f"{oci}.config.v1+json")
        of_it = [put("blobs", layer + one.encode(), f"{oci}.layer.v1.tar") for layer in layers]
        body = {"schemaVersion": 2, "mediaType": f"{oci}.manifest.v1+json", "config": config, "layers": of_it}
        entry = put("manifests", json.dumps(body).encode(), f"{oci}.manifest.v1+json")
        manifests.append(entry | {"platform": {"os": "linux", "architecture": one}})
    index = {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": manifests}
    place.files["/v2/"] = b"{}"
    return str(put("manifests", json.dumps(index).encode(), f"{oci}.index.v1+json")["digest"])
