"""The pages say what SUMMARY.json says, and nothing else."""

from __future__ import annotations

import copy
import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.kernel.records import Figure, Interval, Missing
from engcmp_assets.publication.pages import (
    TERMINAL_COLUMNS,
    format_measured,
    render_html,
    render_markdown,
    render_plot,
    render_table,
)
from engcmp_resources.errors import EngcmpError

STUDY = "smollm2-cpu"
ARMS = ("q8_0/llamacpp@b11549", "q4_0/llamacpp@b11549")
UNITS = {"kl_full": "nats", "nll": "nats", "top1": "share", "entropy": "nats"}
VALUES = {
    ARMS[0]: {"kl_full": 0.00132187, "nll": 2.71398, "top1": 0.981771, "entropy": 2.48831},
    ARMS[1]: {"kl_full": 0.0580312, "nll": 2.76104, "top1": 0.890625, "entropy": 2.51772},
}
POPULATIONS = {"all": (1.0, 12), "block:prose": (0.83, 3), "block:code": (1.21, 3), "block:json": (1.34, 3)}
HOSTILE = "<script>alert(1)</script> | [x](javascript:alert(2)) \"'`*"


def interval(value: float, level: float = 0.95) -> dict[str, Any]:
    return {
        "low": value - 0.07 * abs(value),
        "high": value + 0.08 * abs(value),
        "level": level,
        "method": "cluster bootstrap of windows",
    }


def figure(arm: str, measure: str, population: str) -> dict[str, Any]:
    factor, clusters = POPULATIONS[population]
    value = VALUES[arm][measure] * (factor if measure != "top1" else 1.0)
    ends = interval(value)
    floor = {"within_launch": {"value": 0.0, "interval": {"missing": "all repeats are equal"}},
             "across_launches": {"missing": "only one launch was made"}}  # fmt: skip
    return Figure(
        figure_id=f"{STUDY}/{arm}/pa/{population}/{measure}",
        label=f"{measure} of {arm}",
        measure=measure,
        measure_version=1,
        unit=UNITS[measure],
        population=population,
        value=value,
        interval=Interval(ends["low"], ends["high"], 0.95, ends["method"])
        if clusters > 8
        else Missing("3 clusters, fewer than 8"),
        rows=32 * clusters,
        clusters=clusters,
        details={"floor": floor} if population == "all" else {},
    ).as_json()


def arm(key: str) -> dict[str, Any]:
    checkpoint, engine = key.split("/")
    return {
        "arm": key, "checkpoint": checkpoint, "engine": engine.split("@")[0], "version": "b11549", "state": "measured",
        "reason": None, "runs": 4, "launches": 2, "repeats": 2, "rows": 384, "windows": 12, "score_path": "prefill",
        "file_bytes": 91_726_208 if checkpoint == "q4_0" else 144_811_072,
        "figures": [figure(key, measure, population) for population in POPULATIONS for measure in UNITS],
    }  # fmt: skip


def difference(measure: str, verdict: str) -> dict[str, Any]:
    value = VALUES[ARMS[1]][measure] - VALUES[ARMS[0]][measure]
    return {
        "figure_id": f"{STUDY}/q4_0-to-q8_0/pa/all/{measure}", "label": f"{measure}, difference", "measure": measure,
        "unit": UNITS[measure], "population": "all", "value": value, "interval": interval(value),
        "interval_bonferroni": interval(value, 0.9875),
        "floor": {"within_launch": {"value": 0.0, "interval": {"low": -1.5e-7, "high": 2.25e-7, "level": 0.95,
                                                               "method": "cluster bootstrap of windows"}},
                  "across_launches": {"missing": "the second launch failed"}},
        "verdict": verdict, "sentence": f"q4_0 differs from q8_0 in {measure} by {format_number(value)}.",
        "bound": None if verdict == "resolved" else 0.0713, "leave_one_out": [value * 0.97, value * 1.03],
        "sign_clusters": 11, "largest_cluster": "code-2", "rows": 384, "clusters": 12,
    }  # fmt: skip


