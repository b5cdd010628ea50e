"""One forward pass of a window serves every panel that keeps rows of it."""

from __future__ import annotations

from engcmp_assets.kernel.panels import passes, window_of
from engcmp_assets.kernel.records import Panel, Window
from engcmp_assets.kernel.study import Study


def window(name: str, *positions: int) -> Window:
    return Window(name, tuple(range(20)), positions, ("context",) * len(positions), name, "code", "upto128")


PA = Panel("pa", 50, "full", (window("code-1", 0, 9, 18), window("chat-1", 4)))
PB = Panel("pb", 50, "topk", (window("chat-1", 2, 4, 6), window("json-1", 1)), 8)


def test_a_pass_holds_every_row_that_any_panel_keeps_once_and_rising() -> None:
    assert [(one.window_id, one.positions) for one in passes([PA, PB])] == [
        ("code-1", (0, 9, 18)), ("chat-1", (2, 4, 6)), ("json-1", (1,)),
    ]  # fmt: skip
    assert passes([]) == ()


def test_windows_pass_in_the_order_in_which_they_first_occur() -> None:
    assert [one.window_id for one in passes([PB, PA])] == ["chat-1", "json-1", "code-1"]


def test_a_panel_finds_its_own_rows_among_those_of_the_pass() -> None:
    chat = passes([PA, PB])[1]
    assert chat.indices(PA.windows[1]) == [1]
    assert chat.indices(PB.windows[0]) == [0, 1, 2]


def test_a_window_that_a_panel_does_not_keep_is_none() -> None:
    assert window_of(PB, "chat-1") is PB.windows[0]
    assert window_of(PB, "code-1") is None


def test_the_study_s_panels_share_one_pass_a_window(study: Study) -> None:
    panels = [study.panel(name) for name in study.protocol.panels]
    found = passes(panels)
    assert len(found) == 12
    for one in found:
        kept = {row for panel in panels if (own := window_of(panel, one.window_id)) for row in own.positions}
        assert set(one.positions) == kept
