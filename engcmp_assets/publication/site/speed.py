"""Pages on speed and on running an engine: cells, ratios with their noise band, overlap, telemetry, start-up and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.throughput.ratios import SCHEDULED
from engcmp_assets.publication.formats import format_any, format_interval, format_measured, number, reason
from engcmp_assets.publication.site.book import Book, Figure
from engcmp_assets.publication.site.charts import COLOURS, Dot, curves, ratio_dots, strip
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
    Piece,
    Quote,
    Row,
    Table,
    joined,
    pieces_of,
)
from engcmp_assets.publication.site.shown import groups_of
from engcmp_assets.publication.speed import HEADLINES, again_text, spread_text
from engcmp_assets.publication.startup import startup_figures_of

NO_SPEED = "The study measures no speed: its protocol has no block for it."
NO_STARTUP = "The study does not time starts: its protocol has no block for it."
_ALSO = ("decode_first1_tok_s",)
_VERDICTS = {"faster": 2, "slower": 1, "level": 0, "no floor": 4, "descriptive": 3}
_BRACKETS = ". The outer deciles of the requests in square brackets, later repeats in round ones"
_MB = 1_000_000
_START = (
    ("cold", "ready_s", "Ready, cold", 1, " s"),
    ("warm", "ready_s", "Ready, warm", 1, " s"),
    ("stated", "kv_pool_tokens", "KV pool", 1, " tokens"),
    ("after its requests", "resident_bytes", "Resident memory", _MB, " MB"),
    ("after its requests", "gpu_memory_bytes", "GPU memory", _MB, " MB"),
)
_SERIES = {
    "host_cpu_percent": "Processor, busy share",
    "host_cpu_mhz": "Processor, clock",
    "power_w": "GPU, power drawn",
    "temperature_c": "GPU, temperature",
    "sm_clock_mhz": "GPU, clock",
    "memory_used_bytes": "GPU, memory in use",
}


def speed(book: Book) -> Page:
    """Every cell of every arm, each pair's ratios beside the noise band, decode against overlap, and what the machine did meanwhile."""
    lead = "How soon the first token comes and how fast the others follow. A cell is a kind of content, a length and a number at a time."
    measured = [arm for arm in book.arms if arm.get("speed")]
    if not measured:
        why = NO_SPEED if not book.evidence["protocol"].get("throughput") else "No arm has been measured yet."
        return Page("speed.html", "Speed", lead, (NotCovered(why), *telemetry(book)), covered=False)
    cells = list(dict.fromkeys(cell["cell_id"] for arm in measured for cell in arm["speed"]))
    blocks: list[Block] = []
    for name in (*HEADLINES, *(_ALSO if not _has_value(measured, "decode_tok_s") else ()), *SCHEDULED):
        rows = [Row(Name(arm["arm"]), [_cell(book, arm, cell, name) for cell in cells]) for arm in measured]
        if any(isinstance(cell, (Fig, tuple)) for row in rows for cell in row.cells):
            columns: Sequence[Line] = ("Arm", *(Name(cell) for cell in cells))
            blocks.append(
                Table(
                    (
                        book.quote_title(name),
                        ", in ",
                        Name(book.unit(name)),
                        _BRACKETS,
                    ),
                    columns,
                    rows,
                )
            )
    blocks += [Heading("What must be known of the cells", "remarks"), *_remarks(book, measured)]
    for pair in book.pairs:
        if pair.get("speed"):
            blocks += _pair(book, pair)
    blocks += [*_overlap(book), *telemetry(book)]
    return Page("speed.html", "Speed", lead, blocks)


def _has_value(measured: Sequence[Mapping[str, Any]], measure: str) -> bool:
    """Whether some cell has a value of the measure."""
    figures = (one for arm in measured for cell in arm["speed"] for one in cell["figures"])
    return any(one["measure"] == measure and number(one["value"]) is not None for one in figures)


def figure_of(arm: Mapping[str, Any], cell_id: str, measure: str) -> Figure | None:
    """A cell's figure of one measure."""
    found = (one for cell in arm["speed"] if cell["cell_id"] == cell_id for one in cell["figures"])
    return next((one for one in found if one["measure"] == measure), None)


def _cell(book: Book, arm: Mapping[str, Any], cell_id: str, measure: str) -> Line:
    figure = figure_of(arm, cell_id, measure)
    if figure is None:
        return "not measured"
    if number(figure["value"]) is None:
        return reason_piece(figure)
    later = [one["value"] for one in figure["details"].get("repeats", {}).values() if "value" in one]
    text = " ".join(one for one in (format_number(figure["value"]), spread_text(figure)) if one)
    return book.fig(figure, text=f"{text} ({', '.join(map(format_number, later))})" if later else text)


