"""Runs that differ say so with the first row that does, and how many are equal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engcmp_assets.captured_rows.agreement import first_difference, identical_share
from engcmp_assets.captured_rows.step import captured_made
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.work import Made
from engcmp_resources.errors import EngcmpError

POSITIONS = (1, 3, 4)
WINDOWS = tuple(
    Window(name, (1, 2, 3, 4, 5, 6), POSITIONS, ("context",) * 3, name, "prose", "short") for name in ("a", "b")
)
PANEL = Panel("pa", 9, "full", WINDOWS)


def captured(*changed: tuple[int, str, int], notes: dict[str, Any] | None = None) -> Made:
    """A capture of two launches of two repeats each; `changed` are the rows (launch, window, position) of a second repeat that differ,
    `notes` what the engine said of each request.
    """
    entries = []
    for launch in (1, 2):
        for window in ("a", "b"):
            first = {str(row): f"{window}{row}" for row in POSITIONS}
            second = {str(row): ("other" if (launch, window, row) in changed else first[str(row)]) for row in POSITIONS}
            repeats = [
                {"files": {"pa": {"sha256": str(index) * 64, "bytes": 8}}, "row_sha256": rows}
                | ({"notes": notes} if notes else {})
                for index, rows in enumerate((first, second))
            ]
            entries.append(
                {"path": "prefill", "launch": launch, "start": launch, "window": window, "panels": ["pa"], "repeats": repeats}
            )  # fmt: skip
    return captured_made(PANEL, entries)


def test_the_first_row_that_differs_is_named_for_each_pair_of_runs() -> None:
    made = captured((1, "b", 3), (1, "b", 4), (2, "a", 4))
    (check,) = (one for one in made.checks if one.name == "repeats_agree")
    places = {
        "1.1 and 1.2": "window b, the row at position 3",
        "1.2 and 2.1": "window b, the row at position 3",
        "2.1 and 2.2": "window a, the row at position 4",
    }
    assert made.details["first_difference"] == places
    assert not check.passed and all(f"runs {pair} at {place}" in check.explanation for pair, place in places.items())
    assert list(made.flags) == ["runs differ"]


def test_runs_that_agree_have_none() -> None:
    made = captured()
    assert "first_difference" not in made.details and list(made.flags) == []
    (check,) = (one for one in made.checks if one.name == "repeats_agree")
    assert check.passed and check.explanation == "Every row is bit-identical in every run"


def test_what_an_engine_noted_of_each_request_is_kept_with_its_run_start_and_window() -> None:
    assert "requests.json" not in {product.name for product in captured().products}
    made = captured(notes={"chunk_lengths": [64, 64, 12], "cached_tokens": 0, "other_requests": 0})
    (kept,) = (json.loads(product.content) for product in made.products if product.name == "requests.json")
    assert [(one["run"], one["start"], one["window_id"]) for one in kept][:3] == [
        ("1.1", 1, "a"),
        ("1.2", 1, "a"),
        ("1.1", 1, "b"),
    ]
    assert len(kept) == 8 and all(one["chunk_lengths"] == [64, 64, 12] and one["cached_tokens"] == 0 for one in kept)


def test_shares_and_first_differences_are_of_the_same_rows() -> None:
    one, other = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "x", "c": "y"}
    assert identical_share(one, other) == pytest.approx(1 / 3) and first_difference(one, other) == "b"
    assert first_difference(one, one) is None
    with pytest.raises(EngcmpError, match="two runs hold different rows"):
        identical_share(one, {"a": "1"})
