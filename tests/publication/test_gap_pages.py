"""A setting's share of a gap on the pages: with its interval, in every kind of content, or why there is none."""

from __future__ import annotations

import json
from typing import Any

from planted_gaps import GAP, SETTING, SHIPPED, planted_gap
from site_reading import Reader
from summary_sample import sample
from test_site import bare_evidence

from engcmp_assets.comparisons.gaps import no_gap
from engcmp_assets.publication.gaps import gap_lines
from engcmp_assets.publication.pages import render_html, render_markdown
from engcmp_assets.publication.site.site import render_site


def summary_with(gap: dict[str, Any]) -> dict[str, Any]:
    """The sample with a pair that differs in a setting alone and has a gap."""
    summary: dict[str, Any] = json.loads(json.dumps(sample()))
    pair = {
        **summary["comparisons"][0], "pair_id": "s-vs-c", "label": "W8A16", "candidate": SETTING, "baseline": SHIPPED,
        "figures": [], "confounds": [], "gap": gap,
    }  # fmt: skip
    summary["comparisons"].append(pair)
    return summary


def launched(summary: dict[str, Any]) -> dict[str, Any]:
    return bare_evidence(summary) | {"launches": {summary["arms"][0]["arm"]: {"kind": "external"}}}


def test_the_pages_show_the_share_with_its_interval_or_why_there_is_none() -> None:
    known = summary_with(planted_gap(0.05))
    figure = known["comparisons"][-1]["gap"]["figures"][0]
    site = render_site(known, launched(known))
    text = " ".join(one.text for one in Reader(site["settings.html"].decode("utf-8")).texts)
    shown = f"{figure['value']:.4f} [{figure['interval']['low']:.4f}, {figure['interval']['high']:.4f}]"
    assert text.count(shown) == 2 and "Share of the gap that it closes" in text
    for page in (render_markdown(known), render_html(known)):
        assert shown in page and figure["figure_id"] in page
    why = summary_with(no_gap(GAP, "not measured yet: engcmp run x"))
    assert gap_lines(why["comparisons"][-1]) == [
        "Share of the gap that the setting closes (AFD beside the fork): not known: not measured yet: engcmp run x"
    ]
    assert b"not measured yet: engcmp run x" in render_site(why, launched(why))["settings.html"]
