"""Pages as HTML: plain, with one style sheet within each, no script and no outside request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from engcmp_assets.publication.site.pieces import (
    SEPARATOR,
    Badge,
    Copy,
    Fig,
    Given,
    Heading,
    Items,
    Line,
    Link,
    Name,
    NotCovered,
    Page,
    Para,
    Piece,
    Table,
    pieces_of,
    plain_text,
)

_TEMPLATES = Path(__file__).parent.parent / "templates"


def render_page(page: Page, pages: Sequence[Page], *, places: dict[str, str], study: str, frozen_sha256: str) -> bytes:
    """One page of the site. `pages` are those that its menu lists, `places` the trace of each figure by its id.

    Raises EngcmpError where a piece of text holds a number that refers to nothing.
    """
    up = "../" * page.name.count("/")

    def html(line: Line) -> Markup:
        return Markup("").join(_piece(one, up, places) for one in pieces_of(line))

    text = (
        _templates()
        .get_template("site.html.j2")
        .render(page=page, pages=pages, up=up, html=html, study=study, frozen=frozen_sha256, kind=_kind)
    )
    return (re.sub(r"\n{2,}", "\n", text).strip() + "\n").encode("utf-8")


def _piece(piece: Piece, up: str, places: dict[str, str]) -> Markup:
    if isinstance(piece, str):
        return escape(plain_text(piece))
    if isinstance(piece, (Fig, Given)):
        return _number(piece, up, places)
    if isinstance(piece, Link):
        return Markup('<a href="{}">{}</a>').format(_href(piece.href, up), _piece(piece.text, up, places))
    if isinstance(piece, Badge):
        name = re.sub(r"[^a-z]+", "-", piece.word.split(",")[0].lower()).strip("-")
        return Markup('<span class="badge {}">{}</span>').format(name, plain_text(piece.word))
    return (
        Markup("<code>{}</code>").format(piece.text)
        if isinstance(piece, Name)
        else Markup('<span data-quote="{}">{}</span>').format(piece.place, piece.text)
    )


def _number(piece: Fig | Given, up: str, places: dict[str, str]) -> Markup:
    """A number with what it refers to."""
    if isinstance(piece, Fig):
        ids = SEPARATOR.join(piece.figure_ids)
        return Markup('<a class="{}" href="{}{}" data-figure="{}">{}</a>').format(
            "value" if piece.is_value else "about-value", up, places[piece.figure_ids[0]], ids, piece.text
        )
    if piece.href:
        return Markup('<a class="value" href="{}" data-from="{}">{}</a>').format(
            _href(piece.href, up), piece.place, piece.text
        )
    return Markup('<span class="given" data-from="{}">{}</span>').format(piece.place, piece.text)


def _href(href: str, up: str) -> str:
    """A place of the site as seen from the page; one on the page itself stays."""
    return href if href.startswith("#") else f"{up}{href}"


_KINDS = {Heading: "heading", Para: "para", Items: "items", NotCovered: "missing", Copy: "copy", Table: "table"}


def _kind(block: object) -> str:
    return _KINDS.get(type(block), "chart")


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
