"""What a new version is told about: each alert on the newest pair alone, in a paragraph; nothing where nothing happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engcmp_assets.kernel.differences import EQUAL_KEPT
from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.review.paired_bar import PairedBar, paired_bar
from engcmp_assets.kernel.version_alerts import (
    ALERTS,
    DECLARED,
    IN_BAR,
    NOT_SLOWER,
    SAME_ROWS,
    alert_checks,
    alerts_of,
    newest_pairs,
)

NONE = Missing("no generated rows")
LINK = "http://127.0.0.1:3000/assets/s/comparisons?view=events"


def figure(measure: str, value: float, verdict: str, **more: Any) -> dict[str, Any]:
    return {
        "measure": measure, "panel": "pa", "population": "all", "value": value, "verdict": verdict, "unit": "nats", "rows": 384,
        "interval": {"low": value - 0.1, "high": value + 0.1}, "primary": measure == "kl_full", **more,
    }  # fmt: skip


def identical() -> list[dict[str, Any]]:
    return [figure("kl_full", 0.0, "bit-identical"), figure("rows_bit_identical", 1.0, "bit-identical")]


def moved(value: float = 0.0, verdict: str = "not resolved") -> list[dict[str, Any]]:
    return [figure("kl_full", value, verdict), figure("rows_bit_identical", 0.25, "descriptive")]


def pair(candidate: str, baseline: str, figures: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    one, other = f"q8/{candidate}", f"q8/{baseline}"
    return {
        "pair_id": f"{candidate}-vs-{baseline}", "candidate": one, "baseline": other, "state": "compared", "figures": figures,
        "undeclared": [], **more,
    }  # fmt: skip


OLD = pair("e@v9", "e@v8", identical(), undeclared=["n_threads"])
SAME = [OLD, pair("e@v10", "e@v9", identical())]


def told(pairs: list[dict[str, Any]], bar: PairedBar | Missing = NONE) -> dict[str, str]:
    return {one.check: one.text for one in alerts_of(pairs, {one["pair_id"]: bar for one in pairs})}


def test_only_the_newest_version_is_looked_at_and_numbers_are_read_as_numbers() -> None:
    assert [one["pair_id"] for one in newest_pairs(SAME)] == ["e@v10-vs-e@v9"]
    assert told(SAME) == {}  # what v9 differed in from v8 is known


def test_a_pair_of_two_engines_or_one_that_was_not_compared_is_no_new_version() -> None:
    others = [
        pair("e@v10", "o@v9", moved()),
        pair("e@v11", "e@v10", [], state="not comparable"),
        pair("e@v8", "e@v9", moved()),
    ]
    assert newest_pairs(others) == []


def test_rows_that_changed_where_the_last_version_changed_none_are_told() -> None:
    text = told([OLD, pair("e@v10", "e@v9", moved())])[SAME_ROWS]
    assert "panel pa: 96 of 384 rows" in text and "q8/e@v9 gave every row of q8/e@v8" in text


def test_rows_of_which_an_api_returns_a_part_are_those_of_before_as_far_as_that_shows() -> None:
    word, sentence = EQUAL_KEPT
    same = [figure("nll", 0.0, word, sentence=sentence), figure("kl_pair20", 0.0, "descriptive")]
    last, other = pair("e@v9", "e@v8", same), [figure("nll", 0.0, "not resolved", sentence="0 nats")]
    assert told([last, pair("e@v10", "e@v9", same)]) == {}
    assert "gave every row of q8/e@v8, as far as its API" in told([last, pair("e@v10", "e@v9", other)])[SAME_ROWS]
    unlike = [*same, figure("nll", 0.1, "resolved", panel="pb")]
    assert told([pair("e@v9", "e@v8", unlike), pair("e@v10", "e@v9", moved())]) == {}, (
        "one panel alone is not every row"
    )


def test_rows_that_change_with_every_version_are_not() -> None:
    assert told([pair("e@v9", "e@v8", moved()), pair("e@v10", "e@v9", moved())]) == {}


@pytest.mark.parametrize(
    ("value", "verdict", "alert"),
    [
        (0.02, "resolved", True),
        (0.02, "baseline-dependent", True),
        (0.02, "resolved, no floor", True),
        (-0.02, "resolved", False),
        (0.02, "not resolved", False),
    ],
)
def test_without_a_bar_the_primary_look_says_whether_it_is_further_away(
    value: float, verdict: str, alert: bool
) -> None:
    found = told([pair("e@v10", "e@v9", moved(value, verdict))])
    assert (IN_BAR in found) == alert
    if alert:
        assert "no generated rows" in found[IN_BAR] and "0.02000 nats" in found[IN_BAR]


def bar_of(loss: float) -> PairedBar:
    rng = np.random.default_rng(1)
    rows, windows = 800, np.repeat([f"w{n}" for n in range(8)], 100).tolist()
    base = np.ones(rows)
    worse = (rng.random(rows) >= loss).astype(float)
    return paired_bar(
        candidate_top1=worse, baseline_top1=base, candidate_kl=np.zeros(rows), baseline_kl=np.zeros(rows), windows=windows,
        roles=["generated"] * rows, same_engine=True,
    )  # fmt: skip


@pytest.mark.parametrize(("loss", "alert"), [(0.0, False), (0.05, True)])
def test_a_paired_bar_decides_where_there_is_one(loss: float, alert: bool) -> None:
    bar = bar_of(loss)
    found = told([pair("e@v10", "e@v9", moved(0.02, "resolved"))], bar)
    assert (IN_BAR in found) == alert
    if alert:
        assert bar.sentence in found[IN_BAR]


def test_cells_that_are_slower_than_the_band_are_named_with_it() -> None:
    band = {"floor": {"band": [0.9, 1.1]}}
    cells = [
        {"population": f"code-{n}", "measure": "decode_tok_s", "value": 0.7, "verdict": "slower", **band}
        for n in range(7)
    ]
    cells += [{"population": "prose", "measure": "decode_tok_s", "value": 0.95, "verdict": "level", **band}]
    text = told([pair("e@v10", "e@v9", identical(), speed={"figures": cells})])[NOT_SLOWER]
    assert (
        "7 of 8 speeds are slower, beyond the noise band of 0.9 to 1.1: code-0 decode_tok_s 0.7 times" in text
        and "and 2 more" in text
    )


def test_what_no_protocol_declares_is_told() -> None:
    text = told([pair("e@v10", "e@v9", identical(), undeclared=["n_threads_batch", "system_info"])])[DECLARED]
    assert "n_threads_batch, system_info" in text and "engcmp launch diff" in text


def test_that_a_version_calls_itself_another_one_is_no_news() -> None:
    names = ["ggml_version", "llama_version", "identities.server.version", "settings.build_info"]
    assert told([pair("e@v10", "e@v9", identical(), undeclared=names)]) == {}
    assert "cuda_version" in told([pair("e@v10", "e@v9", identical(), undeclared=[*names, "cuda_version"])])[DECLARED]


def test_there_are_always_four_checks_each_with_a_link_and_a_paragraph() -> None:
    pairs = [OLD, pair("e@v10", "e@v9", moved(0.02, "resolved"), undeclared=["n_threads"])]
    checks = {one.name: one for one in alert_checks(pairs, {}, LINK)}
    assert set(checks) == set(ALERTS)
    assert {name for name, one in checks.items() if not one.passed} == {IN_BAR, SAME_ROWS, DECLARED}
    for one in checks.values():
        assert one.evidence["link"] == LINK and one.explanation and "\n" not in one.explanation
    assert checks[NOT_SLOWER].explanation == "Nothing to tell of e@v10-vs-e@v9"
    assert all(one.passed and "No two versions" in one.explanation for one in alert_checks([], {}, LINK))


def test_the_same_alert_of_other_results_has_another_key() -> None:
    (first,), (same,), (other,) = (
        alerts_of([pair("e@v10", "e@v9", identical(), undeclared=names)], {}) for names in (["a"], ["a"], ["a", "b"])
    )
    assert first.key == same.key != other.key
