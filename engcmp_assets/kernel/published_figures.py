"""Figures that others have published, as they printed them: what this project's pages must be able to say, never what it should find.

`published_figures.json` lies in a study's folder. No computation takes a value from here, and no figure here is derived from two others:
a difference that is printed as +0.0036 stays so beside two levels whose difference is another, since its rows are paired.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from engcmp_assets.kernel.fields import Strict
from engcmp_resources.canonical import parse_json
from engcmp_resources.errors import EngcmpError, first_fault

FIGURES_FILE = "published_figures.json"
Form = Literal["number", "signed", "percent", "signed points", "count", "ratio", "scientific"]
"""How a value is printed: 0.0458, +0.0017, 93.50%, -0.35, 4,762,898, 1.40x, 5.7e-6."""
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Id = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._/-]*$")]


class PublishedFigure(Strict):
    """One printed figure: a `value`, or a range from `low` to `high` (over what, says `what`); `interval` is printed with it.

    `decimals` are those printed, of the value and of the interval's ends. `baseline` is what it is held against, None for a level.
    """

    id: _Id
    what: _Words
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: tuple[float, float] | None = None
    form: Form
    decimals: Annotated[int, Field(ge=0, le=9)]
    unit: _Words
    subject: _Words
    baseline: str | None = None
    document: _Words
    table: _Words
    printed: _Words

    @model_validator(mode="after")
    def _is_as_printed(self) -> PublishedFigure:
        if (self.value is None) == (self.low is None or self.high is None):
            raise ValueError("has either a value, or a range from low to high")
        if self.form in ("signed", "signed points") and self.baseline is None:
            raise ValueError("is a difference, and a difference names its baseline")
        if (told := as_printed(self)) != self.printed:
            raise ValueError(f"is {told!r} in its declared form, and printed is {self.printed!r}")
        return self


class PublishedFigures(Strict):
    """published_figures.json, whole. `documents` says what each document is; `note` what the figures are for."""

    schema_: Literal["engcmp.published-figures/1"] = Field(alias="schema")
    note: _Words
    documents: dict[str, _Words]
    figures: list[PublishedFigure]

    @model_validator(mode="after")
    def _holds_together(self) -> PublishedFigures:
        if doubled := [name for name, count in Counter(one.id for one in self.figures).items() if count > 1]:
            raise ValueError(f"figure {doubled[0]!r} stands twice")
        if unknown := sorted({one.document for one in self.figures} - set(self.documents)):
            raise ValueError(f"document {unknown[0]!r} is not among documents")
        return self


def as_printed(figure: PublishedFigure) -> str:
    """The figure in its declared form: `0.0458`, `+0.0036 [+0.0020, +0.0051]`, `93.50%`, `1.06-1.46x`, `4,762,898`."""
    if figure.value is not None:
        text = printed_number(figure.value, figure.form, figure.decimals)
    else:
        ends = [
            printed_number(end, figure.form, figure.decimals) for end in (figure.low, figure.high) if end is not None
        ]
        text = f"{ends[0].rstrip('x%')}-{ends[1]}"
    if figure.interval is None:
        return text
    low, high = (printed_number(end, figure.form, figure.decimals).rstrip("x%") for end in figure.interval)
    return f"{text} [{low}, {high}]"


def printed_number(value: float, form: Form, decimals: int) -> str:
    """One number in a form, with so many decimals."""
    match form:
        case "signed" | "signed points":
            return f"{value:+.{decimals}f}"
        case "percent":
            return f"{value:.{decimals}f}%"
        case "count":
            return f"{int(value):,}"
        case "ratio":
            return f"{value:.{decimals}f}x"
        case "scientific":
            mantissa, exponent = f"{value:.{decimals}e}".split("e")
            return f"{mantissa}e{int(exponent)}"
        case "number":
            return f"{value:.{decimals}f}"


def parse_figures(data: bytes, *, where: str) -> PublishedFigures:
    """The bytes of published_figures.json. Raises EngcmpError naming the figure at fault, also one whose value is not what it prints."""
    raw = parse_json(data, what=FIGURES_FILE, where=where, remedy="mend the place it names")
    try:
        return PublishedFigures.model_validate(raw)
    except ValidationError as error:
        place, words = first_fault(error.errors())
        name = ""
        if len(place) > 1 and place[0] == "figures":
            name = f" (figure {raw['figures'][int(place[1])].get('id')})"
        field = ".".join(str(part) for part in place) or "(the whole)"
        raise EngcmpError(
            f"{FIGURES_FILE} field {field}{name}: {words}", where=where, remedy="mend that field"
        ) from error
