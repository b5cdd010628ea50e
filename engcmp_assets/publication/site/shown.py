"""What several pages show in the same way: figures in cells, floors, dots of figures, tables of looks, pairs by what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.claims import claim, compares_paths, declared_interval, headline, verdict_word
from engcmp_assets.publication.formats import (
    FLOORS,
    floor_view,
    format_interval,
    format_measured,
    number,
    reason,
)
from engcmp_assets.publication.site.book import Book, Figure, differing, whole
from engcmp_assets.publication.site.charts import COLOURS, Dot, dots
from engcmp_assets.publication.site.pieces import Badge, Chart, Fig, Key, Line, Link, Name, Piece, Row, Table

NO_FLOOR = {"missing": "no floor was recorded"}
_VERDICTS = {"resolved": 0, "not resolved": 3, "baseline-dependent": 1, "bit-identical": 2}  # the colour of each


def floor_piece(figure: Figure) -> Piece:
    """A figure's floor within a launch / across launches, or why there is none."""
    view = floor_view(floor_of(figure)) or floor_view(NO_FLOOR)
    text = "" if view is None else view["short"] or _floor_words(view["parts"])
    return Fig((figure["figure_id"],), text, is_value=False)


def _floor_words(parts: Sequence[Mapping[str, str]]) -> str:
    """Both floors, each with its name; a reason why neither is known stands once."""
    first, *others = [one["text"] for one in parts]
    if first.startswith("not measured") and {first} == {*others}:
        return first
    return "; ".join(f"{one['label']}: {one['text']}" for one in parts)


def floor_of(figure: Figure) -> Any:
    """A figure's floor as SUMMARY.json has it: of a pair's figure its own, of an arm's that among its details."""
    return figure.get("floor") or (figure.get("details") or {}).get("floor")


def floor_range(figure: Figure) -> tuple[float, float] | None:
    """The widest range that the figure reads between runs of one arm; None where none was measured."""
    floor, ends = floor_of(figure), []
    for key, _ in FLOORS:
        part = floor.get(key) if isinstance(floor, Mapping) else None
        if isinstance(part, Mapping) and "value" in part:
            interval = part.get("interval")
            ends += [number(part["value"])]
            ends += [interval["low"], interval["high"]] if isinstance(interval, Mapping) and "low" in interval else []
    known = [float(one) for one in ends if one is not None]
    return (min(known), max(known)) if known else None


def dot(label: str, figure: Figure | None, group: int, *, interval: Any = None, floor: bool = False) -> Dot:
    """A figure as a line of a drawing; `interval` is the one that decides, by default its own."""
    if figure is None:
        return Dot(label, "", "", None, group=group, reason="not measured")
    between = interval if interval is not None else figure.get("interval")
    ends = between if isinstance(between, Mapping) and "low" in between else {}
    value = number(figure["value"])
    text = format_measured(figure["value"], between if ends else None)
    return Dot(
        label,
        figure["figure_id"],
        text,
        value,
        ends.get("low"),
        ends.get("high"),
        group % COLOURS,
        "" if value is not None else reason(figure["value"]),
        floor_range(figure) if floor else None,
    )


def groups_of(names: Sequence[str]) -> dict[str, int]:
    """A colour for each name, in their order."""
    return {name: place % COLOURS for place, name in enumerate(dict.fromkeys(names))}


def group_key(colours: Mapping[str, int]) -> Key:
    """The key of a drawing whose colours are of `groups_of`: nothing where there is one."""
    return tuple((f"g{colour}", Name(name)) for name, colour in colours.items()) if len(colours) > 1 else ()


def verdict_dot(label: str, figure: Figure) -> Dot:
    """A difference as a line of a drawing: the interval that decides, the floor behind it, the verdict as its colour."""
    colour = _VERDICTS.get(verdict_word(figure), len(_VERDICTS))
    return dot(label, figure, colour, interval=declared_interval(figure), floor=True)


def verdict_key(figures: Sequence[Figure]) -> Key:
    """The key of a drawing of `verdict_dot`s: the floor where one is drawn, and each verdict that occurs."""
    words = [verdict_word(one) for one in figures]
    floor = any(floor_range(one) for one in figures)
    own = tuple((f"g{colour}", word) for word, colour in _VERDICTS.items() if word in words)
    return ((("floor", "floor: what runs of one arm read"),) if floor else ()) + own


def arm_chart(book: Book, title: Line, panel: str, measure: str) -> Chart:
    """A measure of every arm over all rows, with its intervals; the table beside it also has floors and intervals of the family."""
    colours = groups_of([arm["checkpoint"] for arm in book.summary["arms"]])
    rows, lines = [], []
    for arm in book.summary["arms"]:
        figure = whole(arm["figures"], measure, panel)
        rows.append(dot(arm["arm"], figure, colours[arm["checkpoint"]]))
        if figure is None:
            lines.append(Row(Name(arm["arm"]), (state_piece(book, arm), "", "")))
            continue
        wide = figure.get("details", {}).get("interval_bonferroni")
        lines.append(Row(Name(arm["arm"]), (book.fig(figure), _ends(figure, wide), floor_piece(figure))))
    return Chart(
        title,
        dots(rows),
        "A dot with its interval for each arm; the table below has the same numbers.",
        Table(
            title,
            (
                "Arm",
                "Value and interval",
                "Interval that allows for all looks",
                "Floor: within a launch / across launches",
            ),
            lines,
        ),
        group_key(colours),
    )