def reason_piece(figure: Figure) -> Piece:
    """Why a figure has no value, linked to its trace."""
    return Fig((figure["figure_id"],), reason(figure["value"]), is_value=False)


def _remarks(book: Book, measured: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Each flag and label once, with the arms that it is of, and of each the cells."""
    found: dict[str, tuple[Quote, dict[str, list[str]]]] = {}
    for at, arm in enumerate(book.summary["arms"]):
        for index, cell in enumerate(arm.get("speed") or ()):
            for kind in ("flags", "labels"):
                for place, text in enumerate(cell[kind]):
                    quote = Quote(text, f"summary|arms|{at}|speed|{index}|{kind}|{place}")
                    _, arms = found.setdefault(text, (quote, {}))
                    arms.setdefault(arm["arm"], []).append(cell["cell_id"])
    every = {arm["arm"]: [cell["cell_id"] for cell in arm["speed"]] for arm in measured}
    lines = [(quote, *_where(arms, every)) for quote, arms in found.values()]
    yield Items(lines) if lines else Para("Nothing was flagged.")


def _where(arms: Mapping[str, Sequence[str]], every: Mapping[str, Sequence[str]]) -> Iterator[Piece]:
    """As `: q8_0/vllm@1 in every cell; q4_0/vllm@1 in code-64-c1, prose-64-c1`."""
    before = ": "
    for arm, found in arms.items():
        cells = list(dict.fromkeys(found))
        yield from (before, Name(arm))
        if cells == list(every[arm]):
            yield " in every cell"
        else:
            yield from (piece for cell in cells for piece in (" in " if cell == cells[0] else ", ", Name(cell)))
        before = "; "


def _pair(book: Book, pair: Mapping[str, Any]) -> Iterator[Block]:
    index, own = book.pairs.index(pair), pair["speed"]
    yield Heading(("Speed: ", book.pair_label(pair)), f"speed-{index + 1}")
    yield Para(("Ratios are candidate ", Name(pair["candidate"]), " over baseline ", Name(pair["baseline"]), "."))
    for at, one in enumerate(own["measures"]):
        figures = [figure for figure in own["figures"] if figure["measure"] == one["measure"]]
        if one["measure"] not in (*HEADLINES, *_ALSO, *SCHEDULED) or all(
            number(figure["value"]) is None for figure in figures
        ):
            continue
        place = ("summary", "comparisons", index, "speed", "measures", at)
        title = (book.quote_title(one["measure"]), ": ", book.quote(*place, "sentence"))
        yield Chart(
            title,
            ratio_dots([_dot(figure) for figure in figures], _band(figures)),
            "A dot for the ratio of each cell on a log axis, rings for later repeats, the noise band shaded.",
            Table(
                (*title, ". ", *_band_words(book, place, one["band"])),
                ("Cell", "Candidate", "Baseline", "Ratio", "Later repeats", "Verdict"),
                [_ratio_row(figure) for figure in figures],
            ),
            (
                ("band", "noise band"),
                ("ring", "a later repeat"),
                *(
                    (f"g{colour}", word)
                    for word, colour in _VERDICTS.items()
                    if any(_word(figure) == word for figure in figures)
                ),
            ),
        )


def _word(figure: Figure) -> str:
    return str(figure["verdict"]).split(",", maxsplit=1)[0]


def _dot(figure: Figure) -> Dot:
    value, interval = number(figure["value"]), figure["interval"]
    ends = interval if format_interval(interval) else {}
    rings = [float(one) for one in figure["floor"]["of_repeats"] if isinstance(one, (int, float)) and one > 0]
    text = format_measured(value, ends or None) if value is not None else ""
    return Dot(
        str(figure["population"]),
        figure["figure_id"],
        text,
        value,
        ends.get("low"),
        ends.get("high"),
        _VERDICTS.get(_word(figure), 3),
        reason(figure["value"]) if value is None else "",
        None,
        tuple(rings),
    )


def _ratio_row(figure: Figure) -> Row:
    ids = (figure["figure_id"],)
    if number(figure["value"]) is None:
        return Row(Name(figure["population"]), ("", "", reason_piece(figure), "", Badge(str(figure["verdict"]))))
    ends = figure["interval"] if format_interval(figure["interval"]) else None
    return Row(
        Name(figure["population"]),
        (
            Fig(ids, f"{format_any(figure['candidate_value'])}"),
            Fig(ids, f"{format_any(figure['baseline_value'])}"),
            Fig(ids, format_measured(figure["value"], ends)),
            Fig(ids, again_text(figure) or "not repeated"),
            Badge(str(figure["verdict"])),
        ),
    )


def _band(figures: Sequence[Figure]) -> tuple[float, float] | None:
    """The noise band that the figures of one measure were judged by."""
    found = next((one["floor"]["band"] for one in figures if not isinstance(one["floor"]["band"], Mapping)), None)
    return None if found is None else (float(found[0]), float(found[1]))


def _band_words(book: Book, place: tuple[str | int, ...], band: Mapping[str, Any]) -> tuple[Piece, ...]:
    if "missing" in band:
        return ("No band: ", book.quote(*place, "band", "missing"))
    share = book.given(*place, "band", "share", text=f"{band['share']:.1%}")
    drift = book.given(*place, "band", "widest_drift", text=f"{band['widest_drift']:.1%}")
    return ("Band: ", share, "; repeats differ by up to ", drift)


def _overlap(book: Book) -> Iterator[Block]:
    own = {arm: one for arm, one in book.evidence["streams"].items() if "points" in one}
    if not own:
        return
    colours = groups_of(list(own))
    title = "Decode of each stream against the share of its decode beside other streams' prefill"
    rows = []
    for arm in own:
        place, href = ("evidence", "streams", arm), book.page_of(arm)
        keys = ("streams", "clean", "clean_median_tok_s", "beside_median_tok_s")
        rows.append(Row(Name(arm), [book.given(*place, key, href=href) for key in keys]))
    series = [(colours[arm], [(float(x), float(y)) for x, y in one["points"]]) for arm, one in own.items()]
    yield Heading("Why streams slow down: overlap with prefill", "overlap")
    yield Chart(
        title,
        curves(series, x_log=False, y_log=False, dots_only=True),
        "A dot for each stream: across, the share of its decode beside prefill; up, its tokens each second.",
        Table(
            (title, ": clean streams have next to no prefill beside them"),
            ("Arm", "Streams", "Of them clean", "Median of the clean, tokens/s", "Median of the others, tokens/s"),
            rows,
        ),
        tuple((f"g{colour}", Name(arm)) for arm, colour in colours.items()),
    )


def telemetry(book: Book) -> Iterator[Block]:
    """A strip for each series that was read while an arm was measured, launch by launch; what was not read is said with its reason."""
    launches: Mapping[str, Any] = book.evidence["telemetry"]
    found = {name: one for name, one in launches.items() if "series" in one}
    yield Heading("What the machine did meanwhile", "telemetry")
    if not launches:
        yield NotCovered("No launch of the study has been measured yet, so no sample was taken.")
        return
    if found:
        yield Para(
            "Sampled while an arm's rows (scoring) and speeds (serving) were measured. The time between two starts is left out."
        )
    yield from _unread({name: f"evidence|telemetry|{name}|missing" for name in launches if name not in found}, book)
    for series, words in _SERIES.items():
        places = {
            name: f"evidence|telemetry|{name}|series|{series}" for name, one in found.items() if series in one["series"]
        }
        read = [name for name in places if "points" in found[name]["series"][series]]
        yield from (_strip(book, name, found[name], series, place % COLOURS) for place, name in enumerate(read))
        lacking = {name: f"{place}|missing" for name, place in places.items() if name not in read}
        yield from _unread(lacking, book, words if len(lacking) == len(places) else f"{words}, of some launches")


def _unread(places: Mapping[str, str], book: Book, words: str = "") -> Iterator[NotCovered]:
    """Why nothing was read: each reason once, with the launches that it is of where there are several reasons."""
    reasons: dict[str, list[str]] = {}
    for name, place in places.items():
        reasons.setdefault(str(book.at(place)), []).append(name)
    for text, names in reasons.items():
        whose: tuple[Piece, ...] = ()
        if not words or len(reasons) > 1 or words.endswith("launches"):
            whose = (*pieces_of(joined([Name(name) for name in names])), ": ")
        yield NotCovered((*((f"{words}: ",) if words else ()), *whose, Quote(text, places[names[0]]), "."))


def _strip(book: Book, name: str, launch: Mapping[str, Any], series: str, colour: int) -> Chart:
    one, words = launch["series"][series], _SERIES[series]
    at = ("evidence", "telemetry", name, "series", series)
    scale, unit = (_MB, "MB") if one["unit"] == "B" else (1, one["unit"])
    cells = [book.given(*at, key, text=format_number(one[key] / scale)) for key in ("least", "median", "most")]
    title = (f"{words}, in {unit}: ", Name(name))
    over = [book.given("evidence", "telemetry", name, key) for key in ("seconds", "samples")]
    return Chart(
        title,
        strip(one["points"], launch["seconds"], colour),
        "The series over the time of the launches, from its least to its most; the table below has both and the median.",
        Table(
            (*title, ", over ", over[0], " s in ", over[1], " samples"),
            ("Series", "Least", "Median", "Most"),
            (Row(words, cells),),
        ),
    )


def running(book: Book) -> Page:
    """What it takes to run each arm: ready times, memory, a repeated prompt, the thinking switch."""
    lead = "Until an engine is ready, what memory it holds, what a repeated prompt costs, and whether thinking can be turned off."
    at = {arm["arm"]: place for place, arm in enumerate(book.summary["arms"])}
    measured = [arm for arm in book.arms if arm.get("startup")]
    if not measured:
        why = NO_STARTUP if not book.evidence["protocol"].get("startup") else "No arm has been measured yet."
        return Page("running.html", "Running it", lead, (NotCovered(why),), covered=False)
    rows = [
        Row(
            Name(arm["arm"]),
            [_start(arm, population, measure, scale, unit) for population, measure, _, scale, unit in _START],
        )
        for arm in measured
    ]
    blocks: list[Block] = [Table("Start and memory", ("Arm", *(title for _, _, title, _, _ in _START)), rows)]
    sendings = list(
        dict.fromkeys(
            one["population"]
            for arm in measured
            for one in startup_figures_of(arm)
            if one["measure"] == "prefix_ttft_ms"
        )
    )
    if sendings:
        blocks.append(
            Table(
                "First token of a repeated prompt, in ms; prompt tokens that came from a cache in brackets",
                ("Arm", *(Name(one) for one in sendings)),
                [Row(Name(arm["arm"]), [_again(arm, one) for one in sendings]) for arm in measured],
            )
        )
    else:
        blocks.append(NotCovered("No prompt is repeated: the protocol declares none."))
    blocks += _thinking_switch(book, measured, at)
    return Page("running.html", "Running it", lead, blocks)


def startup_figure(arm: Mapping[str, Any], population: str, measure: str) -> Figure | None:
    """A figure of an arm's start-up."""
    own = (one for one in startup_figures_of(arm) if (one["population"], one["measure"]) == (population, measure))
    return next(own, None)


def _start(arm: Mapping[str, Any], population: str, measure: str, scale: int, unit: str) -> Piece:
    figure = startup_figure(arm, population, measure)
    if figure is None:
        return "not measured"
    value = number(figure["value"])
    return (
        reason_piece(figure) if value is None else Fig((figure["figure_id"],), f"{format_number(value / scale)}{unit}")
    )


def _again(arm: Mapping[str, Any], population: str) -> Line:
    first, cached = (startup_figure(arm, population, measure) for measure in ("prefix_ttft_ms", "prefix_cached_tokens"))
    if first is None:
        return "not measured"
    value = number(first["value"])
    if value is None:
        return reason_piece(first)
    found = (Fig((first["figure_id"],), format_number(value)),)
    if cached is None or number(cached["value"]) is None:
        return (*found, " (not stated)")
    return (*found, " (", Fig((cached["figure_id"],), f"{cached['value']:.0f}"), ")")


def _thinking_switch(book: Book, measured: Sequence[Mapping[str, Any]], at: Mapping[str, int]) -> Iterator[Block]:
    rows = []
    for arm in measured:
        place = ("summary", "arms", at[arm["arm"]], "startup", "thinking")
        own = arm["startup"]["thinking"]
        if "missing" in own:
            rows.append(Row(Name(arm["arm"]), (book.quote(*place, "missing"), "", "")))
            continue
        switch: Line = (
            book.quote(*place, "switch", "missing")
            if isinstance(own["switch"], Mapping)
            else book.quote(*place, "switch")
        )
        tokens: list[Line] = []
        for state in ("on", "off"):
            known = "prompt_tokens" in own.get(state, {})
            tokens.append(_token_counts(book, (*place, state, "prompt_tokens")) if known else "not measured")
        rows.append(Row(Name(arm["arm"]), (switch, *tokens)))
    yield Table(
        "The thinking switch", ("Arm", "The template's switch", "Prompt tokens, on", "Prompt tokens, off"), rows
    )


def _token_counts(book: Book, place: tuple[str | int, ...]) -> Line:
    value = book.at("|".join(map(str, place)))
    if isinstance(value, list):
        return tuple(
            piece for index in range(len(value)) for piece in ((", ",) if index else ()) + (book.given(*place, index),)
        )
    return book.given(*place)
