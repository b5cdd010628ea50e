"""The site on paper and to a screen reader, in a real browser: the sheet that is printed, the accessibility tree, the keyboard.

Pages with figures at context lengths are looked at on the screen here too: no measured study of the tests has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from planted_gaps import planted_gap
from playwright.sync_api import Page, sync_playwright
from test_gap_pages import launched, summary_with
from test_length_pages import page as page_with_lengths
from test_site import CHROMIUM, FLAGS, LOOKS, PAGES, Site, folder, look_at, measured, with_replies

from engcmp_assets.publication.site.site import render_site

__all__ = ["folder", "measured", "with_replies"]  # fixtures
SENSE = Path(__file__).parent / "site_sense.js"
SHEET = 696  # pixels: A4 less its margins of 13 mm
Node = dict[str, Any]


@pytest.fixture(scope="module")
def pages(measured: Site, with_replies: Site, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every page of the demo's site, those on replies of a site that has some, a gap's settings, figures at lengths, and a trace."""
    folder, gap = tmp_path_factory.mktemp("sites"), summary_with(planted_gap(0.05))
    sites = {"measured": measured[2], "replies": with_replies[2], "gap": render_site(gap, launched(gap))}
    for name, site in (sites | {"lengths": page_with_lengths()[1]}).items():
        written(site, folder / name)
    traces = sorted((folder / "measured" / "trace").glob("*.html"))[:1]
    own = [folder / "replies" / f"{name}.html" for name in ("tools", "thinking", "long-tasks")]
    own += [folder / "gap" / "settings.html", folder / "lengths" / "precision.html"]
    return [*(folder / "measured" / f"{name}.html" for name in PAGES), *own, *traces]


def written(site: dict[str, bytes], folder: Path) -> Path:
    for path, data in site.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """The site whose figures are at context lengths too."""
    return written(page_with_lengths()[1], tmp_path / "lengths")


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; set ENGCMP_CHROMIUM to one to run the browser tests")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(FLAGS))
        yield chromium.new_page()
        chromium.close()


def test_on_paper_nothing_is_cut_off_and_a_dark_screen_prints_light(pages: list[Path], browser: Page) -> None:
    checks, faults = SENSE.read_text("utf-8"), []
    browser.set_viewport_size({"width": SHEET, "height": 1000})
    for path in pages:
        browser.emulate_media(media="print", color_scheme="dark")
        browser.goto(path.as_uri())
        faults += [f"{path.parent.name}/{path.name}: {one}" for one in browser.evaluate(checks)]
    assert not faults, "\n".join(faults[:20])


def test_the_printed_file_has_sheets_of_one_size(pages: list[Path], browser: Page) -> None:
    browser.emulate_media(media="print", color_scheme="dark")
    for path in (pages[0], pages[PAGES.index("precision")]):
        browser.goto(path.as_uri())
        printed = browser.pdf(format="A4", prefer_css_page_size=True)
        sheets = re.findall(rb"/MediaBox \[([^\]]*)\]", printed)
        assert printed.startswith(b"%PDF") and sheets and len(set(sheets)) == 1, path.name
        assert re.findall(rb"/Count (\d+)", printed), path.name


def test_figures_at_lengths_are_seen_whole_wide_and_narrow_dark_and_light(lengths: Path, browser: Page) -> None:
    browser.emulate_media(media="screen")
    traces = sorted((lengths / "trace").glob("*.html"))
    assert len(traces) == 3  # two arms and their pair
    look_at(browser, lengths.parent, [lengths / "precision.html", lengths / "index.html", *traces])


def test_a_table_cut_off_squeezed_or_empty_and_a_line_through_words_are_found(lengths: Path, browser: Page) -> None:
    browser.set_viewport_size({"width": 1280, "height": 900})
    browser.emulate_media(media="screen", color_scheme="light")
    browser.goto((lengths / "precision.html").as_uri())
    assert browser.evaluate(LOOKS.read_text("utf-8")) == []
    browser.add_style_tag(
        content=".drawing.wide > * { flex-basis: 0 !important } .drawing { flex-wrap: nowrap !important }"
        ".plot text { paint-order: normal !important }"
    )
    browser.evaluate("document.querySelectorAll('tbody')[1].replaceChildren()")
    found = "\n".join(browser.evaluate(LOOKS.read_text("utf-8")))
    for words in (
        "px are out of sight: Differences of",
        "a cell squeezed to",
        "a table without a line: The other measures",
    ):
        assert words in found, found
    assert "a line through the words 8-16K" in found, found


