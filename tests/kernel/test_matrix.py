"""The matrix of checkpoints and versions, from plain data."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import pytest

from engcmp_assets.kernel.matrix import (
    FAILED,
    MEASURED,
    MOST_VERSIONS,
    NO_FIGURE,
    NOT_MEASURED,
    Standing,
    Verdict,
    matrix_table,
    over_all,
    pair_verdict,
)
from engcmp_assets.kernel.records import ArmKey
from engcmp_resources.errors import EngcmpError

OLD, NEW = ArmKey("q8_0", "llamacpp", "b1"), ArmKey("q8_0", "llamacpp", "b2")
SMALL, FAST = ArmKey("q4_0", "llamacpp", "b1"), ArmKey("q4_0", "llamacpp", "b2", "fast")


def figure(value: Any = 0.25, low: float = 0.125, high: float = 0.5, **other: Any) -> dict[str, Any]:
    return {
        "panel": "pa", "measure": "kl_full", "population": "all", "value": value, "interval": {"low": low, "high": high}, **other,
    }  # fmt: skip


def table(standings: Sequence[Standing], verdicts: Sequence[Verdict] = (), own: ArmKey | None = None) -> str:
    links = {one.arm: f"/page/{one.arm.checkpoint}/{one.arm.version}" for one in standings}
    return matrix_table(standings, verdicts, panel="pa", measure_id="kl_full", links=links, own=own)


def cells(text: str) -> list[list[str]]:
    """The table without its heading and rule, split where a reader's browser splits it."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in [lines[0], *lines[2:]]]


def test_rows_are_checkpoints_in_the_order_of_the_protocol_and_columns_are_versions_by_number() -> None:
    found = cells(table([Standing(arm, MEASURED, None, figure()) for arm in (NEW, OLD, SMALL)]))
    assert found[0] == ["checkpoint", "`llamacpp@b1`", "`llamacpp@b2`"]
    assert [line[0] for line in found[1:]] == ["q8_0", "q4_0"]


def test_a_measured_arm_shows_state_link_figure_and_interval() -> None:
    cell = cells(table([Standing(OLD, MEASURED, None, figure())]))[1][1]
    assert cell == "[measured](/page/q8_0/b1); 0.2500 [0.1250, 0.5000]; no declared pair"


def test_the_heading_names_measure_unit_panel_and_which_way_is_better() -> None:
    heading = table([Standing(OLD, MEASURED, None, figure())]).splitlines()[0]
    assert all(word in heading for word in ("`kl_full`", "nats", "lower is better", "panel `pa`"))


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(EngcmpError, match="no measure is called 'speed'"):
        matrix_table([], [], panel="pa", measure_id="speed", links={})


def test_an_arm_that_was_not_measured_says_how_to_and_one_that_failed_says_what() -> None:
    standings = [
        Standing(OLD, NOT_MEASURED, "engcmp run s --arm a"),
        Standing(NEW, FAILED, "receipt was\nchanged | twice"),
    ]
    found = cells(table(standings))
    assert found[1][1] == "[not measured](/page/q8_0/b1): engcmp run s --arm a; no declared pair"
    assert found[1][2] == "[failed](/page/q8_0/b2): receipt was changed \\| twice; no declared pair"


def test_a_combination_that_the_protocol_does_not_list_is_no_arm() -> None:
    found = cells(table([Standing(OLD, MEASURED, None, figure()), Standing(FAST, MEASURED, None, figure())]))
    assert found[0] == ["checkpoint", "`llamacpp@b1`", "`llamacpp@b2+fast`"]
    assert found[1][2] == "no such arm" and found[2][1] == "no such arm"


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (None, NO_FIGURE),
        (figure({"missing": "one document"}), f"{NO_FIGURE}: one document"),
        (figure() | {"interval": {"missing": "2 documents"}}, "0.2500 (no interval: 2 documents)"),
    ],
)
def test_what_has_no_value_or_no_interval_gives_its_reason(measured: Any, words: str) -> None:
    assert f"; {words}; " in cells(table([Standing(OLD, MEASURED, None, measured)]))[1][1]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict(str(NEW), str(OLD), "resolved", 0.5), "resolved: higher than `q8_0/llamacpp@b1`"),
        (Verdict(str(NEW), str(OLD), "resolved, no floor", -0.5), "resolved, no floor: lower than `q8_0/llamacpp@b1`"),
        (Verdict(str(NEW), str(OLD), "not resolved", -0.5), "not resolved against `q8_0/llamacpp@b1`"),
        (Verdict(str(NEW), str(OLD), "bit-identical", 0.0), "bit-identical against `q8_0/llamacpp@b1`"),
        (
            Verdict(str(NEW), str(OLD), "not resolved", 0.5, current=False),
            "not resolved against `q8_0/llamacpp@b1` (before the last measurement)",
        ),
    ],
)
def test_the_verdict_stands_at_the_candidate_and_names_the_baseline(verdict: Verdict, words: str) -> None:
    standings = [Standing(arm, MEASURED, None, figure()) for arm in (OLD, NEW, SMALL)]
    found = cells(table(standings, [verdict]))
    assert found[1][2].endswith(f"; {words}")
    assert found[1][1].endswith("; baseline")
    assert found[2][1].endswith("; no declared pair")


