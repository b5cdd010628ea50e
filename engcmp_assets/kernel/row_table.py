"""An arm's scored rows as arrays: what tails, summaries and comparisons read of `rows.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engcmp_assets.kernel.floors import RunValues
from engcmp_assets.kernel.names import part_of, population_parts
from engcmp_resources.errors import EngcmpError

Column = npt.NDArray[Any]
_KEYS = ("window_id", "position", "next_token", "cluster", "block", "bucket", "role", "raw_row_sha256")
_SAME = _KEYS[:-1]  # what must be equal from run to run: all but the values themselves


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of one arm on one panel and score path.

    `keys[name]` is [rows] (`raw_row_sha256` that of the first run); `values[measure]` float64 [runs, rows], runs as `launch.repeat`.
    """

    runs: tuple[str, ...]
    keys: Mapping[str, Column]
    values: Mapping[str, npt.NDArray[np.float64]]

    @property
    def rows(self) -> int:
        return len(self.keys["position"])

    def populations(self, by: Sequence[str] = ("block",)) -> tuple[str, ...]:
        """`all`, then by each of `by` those that have rows: `block`, `bucket`, and `block at bucket`.

        Blocks stand in the order of their names, buckets in that of how far their rows reach.
        """
        blocks, buckets = self.keys["block"].tolist(), self.keys["bucket"].tolist()
        crossed, reach = set(zip(blocks, buckets, strict=True)), dict[str, int]()
        for name, position in zip(buckets, self.keys["position"].tolist(), strict=True):
            reach[name] = max(reach.get(name, 0), position)
        lengths = sorted(reach, key=lambda name: (reach[name], name))
        found: dict[str, list[tuple[str | None, str | None]]] = {
            "block": [(name, None) for name in sorted(set(blocks))],
            "bucket": [(None, name) for name in lengths],
            "block at bucket": [
                (block, bucket) for block in sorted(set(blocks)) for bucket in lengths if (block, bucket) in crossed
            ],
        }
        return (part_of(None), *(part_of(*one) for kind in by for one in found[kind]))

    def rows_of(self, population: str) -> npt.NDArray[np.bool_]:
        """Which rows belong to `population`. Raises EngcmpError for a name of no population of rows."""
        parts = population_parts(population)
        if parts is None:
            raise EngcmpError(
                f"no population {population!r}", remedy="use all, block:NAME, bucket:NAME or block:NAME,bucket:NAME"
            )
        chosen = np.ones(self.rows, dtype=bool)
        for column, name in zip(("block", "bucket"), parts, strict=True):
            if name is not None:
                chosen &= self.keys[column] == name
        return chosen

    def per_row(self, measure: str) -> npt.NDArray[np.float64]:
        """The arm's value of each row, [rows]: the mean over its runs."""
        return RunValues(self.runs, self.values[measure]).per_row

    def clusters_of(self, chosen: npt.NDArray[np.bool_]) -> list[str]:
        clusters: list[str] = self.keys["cluster"][chosen].tolist()
        return clusters


def row_table(
    columns: Mapping[str, Column], measures: Sequence[str], *, roles: Sequence[str], path: str, where: str
) -> RowTable:
    """The rows of the score path `path` whose role is in `roles`, run by run in one order.

    Raises EngcmpError where a column is missing, runs hold different rows, or no row is left.
    """
    for name in ("run", "score_path", *_KEYS, *measures):
        if name not in columns:
            raise EngcmpError(f"column {name} is missing", where=where, remedy="score the arm again")
    in_role = np.isin(columns["role"], list(roles)) & (columns["score_path"] == path)
    if not in_role.any():
        raise EngcmpError(
            f"no {path} row has a role of {', '.join(roles)}", where=where, remedy="mend the panel's plan"
        )
    runs = tuple(sorted(set(columns["run"][in_role].tolist())))
    order = {}
    for run in runs:
        rows = np.flatnonzero(in_role & (columns["run"] == run))
        order[run] = rows[np.lexsort((columns["position"][rows], columns["window_id"][rows]))]
    first = order[runs[0]]
    for run in runs[1:]:
        same = len(order[run]) == len(first) and all(
            (columns[name][order[run]] == columns[name][first]).all() for name in _SAME
        )
        if not same:
            raise EngcmpError(
                f"runs {runs[0]} and {run} hold different rows", where=where, remedy="capture the arm again"
            )
    keys = {name: columns[name][first] for name in _KEYS}
    values = {name: np.stack([columns[name][order[run]].astype(np.float64) for run in runs]) for name in measures}
    return RowTable(runs, keys, values)
