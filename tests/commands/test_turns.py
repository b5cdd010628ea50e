"""The order in which `engcmp run` measures arms and the repeats of their speed."""

from __future__ import annotations

from dataclasses import replace

from speedy import protocol_with, speed_table

from engcmp_assets.commands.run import turns
from engcmp_assets.kernel.records import ArmKey
from engcmp_assets.kernel.study import Study

A, B, C = (ArmKey.parse(f"{name}/llamacpp@b11549") for name in ("a", "b", "c"))


def study_with(study: Study, table: str) -> Study:
    changed = replace(study)
    changed.__dict__["protocol"] = protocol_with(table)  # as its cached property would hold it
    return changed


def order(study: Study, table: str) -> list[tuple[str, str, int | None]]:
    return [(turn.arm.checkpoint, turn.job, turn.until) for turn in turns(study_with(study, table), [A, B, C])]


def test_without_a_speed_block_each_arm_has_one_turn(study: Study) -> None:
    assert order(study, "") == [("a", "arm", None), ("b", "arm", None), ("c", "arm", None)]


def test_repeats_go_round_the_arms_each_time_the_other_way(study: Study) -> None:
    assert order(study, speed_table(repeats=3)) == [
        ("a", "arm", 1), ("b", "arm", 1), ("c", "arm", 1),
        ("c", "speed", 2), ("b", "speed", 2), ("a", "speed", 2),
        ("a", "speed", None), ("b", "speed", None), ("c", "speed", None),
    ]  # fmt: skip


def test_or_always_the_same_way_where_the_protocol_says_so(study: Study) -> None:
    table = speed_table(repeats=2).replace('order = "abba"', 'order = "same"')
    assert [arm for arm, _, _ in order(study, table)] == ["a", "b", "c", "a", "b", "c"]


def test_a_single_repeat_is_measured_in_the_arm_s_own_turn(study: Study) -> None:
    assert order(study, speed_table(repeats=1)) == [("a", "arm", None), ("b", "arm", None), ("c", "arm", None)]


def test_a_turn_s_configuration_is_for_the_ops_of_its_job(study: Study) -> None:
    changed = study_with(study, speed_table(repeats=2))
    first, last = turns(changed, [A])
    prefix = changed.protocol.asset_prefix
    assert first.config(changed, remeasure=False) == {"ops": {f"{prefix}__serving": {"config": {"until_repeat": 1}}}}
    assert first.config(changed, remeasure=True)["ops"] == {
        f"{prefix}__scoring": {"config": {"remeasure": True}},
        f"{prefix}__serving": {"config": {"remeasure": True, "until_repeat": 1}},
    }
    assert last.config(changed, remeasure=False) == {"ops": {}}
    assert last.config(changed, remeasure=True)["ops"] == {f"{prefix}__serving": {"config": {"remeasure": True}}}
