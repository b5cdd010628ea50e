"""A plan counts what a protocol asks for: launches, requests, tokens, rows, bytes, and hours where rates are declared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from homes import Q4, current_receipt

from engcmp_assets.kernel.names import captured_rows
from engcmp_assets.kernel.planning import DeclaredPanel, PlannedLaunch, arm_plan, reference_bytes, row_bytes, total
from engcmp_assets.kernel.planning_tables import EngineRates
from engcmp_assets.kernel.protocol import Protocol
from engcmp_assets.kernel.records import ArmKey, Missing, Panel
from engcmp_assets.kernel.reply_tables import ReplyPlan
from engcmp_assets.kernel.study import Study

ARM = ArmKey.parse(Q4)
HEADERS = 2_000  # a file's header of names and shapes: at most so many bytes


@pytest.fixture
def panels(study: Study) -> dict[str, Panel]:
    return {name: study.panel(name) for name in study.protocol.panels}


def planned(protocol: Protocol, panels: Any, rates: EngineRates | None = None) -> tuple[PlannedLaunch, ...]:
    given = protocol.model_copy(update={"rates": {} if rates is None else {ARM.engine: rates}})
    return arm_plan(given, ARM, panels).launches


def test_the_launches_are_those_that_the_protocol_asks_for(study: Study, panels: dict[str, Panel]) -> None:
    launches = planned(study.protocol, panels)
    assert [(one.mode, one.path, one.number, one.repeats) for one in launches] == [
        ("scoring", "prefill", 1, 2), ("scoring", "prefill", 2, 2), ("scoring", "decode", 3, 2),
        ("serving", "serving", 1, 1), ("serving", "serving", 2, 1),
    ]  # fmt: skip


def test_a_window_that_several_panels_keep_rows_of_is_one_request(study: Study, panels: dict[str, Panel]) -> None:
    prefill, _, decode, *_ = planned(study.protocol, panels)
    tokens = {window.window_id: len(window.tokens) for panel in panels.values() for window in panel.windows}
    assert prefill.requests == 2 * len(tokens) and prefill.prompt_tokens == 2 * sum(tokens.values())
    assert [(one.panel, one.rows) for one in prefill.captures] == [
        ("pa", 2 * 384),
        ("pb", 2 * panels["pb"].rows),
        ("pd", 2 * 16),
    ]
    assert (decode.requests, decode.output_tokens) == (4, 32)


def test_a_serving_start_sends_the_frozen_plan_s_requests(study: Study, panels: dict[str, Panel]) -> None:
    from engcmp_assets.throughput_events.plan import parse_index

    index = parse_index(study.files["throughput_plan.json"], where="plan")
    cells = index.of_repeat(1)
    sent = [(cell.prompt_tokens, len(cell.requests) + len(cell.warmup)) for cell in cells]
    serving = planned(study.protocol, panels)[-1]
    assert serving.requests == sum(count for _, count in sent)
    assert serving.prompt_tokens == sum(tokens * count for tokens, count in sent)
    assert serving.output_tokens == index.output_tokens * sum(count for _, count in sent)


def test_planned_bytes_are_those_of_the_files_that_a_capture_writes(
    study: Study, panels: dict[str, Panel], measured_home: Any
) -> None:
    for name, panel in panels.items():
        outputs = [
            one for one in current_receipt(measured_home, captured_rows(name), Q4)["outputs"] if one["role"] == "data"
        ]
        files = [one for one in outputs if one["suffix"] == "safetensors"]
        passes = len(files) / len(panel.windows)
        written = sum(one["bytes"] for one in files)
        assert 0 <= written - panel.rows * passes * row_bytes(panel) <= HEADERS * len(files), name
    reference = [
        one for one in current_receipt(measured_home, "reference_rows", Q4)["outputs"] if one["suffix"] == "safetensors"
    ]
    asked = sum(reference_bytes(panel) for panel in panels.values())
    assert 0 <= sum(one["bytes"] for one in reference) - asked <= HEADERS * len(reference)


def test_light_rows_are_a_small_part_of_full_ones(panels: dict[str, Panel]) -> None:
    assert row_bytes(replace(panels["pa"], keep="light")) < row_bytes(panels["pa"]) / 700
    assert row_bytes(replace(panels["pa"], reference="none")) == row_bytes(panels["pa"]), (
        "engines are compared by whole rows"
    )


def test_hours_follow_from_declared_rates(study: Study, panels: dict[str, Panel]) -> None:
    rates = EngineRates(basis="made up", start_s=3600, prefill_tok_s=4246 / 3600, decode_tok_s={"1": 32 / 3600})
    prefill, _, decode, serving, _ = planned(study.protocol, panels, rates)
    assert prefill.hours == pytest.approx(2.0)
    assert decode.hours == pytest.approx(1 + 494 / 4246 + 1.0)
    assert serving.hours == Missing("no rate declared: decode_tok_s of 2 at a time")
    assert arm_plan(study.protocol.model_copy(update={"rates": {}}), ARM, panels).hours == Missing("no rate declared")


@pytest.mark.parametrize("lacking", ["start_s", "prefill_tok_s"])
def test_a_rate_that_is_not_declared_is_named(study: Study, panels: dict[str, Panel], lacking: str) -> None:
    rates = EngineRates(basis="b", start_s=1, prefill_tok_s=1).model_copy(update={lacking: None})
    assert planned(study.protocol, panels, rates)[0].hours == Missing(f"no rate declared: {lacking}")


def test_of_a_panel_that_is_not_made_yet_nothing_is_counted_and_the_reason_is_given(
    study: Study, panels: dict[str, Panel]
) -> None:
    why = Missing("its windows are not made yet")
    prefill, _, decode, serving, _ = planned(study.protocol, panels | {"pa": why})
    assert prefill.requests == why and prefill.bytes == why and isinstance(prefill.hours, Missing)
    assert isinstance(prefill.captures[1].rows, int) and isinstance(decode.requests, int)
    assert isinstance(serving.requests, int)
    assert total([1, why, 2]) == why and total([1, 2]) == 3


# ---------------------------------------------------------------- panels from outside, long replies, arms of some blocks


def outside(**changes: Any) -> DeclaredPanel:
    told: dict[str, Any] = {
        "of": "panel-a/w", "vocab": 1000, "reference": "full", "keep": "rows", "top_k": None, "windows": 25, "rows": 51_175,
        "tokens": 51_200,
    }  # fmt: skip
    return DeclaredPanel(**told | changes)


def test_of_a_panel_from_outside_the_protocol_s_own_counts_are_taken(study: Study, panels: dict[str, Panel]) -> None:
    light = outside(keep="light")
    prefill = planned(study.protocol, panels | {"pa": outside(), "pb": light})[0]
    own = len(panels["pd"].windows)
    assert prefill.requests == 2 * (25 + own), "both keep rows of the same windows: one pass serves them"
    assert [(one.rows, one.bytes) for one in prefill.captures[:2]] == [
        (102_350, 102_350 * row_bytes(outside())), (102_350, 102_350 * row_bytes(light)),
    ]  # fmt: skip
    assert reference_bytes(outside(reference="none")) == 0
    unknown = planned(study.protocol, panels | {"pa": outside(rows=Missing("not stated"))})[0]
    assert unknown.captures[0].bytes == Missing("not stated") and isinstance(unknown.captures[1].bytes, int)


def test_an_arm_of_some_blocks_is_asked_for_these_alone(study: Study, panels: dict[str, Panel]) -> None:
    entries = [
        entry.model_copy(update={"blocks": ["t"]}) if entry.arm == Q4 else entry for entry in study.protocol.arms
    ]
    launches = planned(study.protocol.model_copy(update={"arms": entries}), panels)
    assert {one.mode for one in launches} == {"serving"}


def test_long_replies_are_counted_with_the_length_that_they_may_have(study: Study, panels: dict[str, Panel]) -> None:
    sampling = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": False,
    }  # fmt: skip
    stages: list[dict[str, object]] = [
        {"stage": "L1", "cap_tokens": 100, "again": 2}, {"stage": "L2", "cap_tokens": 1000, "replies_per_kind": 1}
    ]  # fmt: skip
    plan = ReplyPlan.model_validate(
        {
            "kinds": ["code", "prose"],
            "replies_per_kind": 8,
            "seed": 1,
            "concurrency": 4,
            "sampling": sampling,
            "stages": stages,
        }
    )
    rates = EngineRates(basis="made up", start_s=0, prefill_tok_s=1, decode_tok_s={"4": 3600 / 3600})
    first, second = planned(study.protocol.model_copy(update={"long_replies": plan}), panels, rates)[-2:]
    assert (first.mode, first.requests, first.output_tokens) == ("replies", 18, 16 * 100 + 2 * 1000)
    assert first.hours == pytest.approx(1.0)
    assert (second.mode, second.number, second.requests, second.output_tokens) == ("replies", 2, 4, 4 * 100)
    plan = plan.model_copy(update={"stages": [one.model_copy(update={"again": 0}) for one in plan.stages]})
    assert planned(study.protocol.model_copy(update={"long_replies": plan}), panels, rates)[-1] == first


def test_hours_of_an_arm_say_whose_rates_they_are_worked_out_at(study: Study, panels: dict[str, Panel]) -> None:
    def of(**named: Any) -> str | None:
        rates = EngineRates(basis="a guess", **named)
        return arm_plan(study.protocol.model_copy(update={"rates": {ARM.engine: rates}}), ARM, panels).rates_of

    assert of() is None and of(measured_on=Q4) is None
    assert of(measured_on="q8_0/llamacpp@b8672") == "q8_0/llamacpp@b8672"