def sample() -> dict[str, Any]:
    dead = {**arm(ARMS[0]), "arm": "q2_k/llamacpp@b11549", "checkpoint": "q2_k", "state": "not measured",
            "reason": "the engine died while loading (signal 9)", "runs": 0, "rows": 0, "figures": []}  # fmt: skip
    pair = {
        "pair_id": "q4_0-to-q8_0", "candidate": ARMS[1], "baseline": ARMS[0],
        "label": "q4_0 beside q8_0 on llamacpp b11549",
        "state": "measured", "reason": None, "confounds": ["Both run on the same two CPU cores, one after the other."],
        "figures": [difference("kl_full", "resolved"), difference("nll", "not resolved"),
                    difference("top1", "resolved")],
    }  # fmt: skip
    rows = [{"label": key, "value": VALUES[key]["kl_full"], "low": interval(VALUES[key]["kl_full"])["low"],
             "high": interval(VALUES[key]["kl_full"])["high"], "group": "llamacpp"} for key in ARMS]  # fmt: skip
    summary = {
        "schema": "engcmp.summary/1", "study": STUDY, "title": "SmolLM2-135M on llama.cpp, two checkpoints",
        "question": "How close do the 8-bit and the 4-bit checkpoint stay to the same weights in float32?",
        "frozen_sha256": "3f" * 32,
        "reference": {"label": "SmolLM2-135M-Instruct, dequantized", "precision": "float32",
                      "path": "float32 numpy forward pass"},
        "terms": [{"measure": name, "version": 1, "unit": unit, "title": f"Title of {name}",
                   "definition": "Sum over the whole vocabulary of p (log p - log q).",
                   "better": {"kl_full": "lower", "top1": "higher"}.get(name, "neither is better by itself")}
                  for name, unit in UNITS.items()],
        "arms": [arm(ARMS[0]), arm(ARMS[1]), dead], "comparisons": [pair],
        "limits": ["Twelve short windows in four kinds of content.", "One machine."],
        "plot": {"title": "Distance from the reference", "unit": "kl_full (nats)",
                 "rows": [*rows, {"label": dead["arm"], "value": {"missing": dead["reason"]}, "low": None, "high": None,
                                  "group": "llamacpp"}]},
    }  # fmt: skip
    loaded: dict[str, Any] = json.loads(json.dumps(summary, sort_keys=True))
    return loaded


