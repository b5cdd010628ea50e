"""What stands for a secret in receipts, logs and errors. What a server answers is looked through for its key before it is kept."""

from __future__ import annotations

import re
from typing import Any

from engcmp_resources.canonical import sha256_bytes

_SHOWN_CHARACTERS = 12
_SECRET = re.compile(
    r"TOKEN$|(?i:(KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH|(HF|HUB|ACCESS|AUTH|API|BEARER)_TOKEN)$)"
)


def hidden_secret(value: str) -> str:
    """What stands for a secret in receipts and logs: the beginning of its SHA-256."""
    return f"sha256:{sha256_bytes(value.encode())[:_SHOWN_CHARACTERS]}"


def is_secret(name: str) -> bool:
    """Whether a setting or variable of this name holds a secret."""
    return _SECRET.search(name) is not None


def without_key(content: bytes, key: str | None) -> bytes:
    """An answer of a server that was asked with `key`, the key replaced by its hash: careless servers say it in their errors."""
    return content.replace(key.encode(), hidden_secret(key).encode()) if key else content


def without_secrets(value: Any, key: str | None = None) -> Any:
    """A JSON value with each secret replaced by its hash: what stands under the name of one, and `key` wherever it stands.

    SGLang's statement of its settings holds its API key, and its launch command.
    """
    if isinstance(value, dict):
        return {
            name: hidden_secret(inner)
            if is_secret(str(name)) and isinstance(inner, str)
            else without_secrets(inner, key)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner, key) for inner in value]
    return value.replace(key, hidden_secret(key)) if isinstance(value, str) and key else value
