"""The rows of a bundle, read from its CSV tables: what the figures are recomputed from."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .faults import Fault
from .reading import Bundle

KEYS = ("window_id", "position", "next_token", "cluster", "block", "bucket", "raw_row_sha256")
PAIR_COLUMNS = ("panel", "window_id", "position", "kl_pair", "rows_bit_identical")
_ROUNDING_ABSOLUTE, _ROUNDING_RELATIVE = 1e-14, 1e-13  # two ways of computing one value in float64 differ by no more
Values = list[float]
PairRows = dict[str, dict[tuple[str, str], tuple[float, float | None]]]


@dataclass(frozen=True)
class ArmRows:
    """Rows of one arm on one panel and score path: `keys[name]` and `values[measure][run]`, each of all rows in one order."""

    keys: Mapping[str, Sequence[str]]
    values: Mapping[str, Mapping[str, Values]]

    def rows_of(self, population: str) -> list[int]:
        """The numbers of the rows of `all`, `block:NAME`, `bucket:NAME` or `block:NAME,bucket:NAME`."""
        block, beside, bucket = population.removeprefix("block:").partition(",bucket:")
        if population == "all":
            wanted: dict[str, str] = {}
        elif population.startswith("bucket:"):
            wanted = {"bucket": population.removeprefix("bucket:")}
        else:
            wanted = {"block": block} | ({"bucket": bucket} if beside else {})
        own = range(len(self.keys["block"]))
        return [row for row in own if all(self.keys[name][row] == value for name, value in wanted.items())]

    def populations(self, by: Sequence[str]) -> list[str]:
        """`all`, and by each of `by` (`block`, `bucket`, `block at bucket`) those that have rows."""
        pairs = sorted(set(zip(self.keys["block"], self.keys["bucket"], strict=True)))
        named = {
            "block": [f"block:{block}" for block, _ in pairs],
            "bucket": [f"bucket:{bucket}" for _, bucket in pairs],
            "block at bucket": [f"block:{block},bucket:{bucket}" for block, bucket in pairs],
        }
        return list(dict.fromkeys(["all", *(one for kind in by for one in named[kind])]))

    def per_row(self, measure: str) -> Values:
        """Each row's mean over the runs; exactly the value where all runs agree."""
        runs = list(self.values[measure].values())
        return [one[0] if len(set(one)) == 1 else math.fsum(one) / len(one) for one in zip(*runs, strict=True)]


def arm_rows(bundle: Bundle, name: str) -> ArmRows:
    """The table of an arm's rows. Raises Fault for one of another form."""
    rows = _rows(bundle, name)
    header, body = rows[0], rows[1:]
    if tuple(header[: len(KEYS)]) != KEYS or not body:
        raise Fault(name, f"has no columns {', '.join(KEYS)}")
    columns = list(zip(*body, strict=True))
    values: dict[str, dict[str, Values]] = {}
    for column, cells in zip(header[len(KEYS) :], columns[len(KEYS) :], strict=True):
        measure, _, run = column.partition("@")
        values.setdefault(measure, {})[run] = _numbers(cells, name)
    return ArmRows(dict(zip(KEYS, columns, strict=False)), values)


def pair_rows(bundle: Bundle, name: str) -> PairRows:
    """A pair's distances by panel, and by window and position: (KL, 1 or 0 for rows that are equal bit for bit, or None)."""
    rows = _rows(bundle, name)
    if tuple(rows[0]) != PAIR_COLUMNS:
        raise Fault(name, f"has no columns {', '.join(PAIR_COLUMNS)}")
    found: PairRows = {}
    for panel, window, position, distance, same in rows[1:]:
        equal = _numbers([same], name)[0] if same else None
        found.setdefault(panel, {})[(window, position)] = (_numbers([distance], name)[0], equal)
    return found


def apart(first: Sequence[float], second: Sequence[float]) -> Values:
    """First minus second, row by row; 0 where they differ by no more than computing them in float64 may leave."""
    found = []
    for one, other in zip(first, second, strict=True):
        rounding = _ROUNDING_ABSOLUTE + _ROUNDING_RELATIVE * max(abs(one), abs(other))
        found.append(0.0 if abs(one - other) <= rounding else one - other)
    return found


def _rows(bundle: Bundle, name: str) -> list[list[str]]:
    try:
        rows = list(csv.reader(io.StringIO(bundle.read(name).decode("utf-8"), newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise Fault(name, f"is not a table: {error}") from error
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise Fault(name, "is not a table: its lines have different lengths")
    return rows


def _numbers(cells: Sequence[str], name: str) -> Values:
    try:
        found = [float(cell) for cell in cells]
    except ValueError as error:
        raise Fault(name, f"has a cell that is no number: {error}") from error
    if not all(map(math.isfinite, found)):
        raise Fault(name, "has a value that is not finite")
    return found
