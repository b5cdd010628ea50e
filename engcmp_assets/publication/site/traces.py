"""The trace of every figure: a page for each arm and pair, with estimators, rows and the chain down to the frozen hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.publication.formats import format_count
from engcmp_assets.publication.site.book import Book, Figure, Owner
from engcmp_assets.publication.site.pieces import (
    Block,
    Given,
    Heading,
    Line,
    Name,
    NotCovered,
    Page,
    Para,
    Row,
    Table,
    joined,
    pieces_of,
)
from engcmp_assets.publication.site.shown import floor_of, floor_piece

STAGES = (
    ("figure", ("summaries", "comparisons")),
    ("speeds and replies", ("throughput_cells", "long_output_checks")),
    ("rows", ("scores", "tails")),
    ("captures", ("captured_rows/", "throughput_events", "long_replies")),
    ("launch", ("engine_launch/",)),
    ("reference", ("reference_rows",)),
    ("prompt set", ("prompt_set",)),
    ("sources", ("sources",)),
    ("frozen protocol", ("frozen_protocol",)),
)
"""The stages of a chain, from the figure to the frozen protocol, and the artifacts of each."""
_HASH = 16  # digits of a hash that tell it apart; the receipts folder has the file by its whole name


def trace_pages(book: Book) -> Iterator[Page]:
    """A page for each arm and pair that has figures."""
    for owner in book.owners:
        yield Page(
            owner.page,
            (
                "Trace: ",
                book.quote("summary", "comparisons", _at(book, owner), "label") if owner.is_pair else Name(owner.label),
            ),
            "Every figure with its estimator, and the receipts below it down to the frozen protocol.",
            list(_blocks(book, owner)),
        )


def _at(book: Book, owner: Owner) -> int:
    return next(place for place, pair in enumerate(book.pairs) if pair["pair_id"] == owner.key)


def _blocks(book: Book, owner: Owner) -> Iterator[Block]:
    frozen = str(book.summary["frozen_sha256"])
    yield Heading("The chain", "chain")
    yield Para(
        (
            "Each receipt names those below it by their hash; the last is of the frozen protocol, whose hash is ",
            Name(frozen),
            ". In a terminal: ",
            Name("engcmp trace FIGURE"),
            ".",
        )
    )
    links = book.evidence["chains"].get(owner.key)
    if not links:
        yield NotCovered("No receipt of it was found when these pages were made.")
    else:
        yield _chain_table(book, links, frozen)
    yield Heading("The figures", "figures")
    for panel in dict.fromkeys(str(one["panel"]) for one in owner.figures):
        rows = [
            _figure_row(book, owner, place, one) for place, one in enumerate(owner.figures, 1) if one["panel"] == panel
        ]
        yield Table(
            (book.panel_label(panel), ": value, estimator, rows, floor"),
            ("Figure", "Value and interval", "Estimator", "Rows", "Documents", "Floor"),
            rows,
        )


def _chain_table(book: Book, links: Sequence[Mapping[str, Any]], frozen: str) -> Table:
    receipts = book.evidence["receipts"]
    rows = []
    for stage, artifacts in STAGES:
        for link in links:
            own = receipts[link["sha256"]]
            if str(own["artifact"]).startswith(artifacts):
                rows.append(_link_row(stage, link["sha256"], own))
    rows.append(Row("frozen hash", ("", "", "", Name(frozen))))
    return Table("Receipts from the figures down", ("Stage", "Artifact", "Receipt", "Content", "Files"), rows)


def _link_row(stage: str, sha256: str, own: Mapping[str, Any]) -> Row:
    files: list[Line] = [Name(f"{one['name']} {one['sha256'][:_HASH]}") for one in own["outputs"]]
    more: Line = (Given(format_count(own["files"]), f"evidence|receipts|{sha256}|files"), " files in all")
    return Row(
        stage,
        (
            Name(f"{own['artifact']} {own['arm'] or ''}".strip()),
            Name(f"receipts/{sha256}.json"),
            Name(own["content_id"][:_HASH]),
            joined([*files, more]),
        ),
    )


def _figure_row(book: Book, owner: Owner, place: int, figure: Figure) -> Row:
    interval = figure.get("interval")
    method = str(interval.get("method") or interval.get("missing") or "") if isinstance(interval, Mapping) else ""
    version = Name(
        f"{figure['measure']} version {figure.get('measure_version', book.terms.get(figure['measure'], {}).get('version', 'not stated'))}"
    )
    ids = figure["figure_id"]
    return Row(
        Name(ids),
        (
            (book.fig(figure), " ", Name(figure["unit"])),
            (*pieces_of(book.measure(figure["measure"])), ", ", version, ", ", Name(method or "no interval")),
            book.fig(figure, text=format_count(figure["rows"])),
            book.fig(figure, text=format_count(figure["clusters"])),
            floor_piece(figure)
            if isinstance(floor_of(figure), Mapping) and "of_repeats" not in figure.get("floor", {})
            else "none declared",
        ),
        anchor=f"figure-{place}",
    )
