"""The pages say what SUMMARY.json says, and nothing else."""

from __future__ import annotations

import copy
import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from summary_sample import ARMS, CONFOUND, UNITS, all_figures, sample, second_panel, six_arms, whole_study, zero_floor

from engcmp_assets.kernel.plots import format_number
from engcmp_assets.publication.pages import (
    format_any,
    format_measured,
    render_html,
    render_markdown,
    render_plot,
    render_table,
)
from engcmp_resources.errors import EngcmpError

HOSTILE = "<script>alert(1)</script> | [x](javascript:alert(2)) \"'`*"


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
    return render_markdown(summary), Page(render_html(summary)).text


def test_the_same_summary_gives_the_same_bytes(summary: dict[str, Any]) -> None:
    again = copy.deepcopy(summary)
    assert render_plot(summary) == render_plot(again)
    assert render_html(summary) == render_html(again)
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
            assert format_any(item["interval_bonferroni"]) in page
            assert f"[{format_number(item['leave_one_out'][0])}, {format_number(item['leave_one_out'][1])}]" in page
            assert f"code-2 ({format_number(item['largest_cluster']['without'])})" in page
            assert item["verdict"] in page
        for words in (
            "3f" * 32,
            "144.8 MB",
            "91.73 MB",
            "cluster bootstrap",
            "99.66 % interval",
            "0.1113",
            "0 of 2",
            "2 of 2",
        ):
            assert words in page


def test_sentences_are_of_all_rows_only_and_a_block_is_a_row(summary: dict[str, Any]) -> None:
    whole, block = summary["comparisons"][0]["figures"][:2]
    for page in both_pages(summary):
        assert whole["sentence"] in page
        assert block["sentence"] not in page
        assert "exact p 0.25" in page


def test_a_reader_sees_first_which_checkpoint_stays_closer(summary: dict[str, Any]) -> None:
    markdown, page = both_pages(summary)
    claim = "q8_0 stays closer to the reference than q4_0"
    assert markdown.index(claim) < markdown.index("## Each arm beside the reference")
    assert page.index(claim) < page.index("Each arm beside the reference")
    assert re.search(r"Documents that agree 11 of 12", page)


def test_the_notes_say_what_few_documents_and_many_looks_mean(summary: dict[str, Any]) -> None:
    for page in both_pages(summary):
        assert "15 looks share one error rate" in page
        assert "kl_full over all rows, judged at 95 %" in page
        assert "Under 8 documents" in page
        assert "That p cannot fall below 0.25 with 3 documents" in page
        assert "bit-identical make the floor exactly 0" not in page
        assert "only one launch was made (8 figures)" in page
    for item in all_figures(summary):
        item.get("details", item)["floor"] = zero_floor()
    for page in both_pages(summary):
        assert "bit-identical make the floor exactly 0" in page


def test_six_arms_and_two_panels_have_a_table_each(summary: dict[str, Any]) -> None:
    six = second_panel(six_arms())
    markdown, page = both_pages(six)
    for words in (
        "P-A: full vocabulary",
        "P-B: top 1,024",
        "P-A: full vocabulary (`pa`)",
        "bit for bit",
        "baseline-dependent",
    ):
        assert words in markdown
    for one in six["arms"]:
        assert page.count(one["arm"]) >= 4
    assert "not comparable: the baseline was not captured" in page
    for item in all_figures(six):
        assert item["figure_id"] in page
        assert format_measured(item["value"], item["interval"]) in page
    assert "P-A" not in both_pages(summary)[0]


def test_every_figure_of_a_whole_study_is_on_both_pages() -> None:
    study = whole_study()
    for page in both_pages(study):
        for item in all_figures(study):
            assert item["figure_id"] in page
            assert format_measured(item["value"], item["interval"]) in page


def test_all_pairs_stand_in_one_table_of_how_far_apart_beside_the_floor() -> None:
    markdown = render_markdown(whole_study())
    section = markdown[markdown.index("## How far apart") : markdown.index("## Each arm beside the reference")]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert "| Pair 0 | 0.4224 [0.3928, 0.4549] | 0 / 0 | 36 of 384 | pa, 12 documents |" in rows
    assert "| Pair 3 | 0 | 0 / 0 | 384 of 384 | pa, 12 documents |" in rows
    (path,) = [line for line in rows if line.startswith("| Decode beside prefill")]
    assert "0.002896 (value only) | within a launch: 0; across launches: not measured" in path


