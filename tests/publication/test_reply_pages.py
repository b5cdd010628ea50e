"""Long replies on the pages and in the terminal: every outcome with its bar, what was not graded and why, and nothing of a text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from planted_replies import graded, verdict, with_ids
from summary_sample import ARMS, STUDY, sample

from engcmp_assets.comparisons.replies import ArmSide, Judging, replies_document
from engcmp_assets.kernel.measures import MEASURES
from engcmp_assets.kernel.protocol import ComparisonPlan
from engcmp_assets.kernel.records import ArmKey, Missing
from engcmp_assets.kernel.reply_measures import REPLY_MEASURES
from engcmp_assets.kernel.reply_verdicts import ENDINGS, Verdict
from engcmp_assets.kernel.uncertainty import Preset
from engcmp_assets.long_output_checks.figures import Judged, checks_document, reply_figures, scenario_runs
from engcmp_assets.publication.pages import render_html, render_markdown, render_table
from engcmp_assets.publication.replies import identity_lines, outcome_rows, passed_rows, replies_view, reply_figures_of
from engcmp_assets.summaries.replies import reply_groups

CANDIDATE, BASELINE = ARMS
PRESET = Preset(100, 1)
NO_SANDBOX = {"code": Missing("no sandbox")}


def replies(*endings: str) -> list[Verdict]:
    long = [with_ids(verdict(f"p{number}", ending), [number]) for number, ending in enumerate(endings)]
    tasks: list[Verdict] = [
        graded(verdict("t1", block="code", stage="code", kind="code"), "code", None),
        graded(verdict("t2", block="math", stage="math", kind="reasoning"), "math", True),
        graded(verdict("t3", "capped", block="math", stage="math", kind="reasoning"), "math", None),
        graded(verdict("s1", block="tools", stage="tools-c1"), "tools", True, 2.0),
    ]
    return long + tasks


def own(arm: str, verdicts: list[Verdict]) -> dict[str, Any]:
    figures = reply_figures(STUDY, ArmKey.parse(arm), verdicts, NO_SANDBOX, Judged(PRESET, 0.95))
    return reply_groups(checks_document(verdicts, figures, NO_SANDBOX, {"self_tests": {"math": "passed"}}))


def summary(candidate: list[Verdict], baseline: list[Verdict]) -> dict[str, Any]:
    """The sample with replies of its two arms."""
    made = sample()
    arms = {arm["arm"]: arm for arm in made["arms"]}
    arms[CANDIDATE]["replies"], arms[BASELINE]["replies"] = own(CANDIDATE, candidate), own(BASELINE, baseline)
    plan = ComparisonPlan(pair_id="pair", label="Q8_0 beside Q4_0", candidate=CANDIDATE, baseline=BASELINE)
    sides = [
        ArmSide(ArmKey.parse(arm), verdicts, {"tools-c1": scenario_runs(verdicts)})
        for arm, verdicts in ((CANDIDATE, candidate), (BASELINE, baseline))
    ]
    judging = Judging(PRESET, 0.95)
    made["comparisons"][0]["replies"] = replies_document(STUDY, plan, (sides[0], sides[1]), judging)
    words = ("unit", "title", "definition", "better", "version")
    made["terms"] += [{"measure": one.id} | {name: getattr(one, name) for name in words} for one in REPLY_MEASURES]
    return made


@pytest.fixture
def shown() -> dict[str, Any]:
    return summary(
        replies("finished", "capped", "looped", "recovered"), replies("finished", "finished", "error", "empty")
    )


def test_every_outcome_is_a_part_of_the_bar_and_a_count_beside_it(shown: dict[str, Any]) -> None:
    view = replies_view(shown, {})
    assert view is not None
    stages, tasks = view["groups"]
    assert (stages["title"], tasks["title"]) == ("Stages of long replies", "Tasks")
    rows = {row["arm"]: row for row in stages["rows"]}
    assert rows[CANDIDATE]["counts"] == [1, 1, 1, 1, 0, 0, 0] and rows[BASELINE]["counts"] == [2, 0, 0, 0, 0, 1, 1]
    for row in (*stages["rows"], *tasks["rows"]):
        assert sum(row["counts"]) == row["replies"] == sum(part["count"] for part in row["parts"])
        assert sum(float(part["width"]) for part in row["parts"]) == pytest.approx(100, abs=0.05)
    html = render_html(shown)
    assert html.count('class="outcome"') == len(stages["rows"]) + len(tasks["rows"])
    assert all(f".o-{name} " in html for name in ENDINGS)


def test_the_pages_hold_every_figure_with_its_id_and_every_reason(shown: dict[str, Any]) -> None:
    html, markdown = render_html(shown), render_markdown(shown)
    figures = [one for owner in (*shown["arms"], *shown["comparisons"]) for one in reply_figures_of(owner)]
    assert len(figures) > 20
    for figure in figures:
        assert figure["figure_id"] in html and figure["measure"] in MEASURES
    for text in ("code was not graded: no sandbox", "finds 267 of 270 loops", "replies to a task were not graded"):
        assert text in html and text in markdown
    assert "same seed" in markdown.lower() and "descriptive" in markdown
    assert re.search(r"`tools-c1`: points 2 of 2", markdown)


def test_the_terminal_counts_outcomes_tasks_and_identical_replies(shown: dict[str, Any]) -> None:
    rows = outcome_rows(shown)
    assert rows[0][:2] == ["Long replies", "stage (cap)"] and rows[0][-2] == "failed"
    assert [row[1:] for row in rows[1:]] == [
        ["L1 (256)", "1", "1", "1", "1", "0", "0", "0"] if row[0] == CANDIDATE else ["L1 (256)", "2", "0", "0", "0", "0", "1", "1"]
        for row in rows[1:]
    ]  # fmt: skip
    passed = {row[0]: row for row in passed_rows(shown)}
    assert passed[CANDIDATE] == [CANDIDATE, "no sandbox", "1 of 1", "2 of 2"]
    text = render_table(shown)
    assert "Long replies" in text and "Tasks of long replies" in text
    assert max(map(len, text.splitlines())) <= 100


def test_identity_between_versions_is_told_in_the_terminal() -> None:
    made = summary(replies("finished"), replies("finished"))
    assert identity_lines(made) == []  # two checkpoints
    found = made["comparisons"][0]["replies"]["stages"][0]
    found["identity"] = {
        "identical": 75,
        "compared": 75,
        "sentence": "75 of 75 identical",
        "divergences": [],
        "by_digest": 0,
    }
    (line,) = identity_lines(made)
    assert "75 of 75 replies of the same prompt and seed are identical" in line and line in " ".join(
        render_table(made).split("\n")
    )
    assert "same seed: 75 of 75 identical" in render_markdown(made)


def test_a_study_without_replies_says_nothing_of_them() -> None:
    made = sample()
    assert replies_view(made, {}) is None and outcome_rows(made) == [] and passed_rows(made) == []
    for page in (render_html(made), render_markdown(made), render_table(made)):
        assert "Long replies" not in page


def test_a_length_says_beside_it_how_many_replies_were_capped_and_which_were_left_out(shown: dict[str, Any]) -> None:
    wanted = "1 of 3 capped; left out: 1 looped"
    assert wanted in render_html(shown) and wanted in render_markdown(shown)
    for one in reply_figures_of(shown["arms"][0]):
        if one["measure"] == "reply_tokens" and one["population"] == "long-L1-prose":
            one["value"] = {"missing": "half or more were capped"}
    assert f"half or more were capped ({wanted})" in render_markdown(shown)  # also where there is no median


def test_a_ratio_that_is_withheld_is_no_figure_in_brackets() -> None:
    both = ("capped", "capped", "finished")
    made = summary(replies(*both), replies(*both))
    under = made["comparisons"][0]["replies"]["stages"][0]["lengths"]["main"]["under_cap"]
    assert under["ratio"] > 0  # it is known, and kept in SUMMARY.json
    for page in (render_markdown(made), render_html(made)):
        assert "length ratio withheld: bounded below" in page and under["label"] not in page


def test_a_page_leads_with_replies_where_rows_are_too_few_for_any_interval(shown: dict[str, Any]) -> None:
    def replies_first() -> list[bool]:
        pages = (
            (render_html(shown), '<section id="replies"', '<div class="answers'),
            (render_markdown(shown), "## Long replies", "## Each arm beside the reference"),
            (render_table(shown), "Long replies ", "arm, panel"),
        )
        return [page.index(own) < page.index(rows) for page, own, rows in pages]

    assert replies_first() == [False, False, False]
    for figure in (figure for arm in shown["arms"] for figure in arm["figures"]):
        figure |= {"clusters": 2, "interval": {"missing": "2 clusters: an interval needs at least 3"}}
    assert replies_first() == [True, True, True]
    line = "Of 4 long replies, baseline 4: 1 finished, baseline 2; 1 recovered, baseline 0; 1 capped, baseline 0; 1 looped, baseline 0"
    assert line in render_markdown(shown) and "No test of replies was declared" in render_html(shown)


def test_what_was_captured_before_its_freeze_stands_above_all(shown: dict[str, Any]) -> None:
    shown["before_freeze"] = {CANDIDATE: "it began at noon, before its freeze at one"}
    words = f"{CANDIDATE} was captured before its freeze, so nothing of it is a primary result: it began at noon"
    markdown, html = render_markdown(shown), render_html(shown)
    assert words in html and markdown.index(words) < markdown.index("\n## ")
    assert words in " ".join(line.strip() for line in render_table(shown).splitlines())
