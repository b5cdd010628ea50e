"""The whole site: the pages in the order of the menu, the traces, and the files to copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.publication.site.about import audit, method, reproduce, research, settings
from engcmp_assets.publication.site.book import Book
from engcmp_assets.publication.site.front import index
from engcmp_assets.publication.site.pieces import Page
from engcmp_assets.publication.site.precision import checkpoints, precision, version
from engcmp_assets.publication.site.render import render_page
from engcmp_assets.publication.site.speed import running, speed
from engcmp_assets.publication.site.tasks import long_tasks, thinking, tools
from engcmp_assets.publication.site.traces import trace_pages

_PAGES = (
    checkpoints,
    version,
    tools,
    thinking,
    precision,
    settings,
    speed,
    long_tasks,
    running,
    method,
    audit,
    research,
    reproduce,
)


def site_pages(summary: Mapping[str, Any], evidence: Mapping[str, Any]) -> tuple[list[Page], list[Page]]:
    """The pages of the menu, the front page first, and those of the traces."""
    book = Book(summary, evidence)
    pages = [make(book) for make in _PAGES]
    return [index(book, pages), *pages], list(trace_pages(book))


def render_site(summary: Mapping[str, Any], evidence: Mapping[str, Any]) -> dict[str, bytes]:
    """Every file of the site by its name, from SUMMARY.json and EVIDENCE.json alone: the same two give the same bytes.

    Raises EngcmpError where a page would hold a number that refers to nothing, or say more than a figure carries.
    """
    book = Book(summary, evidence)
    pages, traces = site_pages(summary, evidence)
    study, frozen = str(summary["study"]), str(summary["frozen_sha256"])
    files = {
        page.name: render_page(page, pages, places=book.places, study=study, frozen_sha256=frozen)
        for page in (*pages, *traces)
    }
    for page in pages:
        files |= page.extra
    return files
