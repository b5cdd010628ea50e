"""Panels of published data: which files each window has, and a panel that is another than the declared one."""

from __future__ import annotations

from typing import Any

import pytest

from engcmp_assets.kernel.external_panels import ExternalPanel, refuse_other_panel, wanted_paths, windows_of
from engcmp_assets.kernel.records import Panel, Window
from engcmp_resources.errors import EngcmpError

PLAN: dict[str, Any] = {
    "source": "panel", "layout": "teacher", "window": "final-([0-9]{4})", "rows_file": "teacher/logits/window-{number}.safetensors",
    "tokens_file": "arrays/{window}.tokens.npy", "windows": 2, "tokens_per_window": 4, "rows": 6, "clusters": 2, "cluster": "window",
    "vocab": 10, "scored": "every row", "drawn_from": "somewhere", "rows_by_role": {"context": 6}, "rows_by_bucket": {"short": 6},
    "windows_by_block": {"A": 2},
}  # fmt: skip
PATHS = [
    "README.md", "arrays/final-0000.tokens.npy", "arrays/final-0001.tokens.npy", "arrays/causal-mask.npy",
    "teacher/logits/window-0000.safetensors", "teacher/logits/window-0001.safetensors", "teacher/logits/window-0002.safetensors",
]  # fmt: skip


def plan(**changes: Any) -> ExternalPanel:
    return ExternalPanel.model_validate({name: value for name, value in (PLAN | changes).items() if value is not None})


def window(name: str, **changes: Any) -> Window:
    base: dict[str, Any] = {
        "window_id": name, "tokens": (1, 2, 3, 4), "positions": (0, 1, 2), "roles": ("context",) * 3, "cluster": name, "block": "A",
        "bucket": "short",
    }  # fmt: skip
    return Window(**(base | changes))


def panel(*windows: Window, vocab: int = 10) -> Panel:
    return Panel("pa", vocab, "full", windows or (window("final-0000"), window("final-0001")))


def test_a_window_has_the_files_that_its_name_gives() -> None:
    first, second = windows_of(plan(), PATHS, panel="pa")
    assert (first.window_id, first.rows, first.tokens) == (
        "final-0000", "teacher/logits/window-0000.safetensors", "arrays/final-0000.tokens.npy",
    )  # fmt: skip
    assert second.rows == "teacher/logits/window-0001.safetensors"


def test_windows_of_rows_alone_are_found_by_their_own_names() -> None:
    one = plan(layout="topk", window="[a-e][0-9]{2}|legacy", rows_file="set/{window}.safetensors", tokens_file=None)
    found = windows_of(
        one,
        ["set/a00.safetensors", "set/legacy.safetensors", "set/z99.safetensors", "other/a01.safetensors"],
        panel="pb",
    )
    assert [(files.window_id, files.rows, files.tokens) for files in found] == [
        ("a00", "set/a00.safetensors", None), ("legacy", "set/legacy.safetensors", None),
    ]  # fmt: skip


def test_a_missing_file_and_another_number_of_windows_are_named() -> None:
    with pytest.raises(
        EngcmpError, match=r"panel pa, window final-0001: file teacher/logits/window-0001.safetensors is missing"
    ):
        windows_of(plan(), [path for path in PATHS if "window-0001" not in path], panel="pa")
    with pytest.raises(EngcmpError, match="panel pa: 2 windows are there, the protocol says 3"):
        windows_of(plan(windows=3, windows_by_block=None), PATHS, panel="pa")


def test_patterns_take_a_part_of_a_source() -> None:
    assert wanted_paths(plan(), ["arrays/final-*.npy", "README.md"], PATHS) == (
        "README.md", "arrays/final-0000.tokens.npy", "arrays/final-0001.tokens.npy",
    )  # fmt: skip
    assert wanted_paths(plan(), [], PATHS) == tuple(sorted(PATHS))


def test_the_declared_panel_passes() -> None:
    refuse_other_panel(panel(), plan())


OTHER: dict[str, tuple[Panel, str]] = {
    "vocabulary": (panel(vocab=11), "vocabulary: 11, the protocol says 10"),
    "windows": (panel(window("final-0000")), "windows: 1, the protocol says 2"),
    "rows": (panel(window("final-0000"), window("final-0001", positions=(0, 1), roles=("context",) * 2)), "rows: 5, the protocol says 6"),
    "clusters": (panel(window("final-0000"), window("final-0001", cluster="final-0000")), "clusters: 1, the protocol says 2"),
    "roles": (panel(window("final-0000"), window("final-0001", roles=("context", "context", "generated"))), "rows of role context: 5"),
    "buckets": (panel(window("final-0000"), window("final-0001", bucket="long")), "rows of bucket short: 3, the protocol says 6"),
    "blocks": (panel(window("final-0000"), window("final-0001", block="B")), "windows of block A: 1, the protocol says 2"),
    "tokens": (panel(window("final-0000"), window("final-0001", tokens=(1, 2, 3, 4, 5))), "tokens of window final-0001: 5"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER)
def test_another_panel_is_refused_by_what_differs(case: str) -> None:
    found, said = OTHER[case]
    with pytest.raises(EngcmpError, match=said):
        refuse_other_panel(found, plan())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"window": "final-("}, "window is no regular expression"),
        ({"window": "final-[0-9]{4}"}, "rows_file .* names no window"),
        ({"tokens_file": None}, "layout teacher needs rows_file and tokens_file"),
        ({"rows_by_role": {"context": 7}}, "rows_by_role has 7 rows, more than rows, 6"),
        ({"windows_by_block": {"A": 1}}, "windows_by_block has 1 windows, windows says 2"),
    ],
)
def test_a_plan_that_contradicts_itself(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**changes)
