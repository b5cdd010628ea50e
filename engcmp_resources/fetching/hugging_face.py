"""Repositories of the Hugging Face hub at a commit, by its plain HTTPS addresses.

`HF_ENDPOINT` names another hub that speaks the same. A token comes from `HF_TOKEN`, or from the file that `HF_TOKEN_PATH` names and
that only its owner may read. It goes to the hub alone: what the hub redirects to another host is asked for without it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from engcmp_resources.errors import EngcmpError
from engcmp_resources.fetching.base import (
    Digest,
    Planned,
    Say,
    Wanted,
    digest_of,
    git_digest,
    require_digest,
    require_safe_path,
    secret,
)
from engcmp_resources.fetching.http import FileAt, Http, require_ok
from engcmp_resources.releases.web import origin, shown, web_url

_HUB = "https://huggingface.co"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_KINDS = {"model": ("", "models"), "dataset": ("datasets/", "datasets")}
_PAGES = 1000
_LOGIN = (
    "set HF_TOKEN to a token that may read it, or HF_TOKEN_PATH to a file that holds one and that only you may read"
)


@dataclass(frozen=True)
class HuggingFace:
    """The hub."""

    http: Http = field(default_factory=Http)

    def plan(self, wanted: Wanted) -> Sequence[Planned]:
        """Pinned files as they are pinned, and the digests and sizes that the hub states where a pin lacks them."""
        if _NAME.fullmatch(wanted.where) is None or _COMMIT.fullmatch(wanted.revision) is None:
            raise EngcmpError(
                f"source {wanted.source}: not a repository at a commit", where=f"{wanted.where} @ {wanted.revision}",
                remedy="write OWNER/NAME and all 40 digits of the commit",
            )  # fmt: skip
        if wanted.files is not None and all(one.sha256 and one.bytes is not None for one in wanted.files):
            return [self._planned(wanted, one.path, digest_of(one), one.bytes) for one in wanted.files]
        listed = {str(one["path"]): one for one in self._tree(wanted)}
        if wanted.files is None:
            taken = [
                name
                for name in listed
                if not wanted.include or any(fnmatch.fnmatch(name, one) for one in wanted.include)
            ]
            if not taken:
                raise EngcmpError(
                    f"source {wanted.source}: no file there is taken by {', '.join(wanted.include) or 'its list'}",
                    where=wanted.where, remedy="correct `include`",
                )  # fmt: skip
            return [self._planned(wanted, name, _stated(listed[name]), _size(listed[name])) for name in sorted(taken)]
        if missing := [one.path for one in wanted.files if one.path not in listed]:
            raise EngcmpError(
                f"source {wanted.source}: {missing[0]} is not there at this commit",
                where=wanted.where,
                remedy="correct the path",
            )
        return [
            self._planned(
                wanted, one.path, digest_of(one) or _stated(listed[one.path]), one.bytes or _size(listed[one.path])
            )
            for one in wanted.files
        ]

    def bring(self, wanted: Wanted, planned: Planned, target: Path, say: Say) -> None:
        """Fetch one file, continued where it was cut."""
        what, digest = f"{wanted.source}: {planned.path}", require_digest(wanted, planned)
        self.http.file(
            FileAt(str(planned.url), dict(planned.headers), digest, planned.bytes, what, _LOGIN, say), target
        )

    def _planned(self, wanted: Wanted, path: str, digest: Digest | None, size: int | None) -> Planned:
        require_safe_path(path, f"source {wanted.source}")
        prefix = _KINDS[wanted.repo_type or "model"][0]
        url = f"{_hub()}/{prefix}{wanted.where}/resolve/{wanted.revision}/{quote(path)}"
        return Planned(path, digest, size, url, tuple(_headers().items()))

    def _tree(self, wanted: Wanted) -> list[dict[str, Any]]:
        """Every file at the commit, over all pages."""
        kind = _KINDS[wanted.repo_type or "model"][1]
        url: str | None = f"{_hub()}/api/{kind}/{wanted.where}/tree/{wanted.revision}?recursive=true"
        what = f"source {wanted.source}"
        found: list[dict[str, Any]] = []
        for _ in range(_PAGES):
            if url is None:
                return found
            answer = self.http.document(url, _headers(), what=what)
            require_ok(answer, what, url, _LOGIN)
            found += [one for one in _entries(answer, what, url) if one.get("type") == "file"]
            url = _next(answer, url)
        raise EngcmpError(f"{what}: the listing has no end", where=wanted.where, remedy="check HF_ENDPOINT")


def _hub() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")


def _headers() -> dict[str, str]:
    token = secret("HF_TOKEN", "HF_TOKEN_PATH")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _entries(answer: httpx.Response, what: str, url: str) -> list[dict[str, Any]]:
    try:
        page = json.loads(answer.content)
    except (ValueError, RecursionError):
        page = None
    if not isinstance(page, list) or not all(
        isinstance(one, dict) and isinstance(one.get("path"), str) for one in page
    ):
        raise EngcmpError(f"{what}: the answer is no listing of files", where=shown(url), remedy="check HF_ENDPOINT")
    return page


def _stated(entry: dict[str, Any]) -> Digest | None:
    """What the hub says of a file: the SHA-256 of a large one, git's id of a small one."""
    large = entry.get("lfs")
    if isinstance(large, dict):
        value = str(large.get("oid", "")).removeprefix("sha256:")
        return Digest("sha256", value) if re.fullmatch(r"[0-9a-f]{64}", value) else None
    return git_digest(str(entry.get("oid", "")))


def _size(entry: dict[str, Any]) -> int | None:
    size = entry.get("size")
    return size if isinstance(size, int) and size >= 0 else None


def _next(answer: httpx.Response, url: str) -> str | None:
    """The next page's address, at the same hub; None on the last page."""
    link = answer.links.get("next", {}).get("url")
    if link is None:
        return None
    following = httpx.URL(url).join(link)
    if origin(following) != origin(web_url(url)):
        raise EngcmpError("the listing's next page is at another host", where=shown(url), remedy="do not use this hub")
    return str(following)