def all_figures(summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in [*summary["arms"], *summary["comparisons"]]:
        yield from part["figures"]


class Page(HTMLParser):
    """The page as a browser would read it: its text, its tags, what it refers to, and tags left open."""

    VOID = frozenset({"meta", "link", "img", "br", "hr"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def summary() -> dict[str, Any]:
    return sample()


def both_pages(summary: dict[str, Any]) -> tuple[str, str]:
    return render_markdown(summary), Page(render_html(summary, b"png")).text


def test_the_same_summary_gives_the_same_bytes(summary: dict[str, Any]) -> None:
    again = copy.deepcopy(summary)
    assert render_plot(summary) == render_plot(again)
    assert render_html(summary, render_plot(summary)) == render_html(again, render_plot(again))
    assert render_markdown(summary, plot_href="plot.png") == render_markdown(again, plot_href="plot.png")
    assert render_table(summary) == render_table(again)
    assert summary == again


def test_every_figure_id_is_on_both_pages(summary: dict[str, Any]) -> None:
    for page in both_pages(summary):
        for item in all_figures(summary):
            assert item["figure_id"] in page


def test_the_numbers_of_the_pages_are_those_of_the_summary(summary: dict[str, Any]) -> None:
    for page in both_pages(summary):
        for item in all_figures(summary):
            assert format_measured(item["value"], item["interval"]) in page
        for item in summary["comparisons"][0]["figures"]:
            floor = item["floor"]["within_launch"]
            assert format_measured(floor["value"], floor["interval"]) in page
            assert f"[{format_number(item['leave_one_out'][0])}, {format_number(item['leave_one_out'][1])}]" in page
            assert item["verdict"] in page
        for words in ("3f" * 32, "144.8 MB", "91.73 MB", "95 % cluster bootstrap", "(98.75 %)", "0.07130"):
            assert words in page


def test_the_headline_row_of_an_arm_shows_its_own_values(summary: dict[str, Any]) -> None:
    row = next(line for line in render_markdown(summary).splitlines() if line.startswith(f"| `{ARMS[1]}` |"))
    expected = [
        format_measured(item["value"], item["interval"])
        for measure in UNITS
        for item in summary["arms"][1]["figures"]
        if (item["measure"], item["population"]) == (measure, "all")
    ]
    assert row == f"| `{ARMS[1]}` | {' | '.join(expected)} |"


def test_every_markdown_table_has_rows_of_one_width(summary: dict[str, Any]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", render_markdown(summary), re.MULTILINE)
    assert len(tables) == 9
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.parametrize("render", [render_markdown, lambda s: Page(render_html(s, b"png")).text, render_table])
def test_a_missing_value_is_its_reason_and_never_zero(summary: dict[str, Any], render: Any) -> None:
    for item in summary["arms"][0]["figures"]:
        item["value"] = {"missing": "NaN in window code-2"}
        item["interval"] = {"missing": "no value"}
        item["details"] = {}
    page = " ".join(render(summary).split())
    assert "NaN in window code-2" in page
    assert "not measured: the engine died while loading (signal 9)" in page
    assert "the second launch failed" in page
    assert not re.search(r"\b(nan|None|null)\b", page)
    if render is not render_table:
        assert page.count("not measured: NaN in window code-2") >= len(summary["arms"][0]["figures"])


def test_an_arm_that_was_not_measured_shows_no_counts(summary: dict[str, Any]) -> None:
    rows = [line for line in render_markdown(summary).splitlines() if line.startswith("| `q2_k/llamacpp@b11549`")]
    assert len(rows) == 2
    for row in rows:
        assert re.sub(r"[| ]", "", row) == "`q2_k/llamacpp@b11549`notmeasured:theenginediedwhileloading(signal9)"


def test_no_interval_is_said_with_its_reason(summary: dict[str, Any]) -> None:
    for page in both_pages(summary):
        assert "(no interval: 3 clusters, fewer than 8)" in page


def test_a_pair_without_figures_is_not_comparable_with_its_reason(summary: dict[str, Any]) -> None:
    summary["comparisons"][0] |= {"state": "not comparable", "reason": "the baseline was not captured", "figures": []}
    for page in (*both_pages(summary), render_table(summary)):
        assert "not comparable: the baseline was not captured" in page


def test_hostile_words_stay_words(summary: dict[str, Any]) -> None:
    for part in (summary, summary["reference"], summary["terms"][0], summary["comparisons"][0]):
        for key in {"title", "question", "label", "definition"} & part.keys():
            part[key] = HOSTILE
    summary["arms"][0]["figures"][0]["label"] = HOSTILE
    summary["arms"][2]["reason"] = HOSTILE
    summary["plot"]["title"] = HOSTILE
    summary["limits"] = [HOSTILE]
    source = render_html(summary, b"png")
    page = Page(source)
    assert "<script" not in source.lower()
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert page.text.count(" ".join(HOSTILE.split())) >= 8
    markdown = render_markdown(summary, plot_href="plot.png")
    assert "<script" not in markdown
    assert "](javascript" not in markdown
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_html_page_is_whole_and_asks_nobody(summary: dict[str, Any]) -> None:
    source = render_html(summary, render_plot(summary))
    page = Page(source)
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for target in (attributes.get("src"), attributes.get("href")):
            assert target is None or target.startswith("data:") or target.removeprefix("#") in ids
    assert "@import" not in source
    assert "url(" not in source
    assert sum(tag == "caption" for tag, _ in page.tags) == sum(tag == "table" for tag, _ in page.tags)


def test_the_plot_has_its_numbers_as_alternative_text(summary: dict[str, Any]) -> None:
    tags = Page(render_html(summary, b"png")).tags
    alt = next(attributes["alt"] for tag, attributes in tags if tag == "img")
    assert alt is not None
    for row in summary["plot"]["rows"][:2]:
        assert f"{row['label']}: {format_measured(row['value'], row)}" in html.unescape(alt)
    assert "q2_k/llamacpp@b11549: not measured: the engine died while loading (signal 9)" in alt


def test_the_terminal_table_fits_and_is_aligned(summary: dict[str, Any]) -> None:
    table = render_table(summary)
    lines = table.splitlines()
    assert max(map(len, lines)) <= TERMINAL_COLUMNS
    header = next(line for line in lines if line.startswith("arm "))
    row = next(line for line in lines if line.startswith(ARMS[1]))
    assert row[header.index("value") :].startswith(format_number(VALUES[ARMS[1]]["kl_full"]))
    assert row[header.index("measure") :].startswith("kl_full")
    assert "only one launch was made" in table


def test_a_summary_of_another_schema_is_refused(summary: dict[str, Any]) -> None:
    summary["schema"] = "engcmp.summary/9"
    for render in (render_markdown, render_table, render_plot, lambda item: render_html(item, b"png")):
        with pytest.raises(EngcmpError, match=r"reads 'engcmp\.summary/1'"):
            render(summary)


def test_a_value_that_is_neither_number_nor_reason_is_refused(summary: dict[str, Any]) -> None:
    summary["arms"][0]["figures"][0]["value"] = "0.3"
    with pytest.raises(EngcmpError, match="neither a number nor a reason"):
        render_markdown(summary)