def test_an_arm_with_two_pairs_shows_both() -> None:
    verdicts = [Verdict(str(NEW), str(OLD), "bit-identical"), Verdict(str(NEW), str(SMALL), "not resolved")]
    cell = cells(table([Standing(arm, MEASURED, None, figure()) for arm in (OLD, NEW, SMALL)], verdicts))[1][2]
    assert str(OLD) in cell and str(SMALL) in cell


def test_the_own_arm_stands_in_bold_and_no_other() -> None:
    text = table([Standing(arm, MEASURED, None, figure()) for arm in (OLD, NEW)], own=NEW)
    assert "**[measured](/page/q8_0/b2)**; **0.2500 [0.1250, 0.5000]**" in text
    assert text.count("**") == 4


@pytest.mark.parametrize(("checkpoints", "sideways"), [(2, True), (MOST_VERSIONS + 2, False)])
def test_many_versions_become_the_rows_unless_there_are_more_checkpoints(checkpoints: int, sideways: bool) -> None:
    arms = [ArmKey(f"q{c}", "e", f"v{v}") for c in range(checkpoints) for v in range(MOST_VERSIONS + 1)]
    found = cells(table([Standing(arm, MEASURED, None, figure()) for arm in arms]))
    assert found[0][0] == ("version" if sideways else "checkpoint")
    assert (len(found) - 1, len(found[0]) - 1) == (
        (MOST_VERSIONS + 1, checkpoints) if sideways else (checkpoints, MOST_VERSIONS + 1)
    )
    for line in found[1:]:  # each cell is at its own place
        for name, cell in zip(found[0][1:], line[1:], strict=True):
            checkpoint, version = (name, line[0]) if sideways else (line[0], name)
            assert f"/page/{checkpoint}/{version.strip('`').removeprefix('e@')})" in cell


def test_the_figure_is_of_all_rows_of_its_panel() -> None:
    others = [figure(population="block:code"), figure(panel="pb"), figure(measure="nll")]
    wanted = figure(1.0)
    assert over_all([*others, wanted], "pa", "kl_full") is wanted
    assert over_all(others, "pa", "kl_full") is None


def test_a_pair_s_figure_becomes_its_verdict_and_a_pair_without_one_was_not_compared() -> None:
    details = {"verdict": "resolved", "sentence": "…"}
    assert pair_verdict("a", "b", figure(-0.5, details=details), current=False) == Verdict(
        "a", "b", "resolved", -0.5, False
    )
    missing = pair_verdict("a", "b", figure({"missing": "no row"}, details=details), current=True)
    assert missing == Verdict("a", "b", "resolved", None)
    assert pair_verdict("a", "b", None, current=True).word == "not compared yet"


def test_two_hundred_arms_are_all_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    arms = [ArmKey(f"q{c}", "e", f"v{v}") for v in range(50) for c in range(4)]
    verdicts = [Verdict(str(arm), str(arms[0]), "not resolved", 0.1) for arm in arms[1:]]
    started = time.perf_counter()
    found = cells(table([Standing(arm, MEASURED, None, figure()) for arm in arms], verdicts, own=arms[7]))
    with capsys.disabled():
        print(f"\n[the matrix of 200 arms: {1000 * (time.perf_counter() - started):.1f} ms]")
    assert sum(cell.startswith(("[measured]", "**[measured]")) for line in found[1:] for cell in line) == 200
