"""The site holds no number that refers to nothing, no dead link, and reads well in a real browser, dark and light, wide and narrow."""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from homes import STUDY
from playwright.sync_api import Page
from site_reading import DIGITS, Reader, Text, all_known, numbers_in, numbers_of
from summary_sample import sample
from test_reply_pages import replies
from test_reply_pages import summary as summary_with_replies

from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.publication.site.book import Book
from engcmp_assets.publication.site.labels import labels_of
from engcmp_assets.publication.site.pieces import SEPARATOR, Para
from engcmp_assets.publication.site.pieces import Page as SitePage
from engcmp_assets.publication.site.render import render_page
from engcmp_assets.publication.site.site import render_site, site_pages
from engcmp_resources.errors import EngcmpError

CHROMIUM = Path(os.environ.get("ENGCMP_CHROMIUM", "/usr/bin/chromium"))
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
PAGES = (
    "index", "checkpoints", "version", "tools", "thinking", "precision", "settings", "speed", "long-tasks", "running", "method", "audit",
    "research", "reproduce",
)  # fmt: skip
SIZES = ((1280, "light"), (380, "dark"), (380, "light"), (1280, "dark"))
SCALES = (1.0, 0.01, 1e6)  # as it is, as a percent, as millions of bytes
LOOKS = Path(__file__).parent / "page_checks.js"
REFERS = ("data-figure", "data-from", "data-quote", "data-axis", "data-label")
Site = tuple[dict[str, Any], dict[str, Any], dict[str, bytes]]


@pytest.fixture(scope="module")
def measured(measured_home: Path) -> Site:
    """The demo's two documents and the site, as the publication step made them from what was measured."""
    folder = measured_home / "views" / STUDY / "_study" / "publication"
    summary, evidence = (json.loads((folder / f"{name}.json").read_bytes()) for name in ("SUMMARY", "EVIDENCE"))
    files = [path for path in (folder / "site").rglob("*") if path.is_file()]
    return summary, evidence, {path.relative_to(folder / "site").as_posix(): path.read_bytes() for path in files}


def bare_evidence(summary: dict[str, Any], *, replies_declared: bool = False) -> dict[str, Any]:
    """Evidence of a study of which nothing but its summary is known."""
    panels = {one["panel"]: {"windows": 12, "rows": 384} for one in summary["panels"]}
    return {
        "protocol": {
            "checkpoints": {}, "sources": {}, "capture": {}, "iterations": [], "panels": panels, "has_long_replies": replies_declared,
            "statistics": {"cluster": "document", "replicates": 20_000, "seed": 20_260_929, "level": 0.95},
        },
        "tails": {}, "launches": {}, "telemetry": {}, "streams": {}, "receipts": {}, "chains": {},
    }  # fmt: skip


@pytest.fixture(scope="module")
def with_replies() -> Site:
    """A site of a study with long replies."""
    ending = ("finished", "capped", "looped", "finished")
    summary = summary_with_replies(replies(*ending), replies("finished", "finished", "capped", "finished"))
    evidence = bare_evidence(summary, replies_declared=True)
    return summary, evidence, render_site(summary, evidence)


def readers(site: dict[str, bytes]) -> dict[str, Reader]:
    return {name: Reader(data.decode("utf-8")) for name, data in site.items() if name.endswith(".html")}


def figures_by_id(summary: dict[str, Any]) -> dict[str, Any]:
    evidence: dict[str, Any] = {}
    return {one["figure_id"]: one for owner in Book(summary, evidence).owners for one in owner.figures}


