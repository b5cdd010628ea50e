"""Pages around the results: settings, method, audit, research, how to reproduce."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.publication.claims import headline, side_names
from engcmp_assets.publication.formats import format_interval, format_measured, number, reason
from engcmp_assets.publication.gaps import gap_figures_of, population_word
from engcmp_assets.publication.site.book import Book, file_name, whole
from engcmp_assets.publication.site.labels import labels_of
from engcmp_assets.publication.site.pieces import (
    Badge,
    Block,
    Copy,
    Fig,
    Given,
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
)
from engcmp_assets.publication.site.shown import (
    look_piece,
    measures_on,
    note_of,
    of_parts,
    panels_of,
    range_of,
    see,
    verdict_piece,
)
from engcmp_assets.publication.site.speed import figure_of, startup_figure

Pair = Mapping[str, Any]


def settings(book: Book) -> Page:
    """Each arm's launch as a file to copy, with what it measured; arms with a setting beside the same arm without it."""
    lead = "The launches that were measured, as files to copy; with each, what it measured. Measured, not recommended."
    launches: Mapping[str, Any] = book.evidence["launches"]
    if not launches:
        return Page("settings.html", "Settings", lead, (NotCovered("No arm has been launched yet."),), covered=False)
    blocks, extra = [*_follow_ups(book)], {}
    for arm, spec in launches.items():
        text = json.dumps(spec, indent=1, sort_keys=True, ensure_ascii=True)
        name = f"settings/{file_name(arm)}.json"
        extra[name] = f"{text}\n".encode()
        blocks += [
            Heading(Name(arm), f"arm-{file_name(arm)}"),
            _measured_table(book, arm),
            *(
                Copy(one["title"], one["text"], f"settings/{file_name(arm)}/{one['name']}")
                for one in book.evidence.get("launch_files", {}).get(arm, ())
            ),
            Copy("What the engine was asked for", text, name),
        ]
    for arm, files in book.evidence.get("launch_files", {}).items():
        extra |= {f"settings/{file_name(arm)}/{one['name']}": one["text"].encode() for one in files}
    return Page("settings.html", "Settings", lead, blocks, extra=extra)


def _measured_table(book: Book, key: str) -> Block:
    """The key numbers of one arm."""
    arm = next((one for one in book.arms if one["arm"] == key), None)
    if arm is None:
        return NotCovered("The arm was launched and has no figures yet.")
    rows: list[Row] = []
    for panel in panels_of(book):
        for name in measures_on(book, panel)[:1]:
            rows.append(
                Row(
                    (book.quote_title(name), ", ", book.panel_label(panel)),
                    (book.fig(whole(arm["figures"], name, panel)), Name(book.unit(name))),
                )
            )
    for cell in (arm.get("speed") or ())[:1]:
        for name in ("ttft_median_ms", "decode_tok_s"):
            rows.append(
                Row(
                    (book.quote_title(name), ", ", Name(cell["cell_id"])),
                    (book.fig(figure_of(arm, cell["cell_id"], name)), Name(book.unit(name))),
                )
            )
    if arm.get("startup"):
        rows.append(Row("Ready, caches kept", (book.fig(startup_figure(arm, "warm", "ready_s")), Name("s"))))
    return Table("What it measured", ("Figure", "Value and interval", "Unit"), rows)


def _follow_ups(book: Book) -> Iterator[Block]:
    """Pairs that differ in a setting alone: what it changes of the distance, and what it costs until the first token."""
    pairs = of_parts(book, "setting")
    yield Heading("What a setting changes and costs", "follow-ups")
    if not pairs:
        yield NotCovered(
            (
                "No pair of the study differs in a setting alone. Of rows that you have, ",
                Name("engcmp score --gap BASE,CANDIDATE,SETTING"),
                " says how much of a difference a setting closes.",
            )
        )
        return
    rows = []
    for pair in pairs:
        look = headline(pair["figures"])
        costs = [
            one
            for one in (pair.get("speed") or {}).get("figures", ())
            if one["measure"] == "ttft_median_ms" and number(one["value"]) is not None
        ]
        cost: Line = "not measured"
        if costs:
            cost = (
                Fig(tuple(one["figure_id"] for one in costs), range_of([float(one["value"]) for one in costs])),
                " times the baseline's",
            )
        first: Line = "not measured" if look is None else (look_piece(look), " ", verdict_piece(look))
        rows.append(
            Row(book.pair_label(pair), (Name(" beside ".join(side_names(pair))), first, _closed(book, pair), cost))
        )
    yield Table(
        "Settings: the distance with it less that without it, how much of a declared gap it closes, and its cost",
        ("Pair", "Setting", "Difference", "Share of the gap that it closes", "First token"),
        rows,
    )
    for pair in pairs:
        if figures := gap_figures_of(pair):
            yield _gap_table(book, pair, figures)


