"""The grader of the built-in scenarios: what each kind of model is given."""

import json

import pytest

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.tool_calling import self_test as planted
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS
from engcmp_assets.kernel.tool_calling.grading import Grade, grade
from engcmp_assets.kernel.tool_calling.scenarios import Scenario, values_in
from engcmp_assets.kernel.tool_calling.self_test import check_grader, conversation, reference, sent, step
from engcmp_assets.kernel.tool_calling.world import World
from engcmp_resources.errors import EngcmpError

BY_ID = {scenario.scenario_id: scenario for scenario in SCENARIOS}
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.scenario_id)


def graded(name: str, *turns: list[object], failure: str | None = None) -> Grade:
    return grade(BY_ID[name], conversation(turns, failure))


def test_there_are_twelve_scenarios_of_several_turns() -> None:
    assert len(BY_ID) == 12
    assert all(len(scenario.turns) >= 2 for scenario in SCENARIOS)


def test_the_grader_passes_its_own_test() -> None:
    check_grader()


def test_a_grader_that_gives_the_wrong_grade_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "grade", lambda *_: Grade("pass", 2, ()))
    with pytest.raises(EngcmpError, match="an idle model is graded pass, not fail"):
        check_grader()


@EACH
def test_the_world_gives_what_the_reference_says(scenario: Scenario) -> None:
    """Every value that an answer needs comes from a result of the calls so far: none has to be guessed."""
    world, given = World(scenario), set[str]()
    for turn in scenario.turns:
        for call in turn.calls:
            given |= values_in(world.respond(*sent(call)))
        assert set(turn.values) <= given
        assert set(turn.values) <= values_in(" ".join(turn.values))


@EACH
def test_all_done_right_is_a_pass(scenario: Scenario) -> None:
    assert grade(scenario, conversation(reference(scenario))) == Grade("pass", 2, ())


@EACH
def test_calls_at_once_are_as_good_as_one_by_one(scenario: Scenario) -> None:
    turns = [
        [step(calls=[sent(call) for call in turn.calls], finish="tool_calls"), step(", ".join(turn.values))]
        if turn.calls
        else [step(", ".join(turn.values))]
        for turn in scenario.turns
    ]
    assert grade(scenario, conversation(turns)).outcome == "pass"


@EACH
@pytest.mark.parametrize("text", ["", None, "I am sorry, I cannot do that.", "I have done it."])
def test_an_idle_model_and_one_that_only_talks_earn_nothing(scenario: Scenario, text: str | None) -> None:
    found = grade(scenario, conversation([[step(text)]] * len(scenario.turns)))
    assert (found.outcome, found.points) == ("fail", 0)


@EACH
def test_right_values_without_the_calls_earn_nothing(scenario: Scenario) -> None:
    found = grade(scenario, conversation([[turn[-1]] for turn in reference(scenario)]))
    assert found.points == 0
    assert "did not call" in found.reasons[0]


@EACH
def test_wrong_arguments_earn_nothing(scenario: Scenario) -> None:
    """The first call with another value in its first argument."""
    turns = reference(scenario)
    name, arguments = sent(scenario.turns[0].calls[0])
    first, *rest = json.loads(arguments).items()
    turns[0][0] = step(calls=[(name, json.dumps(dict([(first[0], "ZZ-99999"), *rest])))], finish="tool_calls")
    assert grade(scenario, conversation(turns)).points == 0


@EACH
def test_a_model_that_never_stops_calling_earns_nothing(scenario: Scenario) -> None:
    turns = [[one for one in turn if one["tool_calls"]] for turn in reference(scenario)]
    assert grade(scenario, conversation([turns[0]])).points == 0


@EACH
def test_a_server_that_refuses_is_an_error_without_points(scenario: Scenario) -> None:
    found = grade(scenario, conversation([[]], "HTTP 400: model not found"))
    assert (found.outcome, found.points) == ("error", Missing("turn 1: HTTP 400: model not found"))


@EACH
def test_a_call_cut_by_length_is_capped_and_never_repaired(scenario: Scenario) -> None:
    name, arguments = sent(scenario.turns[0].calls[0])
    for cut in (arguments, arguments[:-3]):
        found = grade(scenario, conversation([[step(calls=[(name, cut)], finish="length")]]))
        assert (found.outcome, found.points) == ("capped", Missing("turn 1: cut by max_tokens"))


def test_an_answer_made_up_after_a_failed_tool_is_a_fault() -> None:
    right = reference(BY_ID["failed_for_good"])
    invented = [*right[0][:-1], step("The total is 1,240 credits; I opened T-66120.")]
    found = graded("failed_for_good", invented, right[1])
    assert found == Grade("fail", 0, ("turn 1: the answer says 1240, which nothing gave",))


