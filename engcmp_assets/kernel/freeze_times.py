"""When a capture began and when its study was frozen: only what was captured under its freeze can be a primary result of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

UNCHANGED, EXPLORATORY = "unchanged", "exploratory"
"""How an amendment reads what was captured before it: as the freeze before did, or never as a primary result."""


def began_before(began_at: str, under: str, frozen: Mapping[str, Any]) -> str | None:
    """Why a capture that began at `began_at` under the freeze `under` is no primary result of `frozen`; None where it may be one.

    It may be one of its own freeze, and of later ones as long as each amendment since leaves untouched how it is read.
    """
    since = str(frozen.get("frozen_at") or "")
    for entry in reversed(frozen["amendments"]):
        if under == frozen["frozen_sha256"]:
            break
        # An amendment of the first form says nothing of how earlier captures are read, and was made before there was a rule.
        if entry.get("reading", {"rule": UNCHANGED}).get("rule") != UNCHANGED:
            return f"it was captured under freeze {under[:12]}, before the amendment of {entry['amended_at']}: {entry['because']}"
        if entry["from"] == under:
            return None
    if under != frozen["frozen_sha256"]:
        return f"it was captured under freeze {under[:12]}, which is none of this study's"
    if since and _time(began_at) < _time(since):
        return f"it began at {began_at}, before its freeze at {since}"
    return None


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
