"""Canonical JSON and SHA-256: the bytes that every hash of the project is taken of. A leaf module: pure functions may import it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from engcmp_resources.errors import EngcmpError

_BLOCK_BYTES = 1 << 20


def canonical_bytes(value: Any) -> bytes:
    """`value` as canonical JSON: sorted keys, compact separators, ASCII, shortest floats, one final newline.

    Raises EngcmpError for NaN, infinities and types that JSON does not have.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EngcmpError(
            f"value has no canonical JSON: {error}", remedy="record a reason (Missing) in its place"
        ) from error
    return text.encode("ascii") + b"\n"


def sha256_bytes(data: bytes | memoryview) -> str:
    """SHA-256 of `data`, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_of(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_bytes(canonical_bytes(value))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
