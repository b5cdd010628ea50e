"""Reads a page of the site as a reader does: its text with what each piece refers to, links, tables. No tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = frozenset({"meta", "link", "img", "br", "hr", "line", "circle", "rect", "i"})
DIGITS = re.compile(r"[\w@./:+~-]*\d(?:[\w@./:+~-]|,(?=\d{3}))*")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")

_FOUR_DIGITS = 5.1e-4


@dataclass
class Text:
    """A piece of text and the attributes of the elements around it, the innermost last."""

    text: str
    around: tuple[tuple[str, Mapping[str, str]], ...]

    def attribute(self, name: str) -> str | None:
        return next((attributes[name] for _, attributes in reversed(self.around) if name in attributes), None)

    def inside(self, *tags: str) -> bool:
        return any(tag in tags for tag, _ in self.around)


@dataclass
class TableSeen:
    caption: str = ""
    heads: int = 0
    scopes: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Reader(HTMLParser):
    """One page: texts, links, ids, tables, images, and what is left open."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str]]] = []
        self.texts: list[Text] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.ids: list[str] = []
        self.tables: list[TableSeen] = []
        self.images: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" else []
        self.sources += [attributes[name] for name in ("src", "href") if tag != "a" and name in attributes]
        self.images += [attributes.get("aria-label", "")] if attributes.get("role") == "img" else []
        if tag == "table":
            self.tables.append(TableSeen())
        if tag == "tr" and self.tables:
            self.tables[-1].rows.append(0)
        if tag in ("th", "td"):
            self.tables[-1].rows[-1] += 1
            self.tables[-1].scopes += [attributes.get("scope", "")] if tag == "th" else []
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and not any(tag in ("style", "script") for tag, _ in self.open):
            self.texts.append(Text(data, tuple(self.open)))
            if any(tag == "caption" for tag, _ in self.open):
                self.tables[-1].caption += data


def numbers_of(value: Any) -> Iterator[float]:
    """Every number within a document, those within its words too."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (int, float)):
        yield float(value)
    elif isinstance(value, str):
        yield from numbers_in(value)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from numbers_in(str(key))
            yield from numbers_of(one)
    elif isinstance(value, Sequence):
        yield float(len(value))
        for one in value:
            yield from numbers_of(one)


def numbers_in(text: str) -> Iterator[float]:
    """Every number as it is written in a text."""
    yield from (number for number, _ in written_in(text))


def written_in(text: str) -> Iterator[tuple[float, float]]:
    """Every number in a text, and half a unit of its last decimal place (0 of one without)."""
    for found in NUMBER.findall(text):
        decimals = found.partition("e")[0].partition(".")[2]
        yield float(found.replace(",", "")), 0.5 * 10.0 ** -len(decimals) if decimals and "e" not in found else 0.0


def all_known(text: str, known: Sequence[float], *, scales: Sequence[float] = (1.0,)) -> bool:
    """Whether each number of a text is one of the known ones, rounded as it is written or to four digits, its sign aside.

    `scales`: as a share may be written in percent, and bytes in millions.
    """
    return all(
        any(
            abs(abs(number) - abs(one) / scale) <= max(_FOUR_DIGITS * abs(one / scale), half * 1.001)
            for scale in scales
            for one in known
        )
        for number, half in written_in(text)
    )
