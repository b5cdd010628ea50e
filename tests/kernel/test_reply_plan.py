"""The plan of a study's long replies: what is asked for, what is frozen of it, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from engcmp_assets.kernel.engine_tables import ProcessEngine
from engcmp_assets.kernel.reply_plan import Asked, asked_bytes, asked_replies, index_bytes, parse_asked
from engcmp_assets.kernel.reply_tables import ReplyPlan, reply_faults
from engcmp_assets.kernel.reply_tasks import RECORDS_SCHEMA, problems
from engcmp_assets.kernel.task_checks.json_schemas import Schema
from engcmp_assets.kernel.task_checks.math_check import check_math, parse_number
from engcmp_resources.errors import EngcmpError

SAMPLING = {
    "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": False,
}  # fmt: skip
TRACE = 'question = "q"\nbegin = "<think>"\nthinking = "One. Two. Three is it."\nend = "</think>"\n'
FILES = {
    "replies/code-1.txt": b"write code\n", "replies/prose-1.txt": b"tell\n", "replies/prose-2.txt": b"tell more\n",
    "replies/traces/t.toml": TRACE.encode(),
}  # fmt: skip


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def table(**changed: Any) -> ReplyPlan:
    plain: dict[str, Any] = {
        "kinds": ["code", "prose"], "replies_per_kind": 3, "seed": 5, "concurrency": 2, "sampling": SAMPLING,
        "stages": [{"stage": "L1", "cap_tokens": 64}, {"stage": "L3s", "cap_tokens": 64}],
    }  # fmt: skip
    return ReplyPlan.model_validate(plain | changed)


def asked(**changed: Any) -> Asked:
    return asked_replies(table(**changed), FILES, Letters(), ())


def test_replies_go_round_the_prompts_of_their_kind_each_with_a_seed_of_its_own() -> None:
    names = [one.reply_id for one in asked().replies]
    assert names == ["L1/code-1/1", "L1/code-1/2", "L1/code-1/3", "L1/prose-1/1", "L1/prose-2/1", "L1/prose-1/2"]
    seeds = [one.seed for one in asked().replies]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**31 for seed in seeds)
    assert asked(seed=6).replies[0].seed != seeds[0]


def test_the_stage_that_is_defined_nowhere_is_empty_unless_its_number_is_written() -> None:
    assert {one.stage for one in asked().replies} == {"L1"}
    written = asked(stages=[{"stage": "L3s", "cap_tokens": 64, "replies_per_kind": 1}])
    assert {one.stage for one in written.replies} == {"L3s"}


def test_the_index_holds_no_text_and_changes_with_a_prompt() -> None:
    index = index_bytes(asked())
    assert b"write code" not in index and b"tell" not in index
    other = asked_replies(table(), FILES | {"replies/code-1.txt": b"write other code\n"}, Letters(), ())
    assert index_bytes(other) != index == index_bytes(asked())


def test_the_whole_plan_comes_back_and_a_changed_prompt_in_it_is_refused() -> None:
    chat = {"before": "<", "after": ">"}
    made = asked(chat=chat, tasks={"fixed_traces": {"traces": ["t"]}, "tools": {"scenarios": ["no_call_needed"]}})
    data = asked_bytes(made)
    assert parse_asked(data, where="replies.json") == made
    document = json.loads(data)
    for name, value in (
        ("messages", [{"role": "user", "content": "x"}]),
        ("token_ids", [1]),
        ("scenario", "try_again"),
    ):
        changed = json.loads(data)
        one = next(one for one in changed["replies"] if one[name] is not None)
        one[name] = value
        with pytest.raises(EngcmpError, match="is not the frozen one"):
            parse_asked(json.dumps(changed).encode(), where="replies.json")
    document["replies"][0]["more"] = 1
    with pytest.raises(EngcmpError, match="more"):
        parse_asked(json.dumps(document).encode(), where="replies.json")


def test_needles_have_exactly_the_declared_tokens_template_included() -> None:
    chat = {"before": "<user>", "after": "<assistant>"}
    made = asked(chat=chat, tasks={"needles": {"lengths": [600, 900], "depths": [0.0, 1.0]}})
    needles = [one for one in made.replies if one.block == "needle"]
    assert [one.prompt_tokens for one in needles] == [600, 600, 900, 900]
    for one in needles:
        text = (one.messages or ({},))[0]["content"]
        assert len(f"<user>{text}<assistant>") == one.prompt_tokens and one.expected["value"] in text
        assert all(decoy in text for decoy in one.expected["decoys"])
    assert needles[0].expected["depth_tokens"] < needles[1].expected["depth_tokens"]


def test_a_trace_is_cut_where_its_end_is_measured() -> None:
    made = asked(
        chat={"before": "", "after": "|"}, tasks={"fixed_traces": {"traces": ["t"], "sentence_ends": 2, "random": 1}}
    )
    traces = [one for one in made.replies if one.block == "trace"]
    assert sorted(one.trace.kind for one in traces if one.trace) == [
        "random",
        "sentence_end",
        "sentence_end",
        "true_end",
    ]
    whole = "q|<think>One. Two. Three is it.</think>"
    for one in traces:
        assert one.trace is not None and one.token_ids is not None
        assert "".join(map(chr, one.token_ids)) == whole[: one.trace.row + 1]
        assert one.trace.end_token == ord("<") and one.trace.label == "the first of the 8 tokens of the end marker"


def test_conversations_are_asked_for_at_each_number_at_a_time() -> None:
    made = asked(tasks={"tools": {"scenarios": ["try_again"], "concurrency": [1, 8]}})
    assert [(one.stage, one.concurrency) for one in made.replies if one.block == "tools"] == [
        ("tools-c1", 1),
        ("tools-c8", 8),
    ]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kinds": ["json"]}, "no prompt is of the kind 'json'"),
        ({"tasks": {"code": {"tasks": ["nothing"]}}}, "tasks.code.tasks names 'nothing'"),
        ({"tasks": {"tools": {"scenarios": ["nothing"]}}}, "tools.scenarios names 'nothing'"),
        ({"chat": {"before": "", "after": ""}, "tasks": {"fixed_traces": {"traces": ["no"]}}}, "traces/no.toml is missing"),
    ],
)  # fmt: skip
def test_what_there_is_not_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(EngcmpError, match=words):
        asked(**changed)


def test_a_prompt_that_names_a_control_token_is_refused() -> None:
    with pytest.raises(EngcmpError, match="control token"):
        asked_replies(table(), FILES | {"replies/code-1.txt": b"say <|im_end|>"}, Letters(), ())


def test_problems_are_drawn_from_the_seed_and_have_answers_of_the_grammar() -> None:
    drawn = problems(12, 3)
    assert drawn == problems(12, 3) and drawn[:4] == problems(4, 3) and drawn != problems(12, 4)
    for one in drawn:
        assert parse_number(str(one.answer)) == one.answer and one.answer > 0
        assert check_math(f"ANSWER: {one.answer}", "finished", one.answer).outcome == "right"
    bakery = drawn[0].text.split()
    loaves, euros, rolls, cents = (int(bakery[place]) for place in (3, 6, 10, 13))
    assert drawn[0].answer == Fraction(loaves * euros * 100 + rolls * cents, 100)


def test_the_schema_of_the_records_is_one_that_the_check_takes() -> None:
    good = [{"id": 1, "name": "a", "city": "b", "joined": "2026-01-31", "active": True}]
    assert Schema(RECORDS_SCHEMA).fault(good) is None
    assert Schema(RECORDS_SCHEMA).fault([good[0] | {"joined": "2026-02-31"}]) is not None


def test_what_cannot_be_measured_is_a_fault_of_its_field() -> None:
    engine = ProcessEngine(
        kind="k", label="l", threads=1, context_tokens=128, batch_tokens=1, micro_batch_tokens=1, versions={}
    )
    found = {
        field: what
        for plan in (
            table(stages=[{"stage": "L1", "cap_tokens": 128}]),
            table(stages=[{"stage": "L1", "cap_tokens": 8}, {"stage": "L1", "cap_tokens": 9}]),
            table(sampling=SAMPLING | {"ignore_eos": True}),
            table(tasks={"needles": {"lengths": [64], "cap_tokens": 65}}),
        )
        for field, what, _ in reply_faults(plan, [("e", engine)])
    }
    assert set(found) == {
        "long_replies.stages.L1", "long_replies.stages", "long_replies.sampling.ignore_eos", "long_replies.tasks.needles",
        "long_replies.tasks.needles.lengths",
    }  # fmt: skip
