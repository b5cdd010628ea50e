"""The catalog as one self-contained HTML page, in the style of the publication's pages: no script, no outside request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from engcmp_assets.catalog.entries import stored_bytes

Line = Mapping[str, Any]
STYLE = "summary.css.j2"
_ROOMS = Path(__file__).parent.parent
_MB = 1e6
_HASH_CHARS = 16


def catalog_page(title: str, files: Sequence[Line], columns: Sequence[Line], *, home_href: str | None = None) -> str:
    """The page of the catalog's lines, as `lines_of` and `columns_of` give them.

    `home_href` is the way from the page's folder to ENGCMP_HOME, ending in `/`: then files and receipts are links. A page that is
    stored, and may be read anywhere, has none.
    """
    template = _templates().get_template("catalog.html.j2")
    return template.render(
        title=title,
        home_href=home_href,
        places=list(_places(files)),
        tables=list(_tables(columns)),
        count=len({line["path"] for line in files}),
        named=len(files),
        size=_size(files),
        frozen=sorted({(line["study"], line["frozen_sha256"]) for line in files}),
    )


def style_text() -> str:
    """The style that the page carries."""
    return _templates().get_template(STYLE).render()


def _places(files: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """The files by study and arm, and there by artifact."""
    for number, ((study, arm), lines) in enumerate(groupby(files, lambda line: (line["study"], line["partition"])), 1):
        artifacts = [
            {"artifact": artifact, "id": f"p{number}-{index}", "first": own[0], "files": own, "about": _about(own)}
            for index, (artifact, own) in enumerate(
                ((name, list(of)) for name, of in groupby(lines, lambda line: line["artifact"])), 1
            )
        ]
        name = arm or f"The whole study {study}"
        yield {"id": f"p{number}", "name": name, "is_arm": arm is not None, "artifacts": artifacts}


def _about(files: Sequence[Line]) -> str:
    rows = sum(line["rows"] or 0 for line in files)
    counted = f"{len(files):,} file{'s' if len(files) > 1 else ''}"
    return ", ".join([counted, *([f"{rows:,} rows"] if any(line["rows"] is not None for line in files) else []), _size(files)])  # fmt: skip


def _size(files: Sequence[Line]) -> str:
    return f"{stored_bytes(files) / _MB:,.3f} MB"


def _tables(columns: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """Every kind of table once, under its artifact and the name of its first file: arms have the same ones."""
    seen: set[tuple[Any, ...]] = set()
    for (artifact, _, output), lines in groupby(
        columns, lambda line: (line["artifact"], line["partition"], line["output"])
    ):
        own = list(lines)
        kind = (artifact, *((line["column"], line["type"], line["unit"], line["description"]) for line in own))
        if kind not in seen:
            seen.add(kind)
            yield {"artifact": artifact, "output": output, "columns": own, "id": f"t{len(seen)}"}


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([_ROOMS / "catalog" / "templates", _ROOMS / "publication" / "templates"]),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(count=lambda value: f"{value:,}", short=lambda text: text[:_HASH_CHARS])
    return environment
