"""Freezing a protocol and holding a folder against its freeze.

Frozen are the raw bytes of every protocol file and, by id and version, every measure, driver and checker together with what they give
on a conformance vector: refactoring needs no new freeze, a changed result does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engcmp_resources.canonical import sha256_bytes, sha256_of
from engcmp_resources.errors import EngcmpError

SCHEMA = "engcmp.frozen/1"
# Elementary functions differ between processors in the last bit; a changed definition differs by far more.
CONFORMANCE_TOLERANCE = 1e-9


def frozen_document(
    study: str,
    files: Mapping[str, bytes],
    versions: Mapping[str, Mapping[str, Any]],
    conformance: Mapping[str, float],
) -> dict[str, Any]:
    """FROZEN.json's content: file hashes, versions (measures, drivers, checkers), conformance values, and the frozen hash."""
    body = {
        "schema": SCHEMA,
        "study": study,
        "files": {name: sha256_bytes(data) for name, data in sorted(files.items())},
        "versions": {kind: dict(entries) for kind, entries in versions.items()},
        "conformance": {name: f"{value:.12g}" for name, value in sorted(conformance.items())},
    }
    return body | {"frozen_sha256": sha256_of(body)}


def check_frozen(files: Mapping[str, bytes], frozen: Mapping[str, Any], *, where: str) -> None:
    """Raise EngcmpError naming the first file that was changed, added or removed since the freeze, or a damaged FROZEN.json."""
    body = {name: value for name, value in frozen.items() if name != "frozen_sha256"}
    if frozen.get("schema") != SCHEMA or sha256_of(body) != frozen.get("frozen_sha256"):
        raise EngcmpError("FROZEN.json was changed after the freeze", where=where, remedy="restore it from git")
    now = {name: sha256_bytes(data) for name, data in files.items()}
    then = frozen["files"]
    for name in sorted(set(now) | set(then)):
        if now.get(name) == then.get(name):
            continue
        change = "was added" if name not in then else "is missing" if name not in now else "was edited"
        raise EngcmpError(
            f"protocol file {name} {change} after the freeze",
            where=where,
            remedy=f"restore it, or freeze the study anew as another protocol (`engcmp freeze {frozen['study']}`)",
        )


def check_versions(
    frozen: Mapping[str, Any],
    versions: Mapping[str, Mapping[str, Any]],
    conformance: Mapping[str, float],
    *,
    where: str,
) -> None:
    """Raise EngcmpError naming the measure, driver or checker whose version or result differs from the freeze."""
    for kind, entries in versions.items():
        for name, version in entries.items():
            then = frozen["versions"].get(kind, {}).get(name)
            if then is not None and then != version:
                raise EngcmpError(
                    f"{kind} {name} is version {version} in this code and was frozen as {then}",
                    where=where,
                    remedy="use the code of the freeze, or freeze the study anew",
                )
    for name, text in frozen["conformance"].items():
        value = conformance.get(name, math.nan)
        if not math.isclose(value, float(text), rel_tol=CONFORMANCE_TOLERANCE, abs_tol=1e-12):
            raise EngcmpError(
                f"{name} gives {value:.12g} on the conformance vector and gave {text} at the freeze",
                where=where,
                remedy="a changed result needs a new version and a new freeze",
            )
