"""The SHA-256 that is already known of a row file, without reading it: by its name in a store, or from a list beside it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from engcmp_resources.errors import EngcmpError
from engcmp_resources.row_layouts.places import small_file

SUMS = "SHA256SUMS"
_STORED = re.compile(r"([0-9a-f]{64})\.[A-Za-z0-9]+")
_LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?([^/]+)")
_MOST_BYTES = 16 << 20


def known_sha256(path: Path) -> tuple[str, str] | None:
    """The digest of a file, and who says so; None where nobody does.

    A store names its files by their digest, as `store/ab/<sha256>.<suffix>`; links to them are followed. A list `SHA256SUMS`, as sha256sum
    writes it, is believed where it lies in the file's folder and is not older than the file. Nothing is hashed here: it is what is said.
    """
    real = path.resolve()
    match = _STORED.fullmatch(real.name)
    if match is not None and real.parent.name == match[1][:2]:
        return match[1], "the name of the stored file"
    sums = path.parent / SUMS
    try:
        listed = sums.stat()
        if not path.is_file() or listed.st_mtime_ns < path.stat().st_mtime_ns:
            return None
        digest = _listed(sums, listed.st_mtime_ns, listed.st_size).get(path.name)
    except (OSError, EngcmpError):
        return None
    return None if digest is None else (digest, SUMS)


@functools.lru_cache(maxsize=64)
def _listed(sums: Path, _mtime_ns: int, _size: int) -> Mapping[str, str]:
    """Digests by file name. A name that stands twice with two digests has none."""
    found: dict[str, str] = {}
    doubted = set()
    lines = small_file(sums, most_bytes=_MOST_BYTES, window_id="").decode("utf-8", errors="replace").splitlines()
    for match in filter(None, map(_LINE.fullmatch, lines)):
        if found.setdefault(match[2], match[1]) != match[1]:
            doubted.add(match[2])
    return {name: digest for name, digest in found.items() if name not in doubted}