def test_a_truncated_divergence_never_shares_a_table_with_a_full_one() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", render_markdown(whole_study()), re.MULTILINE):
        if not table.startswith("| figure |"):  # the list of ids has one figure a row
            assert not ("kl_full" in table and "kl_coarse" in table)
            assert not ("kl_pair_full" in table and "kl_pair_coarse" in table)
    for table in re.findall(r"<table(?! class=\"ids).*?</table>", render_html(whole_study()), re.DOTALL):
        assert not (">Title of kl_full" in table and ">Title of kl_coarse" in table)
        assert not ("Title of kl_pair_full" in table and "Title of kl_pair_coarse" in table)


def test_panels_are_explained_before_their_numbers() -> None:
    for page in both_pages(whole_study()):
        assert "12 documents, 384 rows of each arm. The reference's whole distribution is kept" in page
        assert "another measure than kl_full" in page
        assert "the two paths meet in a comparison of their own" in page
        assert "Only values are given here, no intervals: 2 documents cannot show how documents differ" in page


def test_two_score_paths_are_worded_as_such_with_their_confound() -> None:
    for page in both_pages(whole_study()):
        assert "Decode beside prefill: values only, from 2 documents" in page
        assert "decode minus prefill: -7.840e-05 nats; a value only, from 2 documents" in page
        assert CONFOUND in page
        assert f"{ARMS[0]} minus {ARMS[0]}" not in page
    assert f"Candidate `{ARMS[0]} decode` minus baseline `{ARMS[0]} prefill`" in render_markdown(whole_study())


def test_a_pair_that_is_bit_identical_has_a_sentence_and_no_table_of_zeros() -> None:
    for page in both_pages(whole_study()):
        assert "Every row is equal bit for bit on panel pa (384 rows) and panel pb (1,488 rows)" in page
    markdown = render_markdown(whole_study())
    section = markdown[markdown.index("### Pair 3") :]
    assert "|" not in section[: section.index("### Pair 4")]


def test_each_panel_has_its_own_error_rate() -> None:
    study = whole_study()
    for item in all_figures(study):
        if item["panel"] == "pb" and "family" in item:
            item |= {"family": 9, "interval_bonferroni": {**item["interval_bonferroni"], "level": 0.9944}}
    for page in both_pages(study):
        assert (
            "on panel pa, 15 looks, each judged at its 99.66 % interval; on panel pb, 9 looks, each judged at its"
            in page
        )
        assert "A distance (how far apart two captures are) is described, not tested." in page


def test_the_headline_row_of_an_arm_shows_its_own_values(summary: dict[str, Any]) -> None:
    row = next(line for line in render_markdown(summary).splitlines() if line.startswith(f"| `{ARMS[1]}` |"))
    expected = [
        format_measured(item["value"], item["interval"])
        for measure in UNITS
        for item in summary["arms"][1]["figures"]
        if (item["measure"], item["population"]) == (measure, "all")
    ]
    assert row == f"| `{ARMS[1]}` | {' | '.join(expected)} |"


@pytest.mark.parametrize("make", [sample, six_arms, lambda: second_panel(six_arms()), whole_study])
def test_every_markdown_table_has_rows_of_one_width(make: Any) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", render_markdown(make()), re.MULTILINE)
    assert len(tables) >= 10
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.parametrize("render", [render_markdown, lambda s: Page(render_html(s)).text, render_table])
def test_a_missing_value_is_its_reason_and_never_zero(summary: dict[str, Any], render: Any) -> None:
    for item in summary["arms"][0]["figures"]:
        item["value"] = {"missing": "NaN in window code-2"}
        item["interval"] = {"missing": "no value"}
        item["details"] = {}
    page = " ".join(render(summary).split())
    assert "NaN in window code-2" in page
    assert "not measured: the engine died while loading (signal 9)" in page
    assert not re.search(r"\b(nan|None|null)\b", page)
    if render is not render_table:
        assert page.count("not measured: NaN in window code-2") >= len(summary["arms"][0]["figures"])


