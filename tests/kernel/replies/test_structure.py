"""Structured text: JSON up to any cut, fences, tables, lists, CSV and records; and what is none of them."""

from __future__ import annotations

import json
from random import Random

import pytest

from engcmp_assets.kernel.replies.spans import Thresholds
from engcmp_assets.kernel.replies.structure import json_cut, structure, structured_lines

LIMITS = Thresholds()
RECORDS = [{"id": n, "name": f'a "b" \\ {n}', "x": [1.5e-7, None, True, {"é": "\t"}], "y": -n} for n in range(40)]
PROSE = "The reader waits. It is late, and nobody comes.\nSo she closes the book and turns off the light in the hall.\n"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_json_wherever_it_is_cut(indent: int | None) -> None:
    text = json.dumps(RECORDS, indent=indent)
    assert all(json_cut(text[:cut], LIMITS)[0] for cut in range(1, len(text) + 1))


def test_json_that_is_broken_before_its_end_is_not() -> None:
    text = json.dumps(RECORDS, indent=2)
    for old, new in (
        ('"id": 3,', '"id" 3,'),
        ("null,", "nil,"),
        ('"y": -7', '"y": --7'),
        ("},", "}},"),
        ("true", "true true"),
    ):
        assert not json_cut(text.replace(old, new, 1), LIMITS)[0], old
    assert json_cut("see [1] and {2}", LIMITS) == (False, 0)
    assert json_cut("[" * 100_000, LIMITS) == (False, 0)  # deeper than it can be read
    assert json_cut("", LIMITS) == (False, 0)


def test_json_after_a_sentence_is_json_and_a_bracket_at_the_end_is_not() -> None:
    assert structure(f"Here it is:\n{json.dumps(RECORDS)}"[:900], LIMITS) == "json"
    assert structure(PROSE * 20 + "[1", LIMITS) is None


def test_a_long_string_within_json_is_no_structured_text() -> None:
    start = json.dumps(RECORDS, indent=2)[:-2] + ', {"note": "'
    assert structure(start + "and so on. " * 20, LIMITS) == "json"
    assert structure(start + "and so on. " * 300, LIMITS) is None
    assert structure(start + "and so on.\\n" * 300 + "\\u00", LIMITS) is None
    assert structure("```json\n" + start + "and so on. " * 300, LIMITS) is None


def test_an_open_fence_is_structured_and_what_follows_a_closed_one_is_not() -> None:
    code = "```python\ndef f(x):\n    return x\n"
    assert structure(PROSE + code, LIMITS) == "code fence"
    assert structure(f"{PROSE}{code}```\n" + PROSE * 20, LIMITS) is None
    assert structure(f"{PROSE}~~~\n{PROSE}", LIMITS) == "code fence"


def test_text_that_is_in_fences_for_the_most_part_is_structured() -> None:
    code = "```python\n" + "total = 0\nreturn total\n" * 200 + "```\n"
    assert structure(f"{PROSE}{code}{PROSE}", LIMITS) == "lines"


@pytest.mark.parametrize(
    "line",
    [
        "| a | b |", "|---|:--|", "- an item of a list, with words", "12. the twelfth one", "----------", "3 x 4 = 12", "name: a value",
        '"key": "value"', '<item id="3">words and words</item>', '{"id": 3, "note": "some words"}', "INSERT INTO t VALUES (1, 'a');", "  }",
    ],
)  # fmt: skip
def test_a_line_of_a_record_is_told(line: str) -> None:
    assert structured_lines([line]) == [True]


@pytest.mark.parametrize(
    "line",
    [
        "Wait, I should not.",
        "However, the value of the sum is 12, not 13, so we go on.",
        "x" * 30,
        "and " * 600,
        "ab, " + "c d " * 600,
    ],
)
def test_a_line_of_prose_is_not(line: str) -> None:
    assert structured_lines([line, "", "Then it is late."]) == [False, False]


def test_csv_has_the_same_number_of_short_fields_as_its_neighbour() -> None:
    assert structured_lines(["a,b,c d", "e,f,g", "so it is, then, or so we think it is, no"]) == [True, True, False]
    assert structured_lines(["a;b;c", "", "d;e;f;g"]) == [False, False]
    assert structured_lines(["x\ty\tz", "x\t\tz"]) == [True, True]


def test_sixty_of_a_hundred_lines_make_it_structured() -> None:
    lines = [f"- item {n}" for n in range(60)] + ["The reader waits for the others."] * 40
    Random(3).shuffle(lines)
    assert structure("\n".join(lines), LIMITS) == "lines"
    assert structure("\n".join(line.replace("- item 7", "The item") for line in lines), LIMITS) is None


def test_a_line_as_long_as_the_text_is_a_record_only_if_it_is_numbers() -> None:
    assert structure("Check: so it goes on and on. " * 300, LIMITS) is None
    assert structure("0.0, 1.5, 0.0, " * 600, LIMITS) == "lines"


def test_an_empty_text_has_no_structure() -> None:
    assert structure("", LIMITS) is None
    assert structure(" \n\n", LIMITS) is None
