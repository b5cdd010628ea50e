"""The two documents that the site is made from, and how a piece refers to a place in them or to a figure's trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.publication.formats import format_any, format_count, format_measured, number, reason
from engcmp_assets.publication.notes import notes
from engcmp_assets.publication.owned import figures_of_owner
from engcmp_assets.publication.site.pieces import SEPARATOR, Fig, Given, Line, Link, Name, Piece, Quote

Document = Mapping[str, Any]
Figure = Mapping[str, Any]
PARTS = ("checkpoint", "engine", "version", "setting")


@dataclass(frozen=True)
class Owner:
    """An arm or a pair: its name, the page that holds the trace of its figures, and the figures in order."""

    key: str
    label: str
    is_pair: bool
    page: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Book:
    """SUMMARY.json and EVIDENCE.json as one source of pieces. A link names its page within the site, from whichever page."""

    summary: Document
    evidence: Document

    @cached_property
    def documents(self) -> dict[str, Any]:
        """What a place begins with: `summary`, `evidence`, the notes that are made from the summary, how many figures each owner has."""
        counts = {one.key: len(one.figures) for one in self.owners}
        return {"summary": self.summary, "evidence": self.evidence, "notes": notes(self.summary), "counts": counts}

    @cached_property
    def owners(self) -> tuple[Owner, ...]:
        """Every arm and pair that has figures."""
        named = [(arm["arm"], arm["arm"], False, arm) for arm in self.summary["arms"]]
        named += [(pair["pair_id"], pair["label"], True, pair) for pair in self.summary["comparisons"]]
        found = []
        for key, label, is_pair, own in named:
            figures = figures_of_owner(own)
            unique = {one["figure_id"]: one for one in figures}
            name = file_name(f"pair-{key}" if is_pair else key)
            if unique:
                found.append(Owner(key, label, is_pair, f"trace/{name}.html", tuple(unique.values())))
        return tuple(found)

    @cached_property
    def places(self) -> dict[str, str]:
        """Of each figure the place of its trace within the site."""
        return {
            one["figure_id"]: f"{owner.page}#figure-{place}"
            for owner in self.owners
            for place, one in enumerate(owner.figures, 1)
        }

    @cached_property
    def terms(self) -> dict[str, Mapping[str, Any]]:
        """The measures' terms by id."""
        return {term["measure"]: term for term in self.summary["terms"]}

    @property
    def arms(self) -> list[Mapping[str, Any]]:
        """The arms that were measured."""
        return [arm for arm in self.summary["arms"] if arm["state"] == "measured"]

    @property
    def pairs(self) -> list[Mapping[str, Any]]:
        """All declared pairs."""
        return list(self.summary["comparisons"])

    def at(self, place: str) -> Any:
        """What stands at a place. Raises KeyError or IndexError for one that does not exist."""
        first, *rest = place.split(SEPARATOR)
        value = self.documents[first]
        for part in rest:
            value = value[int(part)] if isinstance(value, Sequence) else value[part]
        return value

    def given(self, *place: str | int, text: str | None = None, href: str = "") -> Piece:
        """The number at a place as a piece; `text` where it is written otherwise than as a count. A reason is its words."""
        where = SEPARATOR.join(map(str, place))
        value = self.at(where)
        if isinstance(value, Mapping) and "missing" in value:
            return Quote(reason(value), f"{where}{SEPARATOR}missing")
        written = text or (format_number(value) if isinstance(value, float) else format_count(value))
        return Given(written, where, href)

    def quote(self, *place: str | int) -> Piece:
        """The words at a place."""
        where = SEPARATOR.join(map(str, place))
        return Quote(str(self.at(where)), where)

    def fig(self, figure: Figure | None, *, interval: bool = True, text: str | None = None) -> Piece:
        """A figure's value with its interval, linked to its trace; where it has none, why."""
        if figure is None:
            return "not measured"
        written = text or format_measured(figure["value"], figure.get("interval") if interval else None)
        return Fig((figure["figure_id"],), written)

    def arm_name(self, arm: str) -> Name:
        """An arm by its key."""
        return Name(arm)

    def measure(self, measure: str) -> Line:
        """A measure by its title, linked to its definition."""
        if measure not in self.terms:
            return Name(measure)
        index = list(self.terms).index(measure)
        return (Link(Quote(self.terms[measure]["title"], f"summary|terms|{index}|title"), f"method.html#{measure}"),)

    def quote_title(self, measure: str) -> Piece:
        """A measure's title, without a link."""
        if measure not in self.terms:
            return Name(measure)
        return Quote(self.terms[measure]["title"], f"summary|terms|{list(self.terms).index(measure)}|title")

    def page_of(self, owner: str) -> str:
        """The page that holds the trace of an arm's or a pair's figures."""
        return next((one.page for one in self.owners if one.key == owner), "")

    def unit(self, measure: str) -> str:
        """A measure's unit as it is."""
        return str(self.terms.get(measure, {}).get("unit", ""))

    def panel_label(self, panel: str) -> Piece:
        """A panel's label as the protocol has it."""
        for place, one in enumerate(self.summary.get("panels", [])):
            if one["panel"] == panel:
                return self.quote("summary", "panels", place, "label")
        return Name(panel)

    def pair_label(self, pair: Mapping[str, Any]) -> Piece:
        """A pair's label as the protocol has it."""
        return self.quote("summary", "comparisons", self.pairs.index(pair), "label")


def file_name(key: str) -> str:
    """The name of a file of an arm or a pair, as receipts and links take it; without `@`, which reads as an e-mail address."""
    return re.sub(r"[^A-Za-z0-9_.-]+", ".", key)


def differing(pair: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts in which the two arms of a pair differ; none where it is two score paths of one arm."""
    one, other = ArmKey.parse(pair["candidate"]), ArmKey.parse(pair["baseline"])
    return tuple(part for part in PARTS if getattr(one, part) != getattr(other, part))


def whole(figures: Sequence[Figure], measure: str, panel: str | None = None) -> Figure | None:
    """The figure of a measure over all rows."""
    fitting = (one for one in figures if one["measure"] == measure and one["population"] == ALL)
    return next((one for one in fitting if panel in (None, one["panel"])), None)


def measured(figures: Sequence[Figure]) -> Iterator[Figure]:
    """Those of the figures that have a value."""
    yield from (one for one in figures if number(one["value"]) is not None)


def said(value: Any) -> str:
    """A value as pages write it."""
    return format_any(value)