def _closed(book: Book, pair: Pair) -> Line:
    """The share on the first panel over all rows; why there is none."""
    own = pair.get("gap")
    if not own:
        return "no gap was declared for it"
    if "missing" in own:
        return book.quote("summary", "comparisons", book.pairs.index(pair), "gap", "missing")
    figure = next((one for one in own["figures"] if one["population"] == ALL), None)
    return "no panel has a distance from a reference" if figure is None else _share(book, figure)


def _share(book: Book, figure: Mapping[str, Any]) -> Line:
    known = number(figure["value"]) is not None
    return book.fig(figure) if known else Fig((figure["figure_id"],), reason(figure["value"]), is_value=False)


def _gap_table(book: Book, pair: Pair, figures: Sequence[Mapping[str, Any]]) -> Table:
    """The gap in every panel and kind of content: what it is, and the share that the setting closes, with both intervals."""
    place = ("summary", "comparisons", book.pairs.index(pair), "gap", "label")
    rows = []
    for one in figures:
        gap, wide = one["gap"], one["interval_bonferroni"]
        ids = (one["figure_id"],)
        known = gap["interval"] if "low" in gap["interval"] else None
        rows.append(
            Row(
                (book.panel_label(one["panel"]), ", ", Name(population_word(one))),
                (
                    (Fig(ids, format_measured(gap["difference"], known), is_value=False), " ", Badge(gap["verdict"])),
                    _share(book, one),
                    Fig(ids, format_interval(wide), is_value=False) if format_interval(wide) else "none",
                ),
            )
        )
    return Table(
        (book.pair_label(pair), ": the share that it closes of the gap: ", book.quote(*place)),
        ("Rows", "The gap, as KL or NLL", "Share closed", "Interval that allows for all rows of this table"),
        rows,
    )


def method(book: Book) -> Page:
    """What is measured and how it is judged: measures, intervals, floors, verdicts, panels, captures."""
    own = book.evidence["protocol"]
    blocks: list[Block] = [Heading("Measures", "measures")]
    rows = [
        Row(
            book.quote_title(name),
            (
                Name(name),
                book.given("summary", "terms", at, "version"),
                Name(term["unit"]),
                Name(str(term["better"])),
                book.quote("summary", "terms", at, "definition"),
            ),
            anchor=name,
        )
        for at, (name, term) in enumerate(book.terms.items())
    ]
    blocks.append(
        Table("Each measure, defined once", ("Measure", "Id", "Version", "Unit", "Better", "Definition"), rows)
    )
    blocks.append(Heading("How it is judged", "judged"))
    place = ("evidence", "protocol", "statistics")
    blocks.append(
        Para(
            (
                "Intervals resample whole ",
                book.quote(*place, "cluster"),
                "s: ",
                book.given(*place, "replicates"),
                " replicates, seed ",
                book.given(*place, "seed", text=str(own["statistics"]["seed"])),
                ", level ",
                book.given(*place, "level", text=f"{own['statistics']['level']:.0%}"),
                ".",
            )
        )
    )
    blocks.append(Items([note_of(book, at) for at in range(len(book.documents["notes"]))]))
    blocks += [Heading("Panels and captures", "panels"), _panel_table(book), _capture_table(book)]
    blocks += [
        Heading("Declared differences from what was published", "deviations"),
        _quotes(book, "deviations", ("what", "published", "here", "why"), "deviation from what was published"),
    ]
    return Page("method.html", "Method", "What each number is, how it was measured, and how it is judged.", blocks)


def _quotes(book: Book, name: str, keys: Sequence[str], none: str) -> Block:
    """A list of the protocol as a table of its words."""
    rows = book.evidence["protocol"].get(name, ())
    if not rows:
        return NotCovered(f"The protocol declares no {none}.")
    lines = [
        Row(
            book.quote("evidence", "protocol", name, at, keys[0]),
            [book.quote("evidence", "protocol", name, at, key) for key in keys[1:]],
        )
        for at in range(len(rows))
    ]
    return Table("As the protocol declares them", tuple(key.capitalize() for key in keys), lines)


def _panel_table(book: Book) -> Table:
    rows = []
    for at, panel in enumerate(book.summary["panels"]):
        own = ("evidence", "protocol", "panels", panel["panel"])
        rows.append(
            Row(
                Name(panel["panel"]),
                (
                    book.quote("summary", "panels", at, "label"),
                    Name(panel["reference"]),
                    Name(panel["score_path"] or "none"),
                    book.given(*own, "windows"),
                    book.given(*own, "rows"),
                ),
            )
        )
    return Table("Panels", ("Panel", "Label", "Of the reference", "Score path", "Texts", "Rows"), rows)


def _capture_table(book: Book) -> Table:
    rows = []
    for path, plan in book.evidence["protocol"]["capture"].items():
        if plan:
            own = ("evidence", "protocol", "capture", path)
            rows.append(
                Row(
                    Name(path),
                    (Name(", ".join(plan["panels"])), book.given(*own, "launches"), book.given(*own, "repeats")),
                )
            )
    return Table("Captures of each arm", ("Score path", "Panels", "Launches", "Repeats in each"), rows)


