"""An arm's long replies as its summary holds them: each group's endings, figures and what could not be graded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEPT = (
    "population", "block", "stage", "kind", "caps", "replies", "endings", "capped_in", "detectors", "too_short_to_judge", "not_graded",
    "with_control_tokens", "figures",
)  # fmt: skip


def reply_groups(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of checks.json what a reader compares: the groups, the self-tests and what is missing, and what the detectors are worth."""
    return {
        "groups": [{name: group[name] for name in _KEPT} for group in document["groups"]],
        "self_tests": document["self_tests"],
        "missing": document["missing"],
        "detectors": document["detectors_on_the_labelled_corpus"],
    }
