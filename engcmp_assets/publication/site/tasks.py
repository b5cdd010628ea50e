"""Pages on long replies: tool calling, thinking length, and how long tasks end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.reply_verdicts import ENDINGS
from engcmp_assets.publication.formats import format_any, format_interval, format_measured, number, reason
from engcmp_assets.publication.replies import CHECKED, counted_of, ending_word, reply_figures_of
from engcmp_assets.publication.site.book import Book, Figure
from engcmp_assets.publication.site.charts import stacked
from engcmp_assets.publication.site.pieces import (
    Block,
    Chart,
    Fig,
    Heading,
    Items,
    Line,
    Name,
    NotCovered,
    Page,
    Para,
    Piece,
    Quote,
    Row,
    Table,
)

NO_REPLIES = "The study makes no long replies: its protocol has no block for them."
NO_TOOLS = "No tool calling was measured: the protocol declares no scenarios."
_THINKING = ("thinking_tokens",)
_LENGTHS = ("reply_tokens", "thinking_tokens")


def _why(book: Book) -> Line:
    return "No arm has been measured yet." if book.evidence["protocol"]["has_long_replies"] else NO_REPLIES


def _measured(book: Book) -> list[Mapping[str, Any]]:
    return [arm for arm in book.arms if arm.get("replies")]


def tools(book: Book) -> Page:
    """Scenarios of tool calling: points of every arm, and scenario by scenario what differs in each pair."""
    lead = "Scenarios in which the model has to call tools: what was reached, and what differs between builds."
    measured = _measured(book)
    if not any(one["measure"] == "tool_points" for arm in measured for one in reply_figures_of(arm)):
        why = NO_TOOLS if measured else _why(book)
        return Page("tools.html", "Tool calling", lead, (NotCovered(why),), covered=False)
    blocks: list[Block] = [_table(book, "Points", ("tool_points",), measured)]
    for index, pair in enumerate(book.pairs):
        for at, one in enumerate((pair.get("replies") or {}).get("tools", ())):
            place = f"summary|comparisons|{index}|replies|tools|{at}"
            blocks.append(Heading((book.pair_label(pair), ", ", Name(one["stage"])), f"tools-{index + 1}-{at + 1}"))
            if "missing" in one:
                blocks.append(NotCovered(Quote(one["missing"], f"{place}|missing")))
                continue
            between = one["between"]
            blocks.append(
                Para(
                    (
                        "Scenarios that differ between the builds: ",
                        book.given(*place.split("|"), "between", "flips"),
                        " of ",
                        book.given(*place.split("|"), "between", "compared"),
                        ".",
                    )
                )
            ) if "flips" in between else None
            rows = [
                Row(
                    Name(change["scenario_id"]),
                    [
                        _points(book, f"{place}|changes|{row}|{side}", change[side])
                        for side in ("candidate", "baseline")
                    ],
                )
                for row, change in enumerate(one["changes"])
            ]
            if rows:
                blocks.append(
                    Table("Scenarios that differ, points of each repeat", ("Scenario", "Candidate", "Baseline"), rows)
                )
    return Page("tools.html", "Tool calling", lead, blocks)


def _points(book: Book, place: str, values: Sequence[int | None]) -> Line:
    text = " ".join("not graded" if one is None else str(one) for one in values)
    return Quote(text, place)


def thinking(book: Book) -> Page:
    """How long the model thinks before it answers: medians, ratios of pairs, and the end of thinking at fixed places."""
    lead = "How many tokens of thinking come before an answer, and whether a pair differs in that."
    measured = _measured(book)
    if not any(
        one["measure"] in _THINKING and number(one["value"]) is not None
        for arm in measured
        for one in reply_figures_of(arm)
    ):
        why: Line = "No reply of the study thinks before it answers." if measured else _why(book)
        return Page("thinking.html", "Thinking length", lead, (NotCovered(why),), covered=False)
    blocks: list[Block] = [_table(book, "Median length of the thinking, under the cap, in tokens", _THINKING, measured)]
    blocks += _ratios(book, "thinking", "Thinking")
    return Page("thinking.html", "Thinking length", lead, blocks)


def long_tasks(book: Book) -> Page:
    """How long replies ended, what they passed, how long they are, and each pair's exact tests."""
    lead = "Replies up to a cap: whether they end, loop or are cut, and what their answers are worth."
    measured = _measured(book)
    if not measured:
        return Page("long-tasks.html", "Long tasks", lead, (NotCovered(_why(book)),), covered=False)
    blocks: list[Block] = [
        _outcomes(book, measured),
        _table(book, "What passed", CHECKED, measured),
        _table(book, "Median length, under the cap, in tokens", _LENGTHS, measured),
    ]
    blocks += _ratios(book, "lengths", "Length")
    for index, pair in enumerate(book.pairs):
        blocks += _tests(book, pair, index)
    missing = [
        Quote(why, f"summary|arms|{at}|replies|missing|{check}")
        for at, arm in enumerate(book.summary["arms"])
        for check, why in (arm.get("replies") or {}).get("missing", {}).items()
    ]
    if missing:
        blocks += [Heading("Not graded", "not-graded"), Items(list({one.text: one for one in missing}.values()))]
    return Page("long-tasks.html", "Long tasks", lead, blocks)


