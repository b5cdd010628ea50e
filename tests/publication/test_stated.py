"""A page states no more than its figures carry: a figure whose verdict goes further than its numbers makes the page fail."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from summary_sample import distance, interval, sample, whole_study

from engcmp_assets.kernel.claims.checking import check_claim
from engcmp_assets.publication.claims import claim, short_sentence
from engcmp_assets.publication.pages import render_html, render_markdown, render_table
from engcmp_assets.publication.stated import claim_of, facts_of, refuse_overreach
from engcmp_resources.errors import EngcmpError

ACROSS = {"low": -0.01, "high": 0.12, "level": 0.95, "method": "cluster bootstrap, 20,000 replicates, seed 20260929"}
RATIO = {
    "figure_id": "smollm2-cpu/pair/q4_0-to-q8_0/throughput/code-64-c1/decode_tok_s", "label": "decode", "measure": "decode_tok_s",
    "unit": "ratio", "panel": "throughput", "population": "code-64-c1", "value": 1.05, "interval": {"missing": "2 batches"},
    "primary": False, "floor": {"band": [0.9, 1.1]}, "verdict": "faster", "rows": 4, "clusters": 2,
}  # fmt: skip


def tampered(**fields: Any) -> dict[str, Any]:
    """The sample with other fields in its headline figure."""
    summary = copy.deepcopy(sample())
    summary["comparisons"][0]["figures"][0] |= fields
    return summary


def test_sound_figures_are_printed() -> None:
    for summary in (sample(), whole_study()):
        refuse_overreach(summary["comparisons"])
        assert render_markdown(summary) and render_html(summary) and render_table(summary)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"interval": ACROSS}, "interval-that-holds-zero"),
        ({"against_each_run": [{"run": "1.1", "value": 0.05, "stands": True}, {"run": "2.1", "value": 0.01, "stands": False}]},
         "one-run-of-the-baseline"),
        ({"against_each_run": [{"run": "1.1", "value": -0.05, "stands": True}]}, "one-run-of-the-baseline"),
        ({"verdict": "not resolved", "bound": 0.001, "against_each_run": [{"run": "1.1", "value": 0.05, "stands": False}]},
         "bound-below-the-interval"),
        ({"verdict": "bit-identical"}, "rows-that-are-not-identical"),
        ({"clusters": 5}, "bootstrap-of-few-documents"),
        ({"clusters": 2}, "bootstrap-of-few-documents"),
        ({"floor": {"within_launch": {"missing": "one run"}, "across_launches": {"missing": "one run"}}}, "no-word-of-a-missing-floor"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("render", [render_markdown, render_html])
def test_a_page_that_would_say_more_is_not_made(fields: dict[str, Any], rule: str, render: Any) -> None:
    with pytest.raises(EngcmpError, match=rule) as caught:
        render(tampered(**fields))
    assert "smollm2-cpu/pair/q4_0-to-q8_0/pa/all/kl_full" in str(caught.value) and "SUMMARY.json" in str(caught.value)


def test_the_terminal_s_sentences_are_held_too() -> None:
    with pytest.raises(EngcmpError, match="interval-that-holds-zero"):
        render_table(tampered(interval=ACROSS))


@pytest.mark.parametrize("say", [claim, short_sentence])
def test_each_sentence_is_held_by_itself(say: Any) -> None:
    pair = tampered(interval=ACROSS)["comparisons"][0]
    with pytest.raises(EngcmpError, match="interval-that-holds-zero"):
        say(pair, pair["figures"][0], sample()["terms"][0])


def test_a_look_that_is_not_primary_is_held_at_the_level_of_its_family() -> None:
    summary = tampered(primary=False)
    refuse_overreach(summary["comparisons"])
    summary["comparisons"][0]["figures"][0]["interval_bonferroni"] = ACROSS | {"level": 0.9966}
    with pytest.raises(EngcmpError, match="interval-that-holds-zero"):
        refuse_overreach(summary["comparisons"])


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, "ratio-inside-the-band"),
        ({"value": 1.3, "verdict": "level"}, "level-outside-the-band"),
        ({"value": 1.3, "floor": {"band": {"missing": "no repeats"}}}, "verdict-without-a-band"),
    ],
)
def test_speeds_are_held_against_their_band(fields: dict[str, Any], rule: str) -> None:
    summary = sample()
    summary["comparisons"][0]["speed"] = {"figures": [RATIO | fields], "measures": [], "explanation": {"cells": []}}
    with pytest.raises(EngcmpError, match=rule):
        refuse_overreach(summary["comparisons"])


def test_a_result_that_one_document_carries_names_it() -> None:
    moving = {"cluster": "code-2", "without": 0.02, "moves_by": 0.036}
    pair = tampered(largest_cluster=moving)["comparisons"][0]
    said = short_sentence(pair, pair["figures"][0], sample()["terms"][0])
    assert said.endswith("; without document code-2 half of it or less is left")
    assert "one document carries it" in claim_of(pair, pair["figures"][0]).limits


def test_rows_that_are_called_equal_are_held_against_the_share_that_is() -> None:
    pair = sample()["comparisons"][0]
    figure = distance("q4_0-to-q8_0", "kl_pair_full", 0.0, same=True)
    pair["figures"] += [figure, distance("q4_0-to-q8_0", "rows_bit_identical", 0.5)]
    found = check_claim(claim_of(pair, figure), facts_of(pair, figure))
    assert [one.rule_id for one in found] == ["rows-that-are-not-identical"]


@pytest.mark.parametrize("verdict", ["bit-identical", "descriptive"])
def test_an_untested_figure_says_that_there_is_no_floor_only_where_there_is_none(verdict: str) -> None:
    pair = sample()["comparisons"][0]
    figure = pair["figures"][0] | {"verdict": verdict, "floor": {"within_launch": {"value": 0.0}}}
    assert "no floor" not in claim_of(pair, figure).limits
    figure["floor"] = {"within_launch": {"missing": "one run"}}
    figure |= {side: figure["floor"] for side in ("candidate_floor", "baseline_floor") if side in figure}
    assert "no floor" in claim_of(pair, figure).limits


def test_what_was_not_measured_states_nothing() -> None:
    summary = tampered(value={"missing": "no rows"}, verdict="resolved", interval=interval(0.1))
    refuse_overreach(summary["comparisons"])
