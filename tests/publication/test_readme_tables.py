"""The README's tables are those of a measured home: `ENGCMP_RENEW_README=1` writes them anew.

They hold for the rows that they were made of, whose hash stands beside them. A processor that takes other kernels gives other rows;
there the README's values must lie within the intervals that are measured.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from homes import CHECKOUT, current_receipt, every_arm, output_file
from readme_tables import ARMS, MEASURES, PAIRS, Figures, arm_id, arms_table, pair_id, pairs_table

from engcmp_assets.kernel.plots import format_number
from engcmp_resources.canonical import sha256_of

pytestmark = every_arm
README = CHECKOUT / "README.md"
RENEW = "ENGCMP_RENEW_README"
MARK = re.compile(r"<!-- the two tables: of rows ([0-9a-f]{64}) -->")


@pytest.fixture(scope="module")
def figures(measured_home: Path) -> Figures:
    receipts = [current_receipt(measured_home, "comparisons")]
    receipts += [current_receipt(measured_home, "summaries", arm) for arm in ARMS]
    return {figure["figure_id"]: figure for receipt in receipts for figure in receipt["figures"]}


@pytest.fixture(scope="module")
def rows(measured_home: Path) -> str:
    """A hash over the hashes of all rows that the tables rest on."""
    found: list[list[Any]] = []
    for arm in ARMS:
        for panel in ("pa", "pd"):
            receipt = current_receipt(measured_home, f"captured_rows/{panel}", arm)
            table = pl.read_parquet(output_file(measured_home, receipt, "capture.parquet"))
            kept = table.select("run", "window_id", "position", "raw_row_sha256").sort("run", "window_id", "position")
            found += [[arm, panel, *row] for row in kept.iter_rows()]
    return sha256_of(found)


def block(text: str, first: str) -> list[str]:
    """The lines of the table that begins with `first`."""
    lines = text.splitlines()
    start = lines.index(first)
    end = next(place for place in range(start, len(lines)) if not lines[place].startswith("|"))
    return lines[start:end]


def same(stated: str, rows: str) -> bool:
    mark = MARK.search(stated)
    assert mark, f"the README does not say of which rows its tables are: {RENEW}=1"
    return mark[1] == rows


def test_the_tables_are_those_of_the_measured_figures(figures: Figures, rows: str) -> None:
    text = README.read_text(encoding="utf-8")
    made = [arms_table(figures), pairs_table(figures)]
    stated = [block(text, table[0]) for table in made]
    if os.environ.get(RENEW):
        for old, new in zip(stated, made, strict=True):
            text = text.replace("\n".join(old), "\n".join(new))
        README.write_text(MARK.sub(f"<!-- the two tables: of rows {rows} -->", text), encoding="utf-8")
        return
    if same(text, rows):
        assert stated == made, f"if the measurement is new: {RENEW}=1, and review the difference"
    for value, figure_id in stated_values(stated):
        ends = figures[figure_id]["interval"]
        assert "missing" in ends or ends["low"] <= value <= ends["high"], (figure_id, value)


def stated_values(tables: list[list[str]]) -> Iterable[tuple[float, str]]:
    """The values that the README states, each with the figure that it is of."""
    of_arms, of_pairs = ([line.strip("| ").split(" | ") for line in table[2:]] for table in tables)
    count = 0
    for names, *cells in of_arms:
        first, *others = re.findall(r"`([^`]+)`", names)
        for arm in [first, *(f"{first.partition('@')[0]}{other}" for other in others)]:
            for cell, measure in zip(cells, MEASURES, strict=True):
                yield float(cell.split()[0]), arm_id(arm, measure)
                count += 1
    assert count == len(ARMS) * len(MEASURES)
    assert [cells[0] for cells in of_pairs] == [name for name, _, _ in PAIRS]
    for cells, (_, pairs, panel) in zip(of_pairs, PAIRS, strict=True):
        for pair in pairs:
            yield float(cells[1].split()[0]), pair_id(pair, panel, "kl_pair_full")
            yield float(cells[4].split()[0]), pair_id(pair, panel, "kl_full")


def test_the_numbers_around_the_tables_are_measured_too(measured_home: Path, figures: Figures, rows: str) -> None:
    text = README.read_text(encoding="utf-8")
    summary = json.loads(
        output_file(measured_home, current_receipt(measured_home, "publication"), "SUMMARY.json").read_bytes()
    )
    (runs,) = {arm["runs"] for arm in summary["arms"]}
    whole = figures[arm_id(ARMS[0], "kl_full")]
    assert f"{whole['clusters']} documents, {whole['rows']} rows, {runs} runs of each arm" in text
    decode = figures[pair_id("decode-vs-prefill-q8_0", "pd", "kl_full")]
    assert f"Decode is measured on {decode['rows']} rows of {decode['clusters']} documents" in text
    if same(text, rows):
        values = [format_number(figures[arm_id(arm, "kl_full")]["value"]) for arm in ARMS]
        assert f"q8_0 {', '.join(values[:3])}; q4_0 {', '.join(values[3:])}](" in text


def test_no_other_table_of_the_readme_holds_a_measured_number(figures: Figures) -> None:
    """Every cell that is a number, with or without an interval, is in one of the two tables."""
    text = README.read_text(encoding="utf-8")
    known = {*block(text, arms_table(figures)[0]), *block(text, pairs_table(figures)[0])}
    others = [line for line in text.splitlines() if line.startswith("|") and line not in known]
    assert others
    numbers = [line for line in others if re.search(r"\|\s*-?\d[\d.,e-]*(\s*\[|\s*\|)", line)]
    assert numbers == []