def audit(book: Book) -> Page:
    """How to check all of it: the chain of every figure, the labels, and the commands."""
    study = str(book.summary["study"])
    blocks: list[Block] = [
        Heading("From a number to the frozen hash", "chain"),
        Para(
            "A number on this site is a link to its trace: value, estimator, rows, and the receipts down to the frozen protocol."
        ),
        Table(
            "Traces by arm and pair",
            ("Arm or pair", "Figures on the page"),
            [
                Row(
                    Link(Name(one.key) if one.is_pair else Name(one.label), one.page),
                    (Given(f"{len(one.figures):,}", f"counts|{one.key}"),),
                )
                for one in book.owners
            ],
        ),
        Heading("One label, one build", "labels"),
        *_labels(book),
        Heading("Check it yourself", "check"),
        Copy("Every hash, every chain, every figure again from its rows; offline", f"engcmp verify {study}"),
        Copy("The way of one figure", f"engcmp trace --list {study}\nengcmp trace FIGURE"),
        Copy(
            "An independent look, in a process that can reach no engine; made after these pages",
            f"engcmp audit {study} > FINDINGS.md",
        ),
        Copy(
            "A folder that Python alone verifies",
            f"engcmp export {study} --out bundle/\npython verify.py --head THE_HEAD_THAT_IT_PRINTED",
        ),
    ]
    return Page("audit.html", "Audit", "How every number can be checked, and what was checked of the labels.", blocks)


def _labels(book: Book) -> Iterator[Block]:
    found = labels_of(book.evidence["launches"])
    if not found:
        yield NotCovered("No arm has been launched yet.")
        return
    rows = []
    for one in found:
        words: Line = (
            "one build"
            if one.holds
            else "no build is stated"
            if not one.builds
            else "several builds"
            if len(one.builds) > 1
            else "shared"
        )
        also: Line = joined([Name(label) for label in one.also]) if one.also else "none"
        rows.append(
            Row(Name(one.label), (words, joined([Name(build) for build in one.builds]) if one.builds else "none", also))
        )
    yield Table("Labels and what their launches ran", ("Label", "Stands for", "Build", "Other labels of it"), rows)


def research(book: Book) -> Page:
    """What the study rests on and asks: sources with their licences, reading rules, and what is not known."""
    own = book.evidence["protocol"]
    rows = []
    for name, source in own["sources"].items():
        told = {key: value for key, value in source.items() if isinstance(value, str)}
        what = (
            told.get("package")
            or told.get("image")
            or told.get("repository")
            or told.get("listed")
            or told.get("url")
            or told.get("path")
            or "as declared"
        )
        pin = told.get("version") or told.get("digest") or told.get("commit") or told.get("revision") or "by hash"
        rows.append(Row(Name(name), (Name(what), Name(pin), Name(told.get("license") or "not stated"))))
    blocks: list[Block] = [
        Heading("Sources", "sources"),
        Table("What the study takes from elsewhere, by pin", ("Source", "What", "Pin", "Licence"), rows),
        Heading("Questions with a rule that was written before", "rules"),
    ]
    rules = own.get("reading_rules", ())
    blocks.append(
        Items(
            [
                (Name(one["id"]), ": ", book.quote("evidence", "protocol", "reading_rules", at, "question"))
                for at, one in enumerate(rules)
            ]
        )
        if rules
        else NotCovered("The protocol declares no reading rule.")
    )
    blocks += [
        Heading("What is not known", "gaps"),
        _quotes(book, "gaps", ("what", "why", "here"), "gap in what is known"),
    ]
    return Page("research.html", "Research", "What the study rests on, what it asks, and what stays open.", blocks)


def reproduce(book: Book) -> Page:
    """From a fresh clone to these pages, step by step."""
    study = str(book.summary["study"])
    arms = "\n".join(f"engcmp run {study} --arm {arm['arm']}" for arm in book.summary["arms"])
    blocks: list[Block] = [
        Para(
            (
                "The protocol is frozen as ",
                Name(str(book.summary["frozen_sha256"])),
                ". After any change of it every step refuses to run.",
            )
        ),
        Copy("Set up", "make setup\n. .venv/bin/activate"),
        Copy("What it asks for: launches, requests, disk", f"engcmp plan {study}"),
        Copy("What would be fetched, by pin", f"engcmp fetch {study} --dry-run"),
        Copy("Measure everything; what was done before is answered from the store", f"engcmp run {study}"),
        Copy("Or one arm", arms),
        Copy("Compare: every hash and every figure again from its rows", f"engcmp verify {study}"),
        Para(
            (
                "The launches, exactly: ",
                see("settings", "settings"),
                ". What was fetched: ",
                see("research", "sources"),
                ".",
            )
        ),
    ]
    names = [one["name"] for one in book.evidence["protocol"]["iterations"]]
    if names:
        blocks += [
            Heading("Iterations", "iterations"),
            Items(
                [
                    (Name(one["name"]), ": ", Name(one["frozen_sha256"]))
                    for one in book.evidence["protocol"]["iterations"]
                ]
            ),
        ]
    return Page("reproduce.html", "Reproduce", "From a fresh clone to these pages.", blocks)
