"""Parts of a panel's rows on the page on precision: kinds of content, context lengths, and one at the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import BLOCK, BUCKET, population_parts, population_words
from engcmp_assets.publication.claims import compares_paths, declared_interval, is_distance
from engcmp_assets.publication.formats import format_interval, format_measured, reason
from engcmp_assets.publication.site.book import Book, Figure
from engcmp_assets.publication.site.charts import dots
from engcmp_assets.publication.site.pieces import Block, Chart, Fig, Items, Line, Name, Para, Piece, Row, Table
from engcmp_assets.publication.site.shown import (
    bound_piece,
    dot,
    floor_piece,
    group_key,
    groups_of,
    verdict_dot,
    verdict_key,
    verdict_piece,
)


def by_content(book: Book, panel: str, names: Sequence[str]) -> Iterator[Block]:
    """A drawing for each distance: kinds of content, every arm in each."""
    found = [one["population"] for arm in book.arms for one in arm["figures"] if one["panel"] == panel]
    populations = [one for one in dict.fromkeys(found) if one.startswith(BLOCK) and _kind(one) == "content"]
    if not populations:
        return
    colours = groups_of([arm["checkpoint"] for arm in book.arms])
    for name in names:
        title = (book.quote_title(name), " by kind of content")
        rows, lines = [], []
        for population in populations:
            for arm in book.arms:
                rows.append(
                    dot(
                        f"{population.removeprefix(BLOCK)}: {arm['arm']}",
                        _of(arm, panel, name, population),
                        colours[arm["checkpoint"]],
                    )
                )
        lines = [
            Row(Name(arm["arm"]), [book.fig(_of(arm, panel, name, one)) for one in populations]) for arm in book.arms
        ]
        yield Chart(
            title,
            dots(rows),
            "A dot for each arm in each kind of content; the table below has the same numbers.",
            Table(title, ("Arm", *(Name(one.removeprefix(BLOCK)) for one in populations)), lines),
            group_key(colours),
        )


def by_length(book: Book, panel: str, measures: Sequence[str], distances: Sequence[str]) -> Iterator[Block]:
    """Where the protocol declares looks at context lengths: each measure of every arm at each length, the differences of every pair there;
    before them, which lengths are one kind of content and so say nothing of length.
    """
    found = dict.fromkeys(one["population"] for arm in book.arms for one in arm["figures"] if one["panel"] == panel)
    for kind, words in (("length", "by context length"), ("both", "by kind of content at each context length")):
        populations = [one for one in found if _kind(one) == kind]
        if not populations:
            continue
        place = ("evidence", "protocol", "panels", panel, "confounded")
        if kind == "length" and (said := book.evidence["protocol"]["panels"][panel].get("confounded")):
            yield Para("Not every length can be told apart from a kind of content:")
            yield Items([book.quote(*place, at) for at in range(len(said))])
        for name in measures:
            yield _of_arms(book, panel, name, populations, words, drawn=name in distances)
        for name in measures:
            chart = _of_pairs(book, panel, name, populations, words, drawn=name in distances)
            if chart is not None:
                yield chart


def _kind(population: str) -> str | None:
    """Whether a population is of a kind of content, of a length, or of both; None for all rows."""
    block, bucket = population_parts(population) or (None, None)
    if block is not None:
        return "content" if bucket is None else "both"
    return None if bucket is None else "length"


def _of_arms(
    book: Book, panel: str, measure: str, populations: Sequence[str], words: str, *, drawn: bool
) -> Chart | Table:
    colours = groups_of([arm["checkpoint"] for arm in book.arms])
    title: Line = (book.quote_title(measure), f" {words}")
    found = [(one, arm, _of(arm, panel, measure, one)) for one in populations for arm in book.arms]
    lines = [
        Row(
            (Name(population_words(one)), " ", Name(arm["arm"])),
            ("not measured", "", "", "", "") if figure is None else (
                _counted(figure), book.fig(figure, interval=False), _interval(figure, figure.get("interval")),
                _interval(figure, (figure.get("details") or {}).get("interval_bonferroni")), floor_piece(figure),
            ),
        )
        for one, arm, figure in found
    ]  # fmt: skip
    heads = (
        "Rows, arm",
        "How many",
        "Value",
        "Interval",
        "Interval that allows for all looks",
        "Floor: within a launch / across launches",
    )
    table = Table(title, heads, lines)
    if not drawn:
        return table
    drawing = dots(
        [dot(f"{population_words(one)}: {arm['arm']}", own, colours[arm["checkpoint"]]) for one, arm, own in found]
    )
    words = "A dot for each arm at each length; the table below has the same numbers."
    return Chart(title, drawing, words, table, group_key(colours), wide=True)


def _of_pairs(
    book: Book, panel: str, measure: str, populations: Sequence[str], words: str, *, drawn: bool
) -> Chart | Table | None:
    found = [
        (one, pair, figure)
        for one in populations
        for pair in book.pairs
        if not compares_paths(pair)
        and (figure := _of(pair, panel, measure, one)) is not None
        and not is_distance(figure)
    ]
    if not found:
        return None
    title: Line = ("Differences of ", book.quote_title(measure), f" {words}, candidate minus baseline")
    lines = [
        Row(
            (Name(population_words(one)), ", ", book.pair_label(pair)),
            (
                _counted(figure), Fig((figure["figure_id"],), format_measured(figure["value"])),
                _interval(figure, declared_interval(figure)), floor_piece(figure), verdict_piece(figure), bound_piece(figure),
            ),
        )
        for one, pair, figure in found
    ]  # fmt: skip
    heads = (
        "Rows, pair",
        "How many",
        "Difference",
        "Interval that decides",
        "Floor: within a launch / across launches",
        "Verdict",
        "Largest effect not excluded",
    )
    table = Table(title, heads, lines)
    if not drawn:
        return table
    drawing = dots(
        [verdict_dot(f"{population_words(one)}: {pair['label']}", own) for one, pair, own in found], zero=True
    )
    return Chart(
        title,
        drawing,
        "A dot with the interval that decides for each pair at each length, zero as a dashed line and the floor as a shaded part; the "
        "table below has the same numbers.",
        table,
        verdict_key([own for _, _, own in found]),
        wide=True,
    )


def _counted(figure: Figure) -> Piece:
    text = f"{figure['rows']:,} rows, {figure['clusters']:,} document{'s' * (figure['clusters'] != 1)}"
    return Fig((figure["figure_id"],), text, is_value=False)


def _interval(figure: Figure, interval: Any) -> Piece:
    """The interval, or why there is none."""
    text = format_interval(interval)
    return Fig((figure["figure_id"],), text or f"none: {reason(interval)}", is_value=bool(text))


def _of(owner: Mapping[str, Any], panel: str, measure: str, population: str) -> Mapping[str, Any] | None:
    wanted = (panel, measure, population)
    figures: Sequence[Mapping[str, Any]] = owner["figures"]
    return next((one for one in figures if (one["panel"], one["measure"], one["population"]) == wanted), None)


def tails_of_parts(book: Book, panel: str, tails: Sequence[tuple[str, str, float | None]]) -> Iterator[Block]:
    """The same numbers in each kind of content and each context length, where the panel has several."""
    for begin, words in ((BLOCK, "kind of content"), (BUCKET, "context length")):
        rows = []
        for arm, found in book.evidence["tails"].items():
            parts = [one for one in found.get(panel, {"populations": {}})["populations"] if one.startswith(begin)]
            if len(parts) < 2:  # noqa: PLR2004 - of one part all rows stand above
                continue
            for part in parts:
                place = ("evidence", "tails", arm, panel, "populations", part)
                cells = [book.given(*place, key, href=book.page_of(arm)) for key, _, _ in tails]
                head: Line = (Name(part.removeprefix(begin)), " ", Name(arm))
                rows.append(Row(head, (book.given(*place, "rows", href=book.page_of(arm)), *cells)))
        if rows:
            measure = next(one[panel]["measure"] for one in book.evidence["tails"].values() if panel in one)
            title = ("Tails of ", Name(measure), f" by {words}, in nats")
            yield Table(title, (f"{words.capitalize()}, arm", "Rows", *(text for _, text, _ in tails)), rows)
