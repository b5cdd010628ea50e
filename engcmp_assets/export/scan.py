"""What must not leave with an export: secrets, paths of a home, names of the host and its user, e-mail addresses.

What is found is replaced by a placeholder that says what stood there; the hash of the original is kept beside that of the copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Keys as the services give them out, and what stands behind the usual names of a secret. Each alternative needs a length that words lack.
_KEYS = (
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{20,}",
    r"\bhf_[A-Za-z0-9]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bgithub_pat_[A-Za-z0-9_]{30,}",
    r"\bglpat-[A-Za-z0-9_-]{18,}",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\bAIza[0-9A-Za-z_-]{35}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"(?i:\bbearer)\s+[A-Za-z0-9._~+/-]{20,}=*",
    r"(?i:\b(?:api[_-]?key|secret|token|password|passwd)\b[\"']?\s*[:=]\s*[\"']?)(?!sha256:|\{|null\b|\[)[A-Za-z0-9._~+/-]{16,}",
)
_HOMES = r"(?:/home/|/Users/|/root\b/?|[A-Z]:\\+Users\\+)[A-Za-z0-9._-]*(?:[/\\][A-Za-z0-9._~@+-]+)*"
_EMAIL = r"\b[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,}\b"
_SHORTEST_NAME = 4  # a host called "pc" stands in every second word


@dataclass(frozen=True, slots=True)
class Found:
    """What stands in a text that must not leave: its kind and its place in characters."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What to look for: the fixed forms, and this machine's own names and secrets, each with its kind."""

    names: tuple[tuple[str, str], ...]

    def findings(self, text: str) -> list[Found]:
        """Everything in `text` that must not leave, from left to right, nothing twice."""
        found = sorted(self._all(text), key=lambda one: (one.start, -one.end))
        kept: list[Found] = []
        for one in found:
            if not kept or one.start >= kept[-1].end:
                kept.append(one)
        return kept

    def _all(self, text: str) -> Iterator[Found]:
        for kind, pattern in (*(("secret", key) for key in _KEYS), ("home-path", _HOMES), ("e-mail", _EMAIL)):
            yield from (Found(kind, match.start(), match.end()) for match in re.finditer(pattern, text))
        for kind, name in self.names:
            pattern = rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])"
            yield from (Found(kind, match.start(), match.end()) for match in re.finditer(pattern, text))


def scan_for(*, hosts: Sequence[str], users: Sequence[str], secrets: Sequence[str], places: Sequence[str] = ()) -> Scan:
    """A scan for the fixed forms and for these; `places` are folders of this machine. Names too short to mean anything are left out."""
    names = [("secret", one) for one in secrets if one]
    names += [("home-path", one) for one in places if one]
    names += [("host-name", one) for one in hosts if len(one) >= _SHORTEST_NAME and one != "localhost"]
    names += [("user-name", one) for one in users if len(one) >= _SHORTEST_NAME and one not in ("root", "user")]
    return Scan(tuple(dict.fromkeys(names)))


def replaced(text: str, found: Sequence[Found]) -> str:
    """`text` with a placeholder for each finding."""
    parts, place = [], 0
    for one in found:
        parts += [text[place : one.start], f"[removed: {one.kind}]"]
        place = one.end
    return "".join([*parts, text[place:]])
