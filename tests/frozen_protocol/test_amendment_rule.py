"""How an amendment reads what was captured before it: as it stood only where nothing that decides it has changed."""

from __future__ import annotations

from typing import Any

import pytest

from engcmp_assets.frozen_protocol.amending import reading_rule
from engcmp_assets.kernel.freeze_times import EXPLORATORY, UNCHANGED
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.study import load_study
from engcmp_assets.kernel.throughput_tables import Band


def rule(before: Protocol, after: Protocol) -> str:
    return reading_rule(before, after, same_prompts=True, same_versions=True, own=None)["rule"]


@pytest.fixture(scope="module")
def replies() -> Protocol:
    return load_study("smollm2-replies").protocol


@pytest.fixture(scope="module")
def speeds() -> Protocol:
    return load_study("smollm2-cpu").protocol


def changed(protocol: Protocol, part: str, **values: Any) -> Protocol:
    return protocol.model_copy(update={part: getattr(protocol, part).model_copy(update=values)})


def test_what_is_only_for_readers_leaves_earlier_captures_as_they_were(replies: Protocol) -> None:
    assert rule(replies, replies.model_copy(update={"title": "another", "limits": {"one": "more"}})) == UNCHANGED


def test_another_way_to_make_replies_or_to_load_makes_earlier_ones_exploratory(
    replies: Protocol, speeds: Protocol
) -> None:
    assert replies.long_replies is not None and speeds.throughput is not None and speeds.startup is not None
    assert rule(replies, changed(replies, "long_replies", concurrency=7)) == EXPLORATORY
    assert rule(replies, changed(replies, "long_replies", seed=7)) == EXPLORATORY
    assert rule(speeds, changed(speeds, "startup", warm_starts=speeds.startup.warm_starts + 1)) == EXPLORATORY
    for part in ("throughput", "startup"):
        assert rule(speeds, speeds.model_copy(update={part: None})) == EXPLORATORY  # taken away
        assert rule(speeds.model_copy(update={part: None}), speeds) == UNCHANGED  # given for the first time


def test_another_rule_of_judging_makes_them_exploratory_too(replies: Protocol) -> None:
    fewer = replies.model_copy(update={"comparisons": replies.comparisons[:-1]})
    assert rule(fewer, replies) == EXPLORATORY
    assert rule(replies, changed(replies, "statistics", replicates=7)) == EXPLORATORY


def test_a_look_or_a_band_that_is_declared_later_makes_them_exploratory_and_a_new_label_does_not(
    speeds: Protocol,
) -> None:
    """Fields that no artifact's parameters hold decide too: they are compared as records, not as what a record prints."""
    panels = {name: plan.model_copy(update={"by": ("block", "bucket")}) for name, plan in speeds.panels.items()}
    assert rule(speeds, speeds.model_copy(update={"panels": panels})) == EXPLORATORY
    first, *others = speeds.comparisons
    for field, value in (("closes", "another"), ("band", Band(share=0.5, least_hours=1.0))):
        changes = [first.model_copy(update={field: value}), *others]
        assert rule(speeds, speeds.model_copy(update={"comparisons": changes})) == EXPLORATORY
    named = {name: plan.model_copy(update={"label": "another"}) for name, plan in speeds.panels.items()}
    assert rule(speeds, speeds.model_copy(update={"panels": named})) == UNCHANGED
