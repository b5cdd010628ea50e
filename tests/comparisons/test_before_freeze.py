"""What was measured before its freeze is shown and never judged: the rows, speeds and replies of pairs, and an arm's own figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from homes import Q4, Q8, current_receipt, quiet

from engcmp_assets.comparisons.before_freeze import demoted
from engcmp_assets.kernel.early_measurements import early_blocks
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study
from engcmp_assets.kernel.work import SEEN, Session, prepare
from engcmp_assets.publication.formats import arm_remarks
from engcmp_assets.summaries.step import step as summaries
from engcmp_resources.store import Store

WHY = "it began before its freeze"


def pair(**changes: Any) -> dict[str, Any]:
    figures = [
        {"measure": "kl_full", "primary": True, "verdict": "resolved", "sentence": "a is closer", "value": 0.1},
        {"measure": "nll", "primary": False, "verdict": "not resolved, no floor", "sentence": "unclear", "value": 0.2},
        {
            "measure": "rows_bit_identical",
            "primary": False,
            "verdict": "bit-identical",
            "sentence": "equal",
            "value": 1.0,
        },
    ]
    return {
        "candidate": Q4,
        "baseline": Q8,
        "state": "compared",
        "figures": figures,
        "confounds": ["a confound"],
    } | changes


def test_a_pair_with_an_early_arm_has_no_primary_figure_and_no_judgement_and_says_so_first() -> None:
    found = demoted(pair(), {"before_freeze": {Q8: WHY}})
    assert [one["verdict"] for one in found["figures"]] == ["descriptive", "descriptive", "bit-identical"]
    assert not any(one["primary"] for one in found["figures"])
    assert [one["value"] for one in found["figures"]] == [0.1, 0.2, 1.0]
    words = f"Captured before its freeze, so never a primary result: {Q8}: {WHY}"
    assert found["confounds"] == [words, "a confound"]
    assert found["figures"][0]["sentence"].startswith("descriptive: captured before its freeze")


def test_other_pairs_stay_as_they_are() -> None:
    assert demoted(pair(), {}) == pair()
    assert demoted(pair(), {"before_freeze": {"q8_0/llamacpp@b8672": WHY}}) == pair()
    assert demoted(pair(), {"speed_before_freeze": {Q8: WHY}}) == pair(), "it has no speeds"
    assert demoted(pair(state="not comparable"), {"before_freeze": {Q4: WHY}}) == pair(state="not comparable")


def test_early_speeds_are_neither_faster_nor_slower_and_the_rows_of_the_same_arms_stay_judged() -> None:
    figure = {"measure": "decode_tok_s", "primary": False, "verdict": "faster", "sentence": "1.2 times", "value": 1.2}
    level = figure | {"verdict": "no floor"}
    measure = {"measure": "decode_tok_s", "sentence": "1 faster of 2", "counts": {"faster": 1}, "labels": []}
    found = demoted(pair(speed={"figures": [figure, level], "measures": [measure]}), {"speed_before_freeze": {Q8: WHY}})
    assert [one["verdict"] for one in found["speed"]["figures"]] == ["descriptive", "no floor"]
    (told,) = found["speed"]["measures"]
    assert told["sentence"].startswith("descriptive: captured before its freeze") and told["counts"] == {"faster": 0}
    assert found["figures"] == pair()["figures"] and found["confounds"][0].startswith("Speeds captured before")


def test_captures_are_held_against_the_freeze_by_the_receipt_that_measured_them(
    study: Study, measured_home: Path
) -> None:
    frozen = dict(study.frozen or {})
    under = current_receipt(measured_home, "captured_rows/pa", Q4)["frozen_sha256"]
    assert early(study, measured_home, frozen) == {} and under == frozen["frozen_sha256"]
    alone = frozen | {"amendments": []}
    other = early(study, measured_home, alone | {"frozen_sha256": "0" * 64})
    assert all("none of this study's" in why for why in other.values()) and set(other) == {"q", "t"}
    amended = early(study, measured_home, exploratory(frozen, under))
    assert set(amended) == {"q", "t"}
    assert all("before the amendment of 2026-11-30: why" in why for why in amended.values())


def test_an_arm_s_own_figures_are_never_primary_where_it_was_measured_before_its_freeze(
    study: Study, measured_home: Path
) -> None:
    """The summary of what the store holds, made under an amendment that reads what was captured before it as exploratory."""
    arm, step = ArmKey.parse(Q4), summaries(study)
    store = Store(measured_home, read_only=True)
    work = prepare(Session(study, store, "test", quiet), step, arm)
    as_frozen = json.loads(next(one.content for one in step.make(work).products if one.name == "summary.json"))
    assert any(one["details"]["primary"] for one in as_frozen["figures"]) and "before_freeze" not in as_frozen
    under = current_receipt(measured_home, "captured_rows/pa", Q4)["frozen_sha256"]
    later = Session(replace(study, frozen=exploratory(dict(study.frozen or {}), under)), store, "test", quiet)
    assert step.seen is not None
    seen = step.seen(later, set(work.inputs))
    made = step.make(replace(work, parameters={**work.parameters, SEEN: seen}))
    found = json.loads(next(one.content for one in made.products if one.name == "summary.json"))
    assert not any(one["details"]["primary"] for one in found["figures"])
    assert [one["value"] for one in found["figures"]] == [one["value"] for one in as_frozen["figures"]]
    speeds = [one for cell in found["speed"] for one in cell["figures"]]
    assert speeds and all("never a primary result" in one["details"]["before_freeze"] for one in speeds)
    assert set(found["before_freeze"]) == {"precision", "speed"} and len(made.flags) == 2
    assert arm_remarks(found)[0].startswith("precision captured before its freeze, so never a primary result: ")


def early(study: Study, home: Path, frozen: dict[str, Any]) -> dict[str, str]:
    session = Session(replace(study, frozen=frozen), Store(home, read_only=True), "test", quiet)
    return early_blocks(session, ArmKey.parse(Q4))


def exploratory(frozen: dict[str, Any], under: str) -> dict[str, Any]:
    """A later freeze, whose amendment reads what was captured under this one as exploratory."""
    changed = {"from": under, "because": "why", "amended_at": "2026-11-30", "reading": {"rule": "exploratory"}}
    return frozen | {"frozen_sha256": "0" * 64, "amendments": [changed]}
