"""Counts of cells and the notes of a page are claims: one that its figures do not give is refused, and with it the page."""

from __future__ import annotations

from typing import Any

import pytest
from summary_sample import sample, whole_study, zero_floor
from test_speed_pages import summary

from engcmp_assets.publication import notes
from engcmp_assets.publication.pages import render_html, render_markdown
from engcmp_assets.publication.stated_counts import cells_of, counts_of_cells, no_row_differs, refuse_stated
from engcmp_resources.errors import EngcmpError


def measure_of(made: dict[str, Any], name: str = "decode_tok_s") -> Any:
    return next(one for one in made["comparisons"][0]["speed"]["measures"] if one["measure"] == name)


def test_sound_counts_and_notes_are_printed() -> None:
    for made in (summary(), summary(slower=2.0), summary(band=None), sample(), whole_study()):
        refuse_stated(one for pair in made["comparisons"] for one in counts_of_cells(pair))
        assert notes.notes(made)


@pytest.mark.parametrize("counts", [{"faster": 2, "level": 1}, {"faster": 1}, {"faster": 1, "level": 1, "slower": 1}])
def test_cells_that_are_counted_otherwise_are_refused(counts: dict[str, int]) -> None:
    made = summary()
    measure_of(made)["counts"] = counts
    with pytest.raises(EngcmpError, match="cells-counted-otherwise"):
        render_markdown(made)


def test_a_verdict_that_its_ratio_does_not_have_is_counted_by_the_ratio() -> None:
    made = summary()
    figures = [one for one in made["comparisons"][0]["speed"]["figures"] if one["measure"] == "decode_tok_s"]
    alike = next(one for one in figures if one["population"] == "alike")
    assert cells_of(figures).verdicts == {"faster": 1, "level": 1, "not comparable": 1}
    alike["verdict"] = "faster"
    assert cells_of(figures).verdicts == {"faster": 1, "level": 1, "not comparable": 1}


def differences_of(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for pair in made["comparisons"] for one in pair["figures"] if "interval_bonferroni" in one]


@pytest.mark.parametrize(("field", "value"), [("family", 1), ("level", 0.95)])
def test_looks_that_share_less_than_their_error_rate_are_refused(field: str, value: float) -> None:
    made = sample()
    for one in differences_of(made):
        if field == "family":
            one["family"] = value
        elif "level" in one["interval_bonferroni"]:
            one["interval_bonferroni"]["level"] = value
    with pytest.raises(EngcmpError, match="error-rate-of-fewer-looks"):
        notes.notes(made)


def test_rows_that_differ_between_runs_are_not_said_to_agree() -> None:
    made = whole_study()
    figure = made["arms"][0]["figures"][0]
    figure["details"]["floor"] = zero_floor()
    refuse_stated(no_row_differs({"arms": [made["arms"][0]], "comparisons": []}))
    figure["details"]["floor"]["across_launches"]["rows_that_differ"] = 2.0
    with pytest.raises(EngcmpError, match="rows-that-are-not-identical"):
        refuse_stated(no_row_differs({"arms": [made["arms"][0]], "comparisons": []}))


def test_a_bootstrap_of_few_documents_is_not_described_as_one() -> None:
    made = sample()
    few = next(one for one in differences_of(made) if one["clusters"] < 8)
    few["interval"] = {"low": 0.1, "high": 0.2, "level": 0.95, "method": "cluster bootstrap, 20,000 replicates, seed 1"}
    with pytest.raises(EngcmpError, match="bootstrap-of-few-documents"):
        notes.notes(made)


def test_few_documents_that_resolve_something_are_not_said_to_resolve_nothing() -> None:
    made = sample()
    few = next(one for one in differences_of(made) if one["clusters"] == 3)
    few["verdict"] = "resolved"
    with pytest.raises(EngcmpError, match="none-in-one-measure-said-of-all"):
        notes.notes(made)
    with pytest.raises(EngcmpError):
        render_html(made)
