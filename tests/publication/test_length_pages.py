"""Figures at context lengths on the pages: drawn and in tables, with their rows, why there is no interval, and what is no length."""

from __future__ import annotations

import json
from typing import Any

from site_reading import Reader
from summary_sample import sample
from test_site import bare_evidence

from engcmp_assets.publication.pages import render_html, render_markdown
from engcmp_assets.publication.site.book import Book
from engcmp_assets.publication.site.site import render_site

LENGTHS = {"block:code": "bucket:8-16K", "block:json": "bucket:0-2K", "block:prose": "block:prose,bucket:8-16K"}
CONFOUNDED = "100 % of the rows of bucket 8-16K are of block code: no figure of it is one of context length"


def with_lengths() -> dict[str, Any]:
    """The sample in which every figure of a kind of content has a twin at a length."""
    summary: dict[str, Any] = json.loads(json.dumps(sample()))
    for owner in (*summary["arms"], *summary["comparisons"]):
        twins = [
            json.loads(json.dumps(one).replace(one["population"], LENGTHS[one["population"]]))
            for one in owner["figures"]
            if one["population"] in LENGTHS
        ]
        owner["figures"] += twins
    return summary


def page() -> tuple[dict[str, Any], dict[str, bytes]]:
    summary = with_lengths()
    evidence = bare_evidence(summary)
    evidence["protocol"]["panels"]["pa"]["confounded"] = [CONFOUNDED]
    return summary, render_site(summary, evidence)


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
