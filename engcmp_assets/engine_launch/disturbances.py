"""What disturbed an engine while it was measured, judged on its telemetry; it can be judged again from the stored files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.gpu_rules import GpuRules, check_after_stop, judge
from engcmp_assets.kernel.receipts import Column
from engcmp_assets.kernel.telemetry_table import TELEMETRY_COLUMNS, samples_of, telemetry_table

Samples = Sequence[Mapping[str, Any]]
START_TELEMETRY_COLUMNS = (
    Column("start", "int", "1", "Number of the start, in order"),
    *TELEMETRY_COLUMNS,
)


def disturbances(
    starts: Sequence[Mapping[str, Any]], telemetry: Mapping[int, Samples], rules: GpuRules | None
) -> list[str]:
    """A sentence for each thing that the rules do not allow, start by start; none where the study declares no GPUs."""
    found = []
    for start in starts:
        name = f"start {start['start']}"
        found += [f"{name} is void: {reason}" for reason in start.get("void", [])]
        if rules is not None:
            judged = judge(telemetry.get(start["start"], []), rules)
            judged += check_after_stop(start["gpus_before"], start["gpus_after"], rules)
            found += [f"{name}: {one.explanation}" for one in judged]
    return found


def telemetry_of_starts(telemetry: Mapping[int, Samples]) -> dict[str, list[Any]]:
    """The samples of all starts as one table."""
    table: dict[str, list[Any]] = {column.name: [] for column in START_TELEMETRY_COLUMNS}
    for start, samples in sorted(telemetry.items()):
        own = telemetry_table(samples)
        table["start"] += [start] * len(own["sample"])
        for name, values in own.items():
            table[name] += values
    return table


def samples_by_start(table: Mapping[str, Iterable[Any]]) -> dict[int, list[dict[str, Any]]]:
    """The samples that a table of all starts was made of."""
    lists = {name: list(values) for name, values in table.items()}
    found: dict[int, list[dict[str, Any]]] = {}
    for start in sorted({int(value) for value in lists["start"]}):
        rows = [index for index, value in enumerate(lists["start"]) if int(value) == start]
        own = {column.name: [lists[column.name][row] for row in rows] for column in TELEMETRY_COLUMNS}
        found[start] = samples_of(own)
    return found
