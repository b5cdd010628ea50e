"""The front page: what was found, pick by workload, how sure that is, what is not covered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.claims import compares_paths, headline
from engcmp_assets.publication.formats import number
from engcmp_assets.publication.replies import reply_figures_of
from engcmp_assets.publication.site.book import Book, Figure, differing
from engcmp_assets.publication.site.pieces import (
    Badge,
    Block,
    Fig,
    Heading,
    Items,
    Line,
    Link,
    Name,
    NotCovered,
    Page,
    Para,
    Row,
    Table,
    joined,
    pieces_of,
)
from engcmp_assets.publication.site.shown import (
    arm_chart,
    claim_piece,
    measures_on,
    note_of,
    panels_of,
    range_of,
    see,
    state_piece,
)
from engcmp_assets.publication.site.speed import startup_figure

_CELL = re.compile(r"-(?P<prompt>\d+)-[cr]")
Pair = Mapping[str, Any]


def index(book: Book, pages: Sequence[Page]) -> Page:
    """The front page: what was found, pick by workload, how sure that is, what is not covered."""
    blocks: list[Block] = [Heading("Findings", "findings")]
    blocks.append(
        Items([(book.pair_label(pair), ": ", *pieces_of(claim_piece(book, pair))) for pair in book.pairs])
        if book.pairs
        else NotCovered("The protocol declares no comparison.")
    )
    for panel in panels_of(book)[:1]:
        name = measures_on(book, panel)[0]
        blocks.append(
            arm_chart(
                book,
                ("Distance from the reference: ", book.quote_title(name), ", in ", Name(book.unit(name))),
                panel,
                name,
            )
        )
    blocks += _workloads(book)
    blocks += [
        Heading("How sure are we", "sure"),
        Items([note_of(book, at) for at in range(len(book.documents["notes"]))]),
    ]
    blocks += [
        Heading("Known limits", "limits"),
        Items([book.quote("summary", "limits", at) for at in range(len(book.summary["limits"]))]),
    ]
    blocks += [Heading("Not covered", "not-covered"), *_not_covered(book, pages)]
    blocks += [
        Heading("Terms", "terms"),
        Items(
            [
                (book.quote_title(name), ": ", book.quote("summary", "terms", at, "definition"))
                for at, name in enumerate(book.terms)
            ]
        ),
    ]
    return Page(
        "index.html", book.quote("summary", "title"), book.quote("summary", "question"), blocks, menu="Overview"
    )


def _not_covered(book: Book, pages: Sequence[Page]) -> Iterator[Block]:
    rows: list[Line] = []
    for page in pages:
        rows += [
            (Link(page.title, page.name), ": ", *pieces_of(block.reason))
            for block in page.blocks
            if isinstance(block, NotCovered) and isinstance(page.title, str)
        ]
    rows += [
        (Name(arm["arm"]), ": ", state_piece(book, arm)) for arm in book.summary["arms"] if arm["state"] != "measured"
    ]
    for at, one in enumerate(book.evidence["protocol"].get("not_run", ())):
        rows.append((Name(one["arm"]), ": ", book.quote("evidence", "protocol", "not_run", at, "reason")))
    yield Items(rows) if rows else Para("Every page of this site has data.")


# Pick by workload: each row holds the pair's own verdicts, and the numbers of both sides.


def _workloads(book: Book) -> Iterator[Block]:
    yield Heading("Pick by workload", "workload")
    yield Para(
        "What the results show on this machine and these files; no general ranking. Numbers of the baseline first."
    )
    pairs = [pair for pair in book.pairs if not compares_paths(pair)]
    chosen = [pair for pair in pairs if differing(pair) != ("version",)] or pairs
    rows = []
    for words, page, row in _WORKLOADS:
        found = [(pair, told) for pair in chosen if (told := row(book, pair)) is not None]
        rows += [Row((words, ": ", book.pair_label(pair)), (*told, see(page, "evidence"))) for pair, told in found]
        if not found:
            rows.append(Row(words, ("not covered: nothing of it was measured in any pair", "", see(page, "why"))))
    yield Table("By workload", ("Workload and pair", "The data shows", "Key numbers, baseline first", "Evidence"), rows)


_Told = tuple[Line, Line] | None


def _closest(book: Book, pair: Pair) -> _Told:
    figure = headline(pair["figures"])
    if figure is None or number(figure["value"]) is None:
        return None
    means = [figure.get("baseline_mean"), figure.get("candidate_mean")]
    known = [format_number(found) for one in means if (found := number(one)) is not None]
    return claim_piece(book, pair), (Fig((figure["figure_id"],), " and ".join(known)), " ", Name(figure["unit"]))


def _speeds(
    measure: str, *, prompts: Callable[[Sequence[int]], int] | None, alone: bool
) -> Callable[[Book, Pair], _Told]:
    """A row on one measure in the cells of one request at a time (or of the most), at the shortest or longest prompts."""

    def told(book: Book, pair: Pair) -> _Told:
        figures = [
            one
            for one in (pair.get("speed") or {}).get("figures", ())
            if one["measure"] == measure and number(one["value"]) is not None
        ]
        widths = {cell["cell_id"]: cell["concurrency"] for arm in book.arms for cell in arm.get("speed") or ()}
        most = max(widths.values(), default=1)
        figures = [one for one in figures if widths.get(one["population"]) == (1 if alone else most)]
        if not alone and most == 1:
            return None
        lengths = {
            one["population"]: int(found["prompt"]) for one in figures if (found := _CELL.search(one["population"]))
        }
        if prompts is not None:
            if len({*_all_lengths(book)}) < 2 and prompts is max:  # noqa: PLR2004 - of one length none is the longer
                return None
            figures = [
                one for one in figures if lengths.get(one["population"]) == prompts(sorted(set(lengths.values())))
            ]
        return _of_cells(book, figures) if figures else None

    return told


def _all_lengths(book: Book) -> list[int]:
    found = [_CELL.search(cell["cell_id"]) for arm in book.arms for cell in arm.get("speed") or ()]
    return [int(one["prompt"]) for one in found if one]


def _of_cells(book: Book, figures: Sequence[Figure]) -> tuple[Line, Line]:
    verdicts = list(dict.fromkeys(str(one["verdict"]).split(",", maxsplit=1)[0] for one in figures))
    ids = tuple(one["figure_id"] for one in figures)
    shown: Line = (
        book.quote_title(figures[0]["measure"]),
        ": candidate ",
        *pieces_of(joined([Badge(one) for one in verdicts])),
    )
    sides = [range_of([float(one[f"{side}_value"]) for one in figures]) for side in ("baseline", "candidate")]
    return shown, (Fig(ids, " and ".join(sides)), " ", Name(figures[0]["value_unit"]))


def _of_arms(find: Callable[[Mapping[str, Any]], Figure | None], words: str) -> Callable[[Book, Pair], _Told]:
    """A row of two arms' own figures, beside each other: described, not tested."""

    def told(book: Book, pair: Pair) -> _Told:
        by_key = {arm["arm"]: arm for arm in book.arms}
        own = [find(by_key[pair[side]]) if pair[side] in by_key else None for side in ("baseline", "candidate")]
        known = [one for one in own if one is not None and number(one["value"]) is not None]
        if len(known) < len(own):
            return None
        return (words, ", described and not tested"), (
            book.fig(known[0], interval=False),
            " and ",
            book.fig(known[1], interval=False),
            " ",
            Name(known[0]["unit"]),
        )

    return told


