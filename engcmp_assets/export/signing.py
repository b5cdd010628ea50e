"""Signs a bundle's manifest: an in-toto Statement in a DSSE envelope, by an Ed25519 key of the user's own."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from engcmp_assets.export.verifier.reading import MANIFEST
from engcmp_assets.export.verifier.signature import PAYLOAD_TYPE, PREDICATE, STATEMENT, dsse_bytes
from engcmp_resources.canonical import canonical_bytes
from engcmp_resources.errors import EngcmpError

_MAKE = "`openssl genpkey -algorithm ed25519 -out KEY.pem && chmod 600 KEY.pem` makes one"


def read_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file that only its owner may read. Raises EngcmpError for any other."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise EngcmpError("the signing key can be read by others", where=str(path), remedy=f"chmod 600 {path}")
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise EngcmpError(f"no signing key: {error.strerror}", where=str(path), remedy=_MAKE) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise EngcmpError("not a private key in PEM without a password", where=str(path), remedy=_MAKE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise EngcmpError("the signing key is not an Ed25519 key", where=str(path), remedy=_MAKE)
    return key


def public_key(key: Ed25519PrivateKey) -> str:
    """The public key as 64 hex digits: what a reader gives as `--key`."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def signed(key: Ed25519PrivateKey, manifest_sha256: str, facts: dict[str, Any]) -> bytes:
    """The bytes of SIGNATURE.json for a manifest; `facts` (study, frozen hash, head) stand in the statement for a reader."""
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": MANIFEST, "digest": {"sha256": manifest_sha256}}],
        "predicateType": PREDICATE,
        "predicate": facts,
    }
    payload = canonical_bytes(statement)
    signature = key.sign(dsse_bytes(payload))
    envelope = {
        "payload": base64.b64encode(payload).decode("ascii"),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": public_key(key), "sig": base64.b64encode(signature).decode("ascii")}],
    }
    return canonical_bytes(envelope)
