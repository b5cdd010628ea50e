"""Where the last refusal of an arm's engine is kept, and what it says."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path

REFUSALS = "refusals"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an arm's last run was refused for, and when (UTC); `of` which launch, None where an older record does not say."""

    what: str
    when: datetime.datetime
    of: str | None = None

    def __str__(self) -> str:
        return f"{self.what}, {self.when:%Y-%m-%d %H:%M} UTC"


def refusal_file(home: Path, study: str, arm_folder: str) -> Path:
    """The record of an arm's last refusal; there is none where its last run went well."""
    return home / REFUSALS / study / f"{arm_folder}.json"


def last_refusal(home: Path, study: str, arm_folder: str) -> Refusal | None:
    """What the arm's last run was refused for; None where it was not, or the record is damaged."""
    try:
        said = json.loads(refusal_file(home, study, arm_folder).read_bytes())
        return Refusal(str(said["what"]), datetime.datetime.fromisoformat(said["when"]), said.get("of"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
