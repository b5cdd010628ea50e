"""The asset's own work on replies as the driver leaves them: every reply is a row, nothing cut is wrong, and no text gets out."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from replies_corpus.writing import much, paragraph, sentence
from reply_arms import CODE_TASKS, ReplyArm

from engcmp_assets.kernel.reply_verdicts import Verdict, verdicts_of
from engcmp_assets.kernel.task_checks import json_check
from engcmp_assets.kernel.tool_calling.builtin import SCENARIOS
from engcmp_assets.kernel.tool_calling.self_test import reference, step
from engcmp_assets.kernel.work import Made
from engcmp_assets.long_output_checks import step as checks_step
from engcmp_assets.long_output_checks.step import make, make_again
from engcmp_resources.errors import EngcmpError
from engcmp_resources.reply_files import ReplyTokenizer
from engcmp_resources.sandbox.records import NoSandboxError

SCHEMA = {"type": "array", "items": {"type": "object", "required": ["id"]}}
RECORDS = {"records": 2, "at": "", "schema": SCHEMA}
NEEDLE = {"value": "4821937560", "decoys": ["9035127746"], "depth": 0.5, "depth_tokens": 40}


@pytest.fixture
def arm(tmp_path: Path, smollm2_weights: Path) -> ReplyArm:
    return ReplyArm(tmp_path, smollm2_weights)


def rows_of(made: Made) -> dict[str, Verdict]:
    (data,) = (one.content for one in made.products if one.name == "verdicts.parquet")
    assert isinstance(data, bytes)
    table = pl.read_parquet(io.BytesIO(data))
    return {one.reply_id: one for one in verdicts_of({name: table[name].to_list() for name in table.columns})}


def document_of(made: Made) -> dict[str, Any]:
    (data,) = (one.content for one in made.products if one.name == "checks.json")
    assert isinstance(data, bytes)
    document: dict[str, Any] = json.loads(data)
    return document


def figures_of(made: Made) -> dict[tuple[str, str], Any]:
    return {(one.population, one.measure): one for one in made.figures}


def no_sandbox(_hidden: object) -> None:
    raise NoSandboxError("no sandbox: neither", remedy="start one")


def test_every_reply_is_a_row_with_its_class_and_none_is_dropped(arm: ReplyArm) -> None:
    chance = Random(1)
    healthy, unit = much(paragraph, chance, 4000), sentence(chance) + " "
    arm.add("long", "p1", "", healthy, stage="L1")
    arm.add("long", "p2", healthy, "", finish_reason="length", stage="L1", n_tokens=256)
    arm.add("long", "p3", healthy + unit * 200, finish_reason="length", kind="reasoning", stage="L1")
    arm.add("long", "p4", "", healthy + unit * 200, finish_reason="stopped_early", stage="L1", flags=("stopped",))
    arm.add("long", "p5", healthy + unit * 300 + healthy[::-1], "It is 3.", stage="L1")
    arm.add("long", "p6", "", "", stage="L1")
    arm.add("long", "p7", "", "So it", status="incomplete", cause="no_done", finish_reason=None, stage="L1")
    arm.add("long", "p8", keep=False, status="failed", cause="http_500", finish_reason=None, stage="L1")
    arm.add("long", "p9", "", "It is", finish_reason="no_such_reason", stage="L1")
    made = make(arm.work())
    rows = rows_of(made)
    assert list(rows) == [one.reply_id for one in arm.records]
    assert {one.item: (one.finish, one.ending, one.looped) for one in rows.values()} == {
        "p1": ("finished", "finished", "no"), "p2": ("capped", "capped", "no"), "p3": ("capped", "looped", "yes"),
        "p4": ("stopped_early", "looped", "yes"), "p5": ("recovered", "recovered", "no"), "p6": ("empty", "empty", "no"),
        "p7": ("error", "error", "no"), "p8": ("error", "error", "no"), "p9": ("error", "error", "no"),
    }  # fmt: skip
    capped = rows["L1/p2/1"]
    assert (capped.reasoning_censored, capped.answer_tokens, capped.answer_censored) == ("yes", None, "yes")
    assert capped.n_tokens == 256 and capped.tokens_by == "tokenizer"
    assert rows["L1/p3/1"].detector == "exact_period" and rows["L1/p3/1"].loop_span == "reasoning"
    assert rows["L1/p8/1"].reason == "the reply brought no text: http_500"
    assert rows["L1/p9/1"].reason == "its finish_reason is not known"
    assert rows["L1/p6/1"].judged == "no" and rows["L1/p6/1"].novelty8 is None
    looped = figures_of(made)["long-L1-all", "reply_looped"]
    assert (looped.details["count"], looped.rows, looped.details["failed"]) == (2, 6, 3)
    assert looped.interval.low > 0 and looped.interval.high < 1
    checks = {one.name: one.passed for one in made.checks}
    assert checks == {"self_tests_passed": True, "no_reply_failed": False}


def test_checks_grade_what_finished_and_never_what_was_cut(arm: ReplyArm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_step, "find_sandbox", no_sandbox)
    arm.add("json", "records-2", "", '[{"id": 1}, {"id": 2}]', expected=RECORDS, kind="json")
    arm.add("json", "records-2", "", '```json\n[{"id": 1}, {"id": 2}]\n```', expected=RECORDS, kind="json", repeat=2)
    arm.add("json", "records-2", "", '[{"id": 1}', expected=RECORDS, kind="json", repeat=3, finish_reason="length")
    arm.add("math", "problem-1", "It is 41.", "ANSWER: 42", expected={"answer": "42"})
    arm.add("math", "problem-2", "ANSWER: 42", "forty-two", expected={"answer": "42"})
    arm.add("math", "problem-3", "ANSWER: 42", "", finish_reason="length", expected={"answer": "42"})
    arm.add(
        "math", "problem-4", keep=False, status="failed", cause="stalled", finish_reason=None, expected={"answer": "42"}
    )
    arm.add("needle", "needle-200-50", "9035127746", "The code is 4821937560.", expected=NEEDLE)
    arm.add("needle", "needle-200-90", "", "4821937560 or 9035127746", expected=NEEDLE)
    arm.code("merge_spans", f"```python\n{CODE_TASKS['merge_spans'].reference}\n```")
    made = make(arm.work())
    rows = rows_of(made)
    found = {name: (one.check, one.outcome, one.passed) for name, one in rows.items()}
    assert found == {
        "json/records-2/1": ("json", "valid", "yes"), "json/records-2/2": ("json", "not_json", "no"),
        "json/records-2/3": ("json", "capped", None), "math/problem-1/1": ("math", "right", "yes"),
        "math/problem-2/1": ("math", "no_answer", "no"), "math/problem-3/1": ("math", "capped", None),
        "math/problem-4/1": ("math", "error", None), "needle/needle-200-50/1": ("needle", "found", "yes"),
        "needle/needle-200-90/1": ("needle", "decoy", "no"), "code/merge_spans/1": ("code", "not_graded", None),
    }  # fmt: skip
    figures = figures_of(made)
    assert (figures["json", "json_valid"].value, figures["json", "json_valid_unfenced"].value) == (0.5, 1.0)
    assert figures["math-prose", "math_right"].details["not_graded"] == 2
    assert figures["code", "code_passed"].value.reason == "no sandbox"
    document = document_of(made)
    assert document["missing"] == {"code": "no sandbox"}
    assert document["self_tests"] == {
        "code": {"missing": "no sandbox"},
        "json": "passed",
        "math": "passed",
        "needle": "passed",
    }
    assert [check.passed for check in made.checks if check.name == "self_tests_passed"] == [False]


def test_a_check_that_fails_its_own_test_grades_nothing(arm: ReplyArm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_check, "without_fence", lambda reply: None)
    arm.add("json", "records-2", "", '[{"id": 1}, {"id": 2}]', expected=RECORDS, kind="json")
    made = make(arm.work())
    (row,) = rows_of(made).values()
    assert row.passed is None and "failed its own test" in str(row.reason)
    figure = figures_of(made)["json", "json_valid"]
    assert "the json check failed its own test: the JSON check fails" in figure.value.reason
    assert document_of(made)["self_tests"]["json"]["missing"] == figure.value.reason


def test_code_is_run_in_a_sandbox_where_there_is_one(arm: ReplyArm) -> None:
    task = CODE_TASKS["merge_spans"]
    arm.code("merge_spans", f"Here:\n```python\n{task.reference}\n```")
    arm.code("merge_spans", f"```python\n{next(iter(task.wrong.values()))}\n```", repeat=2)
    arm.code("merge_spans", "I do not know.", repeat=3)
    arm.code("merge_spans", f"```python\n{task.reference}", repeat=4, finish_reason="length")
    made = make(arm.work())
    if "code" in document_of(made)["missing"]:
        pytest.skip("no sandbox on this machine: tests/sandbox says so where there must be one")
    rows = list(rows_of(made).values())
    assert [(one.outcome, one.passed) for one in rows] == [
        ("passed", "yes"), ("failed", "no"), ("no_code", "no"), ("capped", None)
    ]  # fmt: skip
    assert rows[0].score == 1.0 and 0 < float(rows[1].score or 0) < 1 and rows[0].detail == f"passed={len(task.tests)}"
    figure = figures_of(made)["code", "code_passed"]
    assert figure.value == pytest.approx(1 / 3) and figure.details["not_graded"] == 1
    assert "no independent trials" in figure.interval.reason
    assert made.details["sandbox"]["limits"]["processes"] == 256


def test_scenarios_have_points_and_flips_between_repeats_are_the_floor(arm: ReplyArm) -> None:
    for scenario in SCENARIOS[:3]:
        right = [
            {"user": "", "steps": [one | {"ms": 20.0} for one in turn], "failure": None} for turn in reference(scenario)
        ]
        idle = [{"user": "", "steps": [step("") | {"ms": 10.0}], "failure": None}] * len(right)
        arm.tools(scenario.scenario_id, right)
        arm.tools(scenario.scenario_id, idle if scenario is SCENARIOS[0] else right, repeat=2)
    cut = [{"user": "", "steps": [step("It", finish="length") | {"ms": 1.0}], "failure": None}]
    arm.tools(SCENARIOS[0].scenario_id, cut, repeat=3)
    made = make(arm.work())
    figure = figures_of(made)["tools-c1-prose", "tool_points"]
    assert (figure.value, figure.details["max_points"], figure.details["not_graded"]) == (10.0, 12, 1)
    assert figure.details["flips"] == {
        "flips": 1, "compared": 3, "repeats": 2, "scenarios": [SCENARIOS[0].scenario_id],
    }  # fmt: skip
    rows = rows_of(made)
    assert [one.outcome for one in rows.values()] == ["pass", "fail", "pass", "pass", "pass", "pass", "capped"]
    assert rows[f"tools-c1/{SCENARIOS[0].scenario_id}/1"].turn_ms == 20.0


def test_made_again_it_is_the_same_to_the_byte(arm: ReplyArm) -> None:
    chance = Random(3)
    for number in range(6):
        arm.add("long", f"p{number}", much(paragraph, chance, 1500), much(paragraph, chance, 2500), stage="L1")
    first, second = (
        {one.name: one.content for one in make(arm.work()).products if one.role == "data"} for _ in range(2)
    )
    assert first == second and set(first) == {"verdicts.parquet", "checks.json"}


def test_no_text_of_a_reply_gets_into_what_is_kept(arm: ReplyArm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_step, "find_sandbox", no_sandbox)
    word = "Rumpelstilzchen"
    arm.add("long", "p1", word, f"{word} <|im_end|>")
    arm.add("json", "records-2", "", f'[{{"{word}": 1, "{word}": 2}}]', expected=RECORDS, kind="json")
    arm.add("json", "records-2", "", f'[{{"id": 1}}, {{"{word}": 2}}]', expected=RECORDS, kind="json", repeat=2)
    arm.add("math", "problem-1", "", f"ANSWER: {word}", expected={"answer": "42"})
    turns = [{"user": "", "steps": [step(f"{word} B-99999") | {"ms": 1.0}], "failure": None}]
    arm.tools(SCENARIOS[0].scenario_id, turns)
    arm.tools(SCENARIOS[0].scenario_id, [{"user": "", "steps": [], "failure": f"HTTP 400: {word}"}], repeat=2)
    made = make(arm.work())
    kept = json.dumps(document_of(made)) + repr(list(rows_of(made).values())) + repr(made.figures) + repr(made.checks)
    assert word not in kept + repr(made.details) + repr(arm.said)
    assert rows_of(made)["L1/p1/1"].control_tokens == 1


def test_a_tokenizer_that_is_not_the_engine_s_is_refused(arm: ReplyArm, smollm2_weights: Path) -> None:
    tokenizer = ReplyTokenizer.load(smollm2_weights)
    arm.add("long", "p1", "", "It is three.", ids=tokenizer.encode("It is three."))
    assert len(rows_of(make(arm.work()))) == 1
    arm.add("long", "p2", "", "It is three.", ids=[number + 1 for number in tokenizer.encode("It is three.")])
    with pytest.raises(EngcmpError, match="L1/p2/1: the engine's 4 token ids are another text by this tokenizer"):
        make(arm.work())


def test_ids_that_no_vocabulary_holds_are_refused(arm: ReplyArm) -> None:
    arm.add("long", "p1", "", "It is three.", ids=[10**6])
    with pytest.raises(EngcmpError, match="another text by this tokenizer"):
        make(arm.work())


def test_odd_texts_are_judged_cut_characters_half_pairs_and_two_megabytes(arm: ReplyArm) -> None:
    arm.add(
        "long", "p1", "", "ein Wort\N{REPLACEMENT CHARACTER}", ids=[1, 2, 3]
    )  # bytes that were cut within a character
    arm.add("long", "p2", "", "a\ud83d", finish_reason="length")
    arm.add("long", "p3", "", "a" * 2_000_000, finish_reason="length", n_tokens=256)
    arm.add("long", "p4", " \n", "\0\x1b[31m")
    rows = rows_of(make(arm.work()))
    assert [one.ending for one in rows.values()] == ["finished", "capped", "looped", "finished"]


def test_a_text_that_is_not_here_or_was_changed_is_named(arm: ReplyArm) -> None:
    record = arm.add("long", "p1", "", "It is 3.")
    (place,) = (arm.home / "private").glob(f"*/{record.private_sha256}.json.gz")
    data = place.read_bytes()
    place.write_bytes(data[:-9] + b"x" + data[-8:])
    with pytest.raises(EngcmpError, match="private text"):
        make(arm.work())
    place.unlink()
    with pytest.raises(EngcmpError, match="private texts are not here"):
        make(arm.work())


def test_an_auditor_without_the_texts_keeps_verdicts_and_makes_the_figures_again(
    arm: ReplyArm, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm.add("long", "p1", "", much(paragraph, Random(4), 3000))
    arm.add("json", "records-2", "", '[{"id": 1}, {"id": 2}]', expected=RECORDS, kind="json")
    arm.code("merge_spans", f"```python\n{CODE_TASKS['merge_spans'].reference}\n```")
    made = make(arm.work())
    stored, told = list(rows_of(made).values()), document_of(made)["self_tests"]
    data = {one.name: one.content for one in made.products if one.role == "data"}

    def again() -> dict[str, object]:
        found = make_again(arm.work(), stored, told)
        assert found.figures == made.figures
        return {one.name: one.content for one in found.products if one.role == "data"}

    assert again() == data and not any("taken as they are" in one for one in arm.said)
    shutil.rmtree(arm.home / "private")
    monkeypatch.setattr(checks_step, "find_sandbox", no_sandbox)
    assert again() == data
    assert any("private texts are not here: the verdicts on 3 replies are taken as they are" in one for one in arm.said)
    stored[1] = replace(stored[1], passed="no")
    assert make_again(arm.work(), stored, told).figures != made.figures


def test_a_task_that_was_changed_since_the_freeze_is_refused(arm: ReplyArm) -> None:
    arm.code("merge_spans", "x")
    arm.asked[0]["task_sha256"] = "0" * 64
    with pytest.raises(EngcmpError, match="code task merge_spans: changed since the study was frozen"):
        make(arm.work())