def _ends(figure: Figure, interval: Any) -> Piece:
    text = format_interval(interval)
    return Fig((figure["figure_id"],), text) if text else "none"


def state_piece(book: Book, arm: Mapping[str, Any]) -> Piece:
    """Why an arm has no figures, in the summary's words."""
    place = next(place for place, one in enumerate(book.summary["arms"]) if one is arm)
    return book.quote("summary", "arms", place, "reason") if arm.get("reason") else "no figure was made"


def look_table(book: Book, pairs: Sequence[Mapping[str, Any]], panel: str | None, measure: str, caption: Line) -> Table:
    """A measure's difference in every pair over all rows: value, the interval that decides, floor, verdict, largest effect not excluded."""
    rows = []
    for pair in pairs:
        figure = whole(pair["figures"], measure, panel)
        if figure is None:
            rows.append(Row(book.pair_label(pair), (pair_state(book, pair), "", "", "")))
            continue
        rows.append(
            Row(
                book.pair_label(pair),
                (look_piece(figure), floor_piece(figure), verdict_piece(figure), bound_piece(figure)),
            )
        )
    return Table(
        caption,
        (
            "Pair",
            "Difference and the interval that decides",
            "Floor: within a launch / across launches",
            "Verdict",
            "Largest effect not excluded",
        ),
        rows,
    )


def look_piece(figure: Figure) -> Piece:
    """A difference with the interval that decides."""
    between = declared_interval(figure)
    known = isinstance(between, Mapping) and "low" in between
    return Fig((figure["figure_id"],), format_measured(figure["value"], between if known else None))


def verdict_piece(figure: Figure) -> Piece:
    """A figure's verdict as a badge."""
    return Badge(str(figure.get("verdict") or "descriptive"))


def bound_piece(figure: Figure) -> Piece:
    """The largest effect that the interval does not exclude, where the verdict is `not resolved`."""
    bound = figure.get("bound")
    if verdict_word(figure) != "not resolved":
        return "the verdict says it"
    return Fig((figure["figure_id"],), format_measured(bound))


def difference_chart(
    book: Book, pairs: Sequence[Mapping[str, Any]], panel: str, measure: str, title: Line
) -> Chart | None:
    """Differences over all rows against zero and the floor; None where no pair has one."""
    found = [(pair, whole(pair["figures"], measure, panel)) for pair in pairs]
    rows = [verdict_dot(str(pair["label"]), one) for pair, one in found if one is not None]
    if not rows:
        return None
    return Chart(
        title,
        dots(rows, zero=True),
        "A dot with the interval that decides for each pair, zero as a dashed line and the floor as a shaded part; the table below has the "
        "same numbers.",
        look_table(book, [pair for pair, one in found if one is not None], panel, measure, title),
        verdict_key([one for _, one in found if one is not None]),
    )


def pair_state(book: Book, pair: Mapping[str, Any]) -> Piece:
    """Why a pair has no figures."""
    place = book.pairs.index(pair)
    return book.quote("summary", "comparisons", place, "reason") if pair.get("reason") else "this look was not declared"


def of_parts(book: Book, *parts: str) -> list[Mapping[str, Any]]:
    """The pairs that differ in exactly these parts of the arm's key."""
    return [pair for pair in book.pairs if not compares_paths(pair) and differing(pair) == parts]


def claim_piece(book: Book, pair: Mapping[str, Any]) -> Line:
    """What a pair's headline look says, linked to its figure; where there is none, why."""
    figure = headline(pair["figures"])
    if figure is None:
        return pair_state(book, pair)
    text = claim(pair, figure, book.terms.get(figure["measure"], {}))
    return (verdict_piece(figure), " ", Fig((figure["figure_id"],), text, is_value=False))


def measures_on(book: Book, panel: str) -> list[str]:
    """The measures that an arm has over all rows of a panel, in the order of the terms."""
    own = {
        one["measure"]
        for arm in book.arms
        for one in arm["figures"]
        if (one["panel"], one["population"]) == (panel, ALL)
    }
    return [name for name in book.terms if name in own]


def panels_of(book: Book) -> list[str]:
    """The panels of the study that some arm has figures on."""
    found = dict.fromkeys(one["panel"] for arm in book.arms for one in arm["figures"])
    return list(found)


def see(page: str, words: str) -> Link:
    """A link to a page of the site."""
    return Link(words, f"{page}.html")


def note_of(book: Book, at: int) -> Line:
    """A note on how sure the figures are."""
    return (book.quote("notes", at, "title"), ". ", book.quote("notes", at, "text"))


def range_of(values: Sequence[float]) -> str:
    """`1.2 to 3.4`, or the one value."""
    low, high = format_number(min(values)), format_number(max(values))
    return low if low == high else f"{low} to {high}"
