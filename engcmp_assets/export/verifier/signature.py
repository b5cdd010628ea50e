"""Checks an Ed25519 signature over a bundle's manifest in plain Python: a DSSE envelope around an in-toto Statement.

The arithmetic follows RFC 8032. It is slow and not made for secret keys: here only public ones are used.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from .faults import Fault
from .reading import MANIFEST, SIGNATURE, Bundle, parse

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://engcmp.dev/bundle/v1"
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
Point = tuple[int, int, int, int]


def dsse_bytes(payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of the payload and its type."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def check_signature(bundle: Bundle, public_key: str | None) -> str | None:
    """The key (hex) that signed this bundle, or None for an unsigned one.

    Raises Fault for a signature that is not of this manifest or not by the key, and for none where a key was asked for.
    """
    data = bundle.signature()
    if data is None:
        if public_key:
            raise Fault(SIGNATURE, "is missing: the bundle is not signed, and a key was given")
        return None
    envelope = parse(data, SIGNATURE)
    try:
        payload = base64.b64decode(envelope["payload"], validate=True)
        (entry,) = envelope["signatures"]
        key, signature = bytes.fromhex(entry["keyid"]), base64.b64decode(entry["sig"], validate=True)
        kind = envelope["payloadType"]
    except (KeyError, TypeError, ValueError) as error:
        raise Fault(SIGNATURE, "is not a DSSE envelope with one signature") from error
    if public_key and key.hex() != public_key.lower():
        raise Fault(SIGNATURE, f"is by the key {key.hex()[:16]}, not by the one that was given")
    if kind != PAYLOAD_TYPE or not verified(key, signature, dsse_bytes(payload)):
        raise Fault(SIGNATURE, "the signature does not fit its payload and key")
    subject = _subject(parse(payload, SIGNATURE))
    if subject != {MANIFEST: bundle.sha256}:
        raise Fault(SIGNATURE, f"is of another {MANIFEST} than the one that lies here")
    return key.hex()


def _subject(statement: Any) -> dict[str, str]:
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
            raise Fault(SIGNATURE, "is no statement of an exported study")
        return {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    except (KeyError, TypeError) as error:
        raise Fault(SIGNATURE, "is not an in-toto statement") from error


def verified(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether `signature` (64 bytes) is of `message` by the Ed25519 public key `key` (32 bytes)."""
    if len(key) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    public, commitment = _point(key), _point(signature[:_KEY_BYTES])
    scalar = int.from_bytes(signature[_KEY_BYTES:], "little")
    if public is None or commitment is None or scalar >= _ORDER:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:_KEY_BYTES] + key + message).digest(), "little") % _ORDER
    return _equal(_times(scalar, _base()), _add(commitment, _times(challenge, public)))


def _base() -> Point:
    found = _point(_BASE_Y.to_bytes(_KEY_BYTES, "little"))
    if found is None:
        raise ArithmeticError("the curve's base is a point of it")
    return found


def _point(data: bytes) -> Point | None:
    """The point that 32 bytes stand for, in extended coordinates; None where there is none."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _add(one: Point, other: Point) -> Point:
    a, b = (one[1] - one[0]) * (other[1] - other[0]) % _P, (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: Point) -> Point:
    found: Point = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            found = _add(found, point)
        point = _add(point, point)
        scalar >>= 1
    return found


def _equal(one: Point, other: Point) -> bool:
    return (one[0] * other[2] - other[0] * one[2]) % _P == 0 and (one[1] * other[2] - other[1] * one[2]) % _P == 0