def test_an_arm_that_was_not_measured_shows_no_counts(summary: dict[str, Any]) -> None:
    row = next(line for line in render_markdown(summary).splitlines() if line.startswith("| `q2_k/llamacpp@b11549`"))
    assert re.sub(r"[| ]", "", row) == "`q2_k/llamacpp@b11549`notmeasured:theenginediedwhileloading(signal9)"


def test_a_study_without_any_figure_is_still_a_page(summary: dict[str, Any]) -> None:
    for one in summary["arms"]:
        one |= {"state": "not measured", "reason": "nothing was run yet", "figures": []}
    summary["comparisons"] = []
    summary["plot"]["rows"] = [{**row, "value": {"missing": "nothing was run yet"}, "low": None, "high": None}
                               for row in summary["plot"]["rows"]]  # fmt: skip
    for page in (*both_pages(summary), render_table(summary)):
        assert page.count("not measured: nothing was run yet") >= 3


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
    source = render_html(summary)
    page = Page(source)
    assert "<script" not in source.lower()
    assert not {"script", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert page.text.count(" ".join(HOSTILE.split())) >= 6
    markdown = render_markdown(summary, plot_href="plot.png")
    assert "<script" not in markdown
    assert "](javascript" not in markdown
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.parametrize("make", [sample, lambda: second_panel(six_arms()), whole_study])
def test_the_html_page_is_whole_and_asks_nobody(make: Any) -> None:
    source = render_html(make())
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


def test_the_plot_has_its_numbers_in_words(summary: dict[str, Any]) -> None:
    tags = Page(render_html(summary)).tags
    words = next(attributes["aria-label"] for _, attributes in tags if attributes.get("role") == "img")
    assert words is not None
    for row in summary["plot"]["rows"][:2]:
        assert f"{row['label']}: {format_measured(row['value'], row)}" in html.unescape(words)
    assert "q2_k/llamacpp@b11549: not measured: the engine died while loading (signal 9)" in words


def test_a_summary_of_another_schema_is_refused(summary: dict[str, Any]) -> None:
    summary["schema"] = "engcmp.summary/9"
    for render in (render_markdown, render_table, render_plot, render_html):
        with pytest.raises(EngcmpError, match=r"reads 'engcmp\.summary/1'"):
            render(summary)


def test_a_value_that_is_neither_number_nor_reason_is_refused(summary: dict[str, Any]) -> None:
    summary["arms"][0]["figures"][0]["value"] = "0.3"
    with pytest.raises(EngcmpError, match="neither a number nor a reason"):
        render_markdown(summary)


UNDECLARED = "Launch differences that the protocol does not declare: n_threads_batch, system_info."


@pytest.mark.parametrize(
    ("render", "first"),
    [(render_markdown, "resolved"), (render_html, "resolved"), (render_table, "Closer to the reference?")],
)
def test_what_no_protocol_declares_stands_before_a_pair_s_first_figure(
    render: Callable[[Any], str], first: str
) -> None:
    summary = sample()
    pair = summary["comparisons"][0]
    pair["undeclared"] = ["n_threads_batch", "system_info"]
    pair["confounds"] = [
        "Beside what the protocol declares, the two launches differ in n_threads_batch.",
        *pair["confounds"],
    ]
    page = " ".join(
        html.unescape(re.sub(r"(?s)<style.*?</style>|<[^>]*>", " ", render(summary))).replace("\\", "").split()
    )
    assert pair["figures"][0]["verdict"].startswith("resolved") and first in page
    assert 0 <= page.find(UNDECLARED) < page.find(first)
    assert UNDECLARED not in " ".join(render(sample()).split())


def test_all_that_is_not_declared_is_counted_where_it_is_much() -> None:
    summary = sample()
    summary["comparisons"][0]["undeclared"] = [f"setting-{number}" for number in range(9)]
    assert "setting-5 and 3 more." in " ".join(render_table(summary).split())
