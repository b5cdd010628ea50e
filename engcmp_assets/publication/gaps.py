"""How much of a gap a setting closes, as pages show it: the figures of a pair, sentences, and the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engcmp_assets.kernel.names import ALL, population_words
from engcmp_assets.publication.formats import format_measured, number, reason

Figure = Mapping[str, Any]


def gap_figures_of(owner: Mapping[str, Any]) -> list[Figure]:
    """The figures of a pair's gap; none of an arm, or where no gap is declared."""
    return list((owner.get("gap") or {}).get("figures", ()))


def gap_lines(pair: Mapping[str, Any]) -> list[str]:
    """A sentence for each panel over all rows, and one where the gap itself was not measured."""
    own = pair.get("gap")
    if not own:
        return []
    if "missing" in own:
        return [f"Share of the gap that the setting closes ({own['label']}): not known: {own['missing']}"]
    return [_line(own, figure) for figure in own["figures"] if figure["population"] == ALL]


def _line(own: Mapping[str, Any], figure: Figure) -> str:
    what = f"Share of the gap that the setting closes ({own['label']}), panel {figure['panel']}, {figure['distance']}"
    if number(figure["value"]) is None:
        return f"{what}: not known: {reason(figure['value'])}"
    return f"{what}: {format_measured(figure['value'], figure['interval'])}"


def population_word(figure: Figure) -> str:
    """`all rows`, the kind of content, the context length, or one at the other."""
    return population_words(str(figure["population"]))
