"""The Markdown page, the HTML page, the plot and the terminal table, each made from SUMMARY.json and nothing else.

Every number that a reader sees goes through `format_number` (four significant digits) or is a count; a value that is
not there appears as its reason. The functions are pure: the same summary gives the same text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from engcmp_assets.publication.chart import plot_png
from engcmp_assets.publication.formats import format_any, format_count, format_interval, format_measured
from engcmp_assets.publication.terminal import TERMINAL_COLUMNS, terminal_table
from engcmp_assets.publication.view import page_view
from engcmp_resources.errors import EngcmpError

__all__ = [
    "SCHEMA", "TERMINAL_COLUMNS", "format_any", "format_interval", "format_measured", "render_html", "render_markdown",
    "render_pages", "render_plot", "render_table",
]  # fmt: skip

SCHEMA = "engcmp.summary/1"


def render_markdown(summary: Mapping[str, Any], *, plot_href: str | None = None) -> str:
    """The summary as one Markdown page. `plot_href` is where the plot is (a file name or a data URI), if anywhere.

    Raises EngcmpError where the summary is of another schema or holds a value that is neither number nor reason.
    """
    _check_schema(summary)
    return _render("summary.md.j2", summary, page_view(summary), plot_href=plot_href)


def render_html(summary: Mapping[str, Any]) -> str:
    """The summary as one self-contained HTML page: no script, no outside request, the plot drawn by the page itself.

    Raises EngcmpError as `render_markdown` does.
    """
    _check_schema(summary)
    return _render("summary.html.j2", summary, page_view(summary), plot_href=None)


def render_pages(summary: Mapping[str, Any], *, plot_href: str | None = None) -> tuple[str, str]:
    """The Markdown page and the HTML page, as the two functions above give them, of one view: of many arms it is most of the work."""
    _check_schema(summary)
    view = page_view(summary)
    markdown = _render("summary.md.j2", summary, view, plot_href=plot_href)
    return markdown, _render("summary.html.j2", summary, view, plot_href=None)


def render_plot(summary: Mapping[str, Any], *, pixel_ratio: int = 1) -> bytes:
    """The summary's one plot as PNG: the distance from the reference for each arm, with its interval."""
    _check_schema(summary)
    return plot_png(summary["plot"], pixel_ratio=pixel_ratio)


def render_table(summary: Mapping[str, Any]) -> str:
    """The summary for a terminal: aligned plain text, no line longer than TERMINAL_COLUMNS."""
    _check_schema(summary)
    return terminal_table(summary)


def _check_schema(summary: Mapping[str, Any]) -> None:
    if summary.get("schema") != SCHEMA:
        raise EngcmpError(
            f"schema is {summary.get('schema')!r}, this version reads {SCHEMA!r}",
            where="SUMMARY.json",
            remedy="publish again with this version",
        )


def _render(template: str, summary: Mapping[str, Any], view: Mapping[str, Any], *, plot_href: str | None) -> str:
    text = _templates().get_template(template).render(summary=summary, plot_href=plot_href, **view)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters.update(
        any=format_any, md=_markdown_text, code=_markdown_code, count=format_count, slug=_slug, sense=_sense
    )
    return templates


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _sense(better: Any) -> str:
    if better in ("lower", "higher"):
        return f"{better} is better"
    return "neither direction is better" if better == "neither" else str(better or "")


def _markdown_text(value: Any) -> str:
    """Text that stays text in Markdown: no HTML, no link, no table cell or emphasis of its own, on one line."""
    text = " ".join(str(value).split()).replace("\\", "\\\\")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
    return re.sub(r"([|`*])", r"\\\1", text)


def _markdown_code(value: Any) -> str:
    """A code span that can stand in a table cell."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"