def with_figures(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that were measured: an arm that this processor cannot run has no figure and no trace."""
    return [one for one in entries if one["figures"]]


def test_every_page_is_there_and_one_without_data_says_why(measured: Site) -> None:
    summary, evidence, site = measured
    assert {f"{name}.html" for name in PAGES} <= site.keys()
    pages, traces = site_pages(summary, evidence)
    uncovered = {page.name for page in pages if not page.covered}
    assert uncovered == {"tools.html", "thinking.html", "long-tasks.html"}
    for name in uncovered:
        text = site[name].decode("utf-8")
        assert "Not covered." in text and "no block for them" in text
    assert len(traces) == len(with_figures(summary["arms"])) + len(with_figures(summary["comparisons"]))


def test_no_link_of_the_site_is_dead_and_no_name_stands_twice(measured: Site, with_replies: Site) -> None:
    for _, _, site in (measured, with_replies):
        found = readers(site)
        for name, reader in found.items():
            assert len(reader.ids) == len(set(reader.ids)), name
            assert not reader.open, name
            for link in reader.links:
                page, _, anchor = link.partition("#")
                target = posixpath.normpath(posixpath.join(name.rpartition("/")[0], unquote(page))) if page else name
                assert target in site, f"{name}: {link}"
                assert not anchor or unquote(anchor) in found[target].ids, f"{name}: {link}"
            assert [one for one in reader.sources if not one.startswith("data:")] == [], name


def test_every_number_of_a_page_is_of_the_figure_or_place_that_it_names(measured: Site, with_replies: Site) -> None:
    for summary, evidence, site in (measured, with_replies):
        book, figures = Book(summary, evidence), figures_by_id(summary)
        known = {name: [*numbers_of(one)] for name, one in figures.items()}
        everything = json.dumps([summary, evidence], ensure_ascii=False)
        looked_at, seen = 0, set[tuple[Any, ...]]()
        for name, reader in readers(site).items():
            for text in reader.texts:
                which = (text.text, *(text.attribute(name) for name in REFERS), text.inside("code", "title"))
                if DIGITS.search(text.text) and which not in seen:
                    seen.add(which)
                    wrong = fault_of(text, book, known, figures, everything)
                    assert wrong is None, f"{name}: {text.text!r} {wrong}"
                    looked_at += 1
        assert looked_at > 100


def test_a_number_that_is_not_its_figure_s_own_is_found(with_replies: Site) -> None:
    """The check above finds one changed digit, and a number without a mark."""
    summary, evidence, site = with_replies
    page = site["index.html"].decode("utf-8")
    for old, new in (("0.001322", "0.001522"), ("Pick by workload", "Pick by workload 7")):
        planted = site | {"index.html": page.replace(old, new).encode("utf-8")}
        assert planted["index.html"] != site["index.html"]
        with pytest.raises(AssertionError, match=r"index\.html"):
            test_every_number_of_a_page_is_of_the_figure_or_place_that_it_names(
                (summary, evidence, planted), with_replies
            )


def fault_of(
    text: Text, book: Book, known: dict[str, list[float]], figures: dict[str, Any], everything: str
) -> str | None:
    """Why the digits of a text refer to nothing; None where they do."""
    if (ids := text.attribute("data-figure")) is not None:
        return None if is_of_figures(text.text, ids.split(SEPARATOR), book, known, figures) else f"is not of {ids}"
    place = text.attribute("data-from") or text.attribute("data-quote")
    if place is not None:
        value = book.at(place)
        if isinstance(value, str):
            return None if value == text.text else f"is not what stands at {place}"
        fits = all_known(text.text, [*numbers_of(value)], scales=SCALES)
        return None if fits else f"is not what stands at {place}: {value}"
    if text.attribute("data-axis") is not None:
        return None
    if text.attribute("data-label") is None and not text.inside("code", "title"):
        return "stands in plain text"
    lost = [
        one
        for one in DIGITS.findall(text.text)
        if one.strip("./:") not in everything and not of_a_name(one, everything)
    ]
    return f"names {lost}, which neither document holds" if lost else None


def is_of_figures(
    text: str, ids: list[str], book: Book, known: dict[str, list[float]], figures: dict[str, Any]
) -> bool:
    """Whether each number of a text is one of these figures' own, or within a name that they or their pair hold."""
    own = [number for name in ids for number in known[name]]
    lost = [
        one for one in DIGITS.findall(text)
        if not all_known(one, own, scales=SCALES) and not all(is_share(number, own) for number in numbers_in(one))
    ]  # fmt: skip
    if not lost:
        return True
    pairs = [pair for pair in book.pairs if any(one["figure_id"] in ids for one in pair["figures"])]
    named = [{key: pair[key] for key in ("label", "candidate", "baseline")} for pair in pairs]
    words = json.dumps([*(figures[name] for name in ids), *named], ensure_ascii=False)
    return all(one in words for one in lost)


def is_share(number: float, own: list[float]) -> bool:
    """Whether `number` is a count of rows that a share of them stands for."""
    shares = [one for one in own if 0 < one <= 1]
    counts = [one for one in own if one > 1]
    return number == round(number) and any(abs(number - share * count) < 0.51 for share in shares for count in counts)


def of_a_name(token: str, everything: str) -> bool:
    """A hash that was cut, a receipt's file, or a name with a sign after it."""
    parts = [part for part in re.split(r"[/.:]|(?<=\D) ", token) if re.search(r"\d", part)]
    return all(part in everything for part in parts)


def test_a_number_that_is_typed_by_hand_is_refused(measured: Site) -> None:
    summary, evidence, _ = measured
    places = Book(summary, evidence).places
    page = SitePage("x.html", "X", "Of 12 documents", (Para("fine"),))
    with pytest.raises(EngcmpError, match="Of 12 documents"):
        render_page(page, [page], places=places, study="s", frozen_sha256="f")


def test_a_changed_figure_changes_every_page_that_shows_it(measured: Site) -> None:
    summary, evidence, site = measured
    changed = json.loads(json.dumps(summary))
    arm = with_figures(changed["arms"])[0]
    figure = arm["figures"][0]
    figure["value"] = 0.123456
    again = render_site(changed, evidence)
    differing = {name for name in site if again[name] != site[name]}
    owner = next(one for one in Book(summary, evidence).owners if one.key == arm["arm"])
    assert {"index.html", "precision.html", "settings.html", owner.page} <= differing
    assert b"0.1235" in again["precision.html"] and b"0.1235" not in site["precision.html"]
    assert again["reproduce.html"] == site["reproduce.html"]


def test_the_same_documents_give_the_same_bytes(measured: Site) -> None:
    summary, evidence, site = measured
    assert render_site(summary, evidence) == site


def test_tables_have_captions_and_heads_and_drawings_have_words(measured: Site, with_replies: Site) -> None:
    drawings = 0
    for _, _, site in (measured, with_replies):
        for name, reader in readers(site).items():
            assert all(reader.images), name
            drawings += len(reader.images)
            for table in reader.tables:
                assert table.caption.strip(), name
                assert set(table.scopes) <= {"row", "col"} and table.scopes, name
                assert len(set(table.rows)) == 1, f"{name}: {table.caption}: {table.rows}"
    assert drawings > 20


def test_a_trace_leads_from_a_figure_to_the_frozen_hash(measured: Site) -> None:
    summary, evidence, site = measured
    book = Book(summary, evidence)
    for figure_id in (
        with_figures(summary["arms"])[0]["figures"][0]["figure_id"],
        with_figures(summary["comparisons"])[0]["figures"][0]["figure_id"],
    ):
        page, _, anchor = book.places[figure_id].partition("#")
        text = site[page].decode("utf-8")
        row = text[text.index(f'id="{anchor}"') :]
        assert figure_id in row[: row.index("</tr>")]
        for stage in ("captures", "launch", "prompt set", "sources", "frozen protocol"):
            assert f'<th scope="row">{stage}</th>' in text, stage
        assert summary["frozen_sha256"] in text


def test_one_label_stands_for_one_build(measured: Site) -> None:
    _, evidence, _ = measured
    assert all(one.holds for one in labels_of(evidence["launches"]))
    planted = json.loads(json.dumps(evidence["launches"]))
    first, *_, last = planted
    planted[last]["library_sha256"] = planted[first]["library_sha256"]
    broken = [one for one in labels_of(planted) if not one.holds]
    key = ArmKey.parse(last)
    assert any(one.label == f"{key.engine}@{key.version}" for one in broken)


def test_a_summary_of_one_dead_arm_and_no_launch_still_makes_a_site() -> None:
    summary = sample()
    site = render_site(summary, bare_evidence(summary))
    assert {f"{name}.html" for name in PAGES} <= site.keys()
    assert b"No arm has been launched yet." in site["settings.html"]


def test_a_panel_without_a_distance_and_servers_make_a_site_too() -> None:
    """As of a panel that knows no reference, tails that have no value, and launches that state images or nothing."""
    summary = sample()
    for owner in (*summary["arms"], *summary["comparisons"]):
        owner["figures"] = [one for one in owner["figures"] if one["measure"] in ("nll", "top1")]
    arms = [arm["arm"] for arm in summary["arms"]]
    tails = {
        "measure": "nll",
        "row_file_sha256": "0" * 64,
        "populations": {"all": {"p90_nats": {"missing": "too few rows"}}},
    }
    every = ("median_nats", "p95_nats", "p99_nats", "p99_9_nats", "max_nats", "worst_1_percent_mean_nats")
    tails["populations"]["all"] |= {key: {"missing": "too few rows"} for key in every}
    evidence = bare_evidence(summary) | {
        "launches": {
            arms[0]: {"kind": "docker", "identities": {"image": "name@sha256:1", "model": "a" * 64}},
            arms[1]: {"kind": "external"},
        },
        "tails": {arms[0]: {"pa": tails}},
    }
    site = render_site(summary, evidence)
    assert b"name@sha256:1" in site["audit.html"] and b"no build is stated" in site["audit.html"]
    test_no_link_of_the_site_is_dead_and_no_name_stands_twice((summary, evidence, site), (summary, evidence, site))


@pytest.fixture(scope="module")
def folder(measured: Site, with_replies: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    for name, (_, _, site) in {"measured": measured, "replies": with_replies}.items():
        for path, data in site.items():
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return folder


def look_at(page: Page, folder: Path, paths: list[Path]) -> None:
    """Every page at two widths and in both schemes, by the styles that the browser computed."""
    said, asked = list[str](), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    checks, faults = LOOKS.read_text("utf-8"), []
    for width, scheme in SIZES:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        for path in paths:
            of_traces = path.parent.name == "trace"
            if of_traces and (width, scheme) not in SIZES[:2]:
                continue
            page.goto(path.as_uri())
            faults += [f"{path.relative_to(folder)} at {width}, {scheme}: {one}" for one in page.evaluate(checks)]
            keep(page, path.relative_to(folder), width, scheme)
    assert not faults, "\n".join(faults[:20])
    assert said == []
    assert [one for one in asked if not one.startswith(("file:", "data:"))] == []


def keep(page: Page, name: Path, width: int, scheme: str) -> None:
    """For a reader: what a page looks like, where ENGCMP_SCREENSHOTS says so."""
    if (shots := os.environ.get("ENGCMP_SCREENSHOTS")) and name.parent.name != "trace":
        page.screenshot(path=Path(shots) / f"{name.parent}-{name.stem}-{width}-{scheme}.png", full_page=True)
