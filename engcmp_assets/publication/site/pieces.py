"""What a page is made of. A number is on a page only as a piece that says where it comes from; plain text must hold none.

So no number is typed by hand: `Fig` is of published figures and links to their trace, `Given` is read at a place of SUMMARY.json or
EVIDENCE.json, `Quote` is the words of such a place, `Name` is the name of a thing (an arm, a file, a hash, a command).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from engcmp_resources.errors import EngcmpError

SEPARATOR = "|"
"""Between the parts of a place: names of arms hold dots and slashes."""


@dataclass(frozen=True, slots=True)
class Fig:
    """Text whose numbers are those of one figure (or of several): its value, its interval, its floor, its bound, its counts."""

    figure_ids: tuple[str, ...]
    text: str
    is_value: bool = True
    """Whether the text is the value itself, which a page shows in bold; else words about it."""


@dataclass(frozen=True, slots=True)
class Given:
    """A number that is no figure: a count, a declared value, a percentile of a row file. `place` is where it stands.

    `href` is where a reader follows it: nothing where the page itself is that place.
    """

    text: str
    place: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Quote:
    """Words as they stand at `place`, numbers and all."""

    text: str
    place: str


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a thing, in a fixed-width face: an arm, a file, a hash, a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Badge:
    """A verdict word."""

    word: str


@dataclass(frozen=True, slots=True)
class Link:
    """A link within the site; `text` is a piece of its own."""

    text: str | Name | Quote
    href: str


Piece = str | Fig | Given | Quote | Name | Badge | Link
Line = Piece | tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a section, with the name that links to it."""

    text: Line
    anchor: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Para:
    """A paragraph."""

    line: Line


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class NotCovered:
    """What the study does not answer, and why."""

    reason: Line


@dataclass(frozen=True, slots=True)
class Copy:
    """Text to copy; `href` is the same as a file of the site, where there is one."""

    title: Line
    text: str
    href: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: its head, its cells, and a name that links to it."""

    head: Line
    cells: Sequence[Line]
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its caption; every column has a head, every row a cell in each. Raises ValueError for another row."""

    caption: Line
    columns: Sequence[Line]
    rows: Sequence[Row]

    def __post_init__(self) -> None:
        for row in self.rows:
            if 1 + len(row.cells) != len(self.columns):
                raise ValueError(
                    f"a row of {len(row.cells)} cells in {len(self.columns)} columns: {self.caption!r}, {row.head!r}"
                )


Key = tuple[tuple[str, Line], ...]
"""A drawing's key: a class of colour and what it stands for."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, what it is in words without numbers, and the table that has them."""

    title: Line
    svg: Markup
    words: str
    table: Table
    key: Key = ()
    wide: bool = False
    """Whether the table has so many words that it stands below the drawing, also where there is room beside it."""


Block = Heading | Para | Items | NotCovered | Copy | Table | Chart


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the site. `covered` is false where all that it says is why the study has nothing of it."""

    name: str
    title: Line
    lead: Line
    blocks: Sequence[Block]
    covered: bool = True
    extra: dict[str, bytes] = field(default_factory=dict)
    """Further files of the page, by name within the site."""
    menu: str = ""
    """What the menu calls the page, where that is not its title."""


_DIGIT = re.compile(r"\d")


def plain_text(text: str) -> str:
    """`text`, which must hold no digit. Raises EngcmpError where a number was typed instead of being referred to."""
    if _DIGIT.search(text):
        raise EngcmpError(
            f"a page would hold a number that refers to nothing: {text!r}",
            where="engcmp_assets/publication/site",
            remedy="give it as Fig, Given, Quote or Name",
        )
    return text


def pieces_of(line: Line) -> tuple[Piece, ...]:
    """A line as its pieces."""
    return line if isinstance(line, tuple) else (line,)


def joined(pieces: Sequence[Line], between: str = ", ") -> Line:
    """Several lines as one, with `between` them."""
    found: list[Piece] = []
    for place, line in enumerate(pieces):
        found += [between] if place else []
        found += pieces_of(line)
    return tuple(found)
