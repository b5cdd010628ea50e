"""Reading rules by machine: cell by cell, a value of the candidate alone, replies by stage, the share of a gap that a setting closes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from engcmp_assets.audit import rule_readings
from engcmp_assets.audit.found import RuleRead
from engcmp_assets.audit.gathered import Gathered
from engcmp_assets.kernel.protocol import PanelPlan, Statistics
from engcmp_assets.kernel.reading_rules import MEAN, ReadingRule, rule_faults
from engcmp_assets.kernel.row_table import RowTable

CANDIDATE, BASELINE = "K/e@2+s", "K/o@1"
FASTER = {"part": "value", "relation": "above", "limit": 1.1, "verdict": "faster", "means": "above the band"}
SLOWER = {"part": "value", "relation": "below", "limit": 0.9, "verdict": "slower", "means": "below the band"}
LEVEL = {"verdict": "level", "means": "inside the band"}
BAND = [0.9, 1.1]
PANEL = "pa"


def speed(cell: str, value: Any, band: Any = BAND, measure: str = "decode_tok_s") -> dict[str, Any]:
    return {
        "measure": measure, "panel": "throughput", "population": cell, "value": value, "interval": {"missing": "2 batches"},
        "floor": {"band": band},
    }  # fmt: skip


def pair(**parts: Any) -> dict[str, Any]:
    return {"candidate": CANDIDATE, "baseline": BASELINE, "reason": None, "figures": [], **parts}


def read(rule: dict[str, Any], **evidence: Any) -> RuleRead:
    one = ReadingRule.model_validate({"id": "r", "question": "Which?", **rule})
    assert not list(rule_faults(one))
    known = {"pairs": [], "summaries": {}, "receipts": {}, "store": None} | evidence
    protocol = SimpleNamespace(reading_rules=[one], **known.pop("protocol", {}))
    found = cast(Gathered, SimpleNamespace(study=SimpleNamespace(protocol=protocol), **known))
    (result,) = rule_readings.readings(found)
    return result


def of_cells(**changes: Any) -> dict[str, Any]:
    statistic = {"measure": "decode_tok_s", "kind": "ratio", "population": "each cell", "candidate": CANDIDATE}
    rule = {
        "statistic": statistic,
        "baseline": {"arm": BASELINE, "runs": MEAN},
        "cases": [FASTER, SLOWER],
        "otherwise": LEVEL,
    }
    return rule | changes


def test_each_cell_has_its_verdict_and_they_are_counted() -> None:
    figures = [
        speed("code-c1", 1.3),
        speed("code-c4", 1.02),
        speed("json-c1", 0.8),
        speed("json-c1", 9.0, measure="ttft_median_ms"),
    ]
    result = read(of_cells(), pairs=[pair(speed={"figures": figures})])
    assert [(one.look, one.verdict) for one in result.looks] == [
        ("code-c1", "faster"),
        ("code-c4", "level"),
        ("json-c1", "slower"),
    ]
    assert result.verdict == "1 faster, 1 level, 1 slower of 3"


def test_cells_that_agree_give_their_one_word() -> None:
    result = read(of_cells(), pairs=[pair(speed={"figures": [speed("a", 1.3), speed("b", 1.4)]})])
    assert (result.verdict, result.means, len(result.looks)) == ("faster", "above the band", 2)


def test_a_ratio_inside_the_wider_band_of_the_repeats_is_level_whatever_the_declared_limits_say() -> None:
    result = read(of_cells(), pairs=[pair(speed={"figures": [speed("a", 1.15, [0.8, 1.2])]})])
    assert result.verdict == "level" and "0.8 to 1.2" in result.means


@pytest.mark.parametrize(
    ("value", "band", "why"),
    [({"missing": "a request failed"}, BAND, "a request failed"), (1.3, {"missing": "no repeat was measured"}, "no noise band: no repeat")],
)  # fmt: skip
def test_a_cell_without_a_value_or_a_band_is_not_comparable(value: Any, band: Any, why: str) -> None:
    result = read(of_cells(), pairs=[pair(speed={"figures": [speed("a", value, band)]})])
    assert result.verdict == "not comparable" and why in result.means


def test_a_pair_that_nobody_declared_or_that_was_not_compared_says_so() -> None:
    assert "is declared" in read(of_cells()).means
    result = read(of_cells(), pairs=[pair(reason="K/o@1 was not measured yet")])
    assert result.verdict == "not comparable" and "not measured yet" in result.means


PREFIX = {
    "statistic": {"measure": "prefix_cached_tokens", "kind": "value", "population": "8704", "candidate": CANDIDATE},
    "baseline": {"value": 0.0},
    "cases": [{"part": "value", "relation": "at least", "limit": 4352.0, "verdict": "descriptive", "means": "from the cache"}],
    "otherwise": {"verdict": "not resolved", "means": "computed anew"},
}  # fmt: skip


def prefix(*cached: float) -> dict[str, Any]:
    def figure(place: str, value: float) -> dict[str, Any]:
        return {
            "measure": "prefix_cached_tokens",
            "panel": "startup",
            "population": place,
            "value": value,
            "interval": {"missing": "once"},
        }

    again = [figure(f"prefix-8704/repeat-{number}", value) for number, value in enumerate(cached, 1)]
    return {
        "figures": [],
        "startup": {"figures": [figure("prefix-8704/cold", 0.0), figure("prefix-64/repeat-1", 9999.0), *again]},
    }


@pytest.mark.parametrize(
    ("cached", "verdict"),
    [
        ((8192.0, 8192.0), "descriptive"),
        ((0.0, 0.0), "not resolved"),
        ((0.0, 8192.0), "1 not resolved, 1 descriptive of 2"),
    ],
)
def test_a_fixed_value_is_held_against_each_repeat_of_the_prompt(cached: tuple[float, ...], verdict: str) -> None:
    assert read(PREFIX, summaries={CANDIDATE: prefix(*cached)}).verdict == verdict


def test_a_value_of_an_arm_that_was_not_measured_is_not_comparable() -> None:
    assert read(PREFIX).verdict == "not comparable"
    assert read(PREFIX, summaries={CANDIDATE: {"figures": []}}).verdict == "not comparable"


def test_replies_are_read_stage_by_stage() -> None:
    wide = {"low": 0.9, "high": 1.3, "level": 0.95}
    figures = [
        {"measure": "thinking_ratio", "panel": "replies", "population": name, "value": 1.1, "interval": ends}
        for name, ends in (("code/L1", wide), ("math/L1", {"low": 1.05, "high": 1.2, "level": 0.95}))
    ]
    rule = {
        "level": 0.95,
        "statistic": {"measure": "thinking_ratio", "kind": "ratio", "population": "all", "candidate": CANDIDATE},
        "baseline": {"arm": BASELINE, "runs": MEAN},
        "cases": [
            {"part": "interval low", "relation": "above", "limit": 1.0, "verdict": "resolved", "means": "longer"}
        ],
        "otherwise": {"verdict": "not resolved", "means": "holds 1"},
    }
    result = read(rule, pairs=[pair(replies={"figures": figures})])
    assert [one.verdict for one in result.looks] == ["not resolved", "resolved"]


# Gaps.

GAP = {
    "statistic": {"measure": "kl_full", "kind": "gap_closed", "panel": PANEL, "population": "all", "candidate": CANDIDATE},
    "baseline": {"arm": BASELINE, "runs": "each run"},
    "level": 0.95,
    "cases": [{"part": "interval low", "relation": "above", "limit": 0.5, "verdict": "resolved", "means": "more than half is closed"}],
    "otherwise": {"verdict": "not resolved", "means": "not shown"},
}  # fmt: skip
STATISTICS = Statistics(preset="panel", replicates=400, seed=7, level=0.95, cluster="document")
PLAN = PanelPlan.model_validate(
    {"label": "P", "reference": "full", "rows": "even", "rows_per_window": 4, "roles": ["context"], "measures": ["kl_full"],
     "primary": ["kl_full"], "pair_measures": ["kl_pair_full"]}
)  # fmt: skip


def table(offset: float, *, runs: int = 2, noise: float = 0.0) -> RowTable:
    """12 documents of 4 rows; `offset` is how far the arm is from the reference on all of them."""
    rows, rng = 48, np.random.default_rng(3)
    keys = {
        "window_id": np.repeat([f"w{n:02}" for n in range(12)], 4), "position": np.tile(np.arange(4), 12),
        "bucket": np.full(rows, "k"), "next_token": np.arange(rows),
        "cluster": np.repeat([f"d{n:02}" for n in range(12)], 4), "block": np.array(["chat"] * rows),
    }  # fmt: skip
    own = 0.1 + offset + 0.01 * rng.standard_normal((1, rows)) + noise * np.arange(runs)[:, None]
    return RowTable(
        tuple(f"{n + 1}.1" for n in range(runs)), keys, {"kl_full": np.repeat(own[:1], runs, 0) + own - own[:1]}
    )


def gap(monkeypatch: pytest.MonkeyPatch, setting: float, candidate: float = 0.2) -> RuleRead:
    arms = {CANDIDATE: table(setting), "K/e@2": table(candidate), BASELINE: table(0.0)}
    monkeypatch.setattr(rule_readings, "_rows", lambda _found, arm, _panel, _measure: arms[arm])
    return read(GAP, protocol={"statistics": STATISTICS, "panels": {PANEL: PLAN}})


@pytest.mark.parametrize(("setting", "verdict"), [(0.02, "resolved"), (0.18, "not resolved")])
def test_the_share_of_a_gap_that_a_setting_closes_is_held_against_its_limit(
    monkeypatch: pytest.MonkeyPatch, setting: float, verdict: str
) -> None:
    assert gap(monkeypatch, setting).verdict == verdict


def test_no_share_is_taken_of_a_gap_that_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    result = gap(monkeypatch, 0.0, candidate=0.0)
    assert result.verdict == "not comparable" and "no share of it can be closed" in result.means


def test_a_gap_of_an_arm_without_a_setting_is_no_rule() -> None:
    one = ReadingRule.model_validate(
        {"id": "r", "question": "Which?", **GAP, "statistic": GAP["statistic"] | {"candidate": "K/e@2"}}
    )
    assert "statistic.candidate" in {field for field, _, _ in rule_faults(one)}


def test_rows_of_an_arm_that_was_not_scored_are_said_to_be_missing() -> None:
    result = read(GAP, protocol={"statistics": STATISTICS, "panels": {PANEL: PLAN}})
    assert (result.verdict, result.means) == ("not comparable", f"{CANDIDATE} was not measured")