def tree_of(browser: Page) -> list[Node]:
    session = browser.context.new_cdp_session(browser)
    try:
        return [one for one in session.send("Accessibility.getFullAXTree")["nodes"] if not one["ignored"]]
    finally:
        session.detach()


def said(node: Node) -> str:
    return str(node.get("name", {}).get("value") or "").strip()


def faults_of(nodes: list[Node]) -> Iterator[str]:
    """What a screen reader would miss."""
    roles = [str(one["role"]["value"]) for one in nodes]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        if roles.count(landmark) != 1:
            yield f"{roles.count(landmark)} landmarks {landmark}"
    for node, role in zip(nodes, roles, strict=True):
        if role in ("table", "image", "link", "navigation", "region") and not said(node):
            yield f"a {role} without a name"
    tables = roles.count("table")
    if tables and not ("columnheader" in roles and "rowheader" in roles):
        yield "a table without heads"
    levels = [
        next(int(own["value"]["value"]) for own in node["properties"] if own["name"] == "level")
        for node, role in zip(nodes, roles, strict=True)
        if role == "heading"
    ]
    if not levels or levels[0] != 1 or levels.count(1) != 1:
        yield f"no single first heading: {levels[:5]}"
    for above, level in pairwise(levels):
        if level > above + 1:
            yield f"a heading of level {level} below one of {above}"


@pytest.mark.parametrize("width", [1280, 380])
def test_a_screen_reader_finds_landmarks_names_heads_and_levels(pages: list[Path], browser: Page, width: int) -> None:
    browser.set_viewport_size({"width": width, "height": 900})
    browser.emulate_media(media="screen", color_scheme="light")
    faults, seen = [], set[str]()
    for path in pages:
        browser.goto(path.as_uri())
        nodes = tree_of(browser)
        seen |= {str(one["role"]["value"]) for one in nodes}
        faults += [f"{path.parent.name}/{path.name}: {one}" for one in faults_of(nodes)]
        assert browser.evaluate("document.documentElement.lang") == "en" and browser.title().strip()
    assert not faults, "\n".join(faults[:20])
    assert {"table", "image", "rowheader", "columnheader", "heading"} <= seen


def test_what_a_screen_reader_would_miss_is_found(pages: list[Path], browser: Page) -> None:
    browser.goto(pages[0].as_uri())
    planted = '<h4>too deep</h4><div role="img"></div><table><tr><td>1</td></tr></table><main>again</main>'
    browser.evaluate("html => document.querySelector('main').insertAdjacentHTML('afterbegin', html)", planted)
    found = "\n".join(faults_of(tree_of(browser)))
    assert "an image without" in found.replace("a image", "an image") and "level 4 below one of 1" in found
    assert "2 landmarks main" in found


def test_the_keyboard_skips_the_menu(pages: list[Path], browser: Page) -> None:
    browser.set_viewport_size({"width": 1280, "height": 900})
    browser.goto(pages[0].as_uri())
    browser.keyboard.press("Tab")
    first = "document.activeElement"
    assert browser.evaluate(f"{first}.className") == "skip"
    assert browser.evaluate(f"{first}.getBoundingClientRect().left") >= 0, "the link is seen once it has the focus"
    browser.keyboard.press("Enter")
    browser.keyboard.press("Tab")
    assert browser.evaluate(f"{first}.closest('main') !== null")


def test_in_a_browser_nothing_overflows_is_too_pale_or_asks_the_network(folder: Path, browser: Page) -> None:
    look_at(browser, folder, sorted(folder.rglob("*.html")))


def test_the_checks_of_the_browser_find_what_is_planted(folder: Path, browser: Page) -> None:
    browser.set_viewport_size({"width": 380, "height": 900})
    browser.goto((folder / "measured" / "index.html").as_uri())
    planted = '<p style="color:#999;background:#fff">pale</p><p style="width:900px;white-space:nowrap">wide</p>'
    planted += '<p style="width:40px"><span class="badge" style="max-width:none;white-space:nowrap">no difference resolved</span></p>'
    browser.evaluate("html => document.querySelector('main').insertAdjacentHTML('beforeend', html)", planted)
    found = "\n".join(browser.evaluate(LOOKS.read_text("utf-8")))
    assert "wider than the window" in found and "pale" in found and "beyond its card: no difference resolved" in found
