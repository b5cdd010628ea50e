"""Pages on precision: how close every arm stays to the reference, checkpoint beside checkpoint, version beside version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.names import ALL
from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.claims import (
    APART,
    compares_paths,
    identical_rows,
    is_distance,
    rows_said,
)
from engcmp_assets.publication.formats import number
from engcmp_assets.publication.replies import identity_text
from engcmp_assets.publication.site.book import Book, whole
from engcmp_assets.publication.site.charts import curves
from engcmp_assets.publication.site.parts import by_content, by_length, tails_of_parts
from engcmp_assets.publication.site.pieces import (
    Badge,
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
    Quote,
    Row,
    Table,
)
from engcmp_assets.publication.site.shown import (
    arm_chart,
    claim_piece,
    difference_chart,
    floor_piece,
    groups_of,
    look_table,
    measures_on,
    of_parts,
    pair_state,
    panels_of,
    see,
    state_piece,
)

_KLS = ("kl_full", "kl_coarse", "kl_pb20", "kl_top20")
_TAILS = (
    ("median_nats", "Median", 0.5),
    ("p90_nats", "Ninetieth percentile", 0.1),
    ("p95_nats", "Ninety-fifth", 0.05),
    ("p99_nats", "Ninety-ninth", 0.01),
    ("p99_9_nats", "One row in a thousand is above", 0.001),
    ("max_nats", "Largest", None),
    ("worst_1_percent_mean_nats", "Mean of the worst hundredth", None),
)
_MB = 1_000_000


def precision(book: Book) -> Page:
    """Every panel: distances with intervals, all measures, by kind of content, tails; then every difference against its floor."""
    lead = "How far each arm's next-token distribution is from the reference's, on the same rows of the same texts."
    if not book.arms:
        return Page(
            "precision.html",
            "Precision",
            lead,
            (NotCovered("No arm of the study has been measured yet."),),
            covered=False,
        )
    blocks: list[Block] = [
        Para(
            (
                "The reference: ",
                book.quote("summary", "reference", "label"),
                "; its rows are ",
                book.quote("summary", "reference", "precision"),
                ".",
            )
        )
    ]
    for panel in panels_of(book):
        blocks += _panel(book, panel)
    blocks += _apart(book)
    return Page("precision.html", "Precision", lead, blocks)


def _panel(book: Book, panel: str) -> Iterator[Block]:
    yield Heading(book.panel_label(panel), f"panel-{panel}")
    place = ("evidence", "protocol", "panels", panel)
    yield Para((book.given(*place, "windows"), " texts and ", book.given(*place, "rows"), " rows of each arm."))
    names = measures_on(book, panel)
    distances = [name for name in names if name in _KLS] or names[:1]
    for name in distances:
        yield arm_chart(book, (book.quote_title(name), " over all rows, in ", Name(book.unit(name))), panel, name)
    if others := [name for name in names if name not in distances]:
        yield _every_measure(book, panel, others)
    yield from by_content(book, panel, distances)
    yield from by_length(book, panel, names, distances)
    yield from _tails(book, panel)
    yield from tails_of_parts(book, panel, _TAILS)
    for name in distances:
        chart = difference_chart(
            book,
            [pair for pair in book.pairs if not compares_paths(pair)],
            panel,
            name,
            ("Differences of ", book.quote_title(name), ", candidate minus baseline, against the floor"),
        )
        if chart is not None:
            yield chart
    for name in others:
        if pairs := [pair for pair in book.pairs if whole(pair["figures"], name, panel)]:
            title = ("Differences of ", book.quote_title(name), ", candidate minus baseline")
            yield look_table(book, pairs, panel, name, title)


def _every_measure(book: Book, panel: str, names: Sequence[str]) -> Table:
    rows = []
    for arm in book.summary["arms"]:
        cells: list[Line] = [book.fig(whole(arm["figures"], name, panel)) for name in names]
        rows.append(
            Row(Name(arm["arm"]), cells if arm["figures"] else [state_piece(book, arm), *[""] * (len(names) - 1)])
        )
    return Table("The other measures over all rows", ("Arm", *(book.measure(name) for name in names)), rows)


def _tails(book: Book, panel: str) -> Iterator[Block]:
    own = {arm: one[panel] for arm, one in book.evidence["tails"].items() if panel in one}
    if not own:
        return
    colours = groups_of(list(own))
    series, rows = [], []
    for arm, found in own.items():
        numbers = found["populations"][ALL]
        known = [(number(numbers.get(key)), share) for key, _, share in _TAILS if share is not None]
        points = [(value, share) for value, share in known if value is not None and share is not None and value > 0]
        series.append((colours[arm], points))
        place = ("evidence", "tails", arm, panel, "populations", ALL)
        rows.append(Row(Name(arm), [book.given(*place, key, href=book.page_of(arm)) for key, _, _ in _TAILS]))
    if any(points for _, points in series):
        title = ("Tails of ", Name(next(iter(own.values()))["measure"]), ", in nats: the share of rows above")
        yield Chart(
            title,
            curves(series, x_log=True, y_log=True),
            "For each arm the share of rows whose distance is above a value, both on log axes; the table below has the same numbers.",
            Table(title, ("Arm", *(words for _, words, _ in _TAILS)), rows),
            tuple((f"g{colour}", Name(arm)) for arm, colour in colours.items()),
        )


def _apart(book: Book) -> Iterator[Block]:
    """How far apart the two sides of each pair are, beside the floor."""
    found = [
        (pair, one)
        for pair in book.pairs
        for one in pair["figures"]
        if one["population"] == ALL and one["measure"] in APART
    ]
    if not found:
        return
    yield Heading("How far apart the two of a pair are", "apart")
    yield Para(
        "Read between two captures of the same rows: it says nothing of which is better, and is described, not tested."
    )
    for measure in dict.fromkeys(one["measure"] for _, one in found):
        rows = []
        for pair, one in found:
            if one["measure"] == measure:
                same = identical_rows(pair, one["panel"])
                equal: Line = "not recorded" if same is None else Fig((same["figure_id"],), rows_said(same))
                rows.append(Row(book.pair_label(pair), (Name(one["panel"]), book.fig(one), floor_piece(one), equal)))
        yield Table(
            (book.quote_title(measure), " of every pair, over all rows"),
            ("Pair", "Panel", "Apart by", "Floor: within a launch / across launches", "Rows equal bit for bit"),
            rows,
        )


def checkpoints(book: Book) -> Page:
    """The checkpoints of the study: what they are, how large, and each pair of them on the same engine and version."""
    lead = "The files that the engines serve: what each is made of, how large it is, and how much nearer one stays to the reference."
    declared = book.evidence["protocol"]["checkpoints"]
    rows = []
    for name, one in declared.items():
        place = ("evidence", "protocol", "checkpoints", name)
        label: Line = book.quote(*place, "label") if one.get("label") else Name(name)
        sizes = [
            book.given("summary", "arms", at, "file_bytes", text=f"{format_number(arm['file_bytes'] / _MB)} MB")
            for at, arm in enumerate(book.summary["arms"])
            if arm["checkpoint"] == name and arm.get("file_bytes")
        ][:1]
        rows.append(
            Row(
                Name(name),
                (
                    label,
                    sizes[0] if sizes else "not measured",
                    Name(str(one.get("sha256") or "as its source is pinned")),
                ),
            )
        )
    blocks: list[Block] = [Table("The checkpoints", ("Name", "Label", "Size of the file", "Hash of the file"), rows)]
    pairs = of_parts(book, "checkpoint")
    if pairs:
        blocks += _looks(book, pairs)
    else:
        blocks.append(NotCovered("The protocol declares no pair of two checkpoints on one version of an engine."))
    return Page("checkpoints.html", "Checkpoints", lead, blocks)


def version(book: Book) -> Page:
    """Version beside version of one engine: bit-identical, within, or different and why."""
    lead = "One engine, two versions: do they give the same rows, and where they do not, what else differs between the two launches?"
    pairs = of_parts(book, "version")
    if not pairs:
        why = NotCovered("The protocol declares no pair of two versions of one engine on one checkpoint.")
        return Page("version.html", "Version against version", lead, (why,), covered=False)
    rows = []
    for pair in pairs:
        same = identical_rows(pair)
        equal: Line = pair_state(book, pair) if same is None else Fig((same["figure_id"],), rows_said(same))
        rows.append(
            Row(book.pair_label(pair), (equal, Badge(_word(pair)), claim_piece(book, pair), _replies(book, pair)))
        )
    blocks: list[Block] = [
        Heading("Pair by pair", "pairs"),
        Table(
            "Each pair of versions",
            ("Pair", "Rows equal bit for bit", "In a word", "What its headline look says", "Replies of one seed"),
            rows,
        ),
    ]
    for pair in pairs:
        index = book.pairs.index(pair)
        confounds: list[Line] = [
            book.quote("summary", "comparisons", index, "confounds", at) for at in range(len(pair.get("confounds", ())))
        ]
        if confounds:
            blocks += [Heading(("What else differs: ", book.pair_label(pair)), f"why-{index + 1}", 3), Items(confounds)]
    blocks += _looks(book, pairs)
    return Page("version.html", "Version against version", lead, blocks)


def _word(pair: Mapping[str, Any]) -> str:
    """`bit-identical`, `within` (no declared difference is resolved), `differs`; or the pair's state."""
    figures: Sequence[Mapping[str, Any]] = pair["figures"]
    verdicts = {str(one.get("verdict") or "").split(",", maxsplit=1)[0] for one in figures if not is_distance(one)}
    if not verdicts:
        return str(pair["state"])
    if verdicts == {"bit-identical"}:
        return "bit-identical"
    return "differs" if verdicts & {"resolved", "baseline-dependent"} else "no difference resolved"


def _replies(book: Book, pair: Mapping[str, Any]) -> Line:
    """How many replies of one seed are the same, stage by stage."""
    own = pair.get("replies")
    if not isinstance(own, Mapping):
        return "not covered: no long replies"
    index, found = book.pairs.index(pair), []
    for at, stage in enumerate(own["stages"]):
        told = stage.get("identity")
        if told and "missing" not in told:
            found.append(Quote(identity_text(told), f"summary|comparisons|{index}|replies|stages|{at}|identity"))
    return tuple(found) or "not held seed against seed"


def _looks(book: Book, pairs: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """The differences of these pairs, measure by measure: the distances as drawings."""
    for panel in panels_of(book):
        own = [pair for pair in pairs if any(one["panel"] == panel for one in pair["figures"])]
        if not own:
            continue
        yield Heading(book.panel_label(panel), f"panel-{panel}")
        for name in measures_on(book, panel):
            title = ("Differences of ", book.quote_title(name), ", candidate minus baseline")
            chart = difference_chart(book, own, panel, name, title) if name in _KLS else None
            yield chart or look_table(book, own, panel, name, title)
    yield Para(("All measures of all arms: ", see("precision", "precision"), "."))
