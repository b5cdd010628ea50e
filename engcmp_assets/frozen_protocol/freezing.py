"""Freezing a protocol and holding a folder against its freeze.

Frozen are the raw bytes of every protocol file and, by id and version, every measure, driver and checker together with what they give
on a conformance vector: refactoring needs no new freeze, a changed result does.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_resources.canonical import sha256_bytes, sha256_of
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.frozen/2"
_FIRST_SCHEMA = "engcmp.frozen/1"  # of freezes that do not say when they were made, and by which tools
# Elementary functions differ between processors in the last bit; a changed definition differs by far more.
CONFORMANCE_TOLERANCE = 1e-9


def frozen_document(
    study: str,
    files: Mapping[str, bytes],
    versions: Mapping[str, Mapping[str, Any]],
    conformance: Mapping[str, float],
    amendments: Sequence[Mapping[str, Any]] = (),
    *,
    frozen_at: str,
    tools: Mapping[str, str],
) -> dict[str, Any]:
    """FROZEN.json's content: file hashes, versions (measures, drivers, checkers), conformance values, amendments, and the frozen hash.

    `frozen_at` (ISO 8601) is when it is made: what was captured before is no primary result of it. `tools` are name and version of what
    made it.
    """
    body = {
        "schema": SCHEMA,
        "study": study,
        "files": {name: sha256_bytes(data) for name, data in sorted(files.items())},
        "versions": {kind: dict(entries) for kind, entries in versions.items()},
        "conformance": {name: f"{value:.12g}" for name, value in sorted(conformance.items())},
        "amendments": [dict(entry) for entry in amendments],
        "frozen_at": frozen_at,
        "tools": dict(tools),
    }
    return body | {"frozen_sha256": sha256_of(body)}


def check_frozen(files: Mapping[str, bytes], frozen: Mapping[str, Any], *, where: str) -> None:
    """Raise EngcmpError naming the first file that was changed, added or removed since the freeze, or a damaged FROZEN.json."""
    for name, what in frozen_differences(files, frozen):
        remedy = f"restore it, or `engcmp amend {frozen.get('study')} --because WHY`"
        raise EngcmpError(what, where=f"{where}/{name}", remedy=remedy)


def frozen_differences(files: Mapping[str, bytes], frozen: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every file that differs from the freeze, and how. Of a damaged FROZEN.json nothing else can be held against it."""
    body = {name: value for name, value in frozen.items() if name != "frozen_sha256"}
    if not _is_freeze(body) or sha256_of(body) != frozen.get("frozen_sha256"):
        yield "FROZEN.json", "FROZEN.json was changed after the freeze"
        return
    now = {name: sha256_bytes(data) for name, data in files.items()}
    then = frozen["files"]
    for name in sorted(set(now) | set(then)):
        if now.get(name) != then.get(name):
            change = "was added" if name not in then else "is missing" if name not in now else "was edited"
            yield name, f"protocol file {name} {change} after the freeze"


def _is_freeze(body: Mapping[str, Any]) -> bool:
    """Whether it has the form of a freeze; a forged one may have any hash and any content."""
    tables = (body.get("files"), body.get("versions"), body.get("conformance"))
    names = {"schema", "study", "files", "versions", "conformance", "amendments"}
    if body.get("schema") == SCHEMA:
        names |= {"frozen_at", "tools"}
    return (
        set(body) == names
        and body["schema"] in (SCHEMA, _FIRST_SCHEMA)
        and isinstance(body["amendments"], list)
        and all(isinstance(entry, dict) for entry in body["amendments"])
        and all(isinstance(table, dict) for table in tables)
        and all(isinstance(entries, dict) for entries in body["versions"].values())
        and all(_is_number(text) for text in body["conformance"].values())
        and (body["schema"] == _FIRST_SCHEMA or (_is_time(body["frozen_at"]) and isinstance(body["tools"], dict)))
    )


def _is_time(text: Any) -> bool:
    try:
        return isinstance(text, str) and datetime.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_number(text: Any) -> bool:
    try:
        return isinstance(text, str) and math.isfinite(float(text))
    except ValueError:
        return False


def check_versions(
    frozen: Mapping[str, Any],
    versions: Mapping[str, Mapping[str, Any]],
    conformance: Mapping[str, float],
    *,
    where: str,
) -> None:
    """Raise EngcmpError naming the measure, driver or checker whose version or result differs from the freeze."""
    for kind, entries in frozen["versions"].items():
        for name, then in entries.items():
            version = versions.get(kind, {}).get(name)
            if version != then:
                now = "is not in this code" if version is None else f"is version {version} in this code"
                raise EngcmpError(
                    f"{kind} {name} {now} and was frozen as {then}",
                    where=where,
                    remedy="use the code of the freeze, or `engcmp amend` the study",
                )
    for name, text in frozen["conformance"].items():
        value = conformance.get(name, math.nan)
        if not math.isclose(value, float(text), rel_tol=CONFORMANCE_TOLERANCE, abs_tol=1e-12):
            now = f"gives {value:.12g}" if name in conformance else "is not computed"
            raise EngcmpError(
                f"{name} {now} on the conformance vector and gave {text} at the freeze",
                where=where,
                remedy="a changed result needs a new version and a new freeze",
            )
