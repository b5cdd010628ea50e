"""A measured launch as one side of a difference, from its receipt and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.fields import ScorePath
from engcmp_assets.kernel.launch_diff import Side
from engcmp_assets.kernel.names import LAUNCH
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.work import output_blob, sound_receipt
from engcmp_resources.errors import EngcmpError
from engcmp_resources.refusals import last_refusal
from engcmp_resources.store import Store

_HOST = ("system", "kernel", "machine", "cpu", "cores", "memory_bytes", "gpus", "host_fingerprint", "python")


def launch_side(store: Store, study: str, arm: ArmKey, *, path: ScorePath | None = None) -> Side:
    """The current launch of an arm. Raises EngcmpError for an arm that was not measured, or not on this score path."""
    sha256 = store.head(study, arm.folder, LAUNCH)
    if sha256 is None:
        why = last_refusal(store.home, study, arm.folder)
        said = f": its last run was refused: {why}" if why else " yet"
        raise EngcmpError(f"{arm} was not measured{said}", remedy=f"engcmp run {study} --arm {arm}")
    receipt = sound_receipt(store, sha256)
    paths = sorted({start["path"] for start in _starts(store, receipt)})
    if path is not None and path not in paths:
        raise EngcmpError(f"{arm} has no start on the {path} path", remedy=f"it has {', '.join(paths)}")
    return side_of(store, receipt, path=path)


def side_of(store: Store, receipt: Mapping[str, Any], *, path: ScorePath | None = None) -> Side:
    """The launch that a receipt is of: its first start on a score path, or its first one where a later launch did not need that path."""
    starts = _starts(store, receipt)
    own = [start for start in starts if path in (None, start["path"])] or starts
    spec = json.loads(store.path(output_blob(receipt, "spec.json")).read_bytes())
    return Side(spec, own[0]["facts"], {name: receipt["environment"].get(name) for name in _HOST})


def _starts(store: Store, receipt: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(store.path(output_blob(receipt, "starts.json")).read_bytes())
    return found
