"""The README's tables, made from the figures of a measured home. No tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.plots import format_number

Figure = Mapping[str, Any]
Figures = Mapping[str, Figure]
STUDY = "smollm2-cpu"
MEASURES = ("kl_full", "nll", "top1", "entropy")
ARMS = tuple(
    f"{checkpoint}/llamacpp@{version}" for checkpoint in ("q8_0", "q4_0") for version in ("b8672", "b10809", "b11549")
)
# How the README calls a pair, or pairs that read the same, and on which panel it is.
PAIRS = (
    ("q4_0 beside q8_0, b11549", ("q4_0-vs-q8_0",), "pa"),
    ("b10809 beside b8672, q8_0", ("b10809-vs-b8672-q8_0",), "pa"),
    ("b10809 beside b8672, q4_0", ("b10809-vs-b8672-q4_0",), "pa"),
    ("b11549 beside b10809, q8_0 and q4_0", ("b11549-vs-b10809-q8_0", "b11549-vs-b10809-q4_0"), "pa"),
    ("decode beside prefill, q8_0, b11549", ("decode-vs-prefill-q8_0",), "pd"),
    ("decode beside prefill, q4_0, b11549", ("decode-vs-prefill-q4_0",), "pd"),
)


def arm_id(arm: str, measure: str) -> str:
    return f"{STUDY}/{arm}/pa/all/{measure}"


def pair_id(pair: str, panel: str, measure: str) -> str:
    return f"{STUDY}/pair/{pair}/{panel}/all/{measure}"


def arms_table(figures: Figures) -> list[str]:
    """Each arm with its measures over all rows; arms of one checkpoint that give the same rows share a line."""
    heads = [f"`{measure}` ({figures[arm_id(ARMS[0], measure)]['unit']})" for measure in MEASURES]
    lines: dict[tuple[str, ...], list[str]] = {}
    for arm in ARMS:
        cells = (arm.split("/")[0], *(_read(figures[arm_id(arm, measure)]) for measure in MEASURES))
        lines.setdefault(cells, []).append(arm)
    rows = [[_names(arms), *cells[1:]] for cells, arms in lines.items()]
    return _table(["arm", *heads], rows)


def pairs_table(figures: Figures) -> list[str]:
    """Each pair: how far apart it is, its floor, the difference from the reference, and the verdict."""
    apart, difference = "apart by `kl_pair_full` (nats)", "difference of `kl_full` (nats)"
    heads = ["pair", apart, "rows bit-identical", "floor", difference, "verdict"]
    rows = []
    for name, pairs, panel in PAIRS:
        (cells,) = {_pair_cells(figures, pair, panel) for pair in pairs}
        rows.append([name, *cells])
    return _table(heads, rows)


def _pair_cells(figures: Figures, pair: str, panel: str) -> tuple[str, ...]:
    apart, difference, same = (
        figures[pair_id(pair, panel, measure)] for measure in ("kl_pair_full", "kl_full", "rows_bit_identical")
    )
    floor = apart["details"]["floor"]["within_launch"]
    identical = round(same["value"] * same["rows"])
    return (
        _read(apart),
        f"{identical} of {same['rows']}",
        format_number(floor["value"]),
        _read(difference),
        _verdict(difference, pair, whole=identical == same["rows"]),
    )


def _verdict(difference: Figure, pair: str, *, whole: bool) -> str:
    if whole:
        return "bit-identical"
    if "missing" in difference["interval"]:
        return "not resolved: values only"
    verdict = str(difference["details"]["verdict"])
    if verdict != "resolved":
        return verdict
    candidate, baseline = pair.split("-vs-")
    return f"resolved: {baseline if difference['value'] > 0 else candidate} is closer"


def _read(figure: Figure) -> str:
    """Value and interval; of what is exactly 0 without any spread, 0."""
    value, ends = figure["value"], figure["interval"]
    if "missing" in ends or (value == ends["low"] == ends["high"] == 0):
        return format_number(value)
    return f"{format_number(value)} [{format_number(ends['low'])}, {format_number(ends['high'])}]"


def _names(arms: Sequence[str]) -> str:
    """`checkpoint/engine@a`, `@b`."""
    return ", ".join([f"`{arms[0]}`", *(f"`@{arm.partition('@')[2]}`" for arm in arms[1:])])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