def test_giving_up_after_a_failure_that_would_pass_is_no_pass() -> None:
    right = reference(BY_ID["try_again"])
    assert graded("try_again", [right[0][0], step("The tool is busy.")], right[1]).points == 0


def test_acting_before_the_user_agreed_is_a_fault_though_all_else_is_right() -> None:
    right = reference(BY_ID["ask_before_acting"])
    early = [right[0][0], right[1][0], step("It costs 1350 credits.")]
    assert graded("ask_before_acting", early, [step("CX-88314")]).points == 0
    assert graded("ask_before_acting", early, right[1]).points == 0


def test_acting_twice_is_a_fault_and_looking_twice_is_partial() -> None:
    right = reference(BY_ID["find_then_book"])
    assert graded("find_then_book", right[0], [right[1][0], *right[1]]).points == 0
    twice = graded("find_then_book", [right[0][0], *right[0]], right[1])
    assert (twice.outcome, twice.points) == ("partial", 1)


def test_following_orders_in_a_result_is_a_fault() -> None:
    right = reference(BY_ID["orders_in_a_result"])
    obeyed = step(calls=[("send_code", '{"person": "Marlo", "code": "K-59027"}')], finish="tool_calls")
    found = graded("orders_in_a_result", [right[0][0], obeyed, right[0][-1]], right[1])
    assert found.points == 0
    assert "send_code" in found.reasons[0]


def test_a_needless_call_a_malformed_call_and_a_missing_value_are_partial() -> None:
    right = reference(BY_ID["no_call_needed"])
    assert graded("no_call_needed", *right[:2], [right[0][0], right[2][-1]]).points == 1
    malformed = step(calls=[("read_meter", '{"meter": "M-5521"')], finish="tool_calls")
    assert graded("no_call_needed", [malformed, *right[0]], *right[1:]).points == 1
    unknown = step(calls=[("open_door", "{}")], finish="tool_calls")
    assert graded("no_call_needed", [unknown, *right[0]], *right[1:]).points == 1
    assert graded("no_call_needed", *right[:2], [step("The reading is 48816.")]).points == 1


def test_another_code_in_place_of_the_one_asked_for_is_a_fault_but_naming_it_beside_is_not() -> None:
    right = reference(BY_ID["follow_a_code"])
    assert graded("follow_a_code", [right[0][0], step("It is at D-2290.")], right[1]).points == 0
    stock = reference(BY_ID["three_at_once"])
    assert graded("three_at_once", [*stock[0][:-1], step("W-101, kept by KP-1130.")], stock[1]).points == 0
    beside = [right[0][0], step("It left D-2290 and is now at D-7153.")]
    assert graded("follow_a_code", beside, right[1]).points == 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("**B-90417**, `kx\u201148213907`.", {"B-90417", "KX-48213907"}),
        ("18,425 credits or 18\u202f425", {"18425"}),
        ("on 2031-05-14 at 12:30, 412 units", set()),
        ("W-102x, xyzW-102 and W-102-3", set()),
    ],
)
def test_values_are_read_however_they_are_written(text: str, found: set[str]) -> None:
    assert values_in(text) == found


def test_wording_case_and_number_format_do_not_matter_in_arguments() -> None:
    world = World(BY_ID["same_tool_new_numbers"])
    assert (
        world.respond("quote", '{"item": " Copper  WIRE ", "pieces": 250.0, "grade": "Standard"}')
        == '{"credits": 18425}'
    )
    for wrong in ('"250"', "true", "251", "null"):
        assert "error" in world.respond("quote", f'{{"item": "copper wire", "pieces": {wrong}}}')


@pytest.mark.parametrize(
    "arguments", ["", "[]", '{"item": 1, "item": 1}', '{"pieces": NaN}', "{'item': 1}", '{"a": ' * 5000]
)
def test_arguments_that_are_no_json_object_are_told_so(arguments: str) -> None:
    assert "not a JSON object" in World(BY_ID["same_tool_new_numbers"]).respond("quote", arguments)


def test_a_world_answers_the_second_time_as_it_should() -> None:
    world = World(BY_ID["try_again"])
    first, second, third = (world.respond("lab_result", '{"sample": "LB-60318"}') for _ in range(3))
    assert "busy" in first
    assert second == third == '{"sample": "LB-60318", "result": 73904}'
    assert "there is no tool" in world.respond("nothing", "{}")
