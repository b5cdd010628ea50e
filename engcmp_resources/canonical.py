"""Canonical JSON and SHA-256: the bytes that every hash of the project is taken of. A leaf module: pure functions may import it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from engcmp_resources.errors import EngcmpError

_BLOCK_BYTES = 1 << 20
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_bytes(value: Any) -> bytes:
    """`value` as canonical JSON: sorted keys, compact separators, ASCII, shortest floats, one final newline.

    Raises EngcmpError for NaN, infinities, types that JSON does not have, and nesting that it cannot be read back with.
    """
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise EngcmpError(
            f"value has no canonical JSON: {error}", remedy="record a reason (Missing) in its place"
        ) from error
    return text.encode("ascii") + b"\n"


def parse_json(data: bytes, *, what: str, where: str, remedy: str) -> Any:
    """The value of UTF-8 JSON bytes. Raises EngcmpError for anything else, whatever the bytes are, and for a key that stands twice."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise EngcmpError(f"{what} is not JSON: {error}", where=where, remedy=remedy) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def parse_canonical(data: bytes, *, what: str, where: str, remedy: str) -> dict[str, Any]:
    """The object whose canonical JSON is exactly `data`; so no two byte strings stand for one object.

    Raises EngcmpError for other bytes, whatever they are: not JSON, not an object, doubled keys, NaN, other spacing.
    """
    value = _decoded(data)
    if not _is_canonical(value, data):  # here a doubled key is named, and what the fast decoder does not take is read
        value = parse_json(data, what=what, where=where, remedy=remedy)
        if not _is_canonical(value, data):
            raise EngcmpError(f"{what} is not a canonical JSON object", where=where, remedy=remedy)
    found: dict[str, Any] = value
    return found


def _decoded(data: bytes) -> Any:
    """What msgspec reads, in a quarter of the time of json; None where it refuses. What it is worth is for `_is_canonical` to say."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _is_canonical(value: Any, data: bytes) -> bool:
    try:
        return isinstance(value, dict) and canonical_bytes(value) == data
    except EngcmpError:
        return False


def sha256_bytes(data: bytes | memoryview) -> str:
    """SHA-256 of `data`, 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_of(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`."""
    return sha256_bytes(canonical_bytes(value))


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    file = os.open(path, os.O_RDONLY)
    try:
        # Room for a whole block would cost a small file more than its hash does.
        most = min(os.fstat(file).st_size + 1, _BLOCK_BYTES)
        while block := os.read(file, most):
            digest.update(block)
    finally:
        os.close(file)
    return digest.hexdigest()