def _outcomes(book: Book, measured: Sequence[Mapping[str, Any]]) -> Chart:
    bars, rows = [], []
    for at, arm in enumerate(book.summary["arms"]):
        for index, group in enumerate((arm.get("replies") or {}).get("groups", ())):
            if group["block"] == "tools":
                continue
            counts = [group["endings"].get(name, 0) for name in ENDINGS]
            bars.append(
                (
                    f"{group['population']}: {arm['arm']}",
                    [(f"o-{name}", count) for name, count in zip(ENDINGS, counts, strict=True)],
                )
            )
            place = ("summary", "arms", at, "replies", "groups", index)
            cells: list[Line] = [book.given(*place, "replies", href=book.page_of(arm["arm"]))]
            cells += [
                book.given(*place, "endings", name, href=book.page_of(arm["arm"]))
                if name in group["endings"]
                else "none"
                for name in ENDINGS
            ]
            rows.append(Row((Name(group["population"]), " ", Name(arm["arm"])), cells))
    return Chart(
        "How replies ended",
        stacked(bars),
        "A bar for each group of replies of each arm, split by how they ended.",
        Table("How replies ended", ("Replies", "All", *(ending_word(name) for name in ENDINGS)), rows),
        tuple((f"o-{name}", ending_word(name)) for name in ENDINGS),
    )


def _table(book: Book, title: str, measures: Sequence[str], measured: Sequence[Mapping[str, Any]]) -> Table:
    found = dict.fromkeys(
        (one["population"], one["measure"])
        for arm in measured
        for one in reply_figures_of(arm)
        if one["measure"] in measures
    )
    rows = [
        Row((Name(population), " ", book.quote_title(measure)), [_cell(arm, population, measure) for arm in measured])
        for population, measure in found
    ]
    return Table(title, ("Replies", *(Name(arm["arm"]) for arm in measured)), rows)


def _cell(arm: Mapping[str, Any], population: str, measure: str) -> Piece:
    own = (one for one in reply_figures_of(arm) if (one["population"], one["measure"]) == (population, measure))
    figure: Figure | None = next(own, None)
    if figure is None:
        return "none"
    if number(figure["value"]) is None:
        return Fig((figure["figure_id"],), reason(figure["value"]), is_value=False)
    between = figure["interval"] if format_interval(figure["interval"]) else None
    return Fig((figure["figure_id"],), f"{format_measured(figure['value'], between)}, {counted_of(figure)}")


def _ratios(book: Book, key: str, title: str) -> Iterator[Block]:
    rows = []
    for index, pair in enumerate(book.pairs):
        for at, stage in enumerate((pair.get("replies") or {}).get("stages", ())):
            own = stage.get(key)
            if not own or "missing" in own:
                continue
            place = f"summary|comparisons|{index}|replies|stages|{at}|{key}|main|ratio"
            found = own["main"]["ratio"]
            known = number(found["ratio"]) is not None
            text = format_measured(found["ratio"], found.get("interval")) if known else reason(found["ratio"])
            rows.append(Row((book.pair_label(pair), ", ", Name(stage["population"])), (Quote(text, place),)))
    if rows:
        yield Table(f"{title}: candidate over baseline, paired by prompt", ("Pair and stage", "Ratio"), rows)


def _tests(book: Book, pair: Mapping[str, Any], index: int) -> Iterator[Block]:
    rows = []
    for at, stage in enumerate((pair.get("replies") or {}).get("stages", ())):
        for row, test in enumerate(stage.get("tests", ())):
            place = ("summary", "comparisons", index, "replies", "stages", at, "tests", row)
            p = number(test["p"])
            rows.append(
                Row(
                    (Name(stage["population"]), " ", Name(test["name"])),
                    (
                        *(book.given(*place, side) for side in ("candidate_more", "baseline_more", "undecided")),
                        book.given(*place, "p", text=None if p is None else format_number(p)),
                        Name(format_any(test["standing"])),
                    ),
                )
            )
    if rows:
        yield Table(
            (book.pair_label(pair), ": exact tests, pair by pair of replies"),
            ("Replies and test", "Candidate more", "Baseline more", "Undecided", "Exact p", "Standing"),
            rows,
        )
