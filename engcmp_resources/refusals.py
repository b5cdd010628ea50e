"""Where the last refusal of an arm's engine is kept, and what it says."""

from __future__ import annotations

import json
from pathlib import Path


def refusal_file(home: Path, study: str, arm_folder: str) -> Path:
    """The record of an arm's last refusal; there is none where its last run went well."""
    return home / "refusals" / study / f"{arm_folder}.json"


def last_refusal(home: Path, study: str, arm_folder: str) -> str | None:
    """What the arm's last run was refused for; None where it was not, or the record is damaged."""
    try:
        return str(json.loads(refusal_file(home, study, arm_folder).read_bytes())["what"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
