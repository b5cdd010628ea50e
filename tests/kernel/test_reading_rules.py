"""Reading rules: one that leaves statistic, baseline or bound open is refused, and one that does not gives its verdict by machine."""

from __future__ import annotations

from typing import Any

import pytest

from engcmp_assets.kernel.reading_rules import MEAN, ReadingRule, apply_rule, rule_faults
from engcmp_resources.errors import EngcmpError

FURTHER = {"part": "interval low", "relation": "above", "limit": 0.0, "verdict": "resolved", "means": "further"}
CLOSER = {"part": "interval high", "relation": "below", "limit": 0.0, "verdict": "resolved", "means": "closer"}
WHOLE: dict[str, Any] = {
    "id": "f1", "question": "Does it bring the engine closer?", "level": 0.95,
    "statistic": {"measure": "kl_coarse", "kind": "difference", "panel": "pb", "population": "block:B", "candidate": "K/e@1+s"},
    "baseline": {"arm": "K/e@1", "runs": ["V1", "V1r"]},
    "cases": [FURTHER, CLOSER], "otherwise": {"verdict": "not resolved", "means": "cannot be told"},
}  # fmt: skip


def rule(**changes: Any) -> ReadingRule:
    return ReadingRule.model_validate({name: value for name, value in (WHOLE | changes).items() if value is not None})


def figure(value: Any, low: Any = None, high: Any = None, **more: Any) -> dict[str, Any]:
    return {"value": value, "interval": {"low": low, "high": high, "level": 0.95, **more}}


def faults(one: ReadingRule) -> dict[str, str]:
    return {field: what for field, what, _ in rule_faults(one)}


def test_a_whole_rule_has_no_fault() -> None:
    assert not faults(rule())


def test_moves_by_more_than_the_interval_is_no_rule() -> None:
    """The wording that was reviewed: neither which end or width of the interval, nor against which run."""
    vague = ReadingRule(
        id="f1",
        question="Is the gap a matter of precision?",
        text="The setting moves toward V1 by more than the paired interval",
    )
    assert set(faults(vague)) == {"statistic", "baseline", "bound"}
    with pytest.raises(EngcmpError, match="reading rule f1: statistic is not named"):
        apply_rule(vague, {"V1": figure(0.1, 0.0, 0.2)})


LACKING: dict[str, tuple[dict[str, Any], str]] = {
    "no statistic": ({"statistic": None}, "statistic"),
    "a measure that nothing defines": ({"statistic": WHOLE["statistic"] | {"measure": "closeness"}}, "statistic.measure"),
    "no baseline": ({"baseline": None}, "baseline"),
    "a baseline of nothing": ({"baseline": {}}, "baseline"),
    "a baseline that is two things": ({"baseline": {"arm": "K/e@1", "value": 0.0, "runs": "each run"}}, "baseline"),
    "a baseline without its runs": ({"baseline": {"arm": "K/e@1"}}, "baseline.runs"),
    "an empty list of runs": ({"baseline": {"arm": "K/e@1", "runs": []}}, "baseline.runs"),
    "no cases": ({"cases": []}, "bound"),
    "no other outcome": ({"otherwise": None}, "bound"),
    "an interval of no level": ({"level": None}, "level"),
    "a level without an interval": ({"cases": [FURTHER | {"part": "value"}]}, "level"),
    "a difference from a number": ({"baseline": {"value": 0.0}}, "baseline.value"),
    "the candidate as its own baseline": ({"baseline": {"arm": "K/e@1+s", "runs": "each run"}}, "baseline.arm"),
    "a run twice": ({"baseline": {"arm": "K/e@1", "runs": ["V1", "V1"]}}, "baseline.runs"),
}  # fmt: skip


@pytest.mark.parametrize("case", LACKING)
def test_what_a_rule_leaves_open_is_named(case: str) -> None:
    changes, field = LACKING[case]
    assert field in faults(rule(**changes))


def test_the_words_are_those_of_the_closed_list() -> None:
    with pytest.raises(ValueError, match=r"otherwise\.verdict"):
        rule(otherwise={"verdict": "better", "means": "better"})


@pytest.mark.parametrize(
    ("first", "second", "verdict", "means"),
    [
        (figure(0.3, 0.1, 0.5), figure(0.2, 0.1, 0.3), "resolved", "further"),
        (figure(-0.3, -0.5, -0.1), figure(-0.2, -0.3, -0.1), "resolved", "closer"),
        (figure(0.3, -0.1, 0.5), figure(0.2, 0.0, 0.3), "not resolved", "cannot be told"),
        (
            figure(0.3, 0.1, 0.5),
            figure(0.2, -0.1, 0.3),
            "baseline-dependent",
            "read differently: V1: resolved; V1r: not resolved",
        ),
        (figure(0.3, 0.1, 0.5), figure(-0.3, -0.5, -0.1), "baseline-dependent", "read differently"),
        (figure(0.3, 0.1, 0.5), figure({"missing": "not captured"}), "not comparable", "against V1r: not captured"),
        (
            figure(0.3, 0.1, 0.5),
            {"value": 0.1, "interval": {"missing": "2 clusters"}},
            "not comparable",
            "against V1r: 2 clusters",
        ),
        (
            figure(0.3, 0.1, 0.5),
            figure(0.2, 0.1, 0.3, level=0.9),
            "not comparable",
            "is of level 0.9, the rule speaks of 0.95",
        ),
    ],
)
def test_the_verdict_must_hold_against_every_run(first: Any, second: Any, verdict: str, means: str) -> None:
    read = apply_rule(rule(), {"V1": first, "V1r": second})
    assert read.verdict == verdict and means in read.means and set(read.by_run) == {"V1", "V1r"}


@pytest.mark.parametrize(
    ("relation", "value", "holds"),
    [
        ("above", 1.0, False),
        ("at least", 1.0, True),
        ("below", 1.0, False),
        ("at most", 1.0, True),
        ("equals", 1.0, True),
        ("equals", 0.9, False),
    ],
)
def test_a_limit_that_is_met_exactly(relation: str, value: float, holds: bool) -> None:
    case = {"part": "value", "relation": relation, "limit": 1.0, "verdict": "bit-identical", "means": "equal"}
    one = rule(cases=[case], level=None, baseline={"arm": "K/e@1", "runs": MEAN})
    assert (apply_rule(one, {MEAN: {"value": value}}).verdict == "bit-identical") == holds


@pytest.mark.parametrize(
    "given", [{}, {"V1": figure(1, 1, 1)}, {"V1": figure(1, 1, 1), "V1r": figure(1, 1, 1), "V2": figure(1, 1, 1)}]
)
def test_figures_of_other_runs_than_the_rule_names_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(EngcmpError, match="reading rule f1 is given figures of") as told:
        apply_rule(rule(), given)
    assert told.value.remedy == "give it those of V1, V1r"
