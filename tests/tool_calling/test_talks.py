"""Conversations with tools over HTTP, against a stub: from the request to the grade."""

import json
import threading
from typing import Any

import pytest
from chat_stub import Model, Says, serving

from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS, SYSTEM
from engcmp_assets.kernel.tool_calling.grading import Grade, grade
from engcmp_assets.kernel.tool_calling.scenarios import Scenario
from engcmp_assets.kernel.tool_calling.self_test import sent
from engcmp_assets.kernel.tool_calling.suite_runs import builtin_run, score
from engcmp_assets.kernel.tool_calling.world import World
from engcmp_resources.errors import EngcmpError
from engcmp_resources.tool_calling import ChatSettings, Talk, hold_talks

SETTINGS = ChatSettings(seed=11, max_tokens=500, timeout_s=30)


def talk_of(scenario: Scenario) -> Talk:
    tools = [tool.as_json() for tool in scenario.tools]
    return Talk(scenario.scenario_id, SYSTEM, tools, [turn.user for turn in scenario.turns], World(scenario).respond)


def all_right(body: dict[str, Any]) -> Says:
    """A model that does every scenario right: it finds its place from the messages."""
    users = [message["content"] for message in body["messages"] if message["role"] == "user"]
    scenario = next(one for one in SCENARIOS if one.turns[0].user == users[0])
    turn = scenario.turns[len(users) - 1]
    since = body["messages"][max(n for n, one in enumerate(body["messages"]) if one["role"] == "user") :]
    made = sum(len(one.get("tool_calls") or []) for one in since)
    if made < len(turn.calls):
        return Says(calls=(sent(turn.calls[made]),), reasoning="I call a tool.")
    return Says(f"Here: {', '.join(turn.values)}.")


def held(
    model: Model, *, concurrency: int = 1, settings: ChatSettings = SETTINGS
) -> tuple[dict[str, Any], dict[str, Grade], Any]:
    with serving(model) as stub:
        talks = hold_talks(stub.url, "stub", [talk_of(one) for one in SCENARIOS], settings, concurrency=concurrency)
    return talks, {one.scenario_id: grade(one, talks[one.scenario_id]) for one in SCENARIOS}, stub


def test_a_model_that_does_all_right_has_all_points_and_every_turn_its_time() -> None:
    talks, grades, stub = held(all_right)
    assert {found.reasons for found in grades.values()} == {()}
    run = builtin_run(grades, talks, {"seed": 11, "concurrency": 1})
    assert str(score(run)) == "24 of 24"
    assert all(ms > 0 for one in run["scenarios"] for ms in one["turn_ms"])
    assert sum(len(one["turn_ms"]) for one in run["scenarios"]) == len(stub.asked)
    assert max(stub.at_once) == 1


def test_requests_carry_tools_settings_and_the_whole_conversation() -> None:
    _, _, stub = held(all_right)
    first, second = stub.asked[0], stub.asked[1]
    wanted = {"seed": 11, "temperature": 0.0, "max_tokens": 500, "tool_choice": "auto", "model": "stub"}
    assert wanted.items() <= first.items()
    assert first["messages"][0] == {"role": "system", "content": SYSTEM}
    assert first["tools"][0]["function"]["parameters"]["additionalProperties"] is False
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][3]["tool_call_id"] == second["messages"][2]["tool_calls"][0]["id"]
    assert "reasoning" not in json.dumps(second["messages"][2])


def test_eight_at_once_are_eight_at_once_and_grade_the_same() -> None:
    barrier = threading.Barrier(8)

    def model(body: dict[str, Any]) -> Says:
        if len(body["messages"]) == 2 and len(waiting) < 8:
            waiting.append(1)
            barrier.wait(timeout=20)  # passes only when eight conversations are open
        return all_right(body)

    waiting: list[int] = []
    _, grades, stub = held(model, concurrency=8)
    assert max(stub.at_once) == 8
    assert all(found.points == 2 for found in grades.values())


