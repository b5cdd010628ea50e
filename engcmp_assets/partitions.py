"""The partitions of a study: its arms, and the candidates that wait for approval."""

from __future__ import annotations

import dagster as dg


def arm_partitions(prefix: str) -> dg.DynamicPartitionsDefinition:
    """One partition for each arm of the study; filled by `engcmp ui`, `engcmp run` and a sensor."""
    return dg.DynamicPartitionsDefinition(name=f"{prefix}_arms")


def candidate_partitions(prefix: str) -> dg.DynamicPartitionsDefinition:
    """One partition for each candidate iteration that waits for approval."""
    return dg.DynamicPartitionsDefinition(name=f"{prefix}_candidates")
