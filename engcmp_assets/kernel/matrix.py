"""The arms of a study as checkpoint by version: state, primary figure with its interval, verdict against the declared baseline.

An arm's key is one partition, so the catalog shows a list; this table shows what the list hides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engcmp_assets.kernel.measures import measure
from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.release_rules import order_of

MEASURED, NOT_MEASURED, FAILED, REFUSED = "measured", "not measured", "failed", "refused"
NOT_COMPARABLE = "not comparable"
NO_FIGURE = "no value for this measure"
MOST_VERSIONS = 8
"""Columns that a page shows before it cuts the table off: with more versions, they become the rows."""
_BETTER = {"lower": "lower is better", "higher": "higher is better", "neither": "neither direction is better"}


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an arm stands. `figure` is its primary figure as receipts hold it.

    `reason` says how to measure it, what failed, or what it was refused for and when.
    """

    arm: ArmKey
    state: str
    reason: str | None = None
    figure: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a declared pair of two arms says of the primary measure. Not `current`: one of the arms was measured again since.

    `difference` is candidate minus baseline, None where there is none; `word` is of the closed list, or says that there is none.
    """

    candidate: str
    baseline: str
    word: str
    difference: float | None = None
    current: bool = True


def over_all(figures: Sequence[Mapping[str, Any]], panel: str, measure_id: str) -> Mapping[str, Any] | None:
    """Of `figures` the one of this measure over all rows of the panel."""
    wanted = (panel, measure_id, ALL)
    return next((one for one in figures if (one["panel"], one["measure"], one["population"]) == wanted), None)


def pair_verdict(candidate: str, baseline: str, figure: Mapping[str, Any] | None, *, current: bool) -> Verdict:
    """The verdict of a pair's figure, as the receipt of comparisons holds it; `figure` None is a declared pair that was not compared."""
    if figure is None:
        return Verdict(candidate, baseline, "not compared yet")
    value = None if isinstance(figure["value"], Mapping) else float(figure["value"])
    return Verdict(candidate, baseline, str(figure["details"]["verdict"]), value, current)


def matrix_table(
    standings: Sequence[Standing],
    verdicts: Sequence[Verdict],
    *,
    panel: str,
    measure_id: str,
    links: Mapping[ArmKey, str],
    own: ArmKey | None = None,
) -> str:
    """The matrix as a Markdown table: a row for each checkpoint, in the order of `standings`, a column for each engine@version, by number.

    With more than MOST_VERSIONS versions and fewer checkpoints it lies on its side. `links` are the pages of arms that have one;
    `own` stands in bold.
    """
    checkpoints = list(dict.fromkeys(one.arm.checkpoint for one in standings))
    versions = sorted({_version(one.arm) for one in standings}, key=order_of)
    judged: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        judged.setdefault(verdict.candidate, []).append(verdict)
    baselines = {verdict.baseline for verdict in verdicts}
    cells = {
        (one.arm.checkpoint, _version(one.arm)): _cell(
            one,
            judged.get(str(one.arm), []),
            serves=str(one.arm) in baselines,
            link=links.get(one.arm),
            bold=one.arm == own,
        )
        for one in standings
    }
    if len(versions) > max(MOST_VERSIONS, len(checkpoints)):
        head = ["version", *checkpoints]
        body = [
            [_code(version), *(cells.get((name, version), "no such arm") for name in checkpoints)]
            for version in versions
        ]
    else:
        head = ["checkpoint", *(_code(version) for version in versions)]
        body = [[name, *(cells.get((name, version), "no such arm") for version in versions)] for name in checkpoints]
    lines = [head, ["---"] * len(head), *body]
    return f"{_heading(panel, measure_id)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _heading(panel: str, measure_id: str) -> str:
    about = measure(measure_id)
    return (
        f"`{about.id}` ({about.unit}, {_BETTER[about.better]}) over all rows of panel `{panel}`, its interval, and the verdict of "
        "the pair in which the arm is the candidate."
    )


def _version(arm: ArmKey) -> str:
    setting = "" if arm.setting is None else f"+{arm.setting}"
    return f"{arm.engine}@{arm.version}{setting}"


def _cell(standing: Standing, verdicts: Sequence[Verdict], *, serves: bool, link: str | None, bold: bool) -> str:
    state = standing.state if link is None else f"[{standing.state}]({link})"
    if standing.reason:
        state += f": {_inline(standing.reason)}"
    parts = [f"**{state}**" if bold else state]
    if standing.state == MEASURED:
        number = _number(standing.figure)
        parts.append(f"**{number}**" if bold else number)
    if standing.state == NOT_COMPARABLE:
        return parts[0]
    parts += [_words(verdict) for verdict in verdicts] or ["baseline" if serves else "no declared pair"]
    return "; ".join(parts)


def _number(figure: Mapping[str, Any] | None) -> str:
    if figure is None:
        return NO_FIGURE
    value, ends = figure["value"], figure["interval"]
    if isinstance(value, Mapping):
        return f"{NO_FIGURE}: {_inline(value['missing'])}"
    if "missing" in ends:
        return f"{format_number(value)} (no interval: {_inline(ends['missing'])})"
    return f"{format_number(value)} [{format_number(ends['low'])}, {format_number(ends['high'])}]"


def _words(verdict: Verdict) -> str:
    word = verdict.word
    if word.startswith("resolved") and verdict.difference:
        text = f"{word}: {'higher' if verdict.difference > 0 else 'lower'} than {_code(verdict.baseline)}"
    else:
        text = f"{word} against {_code(verdict.baseline)}"
    return _inline(text if verdict.current else f"{text} (before the last measurement)")


def _code(name: str) -> str:
    """A name that holds an @, which a page would take for an address of mail."""
    return f"`{name}`"


def _inline(text: str) -> str:
    """`text` within a cell: on one line, and no end of the cell in it."""
    return " ".join(text.split()).replace("|", "\\|")