@pytest.mark.parametrize("says", [Says(""), Says("I will do that."), Says(calls=(("no_such_tool", "{}"),))])
def test_models_that_do_nothing_have_no_point(says: Says) -> None:
    talks, grades, _ = held(lambda _: says)
    assert str(score(builtin_run(grades, talks, {"seed": 1, "concurrency": 1}))) == "0 of 24"


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_server_that_refuses_gives_errors_not_points_and_is_asked_once(status: int) -> None:
    talks, grades, stub = held(lambda _: Says(status=status))
    found = score(builtin_run(grades, talks, {"seed": 1, "concurrency": 1}))
    assert str(found) == "0 of 0 (0 of 12 scenarios graded)"
    assert found.outcomes == {"error": 12}
    assert len(stub.asked) == 12
    assert f"HTTP {status}: " in grades["three_at_once"].reasons[0]


def test_a_call_cut_by_length_is_not_carried_out() -> None:
    def model(body: dict[str, Any]) -> Says:
        found = all_right(body)
        return Says(calls=found.calls, finish="length") if found.calls else found

    talks, grades, stub = held(model)
    assert {found.outcome for found in grades.values()} == {"capped"}
    assert len(stub.asked) == 12
    assert talks["three_at_once"]["turns"][0]["steps"][0]["results"] == []


def test_a_model_that_calls_for_ever_is_ended() -> None:
    talks, grades, stub = held(
        lambda _: Says(calls=(("stock", '{"warehouse": "W-101"}'),)), settings=ChatSettings(seed=1, max_steps=3)
    )
    assert len(stub.asked) == 36
    assert grades["three_at_once"].points == 0
    assert len(talks["three_at_once"]["turns"]) == 1


def test_calls_without_ids_of_their_own_are_told_apart() -> None:
    """Two calls in one message that both came as call_0 would be answered as one."""
    scenario = next(one for one in SCENARIOS if one.scenario_id == "three_at_once")

    def model(body: dict[str, Any]) -> Says:
        if len(body["messages"]) == 2:
            return Says(calls=tuple(sent(call) for call in scenario.turns[0].calls))
        return Says("KP-2204")

    with serving(model) as stub:
        hold_talks(stub.url, "stub", [talk_of(scenario)], SETTINGS, concurrency=1)
    answers = [message for message in stub.asked[1]["messages"] if message["role"] == "tool"]
    assert [json.loads(one["content"])["units"] for one in answers] == [412, 958, 77]
    assert len({one["tool_call_id"] for one in answers}) == 3


def test_a_server_that_is_gone_or_says_no_json_is_an_error() -> None:
    scenario = SCENARIOS[0]
    with serving(all_right) as stub:
        pass
    gone = hold_talks(stub.url, "stub", [talk_of(scenario)], SETTINGS, concurrency=1)
    assert gone[scenario.scenario_id]["turns"][0]["failure"] == "the connection failed: ConnectError"
    assert grade(scenario, gone[scenario.scenario_id]).outcome == "error"


def test_a_slow_server_is_given_up() -> None:
    release = threading.Event()

    def model(_: dict[str, Any]) -> Says:
        release.wait(timeout=20)
        return Says("late")

    with serving(model) as stub:
        talks = hold_talks(
            stub.url, "stub", [talk_of(SCENARIOS[0])], ChatSettings(seed=1, timeout_s=0.3), concurrency=1
        )
        release.set()
    assert talks[SCENARIOS[0].scenario_id]["turns"][0]["failure"] == "no answer within 0.3 s"


def test_ids_that_repeat_are_refused() -> None:
    with pytest.raises(EngcmpError, match="give 1 or more at once, and each conversation an id of its own"):
        hold_talks("http://127.0.0.1:1", "m", [talk_of(SCENARIOS[0])] * 2, SETTINGS, concurrency=1)
