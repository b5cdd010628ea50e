"""The page's own drawing of the plot: the same rows, on the same scale as the PNG."""

from __future__ import annotations

from typing import Any

import pytest
from summary_sample import ARMS, plot_row, sample

from engcmp_assets.publication.chart import chart_view, plot_png


def plot(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"title": "Distance", "unit": "nats", "rows": list(rows)}


def row(value: Any, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"label": "a", "value": value, "low": low, "high": high, "group": "g"}


def test_small_and_large_distances_share_a_log_scale_with_labelled_ends() -> None:
    view = chart_view(plot(row(0.005, 0.004, 0.006), row(0.4, 0.35, 0.45)))
    assert view["log"]
    assert view["zero"] is None
    assert [tick["text"] for tick in view["ticks"]] == ["0.001", "0.01", "0.1", "1"]
    assert [tick["at"] for tick in view["ticks"]] == ["0.00", "33.33", "66.67", "100.00"]
    assert float(view["rows"][0]["from"]) < float(view["rows"][0]["at"]) < float(view["rows"][0]["to"]) < 33.33


@pytest.mark.parametrize("rows", [(row(0.3), row(0.4)), (row(0.0), row(0.4)), (row(0.005, -0.002, 0.012), row(0.4))])
def test_distances_alike_or_not_above_zero_share_a_linear_scale_with_zero_in_view(rows: Any) -> None:
    view = chart_view(plot(*rows))
    assert not view["log"]
    assert 0 <= float(view["zero"]) <= 100
    places = [float(one["at"]) for one in view["rows"]] + [float(tick["at"]) for tick in view["ticks"]]
    assert all(0 <= place <= 100 for place in places)
    assert "0" in [tick["text"] for tick in view["ticks"]]


def test_a_missing_value_is_words_and_has_no_place() -> None:
    missing = chart_view(plot(row({"missing": "the engine died"})))
    assert missing["rows"][0]["at"] is None
    assert missing["rows"][0]["text"] == "not measured: the engine died"
    assert missing["ticks"] == []
    assert chart_view(sample()["plot"])["rows"][2]["at"] is None


def test_the_png_comes_in_two_sizes() -> None:
    rows = plot(*(plot_row(key) for key in ARMS))
    assert len(plot_png(rows)) < len(plot_png(rows, pixel_ratio=2)) < 60_000
