"""Which rows a panel keeps of a window, and what the frozen prompt set may say."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engcmp_assets.kernel.prompt_files import consecutive_positions, even_positions, parse_panel
from engcmp_assets.kernel.study import Study
from engcmp_assets.prompt_set.prompts import prompt_document
from engcmp_resources.errors import EngcmpError


@given(tokens=st.integers(3, 400), rows=st.integers(1, 200))
def test_even_rows_are_as_many_as_asked_for_and_span_the_window(tokens: int, rows: int) -> None:
    kept = even_positions(tokens, rows)
    assert len(kept) == min(rows, tokens - 1)
    assert list(kept) == sorted(set(kept))
    assert kept[-1] == tokens - 2  # the last token has no next one
    assert kept[0] == 0 or rows == 1
    steps = [later - earlier for earlier, later in pairwise(kept)]
    assert not steps or max(steps) - min(steps) <= 1


def test_even_rows_of_a_known_window() -> None:
    assert even_positions(11, 4) == (0, 3, 6, 9)
    assert even_positions(4, 32) == (0, 1, 2)
    assert even_positions(11, 1) == (9,)


@given(tokens=st.integers(3, 400), rows=st.integers(1, 200))
def test_consecutive_rows_follow_each_other_and_leave_out_the_first(tokens: int, rows: int) -> None:
    if rows > tokens - 2:
        with pytest.raises(EngcmpError, match=f"a window of {tokens} tokens has no {rows} consecutive rows"):
            consecutive_positions(tokens, rows)
        return
    kept = consecutive_positions(tokens, rows)
    assert kept == tuple(range(kept[0], kept[0] + rows))
    assert kept[0] >= 1
    assert kept[-1] <= tokens - 2


def test_consecutive_rows_are_from_the_middle() -> None:
    assert consecutive_positions(101, 8) == tuple(range(46, 54))


@pytest.fixture
def document(study: Study) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(study.files["prompt_set.json"])
    return loaded


def panel_of(study: Study, document: dict[str, Any], name: str) -> Any:
    return parse_panel(json.dumps(document).encode(), study.protocol, panel=name, where="here")


def test_each_panel_keeps_the_rows_that_its_plan_asks_for(study: Study) -> None:
    panels = {name: study.panel(name) for name in study.protocol.panels}
    assert {name: (panel.reference, panel.top_k, len(panel.windows)) for name, panel in panels.items()} == {
        "pa": ("full", None, 12), "pb": ("topk", 1024, 12), "pd": ("full", None, 2),
    }  # fmt: skip
    assert [window.window_id for window in panels["pd"].windows] == ["code-1", "prose-1"]
    for name, plan in study.protocol.panels.items():
        choose = even_positions if plan.rows == "even" else consecutive_positions
        for window in panels[name].windows:
            assert window.positions == choose(len(window.tokens), plan.rows_per_window)


def test_the_frozen_prompt_set_is_what_its_ids_and_the_protocol_give(study: Study, document: dict[str, Any]) -> None:
    tokens = {window["window_id"]: window["tokens"] for window in document["windows"]}
    assert prompt_document(tokens, study.base, vocab=document["vocab"]) == document


def test_a_panel_s_window_without_a_text_is_named(study: Study, document: dict[str, Any]) -> None:
    tokens = {w["window_id"]: w["tokens"] for w in document["windows"] if w["window_id"] != "prose-1"}
    with pytest.raises(EngcmpError, match="panel pd names window prose-1, which has no text"):
        prompt_document(tokens, study.base, vocab=document["vocab"])


Edit = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Edit, str]] = {
    "no panels": (lambda d: d.pop("panels"), "prompt set field panels: Field required"),
    "rows as text": (lambda d: d["panels"]["pb"]["code-1"].update(positions=["0"]), "panels.pb.code-1.positions.0"),
    "a role that is none": (lambda d: d["panels"]["pd"]["code-1"].update(roles=["text"] * 8), "panels.pd.code-1.roles.0"),
    "no rows of the panel": (lambda d: d["panels"].pop("pd"), "has no rows of panel 'pd'"),
    "rows of no window": (lambda d: d["panels"]["pd"].update(x=d["panels"]["pd"]["code-1"]), "keeps rows of 'x', which is no window"),
    "a window too few": (lambda d: d["panels"]["pd"].pop("code-1"), "panel pd does not hold the windows of its plan"),
    "a row after the end": (lambda d: d["panels"]["pd"]["code-1"]["positions"].append(9999), "roles and positions differ in number"),
    "falling rows": (lambda d: d["panels"]["pd"]["code-1"]["positions"].reverse(), "positions must rise within"),
    "another token": (lambda d: d["windows"][3]["tokens"].append(1), "tokens do not match their digest"),
    "a token outside": (lambda d: d.update(vocab=10), "is outside the vocabulary of 10"),
    "a window twice": (lambda d: d["windows"].append(d["windows"][0]), "stands twice in the prompt set"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_prompt_set_that_does_not_fit_is_refused_by_its_field(
    study: Study, document: dict[str, Any], wrong: str
) -> None:
    edit, words = WRONG[wrong]
    edit(document)
    with pytest.raises(EngcmpError, match=words):
        panel_of(study, document, "pd")


def test_a_panel_that_the_protocol_does_not_have_is_refused(study: Study, document: dict[str, Any]) -> None:
    with pytest.raises(EngcmpError, match="no panel 'pc'; it has pa, pb, pd"):
        panel_of(study, document, "pc")