def _start(population: str, measure: str) -> Callable[[Mapping[str, Any]], Figure | None]:
    return lambda arm: startup_figure(arm, population, measure) if arm.get("startup") else None


def _prefix(arm: Mapping[str, Any]) -> Figure | None:
    own = [
        one
        for one in (arm.get("startup") or {}).get("figures", ())
        if one["measure"] == "prefix_ttft_ms" and not str(one["population"]).endswith("/cold")
    ]
    return own[-1] if own else None


def _reply(measure: str) -> Callable[[Mapping[str, Any]], Figure | None]:
    return lambda arm: next(
        (one for one in reply_figures_of(arm) if one["measure"] == measure and number(one["value"]) is not None), None
    )


_WORKLOADS: tuple[tuple[str, str, Callable[[Book, Pair], _Told]], ...] = (
    ("Closest to the reference", "precision", _closest),
    ("One request at a time", "speed", _speeds("decode_tok_s", prompts=None, alone=True)),
    ("Long prompts, one at a time", "speed", _speeds("ttft_median_ms", prompts=max, alone=True)),
    ("Short prompts, many at once: first token", "speed", _speeds("ttft_median_ms", prompts=min, alone=False)),
    ("Short prompts, many at once: all tokens", "speed", _speeds("aggregate_tok_s", prompts=min, alone=False)),
    ("Many long prompts at once", "speed", _speeds("aggregate_tok_s", prompts=max, alone=False)),
    ("Repeated long prefix", "running", _of_arms(_prefix, "First token of a prompt that was sent before")),
    ("Multi-turn tool calling", "tools", _of_arms(_reply("tool_points"), "Share of the points reached")),
    ("Long replies", "long-tasks", _of_arms(_reply("reply_finished"), "Share of replies that finished")),
    ("Switching models often", "running", _of_arms(_start("warm", "ready_s"), "Time until ready, caches kept")),
    ("Many long contexts at once", "running", _of_arms(_start("stated", "kv_pool_tokens"), "Room in the KV cache")),
)
