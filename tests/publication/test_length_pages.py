"""Figures at context lengths on the pages: drawn and in tables, with their rows, why there is no interval, and what is no length."""

from __future__ import annotations

import json
from typing import Any

import test_site
from site_reading import Reader
from summary_sample import sample
from test_site import bare_evidence

from engcmp_assets.publication.pages import render_html, render_markdown
from engcmp_assets.publication.site.book import Book
from engcmp_assets.publication.site.pieces import Fig
from engcmp_assets.publication.site.shown import floor_piece
from engcmp_assets.publication.site.site import render_site

LENGTHS = {"block:json": "bucket:0-2K", "block:code": "bucket:8-16K", "block:prose": "block:prose,bucket:8-16K"}
FEW = {"missing": "3 clusters, fewer than 8"}
FLOOR = {
    "within_launch": {"value": 1.5e-7, "interval": {"low": -1.5e-7, "high": 2.25e-7, "level": 0.95, "method": "t"}},
    "across_launches": {"value": 2.75e-5, "interval": FEW},
}
CONFOUNDED = "100 % of the rows of bucket 8-16K are of block code: no figure of it is one of context length"


def with_lengths() -> dict[str, Any]:
    """The sample in which every figure of a kind of content has a twin at a length, with the details that a real one has."""
    summary: dict[str, Any] = json.loads(json.dumps(sample()))
    for owner in (*summary["arms"], *summary["comparisons"]):
        twins = [
            json.loads(json.dumps(one).replace(population, length))
            for population, length in LENGTHS.items()
            for one in owner["figures"]
            if one["population"] == population
        ]
        for one in twins:
            if "details" in one:
                one["details"] = {"interval_bonferroni": one["interval"], "floor": FLOOR}
        owner["figures"] += twins
    return summary


def evidence_of(summary: dict[str, Any]) -> dict[str, Any]:
    evidence = bare_evidence(summary)
    evidence["protocol"]["panels"]["pa"]["confounded"] = [CONFOUNDED]
    return evidence


def page() -> tuple[dict[str, Any], dict[str, bytes]]:
    summary = with_lengths()
    return summary, render_site(summary, evidence_of(summary))


def test_a_distance_at_a_length_is_drawn_and_stands_in_the_table_beside_it_with_its_rows() -> None:
    summary, site = page()
    html = site["precision.html"].decode("utf-8")
    one = next(one for one in summary["arms"][0]["figures"] if one["figure_id"].endswith("/bucket:8-16K/kl_full"))
    for title in (
        "by context length",
        "by kind of content at each context length",
        "by context length, candidate minus baseline",
    ):
        assert title in html, title
    section = html[html.index("Title of kl_full</") :]
    drawing = section[section.index("by context length") :]
    svg, table = drawing[drawing.index("<svg") : drawing.index("</svg>")], drawing[drawing.index("<table") :]
    assert f'data-figure="{one["figure_id"]}"' in svg and one["figure_id"] in table
    text = " ".join(part.text for part in Reader(html).texts)
    assert "96 rows, 3 documents" in text and "none: 3 clusters, fewer than 8" in text
    assert "prose at 8-16K" in text and CONFOUNDED in text
    assert "no reason recorded" not in text and "no floor was recorded" not in text


def test_a_drawing_says_what_its_colours_are_and_no_table_is_empty() -> None:
    html = page()[1]["precision.html"].decode("utf-8")
    drawings = [one.partition("</figure>")[0] for one in html.split('<figure class="drawing')[1:]]
    keys = [one.partition('<p class="key">')[2].partition("</p>")[0] for one in drawings]
    # All rows, content, length, differences at lengths, content at lengths, differences of all rows.
    assert [all(name in key for name in ("q8_0", "q4_0")) for key in keys] == [True, True, True, False, True, False]
    assert "not resolved" in keys[3] and "floor" in keys[3] and ">resolved" not in keys[3]
    assert ">resolved" in keys[5] and "not resolved" not in keys[5]
    assert "Differences of Title of top1" in " ".join(one.caption for one in Reader(html).tables)
    assert "Differences of Title of entropy" not in html  # no pair looks at it


def test_numbers_and_links_of_figures_at_lengths_hold_as_on_every_page() -> None:
    summary, site = page()
    shown = (summary, evidence_of(summary), site)
    test_site.test_no_link_of_the_site_is_dead_and_no_name_stands_twice(shown, shown)
    test_site.test_every_number_of_a_page_is_of_the_figure_or_place_that_it_names(shown, shown)


def test_a_reason_for_no_floor_is_said_once() -> None:
    why = {"missing": "no floor was recorded"}
    for floor in (None, why, {"within_launch": why, "across_launches": why}):
        said = floor_piece({"figure_id": "x", "floor": floor})
        assert isinstance(said, Fig) and said.text == "not measured: no floor was recorded"
    known = floor_piece({"figure_id": "x", "floor": {"within_launch": {"value": 0.5}, "across_launches": why}})
    assert isinstance(known, Fig)
    assert known.text == "within a launch: 0.5000; across launches: not measured: no floor was recorded"


def test_a_length_is_told_apart_from_a_kind_of_content_on_every_page() -> None:
    summary, site = page()
    markdown, html = render_markdown(summary), render_html(summary)
    for one in (markdown, html):
        assert "By kind of content and context length" in one and "prose at 8-16K" in one
    book = Book(summary, {})
    lengths = [one for owner in book.owners for one in owner.figures if "bucket:" in one["population"]]
    assert len(lengths) == 2 * 3 * 4 + 1  # arms, parts, measures; and the pair's
    for figure in lengths:
        file, _, anchor = book.places[figure["figure_id"]].partition("#")
        assert f'id="{anchor}"' in site[file].decode("utf-8")  # the first click; the trace ends in the frozen hash


def test_a_study_without_looks_at_lengths_has_no_word_of_them() -> None:
    summary = sample()
    site = render_site(summary, bare_evidence(summary))
    assert b"context length" not in site["precision.html"] and "context length" not in render_html(summary)
