"""Speeds on the pages: two arms with planted streams, their comparison, and what a reader must see of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from summary_sample import ARMS, STUDY, sample

from engcmp_assets.comparisons.speed import runs_of, speed_document
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.throughput.ratios import COMPARED, SCHEDULED
from engcmp_assets.kernel.throughput_tables import Band
from engcmp_assets.kernel.uncertainty import PANEL
from engcmp_assets.publication.formats import format_any
from engcmp_assets.publication.pages import render_html, render_markdown, render_table
from engcmp_assets.publication.speed import speed_figures, speed_view, spread_text
from engcmp_assets.summaries.speed import speed_cells
from engcmp_assets.throughput_cells.documents import arm_speeds, cells_document

sys.path.append(str(Path(__file__).parent.parent / "kernel" / "throughput"))
from speed_cells import Stream, even, tables

CANDIDATE, BASELINE = ARMS
PLAN = ComparisonPlan(pair_id="pair", label="Q8_0 beside Q4_0", candidate=CANDIDATE, baseline=BASELINE)
BAND = Band(share=0.1, least_hours=1)


def document(
    gaps: dict[str, int], *, slower: float = 1.0, broken: str = "", opened: Sequence[str] = (), thinking: str = ""
) -> tuple[Any, pl.DataFrame, pl.DataFrame]:
    """cells.json and tables of an arm: a cell for each of `gaps` (ms between tokens), in two repeats, the second `slower` by a factor.

    Requests of the cells `opened` go out 100 gaps after they were due; replies of the cell `thinking` never leave their reasoning.
    """
    streams: list[tuple[str, Stream]] = []
    for repeat, factor in ((1, 1.0), (2, slower)):
        for cell, gap in gaps.items():
            for number in range(2):
                one = even(f"{cell}-{repeat}-{number}", 0, 200, round(gap * factor), [1] * 20, repeat=repeat)
                more = {"status": "failed", "cause": "cut short"} if cell == broken else {}
                more |= {"scheduled_at_ns": one.t0 - 100 * gap * 10**6} if cell in opened else {}
                if cell == thinking:
                    kept = tuple((t, "reasoning" if kind == "answer" else kind, n) for t, kind, n in one.events)
                    one, more = replace(one, events=kept), more | {"ttfa_ns": None}
                streams.append((cell, replace(one, extra=more)))
    events, requests = tables([one for _, one in streams])
    requests = requests.with_columns(cell_id=pl.Series([cell for cell, _ in streams]))
    known = [
        {
            "cell_id": cell,
            "kind": "prose",
            "concurrency": 2,
            "loop": "open" if cell in opened else "closed",
            "client": {},
            "engine": {},
            "warmup": [],
            "session": 0,
        }
        for cell in gaps
    ]
    sessions = [
        {"repeat": repeat, "began_at_s": 60.0 * repeat, "cells": known, "sessions": [{"start": repeat}]} for repeat in (1, 2)
    ]  # fmt: skip
    return cells_document(events, requests, {"repeats": sessions}), events, requests


def summary(
    *, slower: float = 1.0, band: Band | None = BAND, opened: Sequence[str] = (), thinking: str = ""
) -> dict[str, Any]:
    """The sample study with speeds: in `quick` the candidate decodes twice as fast, in `alike` as fast, `broken` has a failed request."""
    sides = {
        CANDIDATE: document(
            {"quick": 10, "alike": 20, "broken": 20}, slower=slower, broken="broken", opened=opened, thinking=thinking
        ),
        BASELINE: document({"quick": 20, "alike": 20, "broken": 20}, opened=opened),
    }
    made = sample()
    for arm in made["arms"]:
        if arm["arm"] in sides:
            own = sides[arm["arm"]][0]
            arm["speed"] = speed_cells(own, arm_speeds(STUDY, ArmKey.parse(arm["arm"]), own))
    pair = made["comparisons"][0]
    runs = tuple(runs_of(arm, *sides[arm]) for arm in (CANDIDATE, BASELINE))
    pair["speed"] = speed_document(STUDY, PLAN, (runs[0], runs[1]), band=band, preset=PANEL, level=0.95)
    made["terms"] += [
        {"measure": name, "version": 1, "unit": MEASURES[name].unit, "title": MEASURES[name].title,
         "definition": MEASURES[name].definition, "better": MEASURES[name].better}
        for name in (*COMPARED, "decode_first1_tok_s", *SCHEDULED)
    ]  # fmt: skip
    return json.loads(json.dumps(made, allow_nan=False))


def test_the_page_of_a_pair_compares_latency_from_the_schedule_of_open_loops_alone() -> None:
    made = summary(opened=["quick"])
    due = [one for one in made["comparisons"][0]["speed"]["figures"] if one["measure"] in SCHEDULED]
    assert [(one["population"], one["value"], one["verdict"]) for one in due] == [("quick", 1200 / 2200, "faster")] * 2
    view = speed_view(made, {})
    assert view is not None
    (shown,) = view["pairs"]
    assert {one["measure"] for one in shown["sentences"]} >= set(SCHEDULED)
    assert [row["cell"] for row in shown["rows"] if row["measure"] in SCHEDULED] == ["quick"] * 2
    assert all(one["figure_id"] in render_html(made) for one in due)
    closed = summary()["comparisons"][0]["speed"]["measures"]
    assert not {one["measure"] for one in closed} & set(SCHEDULED)


def test_each_cell_has_its_verdict_and_a_broken_one_its_reason() -> None:
    speed = summary()["comparisons"][0]["speed"]
    decode = {one["population"]: one for one in speed["figures"] if one["measure"] == "decode_tok_s"}
    assert decode["quick"]["value"] == 2 and decode["quick"]["verdict"] == "faster"
    assert decode["alike"]["value"] == 1 and decode["alike"]["verdict"] == "level"
    assert (
        decode["broken"]["verdict"] == "not comparable"
        and "2 of 2 requests failed (cut short)" in decode["broken"]["value"]["missing"]
    )
    assert decode["quick"]["figure_id"] == f"{STUDY}/pair/pair/throughput/quick/decode_tok_s"
    words = next(one for one in speed["measures"] if one["measure"] == "decode_tok_s")
    assert words["sentence"] == "1 faster, 1 level, 0 slower of 2; 1 not comparable"
    assert any("band from one session" in label for label in words["labels"])


def test_repeats_that_leave_the_declared_band_make_it_wider_and_the_pages_say_so() -> None:
    pages = [render_markdown(summary(slower=2.0)), render_html(summary(slower=2.0)), render_table(summary(slower=2.0))]
    # Twice as slow in a repeat: a ratio of 2 is level now.
    for page in pages:
        assert "0 faster, 2 level, 0 slower of 2; 1 not comparable" in page
        words = " ".join(page.split())
        assert "±100.0%" in words or "to 100%, by figure and pair" in words


def test_a_repeat_that_does_not_bear_a_verdict_out_is_told_with_its_own_ratio() -> None:
    made = summary(slower=1.8)
    (quick,) = (
        one
        for one in made["comparisons"][0]["speed"]["figures"]
        if (one["population"], one["measure"]) == ("quick", "decode_tok_s")
    )
    assert (quick["verdict"], quick["floor"]["words_of_repeats"]) == ("faster", ["level"])
    again = quick["floor"]["of_repeats"][0]
    assert quick["sentence"] == (
        f"2 times the baseline, faster than the baseline; repeat 2 reads {again:.3g} (level): it does not agree"
    )
    for page in (render_markdown(made), render_html(made)):
        assert f"{format_any(again)} (level)" in page and "a later repeat of 1 does not agree" in page


def test_a_median_stands_with_the_spread_of_its_requests() -> None:
    made = summary()
    (figure,) = (
        one
        for cell in made["arms"][0]["speed"]
        for one in cell["figures"]
        if (one["population"], one["measure"]) == ("quick", "ttft_median_ms")
    )
    assert figure["details"]["of"]["n"] == 2 and spread_text(figure) == "[200.0, 200.0]"
    assert "[200.0, 200.0]" in render_markdown(made).replace("\\", "") and "[200.0, 200.0]" in render_html(made)
    figure["details"]["of"]["n"] = 1
    assert spread_text(figure) == ""


def test_without_a_declared_band_no_speed_is_level() -> None:
    made = summary(band=None)
    assert {one["verdict"] for one in made["comparisons"][0]["speed"]["figures"]} == {"descriptive", "not comparable"}
    assert "no noise band was declared" in render_markdown(made)


def test_the_pages_hold_every_speed_with_its_id() -> None:
    made = summary()
    page = render_html(made)
    for owner in (*made["arms"], *made["comparisons"]):
        for one in speed_figures(owner):
            assert one["figure_id"] in page
    assert "cut short" in page
    markdown = render_markdown(made)
    assert "| quick |" in markdown and "1,000 tokens of all streams take" in markdown


def test_a_remark_that_holds_of_several_cells_is_said_once() -> None:
    made = summary()
    for arm in made["arms"]:
        for cell in arm.get("speed", ()):
            cell["flags"] = ["the client was the limit"]
    page = render_markdown(made)
    assert page.count("the client was the limit") == 1 and "(in every cell)" in page


@pytest.mark.parametrize("render", [render_html, render_markdown, render_table])
def test_a_cell_whose_replies_never_left_their_reasoning_says_so_beside_its_speeds(render: Any) -> None:
    words = "0 of 2 replies left the reasoning span: the rest is reasoning about the prompt, not the answer"
    page = " ".join(render(summary(thinking="quick")).split())
    assert words in page
    assert words not in " ".join(render(summary()).split())
    view = speed_view(summary(thinking="quick"), {})
    assert view is not None
    told = [row["labels"] for row in view["pairs"][0]["rows"] if row["cell"] == "quick"]
    assert told and all(f"{CANDIDATE}: {words}" in one for one in told), "at each ratio of the pair"


@pytest.mark.parametrize("render", [render_html, render_markdown, render_table])
def test_a_study_without_speed_says_nothing_of_it(render: Any) -> None:
    assert "Speed" not in render(sample())
