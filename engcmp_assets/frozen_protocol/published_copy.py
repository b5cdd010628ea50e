"""A copy of a frozen protocol for others, in which private texts (a path, a host) are placeholders; it records both hashes of each file.

The copy is not the frozen protocol and cannot be run as it; whoever has the original can show that the copy is of it and of nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engcmp_resources.canonical import sha256_bytes
from engcmp_resources.errors import EngcmpError

COPY_FILE = "COPY.json"
SCHEMA = "engcmp.published-protocol/1"
_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


def published_copy(
    files: Mapping[str, bytes], placeholders: Mapping[str, str], *, study: str, frozen_sha256: str
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The copy's files and its document; `placeholders` are the private texts by name (`HOME`: what stands for `<HOME>`).

    The document holds no private text. Raises EngcmpError for a name that is none, a text that is empty or occurs nowhere, and a
    placeholder that stands in a file already: the copy could not be told from the original there.
    """
    for name, text in placeholders.items():
        if _NAME.fullmatch(name) is None or not text:
            raise EngcmpError(f"{name!r} is no placeholder", remedy="write NAME=TEXT with a name in capitals")
        if any(_mark(name) in data for data in files.values()):
            raise EngcmpError(f"<{name}> stands in a protocol file already", remedy="use another name")
        if not any(text.encode() in data for data in files.values()):
            raise EngcmpError(
                f"the text of placeholder {name} is in no protocol file", remedy="leave it out, or correct it"
            )
    copied, told = {}, {}
    for path, data in files.items():
        counts = {}
        copy = data
        # Longer texts first: one may be within another.
        for name, text in sorted(placeholders.items(), key=lambda item: (-len(item[1]), item[0])):
            if count := copy.count(text.encode()):
                counts[name] = count
                copy = copy.replace(text.encode(), _mark(name))
        copied[path] = copy
        told[path] = {"sha256": sha256_bytes(data), "published_sha256": sha256_bytes(copy), "placeholders": counts}
    return copied, {"schema": SCHEMA, "study": study, "frozen_sha256": frozen_sha256, "files": told}


def refuse_other_copy(copied: Mapping[str, bytes], document: Mapping[str, Any], frozen: Mapping[str, Any]) -> None:
    """Raise EngcmpError naming the file for a copy whose bytes or originals are not as its document and the freeze say."""
    told = document.get("files")
    if (
        document.get("schema") != SCHEMA
        or not isinstance(told, dict)
        or document.get("frozen_sha256") != frozen["frozen_sha256"]
    ):
        raise EngcmpError(f"{COPY_FILE} is of no copy of this freeze", remedy="make the copy again")
    originals = {path: entry.get("sha256") for path, entry in told.items() if isinstance(entry, dict)}
    if originals != frozen["files"]:
        raise EngcmpError(f"{COPY_FILE} has other original hashes than the freeze", remedy="make the copy again")
    for path in sorted({*told, *copied}):
        if path not in told or path not in copied or sha256_bytes(copied[path]) != told[path].get("published_sha256"):
            raise EngcmpError(f"{path} of the copy is not as it was published", remedy="make the copy again")


def _mark(name: str) -> bytes:
    return f"<{name}>".encode()
